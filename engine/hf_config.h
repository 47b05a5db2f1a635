/* config.json of Hugging Face's directories: read into an ot_model_config, and written.
 *
 * LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM and GPT2LMHeadModel. Every key that changes the
 * mathematics is used, or refused by name; old and new spellings of the RoPE and dtype keys are read. Keys without an
 * effect are passed over, unknown ones with one log line each. */
#ifndef OT_ENGINE_HF_CONFIG_H
#define OT_ENGINE_HF_CONFIG_H

#include "engine/model.h"

/* A config.json: what it means, and all that it says, for writing it again. */
typedef struct ot_hf_config ot_hf_config;

/* Reads DIRECTORY/config.json. OT_ERR_FORMAT names file, key, what was found and what is supported. */
ot_status ot_hf_config_open(const char *directory, ot_hf_config **out) OT_MUST_CHECK;

/* The same from memory; `path` names it in messages. */
ot_status ot_hf_config_parse(const char *path, const char *text, size_t bytes,
                             ot_hf_config **out) OT_MUST_CHECK;

/* A config.json for a model that has none, such as a preset. */
ot_status ot_hf_config_make(const ot_model_config *model, ot_hf_config **out) OT_MUST_CHECK;

void ot_hf_config_close(ot_hf_config *config); /* NULL is allowed */

/* The model it describes; lives as long as `config`. */
const ot_model_config *ot_hf_config_model(const ot_hf_config *config);

/* Writes it to `path`, whole or not at all, with weights of `dtype` (not OT_INT8): everything else stays as it was read, the
 * very bytes where the dtype stays, too. Durable on return. */
ot_status ot_hf_config_write(const ot_hf_config *config, ot_dtype dtype, const char *path) OT_MUST_CHECK;

#endif
