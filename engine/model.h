/* The model description: one struct of dimensions for the Llama family and GPT-2, and the layout of every
 * layer's flat vector. Names of tensors are those of Hugging Face's checkpoints. */
#ifndef OT_ENGINE_MODEL_H
#define OT_ENGINE_MODEL_H

#include <stddef.h>
#include <stdint.h>

#include "io/status.h"
#include "kernels/kernels.h"

typedef enum ot_family {
    OT_FAMILY_LLAMA, /* RMSNorm, RoPE, SwiGLU: Llama, Mistral, Qwen2, Qwen3, SmolLM2, TinyLlama */
    OT_FAMILY_GPT2,  /* LayerNorm, learned positions, GELU */
} ot_family;

/* Dimensions as in kernels.h: C width, L blocks, NH query heads, NKV key and value heads, HD head dimension,
 * F feed-forward width, V vocabulary. */
typedef struct ot_model_config {
    ot_family family;
    char architecture[64]; /* "LlamaForCausalLM", … */
    size_t C, L, NH, NKV, HD, F, V;
    size_t positions; /* longest sequence: rows of GPT-2's position table, or max_position_embeddings */
    float norm_eps;
    ot_rope_scaling rope; /* Llama family */
    size_t window;        /* sliding window; 0: none */
    ot_gelu_kind gelu;    /* GPT-2 */
    int qkv_bias;         /* Qwen2; GPT-2 has all biases */
    int qk_norm;          /* Qwen3: RMSNorm over each head of q and k */
    int tied;             /* the head is the embedding */
    int32_t bos, eos;     /* token ids; -1: none */
    double init_std;      /* of random weights */
} ot_model_config;

/* The presets of the command line: "tiny", "124m", …, "70b". OT_ERR_USAGE with the nearest name where there
 * is none. */
ot_status ot_model_preset(const char *name, ot_model_config *out) OT_MUST_CHECK;

/* Names of the presets, smallest model first; NULL behind the last. */
const char *ot_model_preset_name(size_t index);

/* Checks that the dimensions make a model: OT_ERR_FORMAT names the first that does not. */
ot_status ot_model_check(const ot_model_config *config) OT_MUST_CHECK;

enum { OT_TENSOR_NAME_BYTES = 96, OT_LAYER_TENSORS_MAX = 16 };

/* A tensor in its layer's flat vector: rows*cols elements, row-major, cols = 1 for a vector. */
typedef struct ot_tensor {
    char name[OT_TENSOR_NAME_BYTES]; /* "model.layers.3.self_attn.q_proj.weight" */
    uint64_t offset;                 /* element in the flat vector */
    size_t rows, cols;
    int decay;      /* takes part in weight decay: matrices do, norms and biases do not */
    int transposed; /* GPT-2's Conv1D: the file holds [cols,rows] */
} ot_tensor;

/* A layer: decayed tensors side by side from element 0, then the others from `undecayed`. q, k and v follow
 * one another without a gap, as do gate and up, so that each group is one matrix. Padding is zero and stays
 * zero. */
typedef struct ot_layer {
    char name[OT_TENSOR_NAME_BYTES];
    uint64_t params;    /* of the flat vector, padding included, a multiple of OT_MOMENT_BLOCK */
    uint64_t undecayed; /* where the part without decay begins, a multiple of OT_MOMENT_BLOCK */
    size_t tensor_count;
    ot_tensor tensors[OT_LAYER_TENSORS_MAX];
} ot_layer;

/* Layers in model order: embedding, blocks, head (final norm, and the output matrix unless tied). */
typedef struct ot_model {
    ot_model_config config;
    size_t layer_count; /* L + 2 */
    ot_layer *layers;
    uint64_t params; /* of the model, without padding */
} ot_model;

ot_status ot_model_open(const ot_model_config *config, ot_model **out) OT_MUST_CHECK;
void ot_model_close(ot_model *model); /* NULL is allowed */

/* Index of the tensor in its layer by the end of its name ("q_proj.weight"), or -1. */
int ot_layer_find(const ot_layer *layer, const char *suffix);

/* Fills `count` FP32 master values of a layer from element `first` on with random weights: normal with
 * init_std (GPT-2: the projections into the residual stream by init_std/sqrt(2L)), ones for norm weights,
 * zeros for biases and padding. The same for every split into calls. Any thread. */
void ot_model_random(const ot_model *model, size_t layer, uint64_t first, uint64_t count, uint64_t seed,
                     float *out);

/* What a block's backward computes again of its forward pass; the rest is kept. The numbers are the same. */
typedef enum ot_recompute {
    OT_RECOMPUTE_FULL,      /* all of it but the down projection */
    OT_RECOMPUTE_SELECTIVE, /* neither matrix products nor attention: norms and activations alone */
    OT_RECOMPUTE_NONE,
} ot_recompute;

/* Floating-point operations of one sequence batch of `sequences` × `length` tokens: of one block, forward and
 * backward with what is computed again; of the head, forward and backward. Sources: 2 per multiply-add; attention counts
 * its causal (or windowed) half. */
typedef struct ot_model_flops {
    double block_forward, block_backward, head, head_forward;
} ot_model_flops;
ot_model_flops ot_model_count_flops(const ot_model *model, size_t sequences, size_t length,
                                    ot_recompute recompute);

#endif
