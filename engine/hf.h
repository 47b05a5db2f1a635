/* The parts of config.json's reading: the keys (which are used, which must keep the value that leaves the mathematics as it
 * is, which have no effect on it), and what they say. For engine/hf_*.c alone. */
#ifndef OT_ENGINE_HF_H
#define OT_ENGINE_HF_H

#include <jansson.h>

#include "engine/model.h"

/* The architectures, as bits. */
enum {
    OT_HF_LLAMA = 1,
    OT_HF_MISTRAL = 2,
    OT_HF_QWEN2 = 4,
    OT_HF_QWEN3 = 8,
    OT_HF_GPT2 = 16,
    OT_HF_QWEN = OT_HF_QWEN2 | OT_HF_QWEN3,
    OT_HF_ROPE = OT_HF_LLAMA | OT_HF_MISTRAL | OT_HF_QWEN, /* the Llama family */
    OT_HF_ALL = OT_HF_ROPE | OT_HF_GPT2,
};

typedef struct ot_hf_architecture {
    int bit;
    const char *name, *model_type;
    size_t positions; /* where the file does not say */
} ot_hf_architecture;

/* By name or by model_type, the other one NULL; NULL where it is not supported. */
const ot_hf_architecture *ot_hf_find_architecture(const char *name, const char *model_type);

/* OT_ERR_FORMAT with path and key. */
ot_status ot_hf_read_model(const char *path, const json_t *object, ot_model_config *out) OT_MUST_CHECK;

/* Checks all keys of `object` for one architecture. OT_ERR_FORMAT names the first that is not supported with its value;
 * unknown keys, and dropout, without which we train, get one log line each. */
ot_status ot_hf_check_keys(const char *path, const json_t *object, int architecture) OT_MUST_CHECK;

/* ---- Values: null is as good as absent, and the wrong type OT_ERR_FORMAT ---- */

/* `*out` stays as it is where the key is absent. */
ot_status ot_hf_get_size(const char *path, const json_t *object, const char *key, size_t *out) OT_MUST_CHECK;
ot_status ot_hf_get_real(const char *path, const json_t *object, const char *key, double *out) OT_MUST_CHECK;
ot_status ot_hf_get_flag(const char *path, const json_t *object, const char *key, int *out) OT_MUST_CHECK;
ot_status ot_hf_get_text(const char *path, const json_t *object, const char *key,
                         const char **out) OT_MUST_CHECK;

int ot_hf_has(const json_t *object, const char *key); /* present, and not null */

/* A value as JSON, shortened, for messages. */
enum { OT_HF_VALUE_BYTES = 80 };
const char *ot_hf_show(const json_t *value, char out[OT_HF_VALUE_BYTES]);

#endif
