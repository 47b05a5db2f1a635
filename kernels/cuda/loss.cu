/* Cross-entropy over rows of logits, in place: a block of threads goes through its row twice, the second time
 * out of the cache. */
#include "kernels/cuda/common.cuh"

namespace
{

constexpr unsigned LOSS_THREADS = 512;

/* The largest of some logits, and the sum of exp(x - max): one pair, or two made one. */
struct running {
    float max, sum;
};

__device__ inline float weight_of(float max, float of)
{
    return max == of ? 1.0f : expf(max - of); /* inf - inf is NaN */
}

__device__ inline running merge(running a, running b)
{
    float max = a.max > b.max || b.max != b.max ? a.max : b.max;
    return running{max, a.sum * weight_of(a.max, max) + b.sum * weight_of(b.max, max)};
}

__device__ inline running merge_lanes(running x)
{
#pragma unroll
    for (int bits = 16; bits > 0; bits /= 2)
        x = merge(x,
                  running{__shfl_xor_sync(ALL_LANES, x.max, bits), __shfl_xor_sync(ALL_LANES, x.sum, bits)});
    return x;
}

/* The threads' pairs made one, the same for all. */
__device__ inline running merge_block(running x)
{
    OT_SHARED(running, [LOSS_THREADS / 32], warps);
    x = merge_lanes(x);
    if (threadIdx.x % 32 == 0)
        warps[threadIdx.x / 32] = x;
    __syncthreads();
    x = warps[0];
    for (unsigned w = 1; w < LOSS_THREADS / 32; w++)
        x = merge(x, warps[w]);
    return x;
}

__device__ inline running add_pack(running r, const pack &x, size_t left)
{
    float max = r.max;
#pragma unroll
    for (unsigned k = 0; k < PACK; k++)
        max = k < left && x.v[k] > max ? x.v[k] : max;
    r.sum *= weight_of(r.max, max);
    r.max = max;
    float base = max == -INFINITY ? 0.0f : max; /* others may have more */
#pragma unroll
    for (unsigned k = 0; k < PACK; k++)
        r.sum += k < left ? expf(x.v[k] - base) : 0.0f;
    return r;
}

template <class T>
__device__ inline void store_row(const ot_cross_entropy &a, T *x, int aligned, int32_t target, running r)
{
    float inverse = 1.0f / r.sum;
    for (size_t i = threadIdx.x * PACK; i < a.V; i += LOSS_THREADS * PACK) {
        pack p = load_pack(x + i, a.V - i, aligned);
#pragma unroll
        for (unsigned k = 0; k < PACK; k++) {
            float value = expf(p.v[k] - r.max) * inverse;
            p.v[k] = (value - (i + k == (size_t)target ? 1.0f : 0.0f)) * a.scale;
        }
        store_pack(x + i, a.V - i, aligned, p);
    }
}

/* A masked row, or one whose target is none. */
template <class T> __device__ inline void fill_row(const ot_cross_entropy &a, T *x, int aligned, float value)
{
    pack p;
#pragma unroll
    for (unsigned k = 0; k < PACK; k++)
        p.v[k] = value;
    for (size_t i = threadIdx.x * PACK; a.backward && i < a.V; i += LOSS_THREADS * PACK)
        store_pack(x + i, a.V - i, aligned, p);
}

template <class T>
__global__ void __launch_bounds__(LOSS_THREADS) cross_entropy(ot_cross_entropy a, int aligned)
{
    size_t n = blockIdx.x;
    T *x = (T *)a.logits + n * a.ld_logits;
    int32_t target = a.targets[n];
    if (target < 0 || (size_t)target >= a.V) {
        float value = target == -1 ? 0.0f : NAN;
        fill_row(a, x, aligned, value);
        if (threadIdx.x == 0)
            a.losses[n] = value;
        return;
    }
    float at_target = widen(x[target]);
    running r = {-INFINITY, 0};
    for (size_t i = threadIdx.x * PACK; i < a.V; i += LOSS_THREADS * PACK)
        r = add_pack(r, load_pack(x + i, a.V - i, aligned), a.V - i);
    r = merge_block(r); /* by now everybody has read the logit of the target */
    if (threadIdx.x == 0)
        a.losses[n] = isfinite(r.sum) && r.sum > 0 ? logf(r.sum) + (r.max - at_target) : NAN;
    if (a.backward)
        store_row(a, x, aligned, target, r);
}

} // namespace

cudaError_t ot_cuda_cross_entropy(cudaStream_t stream, const ot_cross_entropy *args)
{
    ot_cross_entropy a = *args;
    if (a.N == 0)
        return cudaSuccess;
    return with_dtype(a.dtype, [=](auto type) {
        int aligned = is_aligned(a.logits) && is_aligned(a.ld_logits, a.dtype);
        return OT_LAUNCH(cross_entropy<decltype(type)>, (unsigned)a.N, LOSS_THREADS, 0, stream, a, aligned);
    });
}
