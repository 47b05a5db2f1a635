/* Case 43: what a step's row says of the time to come is of this session's last steps, with the pauses that are due. The steps'
 * seconds are made up here, so that everything is known in closed form; the trainer is a real one, for what a row asks of it. */
#include <math.h>

#include "engine/data.h"
#include "tests/support/test.h"
#include "tests/support/tiny.h"
#include "tools/metrics.h"

enum { T = 16, SEQUENCES = 2, TOTAL = 103, BEFORE = 40, EARLIER_S = 5000 };

typedef struct fixture {
    ot_model *model;
    ot_trainer *trainer;
    ot_step_result result;
    ot_job job;
    ot_run_state state;
    ot_metrics metrics;
    ot_row row;
} fixture;

/* A run of TOTAL steps that goes on after BEFORE of them, which took EARLIER_S. */
static void open_run(fixture *f)
{
    ot_model_config config;
    assert_int_equal(ot_model_preset("tiny", &config), OT_OK);
    assert_int_equal(ot_model_open(&config, &f->model), OT_OK);
    ot_training training = tiny_training(f->model);
    training.B = SEQUENCES;
    training.T = T;
    training.M = 1;
    if (ot_trainer_open(&training, &f->trainer) != OT_OK)
        fail_msg("%s", ot_error_text());
    for (size_t i = 0; i < (size_t)SEQUENCES * T * 4; i++)
        ot_trainer_data(f->trainer)[i] = 0;
    assert_int_equal(ot_trainer_step(f->trainer, 0, SEQUENCES * T, &f->result), OT_OK);
    f->job = (ot_job){
        .training = training, .sequences = SEQUENCES, .total_steps = TOTAL, .steps_per_epoch = TOTAL};
    f->state = (ot_run_state){.step = BEFORE, .seconds = EARLIER_S, .tokens = BEFORE * SEQUENCES * T};
    ot_metrics_init(&f->metrics, &f->job, &f->state);
}

static void close_run(fixture *f)
{
    ot_trainer_close(f->trainer);
    ot_model_close(f->model);
}

static void steps(fixture *f, int count, double seconds)
{
    for (int i = 0; i < count; i++)
        ot_metrics_add(&f->metrics, f->trainer, &f->result, 0, SEQUENCES * T, seconds, 0, &f->row);
}

static void expect(const fixture *f, uint64_t step, double mean_s, double eta_s)
{
    assert_int_equal(f->row.step, step);
    assert_int_equal(f->row.tokens, step * SEQUENCES * T);
    if (fabs(f->row.tok_per_s * mean_s / (SEQUENCES * T) - 1) > 1e-9)
        fail_msg("step %d: %g tokens/s are not those of %g s", (int)step, f->row.tok_per_s, mean_s);
    if (fabs(f->row.eta_s - eta_s) > 1e-6)
        fail_msg("step %d: ETA %g s instead of %g s", (int)step, f->row.eta_s, eta_s);
}

/* The earlier session's 125 s a step are nothing to this one; its time counts as elapsed alone. */
static void a_session_goes_by_its_own_steps(void **state)
{
    (void)state;
    fixture f;
    open_run(&f);
    steps(&f, 1, 7);
    expect(&f, 41, 7, 7 * 62);
    assert_in_range((int)f.row.elapsed_s, EARLIER_S, EARLIER_S + 120);
    steps(&f, 1, 2); /* the first step warms up and counts no longer */
    expect(&f, 42, 2, 2 * 61);
    steps(&f, 1, 4);
    expect(&f, 43, 3, 3 * 60);
    close_run(&f);
}

/* A drive that slows down is in the ETA after a window. */
static void the_window_moves(void **state)
{
    (void)state;
    fixture f;
    open_run(&f);
    steps(&f, 20, 5);
    expect(&f, 60, 5, 5 * 43);
    steps(&f, OT_WINDOW_STEPS / 2, 25);
    expect(&f, 68, 15, 15 * 35);
    steps(&f, OT_WINDOW_STEPS / 2, 25);
    expect(&f, 76, 25, 25 * 27);
    close_run(&f);
}

static void pauses_that_are_due_count(void **state)
{
    (void)state;
    fixture f;
    open_run(&f);
    f.metrics.every[OT_PAUSE_SAVE] = 10;
    f.metrics.every[OT_PAUSE_EVAL] = 25;
    steps(&f, 3, 1);
    expect(&f, 43, 1, 60); /* none has been seen yet */
    ot_metrics_pause(&f.metrics, OT_PAUSE_SAVE, 30);
    ot_metrics_pause(&f.metrics, OT_PAUSE_EVAL, 8);
    steps(&f, 1, 1);
    expect(&f, 44, 1, 59 + 7 * 30 + 4 * 8); /* at 50, 60, … 100 and the end; at 50, 75, 100 and the end */
    ot_metrics_pause(&f.metrics, OT_PAUSE_SAVE, 20);
    steps(&f, 19, 1);
    expect(&f, 63, 1, 40 + 5 * 20 + 3 * 8);
    close_run(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_session_goes_by_its_own_steps),
        cmocka_unit_test(the_window_moves),
        cmocka_unit_test(pauses_that_are_due_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
