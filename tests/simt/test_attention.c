/* CUDA's attention, forward and backward, against the CPU device's: every tile width, ragged lengths, grouped
 * heads, documents, windows, rows that are not aligned. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/simt/compare.h"
#include "tests/support/test.h"

typedef struct shape {
    size_t B, T, NH, NKV, HD, window, gap; /* gap: elements between the rows of every tensor */
    int documents;
} shape;

static const shape shapes[] = {
    {1, 100, 2, 1, 64, 0, 0, 0},    {2, 33, 3, 3, 80, 0, 0, 0},   {1, 100, 2, 2, 96, 0, 8, 0},
    {1, 100, 4, 2, 128, 0, 0, 1},   {1, 100, 2, 1, 256, 0, 0, 0}, {2, 1, 2, 1, 64, 0, 0, 0},
    {1, 33, 2, 2, 40, 0, 3, 0},     {2, 150, 2, 1, 64, 50, 0, 1}, {1, 70, 1, 1, 5, 0, 0, 0},
    {1, 130, 3, 1, 64, 1000, 1, 1}, {1, 80, 2, 1, 256, 17, 1, 1}, {1, 70, 1, 1, 77, 64, 0, 0},
    {1, 200, 2, 1, 128, 33, 0, 1},
};

typedef struct problem {
    ot_attention args;
    tensor *out[2], *lse[2], *dq[2], *dk[2], *dv[2];
} problem;

static const ot_device *device_of(ot_stream *stream)
{
    return stream != NULL ? ot_stream_device(stream) : NULL;
}

static void forward(const ot_kernels *kernels, ot_stream *stream, void *context)
{
    ot_attention args = ((problem *)context)->args;
    args.workspace = make_workspace(kernels->attention_forward_workspace(device_of(stream), &args));
    kernels->attention_forward(stream, &args);
}

static void backward(const ot_kernels *kernels, ot_stream *stream, void *context)
{
    ot_attention args = ((problem *)context)->args;
    args.workspace = make_workspace(kernels->attention_backward_workspace(device_of(stream), &args));
    kernels->attention_backward(stream, &args);
}

/* Documents of 1, 2, 3 ... tokens over and over. */
static int32_t *make_documents(const shape *s)
{
    int32_t *start = make_indices(s->B * s->T, 1, 1);
    for (size_t b = 0; b < s->B; b++)
        for (size_t t = 0, length = 1, first = 0; t < s->T; t++) {
            if (t - first == length) {
                first = t;
                length = length * 3 % 61 + 1;
            }
            start[b * s->T + t] = (int32_t)first;
        }
    return start;
}

static void make_problem(problem *p, ot_dtype dtype, const shape *s)
{
    size_t q_row = s->NH * s->HD + s->gap, kv_row = s->NKV * s->HD + s->gap, N = s->B * s->T;
    *p = (problem){.out = {make_filled(dtype, N * q_row, 3)},
                   .lse = {make_filled(OT_FP32, s->B * s->NH * s->T, 3)},
                   .dq = {make_filled(dtype, N * q_row, 3)},
                   .dk = {make_filled(dtype, N * kv_row, 3)},
                   .dv = {make_filled(dtype, N * kv_row, 3)}};
    p->args = (ot_attention){.dtype = dtype,
                             .B = s->B,
                             .T = s->T,
                             .NH = s->NH,
                             .NKV = s->NKV,
                             .HD = s->HD,
                             .scale = 1 / sqrtf((float)s->HD),
                             .window = s->window,
                             .doc_start = s->documents ? make_documents(s) : NULL,
                             .ld_q = q_row,
                             .ld_kv = kv_row,
                             .ld_out = q_row,
                             .q = make_random(dtype, N * q_row, 1.5, 1)->data,
                             .k = make_random(dtype, N * kv_row, 1.5, 2)->data,
                             .v = make_random(dtype, N * kv_row, 1, 3)->data,
                             .out = p->out[0]->data,
                             .lse = p->lse[0]->data,
                             .dout = make_random(dtype, N * q_row, 1, 4)->data,
                             .ld_dq = q_row,
                             .ld_dkv = kv_row,
                             .dq = p->dq[0]->data,
                             .dk = p->dk[0]->data,
                             .dv = p->dv[0]->data};
}

static void check_shape(ot_dtype dtype, const shape *s)
{
    problem p;
    char what[128];
    double tolerance = tolerance_between(dtype);
    snprintf(what, sizeof what, "attention B %zu T %zu NH %zu NKV %zu HD %zu window %zu gap %zu", s->B, s->T,
             s->NH, s->NKV, s->HD, s->window, s->gap);
    make_problem(&p, dtype, s);
    tensor *forward_outputs[] = {p.out[0], p.lse[0], NULL};
    compare(forward, &p, forward_outputs, tolerance, what);
    double *lse = to_doubles(p.lse[0]);
    run_on_cpu(forward, &p);
    expect_close(p.lse[0], lse, 1e-5, what);
    /* Backward, both from the CPU's out and lse. With one key to see, dq and dk are 0 but for rounding. */
    tensor *gradients[] = {p.dv[0], s->T > 1 ? p.dk[0] : NULL, p.dq[0], NULL};
    compare(backward, &p, gradients, tolerance, what);
}

/* Every shape, or every step-th. */
static void every_shape(ot_dtype dtype, size_t step)
{
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i += step * SHARE) {
        check_shape(dtype, &shapes[i]);
        free_tensors(NULL);
    }
}

static void fp32(void **state)
{
    (void)state;
    every_shape(OT_FP32, 1);
}

static void bf16(void **state)
{
    (void)state;
    every_shape(OT_BF16, 3);
}

static void fp16(void **state)
{
    (void)state;
    every_shape(OT_FP16, 1);
}

static void every_barrier_is_needed(void **state)
{
    (void)state;
    static const shape s = {1, 130, 2, 1, 64, 0, 0, 0};
    for (int i = 0; i < 2; i++) {
        problem p;
        make_problem(&p, i == 0 ? OT_FP16 : OT_FP32, &s);
        expect_barriers_needed(forward, &p, p.out, "attention");
        tensor *gradients[] = {p.dq[0], p.dk[0], p.dv[0], NULL};
        expect_barriers_needed(backward, &p, gradients, "attention");
        free_tensors(NULL);
    }
}

/* A query's NaN stays in its row, and reaches every key that it sees; in keys that share a tile with those it may
 * show as well, since a weight of 0 times NaN is NaN. */
static void nan_passes_through(void **state)
{
    (void)state;
    static const shape s = {1, 40, 1, 1, 64, 0, 0, 0};
    problem p;
    make_problem(&p, OT_FP16, &s);
    ((uint16_t *)(void *)(uintptr_t)p.args.q)[20 * 64 + 3] = 0x7e00;
    forward(&simt_kernels, NULL, &p);
    for (size_t t = 0; t < 40; t++)
        assert_int_equal(isnan(get(p.out[0], t * 64)), t == 20);
    backward(&simt_kernels, NULL, &p);
    for (size_t t = 0; t < 40; t++) {
        assert_int_equal(isnan(get(p.dq[0], t * 64)), t == 20);
        assert_true(isnan(get(p.dk[0], t * 64)) || t > 20);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(fp16, free_tensors),
        cmocka_unit_test_teardown(bf16, free_tensors),
        cmocka_unit_test_teardown(fp32, free_tensors),
        cmocka_unit_test_teardown(every_barrier_is_needed, free_tensors),
        cmocka_unit_test_teardown(nan_passes_through, free_tensors),
    };
    return cmocka_run_group_tests(tests, open_cpu, close_cpu);
}
