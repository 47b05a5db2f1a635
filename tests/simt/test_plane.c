/* CUDA's casts, sums, scaling, split masters and bias against the CPU device's. */
#include <math.h>
#include <string.h>

#include "kernels/cuda/launch.h"
#include "tests/simt/compare.h"
#include "tests/support/test.h"

static const ot_dtype dtypes[] = {OT_FP32, OT_BF16, OT_FP16};
static const size_t sizes[] = {1, 33, 4096, 70001};

#define RUN(name, type)                                                                                      \
    static void name(const ot_kernels *kernels, ot_stream *stream, void *context)                            \
    {                                                                                                        \
        kernels->name(stream, (const type *)context);                                                        \
    }

RUN(cast, ot_cast)
RUN(sum_squares, ot_sum_squares)
RUN(cast_sum_squares, ot_cast_sum_squares)
RUN(sum_losses, ot_sum)
RUN(sum_partials, ot_sum)
RUN(scale, ot_scale)
RUN(accumulate, ot_accumulate)
RUN(split_master, ot_split)
RUN(join_master, ot_split)

/* Values of every size down to subnormals, with infinities; no NaN, whose bits may differ. */
static tensor *make_wide(ot_dtype dtype, size_t n)
{
    tensor *t = make_random(dtype, n, 1, 8);
    for (size_t i = 0; i < n; i++)
        set(t, i, i % 97 == 96 ? (double)INFINITY : ldexp(get(t, i), (int)(i % 50) - 30));
    memcpy(t->before, t->data, n * ot_dtype_bytes(dtype));
    return t;
}

static void casts(void **state)
{
    (void)state;
    for (size_t from = 0; from < 3; from++)
        for (size_t to = 0; to < 3; to++)
            for (size_t i = 0; i < 4; i++) {
                tensor *dst[] = {make_filled(dtypes[to], sizes[i], 0), NULL};
                ot_cast args = {.dst_dtype = dtypes[to],
                                .src_dtype = dtypes[from],
                                .n = sizes[i],
                                .src = make_wide(dtypes[from], sizes[i])->data,
                                .dst = dst[0]->data};
                compare_bytes(cast, &args, dst, "cast");
                if (from == 0) {
                    args.rounding = OT_ROUND_STOCHASTIC;
                    args.seed = 5;
                    args.first = 1000;
                    compare_bytes(cast, &args, dst, "cast, stochastic");
                }
                free_tensors(NULL);
            }
}

static void nan_stays_nan(void **state)
{
    (void)state;
    for (size_t from = 0; from < 3; from++)
        for (size_t to = 0; to < 3; to++) {
            tensor *src = make_filled(dtypes[from], 9, (double)NAN), *dst = make_filled(dtypes[to], 9, 0);
            ot_cast args = {.dst_dtype = dtypes[to],
                            .src_dtype = dtypes[from],
                            .n = 9,
                            .src = src->data,
                            .dst = dst->data};
            cast(&simt_kernels, NULL, &args);
            for (size_t i = 0; i < 9; i++)
                assert_true(isnan(get(dst, i)));
        }
}

static void expect_partials(const double *partials, const double *expected, size_t n)
{
    for (size_t i = 0; i < n; i++)
        assert_true(fabs(partials[i] - expected[i]) <= 1e-12 * expected[i]);
}

static void sums_of_squares(void **state)
{
    (void)state;
    for (size_t d = 0; d < 3; d++)
        for (size_t i = 0; i < 4; i++) {
            double expected[2] = {0, 0}, partials[2];
            tensor *x = make_random(dtypes[d], sizes[i], 1e3, 1);
            ot_sum_squares args = {.dtype = dtypes[d], .n = sizes[i], .x = x->data, .partials = partials};
            for (size_t k = 0; k < sizes[i]; k++)
                expected[k / OT_SUM_BLOCK] += get(x, k) * get(x, k);
            sum_squares(&simt_kernels, NULL, &args);
            expect_partials(partials, expected, ot_sum_blocks(sizes[i]));
            free_tensors(NULL);
        }
}

/* The sum is that of the values as they were rounded. */
static void gradients_on_their_way_out(void **state)
{
    (void)state;
    for (size_t d = 0; d < 3; d++)
        for (size_t i = 0; i < 4; i++) {
            double expected[2] = {0, 0}, partials[2];
            tensor *dst[] = {make_filled(dtypes[d], sizes[i], 0), NULL};
            ot_cast_sum_squares args = {.dst_dtype = dtypes[d],
                                        .n = sizes[i],
                                        .scale = 3,
                                        .src = make_random(OT_FP32, sizes[i], 1, 1)->data,
                                        .dst = dst[0]->data,
                                        .partials = partials};
            compare_bytes(cast_sum_squares, &args, dst, "cast_sum_squares");
            for (size_t k = 0; k < sizes[i]; k++)
                expected[k / OT_SUM_BLOCK] += get(dst[0], k) * get(dst[0], k);
            expect_partials(partials, expected, ot_sum_blocks(sizes[i]));
            free_tensors(NULL);
        }
}

static void overflow_is_seen(void **state)
{
    (void)state;
    static const struct {
        double value;
        int finite;
    } cases[] = {{1e30, 0}, {(double)NAN, 0}, {-(double)INFINITY, 0}, {60000, 1}};
    for (size_t i = 0; i < 4; i++) {
        double partials[2];
        tensor *src = make_filled(OT_FP32, 70000, 1), *dst = make_filled(OT_FP16, 70000, 0);
        set(src, 69999, cases[i].value); /* 1e30 overflows in 16 bits only */
        ot_cast_sum_squares args = {.dst_dtype = OT_FP16,
                                    .n = 70000,
                                    .scale = 1,
                                    .src = src->data,
                                    .dst = dst->data,
                                    .partials = partials};
        cast_sum_squares(&simt_kernels, NULL, &args);
        assert_true(partials[0] == 65536);
        assert_int_equal(isfinite(partials[1]), cases[i].finite);
    }
}

static void sums_in_order(void **state)
{
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        tensor *x = make_random(OT_FP32, sizes[i], 1, 1), *out[] = {make_filled(OT_FP32, 2, 1.5), NULL};
        ot_sum args = {.n = sizes[i], .x = x->data, .out = out[0]->data, .add = (int)i % 2};
        compare_bytes(sum_losses, &args, out, "sum_losses");
        args.n /= 2; /* the same bits as FP64 */
        compare_bytes(sum_partials, &args, out, "sum_partials");
        free_tensors(NULL);
    }
    tensor *out[] = {make_filled(OT_FP32, 2, 1.5), NULL};
    ot_sum args = {.n = 2000, .x = make_random(OT_FP32, 2000, 1, 1)->data, .out = out[0]->data};
    expect_barriers_needed(sum_losses, &args, out, "");
}

static void scaling(void **state)
{
    (void)state;
    for (size_t d = 0; d < 3; d++)
        for (size_t i = 0; i < 4; i++) {
            tensor *x[] = {make_wide(dtypes[d], sizes[i]), NULL};
            ot_scale args = {.dtype = dtypes[d], .n = sizes[i], .x = x[0]->data, .factor = 0.37f};
            compare_bytes(scale, &args, x, "scale");
            tensor *sum[] = {make_random(OT_FP32, sizes[i], 1, 2), NULL};
            ot_accumulate add = {.src_dtype = dtypes[d],
                                 .n = sizes[i],
                                 .dst = sum[0]->data,
                                 .src = make_random(dtypes[d], sizes[i], 1, 3)->data,
                                 .factor = 0.37f};
            compare_bytes(accumulate, &add, sum, "accumulate");
            free_tensors(NULL);
        }
}

static void split_masters(void **state)
{
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        tensor *master[] = {make_wide(OT_FP32, sizes[i]), NULL};
        tensor *parts[] = {make_filled(OT_BF16, sizes[i], 0), make_filled(OT_BF16, sizes[i], 0), NULL};
        ot_split args = {
            .n = sizes[i], .master = master[0]->data, .hi = parts[0]->data, .lo = parts[1]->data};
        compare_bytes(split_master, &args, parts, "split_master");
        compare_bytes(join_master, &args, master, "join_master");
        assert_memory_equal(master[0]->data, master[0]->before, sizes[i] * sizeof(float));
        free_tensors(NULL);
    }
}

static void bias_in_front_of_a_product(void **state)
{
    (void)state;
    for (size_t d = 0; d < 3; d++)
        for (int mode = 0; mode < 4; mode++) {
            enum { N = 5, OC = 77, LD = 80 };
            ot_dtype out_dtype = mode % 2 ? OT_FP32 : dtypes[d];
            tensor *out = make_random(out_dtype, N * LD, 1, 1), *bias = make_random(dtypes[d], OC, 1, 2);
            double *before = to_doubles(out);
            ot_matmul args = {.dtype = dtypes[d],
                              .out_dtype = out_dtype,
                              .N = N,
                              .OC = OC,
                              .ld_out = LD,
                              .bias = bias->data,
                              .out = out->data,
                              .accumulate = mode / 2};
            assert_int_equal(ot_cuda_add_bias(NULL, &args), cudaSuccess);
            for (size_t i = 0; i < N * LD; i++) {
                double sum = (double)(float)(before[i] + (i % LD < OC ? get(bias, i % LD) : 0));
                double expected = i % LD >= OC ? before[i] : args.accumulate ? sum : get(bias, i % LD);
                assert_true(get(out, i) == round_to(out_dtype, expected));
            }
            free_tensors(NULL);
        }
}

static void nothing_is_moved_twice(void **state)
{
    (void)state;
    enum { n = 70000 };
    double partials[2];
    void *wide = make_random(OT_FP32, n, 1, 1)->data, *half = make_filled(OT_BF16, n, 0)->data;
    ot_cast narrow = {.dst_dtype = OT_BF16, .src_dtype = OT_FP32, .n = n, .src = wide, .dst = half};
    expect_bytes(cast, &narrow, 4 * n, 2 * n, "cast");
    ot_cast_sum_squares out = {
        .dst_dtype = OT_BF16, .n = n, .scale = 1, .src = wide, .dst = half, .partials = partials};
    expect_bytes(cast_sum_squares, &out, 4 * n, 2 * n, "cast_sum_squares");
    ot_accumulate add = {.src_dtype = OT_BF16, .n = n, .dst = wide, .src = half, .factor = 1};
    expect_bytes(accumulate, &add, 6 * n, 4 * n, "accumulate");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(casts, free_tensors),
        cmocka_unit_test_teardown(nan_stays_nan, free_tensors),
        cmocka_unit_test_teardown(sums_of_squares, free_tensors),
        cmocka_unit_test_teardown(gradients_on_their_way_out, free_tensors),
        cmocka_unit_test_teardown(overflow_is_seen, free_tensors),
        cmocka_unit_test_teardown(sums_in_order, free_tensors),
        cmocka_unit_test_teardown(scaling, free_tensors),
        cmocka_unit_test_teardown(split_masters, free_tensors),
        cmocka_unit_test_teardown(bias_in_front_of_a_product, free_tensors),
        cmocka_unit_test_teardown(nothing_is_moved_twice, free_tensors),
    };
    return cmocka_run_group_tests(tests, open_cpu, close_cpu);
}
