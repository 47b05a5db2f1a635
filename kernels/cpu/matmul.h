/* What matmul.c hands to the ranges of matmul_range.c. */
#ifndef OT_KERNELS_CPU_MATMUL_H
#define OT_KERNELS_CPU_MATMUL_H

#include "kernels/cpu/onednn.h"
#include "kernels/cpu/operand.h"
#include "kernels/kernels.h"

enum { OT_PACK_ROWS = 32 };

/* Part of an operand as one or more dense blocks of words (pack.h). */
typedef struct ot_matmul_pack {
    ot_dtype dtype;
    int paired;
    ot_operand source;
    size_t first;                /* its first row of A or column of B */
    size_t count;                /* rows of A, a multiple of OT_PACK_ROWS */
    size_t sum_first, sum_count; /* elements of the summed dimension; of A as many as there are */
    size_t sum_chunk;            /* of them in each chunk of A */
    uint32_t *dst;
} ot_matmul_pack;

/* A finished tile on its way into the output. */
typedef struct ot_matmul_store {
    const ot_matmul *matmul;
    int accumulate;
    const float *tile; /* [rows,OT_TILE_N] */
    size_t row, col;   /* of its first element in the output */
    size_t cols;       /* that the output has from there on */
} ot_matmul_store;

static inline size_t ot_matmul_padded(size_t n, size_t step)
{
    return (n + step - 1) / step * step;
}

/* Elements in every chunk but the last of a summed dimension of `count`: chunks as even as a tile's sizes
 * allow, since a short one costs as much reading and writing of sums as a long one. */
static inline size_t ot_matmul_chunk_step(size_t count)
{
    size_t chunks = (count + OT_TILE_K - 1) / OT_TILE_K;
    return ot_matmul_padded((count + chunks - 1) / chunks, OT_TILE_K_STEP);
}

/* Elements of the chunk that starts at element `first` of `count`. */
static inline size_t ot_matmul_chunk(size_t first, size_t count, size_t step)
{
    return count - first < step ? count - first : step;
}

#endif
