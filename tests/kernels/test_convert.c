/* Casts over all 16-bit patterns and every way to round, sums of squares, the split master. */
#include <math.h>
#include <string.h>

#include "kernels/random.h"
#include "tests/kernels/harness.h"
#include "tests/support/test.h"

static void run_cast(const ot_kernels *kernels, ot_stream *stream, void *context)
{
    kernels->cast(stream, context);
}

static void every_pattern_widens_and_comes_back(void **state)
{
    (void)state;
    for (ot_dtype dtype = OT_BF16; dtype <= OT_FP16; dtype++) {
        tensor *narrow = make_filled(dtype, 65536, 0), *wide = make_filled(OT_FP32, 65536, 0);
        tensor *back = make_filled(dtype, 65536, 0);
        for (size_t i = 0; i < 65536; i++)
            ((uint16_t *)narrow->data)[i] = (uint16_t)i;
        ot_cast widen = {
            .src_dtype = dtype, .dst_dtype = OT_FP32, .n = 65536, .src = narrow->data, .dst = wide->data};
        ot_cast cut = {
            .src_dtype = OT_FP32, .dst_dtype = dtype, .n = 65536, .src = wide->data, .dst = back->data};
        run_everywhere(run_cast, &widen, (tensor *[]){wide, NULL});
        run_everywhere(run_cast, &cut, (tensor *[]){back, NULL});
        for (size_t i = 0; i < 65536; i++) {
            double expected = decode16(dtype, (uint16_t)i), found = get(wide, i);
            if (expected != expected) {
                assert_true(found != found);
                assert_true(get(back, i) != get(back, i));
                continue;
            }
            assert_memory_equal(&found, &expected, sizeof found); /* -0 is not 0 */
            assert_int_equal(((uint16_t *)back->data)[i], i);
        }
    }
}

/* Around every value of the narrow type: the point midway to the next, and one FP32 step to each side of it.
 */
static void nearest_is_ties_to_even(void **state)
{
    (void)state;
    for (ot_dtype dtype = OT_BF16; dtype <= OT_FP16; dtype++) {
        size_t patterns = dtype == OT_BF16 ? 0x7f80 : 0x7c00, n = patterns * 6;
        tensor *wide = make_filled(OT_FP32, n, 0), *narrow = make_filled(dtype, n, 0);
        for (size_t i = 0; i < patterns; i++) {
            double low = decode16(dtype, (uint16_t)i);
            double high = i + 1 < patterns ? decode16(dtype, (uint16_t)(i + 1))
                                           : low + (low - decode16(dtype, (uint16_t)(i - 1)));
            float middle = (float)((low + high) / 2);
            float points[3] = {middle, nextafterf(middle, 0), nextafterf(middle, INFINITY)};
            for (size_t k = 0; k < 3; k++) {
                set(wide, i * 6 + 2 * k, (double)points[k]);
                set(wide, i * 6 + 2 * k + 1, -(double)points[k]);
            }
        }
        ot_cast args = {
            .src_dtype = OT_FP32, .dst_dtype = dtype, .n = n, .src = wide->data, .dst = narrow->data};
        run_everywhere(run_cast, &args, (tensor *[]){narrow, NULL});
        for (size_t i = 0; i < n; i++)
            assert_true(get(narrow, i) == round_to(dtype, get(wide, i)));
    }
}

static void special_values_survive_both_roundings(void **state)
{
    (void)state;
    static const float values[] = {INFINITY, -INFINITY, NAN,   -NAN,  1e30f, -1e30f, 1e-42f,
                                   -1e-42f,  0.0f,      -0.0f, 65504, 65520, 3e38f};
    size_t n = sizeof values / sizeof values[0];
    for (ot_dtype dtype = OT_BF16; dtype <= OT_FP16; dtype++) {
        for (ot_rounding rounding = OT_ROUND_NEAREST; rounding <= OT_ROUND_STOCHASTIC; rounding++) {
            tensor *wide = make_filled(OT_FP32, n, 0), *narrow = make_filled(dtype, n, 0);
            memcpy(wide->data, values, sizeof values);
            ot_cast args = {.src_dtype = OT_FP32,
                            .dst_dtype = dtype,
                            .n = n,
                            .src = wide->data,
                            .dst = narrow->data,
                            .rounding = rounding};
            run_everywhere(run_cast, &args, (tensor *[]){narrow, NULL});
            assert_true(get(narrow, 0) == (double)INFINITY && get(narrow, 1) == -(double)INFINITY);
            assert_true(isnan(get(narrow, 2)) && isnan(get(narrow, 3)));
            assert_true(get(narrow, 8) == 0 && !signbit(get(narrow, 8)) && signbit(get(narrow, 9)));
            if (dtype == OT_FP16)
                assert_true(get(narrow, 4) == (double)INFINITY && get(narrow, 5) == -(double)INFINITY &&
                            get(narrow, 10) == 65504);
        }
    }
}

/* The mean over many draws is the value, within five standard deviations; each draw is one of the two
 * neighbours; and the same element rounds the same way in a chunk that starts elsewhere. */
static void stochastic_rounding_is_unbiased_and_counted(void **state)
{
    (void)state;
    enum { DRAWS = 20000, FIRST = 4096 };
    static const double values[] = {1.001, -3.14159, 1e-6, 3.1e-8, 6.1e-5, 1234.5, 1.0};
    for (ot_dtype dtype = OT_BF16; dtype <= OT_FP16; dtype++) {
        for (size_t k = 0; k < sizeof values / sizeof values[0]; k++) {
            tensor *wide = make_filled(OT_FP32, DRAWS, values[k]), *narrow = make_filled(dtype, DRAWS, 0);
            ot_cast args = {.src_dtype = OT_FP32,
                            .dst_dtype = dtype,
                            .n = DRAWS,
                            .src = wide->data,
                            .dst = narrow->data,
                            .rounding = OT_ROUND_STOCHASTIC,
                            .seed = 42,
                            .sequence = 7,
                            .first = 1000};
            run_everywhere(run_cast, &args, (tensor *[]){narrow, NULL});
            double x = get(wide, 0), low = INFINITY, high = -INFINITY, sum = 0;
            for (size_t i = 0; i < DRAWS; i++) {
                low = fmin(low, get(narrow, i));
                high = fmax(high, get(narrow, i));
                sum += get(narrow, i);
            }
            assert_true(low <= x && x <= high);
            assert_true(low == high || (round_to(dtype, low + 0.51 * (high - low)) == high &&
                                        round_to(dtype, low + 0.49 * (high - low)) == low));
            assert_true(fabs(sum / DRAWS - x) <= 2.5 * (high - low) / sqrt(DRAWS) + 1e-12 * fabs(x));

            tensor *part = make_filled(dtype, DRAWS - FIRST - 3, 0);
            ot_cast rest = args;
            rest.n = part->n;
            rest.dst = part->data;
            rest.first += FIRST + 3;
            run_everywhere(run_cast, &rest, (tensor *[]){part, NULL});
            assert_memory_equal(part->data, (uint16_t *)narrow->data + FIRST + 3, part->n * 2);
        }
    }
}

/* Known answers of Random123 exist for ten rounds; with seven, what is tested is that all 128 bits of the
 * counter and the key matter, and that the words look uniform. */
static void random_words_depend_on_every_bit(void **state)
{
    (void)state;
    uint32_t base[4], other[4];
    ot_philox(1, 2, 3, base);
    for (int bit = 0; bit < 64; bit++) {
        uint64_t flip = (uint64_t)1 << bit;
        for (int which = 0; which < 3; which++) {
            ot_philox(which == 0 ? 1 ^ flip : 1, which == 1 ? 2 ^ flip : 2, which == 2 ? 3 ^ flip : 3, other);
            int changed = 0;
            for (int k = 0; k < 4; k++)
                changed += __builtin_popcount(base[k] ^ other[k]);
            assert_in_range(changed, 40, 88);
        }
    }
}

typedef struct square_context {
    ot_sum_squares squares;
    ot_sum sum;
} square_context;

static void run_squares(const ot_kernels *kernels, ot_stream *stream, void *context)
{
    square_context *c = context;
    kernels->sum_squares(stream, &c->squares);
    kernels->sum_partials(stream, &c->sum);
}

/* A tensor of doubles, seen as twice as many FP32. */
static tensor *make_double_tensor(size_t n)
{
    return make_filled(OT_FP32, 2 * n, 0);
}

static void sums_of_squares_do_not_depend_on_chunks(void **state)
{
    (void)state;
    const size_t N = 5 * OT_SUM_BLOCK + 77, CUT = 2;
    for (ot_dtype dtype = OT_FP32; dtype <= OT_FP16; dtype++) {
        tensor *x = make_random(dtype, N, 3, 11);
        tensor *partials = make_double_tensor(6), *sum = make_double_tensor(1),
               *parts = make_double_tensor(6);
        square_context c = {{dtype, N, x->data, partials->data}, {6, partials->data, sum->data, 0}};
        run_everywhere(run_squares, &c, (tensor *[]){partials, sum, NULL});
        double expected = 0, found;
        for (size_t i = 0; i < N; i++)
            expected += get(x, i) * get(x, i);
        memcpy(&found, sum->data, sizeof found);
        assert_true(fabs(found - expected) <= 1e-12 * expected);

        size_t head = CUT * OT_SUM_BLOCK;
        square_context first = {{dtype, head, x->data, parts->data}, {0, NULL, sum->data, 1}};
        square_context second = {
            {dtype, N - head, (char *)x->data + head * ot_dtype_bytes(dtype), (double *)parts->data + CUT},
            {0, NULL, sum->data, 1}};
        run_everywhere(run_squares, &first, (tensor *[]){sum, NULL});
        run_everywhere(run_squares, &second, (tensor *[]){sum, NULL});
        assert_memory_equal(parts->data, partials->data, 6 * sizeof(double));
    }
}

static void sums_of_squares_show_every_overflow(void **state)
{
    (void)state;
    static const float bad[] = {INFINITY, -INFINITY, NAN};
    tensor *x = make_filled(OT_FP32, 1000, 3e38), *partials = make_double_tensor(1),
           *sum = make_double_tensor(1);
    square_context c = {{OT_FP32, 1000, x->data, partials->data}, {1, partials->data, sum->data, 0}};
    double found;
    run_everywhere(run_squares, &c, (tensor *[]){partials, sum, NULL});
    memcpy(&found, sum->data, sizeof found);
    assert_true(isfinite(found)); /* 1000 * 9e76 fits into FP64 */
    for (size_t k = 0; k < 3; k++) {
        for (size_t at = 0; at < 1000; at += 333) {
            set(x, at, (double)bad[k]);
            run_everywhere(run_squares, &c, (tensor *[]){partials, sum, NULL});
            memcpy(&found, sum->data, sizeof found);
            assert_true(!isfinite(found));
            set(x, at, 1);
        }
    }
}

static void run_cast_sum(const ot_kernels *kernels, ot_stream *stream, void *context)
{
    kernels->cast_sum_squares(stream, context);
}

static void cast_sums_what_it_rounded(void **state)
{
    (void)state;
    enum { N = OT_SUM_BLOCK + 333 };
    for (ot_dtype dtype = OT_FP32; dtype <= OT_FP16; dtype++) {
        tensor *x = make_random(OT_FP32, N, 2, 5), *out = make_filled(dtype, N, 0),
               *partials = make_double_tensor(2);
        ot_cast_sum_squares args = {dtype, N, x->data, 0.37f, out->data, partials->data};
        run_everywhere(run_cast_sum, &args, (tensor *[]){out, partials, NULL});
        double sum = 0;
        for (size_t i = 0; i < N; i++) {
            assert_true(get(out, i) == round_to(dtype, (double)(((float *)x->data)[i] * 0.37f)));
            sum += get(out, i) * get(out, i);
        }
        const double *found = partials->data;
        assert_true(fabs(found[0] + found[1] - sum) <= 1e-12 * sum);
        set(x, 7, 1e6); /* finite in FP32, inf in FP16 */
        run_everywhere(run_cast_sum, &args, (tensor *[]){out, partials, NULL});
        assert_true(isfinite(found[0]) == (dtype != OT_FP16));
    }
}

static void run_split(const ot_kernels *kernels, ot_stream *stream, void *context)
{
    kernels->split_master(stream, context);
}

static void run_join(const ot_kernels *kernels, ot_stream *stream, void *context)
{
    kernels->join_master(stream, context);
}

static void split_master_is_exact(void **state)
{
    (void)state;
    enum { N = 1 << 20 };
    tensor *master = make_filled(OT_FP32, N, 0), *hi = make_filled(OT_BF16, N, 0),
           *lo = make_filled(OT_BF16, N, 0);
    tensor *back = make_filled(OT_FP32, N, 0);
    uint32_t *raw = master->data;
    for (uint32_t i = 0; i < N; i++) { /* every high half, with ties, their neighbours and others below */
        uint32_t group = i >> 16, low = group < 3 ? 0x7fff + group : i * 40503u >> 3 & 0xffff;
        raw[i] = i << 16 | low;
    }
    ot_split split = {N, master->data, hi->data, lo->data}, join = {N, back->data, hi->data, lo->data};
    run_everywhere(run_split, &split, (tensor *[]){hi, lo, NULL});
    run_everywhere(run_join, &join, (tensor *[]){back, NULL});
    assert_memory_equal(back->data, master->data, N * sizeof(float));
    for (size_t i = 0; i < N; i++) {
        double x = get(master, i);
        if (isfinite(x) && fabs(x) < 1e38) { /* nearest to x, and where two are, the larger in size */
            double down = decode16(OT_BF16, (uint16_t)(raw[i] >> 16)),
                   up = decode16(OT_BF16, (uint16_t)((raw[i] >> 16) + 1));
            assert_true(get(hi, i) == (fabs(x - down) < fabs(up - x) ? down : up));
        }
    }
}

typedef struct scale_context {
    ot_scale scale;
    ot_accumulate accumulate;
} scale_context;

static void run_scale(const ot_kernels *kernels, ot_stream *stream, void *context)
{
    scale_context *c = context;
    kernels->scale(stream, &c->scale);
    kernels->accumulate(stream, &c->accumulate);
}

static void scaling_and_accumulating_round_once(void **state)
{
    (void)state;
    enum { N = 10007 };
    for (ot_dtype dtype = OT_FP32; dtype <= OT_FP16; dtype++) {
        tensor *x = make_random(dtype, N, 1, 3), *sum = make_random(OT_FP32, N, 1, 4);
        scale_context c = {{dtype, N, x->data, 1.7f}, {dtype, N, sum->data, x->data, -0.3f}};
        double *x0 = to_doubles(x), *sum0 = to_doubles(sum);
        run_everywhere(run_scale, &c, (tensor *[]){x, sum, NULL});
        for (size_t i = 0; i < N; i++) {
            assert_true(get(x, i) == round_to(dtype, (double)((float)x0[i] * 1.7f)));
            assert_true(get(sum, i) == (double)((float)sum0[i] + (float)get(x, i) * -0.3f));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(every_pattern_widens_and_comes_back, free_tensors),
        cmocka_unit_test_teardown(nearest_is_ties_to_even, free_tensors),
        cmocka_unit_test_teardown(special_values_survive_both_roundings, free_tensors),
        cmocka_unit_test_teardown(stochastic_rounding_is_unbiased_and_counted, free_tensors),
        cmocka_unit_test(random_words_depend_on_every_bit),
        cmocka_unit_test_teardown(sums_of_squares_do_not_depend_on_chunks, free_tensors),
        cmocka_unit_test_teardown(sums_of_squares_show_every_overflow, free_tensors),
        cmocka_unit_test_teardown(cast_sums_what_it_rounded, free_tensors),
        cmocka_unit_test_teardown(split_master_is_exact, free_tensors),
        cmocka_unit_test_teardown(scaling_and_accumulating_round_once, free_tensors),
    };
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
