/* Models: checked dimensions, the layout of every layer's flat vector, and counts of operations. */
#include "engine/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/text.h"

/* ---- Dimensions ---- */

/* No dimension of a real model comes near it, and products of three stay within 64 bits. */
enum { DIMENSION_MAX = 1 << 21 };

static ot_status check_sizes(const ot_model_config *c)
{
    const struct {
        const char *name;
        size_t value;
    } sizes[] = {
        {"hidden size", c->C},
        {"number of blocks", c->L},
        {"number of attention heads", c->NH},
        {"number of key and value heads", c->NKV},
        {"head dimension", c->HD},
        {"feed-forward width", c->F},
        {"vocabulary", c->V},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        if (sizes[i].value == 0 || sizes[i].value > DIMENSION_MAX)
            return ot_fail(OT_ERR_FORMAT, "model: the %s is %zu, expected 1 to %d", sizes[i].name,
                           sizes[i].value, DIMENSION_MAX);
    if (c->positions == 0)
        return ot_fail(OT_ERR_FORMAT, "model: it has no positions, expected a longest sequence of 1 or more");
    if (c->NH % c->NKV != 0)
        return ot_fail(OT_ERR_FORMAT, "model: %zu attention heads are no multiple of %zu key and value heads",
                       c->NH, c->NKV);
    return OT_OK;
}

static ot_status check_rope(const ot_model_config *c)
{
    const ot_rope_scaling *r = &c->rope;
    if (c->HD % 2 != 0)
        return ot_fail(OT_ERR_FORMAT, "model: the head dimension is %zu, expected an even one", c->HD);
    if (!(r->theta > 0))
        return ot_fail(OT_ERR_FORMAT, "model: rope_theta is %g, expected more than 0", r->theta);
    if (r->kind != OT_ROPE_PLAIN && !(r->factor > 0))
        return ot_fail(OT_ERR_FORMAT, "model: the factor of rope_scaling is %g, expected more than 0",
                       r->factor);
    if (r->kind == OT_ROPE_LLAMA3 && !(r->low_freq_factor > 0 && r->high_freq_factor > r->low_freq_factor))
        return ot_fail(
            OT_ERR_FORMAT,
            "model: rope_scaling has frequency factors %g and %g, expected a lower and a higher one",
            r->low_freq_factor, r->high_freq_factor);
    if (r->kind == OT_ROPE_LLAMA3 && !(r->original_positions > 0))
        return ot_fail(OT_ERR_FORMAT, "model: rope_scaling has no original_max_position_embeddings");
    return OT_OK;
}

static ot_status check_gpt2(const ot_model_config *c)
{
    if (c->NH * c->HD != c->C || c->NKV != c->NH)
        return ot_fail(
            OT_ERR_FORMAT,
            "model: GPT-2 with %zu heads of %zu and %zu key and value heads, expected a hidden size of %zu in all",
            c->NH, c->HD, c->NKV, c->C);
    if (c->qk_norm || c->window != 0)
        return ot_fail(OT_ERR_FORMAT, "model: GPT-2 has neither norms of q and k nor a sliding window");
    if (c->positions > DIMENSION_MAX)
        return ot_fail(OT_ERR_FORMAT, "model: %zu positions, expected at most %d", c->positions,
                       DIMENSION_MAX);
    return OT_OK;
}

ot_status ot_model_check(const ot_model_config *c)
{
    OT_TRY(check_sizes(c));
    if (!(c->norm_eps > 0))
        return ot_fail(OT_ERR_FORMAT, "model: the norm's epsilon is %g, expected more than 0",
                       (double)c->norm_eps);
    if (!(c->init_std >= 0))
        return ot_fail(OT_ERR_FORMAT, "model: the initializer_range is %g, expected 0 or more", c->init_std);
    const int32_t tokens[] = {c->bos, c->eos};
    for (size_t i = 0; i < 2; i++)
        if (tokens[i] >= 0 && (size_t)tokens[i] >= c->V)
            return ot_fail(OT_ERR_FORMAT, "model: the %s token is %d, beyond a vocabulary of %zu",
                           i == 0 ? "BOS" : "EOS", tokens[i], c->V);
    return c->family == OT_FAMILY_GPT2 ? check_gpt2(c) : check_rope(c);
}

/* ---- Layout ---- */

/* Elements to which tensors that do not follow one another are aligned: 128 bytes in 16 bits. */
enum { ALIGNMENT = 64 };

typedef enum placing {
    ALIGNED,
    FOLLOWING, /* behind the tensor before it, without a gap */
} placing;

/* A layer on the way: tensors are added from its element 0 on, first those with decay. */
typedef struct layout {
    const ot_model_config *config;
    ot_layer *layer;
    const char *prefix; /* of the tensors' names */
    int decay;
} layout;

static uint64_t round_up(uint64_t n, uint64_t step)
{
    return (n + step - 1) / step * step;
}

static void add(layout *l, placing where, const char *name, size_t rows, size_t cols)
{
    ot_layer *layer = l->layer;
    OT_ASSERT(layer->tensor_count < OT_LAYER_TENSORS_MAX);
    ot_tensor *tensor = &layer->tensors[layer->tensor_count++];
    tensor->offset = where == FOLLOWING ? layer->params : round_up(layer->params, ALIGNMENT);
    tensor->rows = rows;
    tensor->cols = cols;
    tensor->decay = l->decay;
    snprintf(tensor->name, sizeof tensor->name, "%s%s", l->prefix, name);
    layer->params = tensor->offset + (uint64_t)rows * cols;
}

static void end_decayed(layout *l)
{
    l->layer->params = l->layer->undecayed = round_up(l->layer->params, OT_MOMENT_BLOCK);
    l->decay = 0;
}

static void lay_out_llama_block(layout *l)
{
    const ot_model_config *c = l->config;
    size_t q = c->NH * c->HD, kv = c->NKV * c->HD;
    add(l, ALIGNED, "self_attn.q_proj.weight", q, c->C);
    add(l, FOLLOWING, "self_attn.k_proj.weight", kv, c->C);
    add(l, FOLLOWING, "self_attn.v_proj.weight", kv, c->C);
    add(l, ALIGNED, "self_attn.o_proj.weight", c->C, q);
    add(l, ALIGNED, "mlp.gate_proj.weight", c->F, c->C);
    add(l, FOLLOWING, "mlp.up_proj.weight", c->F, c->C);
    add(l, ALIGNED, "mlp.down_proj.weight", c->C, c->F);
    end_decayed(l);
    if (c->qkv_bias) {
        add(l, ALIGNED, "self_attn.q_proj.bias", q, 1);
        add(l, FOLLOWING, "self_attn.k_proj.bias", kv, 1);
        add(l, FOLLOWING, "self_attn.v_proj.bias", kv, 1);
    }
    if (c->qk_norm) {
        add(l, ALIGNED, "self_attn.q_norm.weight", c->HD, 1);
        add(l, ALIGNED, "self_attn.k_norm.weight", c->HD, 1);
    }
    add(l, ALIGNED, "input_layernorm.weight", c->C, 1);
    add(l, ALIGNED, "post_attention_layernorm.weight", c->C, 1);
}

static void lay_out_gpt2_block(layout *l)
{
    const ot_model_config *c = l->config;
    add(l, ALIGNED, "attn.c_attn.weight", 3 * c->C, c->C);
    add(l, ALIGNED, "attn.c_proj.weight", c->C, c->C);
    add(l, ALIGNED, "mlp.c_fc.weight", c->F, c->C);
    add(l, ALIGNED, "mlp.c_proj.weight", c->C, c->F);
    for (size_t i = 0; i < l->layer->tensor_count; i++)
        l->layer->tensors[i].transposed = 1;
    end_decayed(l);
    add(l, ALIGNED, "attn.c_attn.bias", 3 * c->C, 1);
    add(l, ALIGNED, "attn.c_proj.bias", c->C, 1);
    add(l, ALIGNED, "mlp.c_fc.bias", c->F, 1);
    add(l, ALIGNED, "mlp.c_proj.bias", c->C, 1);
    add(l, ALIGNED, "ln_1.weight", c->C, 1);
    add(l, ALIGNED, "ln_1.bias", c->C, 1);
    add(l, ALIGNED, "ln_2.weight", c->C, 1);
    add(l, ALIGNED, "ln_2.bias", c->C, 1);
}

static void lay_out_embedding(layout *l)
{
    const ot_model_config *c = l->config;
    int gpt2 = c->family == OT_FAMILY_GPT2;
    add(l, ALIGNED, gpt2 ? "wte.weight" : "embed_tokens.weight", c->V, c->C);
    if (gpt2)
        add(l, ALIGNED, "wpe.weight", c->positions, c->C);
    end_decayed(l);
}

static void lay_out_head(layout *l)
{
    const ot_model_config *c = l->config;
    const char *prefix = l->prefix;
    l->prefix = "";
    if (!c->tied)
        add(l, ALIGNED, "lm_head.weight", c->V, c->C);
    l->prefix = prefix;
    end_decayed(l);
    if (c->family == OT_FAMILY_GPT2) {
        add(l, ALIGNED, "ln_f.weight", c->C, 1);
        add(l, ALIGNED, "ln_f.bias", c->C, 1);
    } else {
        add(l, ALIGNED, "norm.weight", c->C, 1);
    }
}

static void lay_out(const ot_model_config *c, size_t index, ot_layer *layer)
{
    int gpt2 = c->family == OT_FAMILY_GPT2;
    char prefix[OT_TENSOR_NAME_BYTES / 2];
    snprintf(prefix, sizeof prefix, gpt2 ? "transformer." : "model.");
    layout l = {.config = c, .layer = layer, .prefix = prefix, .decay = 1};
    if (index == 0) {
        snprintf(layer->name, sizeof layer->name, "%s%s", prefix, gpt2 ? "wte" : "embed_tokens");
        lay_out_embedding(&l);
    } else if (index == c->L + 1) {
        snprintf(layer->name, sizeof layer->name, "lm_head");
        lay_out_head(&l);
    } else {
        snprintf(layer->name, sizeof layer->name, gpt2 ? "transformer.h.%zu" : "model.layers.%zu", index - 1);
        snprintf(prefix, sizeof prefix, "%s.", layer->name);
        if (gpt2)
            lay_out_gpt2_block(&l);
        else
            lay_out_llama_block(&l);
    }
    layer->params = round_up(layer->params, OT_MOMENT_BLOCK);
}

ot_status ot_model_open(const ot_model_config *config, ot_model **out)
{
    OT_TRY(ot_model_check(config));
    ot_model *model = calloc(1, sizeof *model);
    ot_layer *layers = calloc(config->L + 2, sizeof *layers);
    if (model == NULL || layers == NULL) {
        free(layers);
        free(model);
        return ot_fail(OT_ERR_INTERNAL, "out of memory for a model of %zu blocks", config->L);
    }
    model->config = *config;
    model->layer_count = config->L + 2;
    model->layers = layers;
    for (size_t i = 0; i < model->layer_count; i++) {
        lay_out(config, i, &layers[i]);
        for (size_t t = 0; t < layers[i].tensor_count; t++)
            model->params += (uint64_t)layers[i].tensors[t].rows * layers[i].tensors[t].cols;
    }
    *out = model;
    return OT_OK;
}

void ot_model_close(ot_model *model)
{
    if (model == NULL)
        return;
    free(model->layers);
    free(model);
}

int ot_layer_find(const ot_layer *layer, const char *suffix)
{
    size_t length = strlen(suffix);
    for (size_t i = 0; i < layer->tensor_count; i++) {
        const char *name = layer->tensors[i].name;
        if (!ot_ends_with(name, suffix))
            continue;
        size_t before = strlen(name) - length;
        if (before == 0 || name[before - 1] == '.')
            return (int)i;
    }
    return -1;
}

/* ---- Operations ---- */

/* Pairs of a query and a key that it sees, over one sequence. */
static double attended_pairs(const ot_model_config *c, size_t length)
{
    double T = (double)length, W = c->window > 0 && c->window < length ? (double)c->window : T;
    return W * (W + 1) / 2 + (T - W) * W;
}

ot_model_flops ot_model_count_flops(const ot_model *model, size_t sequences, size_t length,
                                    ot_recompute recompute)
{
    const ot_model_config *c = &model->config;
    double B = (double)sequences, N = B * (double)length, C = (double)c->C, F = (double)c->F;
    double q = (double)(c->NH * c->HD), kv = (double)(c->NKV * c->HD);
    double up = (c->family == OT_FAMILY_LLAMA ? 2 : 1) * F;
    double down = 2 * N * F * C;
    double products = 2 * N * (C * (q + 2 * kv) + q * C + C * up) + down;
    double attention = 2 * 2 * B * attended_pairs(c, length) * q; /* q k^T, and the sum of v */
    double forward = products + attention, head = 2 * N * C * (double)c->V;
    return (ot_model_flops){
        .block_forward = forward,
        .block_backward = 2 * forward + (recompute == OT_RECOMPUTE_FULL ? forward - down : 0),
        .head = 3 * head,
        .head_forward = head,
    };
}
