/* Matrix products in all three operations, against FP64, with ragged sizes, wide rows, bias and accumulation.
 */
#include <dirent.h>
#include <math.h>

#include "tests/kernels/harness.h"
#include "tests/support/test.h"

typedef struct shape {
    size_t N, C, OC;
} shape;

/* One of everything; less and more than a tile, a chunk of the sum and a part, each with a rest. */
static const shape shapes[] = {{1, 1, 1},      {1, 64, 33},     {33, 40, 16},    {100, 80, 257},
                               {257, 130, 65}, {70, 1100, 100}, {1100, 20, 600}, {40, 70, 2100}};

typedef struct problem {
    ot_matmul args;
    tensor *a, *b, *bias, *out;
    double *expected;
    double tolerance;
} problem;

static void run(const ot_kernels *kernels, ot_stream *stream, void *context)
{
    problem *p = context;
    p->args.workspace = make_workspace(kernels->matmul_workspace(ot_stream_device(stream), &p->args));
    kernels->matmul(stream, &p->args);
}

static void check(void *context)
{
    problem *p = context;
    static const char *const names[] = {"forward", "dX", "dW"};
    expect_close(p->out, p->expected, p->tolerance, names[p->args.op]);
}

static double element(const ot_matmul *m, const double *a, const double *b, size_t row, size_t col)
{
    double sum = 0;
    size_t K = m->op == OT_MATMUL_FORWARD ? m->C : m->op == OT_MATMUL_DX ? m->OC : m->N;
    for (size_t k = 0; k < K; k++)
        sum += a[m->op == OT_MATMUL_DW ? k * m->ld_a + row : row * m->ld_a + k] *
               b[m->op == OT_MATMUL_FORWARD ? col * m->ld_b + k : k * m->ld_b + col];
    return sum;
}

/* Rows are `gap` elements apart; what lies between them must stay. */
static problem make_problem(ot_matmul_op op, ot_dtype dtype, ot_dtype out_dtype, shape s, size_t gap,
                            int extras)
{
    size_t rows_a = s.N, cols_a = op == OT_MATMUL_FORWARD ? s.C : s.OC;
    size_t rows_b = op == OT_MATMUL_DW ? s.N : s.OC, cols_b = s.C;
    size_t rows = op == OT_MATMUL_DW ? s.OC : s.N, cols = op == OT_MATMUL_FORWARD ? s.OC : s.C;
    problem p = {
        .a = make_random(dtype, rows_a * (cols_a + gap), 1, 1),
        .b = make_random(dtype, rows_b * (cols_b + gap), 1, 2),
        .bias = make_random(dtype, s.OC, 3, 3),
        .out = make_random(out_dtype, rows * (cols + gap), 2, 4),
        .tolerance = tolerance_of(out_dtype),
    };
    p.args = (ot_matmul){.op = op,
                         .dtype = dtype,
                         .out_dtype = out_dtype,
                         .N = s.N,
                         .C = s.C,
                         .OC = s.OC,
                         .a = p.a->data,
                         .b = p.b->data,
                         .ld_a = cols_a + gap,
                         .ld_b = cols_b + gap,
                         .bias = extras ? p.bias->data : NULL,
                         .out = p.out->data,
                         .ld_out = cols + gap,
                         .accumulate = extras};
    double *a = to_doubles(p.a), *b = to_doubles(p.b), *bias = to_doubles(p.bias);
    p.expected = to_doubles(p.out);
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < cols; c++) {
            double *e = &p.expected[r * (cols + gap) + c];
            *e = element(&p.args, a, b, r, c) + (extras ? *e : 0) +
                 (extras && op == OT_MATMUL_FORWARD ? bias[c] : 0);
        }
    return p;
}

static void products_match_fp64(void **state)
{
    for (ot_matmul_op op = OT_MATMUL_FORWARD; op <= OT_MATMUL_DW; op++)
        for (ot_dtype dtype = OT_FP32; dtype <= OT_FP16; dtype++)
            for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
                for (int extras = 0; extras < 2; extras++) {
                    problem p = make_problem(op, dtype, op == OT_MATMUL_DW ? OT_FP32 : dtype, shapes[i],
                                             i % 2 * 3, extras);
                    run_per_isa(run, check, &p, (tensor *[]){p.out, NULL});
                    free_tensors(state);
                }
}

/* Logits and gradients of 16-bit inputs, in FP32. */
static void outputs_may_be_fp32(void **state)
{
    for (ot_matmul_op op = OT_MATMUL_FORWARD; op <= OT_MATMUL_DX; op++)
        for (ot_dtype dtype = OT_BF16; dtype <= OT_FP16; dtype++)
            for (int extras = 0; extras < 2; extras++) {
                problem p = make_problem(op, dtype, OT_FP32, (shape){65, 100, 200}, 5, extras);
                run_per_isa(run, check, &p, (tensor *[]){p.out, NULL});
                free_tensors(state);
            }
}

/* More rows than are packed at a time where the sum is short. */
static void rows_beyond_one_packing(void **state)
{
    (void)state;
    problem p = make_problem(OT_MATMUL_DX, OT_BF16, OT_BF16, (shape){4200, 80, 33}, 0, 0);
    run_per_isa(run, check, &p, (tensor *[]){p.out, NULL});
}

static void check_infinity(void *context)
{
    problem *p = context;
    for (size_t r = 0; r < p->args.N; r++)
        for (size_t c = 0; c < p->args.OC; c++)
            assert_int_equal(isfinite(get(p->out, r * p->args.ld_out + c)) != 0, r != 5 && c != 17);
}

/* Also where they are multiplied with the zeros that fill up a tile. */
static void infinities_stay_in_their_rows(void **state)
{
    for (ot_dtype dtype = OT_FP32; dtype <= OT_FP16; dtype++) {
        problem p = make_problem(OT_MATMUL_FORWARD, dtype, dtype, (shape){37, 50, 70}, 0, 0);
        set(p.a, 5 * p.args.ld_a + 49, (double)INFINITY);
        set(p.b, 17 * p.args.ld_b + 3, -(double)INFINITY);
        run_per_isa(run, check_infinity, &p, (tensor *[]){p.out, NULL});
        free_tensors(state);
    }
}

static int count_threads(void)
{
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    assert_non_null(tasks);
    while (readdir(tasks) != NULL)
        count++;
    closedir(tasks);
    return count;
}

/* The library beneath has threads of its own, which stay once they are there, and must not be asked for. */
static void no_threads_are_started(void **state)
{
    (void)state;
    int before = count_threads();
    problem p = make_problem(OT_MATMUL_FORWARD, OT_FP32, OT_FP32, (shape){300, 1200, 300}, 0, 0);
    run_per_isa(run, check, &p, (tensor *[]){p.out, NULL});
    assert_int_equal(count_threads(), before);
}

static void wrong_arguments_are_rejected(void **state)
{
    (void)state;
    problem p = make_problem(OT_MATMUL_FORWARD, OT_BF16, OT_BF16, (shape){4, 4, 4}, 0, 0);
    p.args.ld_out = 3;
    expect_rejected(run, &p, OT_ERR_INTERNAL);
    p.args.ld_out = 4;
    p.args.out_dtype = OT_FP16;
    expect_rejected(run, &p, OT_ERR_INTERNAL);
    p.args.out_dtype = OT_BF16;
    p.args.op = OT_MATMUL_DW;
    expect_rejected(run, &p, OT_ERR_INTERNAL);
    p.args.op = OT_MATMUL_DX;
    p.args.N = 0;
    expect_rejected(run, &p, OT_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(no_threads_are_started, free_tensors), /* before any has been */
        cmocka_unit_test_teardown(products_match_fp64, free_tensors),
        cmocka_unit_test_teardown(outputs_may_be_fp32, free_tensors),
        cmocka_unit_test_teardown(rows_beyond_one_packing, free_tensors),
        cmocka_unit_test_teardown(infinities_stay_in_their_rows, free_tensors),
        cmocka_unit_test_teardown(wrong_arguments_are_rejected, free_tensors),
    };
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
