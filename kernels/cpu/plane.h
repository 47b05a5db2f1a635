/* The planes of an optimizer's update, a short run of elements at a time: widened into FP32 buffers that stay
 * in the nearest cache, and narrowed from them.
 *
 * Plain loops over scalars, which every compiler vectorises for the instruction set at hand. For files that
 * are compiled per instruction set. */
#ifndef OT_KERNELS_CPU_PLANE_H
#define OT_KERNELS_CPU_PLANE_H

#include <string.h>

#include "kernels/element.h"
#include "kernels/kernels.h"

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
