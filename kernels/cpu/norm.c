/* RMSNorm and LayerNorm, over rows or over the heads of a row. */
#include <math.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vector.h"

/* Where group g of the N*H groups starts in a tensor with rows `ld` apart. */
OT_INLINE size_t group_at(const ot_norm *a, size_t g, size_t ld)
{
    return g / a->H * ld + g % a->H * a->C;
}

OT_INLINE float mean_of(ot_dtype dtype, const void *x, size_t C)
{
    ot_sum16 sum = {{{0}}};
    for (size_t i = 0; i < C; i += OT_SUM_LANES)
        for (int p = 0; p < OT_SUM_PARTS; p++)
            sum.part[p] += ot_load(dtype, x, i + (size_t)p * OT_LANES, C);
    return ot_sum_lanes(&sum) / (float)C;
}

OT_INLINE float rstd_of(ot_dtype dtype, const void *x, size_t C, float mean, float eps)
{
    ot_sum16 sum = {{{0}}};
    for (size_t i = 0; i < C; i += OT_SUM_LANES)
        for (int p = 0; p < OT_SUM_PARTS; p++) {
            size_t k = i + (size_t)p * OT_LANES;
            ot_vf d = ot_load(dtype, x, k, C) - mean;
            sum.part[p] += ot_select(ot_lanes_below(k, C), d * d, ot_splat(0));
        }
    return 1.0f / sqrtf(ot_sum_lanes(&sum) / (float)C + eps);
}

OT_INLINE void forward_groups(ot_dtype dtype, const ot_norm *a, size_t begin, size_t end)
{
    size_t C = a->C;
    for (size_t g = begin; g < end; g++) {
        const void *x = ot_at(dtype, a->x, group_at(a, g, a->ld_x));
        void *y = ot_at_mutable(dtype, a->y, group_at(a, g, a->ld_y));
        float mean = a->kind == OT_LAYERNORM ? mean_of(dtype, x, C) : 0.0f;
        float rstd = rstd_of(dtype, x, C, mean, a->eps);
        for (size_t i = 0; i < C; i += OT_LANES) {
            ot_vf value = (ot_load(dtype, x, i, C) - mean) * rstd * ot_load(dtype, a->weight, i, C);
            if (a->bias != NULL)
                value += ot_load(dtype, a->bias, i, C);
            ot_store(dtype, y, i, C, value);
        }
        if (a->kind == OT_LAYERNORM && a->mean != NULL)
            a->mean[g] = mean;
        if (a->rstd != NULL)
            a->rstd[g] = rstd;
    }
}

/* Elements: groups. */
void OT_VARIANT(ot_norm_forward)(const void *args, size_t begin, size_t end)
{
    const ot_norm *a = args;
    OT_WITH_DTYPE(a->dtype, forward_groups, a, begin, end);
}

OT_INLINE void backward_group(ot_dtype dtype, const ot_norm *a, size_t g)
{
    size_t C = a->C;
    const void *x = ot_at(dtype, a->x, group_at(a, g, a->ld_x));
    const void *dy = ot_at(dtype, a->dy, group_at(a, g, a->ld_y));
    void *dx = ot_at_mutable(dtype, a->dx, group_at(a, g, a->ld_dx));
    const void *dresidual =
        a->dresidual != NULL ? ot_at(dtype, a->dresidual, group_at(a, g, a->ld_dx)) : NULL;
    float mean = a->kind == OT_LAYERNORM ? a->mean[g] : 0.0f, rstd = a->rstd[g];
    ot_sum16 sum = {{{0}}}, sum_xhat = {{{0}}};
    for (size_t i = 0; i < C; i += OT_SUM_LANES)
        for (int p = 0; p < OT_SUM_PARTS; p++) {
            size_t k = i + (size_t)p * OT_LANES;
            ot_vf gradient = ot_load(dtype, dy, k, C) * ot_load(dtype, a->weight, k, C);
            sum.part[p] += gradient;
            sum_xhat.part[p] += gradient * ((ot_load(dtype, x, k, C) - mean) * rstd);
        }
    float average = a->kind == OT_LAYERNORM ? ot_sum_lanes(&sum) / (float)C : 0.0f;
    float average_xhat = ot_sum_lanes(&sum_xhat) / (float)C;
    for (size_t i = 0; i < C; i += OT_LANES) {
        ot_vf gradient = ot_load(dtype, dy, i, C) * ot_load(dtype, a->weight, i, C);
        ot_vf xhat = (ot_load(dtype, x, i, C) - mean) * rstd;
        ot_vf value = rstd * (gradient - xhat * average_xhat - average);
        if (dresidual != NULL)
            value = ot_load(dtype, dresidual, i, C) + value;
        ot_store(dtype, dx, i, C, value);
    }
}

OT_INLINE void backward_groups(ot_dtype dtype, const ot_norm *a, size_t begin, size_t end)
{
    for (size_t g = begin; g < end; g++)
        backward_group(dtype, a, g);
}

/* Elements: groups of dx. */
void OT_VARIANT(ot_norm_backward_rows)(const void *args, size_t begin, size_t end)
{
    const ot_norm *a = args;
    OT_WITH_DTYPE(a->dtype, backward_groups, a, begin, end);
}

/* Sums over many rows go through sums of ROWS_BLOCK rows, which keeps the rounding error of FP32 small, and
 * run over a strip of columns at a time, which stays in registers. */
enum { ROWS_BLOCK = 32, STRIP = 4 };

OT_INLINE void add_strip(float *out, size_t i, size_t end, const ot_vf sum[STRIP])
{
    for (size_t s = 0; s < STRIP; s++) {
        size_t k = i + s * OT_LANES;
        if (k < end)
            ot_store(OT_FP32, out, k, end, ot_load(OT_FP32, out, k, end) + sum[s]);
    }
}

OT_INLINE void backward_strip(ot_dtype dtype, const ot_norm *a, size_t first, size_t last, size_t i,
                              size_t end)
{
    ot_vf dweight[STRIP] = {{0}}, dbias[STRIP] = {{0}};
    for (size_t g = first; g < last; g++) {
        float mean = a->kind == OT_LAYERNORM ? a->mean[g] : 0.0f, rstd = a->rstd[g];
        const void *dys = ot_at(dtype, a->dy, group_at(a, g, a->ld_y)),
                   *xs = ot_at(dtype, a->x, group_at(a, g, a->ld_x));
        for (size_t s = 0; s < STRIP; s++) {
            size_t k = i + s * OT_LANES;
            ot_vf dy = ot_load(dtype, dys, k, end);
            dweight[s] += dy * ((ot_load(dtype, xs, k, end) - mean) * rstd);
            dbias[s] += dy;
        }
    }
    if (a->dweight != NULL)
        add_strip(a->dweight, i, end, dweight);
    if (a->dbias != NULL)
        add_strip(a->dbias, i, end, dbias);
}

OT_INLINE void backward_columns(ot_dtype dtype, const ot_norm *a, size_t begin, size_t end)
{
    size_t groups = a->N * a->H;
    for (size_t first = 0; first < groups; first += ROWS_BLOCK) {
        size_t last = first + ROWS_BLOCK < groups ? first + ROWS_BLOCK : groups;
        for (size_t i = begin; i < end; i += STRIP * OT_LANES)
            backward_strip(dtype, a, first, last, i, end);
    }
}

/* Elements: columns of dweight and dbias. */
void OT_VARIANT(ot_norm_backward_columns)(const void *args, size_t begin, size_t end)
{
    const ot_norm *a = args;
    OT_WITH_DTYPE(a->dtype, backward_columns, a, begin, end);
}

OT_INLINE void bias_strip(ot_dtype dtype, const ot_bias_backward *a, size_t first, size_t last, size_t i,
                          size_t end)
{
    ot_vf dbias[STRIP] = {{0}};
    for (size_t n = first; n < last; n++)
        for (size_t s = 0; s < STRIP; s++)
            dbias[s] += ot_load(dtype, ot_at(dtype, a->dy, n * a->ld_dy), i + s * OT_LANES, end);
    add_strip(a->dbias, i, end, dbias);
}

OT_INLINE void bias_columns(ot_dtype dtype, const ot_bias_backward *a, size_t begin, size_t end)
{
    for (size_t first = 0; first < a->N; first += ROWS_BLOCK) {
        size_t last = first + ROWS_BLOCK < a->N ? first + ROWS_BLOCK : a->N;
        for (size_t i = begin; i < end; i += STRIP * OT_LANES)
            bias_strip(dtype, a, first, last, i, end);
    }
}

/* Elements: columns of dbias. */
void OT_VARIANT(ot_bias_backward_columns)(const void *args, size_t begin, size_t end)
{
    const ot_bias_backward *a = args;
    OT_WITH_DTYPE(a->dtype, bias_columns, a, begin, end);
}
