/* Packs operands of matrix products (operand.h). For files that are compiled per instruction set. */
#ifndef OT_KERNELS_CPU_PACK_H
#define OT_KERNELS_CPU_PACK_H

#include "kernels/cpu/operand.h"
#include "kernels/cpu/vector.h"

/* The branches keep the copies of full registers apart from those of a size that is known late. */
OT_INLINE ot_vu ot_load_pairs(const void *row, size_t i, size_t n)
{
    ot_vu pairs = {0};
    const uint16_t *p = (const uint16_t *)row + i;
    if (i + 2 * OT_LANES <= n)
        memcpy(&pairs, p, sizeof pairs);
    else if (i < n)
        memcpy(&pairs, p, (n - i) * sizeof *p);
    return pairs;
}

OT_INLINE ot_vu ot_load_halves(const ot_operand *o, size_t i, size_t j)
{
    ot_vh h = {0};
    if (i >= o->rows)
        return (ot_vu){0};
    const uint16_t *p = (const uint16_t *)o->data + i * o->ld + j;
    if (j + OT_LANES <= o->cols)
        memcpy(&h, p, sizeof h);
    else if (j < o->cols)
        memcpy(&h, p, (o->cols - j) * sizeof *p);
    return __builtin_convertvector(h, ot_vu);
}

/* OT_LANES words: of row i from word j on, or with sum_rows those of the columns from j on in row i, which
 * for pairs is the rows 2i and 2i+1. Zeros beyond the matrix. */
OT_INLINE ot_vu ot_line(ot_dtype dtype, int paired, const ot_operand *o, size_t i, size_t j)
{
    if (paired && o->sum_rows)
        return ot_load_halves(o, 2 * i, j) | ot_load_halves(o, 2 * i + 1, j) << 16;
    if (i >= o->rows)
        return (ot_vu){0};
    const void *row = ot_at(dtype, o->data, i * o->ld);
    if (paired)
        return ot_load_pairs(row, 2 * j, o->cols);
    return j < o->cols ? (ot_vu)ot_load(dtype, row, j, o->cols) : (ot_vu){0};
}

OT_INLINE void ot_store_words(uint32_t *p, ot_vu x)
{
    memcpy(p, &x, sizeof x);
}

/* x[i][j] becomes x[j][i]. */
OT_INLINE void ot_transpose(ot_vu x[OT_LANES])
{
#if OT_LANES == 16
    /* Four rounds that swap ever larger squares off the diagonal: of 8, 4, 2 and 1. */
#define OT_SWAP(a, b, ...)                                                                                   \
    do {                                                                                                     \
        ot_vu low_ = __builtin_shufflevector(a, b, OT_SWAP_LOW_##__VA_ARGS__);                               \
        b = __builtin_shufflevector(a, b, OT_SWAP_HIGH_##__VA_ARGS__);                                       \
        a = low_;                                                                                            \
    } while (0)
#define OT_SWAP_LOW_8 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23
#define OT_SWAP_HIGH_8 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31
#define OT_SWAP_LOW_4 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27
#define OT_SWAP_HIGH_4 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31
#define OT_SWAP_LOW_2 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29
#define OT_SWAP_HIGH_2 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31
#define OT_SWAP_LOW_1 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30
#define OT_SWAP_HIGH_1 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31
    for (int i = 0; i < 8; i++)
        OT_SWAP(x[i], x[i + 8], 8);
    for (int i = 0; i < 16; i++)
        if ((i & 4) == 0)
            OT_SWAP(x[i], x[i + 4], 4);
    for (int i = 0; i < 16; i++)
        if ((i & 2) == 0)
            OT_SWAP(x[i], x[i + 2], 2);
    for (int i = 0; i < 16; i += 2)
        OT_SWAP(x[i], x[i + 1], 1);
#else
    uint32_t from[OT_LANES][OT_LANES], to[OT_LANES][OT_LANES];
    memcpy(from, x, sizeof from);
    for (int i = 0; i < OT_LANES; i++)
        for (int j = 0; j < OT_LANES; j++)
            to[j][i] = from[i][j];
    memcpy(x, to, sizeof to);
#endif
}

/* Rows far apart are beyond what the processor fetches ahead by itself. */
OT_INLINE void ot_prefetch_line(ot_dtype dtype, int paired, const ot_operand *o, size_t i, size_t j)
{
    if (paired && o->sum_rows) {
        if (2 * i + 1 < o->rows && j % 32 == 0) {
            __builtin_prefetch(ot_at(dtype, o->data, 2 * i * o->ld + j));
            __builtin_prefetch(ot_at(dtype, o->data, (2 * i + 1) * o->ld + j));
        }
    } else if (i < o->rows) {
        __builtin_prefetch(ot_at(dtype, o->data, i * o->ld + (paired ? 2 * j : j)));
    }
}

enum { OT_PREFETCH_ROWS = 16 };

/* Rows i .. i+rows-1 and words (or columns) j .. j+cols-1 of the operand, cols a multiple of 16, into
 * dst[row][col], or turned into dst[col][row], where `rows` is a multiple of 16 as well. */
OT_INLINE void ot_pack(ot_dtype dtype, int paired, int turned, const ot_operand *o, size_t i, size_t rows,
                       size_t j, size_t cols, uint32_t *dst, size_t ld_dst)
{
    if (!turned) {
        for (size_t r = 0; r < rows; r++)
            for (size_t c = 0; c < cols; c += OT_LANES) {
                ot_prefetch_line(dtype, paired, o, i + r + OT_PREFETCH_ROWS, j + c);
                ot_store_words(dst + r * ld_dst + c, ot_line(dtype, paired, o, i + r, j + c));
            }
        return;
    }
    for (size_t r = 0; r < rows; r += OT_LANES)
        for (size_t c = 0; c < cols; c += OT_LANES) {
            ot_vu x[OT_LANES];
            for (size_t l = 0; l < OT_LANES; l++) {
                ot_prefetch_line(dtype, paired, o, i + r + l + OT_LANES, j + c);
                x[l] = ot_line(dtype, paired, o, i + r + l, j + c);
            }
            ot_transpose(x);
            for (size_t l = 0; l < OT_LANES; l++)
                ot_store_words(dst + (c + l) * ld_dst + r, x[l]);
        }
}

/* ot_pack with loops of their own for each type and direction. */
OT_INLINE void ot_pack_any(ot_dtype dtype, int paired, int turned, const ot_operand *o, size_t i, size_t rows,
                           size_t j, size_t cols, uint32_t *dst, size_t ld_dst)
{
    ot_operand copy = *o; /* the compiler knows that nobody else changes it */
    copy.sum_rows = o->sum_rows != 0;
    if (paired && turned)
        ot_pack(OT_BF16, 1, 1, &copy, i, rows, j, cols, dst, ld_dst);
    else if (paired)
        ot_pack(OT_BF16, 1, 0, &copy, i, rows, j, cols, dst, ld_dst);
    else if (turned)
        OT_WITH_DTYPE(dtype, ot_pack, 0, 1, &copy, i, rows, j, cols, dst, ld_dst);
    else
        OT_WITH_DTYPE(dtype, ot_pack, 0, 0, &copy, i, rows, j, cols, dst, ld_dst);
}

#endif
