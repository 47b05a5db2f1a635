/* What the memory-bound kernels share: packs of 8 elements, widened to FP32, that are read and written 16
 * bytes at a time; sums over warps and blocks in a fixed order; and launches over packs. */
#ifndef OT_KERNELS_CUDA_COMMON_CUH
#define OT_KERNELS_CUDA_COMMON_CUH

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"

#define OT_HOST_DEVICE __host__ __device__ /* random.h */

constexpr unsigned PACK = 8, BLOCK_THREADS = 256, ALL_LANES = 0xffffffffu;

/* ---- One element ---- */

__device__ inline float widen(float x)
{
    return x;
}

__device__ inline float widen(__half x)
{
    return __half2float(x);
}

__device__ inline float widen(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}

__device__ inline void narrow(float *out, float x)
{
    *out = x;
}

/* In two statements: gcc shows ThreadSanitizer no store of what a call returns. */
__device__ inline void narrow(__half *out, float x)
{
    __half rounded = __float2half_rn(x);
    *out = rounded;
}

__device__ inline void narrow(__nv_bfloat16 *out, float x)
{
    __nv_bfloat16 rounded = __float2bfloat16_rn(x);
    *out = rounded;
}

/* A product that is rounded before it is added to anything: the compiler may not fuse it. */
__device__ inline float times(float a, float b)
{
    return __fmul_rn(a, b);
}

/* ---- Packs ---- */

struct pack {
    float v[PACK];
};

template <int WORDS> struct alignas(4 * WORDS) vector {
    uint32_t word[WORDS];
};

/* 8 elements of T as they lie in memory: one or two vectors of 16 bytes, or one of 8. */
template <class T> struct raw_pack {
    static constexpr int WORDS = sizeof(T) == 1 ? 2 : 4, VECTORS = sizeof(T) * PACK / (4 * WORDS);
    union {
        vector<WORDS> vectors[VECTORS];
        T element[PACK];
    };
    __device__ raw_pack()
    {
    }
};

/* The elements of an array from p on, `left` of them there (more than 8 too): zeros beyond. `aligned`: p is
 * at a multiple of 16 bytes. */
template <class T> __device__ inline void load_raw(raw_pack<T> &raw, const T *p, size_t left, int aligned)
{
    typedef vector<raw_pack<T>::WORDS> vector_type;
    if (aligned && left >= PACK) {
#pragma unroll
        for (int i = 0; i < raw.VECTORS; i++)
            raw.vectors[i] = ((const vector_type *)(const void *)p)[i];
    } else {
#pragma unroll
        for (int i = 0; i < raw.VECTORS; i++)
            raw.vectors[i] = vector_type();
#pragma unroll
        for (unsigned i = 0; i < PACK; i++)
            if (i < left)
                raw.element[i] = p[i];
    }
    OT_COUNT_READ(sizeof(T) * (left < PACK ? left : PACK));
}

template <class T> __device__ inline void store_raw(T *p, size_t left, int aligned, const raw_pack<T> &raw)
{
    typedef vector<raw_pack<T>::WORDS> vector_type;
    if (aligned && left >= PACK) {
#pragma unroll
        for (int i = 0; i < raw.VECTORS; i++)
            ((vector_type *)(void *)p)[i] = raw.vectors[i];
    } else {
#pragma unroll
        for (unsigned i = 0; i < PACK; i++)
            if (i < left)
                p[i] = raw.element[i];
    }
    OT_COUNT_WRITE(sizeof(T) * (left < PACK ? left : PACK));
}

template <class T> __device__ inline pack load_pack(const T *p, size_t left, int aligned)
{
    raw_pack<T> raw;
    pack x;
    load_raw(raw, p, left, aligned);
#pragma unroll
    for (unsigned i = 0; i < PACK; i++)
        x.v[i] = widen(raw.element[i]);
    return x;
}

template <class T> __device__ inline void store_pack(T *p, size_t left, int aligned, const pack &x)
{
    raw_pack<T> raw;
#pragma unroll
    for (unsigned i = 0; i < PACK; i++)
        narrow(&raw.element[i], x.v[i]);
    store_raw(p, left, aligned, raw);
}

/* Whether a pointer, or rows so many bytes apart, keep packs at multiples of 16 bytes. */
inline int is_aligned(const void *p)
{
    return (uintptr_t)p % 16 == 0;
}

inline int is_aligned(size_t ld, ot_dtype dtype)
{
    return ld * ot_dtype_bytes(dtype) % 16 == 0;
}

/* ---- Sums ---- */

template <class T> __device__ inline T warp_sum(T x)
{
#pragma unroll
    for (int bits = 16; bits > 0; bits /= 2)
        x += __shfl_xor_sync(ALL_LANES, x, bits);
    return x;
}

/* Over a team of 32 threads or a block of that many; the same for all of them. Every thread of the block
 * calls it. */
template <int TEAM, class T> __device__ inline T team_sum(T x)
{
    x = warp_sum(x);
    if (TEAM == 32)
        return x;
    OT_SHARED(T, [TEAM / 32], partial);
    __syncthreads(); /* the previous sum has been read */
    if (threadIdx.x % 32 == 0)
        partial[threadIdx.x / 32] = x;
    __syncthreads();
    T sum = partial[0];
#pragma unroll
    for (int w = 1; w < TEAM / 32; w++)
        sum += partial[w];
    return sum;
}

/* ---- Launches ---- */

template <class F> inline cudaError_t with_dtype(ot_dtype dtype, F function)
{
    switch (dtype) {
    case OT_FP32:
        return function(float());
    case OT_FP16:
        return function(__half());
    case OT_BF16:
        return function(__nv_bfloat16());
    default:
        return cudaErrorInvalidValue;
    }
}

/* op(i, left) for pack i of n elements, of which `left` are left from its first on. */
template <class Op> __global__ void __launch_bounds__(BLOCK_THREADS) each_pack(Op op, size_t n)
{
    size_t i = ((size_t)blockIdx.x * BLOCK_THREADS + threadIdx.x) * PACK;
    if (i < n)
        op(i, n - i);
}

inline unsigned blocks_of(size_t n, size_t each)
{
    return (unsigned)((n + each - 1) / each);
}

template <class Op> inline cudaError_t for_each_pack(cudaStream_t stream, size_t n, Op op)
{
    if (n == 0)
        return cudaSuccess;
    return OT_LAUNCH(each_pack<Op>, blocks_of(n, BLOCK_THREADS * PACK), BLOCK_THREADS, 0, stream, op, n);
}

/* op(row, column, left) for every pack of rows of `width` elements. */
template <class Op>
__global__ void __launch_bounds__(BLOCK_THREADS) each_row_pack(Op op, size_t width, unsigned blocks_a_row)
{
    size_t row = blockIdx.x / blocks_a_row;
    size_t column = ((size_t)(blockIdx.x % blocks_a_row) * blockDim.x + threadIdx.x) * PACK;
    if (column < width)
        op(row, column, width - column);
}

template <class Op>
inline cudaError_t for_each_row_pack(cudaStream_t stream, size_t rows, size_t width, Op op)
{
    if (rows == 0 || width == 0)
        return cudaSuccess;
    size_t threads = (width + PACK - 1) / PACK;
    threads = threads < BLOCK_THREADS ? (threads + 31) / 32 * 32 : BLOCK_THREADS;
    unsigned blocks_a_row = blocks_of(width, threads * PACK);
    if (rows > 0x7fffffff / blocks_a_row)
        return cudaErrorInvalidValue;
    return OT_LAUNCH(each_row_pack<Op>, (unsigned)rows * blocks_a_row, (unsigned)threads, 0, stream, op,
                     width, blocks_a_row);
}

#endif
