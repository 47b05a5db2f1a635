/* The choice of a token against closed forms. */
#include <math.h>
#include <stdlib.h>

#include "tests/support/test.h"
#include "tools/generate.h"

enum { V = 5 };
static const float logits[V] = {1.0f, 3.0f, 2.0f, -1.0f, 3.0f};

static void without_temperature_it_is_the_first_likeliest(void **state)
{
    (void)state;
    int32_t order[V];
    assert_int_equal(ot_choose_token(logits, V, 0, 1, 0.99, order), 1);
}

/* How often each token comes over a fine grid of uniform numbers. */
static void count_tokens(double temperature, double top_p, double share[V])
{
    enum { GRID = 20000 };
    int32_t order[V];
    for (int v = 0; v < V; v++)
        share[v] = 0;
    for (int i = 0; i < GRID; i++)
        share[ot_choose_token(logits, V, temperature, top_p, (i + 0.5) / GRID, order)] += 1.0 / GRID;
}

static void shares_are_the_softmax(void **state)
{
    (void)state;
    static const double temperatures[] = {0.5, 1, 3};
    for (int i = 0; i < 3; i++) {
        double share[V], sum = 0;
        for (int v = 0; v < V; v++)
            sum += exp((double)logits[v] / temperatures[i]);
        count_tokens(temperatures[i], 1, share);
        for (int v = 0; v < V; v++)
            assert_true(fabs(share[v] - exp((double)logits[v] / temperatures[i]) / sum) < 2e-4);
    }
}

static void top_p_keeps_the_likeliest(void **state)
{
    (void)state;
    double share[V];
    count_tokens(1, 0.5, share); /* the two of logit 3 have 0.41 each */
    assert_true(fabs(share[1] - 0.5) < 1e-3 && fabs(share[4] - 0.5) < 1e-3);
    count_tokens(1, 0, share); /* never less than one */
    assert_true(fabs(share[1] - 1) < 1e-9);
    count_tokens(1, 0.9, share);
    double e = exp(-1);
    assert_true(fabs(share[2] - e / (2 + e)) < 2e-4 && share[0] == 0 && share[3] == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_temperature_it_is_the_first_likeliest),
        cmocka_unit_test(shares_are_the_softmax),
        cmocka_unit_test(top_p_keeps_the_likeliest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
