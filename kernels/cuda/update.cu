/* The fused update of a chunk: everything that one parameter needs, in one pass over memory. A thread has 8
 * parameters and a warp a block of moments, OT_MOMENT_BLOCK of them. */
#include <float.h>

#include "kernels/cuda/plane.cuh"
#include "kernels/random.h"

static_assert(OT_MOMENT_BLOCK == 32 * PACK, "a warp has one block of moments");

namespace
{

/* ---- The formulas of kernels.h, ot_update ---- */

struct factors {
    float lr, decay, weight_decay; /* decay: lr * weight_decay */
    float beta1, rest1, beta2, rest2;
    float step, root, eps; /* lr/bias1 and 1/sqrt(bias2) */
};

__device__ inline factors make_factors(const ot_update &u)
{
    const ot_update_step &s = *u.step;
    return factors{s.lr,
                   times(s.lr, u.weight_decay),
                   u.weight_decay,
                   u.beta1,
                   1.0f - u.beta1,
                   u.beta2,
                   1.0f - u.beta2,
                   s.lr / s.bias1,
                   1.0f / sqrtf(s.bias2),
                   u.eps};
}

/* AdamW takes its decay from the parameter, Adam adds it to the gradient. */
__device__ inline float adam(const factors &f, bool decoupled, float grad, float p, float *m, float *v)
{
    float g = decoupled ? grad : grad + times(f.weight_decay, p);
    float q = decoupled ? p - times(f.decay, p) : p;
    *m = times(f.beta1, *m) + times(f.rest1, g);
    *v = times(f.beta2, *v) + times(f.rest2, times(g, g));
    return q - times(f.step, *m / (times(sqrtf(*v), f.root) + f.eps));
}

__device__ inline float sgd(const factors &f, float grad, float p, float *m)
{
    *m = times(f.beta1, *m) + (grad + times(f.weight_decay, p));
    return p - times(f.lr, *m);
}

/* The sign of NaN is NaN. */
__device__ inline float lion(const factors &f, float grad, float p, float *m)
{
    float mixed = times(f.beta1, *m) + times(f.rest1, grad), q = p - times(f.decay, p);
    float sign = mixed > 0.0f ? 1.0f : mixed < 0.0f ? -1.0f : mixed;
    *m = times(f.beta2, *m) + times(f.rest2, grad);
    return q - times(f.lr, sign);
}

__device__ inline float step(ot_optimizer kind, const factors &f, float grad, float p, float *m, float *v)
{
    float next = kind == OT_OPTIMIZER_ADAMW  ? adam(f, true, grad, p, m, v)
                 : kind == OT_OPTIMIZER_ADAM ? adam(f, false, grad, p, m, v)
                 : kind == OT_OPTIMIZER_SGD  ? sgd(f, grad, p, m)
                                             : lion(f, grad, p, m);
    return f.lr == 0 ? p : next; /* p - 0*x is not always p: -0, inf */
}

/* ---- Moments ---- */

struct moment {
    ot_dtype format;
    int is_square; /* moment2: stored in 8 bits as its root, without a sign */
    void *values;
    float *scales;
    int aligned;
};

__device__ inline pack load_moment(const moment &m, size_t i, size_t left)
{
    if (m.format != OT_INT8)
        return load_plane(m.format, m.values, i, left, m.aligned);
    raw_pack<uint8_t> q;
    load_raw(q, (const uint8_t *)m.values + i, left, m.aligned);
    float unit = m.scales[i / OT_MOMENT_BLOCK] / (m.is_square ? 255.0f : 127.0f);
    pack x;
#pragma unroll
    for (unsigned k = 0; k < PACK; k++) {
        float value =
            m.is_square ? times((float)q.element[k], unit) : times((float)(int8_t)q.element[k], unit);
        x.v[k] = m.is_square ? times(value, value) : value;
    }
    return x;
}

/* The largest magnitude of the warp's elements, by the pattern, so that inf and NaN are the largest. A scale
 * whose reciprocal would be inf counts as 0. */
__device__ inline float largest_magnitude(const pack &x, size_t left)
{
    int most = 0;
#pragma unroll
    for (unsigned k = 0; k < PACK; k++) {
        int size = (int)(__float_as_uint(x.v[k]) & 0x7fffffff);
        most = k < left && size > most ? size : most;
    }
#pragma unroll
    for (int bits = 16; bits > 0; bits /= 2) {
        int other = __shfl_xor_sync(ALL_LANES, most, bits);
        most = other > most ? other : most;
    }
    float value = __uint_as_float((unsigned)most);
    return value < FLT_MIN ? 0.0f : value;
}

/* q = x/scale*limit, rounded down after a random number in [0,1) was added. Signed values are shifted by
 * `limit` meanwhile; unsigned ones become 0 only if they are. */
__device__ inline uint8_t quantize(float x, uint32_t word, float inverse, float limit, bool is_signed)
{
    float shift = is_signed ? limit : 0.0f, most = limit + shift;
    float y = times(times(x, inverse), limit) + shift + times((float)(int)(word >> 8), 0x1p-24f);
    float least = !is_signed && x > 0.0f ? 1.0f : 0.0f;
    y = y < most ? y : most; /* NaN too */
    y = y > least ? y : least;
    return (uint8_t)((int)y - (int)shift);
}

__device__ inline void store_int8(const moment &m, size_t i, size_t left, pack x, const uint32_t word[PACK])
{
    if (m.is_square) {
#pragma unroll
        for (unsigned k = 0; k < PACK; k++)
            x.v[k] = sqrtf(x.v[k]);
    }
    float scale = largest_magnitude(x, left), inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
    raw_pack<uint8_t> q;
#pragma unroll
    for (unsigned k = 0; k < PACK; k++)
        q.element[k] = quantize(x.v[k], word[k], inverse, m.is_square ? 255.0f : 127.0f, !m.is_square);
    __syncwarp(); /* all lanes have read the scale that the first one replaces */
    if (left == 0)
        return;
    store_raw((uint8_t *)m.values + i, left, m.aligned, q);
    if (threadIdx.x % 32 == 0)
        m.scales[i / OT_MOMENT_BLOCK] = scale;
}

/* Sixteen random bits below the last place that bf16 keeps, then cut; inf and NaN stay, NaN made quiet. */
__device__ inline uint16_t round_randomly_bf16(float x, uint32_t word)
{
    uint32_t u = __float_as_uint(x), size = u & 0x7fffffff;
    uint32_t finite = (u + (word & 0xffff)) >> 16, special = size > 0x7f800000u ? (u >> 16) | 0x40 : u >> 16;
    return (uint16_t)(size < 0x7f800000u ? finite : special);
}

/* Every lane of the warp calls it, those without elements with left = 0. */
__device__ inline void store_moment(const moment &m, size_t i, size_t left, const pack &x,
                                    const uint32_t word[PACK])
{
    if (m.format == OT_INT8) {
        store_int8(m, i, left, x, word);
    } else if (left > 0 && m.format == OT_FP32) {
        store_pack((float *)m.values + i, left, m.aligned, x);
    } else if (left > 0) {
        raw_pack<uint16_t> half;
#pragma unroll
        for (unsigned k = 0; k < PACK; k++)
            half.element[k] = round_randomly_bf16(x.v[k], word[k]);
        store_raw((uint16_t *)m.values + i, left, m.aligned, half);
    }
}

/* ---- The pass ---- */

__global__ void __launch_bounds__(BLOCK_THREADS) update(ot_update u, moment first, moment second, int aligned)
{
    if (u.step->skip)
        return;
    size_t i = ((size_t)blockIdx.x * BLOCK_THREADS + threadIdx.x) * PACK, left = i < u.n ? u.n - i : 0;
    bool has_second = u.kind == OT_OPTIMIZER_ADAMW || u.kind == OT_OPTIMIZER_ADAM;
    factors f = make_factors(u);
    pack p = pack(), m = pack(), v = pack();
    if (left > 0) {
        pack grad = load_grad(u, i, left, aligned);
        p = load_master(u, i, left, aligned);
        m = load_moment(first, i, left);
        if (has_second)
            v = load_moment(second, i, left);
#pragma unroll
        for (unsigned k = 0; k < PACK; k++)
            p.v[k] = step(u.kind, f, grad.v[k], p.v[k], &m.v[k], &v.v[k]);
        store_master(u, i, left, aligned, p);
    }
    uint32_t words[2][PACK] = {{0}};
    if (first.format != OT_FP32 || (has_second && second.format != OT_FP32)) {
#pragma unroll
        for (unsigned k = 0; k < PACK; k++) {
            uint32_t word[4];
            ot_philox(u.seed, u.first + i + k, u.step->number, word);
            words[0][k] = word[0];
            words[1][k] = word[1];
        }
    }
    store_moment(first, i, left, m, words[0]);
    if (has_second)
        store_moment(second, i, left, v, words[1]);
}

int is_moment_format(ot_dtype format)
{
    return format == OT_FP32 || format == OT_BF16 || format == OT_INT8;
}

} // namespace

cudaError_t ot_cuda_update(cudaStream_t stream, const ot_update *args)
{
    const ot_update &u = *args;
    if (u.n == 0)
        return cudaSuccess;
    int has_second = u.kind == OT_OPTIMIZER_ADAMW || u.kind == OT_OPTIMIZER_ADAM;
    if (u.kind >= OT_OPTIMIZER_ADAFACTOR || !is_float(u.grad_dtype) || !is_moment_format(u.moment1_format) ||
        (has_second && !is_moment_format(u.moment2_format)))
        return cudaErrorInvalidValue;
    moment first = {u.moment1_format, 0, u.moment1, u.scale1, is_aligned(u.moment1)};
    moment second = {u.moment2_format, 1, u.moment2, u.scale2, is_aligned(u.moment2)};
    return OT_LAUNCH(update, blocks_of(u.n, BLOCK_THREADS * PACK), BLOCK_THREADS, 0, stream, u, first, second,
                     planes_are_aligned(u));
}
