/* The computation of each stage, as straight-line code over the kernel table: embedding, block forward, block
 * backward with recompute, head and loss in chunks of tokens.
 *
 * Everything is enqueued on `stream` and returns at once; failures stick to the device. What the pointers
 * name, in device memory, stays valid and unchanged until it has run; the structs are read during the call
 * only. `weights` and `grads` are a layer's flat vector (model.h), in `dtype` and in FP32. A workspace is
 * aligned to 256 bytes, holds ot_compute_workspace bytes, and may be shared by all stages of one stream. */
#ifndef OT_ENGINE_COMPUTE_H
#define OT_ENGINE_COMPUTE_H

#include "engine/model.h"
#include "io/status.h"
#include "kernels/device.h"

/* What all stages share; set once, read by each. */
typedef struct ot_compute {
    const ot_model *model;
    const ot_kernels *kernels;
    ot_device *device;
    ot_dtype dtype;    /* of weights, boundaries and activations */
    size_t B, T;       /* one micro-batch: B sequences of T tokens, N = B*T */
    size_t loss_chunk; /* tokens whose logits exist at once */
    int forward_only;  /* 1: no stage's backward will run, nor is there workspace for it */
    ot_recompute recompute;
    const float *rope;        /* device: table of T rows or more; NULL: GPT-2 */
    uint64_t workspace_bytes; /* of every workspace that is passed, an assertion; 0: unknown */
} ot_compute;

/* One micro-batch's part of the step's data, in device memory. */
typedef struct ot_batch {
    const int32_t *tokens;    /* [N] */
    const int32_t *targets;   /* [N], -1: not trained */
    const int32_t *positions; /* [N], from 0 in each document */
    const int32_t *doc_start; /* [N], index in its sequence of the document's first token; NULL: one document
                                 a sequence */
} ot_batch;

/* Bytes of workspace that any stage needs, for one micro-batch: the stages themselves are gone through
 * without a stream. Without a device (for planning on another machine) what the kernels need of their own is
 * estimated. */
uint64_t ot_compute_workspace(const ot_compute *compute);

/* Bytes that a block keeps of one micro-batch from forward to backward, beside x; 0 with full recompute. */
uint64_t ot_compute_kept(const ot_compute *compute);

/* x [N,C] = the embedding of the tokens. `weights`: the embedding layer's flat vector. */
void ot_embed_forward(const ot_compute *compute, ot_stream *stream, const void *weights,
                      const ot_batch *batch, void *x);

/* grads += the embedding's gradient from dx [N,C]. The weights are not read. */
void ot_embed_backward(const ot_compute *compute, ot_stream *stream, const void *weights,
                       const ot_batch *batch, const void *dx, float *grads, void *workspace);

/* out [N,C] = block(x [N,C]). out is not x. Block i of the model (for names and sizes all blocks are alike).
 * `kept`: ot_compute_kept bytes for the backward to come, aligned as a workspace; NULL: there will be none, or
 * it computes everything again. */
void ot_block_forward(const ot_compute *compute, ot_stream *stream, const void *weights,
                      const ot_batch *batch, const void *x, void *out, void *kept, void *workspace);

/* Elements at the front of a layer's gradient that one product each overwrites when it is fresh: the matrices of a block or of
 * the head up to the first padding between two, the table of a tied embedding. */
uint64_t ot_compute_overwritten(const ot_model *model, size_t layer);

/* Computes what is not kept again from x, then dx [N,C] becomes the gradient of x in place, and the block's
 * gradients are added to `grads`; where they are `fresh`, nothing has been added yet, and they are zero but for the
 * ot_compute_overwritten elements, which may be anything. `kept`, as its forward left it, is used up; NULL with full
 * recompute. */
void ot_block_backward(const ot_compute *compute, ot_stream *stream, const void *weights,
                       const ot_batch *batch, const void *x, void *dx, float *grads, int fresh, void *kept,
                       void *workspace);

/* Final norm, logits and cross-entropy in chunks of loss_chunk tokens. loss_sum[0] += the sum of the losses
 * (FP64, device memory). With `dx` (may be x) also the gradient of grad_scale times that sum: dx [N,C] =,
 * head_grads +=, and embedding_grads += the output matrix's part where the head is tied, or are `fresh` as a block's.
 * Where it is not, both `embedding_` pointers may be NULL; without `dx`, the gradients. */
void ot_head(const ot_compute *compute, ot_stream *stream, const void *head_weights,
             const void *embedding_weights, const ot_batch *batch, const void *x, void *dx, float *head_grads,
             float *embedding_grads, int fresh, float grad_scale, double *loss_sum, void *workspace);

/* logits [rows,V] (FP32) of `rows` <= N rows of x [rows,C]. */
void ot_head_logits(const ot_compute *compute, ot_stream *stream, const void *head_weights,
                    const void *embedding_weights, const void *x, size_t rows, float *logits,
                    void *workspace);

#endif
