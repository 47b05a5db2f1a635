/* The keys of config.json. */
#include "engine/hf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/log.h"
#include "io/text.h"

static const ot_hf_architecture architectures[] = {
    {OT_HF_LLAMA, "LlamaForCausalLM", "llama", 2048},
    {OT_HF_MISTRAL, "MistralForCausalLM", "mistral", 131072},
    {OT_HF_QWEN2, "Qwen2ForCausalLM", "qwen2", 32768},
    {OT_HF_QWEN3, "Qwen3ForCausalLM", "qwen3", 32768},
    {OT_HF_GPT2, "GPT2LMHeadModel", "gpt2", 1024},
};

const ot_hf_architecture *ot_hf_find_architecture(const char *name, const char *model_type)
{
    for (size_t i = 0; i < sizeof architectures / sizeof *architectures; i++)
        if ((name != NULL && strcmp(architectures[i].name, name) == 0) ||
            (model_type != NULL && strcmp(architectures[i].model_type, model_type) == 0))
            return &architectures[i];
    return NULL;
}

typedef enum key_rule {
    KEY_USED,    /* read by hf_config.c */
    KEY_OFF,     /* changes the mathematics unless null, false, 0 or empty */
    KEY_ONE,     /* changes the mathematics unless null, true or 1 */
    KEY_DROPOUT, /* of training elsewhere */
} key_rule;

static const struct {
    const char *name;
    int architectures;
    key_rule rule;
} rules[] = {
    {"architectures", OT_HF_ALL, KEY_USED},
    {"model_type", OT_HF_ALL, KEY_USED},
    {"torch_dtype", OT_HF_ALL, KEY_USED},
    {"dtype", OT_HF_ALL, KEY_USED},
    {"vocab_size", OT_HF_ALL, KEY_USED},
    {"bos_token_id", OT_HF_ALL, KEY_USED},
    {"eos_token_id", OT_HF_ALL, KEY_USED},
    {"initializer_range", OT_HF_ALL, KEY_USED},
    {"tie_word_embeddings", OT_HF_ALL, KEY_USED},

    {"hidden_size", OT_HF_ROPE, KEY_USED},
    {"intermediate_size", OT_HF_ROPE, KEY_USED},
    {"num_hidden_layers", OT_HF_ROPE, KEY_USED},
    {"num_attention_heads", OT_HF_ROPE, KEY_USED},
    {"num_key_value_heads", OT_HF_ROPE, KEY_USED},
    {"head_dim", OT_HF_ROPE, KEY_USED},
    {"max_position_embeddings", OT_HF_ROPE, KEY_USED},
    {"rms_norm_eps", OT_HF_ROPE, KEY_USED},
    {"hidden_act", OT_HF_ROPE, KEY_USED},
    {"rope_theta", OT_HF_ROPE, KEY_USED},
    {"rope_scaling", OT_HF_ROPE, KEY_USED},
    {"rope_parameters", OT_HF_ROPE, KEY_USED},
    {"layer_types", OT_HF_ROPE, KEY_USED},
    {"sliding_window", OT_HF_MISTRAL | OT_HF_QWEN, KEY_USED},
    {"use_sliding_window", OT_HF_QWEN, KEY_USED},
    {"max_window_layers", OT_HF_QWEN, KEY_USED},
    {"attention_dropout", OT_HF_ROPE, KEY_DROPOUT},
    {"hidden_dropout", OT_HF_ALL, KEY_DROPOUT},
    {"sliding_window", OT_HF_LLAMA, KEY_OFF},
    {"use_sliding_window", OT_HF_LLAMA | OT_HF_MISTRAL, KEY_OFF},
    {"attention_bias", OT_HF_LLAMA | OT_HF_MISTRAL | OT_HF_QWEN3, KEY_OFF},
    {"mlp_bias", OT_HF_ROPE, KEY_OFF},
    {"qkv_bias", OT_HF_LLAMA | OT_HF_MISTRAL | OT_HF_QWEN3, KEY_OFF},
    {"use_bias", OT_HF_ROPE, KEY_OFF},
    {"bias", OT_HF_ROPE, KEY_OFF},
    {"rope_interleaved", OT_HF_ROPE, KEY_OFF},
    {"partial_rotary_factor", OT_HF_ROPE, KEY_ONE},
    {"rotary_pct", OT_HF_ROPE, KEY_ONE},
    {"rope_local_base_freq", OT_HF_ROPE, KEY_OFF},
    {"use_mrope", OT_HF_ROPE, KEY_OFF},
    {"no_rope_layers", OT_HF_ROPE, KEY_OFF},
    {"no_rope_layer_interval", OT_HF_ROPE, KEY_OFF},
    {"qk_layernorm", OT_HF_ALL, KEY_OFF},
    {"use_qk_norm", OT_HF_LLAMA | OT_HF_MISTRAL | OT_HF_QWEN2, KEY_OFF},

    {"n_embd", OT_HF_GPT2, KEY_USED},
    {"n_inner", OT_HF_GPT2, KEY_USED},
    {"n_layer", OT_HF_GPT2, KEY_USED},
    {"n_head", OT_HF_GPT2, KEY_USED},
    {"n_positions", OT_HF_GPT2, KEY_USED},
    {"layer_norm_epsilon", OT_HF_GPT2, KEY_USED},
    {"activation_function", OT_HF_GPT2, KEY_USED},
    {"resid_pdrop", OT_HF_GPT2, KEY_DROPOUT},
    {"embd_pdrop", OT_HF_GPT2, KEY_DROPOUT},
    {"attn_pdrop", OT_HF_GPT2, KEY_DROPOUT},
    {"scale_attn_weights", OT_HF_GPT2, KEY_ONE},
    {"scale_attn_by_inverse_layer_idx", OT_HF_GPT2, KEY_OFF},
    /* Other names of GPT-2's dimensions; one that is not read must not be there. */
    {"hidden_size", OT_HF_GPT2, KEY_OFF},
    {"num_hidden_layers", OT_HF_GPT2, KEY_OFF},
    {"num_attention_heads", OT_HF_GPT2, KEY_OFF},
    {"max_position_embeddings", OT_HF_GPT2, KEY_OFF},

    {"quantization_config", OT_HF_ALL, KEY_OFF},
    {"compression_config", OT_HF_ALL, KEY_OFF},
    {"auto_map", OT_HF_ALL, KEY_OFF}, /* the model's own code */
    {"num_experts", OT_HF_ALL, KEY_OFF},
    {"num_local_experts", OT_HF_ALL, KEY_OFF},
    {"num_experts_per_tok", OT_HF_ALL, KEY_OFF},
    {"n_routed_experts", OT_HF_ALL, KEY_OFF},
    {"moe_intermediate_size", OT_HF_ALL, KEY_OFF},
    {"logit_scale", OT_HF_ALL, KEY_ONE},
    {"logits_scaling", OT_HF_ALL, KEY_ONE},
    {"embedding_multiplier", OT_HF_ALL, KEY_ONE},
    {"residual_multiplier", OT_HF_ALL, KEY_ONE},
    {"attention_multiplier", OT_HF_ALL, KEY_OFF},
    {"query_pre_attn_scalar", OT_HF_ALL, KEY_OFF},
    {"final_logit_softcapping", OT_HF_ALL, KEY_OFF},
    {"attn_logit_softcapping", OT_HF_ALL, KEY_OFF},
    {"clip_qkv", OT_HF_ALL, KEY_OFF},
    {"attention_chunk_size", OT_HF_ALL, KEY_OFF},
    {"alibi", OT_HF_ALL, KEY_OFF},
    {"parallel_attn", OT_HF_ALL, KEY_OFF},
    {"add_cross_attention", OT_HF_ALL, KEY_OFF},
    {"is_encoder_decoder", OT_HF_ALL, KEY_OFF},
    {"pruned_heads", OT_HF_ALL, KEY_OFF},
};

/* No effect on the logits of a sequence, whatever their value. */
static const char *const harmless[] = {
    "_name_or_path",
    "_attn_implementation_autoset",
    "transformers_version",
    "transformers.js_config",
    "use_cache",
    "pad_token_id",
    "sep_token_id",
    "unk_token_id",
    "decoder_start_token_id",
    "pretraining_tp",          /* cuts products into slices, which changes their rounding at most */
    "reorder_and_upcast_attn", /* precision alone; our scores are FP32 anyway */
    "is_llama_config",
    "is_decoder",
    "n_ctx",
    "summary_type",
    "summary_use_proj",
    "summary_activation",
    "summary_proj_to_labels",
    "summary_first_dropout",
    "task_specific_params",
    "output_attentions",
    "output_hidden_states",
    "output_past",
    "return_dict",
    "return_dict_in_generate",
    "output_scores",
    "torchscript",
    "use_bfloat16",
    "tf_legacy_loss",
    "tie_encoder_decoder",
    "cross_attention_hidden_size",
    "chunk_size_feed_forward",
    "finetuning_task",
    "id2label",
    "label2id",
    "num_labels",
    "problem_type",
    "prefix",
    "tokenizer_class",
    "gradient_checkpointing",
    "max_length",
    "min_length",
    "do_sample",
    "early_stopping",
    "num_beams",
    "num_beam_groups",
    "diversity_penalty",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
    "repetition_penalty",
    "length_penalty",
    "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
    "bad_words_ids",
    "num_return_sequences",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "remove_invalid_values",
    "exponential_decay_length_penalty",
    "suppress_tokens",
    "begin_suppress_tokens",
};

const char *ot_hf_show(const json_t *value, char out[OT_HF_VALUE_BYTES])
{
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(9));
    snprintf(out, OT_HF_VALUE_BYTES, "%.*s", OT_HF_VALUE_BYTES - 1, text != NULL ? text : "?");
    free(text);
    return ot_clean_utf8(out);
}

int ot_hf_has(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return value != NULL && !json_is_null(value);
}

/* ---- Checks ---- */

static int is_off(const json_t *value)
{
    return json_is_null(value) || json_is_false(value) ||
           (json_is_number(value) && !(json_number_value(value) < 0) && !(json_number_value(value) > 0)) ||
           (json_is_object(value) && json_object_size(value) == 0) ||
           (json_is_array(value) && json_array_size(value) == 0);
}

static int is_one(const json_t *value)
{
    return json_is_null(value) || json_is_true(value) ||
           (json_is_number(value) && !(json_number_value(value) < 1) && !(json_number_value(value) > 1));
}

static int is_harmless(const char *key)
{
    for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++)
        if (strcmp(harmless[i], key) == 0)
            return 1;
    return 0;
}

static ot_status check_key(const char *path, const char *key, const json_t *value, int architecture)
{
    char shown[OT_HF_VALUE_BYTES];
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        if ((rules[i].architectures & architecture) == 0 || strcmp(rules[i].name, key) != 0)
            continue;
        if ((rules[i].rule == KEY_OFF && !is_off(value)) || (rules[i].rule == KEY_ONE && !is_one(value)))
            return ot_fail(OT_ERR_FORMAT, "%s: %s is %s, which is not supported", path, key,
                           ot_hf_show(value, shown));
        if (rules[i].rule == KEY_DROPOUT && !is_off(value))
            ot_log(OT_LOG_INFO, "%s: %s is %s; training is without dropout", path, key,
                   ot_hf_show(value, shown));
        return OT_OK;
    }
    if (!is_harmless(key))
        ot_log(OT_LOG_INFO, "%s: key %s is not known and not used", path, key);
    return OT_OK;
}

ot_status ot_hf_check_keys(const char *path, const json_t *object, int architecture)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value)
    {
        OT_TRY(check_key(path, key, value, architecture));
    }
    return OT_OK;
}

/* ---- Values ---- */

/* Whole numbers that a double holds, too. */
#define MOST (INT64_C(1) << 53)

static ot_status wrong_type(const char *path, const char *key, const json_t *value, const char *expected)
{
    char shown[OT_HF_VALUE_BYTES];
    return ot_fail(OT_ERR_FORMAT, "%s: %s is %s, expected %s", path, key, ot_hf_show(value, shown), expected);
}

ot_status ot_hf_get_size(const char *path, const json_t *object, const char *key, size_t *out)
{
    const json_t *value = json_object_get(object, key);
    if (!ot_hf_has(object, key))
        return OT_OK;
    if (!json_is_integer(value) || json_integer_value(value) < 0 || json_integer_value(value) > MOST)
        return wrong_type(path, key, value, "a whole number up to 2^53");
    *out = (size_t)json_integer_value(value);
    return OT_OK;
}

ot_status ot_hf_get_real(const char *path, const json_t *object, const char *key, double *out)
{
    const json_t *value = json_object_get(object, key);
    if (!ot_hf_has(object, key))
        return OT_OK;
    if (!json_is_number(value))
        return wrong_type(path, key, value, "a number");
    *out = json_number_value(value);
    return OT_OK;
}

ot_status ot_hf_get_flag(const char *path, const json_t *object, const char *key, int *out)
{
    const json_t *value = json_object_get(object, key);
    if (!ot_hf_has(object, key))
        return OT_OK;
    if (!json_is_boolean(value))
        return wrong_type(path, key, value, "true or false");
    *out = json_is_true(value);
    return OT_OK;
}

ot_status ot_hf_get_text(const char *path, const json_t *object, const char *key, const char **out)
{
    const json_t *value = json_object_get(object, key);
    if (!ot_hf_has(object, key))
        return OT_OK;
    if (!json_is_string(value))
        return wrong_type(path, key, value, "a text");
    *out = json_string_value(value);
    return OT_OK;
}
