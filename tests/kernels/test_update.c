/* The optimizers' updates: every optimizer and format against a scalar reference, bit for bit; closed forms;
 * the split master; what 8-bit and bf16 moments cost; and what must change nothing. Everything runs in every
 * instruction set and on several numbers of threads. The formulas themselves are checked against PyTorch in
 * test_golden.c. */
#include <math.h>
#include <string.h>

#include "kernels/random.h"
#include "tests/kernels/chunk.h"
#include "tests/support/test.h"

static void run_chunk(const ot_kernels *kernels, ot_stream *stream, void *context)
{
    const chunk *p = context;
    size_t size = p->pieces > 0 ? p->pieces : p->u.n;
    for (size_t k = 0; k < p->steps; k++)
        for (size_t begin = 0; begin < p->u.n; begin += size) {
            ot_update u = piece(p, k, begin, p->u.n - begin < size ? p->u.n - begin : size);
            kernels->update(stream, &u);
        }
}

static void run(chunk *p)
{
    run_everywhere(run_chunk, p, p->outputs);
}

/* ---- The reference: one parameter and one block after the other ---- */

static float bits_to_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t float_to_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* In FP32, in the order of kernels.h. */
static float reference_step(const ot_update *u, const ot_update_step *s, float g, float p, float *m, float *v)
{
    float decay = s->lr * u->weight_decay, rest1 = 1 - u->beta1, rest2 = 1 - u->beta2;
    if (u->kind == OT_OPTIMIZER_SGD) {
        *m = u->beta1 * *m + (g + u->weight_decay * p);
        return p - s->lr * *m;
    }
    if (u->kind == OT_OPTIMIZER_LION) {
        float mixed = u->beta1 * *m + rest1 * g;
        *m = u->beta2 * *m + rest2 * g;
        return (p - decay * p) - s->lr * (float)((mixed > 0) - (mixed < 0));
    }
    if (u->kind == OT_OPTIMIZER_ADAM)
        g = g + u->weight_decay * p;
    else
        p = p - decay * p;
    *m = u->beta1 * *m + rest1 * g;
    *v = u->beta2 * *v + rest2 * (g * g);
    return p - s->lr / s->bias1 * (*m / (sqrtf(*v) * (1 / sqrtf(s->bias2)) + u->eps));
}

/* Stores a moment's block of n values, and gives what will be read back. */
static void reference_store(const ot_update *u, ot_dtype format, int which, size_t begin, size_t n,
                            uint64_t number, float *values, void *moment, float *scale)
{
    float limit = which == 0 ? 127 : 255, most = 0, roots[OT_MOMENT_BLOCK];
    for (size_t i = 0; i < n; i++) {
        roots[i] = which == 0 ? values[i] : sqrtf(values[i]);
        most = fmaxf(most, fabsf(roots[i]));
    }
    if (format == OT_INT8)
        scale[begin / OT_MOMENT_BLOCK] = most;
    for (size_t i = 0; i < n; i++) {
        uint32_t words[4];
        ot_philox(u->seed, u->first + begin + i, number, words);
        if (format == OT_BF16) {
            uint16_t cut = (uint16_t)((float_to_bits(values[i]) + (words[which] & 0xffff)) >> 16);
            memcpy((char *)moment + (begin + i) * 2, &cut, sizeof cut);
            values[i] = bits_to_float((uint32_t)cut << 16);
        } else if (format == OT_INT8) {
            float shift = which == 0 ? limit : 0,
                  y = roots[i] * (1 / most) * limit + shift + (float)(words[which] >> 8) * 0x1p-24f;
            int q = (int)fminf(y, limit + shift) - (int)shift;
            q = which == 1 && q == 0 && roots[i] > 0 ? 1 : q;
            memcpy((char *)moment + begin + i, &q, 1); /* the low byte */
            values[i] = which == 0 ? (float)q * (most / limit)
                                   : ((float)q * (most / limit)) * ((float)q * (most / limit));
        } else {
            memcpy((char *)moment + (begin + i) * sizeof(float), &values[i], sizeof(float));
        }
    }
}

static float *floats(size_t n)
{
    return make_filled(OT_FP32, n, 0)->data;
}

/* Fails where the chunk's outputs are not those of the reference. */
static void expect_reference(const chunk *p)
{
    const ot_update *u = &p->u;
    size_t n = u->n;
    float *master = floats(n), *m = floats(n), *v = floats(n);
    float *moment1 = floats(n), *moment2 = floats(n), *scale1 = floats(n), *scale2 = floats(n);
    memcpy(master, make_random(OT_FP32, n, 1, 4)->data, n * sizeof *master);
    for (size_t k = 0; k < p->steps; k++)
        for (size_t begin = 0; begin < n; begin += OT_MOMENT_BLOCK) {
            size_t count = n - begin < OT_MOMENT_BLOCK ? n - begin : OT_MOMENT_BLOCK;
            for (size_t i = begin; i < begin + count; i++) {
                float g = (float)get(p->grad, k * n + i) * p->step[k].grad_scale;
                master[i] = reference_step(u, &p->step[k], g, master[i], &m[i], &v[i]);
            }
            reference_store(u, u->moment1_format, 0, begin, count, k + 1, m + begin, moment1, scale1);
            if (p->moment2 != NULL)
                reference_store(u, u->moment2_format, 1, begin, count, k + 1, v + begin, moment2, scale2);
        }
    for (size_t i = 0; i < n; i++) {
        float value = master_at(p, i);
        assert_memory_equal(&value, &master[i], sizeof value);
        if (p->weight != NULL && u->master_format == OT_MASTER_FP32)
            assert_true(decode16(u->weight_dtype, ((uint16_t *)p->weight->data)[i]) ==
                        round_to(u->weight_dtype, (double)master[i]));
    }
    assert_memory_equal(p->moment1->data, moment1, n * ot_dtype_bytes(u->moment1_format));
    if (p->moment2 != NULL)
        assert_memory_equal(p->moment2->data, moment2, n * ot_dtype_bytes(u->moment2_format));
    if (p->scale1 != NULL)
        assert_memory_equal(p->scale1->data, scale1,
                            (n + OT_MOMENT_BLOCK - 1) / OT_MOMENT_BLOCK * sizeof(float));
    if (p->scale2 != NULL)
        assert_memory_equal(p->scale2->data, scale2,
                            (n + OT_MOMENT_BLOCK - 1) / OT_MOMENT_BLOCK * sizeof(float));
}

/* ---- Formats ---- */

static const ot_dtype moments[][2] = {
    {OT_FP32, OT_FP32}, {OT_BF16, OT_BF16}, {OT_INT8, OT_INT8}, {OT_FP32, OT_INT8}, {OT_BF16, OT_FP32}};
enum { MOMENTS = sizeof moments / sizeof *moments };

typedef void on_chunk(chunk *p);

/* Every optimizer with every combination of formats; `n` is no multiple of a block or of a vector. */
static void with_every_format(on_chunk *test, size_t n, size_t steps)
{
    for (int kind = OT_OPTIMIZER_ADAMW; kind <= OT_OPTIMIZER_LION; kind++)
        for (int grad = OT_FP32; grad <= OT_FP16; grad++)
            for (int master = 0; master < MASTERS; master++)
                for (int moment = 0; moment < MOMENTS; moment++) {
                    chunk p;
                    formats f = masters[master];
                    f.grad = (ot_dtype)grad;
                    f.moment1 = moments[moment][0];
                    f.moment2 = moments[moment][1];
                    make_chunk(&p, (ot_optimizer)kind, n, steps, f);
                    test(&p);
                    free_tensors(NULL);
                }
}

static void run_against_reference(chunk *p)
{
    run(p);
    expect_reference(p);
}

static void every_format_is_exact(void **state)
{
    (void)state;
    with_every_format(run_against_reference, 2 * OT_MOMENT_BLOCK + 77, 3);
}

static void run_in_pieces(chunk *p)
{
    run(p);
    void **whole = copy_outputs(p);
    p->pieces = 2 * OT_MOMENT_BLOCK;
    run(p);
    expect_outputs(p, whole);
}

/* More than a share of the team (update.c), so that threads take part. */
static void pieces_give_the_same_bytes(void **state)
{
    (void)state;
    with_every_format(run_in_pieces, 9003, 2);
}

static void run_split_and_whole(ot_optimizer kind)
{
    enum { N = 3000, STEPS = 20 };
    chunk whole, split;
    make_chunk(&whole, kind, N, STEPS, (formats){.grad = OT_BF16, .weight = OT_FP32});
    make_chunk(&split, kind, N, STEPS,
               (formats){.grad = OT_BF16, .master = OT_MASTER_SPLIT, .weight = OT_BF16});
    run(&whole);
    run(&split);
    for (size_t i = 0; i < N; i++) {
        float a = master_at(&whole, i), b = master_at(&split, i);
        assert_memory_equal(&a, &b, sizeof a);
        assert_int_equal(((uint16_t *)split.weight->data)[i], (float_to_bits(a) + 0x8000) >> 16);
    }
}

static void the_split_master_is_the_fp32_master(void **state)
{
    (void)state;
    for (int kind = OT_OPTIMIZER_ADAMW; kind <= OT_OPTIMIZER_LION; kind++)
        run_split_and_whole((ot_optimizer)kind);
}

/* ---- Closed forms, with one gradient in every step and no decay ---- */

static double constant_gradient(ot_optimizer kind, size_t steps)
{
    chunk p;
    make_chunk(&p, kind, 40, steps, (formats){.grad = OT_FP32});
    float start[40] = {0};
    set_master(&p, start);
    p.u.weight_decay = 0;
    for (size_t i = 0; i < p.grad->n; i++)
        set(p.grad, i, -0.25);
    run(&p);
    for (size_t i = 1; i < p.u.n; i++)
        assert_true(master_at(&p, i) == master_at(&p, 0));
    return (double)master_at(&p, 0) / (double)p.step[0].lr;
}

static void closed_forms(void **state)
{
    (void)state;
    enum { STEPS = 30 };
    double g = 0.125, beta = (double)0.9f, momentum = 0;
    /* The corrected moments are g and g^2, so that every step is lr, against the gradient. */
    assert_true(fabs(constant_gradient(OT_OPTIMIZER_ADAMW, STEPS) - STEPS) < 1e-4);
    assert_true(fabs(constant_gradient(OT_OPTIMIZER_ADAM, STEPS) - STEPS) < 1e-4);
    assert_true(fabs(constant_gradient(OT_OPTIMIZER_LION, STEPS) - STEPS) < 1e-4);
    for (int k = 1; k <= STEPS; k++)
        momentum += g * (1 - pow(beta, k)) / (1 - beta);
    assert_true(fabs(constant_gradient(OT_OPTIMIZER_SGD, STEPS) / momentum - 1) < 1e-6);
}

/* ---- What narrow moments cost ---- */

/* ||a - b|| / ||a - start|| of two masters. */
static double distance(const chunk *a, const chunk *b)
{
    const float *start = make_random(OT_FP32, a->u.n, 1, 4)->data;
    double apart = 0, moved = 0;
    for (size_t i = 0; i < a->u.n; i++) {
        double x = (double)master_at(a, i), d = x - (double)master_at(b, i), m = x - (double)start[i];
        apart += d * d;
        moved += m * m;
    }
    return sqrt(apart / moved);
}

/* Fifty steps of AdamW whose gradients differ in size within a block by `range`. */
static void expect_cost(ot_dtype format, double range, double limit)
{
    enum { N = 8192, STEPS = 50 };
    chunk exact, narrow;
    make_chunk(&exact, OT_OPTIMIZER_ADAMW, N, STEPS, (formats){.grad = OT_FP32});
    make_chunk(&narrow, OT_OPTIMIZER_ADAMW, N, STEPS,
               (formats){.grad = OT_FP32, .moment1 = format, .moment2 = format});
    for (size_t i = 0; i < N * STEPS; i++) {
        set(exact.grad, i, (get(exact.grad, i) + 0.05) * pow(range, -(double)(i % 64) / 63));
        set(narrow.grad, i, get(exact.grad, i));
    }
    run(&exact);
    run(&narrow);
    double error = distance(&exact, &narrow);
    print_message("%s moments, gradients from 1 to 1/%g: %.3f of the way\n", ot_dtype_name(format), range,
                  error);
    assert_true(error > 0 && error < limit);
    free_tensors(NULL);
}

/* The limits are a fifth above what was measured. Without a least second moment the last would be 15. */
static void what_narrow_moments_cost(void **state)
{
    (void)state;
    expect_cost(OT_BF16, 1, 0.004);
    expect_cost(OT_BF16, 1000, 0.004);
    expect_cost(OT_INT8, 1, 0.012);
    expect_cost(OT_INT8, 10, 0.04);
    expect_cost(OT_INT8, 1000, 0.6);
}

/* A stored value is less than one step of the format away from the true one, and its mean over many is the
 * true one: within five standard errors, for a fixed seed. `value` is what every element but the first of a
 * block holds, the first 1; `where` is its place between two neighbours of the format, `step` their distance.
 */
static void expect_unbiased(const double *stored, size_t n, double value, double where, double step)
{
    double sum = 0, count = 0;
    for (size_t i = 0; i < n; i++) {
        if (i % OT_MOMENT_BLOCK == 0)
            continue;
        assert_true(fabs(stored[i] - value) < step);
        sum += stored[i];
        count++;
    }
    assert_true(fabs(sum / count - value) < 5 * step * sqrt(where * (1 - where) / count));
}

static void stochastic_rounding_is_unbiased(void **state)
{
    (void)state;
    enum { N = 1 << 17 };
    double value = (double)0.3f, *first = make_doubles(N), *second = make_doubles(N);
    for (int narrow = 0; narrow < 2; narrow++) {
        chunk p;
        ot_dtype format = narrow ? OT_INT8 : OT_BF16;
        make_chunk(&p, OT_OPTIMIZER_ADAMW, N, 1,
                   (formats){.grad = OT_FP32, .moment1 = format, .moment2 = format});
        p.u.beta1 = p.u.beta2 = 0; /* the moments are the gradient and its square */
        p.step[0].grad_scale = 1;
        for (size_t i = 0; i < N; i++)
            set(p.grad, i, i % OT_MOMENT_BLOCK == 0 ? 1 : -value);
        run(&p);
        for (size_t i = 0; i < N; i++) {
            first[i] = narrow ? -((int8_t *)p.moment1->data)[i] / 127.0
                              : -decode16(OT_BF16, ((uint16_t *)p.moment1->data)[i]);
            second[i] = narrow ? ((uint8_t *)p.moment2->data)[i] / 255.0
                               : decode16(OT_BF16, ((uint16_t *)p.moment2->data)[i]);
        }
        if (narrow) {
            expect_unbiased(first, N, value, fmod(value * 127, 1), 1.0 / 127);
            expect_unbiased(second, N, value, fmod(value * 255, 1), 1.0 / 255);
        } else {
            double square =
                (double)(0.3f *
                         0.3f); /* neighbours of bf16 in [1/4,1/2) are 2^-9 apart, in [1/16,1/8) 2^-11 */
            expect_unbiased(first, N, value, fmod(value * 512, 1), 1.0 / 512);
            expect_unbiased(second, N, square, fmod(square * 2048, 1), 1.0 / 2048);
        }
    }
}

/* ---- What changes nothing ---- */

static void run_skipped(chunk *p)
{
    for (size_t i = 0; i < p->output_count; i++)
        memset(p->outputs[i]->before, 0x5a, p->outputs[i]->n * sizeof(float));
    for (size_t k = 0; k < p->steps; k++)
        p->step[k].skip = 1;
    run(p);
    for (size_t i = 0; i < p->output_count; i++)
        assert_memory_equal(p->outputs[i]->data, p->outputs[i]->before, p->outputs[i]->n * sizeof(float));
}

static void a_skipped_step_changes_nothing(void **state)
{
    (void)state;
    with_every_format(run_skipped, 5000, 2);
}

static void run_without_rate(chunk *p)
{
    set_hard_values(p);
    for (size_t k = 0; k < p->steps; k++)
        p->step[k].lr = 0;
    run(p);
    assert_memory_equal(p->master->data, p->master->before, p->master->n * sizeof(float));
    if (p->u.master_format == OT_MASTER_SPLIT)
        assert_memory_equal(p->weight->data, p->weight->before, p->weight->n * sizeof(float));
}

static void a_rate_of_zero_leaves_the_master(void **state)
{
    (void)state;
    with_every_format(run_without_rate, 700, 2);
}

/* ---- What must not be hidden, and what makes no sense ---- */

static void run_with_nan(chunk *p)
{
    for (size_t k = 0; k < p->steps; k++)
        set(p->grad, k * p->u.n + 5, k == 0 ? (double)NAN : 0);
    run(p);
    assert_true(isnan(master_at(p, 5)) && isfinite(master_at(p, OT_MOMENT_BLOCK)));
    if (p->scale1 != NULL)
        assert_true(isnan(((float *)p->scale1->data)[0]));
}

static void nan_passes_through(void **state)
{
    (void)state;
    with_every_format(run_with_nan, 2 * OT_MOMENT_BLOCK, 2);
}

static void expect_refused(void (*spoil)(ot_update *u))
{
    chunk p;
    make_chunk(&p, OT_OPTIMIZER_ADAMW, 300, 1,
               (formats){.grad = OT_BF16, .weight = OT_BF16, .moment1 = OT_INT8});
    spoil(&p.u);
    p.scale1 = p.u.eps < 0 ? NULL : p.scale1;
    expect_rejected(run_chunk, &p, OT_ERR_INTERNAL);
}

static void as_adafactor(ot_update *u)
{
    u->kind = OT_OPTIMIZER_ADAFACTOR;
}

static void with_int8_gradient(ot_update *u)
{
    u->grad_dtype = OT_INT8;
}

static void with_fp16_moment(ot_update *u)
{
    u->moment2_format = OT_FP16;
}

static void with_split_fp16(ot_update *u)
{
    u->master_format = OT_MASTER_SPLIT;
    u->weight_dtype = OT_FP16;
}

static void without_scales(ot_update *u)
{
    u->eps = -1;
}

static void nonsense_is_refused(void **state)
{
    (void)state;
    expect_refused(as_adafactor);
    expect_refused(with_int8_gradient);
    expect_refused(with_fp16_moment);
    expect_refused(with_split_fp16);
    expect_refused(without_scales);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(every_format_is_exact, free_tensors),
        cmocka_unit_test_teardown(pieces_give_the_same_bytes, free_tensors),
        cmocka_unit_test_teardown(the_split_master_is_the_fp32_master, free_tensors),
        cmocka_unit_test_teardown(closed_forms, free_tensors),
        cmocka_unit_test_teardown(what_narrow_moments_cost, free_tensors),
        cmocka_unit_test_teardown(stochastic_rounding_is_unbiased, free_tensors),
        cmocka_unit_test_teardown(a_skipped_step_changes_nothing, free_tensors),
        cmocka_unit_test_teardown(a_rate_of_zero_leaves_the_master, free_tensors),
        cmocka_unit_test_teardown(nan_passes_through, free_tensors),
        cmocka_unit_test_teardown(nonsense_is_refused, free_tensors),
    };
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
