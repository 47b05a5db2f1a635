/* The planes of an optimizer's update, a short run of elements at a time: widened into FP32 buffers that stay
 * in the nearest cache, and narrowed from them.
 *
 * Plain loops over scalars, which every compiler vectorises for the instruction set at hand. For files that
 * are compiled per instruction set. */
#ifndef OT_KERNELS_CPU_PLANE_H
#define OT_KERNELS_CPU_PLANE_H

#include <string.h>

#include "kernels/kernels.h"

#define OT_LOOP static inline __attribute__((always_inline, unused))

OT_LOOP uint32_t ot_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

OT_LOOP float ot_float(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* ---- One element, as in vector.h ---- */

OT_LOOP float ot_widen_bf16(uint16_t h)
{
    return ot_float((uint32_t)h << 16);
}

OT_LOOP uint16_t ot_narrow_bf16(float x)
{
    uint32_t u = ot_bits(x), rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    return (uint16_t)(x == x ? rounded : (u >> 16) | 0x40);
}

OT_LOOP float ot_widen_fp16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, size = (uint32_t)(h & 0x7fff) << 13;
    uint32_t normal = size + (112u << 23), special = size + (224u << 23);
    special = size > 0x0f800000u ? special | 0x400000u : special; /* NaN, made quiet */
    uint32_t subnormal = ot_bits(ot_float(size + (113u << 23)) - ot_float(113u << 23));
    uint32_t value = size < 0x00800000u ? subnormal : size < 0x0f800000u ? normal : special;
    return ot_float(value | sign);
}

OT_LOOP uint16_t ot_narrow_fp16(float x)
{
    uint32_t u = ot_bits(x), sign = (u >> 16) & 0x8000, size = u & 0x7fffffff;
    uint32_t normal = (size + 0xfff + ((size >> 13) & 1) - (112u << 23)) >> 13;
    uint32_t subnormal = ot_bits(ot_float(size) + 0.5f) - 0x3f000000u;
    uint32_t large = size > 0x7f800000u ? 0x7e00 | ((u >> 13) & 0x3ff) : 0x7c00;
    uint32_t value = size < 0x38800000u ? subnormal : size < 0x47800000u ? normal : large;
    return (uint16_t)(value | sign);
}

/* ---- Runs ---- */

/* Elements begin .. begin+n-1 of the gradient, times the step's factor. */
OT_LOOP void ot_load_grad(const ot_update *u, size_t begin, size_t n, float *restrict out)
{
    float scale = u->step->grad_scale;
    const float *restrict wide = (const float *)u->grad + begin;
    const uint16_t *restrict half = (const uint16_t *)u->grad + begin;
    if (u->grad_dtype == OT_FP32)
        for (size_t i = 0; i < n; i++)
            out[i] = wide[i] * scale;
    else if (u->grad_dtype == OT_BF16)
        for (size_t i = 0; i < n; i++)
            out[i] = ot_widen_bf16(half[i]) * scale;
    else
        for (size_t i = 0; i < n; i++)
            out[i] = ot_widen_fp16(half[i]) * scale;
}

/* The FP32 master of these elements: where it is, or joined in `buffer`. */
OT_LOOP const float *ot_load_master(const ot_update *u, size_t begin, size_t n, float *restrict buffer)
{
    if (u->master_format == OT_MASTER_FP32)
        return (const float *)u->master + begin;
    const uint16_t *restrict hi = (const uint16_t *)u->weight + begin;
    const int16_t *restrict lo = (const int16_t *)u->master + begin;
    for (size_t i = 0; i < n; i++)
        buffer[i] = ot_float(((uint32_t)hi[i] << 16) + (uint32_t)(int32_t)lo[i]);
    return buffer;
}

/* The new master p in its format, and the weight. */
OT_LOOP void ot_store_master(const ot_update *u, size_t begin, size_t n, const float *restrict p)
{
    uint16_t *restrict half = u->weight != NULL ? (uint16_t *)u->weight + begin : NULL;
    if (u->master_format == OT_MASTER_SPLIT) {
        int16_t *restrict lo = (int16_t *)u->master + begin;
        for (size_t i = 0; i < n; i++) {
            uint32_t raw = ot_bits(p[i]);
            half[i] = (uint16_t)((raw + 0x8000) >> 16);
            lo[i] = (int16_t)(uint16_t)raw;
        }
        return;
    }
    memcpy((float *)u->master + begin, p, n * sizeof *p);
    if (half != NULL && u->weight_dtype == OT_BF16) {
        for (size_t i = 0; i < n; i++)
            half[i] = ot_narrow_bf16(p[i]);
    } else if (half != NULL && u->weight_dtype == OT_FP16) {
        for (size_t i = 0; i < n; i++)
            half[i] = ot_narrow_fp16(p[i]);
    } else if (half != NULL) {
        memcpy((float *)u->weight + begin, p, n * sizeof *p);
    }
}

#endif
