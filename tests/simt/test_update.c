/* CUDA's optimizers give the CPU device's bytes: every kind in every format, whole and in pieces. */
#include <math.h>

#include "tests/kernels/chunk.h"
#include "tests/simt/compare.h"
#include "tests/support/test.h"

enum { N = 2348, STEPS = 2 };

static void run_steps(const ot_kernels *kernels, ot_stream *stream, void *context)
{
    const chunk *p = context;
    size_t size = p->pieces > 0 ? p->pieces : p->u.n;
    for (size_t k = 0; k < p->steps; k++)
        for (size_t begin = 0; begin < p->u.n; begin += size) {
            ot_update u = piece(p, k, begin, p->u.n - begin < size ? p->u.n - begin : size);
            kernels->update(stream, &u);
        }
}

static void every_format(void **state)
{
    (void)state;
    static const ot_dtype moments[] = {OT_FP32, OT_BF16, OT_INT8}, grads[] = {OT_FP32, OT_BF16, OT_FP16};
    for (int kind = 0; kind < OT_OPTIMIZER_ADAFACTOR; kind++)
        for (size_t m = 0; m < MASTERS; m++)
            for (size_t first = 0; first < 3; first++)
                for (size_t second = 0; second < (kind <= OT_OPTIMIZER_ADAM ? 3 : 1); second++) {
                    formats f = masters[m];
                    f.grad = grads[(m + first) % 3];
                    f.moment1 = moments[first];
                    f.moment2 = moments[second];
                    chunk p;
                    make_chunk(&p, (ot_optimizer)kind, N, STEPS, f);
                    p.pieces = first == 1 ? 768 : 0;
                    compare_bytes(run_steps, &p, p.outputs, "update");
                    free_tensors(NULL);
                }
}

static chunk make_adamw(ot_dtype moment)
{
    formats f = masters[1];
    f.moment1 = f.moment2 = moment;
    chunk p;
    make_chunk(&p, OT_OPTIMIZER_ADAMW, N, STEPS, f);
    return p;
}

static void what_changes_nothing(void **state)
{
    (void)state;
    chunk p = make_adamw(OT_INT8);
    p.step[0].skip = p.step[1].skip = 1;
    compare_bytes(run_steps, &p, p.outputs, "a skipped update");
    assert_memory_equal(p.master->data, p.master->before, N * sizeof(float));
    p.step[0].skip = p.step[1].skip = 0;
    p.step[0].lr = p.step[1].lr = 0;
    set_hard_values(&p);
    compare_bytes(run_steps, &p, p.outputs, "an update with a rate of 0");
    assert_memory_equal(p.master->data, p.master->before, N * sizeof(float));
}

static void infinities_and_nan_pass_through(void **state)
{
    (void)state;
    for (int format = 0; format < 2; format++) {
        chunk p = make_adamw(format == 0 ? OT_FP32 : OT_INT8);
        set(p.grad, 5, (double)INFINITY);
        set(p.grad, 600, (double)NAN);
        run_steps(&simt_kernels, NULL, &p);
        assert_true(isnan(get(p.master, 600)));
        assert_int_equal(isfinite(get(p.master, 5)), 0);
        assert_true(isfinite(get(p.master, 2000)));
        free_tensors(NULL);
    }
}

/* Gradient, master, weight and moments once each; the scales of moments are not counted. */
static void nothing_is_moved_twice(void **state)
{
    (void)state;
    chunk p = make_adamw(OT_FP32);
    p.steps = 1;
    expect_bytes(run_steps, &p, 16 * N, 14 * N, "update, FP32 moments");
    free_tensors(NULL);
    p = make_adamw(OT_INT8);
    p.steps = 1;
    expect_bytes(run_steps, &p, 10 * N, 8 * N, "update, INT8 moments");
}

/* ---- Adafactor ---- */

typedef struct factored {
    chunk p;
    ot_adafactor a;
    size_t rows_at_once;
    double partials[4], square_sum[1];
    float row_mean[1];
} factored;

/* Statistics in pieces of rows, the update in pieces that begin and end within one. */
static void run_pass(const ot_kernels *kernels, ot_stream *stream, factored *f, size_t k,
                     ot_adafactor_pass pass)
{
    ot_adafactor a = f->a;
    size_t n = a.rows * a.cols, size = n;
    a.pass = pass;
    if (pass == OT_ADAFACTOR_STATS)
        size = f->rows_at_once * a.cols;
    else if (pass == OT_ADAFACTOR_APPLY)
        size = n / 3 + 1;
    for (size_t begin = 0; begin < n; begin += size) {
        a.first_row = begin / a.cols;
        a.first_column = begin % a.cols;
        a.update = piece(&f->p, k, begin, n - begin < size ? n - begin : size);
        kernels->adafactor(stream, &a);
    }
}

static void run_factored(const ot_kernels *kernels, ot_stream *stream, void *context)
{
    factored *f = context;
    ot_scale zero = {.dtype = OT_FP32, .n = f->a.cols, .x = f->a.column_sums, .factor = 0};
    ot_sum all = {.n = ot_sum_blocks(f->p.u.n), .x = f->partials, .out = f->square_sum};
    for (size_t k = 0; k < f->p.steps; k++) {
        kernels->scale(stream, &zero);
        run_pass(kernels, stream, f, k, OT_ADAFACTOR_STATS);
        run_pass(kernels, stream, f, k, OT_ADAFACTOR_COLUMNS);
        run_pass(kernels, stream, f, k, OT_ADAFACTOR_RMS);
        kernels->sum_partials(stream, &all);
        run_pass(kernels, stream, f, k, OT_ADAFACTOR_APPLY);
    }
}

static void make_factored(factored *f, size_t rows, size_t cols, formats types)
{
    *f = (factored){.rows_at_once = (rows + 1) / 2};
    make_chunk(&f->p, OT_OPTIMIZER_ADAFACTOR, rows * cols, STEPS, types);
    tensor *r = make_plane(&f->p, rows * sizeof(float)), *c = make_plane(&f->p, cols * sizeof(float));
    f->a = (ot_adafactor){.rows = rows,
                          .cols = cols,
                          .eps1 = 1e-30f,
                          .r = rows > 1 ? r->data : NULL,
                          .c = c->data,
                          .column_sums = make_filled(OT_FP32, cols, 0)->data,
                          .row_mean = f->row_mean,
                          .partials = f->partials,
                          .square_sum = f->square_sum};
}

static void adafactor(void **state)
{
    (void)state;
    static const size_t sizes[][2] = {{1, 77}, {33, 100}, {3, 1}, {130, 700}};
    for (size_t i = 0; i < 4; i++)
        for (size_t m = 0; m < MASTERS; m++) {
            formats f = masters[m];
            f.grad = m % 2 ? OT_BF16 : OT_FP32;
            factored x;
            make_factored(&x, sizes[i][0], sizes[i][1], f);
            compare_bytes(run_factored, &x, x.p.outputs, "adafactor");
            if (i == 3 && m == 0)
                expect_barriers_needed(run_factored, &x, x.p.outputs, "adafactor.cu");
            free_tensors(NULL);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(every_format, free_tensors),
        cmocka_unit_test_teardown(what_changes_nothing, free_tensors),
        cmocka_unit_test_teardown(infinities_and_nan_pass_through, free_tensors),
        cmocka_unit_test_teardown(nothing_is_moved_twice, free_tensors),
        cmocka_unit_test_teardown(adafactor, free_tensors),
    };
    return cmocka_run_group_tests(tests, open_cpu, close_cpu);
}
