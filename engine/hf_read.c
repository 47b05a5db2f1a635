/* What a config.json says of the model. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/hf.h"

/* No real model comes near it; each block costs memory before its tensors are looked for. */
enum { BLOCKS_MAX = 4096 };

typedef struct reader {
    const char *path;
    const json_t *object;
    const ot_hf_architecture *is;
    ot_model_config *c;
} reader;

static ot_status get_size(const reader *r, const char *key, size_t *out)
{
    return ot_hf_get_size(r->path, r->object, key, out);
}

static ot_status need_size(const reader *r, const char *key, size_t *out)
{
    if (!ot_hf_has(r->object, key))
        return ot_fail(OT_ERR_FORMAT, "%s: %s is missing", r->path, key);
    return get_size(r, key, out);
}

static ot_status get_float(const reader *r, const char *key, float *out)
{
    double value = (double)*out;
    OT_TRY(ot_hf_get_real(r->path, r->object, key, &value));
    if (!(fabs(value) <= (double)FLT_MAX))
        return ot_fail(OT_ERR_FORMAT, "%s: %s is %g, beyond FP32", r->path, key, value);
    *out = (float)value;
    return OT_OK;
}

/* ---- The architecture ---- */

static ot_status find_architecture(reader *r)
{
    const json_t *list = json_object_get(r->object, "architectures");
    const char *name = json_string_value(json_array_get(list, 0)), *type = NULL;
    OT_TRY(ot_hf_get_text(r->path, r->object, "model_type", &type));
    if (ot_hf_has(r->object, "architectures") && (json_array_size(list) != 1 || name == NULL))
        return ot_fail(OT_ERR_FORMAT, "%s: architectures is no list of one name", r->path);
    r->is = ot_hf_find_architecture(name, name == NULL ? type : NULL);
    if (r->is == NULL)
        return ot_fail(OT_ERR_FORMAT,
                       "%s: the architecture is %.80s, expected LlamaForCausalLM, MistralForCausalLM, "
                       "Qwen2ForCausalLM, Qwen3ForCausalLM or GPT2LMHeadModel",
                       r->path,
                       name != NULL   ? name
                       : type != NULL ? type
                                      : "missing");
    if (type != NULL && strcmp(r->is->model_type, type) != 0)
        return ot_fail(OT_ERR_FORMAT, "%s: the architecture is %s, but model_type is %.80s", r->path,
                       r->is->name, type);
    snprintf(r->c->architecture, sizeof r->c->architecture, "%s", r->is->name);
    return OT_OK;
}

/* ---- RoPE ---- */

/* The object with the scaling: rope_scaling, or from transformers 5 on rope_parameters. NULL: neither. */
static ot_status find_rope_object(const reader *r, const char **name, const json_t **out)
{
    int old = ot_hf_has(r->object, "rope_scaling"), new = ot_hf_has(r->object, "rope_parameters");
    if (old && new)
        return ot_fail(OT_ERR_FORMAT, "%s: it has both rope_scaling and rope_parameters: remove one",
                       r->path);
    *name = new ? "rope_parameters" : "rope_scaling";
    *out = old || new ? json_object_get(r->object, *name) : NULL;
    if (*out != NULL && !json_is_object(*out))
        return ot_fail(OT_ERR_FORMAT, "%s: %s is no object", r->path, *name);
    return OT_OK;
}

/* What is not known in there changes the angles. */
static ot_status check_rope_keys(const reader *r, const char *name, const json_t *rope)
{
    static const char *const known[] = {
        "type",
        "rope_type",
        "rope_theta",
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
        "partial_rotary_factor",
    };
    const char *key;
    json_t *value;
    char shown[OT_HF_VALUE_BYTES];
    json_object_foreach((json_t *)rope, key, value)
    {
        size_t i = 0;
        while (i < sizeof known / sizeof *known && strcmp(known[i], key) != 0)
            i++;
        double share = json_is_number(value) ? json_number_value(value) : 0;
        int partial = strcmp(key, "partial_rotary_factor") == 0 && !(share >= 1 && share <= 1);
        if (i == sizeof known / sizeof *known || partial)
            return ot_fail(OT_ERR_FORMAT, "%s: %s in %s is %s, which is not supported", r->path, key, name,
                           ot_hf_show(value, shown));
    }
    return OT_OK;
}

static ot_status read_rope_kind(const reader *r, const char *name, const json_t *rope)
{
    const char *kind = NULL, *old = NULL;
    OT_TRY(ot_hf_get_text(r->path, rope, "rope_type", &kind));
    OT_TRY(ot_hf_get_text(r->path, rope, "type", &old));
    if (kind != NULL && old != NULL && strcmp(kind, old) != 0)
        return ot_fail(OT_ERR_FORMAT, "%s: rope_type in %s is %.80s, but type is %.80s", r->path, name, kind,
                       old);
    kind = kind != NULL ? kind : old != NULL ? old : "default";
    if (strcmp(kind, "default") == 0)
        r->c->rope.kind = OT_ROPE_PLAIN;
    else if (strcmp(kind, "linear") == 0)
        r->c->rope.kind = OT_ROPE_LINEAR;
    else if (strcmp(kind, "llama3") == 0)
        r->c->rope.kind = OT_ROPE_LLAMA3;
    else
        return ot_fail(OT_ERR_FORMAT, "%s: the rope_type in %s is %.80s, expected default, linear or llama3",
                       r->path, name, kind);
    return OT_OK;
}

static ot_status need_in_rope(const reader *r, const char *name, const json_t *rope, const char *key)
{
    if (!ot_hf_has(rope, key))
        return ot_fail(OT_ERR_FORMAT, "%s: %s in %s is missing", r->path, key, name);
    return OT_OK;
}

static ot_status read_rope_numbers(const reader *r, const char *name, const json_t *rope)
{
    ot_rope_scaling *out = &r->c->rope;
    size_t positions = 0;
    if (out->kind == OT_ROPE_PLAIN)
        return OT_OK;
    OT_TRY(need_in_rope(r, name, rope, "factor"));
    OT_TRY(ot_hf_get_real(r->path, rope, "factor", &out->factor));
    if (out->kind == OT_ROPE_LINEAR)
        return OT_OK;
    OT_TRY(need_in_rope(r, name, rope, "low_freq_factor"));
    OT_TRY(need_in_rope(r, name, rope, "high_freq_factor"));
    OT_TRY(need_in_rope(r, name, rope, "original_max_position_embeddings"));
    OT_TRY(ot_hf_get_real(r->path, rope, "low_freq_factor", &out->low_freq_factor));
    OT_TRY(ot_hf_get_real(r->path, rope, "high_freq_factor", &out->high_freq_factor));
    OT_TRY(ot_hf_get_size(r->path, rope, "original_max_position_embeddings", &positions));
    out->original_positions = (double)positions;
    return OT_OK;
}

static ot_status read_rope(const reader *r)
{
    const char *name = "";
    const json_t *rope = NULL;
    double inner = 0, outer = 0;
    OT_TRY(ot_hf_get_real(r->path, r->object, "rope_theta", &outer));
    OT_TRY(find_rope_object(r, &name, &rope));
    if (rope != NULL) {
        OT_TRY(check_rope_keys(r, name, rope));
        OT_TRY(read_rope_kind(r, name, rope));
        OT_TRY(read_rope_numbers(r, name, rope));
        OT_TRY(ot_hf_get_real(r->path, rope, "rope_theta", &inner));
    }
    int has_outer = ot_hf_has(r->object, "rope_theta"), has_inner = ot_hf_has(rope, "rope_theta");
    if (has_outer && has_inner && (inner < outer || inner > outer))
        return ot_fail(OT_ERR_FORMAT, "%s: rope_theta is %g, but %g in %s", r->path, outer, inner, name);
    r->c->rope.theta = has_outer ? outer : has_inner ? inner : 10000;
    return OT_OK;
}

/* ---- The sliding window ---- */

/* Whether the layers slide, by layer_types: 1 all, 0 none, -1 where the file does not say. */
static ot_status read_layer_types(const reader *r, int *all)
{
    const json_t *types = json_object_get(r->object, "layer_types");
    size_t sliding = 0, n = json_array_size(types);
    *all = -1;
    if (!ot_hf_has(r->object, "layer_types"))
        return OT_OK;
    if (!json_is_array(types) || n != r->c->L)
        return ot_fail(OT_ERR_FORMAT, "%s: layer_types is no list of one name for each of %zu layers",
                       r->path, r->c->L);
    for (size_t i = 0; i < n; i++) {
        const char *type = json_string_value(json_array_get(types, i));
        if (type == NULL || (strcmp(type, "sliding_attention") != 0 && strcmp(type, "full_attention") != 0))
            return ot_fail(OT_ERR_FORMAT,
                           "%s: layer_types has %.80s, expected full_attention or sliding_attention", r->path,
                           type != NULL ? type : "something that is no text");
        sliding += type[0] == 's';
    }
    if (sliding != 0 && sliding != n)
        return ot_fail(
            OT_ERR_FORMAT,
            "%s: layer_types lets %zu of %zu layers slide, expected all or none: a window in some layers "
            "only is not supported",
            r->path, sliding, n);
    *all = sliding > 0;
    return OT_OK;
}

/* Where the window is in use, the layers from max_window_layers on slide. */
static ot_status qwen_slides(const reader *r, int by_type, int *slides)
{
    size_t first = 28;
    int use = 0;
    OT_TRY(ot_hf_get_flag(r->path, r->object, "use_sliding_window", &use));
    OT_TRY(get_size(r, "max_window_layers", &first));
    use = use && !json_is_null(json_object_get(r->object, "sliding_window"));
    if (by_type == 1 && !use)
        return ot_fail(OT_ERR_FORMAT, "%s: layer_types slides, but no sliding_window is in use", r->path);
    if (use && by_type < 0 && first > 0 && first < r->c->L)
        return ot_fail(
            OT_ERR_FORMAT,
            "%s: use_sliding_window is true and max_window_layers %zu of %zu: a window in some layers only "
            "is not supported",
            r->path, first, r->c->L);
    *slides = use && (by_type >= 0 ? by_type : first == 0);
    return OT_OK;
}

static ot_status read_window(const reader *r)
{
    int by_type, slides = 0;
    size_t window = 4096; /* where the key is absent; null is none */
    OT_TRY(read_layer_types(r, &by_type));
    if ((r->is->bit & OT_HF_QWEN) != 0) {
        OT_TRY(qwen_slides(r, by_type, &slides));
    } else {
        slides = r->is->bit == OT_HF_MISTRAL && !json_is_null(json_object_get(r->object, "sliding_window"));
        if (by_type >= 0 && by_type != slides)
            return ot_fail(OT_ERR_FORMAT, "%s: layer_types and sliding_window do not agree", r->path);
    }
    if (!slides)
        return OT_OK;
    OT_TRY(get_size(r, "sliding_window", &window));
    if (window == 0)
        return ot_fail(OT_ERR_FORMAT, "%s: sliding_window is 0, expected 1 or more, or null", r->path);
    r->c->window = window;
    return OT_OK;
}

/* ---- The families ---- */

static ot_status read_heads(const reader *r)
{
    ot_model_config *c = r->c;
    OT_TRY(need_size(r, "num_attention_heads", &c->NH));
    c->NKV = c->NH;
    if (r->is->bit == OT_HF_LLAMA)
        OT_TRY(get_size(r, "num_key_value_heads", &c->NKV));
    else
        OT_TRY(need_size(r, "num_key_value_heads", &c->NKV));
    if (r->is->bit == OT_HF_QWEN3)
        c->HD = 128;
    else if (!ot_hf_has(r->object, "head_dim") && (c->NH == 0 || c->C % c->NH != 0))
        return ot_fail(OT_ERR_FORMAT, "%s: hidden_size %zu is no multiple of num_attention_heads %zu",
                       r->path, c->C, c->NH);
    else if (c->NH > 0)
        c->HD = c->C / c->NH;
    return get_size(r, "head_dim", &c->HD);
}

static ot_status read_llama(const reader *r)
{
    ot_model_config *c = r->c;
    const char *act = "silu";
    c->family = OT_FAMILY_LLAMA;
    c->norm_eps = 1e-6f;
    c->qkv_bias = r->is->bit == OT_HF_QWEN2;
    c->qk_norm = r->is->bit == OT_HF_QWEN3;
    OT_TRY(need_size(r, "hidden_size", &c->C));
    OT_TRY(need_size(r, "intermediate_size", &c->F));
    OT_TRY(need_size(r, "num_hidden_layers", &c->L));
    OT_TRY(read_heads(r));
    OT_TRY(get_size(r, "max_position_embeddings", &c->positions));
    OT_TRY(get_float(r, "rms_norm_eps", &c->norm_eps));
    OT_TRY(ot_hf_get_text(r->path, r->object, "hidden_act", &act));
    if (strcmp(act, "silu") != 0 && strcmp(act, "swish") != 0)
        return ot_fail(OT_ERR_FORMAT, "%s: hidden_act is %.80s, expected silu", r->path, act);
    OT_TRY(read_rope(r));
    return read_window(r);
}

static ot_status read_gelu(const reader *r)
{
    const char *act = "gelu_new";
    OT_TRY(ot_hf_get_text(r->path, r->object, "activation_function", &act));
    if (strcmp(act, "gelu_new") == 0 || strcmp(act, "gelu_pytorch_tanh") == 0 ||
        strcmp(act, "gelu_fast") == 0)
        r->c->gelu = OT_GELU_TANH;
    else if (strcmp(act, "gelu") == 0)
        r->c->gelu = OT_GELU_ERF;
    else
        return ot_fail(OT_ERR_FORMAT, "%s: activation_function is %.80s, expected gelu_new or gelu", r->path,
                       act);
    return OT_OK;
}

static ot_status read_gpt2(const reader *r)
{
    ot_model_config *c = r->c;
    c->family = OT_FAMILY_GPT2;
    c->norm_eps = 1e-5f;
    c->tied = 1;
    OT_TRY(need_size(r, "n_embd", &c->C));
    OT_TRY(need_size(r, "n_layer", &c->L));
    OT_TRY(need_size(r, "n_head", &c->NH));
    if (c->NH == 0 || c->C % c->NH != 0)
        return ot_fail(OT_ERR_FORMAT, "%s: n_embd %zu is no multiple of n_head %zu", r->path, c->C, c->NH);
    c->NKV = c->NH;
    c->HD = c->C / c->NH;
    c->F = c->C <= SIZE_MAX / 4 ? 4 * c->C : 0;
    OT_TRY(get_size(r, "n_inner", &c->F));
    OT_TRY(get_size(r, "n_positions", &c->positions));
    OT_TRY(get_float(r, "layer_norm_epsilon", &c->norm_eps));
    return read_gelu(r);
}

/* A token, or the first of a list of them: instruction-tuned models end at several. */
static ot_status read_token(const reader *r, const char *key, int32_t *out)
{
    const json_t *value = json_object_get(r->object, key);
    *out = -1;
    if (!ot_hf_has(r->object, key))
        return OT_OK;
    if (json_is_array(value))
        value = json_array_get(value, 0);
    if (!json_is_integer(value) || json_integer_value(value) < 0 || json_integer_value(value) > INT32_MAX)
        return ot_fail(OT_ERR_FORMAT, "%s: %s is no token and no list of tokens", r->path, key);
    *out = (int32_t)json_integer_value(value);
    return OT_OK;
}

ot_status ot_hf_read_model(const char *path, const json_t *object, ot_model_config *c)
{
    reader r = {.path = path, .object = object, .c = c};
    *c = (ot_model_config){.init_std = 0.02};
    OT_TRY(find_architecture(&r));
    OT_TRY(ot_hf_check_keys(path, object, r.is->bit));
    c->positions = r.is->positions;
    OT_TRY(need_size(&r, "vocab_size", &c->V));
    OT_TRY(r.is->bit == OT_HF_GPT2 ? read_gpt2(&r) : read_llama(&r));
    OT_TRY(ot_hf_get_flag(path, object, "tie_word_embeddings", &c->tied));
    OT_TRY(ot_hf_get_real(path, object, "initializer_range", &c->init_std));
    OT_TRY(read_token(&r, "bos_token_id", &c->bos));
    OT_TRY(read_token(&r, "eos_token_id", &c->eos));
    if (c->L > BLOCKS_MAX)
        return ot_fail(OT_ERR_FORMAT, "%s: %zu layers, expected at most %d", path, c->L, BLOCKS_MAX);
    if (ot_model_check(c) != OT_OK)
        return ot_fail(OT_ERR_FORMAT, "%s: %s", path, ot_error_text());
    return OT_OK;
}
