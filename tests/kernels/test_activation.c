/* Embedding, rotary positions, SwiGLU, GELU and residual, against FP64 and finite differences. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/kernels/harness.h"
#include "tests/support/test.h"

/* ---- Embedding ---- */

static void run_embedding_forward(const ot_kernels *kernels, ot_stream *stream, void *context)
{
    kernels->embedding_forward(stream, context);
}

static void run_embedding_backward(const ot_kernels *kernels, ot_stream *stream, void *context)
{
    kernels->embedding_backward(stream, context);
}

static void embedding_takes_and_gives_rows(void **state)
{
    enum { N = 300, V = 23 };
    for (ot_dtype dtype = OT_FP32; dtype <= OT_FP16; dtype++) {
        for (size_t C = 1; C <= 350; C = C * 3 + 4) {
            tensor *table = make_random(dtype, V * C, 1, 1), *out = make_filled(dtype, N * C, 0),
                   *sum = make_random(dtype, N * C, 1, 2);
            tensor *dout = make_random(dtype, N * C, 1, 3), *dtable = make_random(OT_FP32, V * C, 1, 4);
            int32_t *tokens = make_indices(N, V, 5);
            double *expected_sum = to_doubles(sum), *expected = to_doubles(dtable);
            ot_embedding args = {.dtype = dtype,
                                 .N = N,
                                 .C = C,
                                 .V = V,
                                 .tokens = tokens,
                                 .table = table->data,
                                 .out = out->data,
                                 .dout = dout->data,
                                 .dtable = dtable->data};
            run_everywhere(run_embedding_forward, &args, (tensor *[]){out, NULL});
            run_everywhere(run_embedding_backward, &args, (tensor *[]){dtable, NULL});
            args.out = sum->data;
            args.add = 1;
            run_everywhere(run_embedding_forward, &args, (tensor *[]){sum, NULL});
            for (size_t i = 0; i < N * C; i++) {
                size_t at = (size_t)tokens[i / C] * C + i % C;
                expected[at] += get(dout, i);
                expected_sum[i] += get(table, at);
                assert_true(get(out, i) == get(table, at));
                assert_true(get(sum, i) == round_to(dtype, expected_sum[i]));
            }
            expect_close(dtable, expected, 2e-6, "dtable");
            free_tensors(state);
        }
    }
}

/* ---- Rotary positions ---- */

static void run_rope_forward(const ot_kernels *kernels, ot_stream *stream, void *context)
{
    kernels->rope_forward(stream, context);
}

static void run_rope_backward(const ot_kernels *kernels, ot_stream *stream, void *context)
{
    kernels->rope_backward(stream, context);
}

static void rope_rotates_and_backward_is_its_transpose(void **state)
{
    enum { N = 45, H = 5, POSITIONS = 20 };
    static const size_t dimensions[] = {2, 6, 64, 80};
    for (ot_dtype dtype = OT_FP32; dtype <= OT_FP16; dtype++) {
        for (size_t k = 0; k < 4; k++) {
            size_t HD = dimensions[k], half = HD / 2, ld = H * HD + 3;
            tensor *x = make_random(dtype, N * ld, 1, 1), *table = make_filled(OT_FP32, POSITIONS * HD, 0);
            int32_t *positions = make_indices(N, POSITIONS, 3);
            ot_rope_scaling scaling = {.kind = OT_ROPE_PLAIN, .theta = 10000};
            assert_int_equal(ot_rope_table_bytes(HD, POSITIONS), POSITIONS * HD * sizeof(float));
            ot_rope_table(&scaling, HD, POSITIONS, table->data);
            double *forward = to_doubles(x), *backward = to_doubles(x);
            for (size_t j = 0; j < N * H * half; j++) {
                size_t n = j / (H * half), at = n * ld + j / half % H * HD + j % half;
                double angle = positions[n] * pow(10000, -2.0 * (double)(j % half) / (double)HD);
                double a = get(x, at), b = get(x, at + half), c = cos(angle), s = sin(angle);
                forward[at] = a * c - b * s;
                forward[at + half] = b * c + a * s;
                backward[at] = a * c + b * s; /* the transposed matrix */
                backward[at + half] = b * c - a * s;
            }
            ot_rope args = {dtype, N, H, HD, positions, table->data, ld, x->data};
            run_everywhere(run_rope_forward, &args, (tensor *[]){x, NULL});
            expect_close(x, forward, tolerance_of(dtype), "rope forward");
            run_everywhere(run_rope_backward, &args, (tensor *[]){x, NULL});
            expect_close(x, backward, tolerance_of(dtype), "rope backward");
            free_tensors(state);
        }
    }
}

/* Worked out by hand for HD = 4, theta = 10000: frequencies 1 and 0.01, wavelengths 6.28 and 628.3. With an
 * original length of 64, the low frequency turns 64*0.01/6.28 = 0.102 times, less than 1: divided by 8; the
 * high one 10.2 times, more than 4: kept. With 640 the low one turns 1.0186 times: smooth = 0.0186/3,
 * (1-smooth)*0.01/8 + smooth*0.01. */
static void rope_scaling_matches_hand_calculation(void **state)
{
    (void)state;
    enum { P = 5 };
    float table[P * 4];
    ot_rope_scaling scaling = {OT_ROPE_LLAMA3, 10000, 8, 1, 4, 64};
    ot_rope_table(&scaling, 4, P, table);
    assert_true(fabs((double)table[4 * 4 + 0] - cos(4.0)) < 1e-7 &&
                fabs((double)table[4 * 4 + 2] - sin(4.0)) < 1e-7);
    assert_true(fabs((double)table[4 * 4 + 3] - sin(4 * 0.00125)) < 1e-8);
    scaling.original_positions = 640;
    ot_rope_table(&scaling, 4, P, table);
    double turns = 6.4 / 6.283185307179586, smooth = (turns - 1) / 3,
           frequency = (1 - smooth) * 0.00125 + smooth * 0.01;
    assert_true(fabs((double)table[4 * 4 + 3] - sin(4 * frequency)) < 1e-8);
    scaling.kind = OT_ROPE_LINEAR;
    ot_rope_table(&scaling, 4, P, table);
    assert_true(fabs((double)table[4 * 4 + 2] - sin(0.5)) < 1e-7);
}

/* Case 35: at position 131,071 within 5e-3 of the exact angles; rounding them too would make it 7e-3. */
static void far_positions_are_right(void **state)
{
    (void)state;
    enum { LAST = 131071 };
    static const struct {
        size_t HD;
        double theta;
    } cases[] = {{64, 1000000}, {80, 500000}, {128, 10000}};
    for (size_t k = 0; k < 3; k++) {
        size_t HD = cases[k].HD, half = HD / 2;
        const ot_rope_scaling scaling = {.kind = OT_ROPE_PLAIN, .theta = cases[k].theta};
        float *table = malloc(ot_rope_table_bytes(HD, LAST + 1)), *row = table + (size_t)LAST * HD;
        assert_non_null(table);
        ot_rope_table(&scaling, HD, LAST + 1, table);
        for (size_t i = 0; i < half; i++) {
            double angle = LAST * pow(cases[k].theta, -2.0 * (double)i / (double)HD);
            double cosine = fabs(row[i] - cos(angle)), sine = fabs(row[half + i] - sin(angle));
            if (cosine > 5e-3 || sine > 5e-3)
                fail_msg("head dimension %zu, pair %zu: off by %g and %g", HD, i, cosine, sine);
        }
        free(table);
    }
}

/* ---- SwiGLU and GELU ---- */

typedef struct point {
    double x, up;
    int kind; /* 0 SwiGLU, 1 GELU tanh, 2 GELU erf */
} point;

static double value_at(void *context)
{
    const point *p = context;
    if (p->kind == 0)
        return p->x / (1 + exp(-p->x)) * p->up;
    if (p->kind == 1)
        return p->x / 2 *
               (1 + tanh(sqrt(2 / 3.14159265358979323846) * (p->x + 0.044715 * p->x * p->x * p->x)));
    return p->x / 2 * erfc(-p->x / sqrt(2));
}

static void run_swiglu_forward(const ot_kernels *kernels, ot_stream *stream, void *context)
{
    kernels->swiglu_forward(stream, context);
}

static void run_swiglu_backward(const ot_kernels *kernels, ot_stream *stream, void *context)
{
    kernels->swiglu_backward(stream, context);
}

static void swiglu_matches_fp64(void **state)
{
    enum { N = 41, F = 517 };
    for (ot_dtype dtype = OT_FP32; dtype <= OT_FP16; dtype++) {
        tensor *both = make_random(dtype, N * 2 * F, 3, 1), *out = make_filled(dtype, N * F, 0),
               *dout = make_random(dtype, N * F, 1, 2);
        char *gate = both->data, *up = gate + F * ot_dtype_bytes(dtype);
        ot_swiglu args = {.dtype = dtype,
                          .N = N,
                          .F = F,
                          .ld_gate = 2 * F,
                          .gate = gate,
                          .up = up,
                          .ld_out = F,
                          .out = out->data,
                          .dout = dout->data,
                          .ld_dgate = 2 * F,
                          .dgate = gate,
                          .dup = up}; /* in place */
        double *forward = make_doubles(N * F), *backward = make_doubles(N * 2 * F);
        for (size_t i = 0; i < N * F; i++) {
            size_t at = i / F * 2 * F + i % F;
            point p = {get(both, at), get(both, at + F), 0};
            forward[i] = value_at(&p);
            backward[at] = finite_difference(value_at, &p, &p.x) * get(dout, i);
            backward[at + F] = finite_difference(value_at, &p, &p.up) * get(dout, i);
        }
        run_everywhere(run_swiglu_forward, &args, (tensor *[]){out, NULL});
        expect_close(out, forward, tolerance_of(dtype), "swiglu");
        run_everywhere(run_swiglu_backward, &args, (tensor *[]){both, NULL});
        expect_close(both, backward, tolerance_of(dtype), "swiglu backward");
        free_tensors(state);
    }
}

static void run_gelu_forward(const ot_kernels *kernels, ot_stream *stream, void *context)
{
    kernels->gelu_forward(stream, context);
}

static void run_gelu_backward(const ot_kernels *kernels, ot_stream *stream, void *context)
{
    kernels->gelu_backward(stream, context);
}

static void gelu_matches_fp64(void **state)
{
    enum { N = 20011 };
    for (ot_dtype dtype = OT_FP32; dtype <= OT_FP16; dtype++) {
        for (ot_gelu_kind kind = OT_GELU_TANH; kind <= OT_GELU_ERF; kind++) {
            tensor *x = make_random(dtype, N, 3, 1), *y = make_filled(dtype, N, 0),
                   *dy = make_random(dtype, N, 1, 2);
            ot_gelu args = {kind, dtype, N, x->data, y->data, dy->data, dy->data};
            double *forward = make_doubles(N), *backward = make_doubles(N);
            for (size_t i = 0; i < N; i++) {
                point p = {get(x, i), 1, kind == OT_GELU_TANH ? 1 : 2};
                forward[i] = value_at(&p);
                backward[i] = finite_difference(value_at, &p, &p.x) * get(dy, i);
            }
            run_everywhere(run_gelu_forward, &args, (tensor *[]){y, NULL});
            expect_close(y, forward, tolerance_of(dtype), "gelu");
            run_everywhere(run_gelu_backward, &args, (tensor *[]){dy, NULL});
            expect_close(dy, backward, tolerance_of(dtype), "gelu backward");
            free_tensors(state);
        }
    }
}

/* Element by element, in FP32: a few ulp where the function is of the order of 1, and an error of a few ulp
 * of the intermediate values in the tails. The ends: no overflow, the right limits. */
static void elementary_functions_are_accurate(void **state)
{
    (void)state;
    enum { N = 40001 };
    tensor *x = make_filled(OT_FP32, N, 0), *y = make_filled(OT_FP32, N, 0),
           *one = make_filled(OT_FP32, N, 1);
    for (size_t i = 0; i < N; i++)
        set(x, i, ((double)i - N / 2) / 200); /* -100 .. 100 */
    ot_swiglu silu = {.dtype = OT_FP32,
                      .N = 1,
                      .F = N,
                      .ld_gate = N,
                      .gate = x->data,
                      .up = one->data,
                      .ld_out = N,
                      .out = y->data};
    run_everywhere(run_swiglu_forward, &silu, (tensor *[]){y, NULL});
    for (size_t i = 0; i < N; i++) {
        point p = {get(x, i), 1, 0};
        assert_true(fabs(get(y, i) - value_at(&p)) <=
                    4e-7 * fabs(value_at(&p)) + 1e-36); /* the sigmoid is subnormal there */
    }
    for (int kind = 1; kind <= 2; kind++) {
        ot_gelu gelu = {kind == 1 ? OT_GELU_TANH : OT_GELU_ERF, OT_FP32, N, x->data, y->data, NULL, NULL};
        run_everywhere(run_gelu_forward, &gelu, (tensor *[]){y, NULL});
        for (size_t i = 0; i < N; i++) {
            point p = {get(x, i), 1, kind};
            double expected = value_at(&p),
                   bound = fabs(p.x) < 2 ? 8e-7 * fabs(expected) : 3e-7 * fmax(1, p.x);
            assert_true(fabs(get(y, i) - expected) <= bound);
        }
        assert_true(get(y, N - 1) == 100 && fabs(get(y, 0)) < 1e-30);
    }
}

static void run_residual(const ot_kernels *kernels, ot_stream *stream, void *context)
{
    kernels->residual_add(stream, context);
}

static void residual_adds_and_rounds_once(void **state)
{
    (void)state;
    enum { N = 20011 };
    for (ot_dtype dtype = OT_FP32; dtype <= OT_FP16; dtype++) {
        tensor *a = make_random(dtype, N, 1, 1), *b = make_random(dtype, N, 1, 2);
        double *expected = to_doubles(a);
        ot_residual args = {dtype, N, a->data, b->data, a->data};
        run_everywhere(run_residual, &args, (tensor *[]){a, NULL});
        for (size_t i = 0; i < N; i++)
            assert_true(get(a, i) == round_to(dtype, expected[i] + get(b, i)));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(embedding_takes_and_gives_rows, free_tensors),
        cmocka_unit_test_teardown(rope_rotates_and_backward_is_its_transpose, free_tensors),
        cmocka_unit_test_teardown(rope_scaling_matches_hand_calculation, free_tensors),
        cmocka_unit_test(far_positions_are_right),
        cmocka_unit_test_teardown(swiglu_matches_fp64, free_tensors),
        cmocka_unit_test_teardown(gelu_matches_fp64, free_tensors),
        cmocka_unit_test_teardown(elementary_functions_are_accurate, free_tensors),
        cmocka_unit_test_teardown(residual_adds_and_rounds_once, free_tensors),
    };
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
