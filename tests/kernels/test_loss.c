/* Cross-entropy over chunks of logits, against FP64 and finite differences. */
#include <math.h>
#include <string.h>

#include "tests/kernels/harness.h"
#include "tests/support/test.h"

static void run_loss(const ot_kernels *kernels, ot_stream *stream, void *context)
{
    kernels->cross_entropy(stream, context);
}

typedef struct row {
    double *logits;
    size_t V;
    int32_t target;
} row;

static double loss_of(void *context)
{
    const row *r = context;
    double max = -INFINITY, sum = 0;
    for (size_t v = 0; v < r->V; v++)
        max = fmax(max, r->logits[v]);
    for (size_t v = 0; v < r->V; v++)
        sum += exp(r->logits[v] - max);
    return log(sum) + max - r->logits[r->target];
}

static double probability(const row *r, size_t v)
{
    row at = *r;
    at.target = (int32_t)v;
    return exp(-loss_of(&at));
}

static void check(ot_dtype dtype, size_t N, size_t V, size_t ld, double spread)
{
    tensor *logits = make_random(dtype, N * ld, spread, 1), *losses = make_filled(OT_FP32, N, 9);
    int32_t *targets = make_indices(N, (int32_t)V, 2);
    targets[N / 2] = -1;
    double *x = to_doubles(logits), *dx = to_doubles(logits), *expected = make_doubles(N);
    const float scale = 3.0f / 7;
    ot_cross_entropy args = {dtype, N, V, ld, logits->data, targets, losses->data, 0, scale};
    run_everywhere(run_loss, &args, (tensor *[]){logits, losses, NULL});
    assert_memory_equal(logits->data, logits->before, N * ld * ot_dtype_bytes(dtype));
    args.backward = 1;
    run_everywhere(run_loss, &args, (tensor *[]){logits, losses, NULL});
    for (size_t n = 0; n < N; n++) {
        row r = {x + n * ld, V, targets[n]};
        expected[n] = targets[n] >= 0 ? loss_of(&r) : 0;
        size_t step = V > 100 ? V / 50 : 1;
        for (size_t v = 0; v < V; v++)
            dx[n * ld + v] =
                targets[n] < 0 ? 0 : (probability(&r, v) - ((int32_t)v == targets[n])) * (double)scale;
        for (size_t v = 0; v < V && targets[n] >= 0; v += step) /* the formula itself, by differences */
            assert_true(fabs(finite_difference(loss_of, &r, &r.logits[v]) * (double)scale - dx[n * ld + v]) <
                        1e-8);
    }
    expect_close(losses, expected, 1e-6, "losses");
    expect_close(logits, dx, tolerance_of(dtype), "dlogits");
    assert_true(get(losses, N / 2) == 0 && get(logits, N / 2 * ld) == 0);
}

static void losses_and_gradients_match_fp64(void **state)
{
    for (ot_dtype dtype = OT_FP32; dtype <= OT_FP16; dtype++) {
        check(dtype, 3, 2, 2, 1);
        check(dtype, 17, 259, 272, 4);
        check(dtype, 5, 5003, 5003, 10);
        free_tensors(state);
    }
}

static void large_logits_do_not_overflow(void **state)
{
    (void)state;
    enum { V = 100 };
    tensor *logits = make_filled(OT_FP32, V, -3e38), *losses = make_filled(OT_FP32, 1, 0);
    int32_t target = 3;
    ((float *)logits->before)[3] = 3e38f;
    ot_cross_entropy args = {OT_FP32, 1, V, V, logits->data, &target, losses->data, 1, 1};
    run_everywhere(run_loss, &args, (tensor *[]){losses, logits, NULL});
    assert_true(get(losses, 0) == 0 && get(logits, 3) == 0 && get(logits, 4) == 0);
}

static void not_finite_logits_show(void **state)
{
    (void)state;
    enum { V = 100 };
    static const float bad[] = {INFINITY, NAN};
    for (size_t k = 0; k < 2; k++) {
        tensor *logits = make_filled(OT_FP32, V, 1), *losses = make_filled(OT_FP32, 1, 0);
        int32_t target = 3;
        ((float *)logits->before)[99] = bad[k];
        ot_cross_entropy args = {OT_FP32, 1, V, V, logits->data, &target, losses->data, 1, 1};
        run_everywhere(run_loss, &args, (tensor *[]){logits, NULL});
        assert_true(isnan(get(losses, 0)));
    }
}

static void run_sum(const ot_kernels *kernels, ot_stream *stream, void *context)
{
    kernels->sum_losses(stream, context);
}

static void losses_are_summed_in_order(void **state)
{
    (void)state;
    tensor *losses = make_random(OT_FP32, 1001, 1, 1), *sum = make_filled(OT_FP32, 2, 0);
    double expected = 0.25, first = 0.25, found;
    memcpy(sum->before, &first, sizeof first);
    for (size_t i = 0; i < losses->n; i++)
        expected += get(losses, i);
    ot_sum args = {losses->n, losses->data, sum->data, 1};
    run_everywhere(run_sum, &args, (tensor *[]){sum, NULL});
    memcpy(&found, sum->data, sizeof found);
    assert_true(found == expected);
}

static void a_target_outside_the_vocabulary_is_rejected(void **state)
{
    (void)state;
    tensor *logits = make_filled(OT_FP32, 4, 0), *losses = make_filled(OT_FP32, 1, 0);
    for (int32_t target = -2; target <= 4; target += 6) {
        ot_cross_entropy args = {OT_FP32, 1, 4, 4, logits->data, &target, losses->data, 1, 1};
        expect_rejected(run_loss, &args, OT_ERR_INTERNAL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(losses_and_gradients_match_fp64, free_tensors),
        cmocka_unit_test_teardown(large_logits_do_not_overflow, free_tensors),
        cmocka_unit_test_teardown(not_finite_logits_show, free_tensors),
        cmocka_unit_test_teardown(losses_are_summed_in_order, free_tensors),
        cmocka_unit_test_teardown(a_target_outside_the_vocabulary_is_rejected, free_tensors),
    };
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
