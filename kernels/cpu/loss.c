/* Cross-entropy over rows of logits, in place. */
#include <math.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vector.h"

/* Whole vectors first, which need no masks; the target's gradient is mended alone for the same reason. */
OT_INLINE float row_max(ot_dtype dtype, const void *x, size_t V)
{
    ot_vf max = ot_splat(-INFINITY);
    size_t i = 0;
    for (; i + OT_LANES <= V; i += OT_LANES) {
        ot_vf value = ot_load_full(dtype, ot_at(dtype, x, i));
        max = ot_select(value > max, value, max);
    }
    if (i < V) {
        ot_vf value = ot_select(ot_lanes_below(i, V), ot_load(dtype, x, i, V), ot_splat(-INFINITY));
        max = ot_select(value > max, value, max);
    }
    return ot_max_lanes(max);
}

/* Sum of exp(x - max): FP32 lanes over a block of the row, FP64 over its blocks. */
OT_INLINE double row_sum(ot_dtype dtype, const void *x, size_t V, float max)
{
    enum { BLOCK = 2048 };
    double total = 0;
    for (size_t first = 0; first < V; first += BLOCK) {
        size_t last = first + BLOCK < V ? first + BLOCK : V, i = first;
        ot_sum16 sum = {{{0}}};
        for (; i + OT_SUM_LANES <= last; i += OT_SUM_LANES)
            for (int p = 0; p < OT_SUM_PARTS; p++)
                sum.part[p] += ot_exp(ot_load_full(dtype, ot_at(dtype, x, i + (size_t)p * OT_LANES)) - max);
        for (int p = 0; p < OT_SUM_PARTS && i < last; p++) {
            size_t k = i + (size_t)p * OT_LANES;
            ot_vf e = ot_exp(ot_load(dtype, x, k, last) - max);
            sum.part[p] += ot_select(ot_lanes_below(k, last), e, ot_splat(0));
        }
        total += (double)ot_sum_lanes(&sum);
    }
    return total;
}

OT_INLINE void row_gradient(ot_dtype dtype, void *x, size_t V, float max, float inverse, size_t target,
                            float scale)
{
    ot_vf at_target = ot_exp(ot_load(dtype, ot_at(dtype, x, target), 0, 1) - max) * inverse - 1.0f;
    for (size_t i = 0; i < V; i += OT_LANES)
        ot_store(dtype, x, i, V, ot_exp(ot_load(dtype, x, i, V) - max) * inverse * scale);
    ot_store(dtype, ot_at_mutable(dtype, x, target), 0, 1, at_target * scale);
}

OT_INLINE void rows(ot_dtype dtype, const ot_cross_entropy *a, size_t begin, size_t end)
{
    for (size_t n = begin; n < end; n++) {
        void *x = ot_at_mutable(dtype, a->logits, n * a->ld_logits);
        int32_t target = a->targets[n];
        if (target < 0) {
            a->losses[n] = 0;
            if (a->backward)
                memset(x, 0, a->V * ot_dtype_bytes(dtype));
            continue;
        }
        float max = row_max(dtype, x, a->V), lane[OT_LANES];
        double sum = row_sum(dtype, x, a->V, max);
        ot_vf at_target = ot_load(dtype, ot_at(dtype, x, (size_t)target), 0, 1);
        memcpy(lane, &at_target, sizeof lane);
        a->losses[n] = isfinite(sum) ? (float)(ot_log(sum) + ((double)max - (double)lane[0])) : NAN;
        if (a->backward)
            row_gradient(dtype, x, a->V, max, (float)(1 / sum), (size_t)target, a->scale);
    }
}

/* Elements: rows. */
void OT_VARIANT(ot_cross_entropy_rows)(const void *args, size_t begin, size_t end)
{
    const ot_cross_entropy *a = args;
    OT_WITH_DTYPE(a->dtype, rows, a, begin, end);
}
