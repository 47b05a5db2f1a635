/* Planes: casts, sums of squares, scaling, and the split master. */
#include "kernels/cuda/common.cuh"
#include "kernels/random.h"

namespace
{

/* ---- Casts ---- */

template <class To, class From> struct cast_nearest {
    ot_cast a;
    int aligned;

    __device__ void operator()(size_t i, size_t left) const
    {
        store_pack((To *)a.dst + i, left, aligned, load_pack((const From *)a.src + i, left, aligned));
    }
};

/* Random bits below the last place that is kept, then cut; what is left is exact in the narrow type. */
__device__ inline float round_randomly(__nv_bfloat16, float x, uint32_t word)
{
    uint32_t u = __float_as_uint(x);
    if ((u & 0x7f800000) == 0x7f800000)
        return x;
    return __uint_as_float((u + (word & 0xffff)) & 0xffff0000u);
}

/* Below 2^-14, where FP16's places have one size, in multiples of 2^-24. */
__device__ inline float round_randomly(__half, float x, uint32_t word)
{
    uint32_t u = __float_as_uint(x), sign = u & 0x80000000u, size = u & 0x7fffffffu;
    if (size >= 0x7f800000u)
        return x;
    if (size >= 0x38800000u)
        return __uint_as_float(((size + (word & 0x1fff)) & 0xffffe000u) | sign);
    float places = __uint_as_float(size) * 16777216.0f, whole = (float)(int)places;
    whole += (float)(int)(word >> 8) * 5.9604644775390625e-8f < places - whole ? 1.0f : 0.0f;
    return __uint_as_float(__float_as_uint(whole * 5.9604644775390625e-8f) | sign);
}

__device__ inline float round_randomly(float, float x, uint32_t)
{
    return x;
}

template <class To> struct cast_stochastic {
    ot_cast a;
    int aligned;

    __device__ void operator()(size_t i, size_t left) const
    {
        pack x = load_pack((const float *)a.src + i, left, aligned);
#pragma unroll
        for (unsigned k = 0; k < PACK; k++) {
            uint32_t word[4];
            ot_philox(a.seed, a.first + i + k, a.sequence, word);
            x.v[k] = round_randomly(To(), x.v[k], word[0]);
        }
        store_pack((To *)a.dst + i, left, aligned, x);
    }
};

/* ---- Sums of squares ---- */

constexpr unsigned SUM_THREADS = 512;

__device__ inline void add_squares(double &sum, const pack &x)
{
#pragma unroll
    for (unsigned k = 0; k < PACK; k++)
        sum += (double)x.v[k] * (double)x.v[k];
}

/* A block of threads for each OT_SUM_BLOCK elements. */
template <class T> __global__ void __launch_bounds__(SUM_THREADS) square_blocks(ot_sum_squares a, int aligned)
{
    size_t begin = (size_t)blockIdx.x * OT_SUM_BLOCK, end = begin + OT_SUM_BLOCK;
    double sum = 0;
    for (size_t i = begin + threadIdx.x * PACK; i < end && i < a.n; i += SUM_THREADS * PACK)
        add_squares(sum, load_pack((const T *)a.x + i, a.n - i, aligned));
    sum = team_sum<SUM_THREADS>(sum);
    if (threadIdx.x == 0)
        a.partials[blockIdx.x] = sum;
}

template <class T>
__global__ void __launch_bounds__(SUM_THREADS) cast_blocks(ot_cast_sum_squares a, int aligned)
{
    size_t begin = (size_t)blockIdx.x * OT_SUM_BLOCK, end = begin + OT_SUM_BLOCK;
    double sum = 0;
    for (size_t i = begin + threadIdx.x * PACK; i < end && i < a.n; i += SUM_THREADS * PACK) {
        pack x = load_pack(a.src + i, a.n - i, aligned);
        raw_pack<T> raw;
#pragma unroll
        for (unsigned k = 0; k < PACK; k++) {
            narrow(&raw.element[k], x.v[k] * a.scale);
            x.v[k] = widen(raw.element[k]); /* as it was rounded */
        }
        store_raw((T *)a.dst + i, a.n - i, aligned, raw);
        add_squares(sum, x);
    }
    sum = team_sum<SUM_THREADS>(sum);
    if (threadIdx.x == 0)
        a.partials[blockIdx.x] = sum;
}

/* One after the other, by one thread; the others fetch. */
template <class T> __global__ void __launch_bounds__(BLOCK_THREADS) sum_in_order(ot_sum a)
{
    OT_SHARED(T, [BLOCK_THREADS], tile);
    double sum = a.add ? a.out[0] : 0;
    for (size_t begin = 0; begin < a.n; begin += BLOCK_THREADS) {
        size_t i = begin + threadIdx.x, count = a.n - begin < BLOCK_THREADS ? a.n - begin : BLOCK_THREADS;
        if (i < a.n)
            tile[threadIdx.x] = ((const T *)a.x)[i];
        __syncthreads();
        if (threadIdx.x == 0)
            for (size_t k = 0; k < count; k++)
                sum += (double)tile[k];
        __syncthreads();
    }
    if (threadIdx.x == 0)
        a.out[0] = sum;
}

/* ---- Scaling ---- */

template <class T> struct multiply {
    ot_scale a;
    int aligned;

    __device__ void operator()(size_t i, size_t left) const
    {
        pack x = load_pack((const T *)a.x + i, left, aligned);
#pragma unroll
        for (unsigned k = 0; k < PACK; k++)
            x.v[k] *= a.factor;
        store_pack((T *)a.x + i, left, aligned, x);
    }
};

template <class T> struct add_scaled {
    ot_accumulate a;
    int aligned;

    __device__ void operator()(size_t i, size_t left) const
    {
        pack sum = load_pack(a.dst + i, left, aligned), x = load_pack((const T *)a.src + i, left, aligned);
#pragma unroll
        for (unsigned k = 0; k < PACK; k++)
            sum.v[k] += times(x.v[k], a.factor);
        store_pack(a.dst + i, left, aligned, sum);
    }
};

/* ---- The split master ---- */

struct split {
    ot_split a;
    int aligned;

    __device__ void operator()(size_t i, size_t left) const
    {
        pack master = load_pack(a.master + i, left, aligned);
        raw_pack<uint16_t> hi;
        raw_pack<int16_t> lo;
#pragma unroll
        for (unsigned k = 0; k < PACK; k++) {
            uint32_t raw = __float_as_uint(master.v[k]);
            hi.element[k] = (uint16_t)((raw + 0x8000) >> 16);
            lo.element[k] = (int16_t)(uint16_t)raw;
        }
        store_raw(a.hi + i, left, aligned, hi);
        store_raw(a.lo + i, left, aligned, lo);
    }
};

struct join {
    ot_split a;
    int aligned;

    __device__ void operator()(size_t i, size_t left) const
    {
        raw_pack<uint16_t> hi;
        raw_pack<int16_t> lo;
        load_raw(hi, a.hi + i, left, aligned);
        load_raw(lo, a.lo + i, left, aligned);
        pack master;
#pragma unroll
        for (unsigned k = 0; k < PACK; k++)
            master.v[k] = __uint_as_float(((uint32_t)hi.element[k] << 16) + (uint32_t)(int32_t)lo.element[k]);
        store_pack(a.master + i, left, aligned, master);
    }
};

} // namespace

cudaError_t ot_cuda_cast(cudaStream_t stream, const ot_cast *args)
{
    ot_cast a = *args;
    int aligned = is_aligned(a.src) && is_aligned(a.dst);
    if (a.rounding == OT_ROUND_STOCHASTIC)
        return a.src_dtype != OT_FP32 ? cudaErrorInvalidValue : with_dtype(a.dst_dtype, [=](auto to) {
            return for_each_pack(stream, a.n, cast_stochastic<decltype(to)>{a, aligned});
        });
    return with_dtype(a.dst_dtype, [=](auto to) {
        return with_dtype(a.src_dtype, [=](auto from) {
            return for_each_pack(stream, a.n, cast_nearest<decltype(to), decltype(from)>{a, aligned});
        });
    });
}

cudaError_t ot_cuda_sum_squares(cudaStream_t stream, const ot_sum_squares *args)
{
    ot_sum_squares a = *args;
    return a.n == 0 ? cudaSuccess : with_dtype(a.dtype, [=](auto type) {
        return OT_LAUNCH(square_blocks<decltype(type)>, (unsigned)ot_sum_blocks(a.n), SUM_THREADS, 0, stream,
                         a, is_aligned(a.x));
    });
}

cudaError_t ot_cuda_cast_sum_squares(cudaStream_t stream, const ot_cast_sum_squares *args)
{
    ot_cast_sum_squares a = *args;
    return a.n == 0 ? cudaSuccess : with_dtype(a.dst_dtype, [=](auto type) {
        return OT_LAUNCH(cast_blocks<decltype(type)>, (unsigned)ot_sum_blocks(a.n), SUM_THREADS, 0, stream, a,
                         is_aligned(a.src) && is_aligned(a.dst));
    });
}

cudaError_t ot_cuda_sum_losses(cudaStream_t stream, const ot_sum *args)
{
    return OT_LAUNCH(sum_in_order<float>, 1, BLOCK_THREADS, 0, stream, *args);
}

cudaError_t ot_cuda_sum_partials(cudaStream_t stream, const ot_sum *args)
{
    return OT_LAUNCH(sum_in_order<double>, 1, BLOCK_THREADS, 0, stream, *args);
}

cudaError_t ot_cuda_scale(cudaStream_t stream, const ot_scale *args)
{
    ot_scale a = *args;
    return with_dtype(a.dtype, [=](auto type) {
        return for_each_pack(stream, a.n, multiply<decltype(type)>{a, is_aligned(a.x)});
    });
}

cudaError_t ot_cuda_accumulate(cudaStream_t stream, const ot_accumulate *args)
{
    ot_accumulate a = *args;
    return with_dtype(a.src_dtype, [=](auto type) {
        int aligned = is_aligned(a.dst) && is_aligned(a.src);
        return for_each_pack(stream, a.n, add_scaled<decltype(type)>{a, aligned});
    });
}

cudaError_t ot_cuda_split_master(cudaStream_t stream, const ot_split *args)
{
    int aligned = is_aligned(args->master) && is_aligned(args->hi) && is_aligned(args->lo);
    return for_each_pack(stream, args->n, split{*args, aligned});
}

cudaError_t ot_cuda_join_master(cudaStream_t stream, const ot_split *args)
{
    int aligned = is_aligned(args->master) && is_aligned(args->hi) && is_aligned(args->lo);
    return for_each_pack(stream, args->n, join{*args, aligned});
}
