/* A model as a GGUF file, as llama.cpp's converter writes it (convert_hf_to_gguf.py): names, metadata, and for Llama and
 * Mistral the rows of q and k in the order that RoPE over neighbouring pairs wants. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/file.h"
#include "io/log.h"
#include "io/path.h"
#include "io/text.h"
#include "tools/export.h"
#include "tools/gguf.h"

typedef struct writing {
    const ot_export *e;
    ot_gguf *file;
    const char *architecture; /* "llama", "qwen2", "qwen3" */
    int permuted;             /* q and k */
    uint16_t *narrow;         /* [OT_EXPORT_VALUES] in 16 bits */
    uint64_t overflows;
} writing;

enum { NAME_BYTES = 64 };

/* ---- Names ---- */

static void name_of(const ot_model *model, size_t layer, const ot_tensor *tensor, char out[NAME_BYTES])
{
    static const struct {
        const char *ours, *theirs;
    } names[] = {
        {"embed_tokens.weight", "token_embd.weight"},
        {"lm_head.weight", "output.weight"},
        {"model.norm.weight", "output_norm.weight"},
        {"input_layernorm.weight", "attn_norm.weight"},
        {"post_attention_layernorm.weight", "ffn_norm.weight"},
        {"self_attn.q_proj.weight", "attn_q.weight"},
        {"self_attn.k_proj.weight", "attn_k.weight"},
        {"self_attn.v_proj.weight", "attn_v.weight"},
        {"self_attn.o_proj.weight", "attn_output.weight"},
        {"self_attn.q_proj.bias", "attn_q.bias"},
        {"self_attn.k_proj.bias", "attn_k.bias"},
        {"self_attn.v_proj.bias", "attn_v.bias"},
        {"self_attn.q_norm.weight", "attn_q_norm.weight"},
        {"self_attn.k_norm.weight", "attn_k_norm.weight"},
        {"mlp.gate_proj.weight", "ffn_gate.weight"},
        {"mlp.up_proj.weight", "ffn_up.weight"},
        {"mlp.down_proj.weight", "ffn_down.weight"},
    };
    size_t i = 0, n = sizeof names / sizeof *names;
    while (i < n && !ot_ends_with(tensor->name, names[i].ours))
        i++;
    OT_ASSERT(i < n);
    if (layer == 0 || layer == model->layer_count - 1)
        snprintf(out, NAME_BYTES, "%s", names[i].theirs);
    else
        snprintf(out, NAME_BYTES, "blk.%zu.%s", layer - 1, names[i].theirs);
}

/* Vectors stay FP32: llama.cpp has no other. */
static ot_dtype dtype_of(const writing *w, const ot_tensor *tensor)
{
    return tensor->decay ? w->e->dtype : OT_FP32;
}

/* ---- Metadata ---- */

static void put_number(const writing *w, const char *key, uint64_t value)
{
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "%s.%s", w->architecture, key);
    ot_gguf_put_u32(w->file, name, (uint32_t)value);
}

static void put_real(const writing *w, const char *key, double value)
{
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "%s.%s", w->architecture, key);
    ot_gguf_put_f32(w->file, name, (float)value);
}

static void put_dimensions(const writing *w)
{
    const ot_model_config *c = &w->e->model->config;
    put_number(w, "block_count", c->L);
    put_number(w, "context_length", c->positions < UINT32_MAX ? c->positions : UINT32_MAX);
    put_number(w, "embedding_length", c->C);
    put_number(w, "feed_forward_length", c->F);
    put_number(w, "vocab_size", c->V);
    put_number(w, "attention.head_count", c->NH);
    put_number(w, "attention.head_count_kv", c->NKV);
    put_number(w, "attention.key_length", c->HD);
    put_number(w, "attention.value_length", c->HD);
    put_real(w, "attention.layer_norm_rms_epsilon", (double)c->norm_eps);
    put_number(w, "rope.dimension_count", c->HD);
    put_real(w, "rope.freq_base", c->rope.theta);
    if (c->rope.kind == OT_ROPE_LINEAR) {
        char name[NAME_BYTES];
        snprintf(name, sizeof name, "%s.rope.scaling.type", w->architecture);
        ot_gguf_put_text(w->file, name, "linear");
        put_real(w, "rope.scaling.factor", c->rope.factor);
    }
    if (c->window > 0) {
        put_number(w, "attention.sliding_window", c->window);
        ot_log(OT_LOG_WARNING,
               "the sliding window of %zu tokens is in the file, but llama.cpp uses none for %s models",
               c->window, w->architecture);
    }
}

static void put_general(const writing *w)
{
    const char *name = strrchr(w->e->directory, '/');
    ot_gguf_put_text(w->file, "general.architecture", w->architecture);
    ot_gguf_put_text(w->file, "general.type", "model");
    ot_gguf_put_text(w->file, "general.name", name != NULL && name[1] != '\0' ? name + 1 : w->e->directory);
    ot_gguf_put_u32(w->file, "general.file_type",
                    w->e->dtype == OT_FP32   ? 0
                    : w->e->dtype == OT_FP16 ? 1
                                             : 32);
    ot_gguf_put_u32(w->file, "general.alignment", 32);
}

/* ---- Tensors ---- */

static int has_factors(const writing *w)
{
    return w->e->model->config.rope.kind == OT_ROPE_LLAMA3;
}

static void put_tensors(const writing *w)
{
    const ot_model *model = w->e->model;
    char name[NAME_BYTES];
    if (has_factors(w))
        ot_gguf_put_tensor(w->file, "rope_freqs.weight", OT_FP32, 0, model->config.HD / 2);
    for (size_t l = 0; l < model->layer_count; l++)
        for (size_t t = 0; t < model->layers[l].tensor_count; t++) {
            const ot_tensor *tensor = &model->layers[l].tensors[t];
            name_of(model, l, tensor, name);
            ot_gguf_put_tensor(w->file, name, dtype_of(w, tensor), tensor->decay ? tensor->rows : 0,
                               tensor->decay ? tensor->cols : tensor->rows);
        }
}

/* What llama3's scaling divides each frequency by. */
static ot_status write_factors(const writing *w)
{
    const ot_rope_scaling *scaled = &w->e->model->config.rope;
    const ot_rope_scaling plain = {.kind = OT_ROPE_PLAIN, .theta = scaled->theta};
    size_t HD = w->e->model->config.HD;
    for (size_t i = 0; i < HD / 2; i++) {
        float factor = (float)(ot_rope_frequency(&plain, i, HD) / ot_rope_frequency(scaled, i, HD));
        OT_TRY(ot_gguf_append(w->file, &factor, sizeof factor));
    }
    return ot_gguf_end_tensor(w->file);
}

static ot_status append(writing *w, ot_dtype dtype, const float *values, uint64_t n)
{
    if (dtype == OT_FP32)
        return ot_gguf_append(w->file, values, n * sizeof *values);
    w->overflows += ot_values_narrow(dtype, values, n, w->narrow);
    return ot_gguf_append(w->file, w->narrow, n * sizeof *w->narrow);
}

/* `count` elements of the layer from `first` on into the buffer. */
static ot_status read_values(const writing *w, size_t layer, uint64_t first, uint64_t count)
{
    const ot_source source = ot_model_source_values(w->e->source);
    const ot_chunk_values chunk = {.layer = layer, .first = first, .count = count, .master = w->e->values};
    return source.fill(source.context, &chunk);
}

static ot_status write_plain(writing *w, size_t layer, const ot_tensor *tensor)
{
    uint64_t count = (uint64_t)tensor->rows * tensor->cols;
    for (uint64_t at = 0, n; at < count; at += n) {
        n = count - at < OT_EXPORT_VALUES ? count - at : OT_EXPORT_VALUES;
        OT_TRY(read_values(w, layer, tensor->offset + at, n));
        OT_TRY(append(w, dtype_of(w, tensor), w->e->values, n));
    }
    return OT_OK;
}

/* In each head row i and row i + HD/2, which RoPE turns together, become rows 2i and 2i + 1. */
static ot_status write_permuted(writing *w, size_t layer, const ot_tensor *tensor)
{
    size_t HD = w->e->model->config.HD;
    for (size_t row = 0; row < tensor->rows; row++) {
        size_t head = row / HD, in = row % HD, from = head * HD + in % 2 * (HD / 2) + in / 2;
        OT_TRY(read_values(w, layer, tensor->offset + (uint64_t)from * tensor->cols, tensor->cols));
        OT_TRY(append(w, dtype_of(w, tensor), w->e->values, tensor->cols));
    }
    return OT_OK;
}

static int is_permuted(const writing *w, const ot_layer *layer, size_t t)
{
    return w->permuted && ((int)t == ot_layer_find(layer, "self_attn.q_proj.weight") ||
                           (int)t == ot_layer_find(layer, "self_attn.k_proj.weight"));
}

static ot_status write_tensors(writing *w)
{
    const ot_model *model = w->e->model;
    if (has_factors(w))
        OT_TRY(write_factors(w));
    for (size_t l = 0; l < model->layer_count; l++)
        for (size_t t = 0; t < model->layers[l].tensor_count; t++) {
            const ot_tensor *tensor = &model->layers[l].tensors[t];
            OT_TRY(is_permuted(w, &model->layers[l], t) ? write_permuted(w, l, tensor)
                                                        : write_plain(w, l, tensor));
            OT_TRY(ot_gguf_end_tensor(w->file));
        }
    return OT_OK;
}

/* ---- The file ---- */

static ot_status write_file(writing *w, const char *path)
{
    OT_TRY(ot_gguf_open(path, &w->file));
    put_general(w);
    put_dimensions(w);
    OT_TRY(ot_gguf_put_tokenizer(w->file, w->e->directory, &w->e->model->config));
    put_tensors(w);
    OT_TRY(ot_gguf_begin(w->file));
    OT_TRY(write_tensors(w));
    OT_TRY(ot_gguf_finish(w->file));
    if (w->overflows > 0)
        ot_log(OT_LOG_WARNING,
               "%llu weights are beyond FP16's largest number and are inf now; bf16 holds them",
               (unsigned long long)w->overflows);
    return OT_OK;
}

ot_status ot_export_gguf(const ot_export *e)
{
    const ot_model_config *c = &e->model->config;
    int qwen2 = strcmp(c->architecture, "Qwen2ForCausalLM") == 0,
        qwen3 = strcmp(c->architecture, "Qwen3ForCausalLM") == 0;
    writing w = {.e = e,
                 .architecture = qwen2   ? "qwen2"
                                 : qwen3 ? "qwen3"
                                         : "llama",
                 .permuted = !qwen2 && !qwen3};
    char path[PATH_MAX];
    if (c->family != OT_FAMILY_LLAMA)
        return ot_fail(OT_ERR_USAGE, "%s: to GGUF go models of the Llama family, not %s", e->directory,
                       c->architecture);
    if (access(e->output, F_OK) == 0)
        return ot_fail(OT_ERR_USAGE, "%s: it is there already; nothing is overwritten", e->output);
    OT_TRY(ot_path_format(path, "%s.tmp", e->output));
    if (access(path, F_OK) == 0)
        return ot_fail(OT_ERR_USAGE, "%s: an export that ended early has left it; remove it", path);
    w.narrow = malloc(OT_EXPORT_VALUES * sizeof *w.narrow);
    ot_status status =
        w.narrow != NULL ? write_file(&w, path) : ot_fail(OT_ERR_INTERNAL, "out of memory for an export");
    ot_gguf_close(w.file);
    free(w.narrow);
    if (status == OT_OK)
        status = ot_file_rename(path, e->output);
    if (status != OT_OK)
        unlink(path);
    return status;
}
