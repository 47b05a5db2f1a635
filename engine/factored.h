/* Adafactor over chunks. A matrix has one second moment for each row and one for each column (kernels.h,
 * ot_adafactor), and its update needs sums over the whole of it, which many chunks hold pieces of. So the plan has the
 * CPU lane go over a layer's gradient three times, chunk after chunk in order: rows and columns, the size of the
 * update, the update itself.
 *
 * No number depends on where chunks begin: a row that two chunks share is put together before it is summed, and the
 * size of the update is summed in the blocks of OT_SUM_BLOCK elements of the layer, which no chunk cuts. The moments
 * are small, about one for each 2000 parameters of a 7B model, and lie in host memory for good. */
#ifndef OT_ENGINE_FACTORED_H
#define OT_ENGINE_FACTORED_H

#include "engine/model.h"
#include "kernels/device.h"
#include "offload/plan.h"

typedef struct ot_factored {
    const ot_model *model;
    float *moments; /* [ot_factored_count]: of each tensor in model order its rows', then its columns'; of a
                     * vector its elements' */
    /* Of the layer at hand. */
    float *column_sums; /* side by side for all tensors */
    float *row_mean;    /* [OT_LAYER_TENSORS_MAX] */
    double *square_sum; /* the same */
    double *partials;
    float *row; /* of which chunks have brought parts so far */
} ot_factored;

/* What a chunk holds of a tensor. */
typedef struct ot_tensor_piece {
    uint64_t first, count; /* elements of the tensor */
    uint64_t offset;       /* where it begins in the chunk */
} ot_tensor_piece;

size_t ot_factored_count(const ot_model *model); /* of the moments */

/* Lays it out in host memory aligned to 64 bytes and returns the bytes that this takes; without memory only that. The
 * caller zeroes the moments. */
uint64_t ot_factored_lay_out(const ot_model *model, uint64_t chunk_params, void *memory, ot_factored *out);

/* Whether the chunk holds a part of the tensor, and which. */
int ot_factored_piece(const ot_tensor *tensor, const ot_chunk *chunk, ot_tensor_piece *out);

/* Pass 0 or 1 over a chunk of gradients. Nothing that was enqueued by another call is still to run. These enqueue on a stream of
 * a device with host memory. */
void ot_factored_measure(const ot_factored *factored, const ot_kernels *kernels, ot_stream *stream, int pass,
                         const ot_chunk *chunk, ot_dtype grad_dtype, const void *grad,
                         const ot_update_step *step);

/* Updates a piece of a tensor of the chunk's layer; `update` is that of its elements (kernels.h). */
void ot_factored_apply(const ot_factored *factored, const ot_kernels *kernels, ot_stream *stream,
                       const ot_chunk *chunk, size_t tensor, const ot_tensor_piece *piece,
                       const ot_update *update);

#endif
