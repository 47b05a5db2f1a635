/* Attention forward and backward against FP64: the softmax written out, and its gradients, which finite
 * differences of the forward pass confirm. Ragged lengths and head dimensions, grouped heads, documents,
 * windows. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/kernels/harness.h"
#include "tests/support/test.h"

typedef struct shape {
    size_t B, T, NH, NKV, HD, window, gap;
    int documents;
} shape;

/* An FP64 copy of everything; tensors are dense here: [B,T,heads,HD]. */
typedef struct reference {
    shape s;
    double scale;
    const int32_t *doc_start;
    double *q, *k, *v, *dout, *out, *lse, *dq, *dk, *dv;
} reference;

static double *row(double *values, const reference *r, size_t heads, size_t b, size_t t, size_t h)
{
    return values + ((b * r->s.T + t) * heads + h) * r->s.HD;
}

static double dot(const double *x, const double *y, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += x[i] * y[i];
    return sum;
}

static size_t lowest(const reference *r, size_t b, size_t t)
{
    size_t start = r->doc_start != NULL ? (size_t)r->doc_start[b * r->s.T + t] : 0;
    size_t window = r->s.window > 0 && t >= r->s.window ? t - r->s.window + 1 : 0;
    return start > window ? start : window;
}

/* p[j] for the keys that token t sees; returns the lse. */
static double softmax(reference *r, size_t b, size_t t, size_t h, double *p)
{
    size_t first = lowest(r, b, t), kv = h / (r->s.NH / r->s.NKV);
    double max = -INFINITY, sum = 0;
    for (size_t j = first; j <= t; j++) {
        p[j] = r->scale * dot(row(r->q, r, r->s.NH, b, t, h), row(r->k, r, r->s.NKV, b, j, kv), r->s.HD);
        max = p[j] > max ? p[j] : max;
    }
    for (size_t j = first; j <= t; j++)
        sum += p[j] = exp(p[j] - max);
    for (size_t j = first; j <= t; j++)
        p[j] /= sum;
    return max + log(sum);
}

static void forward_row(reference *r, size_t b, size_t t, size_t h, double *p)
{
    double *out = row(r->out, r, r->s.NH, b, t, h);
    r->lse[(b * r->s.NH + h) * r->s.T + t] = softmax(r, b, t, h, p);
    memset(out, 0, r->s.HD * sizeof *out);
    for (size_t j = lowest(r, b, t); j <= t; j++)
        for (size_t i = 0; i < r->s.HD; i++)
            out[i] += p[j] * row(r->v, r, r->s.NKV, b, j, h / (r->s.NH / r->s.NKV))[i];
}

static void backward_row(reference *r, size_t b, size_t t, size_t h, double *p)
{
    size_t kv = h / (r->s.NH / r->s.NKV), HD = r->s.HD;
    double *q = row(r->q, r, r->s.NH, b, t, h), *dq = row(r->dq, r, r->s.NH, b, t, h);
    double *dout = row(r->dout, r, r->s.NH, b, t, h);
    double delta = dot(dout, row(r->out, r, r->s.NH, b, t, h), HD);
    softmax(r, b, t, h, p);
    for (size_t j = lowest(r, b, t); j <= t; j++) {
        double *k = row(r->k, r, r->s.NKV, b, j, kv), *v = row(r->v, r, r->s.NKV, b, j, kv);
        double *dk = row(r->dk, r, r->s.NKV, b, j, kv), *dv = row(r->dv, r, r->s.NKV, b, j, kv);
        double ds = r->scale * p[j] * (dot(dout, v, HD) - delta);
        for (size_t i = 0; i < HD; i++) {
            dq[i] += ds * k[i];
            dk[i] += ds * q[i];
            dv[i] += p[j] * dout[i];
        }
    }
}

static void for_each_row(reference *r, void (*function)(reference *, size_t, size_t, size_t, double *))
{
    double *p = malloc(r->s.T * sizeof *p);
    assert_non_null(p);
    for (size_t b = 0; b < r->s.B; b++)
        for (size_t h = 0; h < r->s.NH; h++)
            for (size_t t = 0; t < r->s.T; t++)
                function(r, b, t, h, p);
    free(p);
}

static double weighted_output(void *context)
{
    reference *r = context;
    for_each_row(r, forward_row);
    return dot(r->out, r->dout, r->s.B * r->s.T * r->s.NH * r->s.HD);
}

static void reference_gradients_are_those_of_its_output(void **state)
{
    (void)state;
    int32_t starts[] = {0, 0, 2, 2, 2, 2, 2};
    reference r = {
        .s = {.B = 1, .T = 7, .NH = 4, .NKV = 2, .HD = 5, .window = 4}, .scale = 0.6, .doc_start = starts};
    double **tensors[] = {&r.q, &r.k, &r.v, &r.dout, &r.out, &r.lse, &r.dq, &r.dk, &r.dv};
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++)
        *tensors[i] = i < 4 ? to_doubles(make_random(OT_FP32, 140, 1, (uint32_t)i)) : make_doubles(140);
    weighted_output(&r);
    for_each_row(&r, backward_row);
    for (size_t i = 0; i < 140; i++) {
        assert_true(fabs(finite_difference(weighted_output, &r, &r.q[i]) - r.dq[i]) < 1e-6);
        if (i < 70) {
            assert_true(fabs(finite_difference(weighted_output, &r, &r.k[i]) - r.dk[i]) < 1e-6);
            assert_true(fabs(finite_difference(weighted_output, &r, &r.v[i]) - r.dv[i]) < 1e-6);
        }
    }
}

typedef struct problem {
    ot_attention args;
    reference r;
    tensor *q, *k, *v, *out, *lse, *dout, *dq, *dk, *dv;
    double *out_expected, *dq_expected, *dk_expected, *dv_expected;
    double tolerance;
} problem;

static void run_forward(const ot_kernels *kernels, ot_stream *stream, void *context)
{
    problem *p = context;
    p->args.workspace =
        make_workspace(kernels->attention_forward_workspace(ot_stream_device(stream), &p->args));
    kernels->attention_forward(stream, &p->args);
}

static void run_backward(const ot_kernels *kernels, ot_stream *stream, void *context)
{
    problem *p = context;
    p->args.workspace =
        make_workspace(kernels->attention_backward_workspace(ot_stream_device(stream), &p->args));
    kernels->attention_backward(stream, &p->args);
}

static void check_forward(void *context)
{
    problem *p = context;
    expect_close(p->out, p->out_expected, p->tolerance, "out");
    if (p->args.lse != NULL)
        expect_close(p->lse, p->r.lse, 1e-5, "lse");
}

/* A token that sees one key alone has dS = 0, and so have q and k where all do: nothing to compare the error
 * with but the terms of the difference. */
static void check_gradient(const problem *p, const tensor *t, const double *expected, const char *what)
{
    if (p->r.s.T > 1 && p->r.s.window != 1) {
        expect_close(t, expected, p->tolerance, what);
        return;
    }
    for (size_t i = 0; i < t->n; i++)
        assert_true(fabs(get(t, i) - expected[i]) <= p->tolerance * 4);
}

static void check_backward(void *context)
{
    problem *p = context;
    check_gradient(p, p->dq, p->dq_expected, "dq");
    check_gradient(p, p->dk, p->dk_expected, "dk");
    expect_close(p->dv, p->dv_expected, p->tolerance, "dv");
}

/* Rows `ld` apart to dense rows and back; what lies between the rows is taken from `between`. */
static double *to_dense(const tensor *t, size_t rows, size_t cols, size_t ld)
{
    double *dense = make_doubles(rows * cols);
    for (size_t i = 0; i < rows * cols; i++)
        dense[i] = get(t, i / cols * ld + i % cols);
    return dense;
}

static double *to_rows(const double *dense, const tensor *between, size_t rows, size_t cols, size_t ld)
{
    double *values = to_doubles(between);
    for (size_t i = 0; i < rows * cols; i++)
        values[i / cols * ld + i % cols] = dense[i];
    return values;
}

/* Documents of 1, 2, 3, ... tokens, or of 60 and more, so that some begin within a block and some fill one.
 */
static int32_t *make_documents(size_t B, size_t T, size_t shortest)
{
    int32_t *starts = make_indices(B * T, 1, 1);
    for (size_t b = 0; b < B; b++)
        for (size_t t = 0, start = 0, length = shortest; t < T; t++) {
            if (t - start == length) {
                start = t;
                length += 1 + b;
            }
            starts[b * T + t] = (int32_t)start;
        }
    return starts;
}

static problem make_problem(ot_dtype dtype, shape s)
{
    size_t rows = s.B * s.T, width = s.NH * s.HD, kv_width = s.NKV * s.HD, ld = width + s.gap,
           ld_kv = kv_width + 2 * s.gap;
    problem p = {
        .q = make_random(dtype, rows * ld, 1.5, 1),
        .k = make_random(dtype, rows * ld_kv, 1, 2),
        .v = make_random(dtype, rows * ld_kv, 1, 3),
        .out = make_filled(dtype, rows * ld, 7),
        .lse = make_filled(OT_FP32, s.B * s.NH * s.T, 7),
        .dout = make_random(dtype, rows * ld, 1, 4),
        .dq = make_filled(dtype, rows * ld, 7),
        .dk = make_filled(dtype, rows * ld_kv, 7),
        .dv = make_filled(dtype, rows * ld_kv, 7),
        .tolerance = dtype == OT_FP32   ? 1e-5
                     : dtype == OT_BF16 ? 1e-2
                                        : 2e-3,
    };
    p.args = (ot_attention){.dtype = dtype,
                            .B = s.B,
                            .T = s.T,
                            .NH = s.NH,
                            .NKV = s.NKV,
                            .HD = s.HD,
                            .window = s.window,
                            .scale = 1 / sqrtf((float)s.HD),
                            .ld_q = ld,
                            .ld_kv = ld_kv,
                            .ld_out = ld,
                            .ld_dq = ld,
                            .ld_dkv = ld_kv,
                            .q = p.q->data,
                            .k = p.k->data,
                            .v = p.v->data,
                            .out = p.out->data,
                            .lse = p.lse->data,
                            .dout = p.dout->data,
                            .dq = p.dq->data,
                            .dk = p.dk->data,
                            .dv = p.dv->data};
    if (s.documents > 0)
        p.args.doc_start = make_documents(s.B, s.T, (size_t)s.documents);
    p.r = (reference){.s = s,
                      .scale = (double)p.args.scale,
                      .doc_start = p.args.doc_start,
                      .q = to_dense(p.q, rows, width, ld),
                      .k = to_dense(p.k, rows, kv_width, ld_kv),
                      .v = to_dense(p.v, rows, kv_width, ld_kv),
                      .dout = to_dense(p.dout, rows, width, ld),
                      .out = make_doubles(rows * width),
                      .lse = make_doubles(s.B * s.NH * s.T),
                      .dq = make_doubles(rows * width),
                      .dk = make_doubles(rows * kv_width),
                      .dv = make_doubles(rows * kv_width)};
    for_each_row(&p.r, forward_row);
    for_each_row(&p.r, backward_row);
    p.out_expected = to_rows(p.r.out, p.out, rows, width, ld);
    p.dq_expected = to_rows(p.r.dq, p.dq, rows, width, ld);
    p.dk_expected = to_rows(p.r.dk, p.dk, rows, kv_width, ld_kv);
    p.dv_expected = to_rows(p.r.dv, p.dv, rows, kv_width, ld_kv);
    return p;
}

/* Backward gets the output and the lse that were computed in FP64, so that its own error is seen. */
static void give_reference_output(problem *p)
{
    for (size_t i = 0; i < p->out->n; i++)
        set(p->out, i, p->out_expected[i]);
    for (size_t i = 0; i < p->lse->n; i++)
        set(p->lse, i, p->r.lse[i]);
}

static void check_shape(ot_dtype dtype, shape s)
{
    problem p = make_problem(dtype, s);
    run_per_isa(run_forward, check_forward, &p, (tensor *[]){p.out, p.lse, NULL});
    give_reference_output(&p);
    run_per_isa(run_backward, check_backward, &p, (tensor *[]){p.dq, p.dk, p.dv, NULL});
}

static const shape shapes[] = {
    {.B = 1, .T = 1, .NH = 1, .NKV = 1, .HD = 16},
    {.B = 2, .T = 33, .NH = 2, .NKV = 1, .HD = 40, .gap = 3},
    {.B = 1, .T = 100, .NH = 4, .NKV = 2, .HD = 64, .gap = 64},
    {.B = 1, .T = 257, .NH = 2, .NKV = 2, .HD = 80},
    {.B = 1, .T = 257, .NH = 1, .NKV = 1, .HD = 128},
    {.B = 1, .T = 100, .NH = 3, .NKV = 1, .HD = 256},
    {.B = 3, .T = 5, .NH = 6, .NKV = 6, .HD = 3},
    /* Documents and windows, shorter and longer than a block, and both. */
    {.B = 2, .T = 100, .NH = 2, .NKV = 1, .HD = 16, .documents = 1},
    {.B = 1, .T = 400, .NH = 1, .NKV = 1, .HD = 16, .documents = 60},
    {.B = 1, .T = 257, .NH = 2, .NKV = 1, .HD = 16, .window = 1},
    {.B = 1, .T = 300, .NH = 1, .NKV = 1, .HD = 16, .window = 37},
    {.B = 1, .T = 500, .NH = 1, .NKV = 1, .HD = 16, .window = 150},
    {.B = 1, .T = 300, .NH = 2, .NKV = 2, .HD = 16, .window = 70, .documents = 60},
    {.B = 1, .T = 100, .NH = 1, .NKV = 1, .HD = 16, .window = 1000},
};

static void attention_matches_fp64(void **state)
{
    for (ot_dtype dtype = OT_FP32; dtype <= OT_FP16; dtype++)
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
            check_shape(dtype, shapes[i]);
            free_tensors(state);
        }
}

/* So many heads that backward gives each thread whole ones. */
static void many_heads(void **state)
{
    for (ot_dtype dtype = OT_FP32; dtype <= OT_FP16; dtype++) {
        check_shape(dtype, (shape){.B = 3, .T = 70, .NH = 12, .NKV = 6, .HD = 24});
        free_tensors(state);
    }
}

/* Scores far beyond the range of exp, and an lse that nobody wants. */
static void large_scores(void **state)
{
    for (ot_dtype dtype = OT_FP32; dtype <= OT_FP16; dtype++) {
        problem p = make_problem(dtype, (shape){.B = 1, .T = 200, .NH = 1, .NKV = 1, .HD = 16});
        p.args.scale = 60;
        p.r.scale = 60;
        for_each_row(&p.r, forward_row);
        p.out_expected = to_rows(p.r.out, p.out, 200, 16, 16);
        p.args.lse = NULL;
        run_per_isa(run_forward, check_forward, &p, (tensor *[]){p.out, NULL});
        free_tensors(state);
    }
}

static void check_nan(void *context)
{
    problem *p = context;
    for (size_t t = 0; t < p->args.T; t++)
        assert_int_equal(isnan(get(p->out, t * p->args.ld_out)) != 0, t == 130);
}

static void nan_passes_through(void **state)
{
    for (ot_dtype dtype = OT_FP32; dtype <= OT_FP16; dtype++) {
        problem p = make_problem(dtype, (shape){.B = 1, .T = 150, .NH = 1, .NKV = 1, .HD = 16});
        set(p.q, 130 * p.args.ld_q + 3, (double)NAN);
        run_per_isa(run_forward, check_nan, &p, (tensor *[]){p.out, NULL});
        free_tensors(state);
    }
}

/* The memory of a long sequence is that of a short one times the length, and not its square. */
static void workspace_grows_with_length(void **state)
{
    (void)state;
    ot_device *device;
    assert_int_equal(
        ot_device_open(&(ot_device_options){.kind = "cpu", .memory_bytes = 1 << 21, .threads = 2}, &device),
        OT_OK);
    const ot_kernels *kernels = ot_device_kernels(device);
    for (ot_dtype dtype = OT_FP32; dtype <= OT_FP16; dtype++) {
        ot_attention a = {.dtype = dtype, .B = 2, .T = 4096, .NH = 8, .NKV = 4, .HD = 128};
        uint64_t forward = kernels->attention_forward_workspace(device, &a),
                 backward = kernels->attention_backward_workspace(device, &a);
        a.T *= 8;
        assert_true(kernels->attention_forward_workspace(device, &a) <= 8 * forward);
        assert_true(kernels->attention_backward_workspace(device, &a) <= 8 * backward);
    }
    ot_device_close(device);
}

static void wrong_arguments_are_rejected(void **state)
{
    (void)state;
    problem p = make_problem(OT_FP32, (shape){.B = 1, .T = 4, .NH = 2, .NKV = 2, .HD = 4});
    p.args.NKV = 0;
    p.args.workspace = p.q->data;
    expect_rejected(run_forward, &p, OT_ERR_INTERNAL);
    p.args.NKV = 2;
    p.args.ld_out = 7;
    expect_rejected(run_forward, &p, OT_ERR_INTERNAL);
    p.args.ld_out = 8;
    p.args.lse = NULL;
    expect_rejected(run_backward, &p, OT_ERR_INTERNAL);
    p.args.T = 0;
    expect_rejected(run_backward, &p, OT_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(reference_gradients_are_those_of_its_output, free_tensors),
        cmocka_unit_test_teardown(attention_matches_fp64, free_tensors),
        cmocka_unit_test_teardown(many_heads, free_tensors),
        cmocka_unit_test_teardown(large_scores, free_tensors),
        cmocka_unit_test_teardown(nan_passes_through, free_tensors),
        cmocka_unit_test_teardown(workspace_grows_with_length, free_tensors),
        cmocka_unit_test_teardown(wrong_arguments_are_rejected, free_tensors),
    };
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
