/* What is computed element by element between the matrix products: rotary positions, SwiGLU, GELU, residual,
 * bias. */
#include "kernels/cuda/common.cuh"

namespace
{

__device__ inline float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

/* ---- Rotary position embedding ---- */

/* A thread turns 8 pairs: elements i .. i+7 of a head with those half a head further. */
template <class T> struct rotate {
    ot_rope a;
    float sign;
    int aligned;
    unsigned packs_a_half;

    __device__ void operator()(size_t n, size_t column, size_t) const
    {
        size_t half = a.HD / 2, number = column / PACK, i = number % packs_a_half * PACK;
        T *x = (T *)a.x + n * a.ld_x + number / packs_a_half * a.HD + i;
        const float *table = a.table + (size_t)a.positions[n] * a.HD + i;
        pack lower = load_pack(x, half - i, aligned), upper = load_pack(x + half, half - i, aligned);
        pack c = load_pack(table, half - i, aligned), s = load_pack(table + half, half - i, aligned);
        pack first, second;
#pragma unroll
        for (unsigned k = 0; k < PACK; k++) {
            first.v[k] = lower.v[k] * c.v[k] - upper.v[k] * (s.v[k] * sign);
            second.v[k] = upper.v[k] * c.v[k] + lower.v[k] * (s.v[k] * sign);
        }
        store_pack(x, half - i, aligned, first);
        store_pack(x + half, half - i, aligned, second);
    }
};

cudaError_t rope(cudaStream_t stream, const ot_rope *args, float sign)
{
    ot_rope a = *args;
    return with_dtype(a.dtype, [=](auto type) {
        using T = decltype(type);
        size_t half = a.HD / 2, packs = (half + PACK - 1) / PACK;
        int aligned = is_aligned(a.x) && is_aligned(a.table) && is_aligned(a.ld_x, a.dtype) &&
                      is_aligned(half, a.dtype) && is_aligned(half, OT_FP32);
        return for_each_row_pack(stream, a.N, a.H * packs * PACK,
                                 rotate<T>{a, sign, aligned, (unsigned)packs});
    });
}

/* ---- SwiGLU ---- */

template <class T> struct swiglu_forward {
    ot_swiglu a;
    int aligned;

    __device__ void operator()(size_t n, size_t i, size_t left) const
    {
        pack gate = load_pack((const T *)a.gate + n * a.ld_gate + i, left, aligned);
        pack up = load_pack((const T *)a.up + n * a.ld_gate + i, left, aligned), out;
#pragma unroll
        for (unsigned k = 0; k < PACK; k++)
            out.v[k] = gate.v[k] * sigmoid(gate.v[k]) * up.v[k];
        store_pack((T *)a.out + n * a.ld_out + i, left, aligned, out);
    }
};

template <class T> struct swiglu_backward {
    ot_swiglu a;
    int aligned;

    __device__ void operator()(size_t n, size_t i, size_t left) const
    {
        pack gate = load_pack((const T *)a.gate + n * a.ld_gate + i, left, aligned);
        pack up = load_pack((const T *)a.up + n * a.ld_gate + i, left, aligned);
        pack dout = load_pack((const T *)a.dout + n * a.ld_out + i, left, aligned), dgate, dup;
#pragma unroll
        for (unsigned k = 0; k < PACK; k++) {
            float x = gate.v[k], d = dout.v[k], s = sigmoid(x);
            dgate.v[k] = d * up.v[k] * s * (1.0f + x * (1.0f - s));
            dup.v[k] = d * x * s;
        }
        store_pack((T *)a.dgate + n * a.ld_dgate + i, left, aligned, dgate);
        store_pack((T *)a.dup + n * a.ld_dgate + i, left, aligned, dup);
    }
};

/* ---- GELU ---- */

/* (1 + tanh(u))/2 = sigmoid(2u), with u = sqrt(2/pi) (x + 0.044715 x^3). */
__device__ inline float tanh_gate(float x)
{
    return sigmoid(1.59576912161f * (x + 0.044715f * (x * x * x)));
}

/* The normal distribution function, by erfc: exact in the lower tail, too. */
__device__ inline float normal_cdf(float x)
{
    return 0.5f * erfcf(-0.707106781f * x);
}

__device__ inline float gelu_gate(ot_gelu_kind kind, float x)
{
    return kind == OT_GELU_TANH ? tanh_gate(x) : normal_cdf(x);
}

__device__ inline float gelu_slope(ot_gelu_kind kind, float x)
{
    if (kind == OT_GELU_ERF)
        return normal_cdf(x) + x * 0.398942280401f * expf(-0.5f * (x * x));
    float s = tanh_gate(x);
    return s + x * s * (1.0f - s) * (1.59576912161f * (1.0f + 0.134145f * (x * x)));
}

template <class T> struct gelu_forward {
    ot_gelu a;
    int aligned;

    __device__ void operator()(size_t i, size_t left) const
    {
        pack x = load_pack((const T *)a.x + i, left, aligned);
#pragma unroll
        for (unsigned k = 0; k < PACK; k++)
            x.v[k] *= gelu_gate(a.kind, x.v[k]);
        store_pack((T *)a.y + i, left, aligned, x);
    }
};

template <class T> struct gelu_backward {
    ot_gelu a;
    int aligned;

    __device__ void operator()(size_t i, size_t left) const
    {
        pack x = load_pack((const T *)a.x + i, left, aligned);
        pack d = load_pack((const T *)a.dy + i, left, aligned);
#pragma unroll
        for (unsigned k = 0; k < PACK; k++)
            d.v[k] *= gelu_slope(a.kind, x.v[k]);
        store_pack((T *)a.dx + i, left, aligned, d);
    }
};

/* ---- Sums of two ---- */

template <class T> struct add {
    ot_residual a;
    int aligned;

    __device__ void operator()(size_t i, size_t left) const
    {
        pack x = load_pack((const T *)a.a + i, left, aligned),
             y = load_pack((const T *)a.b + i, left, aligned);
#pragma unroll
        for (unsigned k = 0; k < PACK; k++)
            x.v[k] += y.v[k];
        store_pack((T *)a.out + i, left, aligned, x);
    }
};

template <class T, class Out> struct put_bias {
    ot_matmul a;
    int aligned;

    __device__ void operator()(size_t n, size_t i, size_t left) const
    {
        Out *out = (Out *)a.out + n * a.ld_out + i;
        pack bias = load_pack((const T *)a.bias + i, left, aligned);
        if (a.accumulate) {
            pack sum = load_pack(out, left, aligned);
#pragma unroll
            for (unsigned k = 0; k < PACK; k++)
                bias.v[k] += sum.v[k];
        }
        store_pack(out, left, aligned, bias);
    }
};

} // namespace

cudaError_t ot_cuda_rope_forward(cudaStream_t stream, const ot_rope *args)
{
    return rope(stream, args, 1.0f);
}

cudaError_t ot_cuda_rope_backward(cudaStream_t stream, const ot_rope *args)
{
    return rope(stream, args, -1.0f);
}

cudaError_t ot_cuda_swiglu_forward(cudaStream_t stream, const ot_swiglu *args)
{
    ot_swiglu a = *args;
    return with_dtype(a.dtype, [=](auto type) {
        int aligned = is_aligned(a.gate) && is_aligned(a.up) && is_aligned(a.out) &&
                      is_aligned(a.ld_gate, a.dtype) && is_aligned(a.ld_out, a.dtype);
        return for_each_row_pack(stream, a.N, a.F, swiglu_forward<decltype(type)>{a, aligned});
    });
}

cudaError_t ot_cuda_swiglu_backward(cudaStream_t stream, const ot_swiglu *args)
{
    ot_swiglu a = *args;
    return with_dtype(a.dtype, [=](auto type) {
        int aligned = is_aligned(a.gate) && is_aligned(a.up) && is_aligned(a.dout) && is_aligned(a.dgate) &&
                      is_aligned(a.dup) && is_aligned(a.ld_gate, a.dtype) && is_aligned(a.ld_out, a.dtype) &&
                      is_aligned(a.ld_dgate, a.dtype);
        return for_each_row_pack(stream, a.N, a.F, swiglu_backward<decltype(type)>{a, aligned});
    });
}

cudaError_t ot_cuda_gelu_forward(cudaStream_t stream, const ot_gelu *args)
{
    ot_gelu a = *args;
    return with_dtype(a.dtype, [=](auto type) {
        return for_each_pack(stream, a.n,
                             gelu_forward<decltype(type)>{a, is_aligned(a.x) && is_aligned(a.y)});
    });
}

cudaError_t ot_cuda_gelu_backward(cudaStream_t stream, const ot_gelu *args)
{
    ot_gelu a = *args;
    return with_dtype(a.dtype, [=](auto type) {
        int aligned = is_aligned(a.x) && is_aligned(a.dy) && is_aligned(a.dx);
        return for_each_pack(stream, a.n, gelu_backward<decltype(type)>{a, aligned});
    });
}

cudaError_t ot_cuda_residual_add(cudaStream_t stream, const ot_residual *args)
{
    ot_residual a = *args;
    return with_dtype(a.dtype, [=](auto type) {
        int aligned = is_aligned(a.a) && is_aligned(a.b) && is_aligned(a.out);
        return for_each_pack(stream, a.n, add<decltype(type)>{a, aligned});
    });
}

cudaError_t ot_cuda_add_bias(cudaStream_t stream, const ot_matmul *args)
{
    ot_matmul a = *args;
    int aligned = is_aligned(a.bias) && is_aligned(a.out) && is_aligned(a.ld_out, a.out_dtype);
    return with_dtype(a.dtype, [=](auto type) {
        using T = decltype(type);
        if (a.out_dtype == OT_FP32)
            return for_each_row_pack(stream, a.N, a.OC, put_bias<T, float>{a, aligned});
        if (a.out_dtype == a.dtype)
            return for_each_row_pack(stream, a.N, a.OC, put_bias<T, T>{a, aligned});
        return cudaErrorInvalidValue;
    });
}
