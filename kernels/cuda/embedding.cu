/* Embedding: rows of a table by token, and their gradient.
 *
 * Backward without float atomics: the positions are put into buckets, one for each token, by counting; within
 * a bucket they are ranked, so that the order in which threads happened to arrive is forgotten; then each
 * bucket's rows are added in ascending order by the threads that own the columns. */
#include "kernels/cuda/common.cuh"

namespace
{

constexpr unsigned SCAN_THREADS = 1024;

template <class T> struct gather_rows {
    ot_embedding a;
    int aligned;

    __device__ void operator()(size_t n, size_t i, size_t left) const
    {
        T *out = (T *)a.out + n * a.C + i;
        int32_t token = a.tokens[n];
        pack x;
        if (token >= 0 && (size_t)token < a.V) {
            x = load_pack((const T *)a.table + (size_t)token * a.C + i, left, aligned);
        } else {
#pragma unroll
            for (unsigned k = 0; k < PACK; k++)
                x.v[k] = NAN;
        }
        if (a.add) {
            pack before = load_pack(out, left, aligned);
#pragma unroll
            for (unsigned k = 0; k < PACK; k++)
                x.v[k] += before.v[k];
        }
        store_pack(out, left, aligned, x);
    }
};

/* The parts of the workspace. Buckets of tokens one after the other: `start` where each begins, V of them and
 * their end; `filled` how many positions have been put into it. `positions` as they arrived, `sorted` with
 * each bucket in ascending order. */
struct buckets {
    uint32_t *start, *filled, *positions, *sorted;
};

buckets find_buckets(const ot_embedding &a)
{
    uint32_t *base = (uint32_t *)a.workspace;
    return buckets{base, base + a.V + 1, base + 2 * a.V + 1, base + 2 * a.V + 1 + a.N};
}

__device__ inline int is_token(const ot_embedding &a, int32_t token)
{
    return token >= 0 && (size_t)token < a.V;
}

__global__ void __launch_bounds__(BLOCK_THREADS) clear(uint32_t *words, size_t n)
{
    size_t i = (size_t)blockIdx.x * BLOCK_THREADS + threadIdx.x;
    if (i < n)
        words[i] = 0;
}

/* The number of positions of token t, in start[t+1]. */
__global__ void __launch_bounds__(BLOCK_THREADS) count_tokens(ot_embedding a, buckets b)
{
    size_t n = (size_t)blockIdx.x * BLOCK_THREADS + threadIdx.x;
    if (n < a.N && is_token(a, a.tokens[n]))
        atomicAdd(&b.start[a.tokens[n] + 1], 1u);
}

/* Counts to starts, by one block: each thread a run of tokens. */
__global__ void __launch_bounds__(SCAN_THREADS) sum_counts(ot_embedding a, buckets b)
{
    OT_SHARED(uint32_t, [SCAN_THREADS], totals);
    size_t each = (a.V + SCAN_THREADS - 1) / SCAN_THREADS, begin = threadIdx.x * each;
    size_t end = begin + each < a.V ? begin + each : a.V;
    uint32_t sum = 0;
    for (size_t t = begin; t < end; t++)
        sum += b.start[t + 1];
    totals[threadIdx.x] = sum;
    __syncthreads();
    for (unsigned distance = 1; distance < SCAN_THREADS; distance *= 2) {
        uint32_t before = threadIdx.x >= distance ? totals[threadIdx.x - distance] : 0;
        __syncthreads();
        totals[threadIdx.x] += before;
        __syncthreads();
    }
    sum = totals[threadIdx.x] - sum;
    for (size_t t = begin; t < end; t++) {
        sum += b.start[t + 1];
        b.start[t + 1] = sum;
    }
}

__global__ void __launch_bounds__(BLOCK_THREADS) fill_buckets(ot_embedding a, buckets b)
{
    size_t n = (size_t)blockIdx.x * BLOCK_THREADS + threadIdx.x;
    if (n >= a.N || !is_token(a, a.tokens[n]))
        return;
    int32_t token = a.tokens[n];
    b.positions[b.start[token] + atomicAdd(&b.filled[token], 1u)] = (uint32_t)n;
}

/* A position's place in its bucket is the number of those before it. */
__global__ void __launch_bounds__(BLOCK_THREADS) sort_buckets(ot_embedding a, buckets b)
{
    size_t n = (size_t)blockIdx.x * BLOCK_THREADS + threadIdx.x;
    if (n >= a.N || !is_token(a, a.tokens[n]))
        return;
    int32_t token = a.tokens[n];
    uint32_t rank = 0, end = b.start[token + 1];
    for (uint32_t i = b.start[token]; i < end; i++)
        rank += b.positions[i] < n;
    b.sorted[b.start[token] + rank] = (uint32_t)n;
}

/* Row n stands for the bucket of its token if it is the first in it. */
template <class T> struct add_rows {
    ot_embedding a;
    buckets b;
    int aligned;

    __device__ void operator()(size_t n, size_t i, size_t left) const
    {
        int32_t token = a.tokens[n];
        if (!is_token(a, token) || b.sorted[b.start[token]] != n)
            return;
        float *row = a.dtable + (size_t)token * a.C + i;
        pack sum = load_pack(row, left, aligned);
        for (uint32_t k = b.start[token], end = b.start[token + 1]; k < end; k++) {
            pack x = load_pack((const T *)a.dout + (size_t)b.sorted[k] * a.C + i, left, aligned);
#pragma unroll
            for (unsigned j = 0; j < PACK; j++)
                sum.v[j] += x.v[j];
        }
        store_pack(row, left, aligned, sum);
    }
};

cudaError_t sort_positions(cudaStream_t stream, const ot_embedding &a, const buckets &b)
{
    unsigned blocks = blocks_of(a.N, BLOCK_THREADS);
    cudaError_t error = OT_LAUNCH(clear, blocks_of(2 * a.V + 1, BLOCK_THREADS), BLOCK_THREADS, 0, stream,
                                  b.start, 2 * a.V + 1);
    if (error == cudaSuccess)
        error = OT_LAUNCH(count_tokens, blocks, BLOCK_THREADS, 0, stream, a, b);
    if (error == cudaSuccess)
        error = OT_LAUNCH(sum_counts, 1, SCAN_THREADS, 0, stream, a, b);
    if (error == cudaSuccess)
        error = OT_LAUNCH(fill_buckets, blocks, BLOCK_THREADS, 0, stream, a, b);
    if (error == cudaSuccess)
        error = OT_LAUNCH(sort_buckets, blocks, BLOCK_THREADS, 0, stream, a, b);
    return error;
}

} // namespace

cudaError_t ot_cuda_embedding_forward(cudaStream_t stream, const ot_embedding *args)
{
    ot_embedding a = *args;
    return with_dtype(a.dtype, [=](auto type) {
        int aligned = is_aligned(a.table) && is_aligned(a.out) && is_aligned(a.C, a.dtype);
        return for_each_row_pack(stream, a.N, a.C, gather_rows<decltype(type)>{a, aligned});
    });
}

cudaError_t ot_cuda_embedding_backward(cudaStream_t stream, const ot_embedding *args)
{
    ot_embedding a = *args;
    if (a.N == 0 || a.C == 0)
        return cudaSuccess;
    buckets b = find_buckets(a);
    return with_dtype(a.dtype, [=](auto type) {
        cudaError_t error = sort_positions(stream, a, b);
        if (error != cudaSuccess)
            return error;
        int aligned = is_aligned(a.dout) && is_aligned(a.dtable) && is_aligned(a.C, a.dtype) &&
                      is_aligned(a.C, OT_FP32);
        return for_each_row_pack(stream, a.N, a.C, add_rows<decltype(type)>{a, b, aligned});
    });
}

uint64_t ot_cuda_embedding_workspace(const ot_embedding *args)
{
    return (2 * (uint64_t)args->V + 1 + 2 * (uint64_t)args->N) * sizeof(uint32_t);
}
