/* Adafactor against its formulas in FP64, over matrices of several shares and blocks, whole and in pieces,
 * and what must change nothing. Everything runs in every instruction set and on several numbers of threads.
 */
#include <math.h>

#include "tests/kernels/chunk.h"
#include "tests/support/test.h"

typedef struct factored {
    chunk p;
    ot_adafactor a;
    size_t rows_at_once;
    int within_rows; /* the pieces of the passes that allow it end anywhere */
    double partials[4], square_sum[1];
    float row_mean[1];
    tensor *outputs[8];
} factored;

static void run_pass(const ot_kernels *kernels, ot_stream *stream, factored *f, size_t k,
                     ot_adafactor_pass pass)
{
    ot_adafactor a = f->a;
    a.pass = pass;
    size_t size = pass == OT_ADAFACTOR_COLUMNS || pass == OT_ADAFACTOR_RMS ? a.rows : f->rows_at_once;
    for (size_t row = 0; row < a.rows; row += size) {
        size_t rows = a.rows - row < size ? a.rows - row : size;
        a.first_row = row;
        a.update = piece(&f->p, k, row * a.cols, rows * a.cols);
        kernels->adafactor(stream, &a);
    }
}

/* In pieces that begin and end within rows; whole blocks of a sum for RMS. */
static void run_elements(const ot_kernels *kernels, ot_stream *stream, factored *f, size_t k,
                         ot_adafactor_pass pass)
{
    size_t n = f->p.u.n, size = pass == OT_ADAFACTOR_RMS ? OT_SUM_BLOCK : 1000;
    for (size_t at = 0; at < n; at += size) {
        ot_adafactor a = f->a;
        a.pass = pass;
        a.first_row = at / a.cols;
        a.first_column = at % a.cols;
        a.partials = f->partials + at / OT_SUM_BLOCK;
        a.update = piece(&f->p, k, at, n - at < size ? n - at : size);
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
        (f->within_rows ? run_elements : run_pass)(kernels, stream, f, k, OT_ADAFACTOR_RMS);
        kernels->sum_partials(stream, &all);
        (f->within_rows ? run_elements : run_pass)(kernels, stream, f, k, OT_ADAFACTOR_APPLY);
    }
}

static void make_factored(factored *f, size_t rows, size_t cols, size_t steps, formats types)
{
    *f = (factored){.rows_at_once = rows};
    make_chunk(&f->p, OT_OPTIMIZER_ADAFACTOR, rows * cols, steps, types);
    f->a = (ot_adafactor){.rows = rows,
                          .cols = cols,
                          .eps1 = 1e-30f,
                          .row_mean = f->row_mean,
                          .partials = f->partials,
                          .square_sum = f->square_sum};
    tensor *r = make_plane(&f->p, rows * sizeof(float)), *c = make_plane(&f->p, cols * sizeof(float));
    f->a.r = rows > 1 ? r->data : NULL;
    f->a.c = c->data;
    f->a.column_sums = make_filled(OT_FP32, cols, 0)->data;
}

/* Steps for which FP64 gives the same to rounding: the formulas once more, over a matrix of several shares
 * and blocks. */
static void adafactor_in_fp64(const factored *f, double *p)
{
    size_t rows = f->a.rows, cols = f->a.cols;
    double *r = make_doubles(rows), *c = make_doubles(cols), lr = (double)f->p.step[0].lr;
    for (size_t k = 0; k < f->p.steps; k++) {
        double beta2 = (double)f->p.step[k].beta2_adafactor, row_mean = 0, square = 0,
               *g = make_doubles(rows * cols);
        double *row_sum = make_doubles(rows), *column_sum = make_doubles(cols);
        for (size_t i = 0; i < rows * cols; i++) {
            g[i] = get(f->p.grad, k * rows * cols + i) * (double)f->p.step[k].grad_scale;
            row_sum[i / cols] += g[i] * g[i] + 1e-30;
            column_sum[i % cols] += g[i] * g[i] + 1e-30;
        }
        for (size_t i = 0; i < rows; i++)
            row_mean += (r[i] = beta2 * r[i] + (1 - beta2) * row_sum[i] / (double)cols) / (double)rows;
        for (size_t j = 0; j < cols; j++)
            c[j] = beta2 * c[j] + (1 - beta2) * column_sum[j] / (double)rows;
        for (size_t i = 0; i < rows * cols; i++) {
            g[i] /= sqrt(rows == 1 ? c[i] : r[i / cols] / row_mean * c[i % cols]);
            square += g[i] * g[i];
        }
        double rms = sqrt(square / (double)(rows * cols));
        for (size_t i = 0; i < rows * cols; i++)
            p[i] -= lr * (double)f->p.u.weight_decay * p[i] + lr * g[i] / (rms > 1 ? rms : 1);
    }
}

static void run_adafactor(size_t rows, size_t cols)
{
    factored f;
    make_factored(&f, rows, cols, 3,
                  (formats){.grad = OT_BF16, .master = OT_MASTER_SPLIT, .weight = OT_BF16});
    double *expected = to_doubles(make_random(OT_FP32, rows * cols, 1, 4));
    run_everywhere(run_factored, &f, f.p.outputs);
    adafactor_in_fp64(&f, expected);
    for (size_t i = 0; i < rows * cols; i++)
        assert_true(fabs((double)master_at(&f.p, i) - expected[i]) < 2e-6 * (1 + fabs(expected[i])));
    void **whole = copy_outputs(&f.p);
    f.rows_at_once = 3;
    run_everywhere(run_factored, &f, f.p.outputs);
    expect_outputs(&f.p, whole);
    whole = copy_outputs(&f.p);
    f.within_rows = 1;
    run_everywhere(run_factored, &f, f.p.outputs);
    expect_outputs(&f.p, whole);
    f.p.step[0].skip = f.p.step[1].skip = f.p.step[2].skip = 1;
    run_everywhere(run_factored, &f, f.p.outputs);
    for (size_t i = 0; i < f.p.output_count; i++)
        assert_memory_equal(f.p.outputs[i]->data, f.p.outputs[i]->before, f.p.outputs[i]->n * sizeof(float));
    free_tensors(NULL);
}

static void adafactor(void **state)
{
    (void)state;
    run_adafactor(173, 411); /* two blocks of a sum */
    run_adafactor(2, 7);
    run_adafactor(1, 5000);
}

/* Rows and columns without any gradient: second moments of 1e-30, whose product is 0 in FP32. */
static void adafactor_without_gradients(void **state)
{
    (void)state;
    factored f;
    make_factored(&f, 20, 40, 2, (formats){.grad = OT_FP32, .weight = OT_FP32});
    for (size_t i = 0; i < f.p.grad->n; i++)
        if (i / 40 % 20 == 3 || i % 40 == 7)
            set(f.p.grad, i, 0);
    run_everywhere(run_factored, &f, f.p.outputs);
    for (size_t i = 0; i < f.p.u.n; i++)
        assert_true(isfinite(master_at(&f.p, i)));
}

static void adafactor_leaves_the_master_at_rate_zero(void **state)
{
    (void)state;
    for (int master = 0; master < MASTERS; master++) {
        factored f;
        formats types = masters[master];
        make_factored(&f, 20, 40, 2, types);
        set_hard_values(&f.p);
        f.p.step[0].lr = f.p.step[1].lr = 0;
        run_everywhere(run_factored, &f, f.p.outputs);
        assert_memory_equal(f.p.master->data, f.p.master->before, f.p.master->n * sizeof(float));
        free_tensors(NULL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(adafactor, free_tensors),
        cmocka_unit_test_teardown(adafactor_without_gradients, free_tensors),
        cmocka_unit_test_teardown(adafactor_leaves_the_master_at_rate_zero, free_tensors),
    };
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
