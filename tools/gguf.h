/* GGUF files, version 3 (https://github.com/ggml-org/ggml, docs/gguf.md): metadata, tensors' names and shapes, then their
 * bytes at multiples of 32. Everything is little-endian. */
#ifndef OT_TOOLS_GGUF_H
#define OT_TOOLS_GGUF_H

#include <stddef.h>
#include <stdint.h>

#include "engine/hf_config.h"
#include "io/status.h"

typedef struct ot_gguf ot_gguf;

typedef enum ot_gguf_type {
    OT_GGUF_I32 = 5,
    OT_GGUF_F32 = 6,
    OT_GGUF_TEXT = 8
} ot_gguf_type; /* of array elements */

/* For a new file `path`; it is created by ot_gguf_begin. */
ot_status ot_gguf_open(const char *path, ot_gguf **out) OT_MUST_CHECK;

/* Metadata. A failure is kept and returned by ot_gguf_begin. */
void ot_gguf_put_u32(ot_gguf *g, const char *key, uint32_t value);
void ot_gguf_put_f32(ot_gguf *g, const char *key, float value);
void ot_gguf_put_flag(ot_gguf *g, const char *key, int value);
void ot_gguf_put_text(ot_gguf *g, const char *key, const char *value);

/* An array, and then each of its `count` elements. */
void ot_gguf_put_array(ot_gguf *g, const char *key, ot_gguf_type type, uint64_t count);
void ot_gguf_add_i32(ot_gguf *g, int32_t value);
void ot_gguf_add_f32(ot_gguf *g, float value);
void ot_gguf_add_text(ot_gguf *g, const char *value);

/* A tensor [rows,cols] of FP32, BF16 or FP16; rows 0: a vector of `cols`. */
void ot_gguf_put_tensor(ot_gguf *g, const char *name, ot_dtype dtype, uint64_t rows, uint64_t cols);

/* Writes all of the above. Then the tensors' bytes follow in their order, cut anywhere within a tensor. */
ot_status ot_gguf_begin(ot_gguf *g) OT_MUST_CHECK;
ot_status ot_gguf_append(ot_gguf *g, const void *data, uint64_t bytes) OT_MUST_CHECK;
ot_status ot_gguf_end_tensor(ot_gguf *g) OT_MUST_CHECK;

/* Makes the file durable and reads it back: OT_ERR_IO where it is not what was written. */
ot_status ot_gguf_finish(ot_gguf *g) OT_MUST_CHECK;

void ot_gguf_close(ot_gguf *g); /* NULL is allowed */

/* ---- A tokenizer as metadata ---- */

/* Adds the tokenizer of a Hugging Face directory (tokenizer.json, tokenizer_config.json, chat_template.jinja) for a model
 * with V tokens. Without a tokenizer.json the file says that it has none. OT_ERR_FORMAT where GGUF has no name for what the
 * tokenizer does. */
ot_status ot_gguf_put_tokenizer(ot_gguf *g, const char *directory,
                                const ot_model_config *model) OT_MUST_CHECK;

#endif
