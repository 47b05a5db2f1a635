/* The planes that both optimizers' kernels read and write: gradient, master and weight, a pack at a time.
 *
 * Products are rounded before they are added (`times`), so that the arithmetic gives the CPU device's bytes and a
 * plane may be updated on either. */
#ifndef OT_KERNELS_CUDA_PLANE_CUH
#define OT_KERNELS_CUDA_PLANE_CUH

#include "kernels/cuda/common.cuh"

/* To nearest even as `narrow`, and NaN keeps its upper bits, made quiet. */
__device__ inline uint16_t narrow_bf16(float x)
{
    uint32_t u = __float_as_uint(x), rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    return (uint16_t)(x == x ? rounded : (u >> 16) | 0x40);
}

__device__ inline uint16_t narrow_fp16(float x)
{
    uint32_t u = __float_as_uint(x);
    return x == x ? __half_as_ushort(__float2half_rn(x))
                  : (uint16_t)(((u >> 16) & 0x8000) | 0x7e00 | ((u >> 13) & 0x3ff));
}

/* 8 elements of a plane of any float type. */
__device__ inline pack load_plane(ot_dtype dtype, const void *plane, size_t i, size_t left, int aligned)
{
    if (dtype == OT_FP32)
        return load_pack((const float *)plane + i, left, aligned);
    if (dtype == OT_BF16)
        return load_pack((const __nv_bfloat16 *)plane + i, left, aligned);
    return load_pack((const __half *)plane + i, left, aligned);
}

__device__ inline pack load_grad(const ot_update &u, size_t i, size_t left, int aligned)
{
    pack g = load_plane(u.grad_dtype, u.grad, i, left, aligned);
    float scale = u.step->grad_scale;
#pragma unroll
    for (unsigned k = 0; k < PACK; k++)
        g.v[k] = times(g.v[k], scale);
    return g;
}

__device__ inline pack load_master(const ot_update &u, size_t i, size_t left, int aligned)
{
    if (u.master_format == OT_MASTER_FP32)
        return load_pack((const float *)u.master + i, left, aligned);
    raw_pack<uint16_t> hi;
    raw_pack<int16_t> lo;
    load_raw(hi, (const uint16_t *)u.weight + i, left, aligned);
    load_raw(lo, (const int16_t *)u.master + i, left, aligned);
    pack p;
#pragma unroll
    for (unsigned k = 0; k < PACK; k++)
        p.v[k] = __uint_as_float(((uint32_t)hi.element[k] << 16) + (uint32_t)(int32_t)lo.element[k]);
    return p;
}

/* The new master p in its format, and the weight. */
__device__ inline void store_master(const ot_update &u, size_t i, size_t left, int aligned, const pack &p)
{
    raw_pack<uint16_t> narrowed;
    raw_pack<int16_t> lo;
    if (u.master_format == OT_MASTER_SPLIT) {
#pragma unroll
        for (unsigned k = 0; k < PACK; k++) {
            uint32_t raw = __float_as_uint(p.v[k]);
            narrowed.element[k] = (uint16_t)((raw + 0x8000) >> 16);
            lo.element[k] = (int16_t)(uint16_t)raw;
        }
        store_raw((int16_t *)u.master + i, left, aligned, lo);
        store_raw((uint16_t *)u.weight + i, left, aligned, narrowed);
        return;
    }
    store_pack((float *)u.master + i, left, aligned, p);
    if (u.weight == NULL)
        return;
    if (u.weight_dtype == OT_FP32) {
        store_pack((float *)u.weight + i, left, aligned, p);
        return;
    }
#pragma unroll
    for (unsigned k = 0; k < PACK; k++)
        narrowed.element[k] = u.weight_dtype == OT_BF16 ? narrow_bf16(p.v[k]) : narrow_fp16(p.v[k]);
    store_raw((uint16_t *)u.weight + i, left, aligned, narrowed);
}

inline int planes_are_aligned(const ot_update &u)
{
    return is_aligned(u.grad) && is_aligned(u.master) && is_aligned(u.weight);
}

inline int is_float(ot_dtype dtype)
{
    return dtype == OT_FP32 || dtype == OT_BF16 || dtype == OT_FP16;
}

#endif
