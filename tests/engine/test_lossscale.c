/* The loss scale as a state machine. */
#include <math.h>
#include <string.h>

#include "engine/lossscale.h"
#include "tests/support/test.h"

static void good_steps(ot_loss_scale *s, int count)
{
    for (int i = 0; i < count; i++)
        assert_int_equal(ot_loss_scale_step(s, 1, 1), OT_OK);
}

static void test_it_doubles_after_a_thousand_good_steps(void **state)
{
    (void)state;
    ot_loss_scale s;
    ot_loss_scale_init(&s, 0);
    assert_true(s.scale == 65536);
    good_steps(&s, 999);
    assert_true(s.scale == 65536);
    good_steps(&s, 1);
    assert_true(s.scale == 131072);
    good_steps(&s, 999);
    assert_true(s.scale == 131072);
    good_steps(&s, 1);
    assert_true(s.scale == 262144);
}

static void test_an_overflow_halves_it_and_starts_the_count_again(void **state)
{
    (void)state;
    ot_loss_scale s;
    ot_loss_scale_init(&s, 0);
    good_steps(&s, 999);
    assert_int_equal(ot_loss_scale_step(&s, 1, 0), OT_OK);
    assert_true(s.scale == 32768);
    assert_int_equal(s.skipped, 1);
    good_steps(&s, 999);
    assert_true(s.scale == 32768);
    good_steps(&s, 1);
    assert_true(s.scale == 65536);
}

static void test_growth_ends(void **state)
{
    (void)state;
    ot_loss_scale s;
    ot_loss_scale_init(&s, 0);
    good_steps(&s, 20 * 1000);
    assert_true(s.scale == OT_LOSS_SCALE_MAX);
}

static void test_the_floor_stops_the_run(void **state)
{
    (void)state;
    ot_loss_scale s;
    ot_loss_scale_init(&s, 0);
    for (int i = 0; i < 16; i++)
        assert_int_equal(ot_loss_scale_step(&s, 1, 0), OT_OK);
    assert_true(s.scale == 1);
    ot_loss_scale before = s;
    assert_int_equal(ot_loss_scale_step(&s, 1, 0), OT_ERR_NUMERIC);
    assert_non_null(strstr(ot_error_text(), "the lowest there is"));
    assert_memory_equal(&s, &before, sizeof s);
    good_steps(&s, 1000);
    assert_true(s.scale == 2);
}

static void test_a_loss_that_is_not_finite_is_no_overflow(void **state)
{
    (void)state;
    ot_loss_scale s;
    ot_loss_scale_init(&s, 0);
    assert_int_equal(ot_loss_scale_step(&s, 0, 0), OT_ERR_NUMERIC);
    assert_non_null(strstr(ot_error_text(), "the loss is not finite"));
    assert_true(s.scale == 65536);
    assert_int_equal(s.skipped, 0);
}

static void test_a_fixed_scale_stays_and_gives_up(void **state)
{
    (void)state;
    ot_loss_scale s;
    ot_loss_scale_init(&s, 512);
    good_steps(&s, 3000);
    assert_true(s.scale == 512);
    for (int i = 0; i < OT_LOSS_SCALE_OVERFLOWS_MAX - 1; i++)
        assert_int_equal(ot_loss_scale_step(&s, 1, 0), OT_OK);
    good_steps(&s, 1);
    for (int i = 0; i < OT_LOSS_SCALE_OVERFLOWS_MAX - 1; i++)
        assert_int_equal(ot_loss_scale_step(&s, 1, 0), OT_OK);
    assert_true(s.scale == 512);
    assert_int_equal(ot_loss_scale_step(&s, 1, 0), OT_ERR_NUMERIC);
    assert_int_equal(s.skipped, 2 * (OT_LOSS_SCALE_OVERFLOWS_MAX - 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_it_doubles_after_a_thousand_good_steps),
        cmocka_unit_test(test_an_overflow_halves_it_and_starts_the_count_again),
        cmocka_unit_test(test_growth_ends),
        cmocka_unit_test(test_the_floor_stops_the_run),
        cmocka_unit_test(test_a_loss_that_is_not_finite_is_no_overflow),
        cmocka_unit_test(test_a_fixed_scale_stays_and_gives_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
