/* What the stages are written with: a pass enqueues kernels and gives out workspace. For the engine's
 * computation alone.
 *
 * Workspace is a stack: buffers are taken one behind the other, and given back by setting `used` to what it
 * was before. Work on a stream runs in order, so that a buffer can be given back as soon as the last
 * operation that touches it is enqueued. A pass without a stream enqueues nothing and reads nothing; what is
 * left of it is `peak`, the workspace that the same pass with a stream takes. */
#ifndef OT_ENGINE_PASS_H
#define OT_ENGINE_PASS_H

#include "engine/compute.h"

typedef struct ot_pass {
    const ot_compute *compute;
    ot_stream *stream; /* NULL: only the workspace is counted */
    void *workspace;
    size_t used, peak; /* bytes */
    int fresh;         /* products overwrite the gradients of their matrices */
} ot_pass;

void *ot_pass_take(ot_pass *pass, size_t bytes);
void *ot_pass_take_rows(ot_pass *pass, size_t N, size_t columns); /* of the compute's dtype */

/* The address `elements` behind `base`, in elements of the compute's dtype. */
const void *ot_pass_at(const ot_pass *pass, const void *base, uint64_t elements);
void *ot_pass_at_mutable(const ot_pass *pass, void *base, uint64_t elements);

/* y = x W^T + bias, from C to OC columns. */
typedef struct ot_linear {
    size_t C, OC;
    int has_bias;
    const void *weight, *bias; /* [OC,C], [OC] */
    float *dweight, *dbias;
} ot_linear;

/* The parameters of a norm over C columns. */
typedef struct ot_norm_params {
    size_t C;
    int has_bias;              /* LayerNorm; otherwise RMSNorm */
    const void *weight, *bias; /* [C] */
    float *dweight, *dbias;
} ot_norm_params;

/* What a norm's backward needs of its forward: [N,H] each. */
typedef struct ot_norm_stats {
    float *mean, *rstd;
} ot_norm_stats;

ot_norm_stats ot_pass_take_stats(ot_pass *pass, size_t groups);

/* Parameters by the name of their module ("mlp.down_proj"), within a layer's flat vectors. A matrix may be
 * the first of several that follow one another. */
ot_linear ot_linear_bind(const ot_pass *pass, const ot_layer *layer, const char *module, const void *weights,
                         float *grads, size_t OC, size_t C);
ot_norm_params ot_norm_bind(const ot_pass *pass, const ot_layer *layer, const char *module,
                            const void *weights, float *grads, size_t C);

/* out [N,OC] = x W^T + bias; with `add`, out += that. */
void ot_linear_forward(ot_pass *pass, const ot_linear *linear, size_t N, const void *x, void *out, int add);

/* dweight += dy^T x, dbias += sum of dy, then dx = dy W. dx may be x. */
void ot_linear_backward(ot_pass *pass, const ot_linear *linear, size_t N, const void *x, const void *dy,
                        void *dx);

/* y = norm of the H groups of C columns in each of N rows, which are `ld` apart. `stats` may be NULL. */
void ot_pass_norm(ot_pass *pass, const ot_norm_params *params, size_t N, size_t H, size_t ld, const void *x,
                  void *y, const ot_norm_stats *stats);

/* dx = dresidual (NULL: 0) + the gradient of x from dy; dx may be dresidual or dy. */
void ot_pass_norm_backward(ot_pass *pass, const ot_norm_params *params, size_t N, size_t H, size_t ld,
                           const void *x, const ot_norm_stats *stats, const void *dy, const void *dresidual,
                           void *dx);

void ot_pass_matmul(ot_pass *pass, ot_matmul args);
void ot_pass_attention(ot_pass *pass, ot_attention args);
void ot_pass_attention_backward(ot_pass *pass, ot_attention args);
void ot_pass_embedding_backward(ot_pass *pass, ot_embedding args);
void ot_pass_copy_rows(ot_pass *pass, void *dst, const void *src, size_t N, size_t columns);

/* The stages, as in compute.h. */
void ot_pass_embed_backward(ot_pass *pass, const ot_batch *batch, const void *dx, float *grads);
void ot_pass_block_forward(ot_pass *pass, const void *weights, const ot_batch *batch, const void *x,
                           void *out, void *kept);
void ot_pass_block_backward(ot_pass *pass, const void *weights, const ot_batch *batch, const void *x,
                            void *dx, float *grads, void *kept);

typedef struct ot_head_args {
    const void *head_weights, *embedding_weights;
    float *head_grads, *embedding_grads;
    int backward;
    float grad_scale;
    double *loss_sum;
} ot_head_args;
void ot_pass_head(ot_pass *pass, const ot_head_args *args, const ot_batch *batch, const void *x, void *dx);
void ot_pass_head_logits(ot_pass *pass, const ot_head_args *args, const void *x, size_t rows, float *logits);

#endif
