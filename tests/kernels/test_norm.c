/* RMSNorm and LayerNorm over rows and over heads, and column sums, against FP64 and finite differences. */
#include <math.h>

#include "tests/kernels/harness.h"
#include "tests/support/test.h"

/* A norm in FP64, from values as they are in the tensors. */
typedef struct reference {
    ot_norm_kind kind;
    size_t C;
    double eps;
    double *x, *weight, *bias, *dy; /* one group; x is what a finite difference moves */
} reference;

static void normalise(const reference *r, double *mean, double *rstd)
{
    double sum = 0, squares = 0;
    for (size_t i = 0; i < r->C; i++)
        sum += r->x[i];
    *mean = r->kind == OT_LAYERNORM ? sum / (double)r->C : 0;
    for (size_t i = 0; i < r->C; i++)
        squares += (r->x[i] - *mean) * (r->x[i] - *mean);
    *rstd = 1 / sqrt(squares / (double)r->C + r->eps);
}

static double output(const reference *r, double mean, double rstd, size_t i)
{
    return (r->x[i] - mean) * rstd * r->weight[i] + (r->bias != NULL ? r->bias[i] : 0);
}

/* The scalar whose gradient backward computes: sum of dy * y. */
static double weighted_output(void *context)
{
    const reference *r = context;
    double mean, rstd, sum = 0;
    normalise(r, &mean, &rstd);
    for (size_t i = 0; i < r->C; i++)
        sum += r->dy[i] * output(r, mean, rstd, i);
    return sum;
}

typedef struct shape {
    size_t N, H, C, ld;
} shape;

static const shape shapes[] = {{1, 1, 1, 1},   {3, 1, 16, 16},   {37, 1, 1000, 1003},
                               {5, 1, 17, 20}, {70, 7, 80, 600}, {2, 3, 5, 15}};

typedef struct problem {
    ot_norm args;
    tensor *x, *weight, *bias, *y, *mean, *rstd, *dy, *dx, *dweight, *dbias;
} problem;

static problem make_problem(ot_norm_kind kind, ot_dtype dtype, shape s)
{
    size_t elements = (s.N - 1) * s.ld + s.H * s.C, groups = s.N * s.H;
    problem p = {
        .x = make_random(dtype, elements, 2, 1),
        .weight = make_random(dtype, s.C, 1, 2),
        .bias = kind == OT_LAYERNORM ? make_random(dtype, s.C, 1, 3) : NULL,
        .y = make_filled(dtype, elements, 7), /* what lies between the rows stays */
        .mean = make_filled(OT_FP32, groups, 0),
        .rstd = make_filled(OT_FP32, groups, 0),
        .dy = make_random(dtype, elements, 1, 4),
        .dx = make_random(dtype, elements, 1, 5),
        .dweight = make_random(OT_FP32, s.C, 1, 6),
        .dbias = make_random(OT_FP32, s.C, 1, 7),
    };
    p.args = (ot_norm){.kind = kind,
                       .dtype = dtype,
                       .N = s.N,
                       .H = s.H,
                       .C = s.C,
                       .eps = 1e-5f,
                       .ld_x = s.ld,
                       .ld_y = s.ld,
                       .ld_dx = s.ld,
                       .x = p.x->data,
                       .weight = p.weight->data,
                       .bias = p.bias != NULL ? p.bias->data : NULL,
                       .y = p.y->data,
                       .mean = p.mean->data,
                       .rstd = p.rstd->data,
                       .dy = p.dy->data,
                       .dx = p.dx->data,
                       .dresidual = p.dx->data,
                       .dweight = p.dweight->data,
                       .dbias = kind == OT_LAYERNORM ? p.dbias->data : NULL};
    return p;
}

static void run_forward(const ot_kernels *kernels, ot_stream *stream, void *context)
{
    kernels->norm_forward(stream, context);
}

static void run_backward(const ot_kernels *kernels, ot_stream *stream, void *context)
{
    assert_int_equal(kernels->norm_workspace(ot_stream_device(stream), context), 0);
    kernels->norm_backward(stream, context);
}

static void check_forward(problem *p)
{
    const ot_norm *a = &p->args;
    double *x = to_doubles(p->x), *weight = to_doubles(p->weight),
           *bias = p->bias != NULL ? to_doubles(p->bias) : NULL;
    double *expected = to_doubles(p->y), *rstds = make_doubles(a->N * a->H),
           *means = make_doubles(a->N * a->H);
    run_everywhere(run_forward, &p->args, (tensor *[]){p->y, p->mean, p->rstd, NULL});
    for (size_t g = 0; g < a->N * a->H; g++) {
        size_t at = g / a->H * a->ld_x + g % a->H * a->C;
        reference r = {a->kind, a->C, (double)a->eps, x + at, weight, bias, NULL};
        normalise(&r, &means[g], &rstds[g]);
        for (size_t i = 0; i < a->C; i++)
            expected[at + i] = output(&r, means[g], rstds[g], i);
    }
    expect_close(p->y, expected, tolerance_of(a->dtype), "y");
    expect_close(p->rstd, rstds, 2e-6, "rstd");
    if (a->kind == OT_LAYERNORM && a->C > 1)
        expect_close(p->mean, means, 2e-6, "mean");
}

static void check_backward(problem *p)
{
    const ot_norm *a = &p->args;
    double *x = to_doubles(p->x), *weight = to_doubles(p->weight), *dy = to_doubles(p->dy);
    double *dx = to_doubles(p->dx), *dweight = to_doubles(p->dweight), *dbias = to_doubles(p->dbias);
    run_everywhere(run_backward, &p->args, (tensor *[]){p->dx, p->dweight, p->dbias, NULL});
    for (size_t g = 0; g < a->N * a->H; g++) {
        size_t at = g / a->H * a->ld_x + g % a->H * a->C;
        double mean, rstd;
        reference r = {a->kind, a->C, (double)a->eps, x + at, weight, NULL, dy + at};
        normalise(&r, &mean, &rstd);
        for (size_t i = 0; i < a->C; i++) {
            dweight[i] += dy[at + i] * (x[at + i] - mean) * rstd;
            dbias[i] += dy[at + i];
        }
        for (size_t i = 0; i < a->C;
             i += 1 + a->C / 9) /* a few of each group: a difference costs a whole norm */
            dx[at + i] += finite_difference(weighted_output, &r, &x[at + i]);
    }
    double *found = to_doubles(p->dx), error = 0, norm = 1e-30;
    for (size_t g = 0; g < a->N * a->H; g++)
        for (size_t i = 0; i < a->C; i += 1 + a->C / 9) {
            size_t at = g / a->H * a->ld_x + g % a->H * a->C + i;
            error += (found[at] - dx[at]) * (found[at] - dx[at]);
            norm += dx[at] * dx[at];
        }
    assert_true(sqrt(error / norm) <= tolerance_of(a->dtype));
    expect_close(p->dweight, dweight, 2e-6, "dweight");
    if (a->kind == OT_LAYERNORM)
        expect_close(p->dbias, dbias, 2e-6, "dbias");
}

static void norms_match_fp64(void **state)
{
    for (ot_norm_kind kind = OT_RMSNORM; kind <= OT_LAYERNORM; kind++) {
        for (ot_dtype dtype = OT_FP32; dtype <= OT_FP16; dtype++) {
            for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
                problem p = make_problem(kind, dtype, shapes[i]);
                check_forward(&p);
                check_backward(&p);
                free_tensors(state);
            }
        }
    }
}

static void works_in_place_and_without_options(void **state)
{
    (void)state;
    problem p = make_problem(OT_RMSNORM, OT_BF16, shapes[2]),
            q = make_problem(OT_RMSNORM, OT_BF16, shapes[2]);
    check_forward(&p);
    p.args.dresidual = NULL;
    run_everywhere(run_backward, &p.args, (tensor *[]){p.dx, p.dweight, NULL});
    q.args.rstd = NULL;
    q.args.y = q.x->data;
    run_everywhere(run_forward, &q.args, (tensor *[]){q.x, NULL});
    for (size_t n = 0; n < p.args.N; n++)
        for (size_t i = 0; i < p.args.C; i++)
            assert_true(get(q.x, n * p.args.ld_x + i) == get(p.y, n * p.args.ld_x + i));
    q.args.x = p.x->data; /* dx over dy, no weight gradient */
    q.args.rstd = p.rstd->data;
    q.args.dresidual = NULL;
    q.args.dweight = NULL;
    q.args.dx = q.dy->data;
    run_everywhere(run_backward, &q.args, (tensor *[]){q.dy, NULL});
    for (size_t n = 0; n < p.args.N; n++)
        for (size_t i = 0; i < p.args.C; i++)
            assert_true(get(q.dy, n * p.args.ld_x + i) == get(p.dx, n * p.args.ld_x + i));
}

static void senseless_arguments_are_rejected(void **state)
{
    (void)state;
    problem p = make_problem(OT_LAYERNORM, OT_FP32, shapes[1]);
    ot_norm bad = p.args;
    bad.ld_x = bad.C - 1;
    expect_rejected(run_forward, &bad, OT_ERR_INTERNAL);
    bad = p.args;
    bad.dtype = OT_INT8;
    expect_rejected(run_forward, &bad, OT_ERR_INTERNAL);
    bad = p.args;
    bad.mean = NULL;
    expect_rejected(run_backward, &bad, OT_ERR_INTERNAL);
}

static void run_bias(const ot_kernels *kernels, ot_stream *stream, void *context)
{
    kernels->bias_backward(stream, context);
}

static void bias_gradient_is_the_column_sum(void **state)
{
    (void)state;
    enum { N = 333, OC = 211, LD = 215 };
    for (ot_dtype dtype = OT_FP32; dtype <= OT_FP16; dtype++) {
        tensor *dy = make_random(dtype, N * LD, 1, 1), *dbias = make_random(OT_FP32, OC, 1, 2);
        double *expected = to_doubles(dbias);
        for (size_t i = 0; i < N * OC; i++)
            expected[i % OC] += get(dy, i / OC * LD + i % OC);
        ot_bias_backward args = {
            .dtype = dtype, .N = N, .OC = OC, .ld_dy = LD, .dy = dy->data, .dbias = dbias->data};
        run_everywhere(run_bias, &args, (tensor *[]){dbias, NULL});
        expect_close(dbias, expected, 2e-6, "dbias");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(norms_match_fp64, free_tensors),
        cmocka_unit_test_teardown(works_in_place_and_without_options, free_tensors),
        cmocka_unit_test_teardown(senseless_arguments_are_rejected, free_tensors),
        cmocka_unit_test_teardown(bias_gradient_is_the_column_sum, free_tensors),
    };
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
