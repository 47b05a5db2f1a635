/* Planes: casts, sums of squares, scaling, and the split master. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/rounding.h"
#include "kernels/cpu/vector.h"

/* ---- Casts ---- */

OT_INLINE void cast_nearest(ot_dtype dst_dtype, ot_dtype src_dtype, const ot_cast *a, size_t begin,
                            size_t end)
{
    for (size_t i = begin; i < end; i += OT_LANES)
        ot_store(dst_dtype, a->dst, i, end, ot_load(src_dtype, a->src, i, end));
}

OT_INLINE void cast_from(ot_dtype src_dtype, const ot_cast *a, size_t begin, size_t end)
{
    OT_WITH_DTYPE(a->dst_dtype, cast_nearest, src_dtype, a, begin, end);
}

/* Random bits below the last place that is kept, then cut. */
OT_INLINE ot_vf stochastic_bf16(ot_vf x, ot_vu random)
{
    ot_vu u = (ot_vu)x;
    ot_vi finite = (u & 0x7f800000) != 0x7f800000;
    return (ot_vf)(ot_select_bits(finite, u + (random & 0xffff), u) &
                   ot_select_bits(x == x, (ot_vu){0} + 0xffff0000u, (ot_vu){0} + 0xffffffffu));
}

/* As above; below 2^-14, where FP16's places have one size, in multiples of 2^-24. What has been cut is exact
 * in FP16, and what exceeds its range goes to inf in the conversion. */
OT_INLINE ot_vf stochastic_fp16(ot_vf x, ot_vu random)
{
    ot_vu u = (ot_vu)x, sign = u & 0x80000000u, size = u & 0x7fffffffu;
    ot_vi finite = size < 0x7f800000u;
    ot_vu normal = (size + (random & 0x1fff)) & 0xffffe000u;
    ot_vf places = (ot_vf)ot_select_bits(size < 0x38800000u, size, (ot_vu){0}) * 16777216.0f;
    ot_vf whole = __builtin_convertvector(__builtin_convertvector(places, ot_vi), ot_vf);
    ot_vf fraction = __builtin_convertvector((ot_vi)(random >> 8), ot_vf) * 5.9604644775390625e-8f;
    whole += ot_select(fraction < places - whole, ot_splat(1.0f), ot_splat(0));
    ot_vu small = (ot_vu)(whole * 5.9604644775390625e-8f);
    ot_vu value = ot_select_bits(size < 0x38800000u, small, normal);
    return (ot_vf)(ot_select_bits(finite, value, size) | sign);
}

OT_INLINE void cast_stochastic(ot_dtype dst_dtype, const ot_cast *a, size_t begin, size_t end)
{
    enum { RUN = 256 };
    for (size_t first = begin; first < end; first += RUN) {
        uint32_t words[RUN], unused[RUN];
        size_t last = first + RUN < end ? first + RUN : end;
        ot_random_run(a->seed, a->first + first, a->sequence, last - first, words, unused);
        for (size_t i = first; i < last; i += OT_LANES) {
            ot_vu random;
            memcpy(&random, words + (i - first), sizeof random);
            ot_vf x = ot_load(OT_FP32, a->src, i, last);
            if (dst_dtype == OT_BF16)
                x = stochastic_bf16(x, random);
            else if (dst_dtype == OT_FP16)
                x = stochastic_fp16(x, random);
            ot_store(dst_dtype, a->dst, i, last, x);
        }
    }
}

/* Elements: those of dst. */
void OT_VARIANT(ot_cast_range)(const void *args, size_t begin, size_t end)
{
    const ot_cast *a = args;
    if (a->rounding == OT_ROUND_STOCHASTIC)
        OT_WITH_DTYPE(a->dst_dtype, cast_stochastic, a, begin, end);
    else
        OT_WITH_DTYPE(a->src_dtype, cast_from, a, begin, end);
}

/* ---- Sums of squares ---- */

OT_INLINE void square_blocks(ot_dtype dtype, const ot_sum_squares *a, size_t begin, size_t end)
{
    for (size_t block = begin; block < end; block++) {
        size_t first = block * OT_SUM_BLOCK, last = first + OT_SUM_BLOCK < a->n ? first + OT_SUM_BLOCK : a->n;
        ot_double_sum16 sum = {{{0}}};
        for (size_t i = first; i < last; i += OT_SUM_LANES)
            for (int p = 0; p < OT_SUM_PARTS; p++)
                ot_add_squares(&sum, p, ot_load(dtype, a->x, i + (size_t)p * OT_LANES, last));
        a->partials[block] = ot_sum_double_lanes(&sum);
    }
}

/* Elements: blocks of OT_SUM_BLOCK. */
void OT_VARIANT(ot_sum_squares_blocks)(const void *args, size_t begin, size_t end)
{
    const ot_sum_squares *a = args;
    OT_WITH_DTYPE(a->dtype, square_blocks, a, begin, end);
}

OT_INLINE void cast_blocks(ot_dtype dtype, const ot_cast_sum_squares *a, size_t begin, size_t end)
{
    for (size_t block = begin; block < end; block++) {
        size_t first = block * OT_SUM_BLOCK, last = first + OT_SUM_BLOCK < a->n ? first + OT_SUM_BLOCK : a->n;
        ot_double_sum16 sum = {{{0}}};
        for (size_t i = first; i < last; i += OT_SUM_LANES)
            for (int p = 0; p < OT_SUM_PARTS; p++) {
                size_t k = i + (size_t)p * OT_LANES;
                if (k < last)
                    ot_store(dtype, a->dst, k, last, ot_load(OT_FP32, a->src, k, last) * a->scale);
                ot_add_squares(&sum, p, ot_load(dtype, a->dst, k, last)); /* as it was rounded */
            }
        a->partials[block] = ot_sum_double_lanes(&sum);
    }
}

/* Elements: blocks of OT_SUM_BLOCK. */
void OT_VARIANT(ot_cast_sum_squares_blocks)(const void *args, size_t begin, size_t end)
{
    const ot_cast_sum_squares *a = args;
    OT_WITH_DTYPE(a->dst_dtype, cast_blocks, a, begin, end);
}

/* ---- Scaling ---- */

OT_INLINE void multiply(ot_dtype dtype, const ot_scale *a, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i += OT_LANES)
        ot_store(dtype, a->x, i, end, ot_load(dtype, a->x, i, end) * a->factor);
}

/* Elements: those of x. */
void OT_VARIANT(ot_scale_range)(const void *args, size_t begin, size_t end)
{
    const ot_scale *a = args;
    OT_WITH_DTYPE(a->dtype, multiply, a, begin, end);
}

OT_INLINE void accumulate(ot_dtype dtype, const ot_accumulate *a, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i += OT_LANES) {
        ot_vf sum = ot_load(OT_FP32, a->dst, i, end) + ot_load(dtype, a->src, i, end) * a->factor;
        ot_store(OT_FP32, a->dst, i, end, sum);
    }
}

/* Elements: those of dst. */
void OT_VARIANT(ot_accumulate_range)(const void *args, size_t begin, size_t end)
{
    const ot_accumulate *a = args;
    OT_WITH_DTYPE(a->src_dtype, accumulate, a, begin, end);
}

/* ---- The split master ---- */

/* Elements: parameters. */
void OT_VARIANT(ot_split_master_range)(const void *args, size_t begin, size_t end)
{
    const ot_split *a = args;
    const float *restrict master = a->master;
    uint16_t *restrict hi = a->hi;
    int16_t *restrict lo = a->lo;
    for (size_t i = begin; i < end; i++) {
        uint32_t raw = ot_bits(master[i]);
        hi[i] = (uint16_t)((raw + 0x8000) >> 16);
        lo[i] = (int16_t)(uint16_t)raw; /* raw - (hi << 16), whose low half is raw's */
    }
}

/* Elements: parameters. */
void OT_VARIANT(ot_join_master_range)(const void *args, size_t begin, size_t end)
{
    const ot_split *a = args;
    float *restrict master = a->master;
    const uint16_t *restrict hi = a->hi;
    const int16_t *restrict lo = a->lo;
    for (size_t i = begin; i < end; i++)
        master[i] = ot_float(((uint32_t)hi[i] << 16) + (uint32_t)(int32_t)lo[i]);
}
