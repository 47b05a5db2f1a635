/* Around the matrix products: operands into packed blocks, finished tiles into the output. */
#include "kernels/cpu/matmul.h"

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/pack.h"

/* Chunk after chunk of A, each [count, words of the chunk]. Elements: groups of OT_PACK_ROWS rows, all groups
 * of the first chunk before those of the second. */
void OT_VARIANT(ot_matmul_pack_a)(const void *args, size_t begin, size_t end)
{
    const ot_matmul_pack *a = args;
    size_t groups = a->count / OT_PACK_ROWS;
    for (size_t item = begin; item < end; item++) {
        size_t chunk = item / groups * a->sum_chunk, row = item % groups * OT_PACK_ROWS;
        size_t length = ot_matmul_padded(ot_matmul_chunk(chunk, a->sum_count, a->sum_chunk), OT_TILE_K_STEP);
        size_t words = ot_words(a->paired, length), first = ot_words(a->paired, chunk);
        uint32_t *dst = a->dst + first * a->count + row * words;
        if (a->source.sum_rows)
            ot_pack_any(a->dtype, a->paired, 1, &a->source, first, words, a->first + row, OT_PACK_ROWS, dst,
                        words);
        else
            ot_pack_any(a->dtype, a->paired, 0, &a->source, a->first + row, OT_PACK_ROWS, first, words, dst,
                        words);
    }
}

/* One chunk of B. Elements: panels of OT_TILE_N columns, each [words of the chunk, OT_TILE_N]. */
void OT_VARIANT(ot_matmul_pack_b)(const void *args, size_t begin, size_t end)
{
    const ot_matmul_pack *a = args;
    size_t words = ot_words(a->paired, ot_matmul_padded(a->sum_count, OT_TILE_K_STEP));
    size_t first = ot_words(a->paired, a->sum_first);
    for (size_t panel = begin; panel < end; panel++) {
        size_t col = a->first + panel * OT_TILE_N;
        uint32_t *dst = a->dst + panel * words * OT_TILE_N;
        if (a->source.sum_rows)
            ot_pack_any(a->dtype, a->paired, 0, &a->source, first, words, col, OT_TILE_N, dst, OT_TILE_N);
        else
            ot_pack_any(a->dtype, a->paired, 1, &a->source, col, OT_TILE_N, first, words, dst, OT_TILE_N);
    }
}

OT_INLINE void store_rows(ot_dtype bias_dtype, ot_dtype dtype, const ot_matmul_store *a, size_t begin,
                          size_t end)
{
    const ot_matmul *m = a->matmul;
    const void *bias =
        m->op == OT_MATMUL_FORWARD && m->bias != NULL ? ot_at(bias_dtype, m->bias, a->col) : NULL;
    size_t cols = a->cols < OT_TILE_N ? a->cols : OT_TILE_N;
    for (size_t r = begin; r < end; r++) {
        void *out = ot_at_mutable(dtype, m->out, (a->row + r) * m->ld_out + a->col);
        __builtin_prefetch((const char *)out + OT_PREFETCH_ROWS * m->ld_out * ot_dtype_bytes(dtype), 1);
        for (size_t i = 0; i < cols; i += OT_LANES) {
            ot_vf x = ot_load_full(OT_FP32, a->tile + r * OT_TILE_N + i);
            if (bias != NULL)
                x += ot_load(bias_dtype, bias, i, cols);
            if (a->accumulate)
                x += ot_load(dtype, out, i, cols);
            ot_store(dtype, out, i, cols, x);
        }
    }
}

/* Elements: rows of the tile. */
void OT_VARIANT(ot_matmul_store_rows)(const void *args, size_t begin, size_t end)
{
    const ot_matmul_store *a = args;
    ot_dtype dtype = a->matmul->dtype;
    if (a->matmul->out_dtype == OT_FP32)
        OT_WITH_DTYPE(dtype, store_rows, OT_FP32, a, begin, end);
    else if (dtype == OT_BF16)
        store_rows(OT_BF16, OT_BF16, a, begin, end);
    else
        store_rows(OT_FP16, OT_FP16, a, begin, end);
}
