/* The fused update of a chunk: everything that one parameter needs, in one pass over memory.
 *
 * A block of OT_MOMENT_BLOCK parameters at a time: what is FP32 in memory is worked on where it is,
 * everything else is widened into buffers that stay in the nearest cache and narrowed from them. So each
 * plane of a chunk is read once and written once, and a format costs one small loop instead of one more
 * variant of every optimizer. */
#include <float.h>
#include <math.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/plane.h"
#include "kernels/cpu/rounding.h"

enum { BLOCK = OT_MOMENT_BLOCK };

/* ---- The formulas of kernels.h, ot_update, over a run ---- */

typedef struct factors {
    float lr, decay, weight_decay; /* decay: lr * weight_decay */
    float beta1, rest1, beta2, rest2;
    float step, root, eps; /* lr/bias1 and 1/sqrt(bias2) */
} factors;

static factors make_factors(const ot_update *u)
{
    const ot_update_step *s = u->step;
    return (factors){
        .lr = s->lr,
        .decay = s->lr * u->weight_decay,
        .weight_decay = u->weight_decay,
        .beta1 = u->beta1,
        .rest1 = 1.0f - u->beta1,
        .beta2 = u->beta2,
        .rest2 = 1.0f - u->beta2,
        .step = s->lr / s->bias1,
        .root = 1.0f / sqrtf(s->bias2),
        .eps = u->eps,
    };
}

/* AdamW takes its decay from the parameter, Adam adds it to the gradient. */
OT_LOOP void adam(const factors *factors_, int decoupled, size_t n, const float *restrict grad,
                  const float *restrict p, float *restrict m, float *restrict v, float *restrict next)
{
    factors f = *factors_;
    for (size_t i = 0; i < n; i++) {
        float g = decoupled ? grad[i] : grad[i] + f.weight_decay * p[i];
        float q = decoupled ? p[i] - f.decay * p[i] : p[i];
        float first = f.beta1 * m[i] + f.rest1 * g;
        float second = f.beta2 * v[i] + f.rest2 * (g * g);
        m[i] = first;
        v[i] = second;
        next[i] = q - f.step * (first / (sqrtf(second) * f.root + f.eps));
    }
}

static void sgd(const factors *factors_, size_t n, const float *restrict grad, const float *restrict p,
                float *restrict m, float *restrict next)
{
    factors f = *factors_;
    for (size_t i = 0; i < n; i++) {
        float momentum = f.beta1 * m[i] + (grad[i] + f.weight_decay * p[i]);
        m[i] = momentum;
        next[i] = p[i] - f.lr * momentum;
    }
}

/* The sign of NaN is NaN. */
static void lion(const factors *factors_, size_t n, const float *restrict grad, const float *restrict p,
                 float *restrict m, float *restrict next)
{
    factors f = *factors_;
    for (size_t i = 0; i < n; i++) {
        float mixed = f.beta1 * m[i] + f.rest1 * grad[i], q = p[i] - f.decay * p[i];
        float sign = mixed > 0.0f ? 1.0f : mixed < 0.0f ? -1.0f : mixed;
        m[i] = f.beta2 * m[i] + f.rest2 * grad[i];
        next[i] = q - f.lr * sign;
    }
}

static void step(ot_optimizer kind, const factors *f, size_t n, const float *grad, const float *p, float *m,
                 float *v, float *next)
{
    if (kind == OT_OPTIMIZER_ADAMW)
        adam(f, 1, n, grad, p, m, v, next);
    else if (kind == OT_OPTIMIZER_ADAM)
        adam(f, 0, n, grad, p, m, v, next);
    else if (kind == OT_OPTIMIZER_SGD)
        sgd(f, n, grad, p, m, next);
    else
        lion(f, n, grad, p, m, next);
    if (f->lr == 0) /* p - 0*x is not always p: -0, inf */
        memcpy(next, p, n * sizeof *p);
}

/* ---- Moments ---- */

/* One moment of the chunk. */
typedef struct moment {
    ot_dtype format;
    int is_square; /* moment2: stored in 8 bits as its root, without a sign */
    void *values;
    float *scales;
} moment;

static float *load_moment(const moment *m, size_t begin, size_t n, float *restrict buffer)
{
    if (m->format == OT_FP32)
        return (float *)m->values + begin;
    if (m->format == OT_BF16) {
        const uint16_t *restrict half = (const uint16_t *)m->values + begin;
        for (size_t i = 0; i < n; i++)
            buffer[i] = ot_widen_bf16(half[i]);
    } else if (m->is_square) {
        const uint8_t *restrict q = (const uint8_t *)m->values + begin;
        float unit = m->scales[begin / BLOCK] / 255.0f;
        for (size_t i = 0; i < n; i++)
            buffer[i] = ((float)q[i] * unit) * ((float)q[i] * unit);
    } else {
        const int8_t *restrict q = (const int8_t *)m->values + begin;
        float unit = m->scales[begin / BLOCK] / 127.0f;
        for (size_t i = 0; i < n; i++)
            buffer[i] = (float)q[i] * unit;
    }
    return buffer;
}

/* By the pattern, so that inf and NaN are the largest. A scale whose reciprocal would be inf counts as 0. */
static float largest_magnitude(size_t n, const float *restrict x)
{
    int32_t most = 0;
    for (size_t i = 0; i < n; i++) {
        int32_t size = (int32_t)(ot_bits(x[i]) & 0x7fffffff);
        most = most > size ? most : size;
    }
    float value = ot_float((uint32_t)most);
    return value < FLT_MIN ? 0.0f : value;
}

/* q = x/scale*limit, rounded down after a random number in [0,1) was added. Signed values are shifted by
 * `limit` meanwhile, so that none is negative; unsigned ones become 0 only if they are. Where the scale is
 * inf or NaN, so is what is read back. */
OT_LOOP void quantize(size_t n, const float *restrict x, const uint32_t *restrict words, float scale,
                      float limit, int is_signed, uint8_t *restrict out)
{
    float inverse = scale > 0.0f ? 1.0f / scale : 0.0f, shift = is_signed ? limit : 0.0f,
          most = limit + shift;
    int32_t offset = (int32_t)shift;
    for (size_t i = 0; i < n; i++) {
        float y = x[i] * inverse * limit + shift + (float)(int32_t)(words[i] >> 8) * 0x1p-24f;
        float least = !is_signed && x[i] > 0.0f ? 1.0f : 0.0f;
        y = y < most ? y : most; /* NaN too */
        y = y > least ? y : least;
        out[i] = (uint8_t)((int32_t)y - offset);
    }
}

static void store_int8(const moment *m, size_t begin, size_t n, const float *restrict x,
                       const uint32_t *restrict words)
{
    uint8_t *q = (uint8_t *)m->values + begin;
    float *scale = &m->scales[begin / BLOCK];
    if (!m->is_square) {
        *scale = largest_magnitude(n, x);
        quantize(n, x, words, *scale, 127.0f, 1, q);
        return;
    }
    float root[BLOCK];
    for (size_t i = 0; i < n; i++)
        root[i] = sqrtf(x[i]);
    *scale = largest_magnitude(n, root);
    quantize(n, root, words, *scale, 255.0f, 0, q);
}

static void store_moment(const moment *m, size_t begin, size_t n, const float *restrict x,
                         const uint32_t *restrict words)
{
    if (m->format == OT_INT8) {
        store_int8(m, begin, n, x, words);
    } else if (m->format == OT_BF16) {
        uint16_t *restrict half = (uint16_t *)m->values + begin;
        for (size_t i = 0; i < n; i++)
            half[i] = ot_round_randomly_bf16(x[i], words[i]);
    }
}

/* ---- The pass ---- */

/* `moments`: one or two. */
static void update_block(const ot_update *u, const factors *f, const moment moments[2], int count,
                         size_t begin, size_t n)
{
    _Alignas(64) float grad[BLOCK], master[BLOCK], next[BLOCK], buffers[2][BLOCK];
    _Alignas(64) uint32_t words[2][BLOCK];
    float *m[2] = {NULL, NULL};
    ot_load_grad(u, begin, n, grad);
    const float *p = ot_load_master(u, begin, n, master);
    for (int i = 0; i < count; i++)
        m[i] = load_moment(&moments[i], begin, n, buffers[i]);
    step(u->kind, f, n, grad, p, m[0], m[1], next);
    ot_store_master(u, begin, n, next);
    if (m[0] == buffers[0] || m[1] == buffers[1]) {
        ot_random_run(u->seed, u->first + begin, u->step->number, n, words[0], words[1]);
        for (int i = 0; i < count; i++)
            store_moment(&moments[i], begin, n, m[i], words[i]);
    }
}

/* Elements: parameters; `begin` is a multiple of OT_MOMENT_BLOCK. */
void OT_VARIANT(ot_update_range)(const void *args, size_t begin, size_t end)
{
    const ot_update *u = args;
    if (u->step->skip)
        return;
    factors f = make_factors(u);
    const moment moments[2] = {{u->moment1_format, 0, u->moment1, u->scale1},
                               {u->moment2_format, 1, u->moment2, u->scale2}};
    int count = u->kind == OT_OPTIMIZER_ADAMW || u->kind == OT_OPTIMIZER_ADAM ? 2 : 1;
    for (size_t i = begin; i < end; i += BLOCK)
        update_block(u, &f, moments, count, i, end - i < BLOCK ? end - i : BLOCK);
}
