/* Operands of matrix products, before and after they are packed (pack.h).
 *
 * Packed, the summed dimension lies in 32-bit words. A word is one FP32 element, or, `paired`, two neighbours
 * of the summed dimension in BF16, the first in the low half: what the dot-product instructions of BF16 take.
 * 16-bit types that are not paired are widened. A product then is C[m,n] = sum over words k of A[m][k] *
 * B[k][n], with A stored by rows of words and B by rows of n. */
#ifndef OT_KERNELS_CPU_OPERAND_H
#define OT_KERNELS_CPU_OPERAND_H

#include <stddef.h>

/* A matrix as it lies in memory. The summed dimension runs along the columns, or with sum_rows along the
 * rows. */
typedef struct ot_operand {
    const void *data; /* [rows,cols] */
    size_t ld, rows, cols;
    int sum_rows;
} ot_operand;

/* Words of `n` elements of the summed dimension. */
static inline size_t ot_words(int paired, size_t n)
{
    return paired ? (n + 1) / 2 : n;
}

#endif
