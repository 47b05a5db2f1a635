/* Learning rates against their closed forms. */
#include <math.h>
#include <string.h>

#include "engine/schedule.h"
#include "tests/support/test.h"

static void expect_rate(const ot_schedule *s, uint64_t step, double expected)
{
    double rate = ot_learning_rate(s, step);
    if (fabs(rate - expected) > 1e-12 * fabs(s->lr))
        fail_msg("step %lu: %.17g, expected %.17g", (unsigned long)step, rate, expected);
}

static ot_schedule make(ot_schedule_kind kind, double min_ratio, uint64_t warmup, uint64_t total)
{
    return (ot_schedule){
        .kind = kind, .lr = 0.5, .min_ratio = min_ratio, .warmup_steps = warmup, .total_steps = total};
}

static void test_warmup_is_a_straight_line(void **state)
{
    (void)state;
    for (ot_schedule_kind kind = OT_SCHEDULE_CONSTANT; kind <= OT_SCHEDULE_WSD; kind++) {
        ot_schedule s = make(kind, 0.1, 10, 100);
        expect_rate(&s, 1, 0.05);
        expect_rate(&s, 7, 0.35);
        expect_rate(&s, 10, 0.5);
    }
}

static void test_constant_stays(void **state)
{
    (void)state;
    ot_schedule s = make(OT_SCHEDULE_CONSTANT, 0.1, 4, 20);
    expect_rate(&s, 5, 0.5);
    expect_rate(&s, 20, 0.5);
    expect_rate(&s, 1000, 0.5);
}

static void test_linear_falls_to_the_minimum_at_the_last_step(void **state)
{
    (void)state;
    ot_schedule s = make(OT_SCHEDULE_LINEAR, 0.2, 10, 50);
    expect_rate(&s, 20, 0.4);
    expect_rate(&s, 30, 0.3);
    expect_rate(&s, 50, 0.1);
    expect_rate(&s, 51, 0.1);
}

static void test_cosine_falls_to_the_minimum_at_the_last_step(void **state)
{
    (void)state;
    ot_schedule s = make(OT_SCHEDULE_COSINE, 0.1, 0, 120);
    expect_rate(&s, 20, 0.5 * (0.1 + 0.9 * (1 + sqrt(3) / 2) / 2)); /* cos(pi/6) */
    expect_rate(&s, 40, 0.5 * (0.1 + 0.9 * 0.75));
    expect_rate(&s, 60, 0.5 * 0.55);
    expect_rate(&s, 80, 0.5 * (0.1 + 0.9 * 0.25));
    expect_rate(&s, 120, 0.05);
    expect_rate(&s, 121, 0.05);
}

static void test_wsd_stays_and_then_falls(void **state)
{
    (void)state;
    ot_schedule s = make(OT_SCHEDULE_WSD, 0, 10, 100);
    expect_rate(&s, 11, 0.5);
    expect_rate(&s, 90, 0.5);
    expect_rate(&s, 91, 0.45);
    expect_rate(&s, 100, 0);
    s.decay_steps = 50;
    expect_rate(&s, 50, 0.5);
    expect_rate(&s, 75, 0.25);
    s.decay_steps = 1000; /* cut to the 90 steps behind the warm-up */
    expect_rate(&s, 10, 0.5);
    expect_rate(&s, 55, 0.25);
    expect_rate(&s, 100, 0);
}

static void test_a_run_that_is_all_warmup(void **state)
{
    (void)state;
    for (ot_schedule_kind kind = OT_SCHEDULE_CONSTANT; kind <= OT_SCHEDULE_WSD; kind++) {
        ot_schedule s = make(kind, 0.1, 8, 8);
        expect_rate(&s, 4, 0.25);
        expect_rate(&s, 8, 0.5);
        expect_rate(&s, 9, 0.5);
        s.total_steps = 4;
        expect_rate(&s, 4, 0.25);
    }
}

static void test_one_step(void **state)
{
    (void)state;
    ot_schedule s = make(OT_SCHEDULE_COSINE, 0.1, 0, 1);
    expect_rate(&s, 1, 0.05);
    s.kind = OT_SCHEDULE_WSD;
    expect_rate(&s, 1, 0.05);
    s.warmup_steps = 1;
    expect_rate(&s, 1, 0.5);
}

static void test_warmup_steps_by_number_and_by_share(void **state)
{
    (void)state;
    assert_int_equal(ot_warmup_steps(0, 100), 0);
    assert_int_equal(ot_warmup_steps(25, 100), 25);
    assert_int_equal(ot_warmup_steps(1, 100), 1);
    assert_int_equal(ot_warmup_steps(0.03, 100), 3);
    assert_int_equal(ot_warmup_steps(0.07, 100), 7);
    assert_int_equal(ot_warmup_steps(0.03, 10), 1);
    assert_int_equal(ot_warmup_steps(0.5, 3), 2);
}

static void test_names(void **state)
{
    (void)state;
    ot_schedule_kind kind;
    assert_int_equal(ot_schedule_parse("wsd", &kind), OT_OK);
    assert_int_equal(kind, OT_SCHEDULE_WSD);
    assert_int_equal(ot_schedule_parse("cosine", &kind), OT_OK);
    assert_int_equal(kind, OT_SCHEDULE_COSINE);
    assert_int_equal(ot_schedule_parse("cosin", &kind), OT_ERR_USAGE);
    assert_non_null(strstr(ot_error_text(), "did you mean cosine"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_warmup_is_a_straight_line),
        cmocka_unit_test(test_constant_stays),
        cmocka_unit_test(test_linear_falls_to_the_minimum_at_the_last_step),
        cmocka_unit_test(test_cosine_falls_to_the_minimum_at_the_last_step),
        cmocka_unit_test(test_wsd_stays_and_then_falls),
        cmocka_unit_test(test_a_run_that_is_all_warmup),
        cmocka_unit_test(test_one_step),
        cmocka_unit_test(test_warmup_steps_by_number_and_by_share),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
