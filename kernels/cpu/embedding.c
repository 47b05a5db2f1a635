/* Embedding: rows of a table by token. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vector.h"

OT_INLINE void forward_rows(ot_dtype dtype, const ot_embedding *a, size_t begin, size_t end)
{
    for (size_t n = begin; n < end; n++) {
        const void *row = ot_at(dtype, a->table, (size_t)a->tokens[n] * a->C);
        void *out = ot_at_mutable(dtype, a->out, n * a->C);
        if (!a->add)
            memcpy(out, row, a->C * ot_dtype_bytes(dtype));
        else
            for (size_t i = 0; i < a->C; i += OT_LANES)
                ot_store(dtype, out, i, a->C, ot_load(dtype, out, i, a->C) + ot_load(dtype, row, i, a->C));
    }
}

/* Elements: tokens. */
void OT_VARIANT(ot_embedding_forward)(const void *args, size_t begin, size_t end)
{
    const ot_embedding *a = args;
    OT_WITH_DTYPE(a->dtype, forward_rows, a, begin, end);
}

OT_INLINE void backward_columns(ot_dtype dtype, const ot_embedding *a, size_t begin, size_t end)
{
    for (size_t n = 0; n < a->N; n++) {
        const void *dout = ot_at(dtype, a->dout, n * a->C);
        float *row = a->dtable + (size_t)a->tokens[n] * a->C;
        for (size_t i = begin; i < end; i += OT_LANES)
            ot_store(OT_FP32, row, i, end, ot_load(OT_FP32, row, i, end) + ot_load(dtype, dout, i, end));
    }
}

/* Elements: columns of the table. Each thread adds all tokens, in order, into columns of its own: no two of
 * them meet, and no sort is needed. */
void OT_VARIANT(ot_embedding_backward)(const void *args, size_t begin, size_t end)
{
    const ot_embedding *a = args;
    OT_WITH_DTYPE(a->dtype, backward_columns, a, begin, end);
}
