/* What is computed element by element between the matrix products: rotary positions, SwiGLU, GELU,
 * residual. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vector.h"

/* ---- Rotary position embedding ---- */

OT_INLINE void rotate_head(ot_dtype dtype, void *x, const float *cosines, const float *sines, size_t half,
                           float sign)
{
    void *upper = ot_at_mutable(dtype, x, half);
    for (size_t i = 0; i < half; i += OT_LANES) {
        ot_vf c = ot_load(OT_FP32, cosines, i, half), s = ot_load(OT_FP32, sines, i, half) * sign;
        ot_vf a = ot_load(dtype, x, i, half), b = ot_load(dtype, upper, i, half);
        ot_store(dtype, x, i, half, a * c - b * s);
        ot_store(dtype, upper, i, half, b * c + a * s);
    }
}

OT_INLINE void rotate_rows(ot_dtype dtype, const ot_rope *a, size_t begin, size_t end, float sign)
{
    size_t half = a->HD / 2;
    for (size_t n = begin; n < end; n++) {
        const float *cosines = a->table + (size_t)a->positions[n] * a->HD;
        for (size_t h = 0; h < a->H; h++)
            rotate_head(dtype, ot_at_mutable(dtype, a->x, n * a->ld_x + h * a->HD), cosines, cosines + half,
                        half, sign);
    }
}

/* Elements: rows. */
void OT_VARIANT(ot_rope_forward)(const void *args, size_t begin, size_t end)
{
    const ot_rope *a = args;
    OT_WITH_DTYPE(a->dtype, rotate_rows, a, begin, end, 1.0f);
}

void OT_VARIANT(ot_rope_backward)(const void *args, size_t begin, size_t end)
{
    const ot_rope *a = args;
    OT_WITH_DTYPE(a->dtype, rotate_rows, a, begin, end, -1.0f);
}

/* ---- SwiGLU ---- */

OT_INLINE void swiglu_forward(ot_dtype dtype, const ot_swiglu *a, size_t begin, size_t end)
{
    for (size_t n = begin; n < end; n++) {
        const void *gate = ot_at(dtype, a->gate, n * a->ld_gate), *up = ot_at(dtype, a->up, n * a->ld_gate);
        void *out = ot_at_mutable(dtype, a->out, n * a->ld_out);
        for (size_t i = 0; i < a->F; i += OT_LANES) {
            ot_vf x = ot_load(dtype, gate, i, a->F);
            ot_store(dtype, out, i, a->F, x * ot_sigmoid(x) * ot_load(dtype, up, i, a->F));
        }
    }
}

/* Elements: rows. */
void OT_VARIANT(ot_swiglu_forward)(const void *args, size_t begin, size_t end)
{
    const ot_swiglu *a = args;
    OT_WITH_DTYPE(a->dtype, swiglu_forward, a, begin, end);
}

OT_INLINE void swiglu_backward(ot_dtype dtype, const ot_swiglu *a, size_t begin, size_t end)
{
    for (size_t n = begin; n < end; n++) {
        const void *gate = ot_at(dtype, a->gate, n * a->ld_gate), *up = ot_at(dtype, a->up, n * a->ld_gate);
        const void *dout = ot_at(dtype, a->dout, n * a->ld_out);
        void *dgate = ot_at_mutable(dtype, a->dgate, n * a->ld_dgate);
        void *dup = ot_at_mutable(dtype, a->dup, n * a->ld_dgate);
        for (size_t i = 0; i < a->F; i += OT_LANES) {
            ot_vf x = ot_load(dtype, gate, i, a->F), u = ot_load(dtype, up, i, a->F);
            ot_vf d = ot_load(dtype, dout, i, a->F), s = ot_sigmoid(x);
            ot_store(dtype, dgate, i, a->F, d * u * s * (1.0f + x * (1.0f - s)));
            ot_store(dtype, dup, i, a->F, d * x * s);
        }
    }
}

/* Elements: rows. */
void OT_VARIANT(ot_swiglu_backward)(const void *args, size_t begin, size_t end)
{
    const ot_swiglu *a = args;
    OT_WITH_DTYPE(a->dtype, swiglu_backward, a, begin, end);
}

/* ---- GELU ---- */

/* (1 + tanh(u))/2 = sigmoid(2u), with u = sqrt(2/pi) (x + 0.044715 x^3). */
OT_INLINE ot_vf gelu_tanh_gate(ot_vf x)
{
    return ot_sigmoid(1.59576912161f * (x + 0.044715f * (x * x * x)));
}

OT_INLINE void gelu_forward(ot_dtype dtype, const ot_gelu *a, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i += OT_LANES) {
        ot_vf x = ot_load(dtype, a->x, i, end);
        ot_vf gate = a->kind == OT_GELU_TANH ? gelu_tanh_gate(x) : ot_normal_cdf(x);
        ot_store(dtype, a->y, i, end, x * gate);
    }
}

/* Elements: those of x. */
void OT_VARIANT(ot_gelu_forward)(const void *args, size_t begin, size_t end)
{
    const ot_gelu *a = args;
    OT_WITH_DTYPE(a->dtype, gelu_forward, a, begin, end);
}

OT_INLINE ot_vf gelu_tanh_slope(ot_vf x)
{
    ot_vf s = gelu_tanh_gate(x);
    return s + x * s * (1.0f - s) * (1.59576912161f * (1.0f + 0.134145f * (x * x)));
}

OT_INLINE ot_vf gelu_erf_slope(ot_vf x)
{
    return ot_normal_cdf(x) + x * 0.398942280401f * ot_exp(-0.5f * (x * x));
}

OT_INLINE void gelu_backward(ot_dtype dtype, const ot_gelu *a, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i += OT_LANES) {
        ot_vf x = ot_load(dtype, a->x, i, end);
        ot_vf slope = a->kind == OT_GELU_TANH ? gelu_tanh_slope(x) : gelu_erf_slope(x);
        ot_store(dtype, a->dx, i, end, ot_load(dtype, a->dy, i, end) * slope);
    }
}

/* Elements: those of x. */
void OT_VARIANT(ot_gelu_backward)(const void *args, size_t begin, size_t end)
{
    const ot_gelu *a = args;
    OT_WITH_DTYPE(a->dtype, gelu_backward, a, begin, end);
}

/* ---- Residual ---- */

OT_INLINE void add(ot_dtype dtype, const ot_residual *a, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i += OT_LANES)
        ot_store(dtype, a->out, i, end, ot_load(dtype, a->a, i, end) + ot_load(dtype, a->b, i, end));
}

/* Elements: those of out. */
void OT_VARIANT(ot_residual_add)(const void *args, size_t begin, size_t end)
{
    const ot_residual *a = args;
    OT_WITH_DTYPE(a->dtype, add, a, begin, end);
}
