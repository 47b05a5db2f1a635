/* Adafactor: second moments of rows and columns in place of one for every parameter (kernels.h,
 * ot_adafactor). Sums are taken in the lanes of the CPU device, for the same bytes. */
#include "kernels/cuda/plane.cuh"

namespace
{

constexpr unsigned LANES = 16; /* of a sum, element i in lane i mod 16 */

/* ---- One element at a time ---- */

__device__ inline float grad_at(const ot_update &u, size_t i)
{
    float g = u.grad_dtype == OT_FP32   ? ((const float *)u.grad)[i]
              : u.grad_dtype == OT_BF16 ? widen(((const __nv_bfloat16 *)u.grad)[i])
                                        : widen(((const __half *)u.grad)[i]);
    return times(g, u.step->grad_scale);
}

/* u = g / sqrt(r/row_mean * c), the roots taken one by one, since the product of a small r and a small c
 * would be 0. */
__device__ inline float scale_grad(const ot_adafactor &a, size_t i, float grad)
{
    size_t element = a.first_column + i;
    float root = a.rows == 1 ? 1.0f : sqrtf(a.r[a.first_row + element / a.cols] / a.row_mean[0]);
    return grad / times(root, sqrtf(a.c[element % a.cols]));
}

/* The lanes of half a warp added up, j and j+8, then j and j+4, and so on: in lane 0. */
__device__ inline double total(double sum)
{
#pragma unroll
    for (unsigned width = LANES / 2; width > 0; width /= 2)
        sum += __shfl_down_sync(ALL_LANES, sum, width);
    return sum;
}

/* ---- Statistics ---- */

/* Half a warp for each row of the chunk. */
__global__ void __launch_bounds__(BLOCK_THREADS) row_statistics(ot_adafactor a)
{
    const ot_update &u = a.update;
    if (u.step->skip)
        return;
    size_t row = ((size_t)blockIdx.x * BLOCK_THREADS + threadIdx.x) / LANES;
    int is_there = row < u.n / a.cols;
    double sum = 0;
    for (size_t j = threadIdx.x % LANES; is_there && j < a.cols; j += LANES) {
        double g = (double)grad_at(u, row * a.cols + j);
        sum += g * g;
    }
    sum = total(sum);
    if (!is_there || threadIdx.x % LANES != 0)
        return;
    float beta2 = u.step->beta2_adafactor, average = (float)(sum / (double)a.cols + (double)a.eps1);
    float *r = &a.r[a.first_row + row];
    *r = times(beta2, *r) + times(1.0f - beta2, average);
}

/* A thread for each column; rows one after the other, so that chunks of rows add up as the whole does. */
__global__ void __launch_bounds__(BLOCK_THREADS) column_sums(ot_adafactor a)
{
    const ot_update &u = a.update;
    size_t j = (size_t)blockIdx.x * BLOCK_THREADS + threadIdx.x;
    if (u.step->skip || j >= a.cols)
        return;
    float sum = a.column_sums[j];
#pragma unroll 8
    for (size_t i = j; i < u.n; i += a.cols) {
        float g = grad_at(u, i);
        sum += times(g, g) + a.eps1;
    }
    a.column_sums[j] = sum;
}

__global__ void __launch_bounds__(BLOCK_THREADS) column_moments(ot_adafactor a)
{
    const ot_update &u = a.update;
    size_t j = (size_t)blockIdx.x * BLOCK_THREADS + threadIdx.x;
    if (u.step->skip || j >= a.cols)
        return;
    float beta2 = u.step->beta2_adafactor;
    a.c[j] = times(beta2, a.c[j]) + times(1.0f - beta2, a.column_sums[j] / (float)a.rows);
}

__global__ void __launch_bounds__(32) row_mean(ot_adafactor a)
{
    if (a.update.step->skip)
        return;
    double sum = 0;
    for (size_t i = threadIdx.x % LANES; i < a.rows; i += LANES)
        sum += (double)a.r[i];
    sum = total(sum);
    if (threadIdx.x == 0)
        a.row_mean[0] = (float)(sum / (double)a.rows);
}

/* ---- The update ---- */

/* A block of threads for each OT_SUM_BLOCK elements: all of them scale, the lanes add. */
__global__ void __launch_bounds__(BLOCK_THREADS) square_blocks(ot_adafactor a)
{
    constexpr unsigned TILE = 2048;
    OT_SHARED(float, [TILE], tile);
    const ot_update &u = a.update;
    if (u.step->skip)
        return;
    size_t begin = (size_t)blockIdx.x * OT_SUM_BLOCK;
    size_t end = begin + OT_SUM_BLOCK < u.n ? begin + OT_SUM_BLOCK : u.n;
    double sum = 0;
    for (; begin < end; begin += TILE) {
        for (unsigned k = threadIdx.x; k < TILE; k += BLOCK_THREADS)
            tile[k] = begin + k < end ? scale_grad(a, begin + k, grad_at(u, begin + k)) : 0.0f;
        __syncthreads();
        for (unsigned k = threadIdx.x; threadIdx.x < LANES && k < TILE; k += LANES)
            sum += (double)tile[k] * (double)tile[k];
        __syncthreads();
    }
    if (threadIdx.x >= 32)
        return;
    sum = total(sum);
    if (threadIdx.x == 0)
        a.partials[blockIdx.x] = sum;
}

struct apply {
    ot_adafactor a;
    int aligned;

    __device__ void operator()(size_t i, size_t left) const
    {
        const ot_update &u = a.update;
        if (u.step->skip)
            return;
        float rms = (float)sqrt(a.square_sum[0] / ((double)a.rows * (double)a.cols));
        float decay = times(u.step->lr, u.weight_decay), rate = u.step->lr / (rms <= 1.0f ? 1.0f : rms);
        pack g = load_grad(u, i, left, aligned), p = load_master(u, i, left, aligned);
#pragma unroll
        for (unsigned k = 0; k < PACK; k++)
            if (k < left && u.step->lr != 0) /* p - 0*x is not always p: -0, inf */
                p.v[k] = (p.v[k] - times(decay, p.v[k])) - times(rate, scale_grad(a, i + k, g.v[k]));
        store_master(u, i, left, aligned, p);
    }
};

} // namespace

cudaError_t ot_cuda_adafactor(cudaStream_t stream, const ot_adafactor *args)
{
    const ot_adafactor &a = *args;
    size_t n = a.update.n;
    if (a.cols == 0 || (n == 0 && a.pass != OT_ADAFACTOR_COLUMNS))
        return cudaSuccess;
    if (!is_float(a.update.grad_dtype))
        return cudaErrorInvalidValue;
    unsigned column_blocks = blocks_of(a.cols, BLOCK_THREADS);
    cudaError_t error = cudaSuccess;
    switch (a.pass) {
    case OT_ADAFACTOR_STATS:
        if (a.rows > 1)
            error = OT_LAUNCH(row_statistics, blocks_of(n / a.cols, BLOCK_THREADS / LANES), BLOCK_THREADS, 0,
                              stream, a);
        return error != cudaSuccess ? error
                                    : OT_LAUNCH(column_sums, column_blocks, BLOCK_THREADS, 0, stream, a);
    case OT_ADAFACTOR_COLUMNS:
        error = OT_LAUNCH(column_moments, column_blocks, BLOCK_THREADS, 0, stream, a);
        return error != cudaSuccess || a.rows <= 1 ? error : OT_LAUNCH(row_mean, 1, 32, 0, stream, a);
    case OT_ADAFACTOR_RMS:
        return OT_LAUNCH(square_blocks, (unsigned)ot_sum_blocks(n), BLOCK_THREADS, 0, stream, a);
    case OT_ADAFACTOR_APPLY:
        return for_each_pack(stream, n, apply{a, planes_are_aligned(a.update)});
    }
    return cudaErrorInvalidValue;
}
