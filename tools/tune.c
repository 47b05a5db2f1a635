/* `offtrain tune`: measures real steps with other values of the knobs that change the time and nothing else, one knob after the
 * other, and says which flags to add. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>

#include "io/stop.h"
#include "tools/command.h"
#include "tools/job.h"
#include "tools/ranks.h"
#include "tools/train.h"

enum { VALUES_MAX = 5, TRIAL_STEPS = 3 };

/* Below this it is noise. */
static const double worth = 0.02;

typedef struct knob {
    const char *flag;
    int drive; /* 1: tried only where the plan uses a drive */
    int64_t values[VALUES_MAX];
} knob;

static const knob knobs[] = {
    {"prefetch-depth", 0, {1, 2, 3, 4, 6}},
    {"io-depth", 1, {4, 8, 16, 32, 64}},
    {"io-block", 1, {256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20}},
};
enum { KNOBS = sizeof knobs / sizeof *knobs };

static void set_knob(ot_training *t, size_t which, int64_t value)
{
    if (which == 0)
        t->prefetch_depth = (int)value;
    else if (which == 1)
        t->io.depth = (uint32_t)value;
    else
        t->io.piece_bytes = (uint64_t)value;
}

/* One object a line for programs. */
static ot_status print_json(json_t *object)
{
    int failed = object == NULL || json_dumpf(object, stdout, JSON_COMPACT | JSON_REAL_PRECISION(9)) != 0;
    putchar('\n');
    fflush(stdout);
    json_decref(object);
    return failed ? ot_fail(OT_ERR_IO, "cannot write to stdout") : OT_OK;
}

static void print_value(size_t which, int64_t value)
{
    int is_size = value >= 1 << 10;
    printf("--%s %" PRId64 "%s", knobs[which].flag, is_size ? value >> 10 : value, is_size ? "K" : "");
}

/* Seconds of the fastest of some steady steps. Noise only ever adds. */
static ot_status measure(ot_job *job, const ot_training *training, double *seconds)
{
    ot_trainer *trainer;
    OT_TRY(ot_trainer_open(training, &trainer));
    ot_status status = OT_OK;
    *seconds = 0;
    for (uint64_t step = 0; step <= TRIAL_STEPS && status == OT_OK; step++) {
        ot_step_result result;
        uint64_t trained =
            ot_dataset_fill(job->dataset, step, training->B, training->M, ot_trainer_data(trainer));
        status = ot_stop_check();
        if (status == OT_OK)
            status = ot_trainer_step(trainer, 0, trained, &result);
        if (status == OT_OK && step > 0 && (*seconds == 0 || result.seconds < *seconds))
            *seconds = result.seconds;
    }
    ot_trainer_close(trainer);
    return status;
}

static ot_status print_trial(const ot_job *job, size_t which, int64_t value, double seconds, int better)
{
    if (job->flags->json)
        return print_json(json_pack("{s:s, s:s, s:I, s:f, s:b}", "event", "trial", "flag", knobs[which].flag,
                                    "value", (json_int_t)value, "step_s", seconds, "better", better));
    printf("  ");
    print_value(which, value);
    printf("  %.4g s a step%s\n", seconds, better ? "  better" : "");
    fflush(stdout);
    return OT_OK;
}

/* Tries a knob's values and leaves the best one in `training`. A value that does not fit is passed over. */
static ot_status turn(ot_job *job, size_t which, ot_training *training, double *best, int64_t *chosen)
{
    for (size_t i = 0; i < VALUES_MAX; i++) {
        ot_training trial = *training;
        double seconds;
        set_knob(&trial, which, knobs[which].values[i]);
        ot_status status = measure(job, &trial, &seconds);
        if (status == OT_ERR_FIT)
            continue;
        OT_TRY(status);
        int better = seconds < *best * (1 - worth);
        OT_TRY(print_trial(job, which, knobs[which].values[i], seconds, better));
        if (!better)
            continue;
        *best = seconds;
        *chosen = knobs[which].values[i];
    }
    if (*chosen != 0)
        set_knob(training, which, *chosen);
    return OT_OK;
}

static ot_status print_planned(const ot_job *job, double seconds)
{
    if (job->flags->json)
        return print_json(json_pack("{s:s, s:f, s:f}", "event", "planned", "step_s", seconds, "predicted_s",
                                    job->timeline.seconds));
    printf("as planned  %.4g s a step (predicted %.4g s)\n", seconds, job->timeline.seconds);
    fflush(stdout);
    return OT_OK;
}

static ot_status print_choice(const ot_job *job, const int64_t chosen[KNOBS], double first, double best)
{
    json_t *flags = json_object();
    for (size_t k = 0; k < KNOBS; k++)
        if (chosen[k] != 0)
            json_object_set_new(flags, knobs[k].flag, json_integer((json_int_t)chosen[k]));
    size_t found = json_object_size(flags);
    if (job->flags->json)
        return print_json(json_pack("{s:s, s:f, s:f, s:o}", "event", "done", "planned_s", first, "step_s",
                                    best, "flags", flags));
    json_decref(flags);
    if (found == 0)
        printf("nothing is faster by %.0f %%: the plan's own choices are the ones to take", 100 * worth);
    else
        printf("faster by %.0f %%:", 100 * (first / best - 1));
    for (size_t k = 0; k < KNOBS; k++)
        if (chosen[k] != 0) {
            putchar(' ');
            print_value(k, chosen[k]);
        }
    putchar('\n');
    return OT_OK;
}

static ot_status tune(ot_job *job)
{
    ot_training training = job->training;
    int64_t chosen[KNOBS] = {0};
    double first, best;
    ot_job_release_device(job);
    training.sizing_device = NULL;
    OT_TRY(measure(job, &training, &first));
    best = first;
    OT_TRY(print_planned(job, first));
    for (size_t k = 0; k < KNOBS; k++)
        if (!knobs[k].drive || job->plan->nvme_chunk_count > 0)
            OT_TRY(turn(job, k, &training, &best, &chosen[k]));
    return print_choice(job, chosen, first, best);
}

static ot_status run_tune(const ot_train_flags *flags, int argc, char **argv)
{
    ot_job job;
    (void)argc;
    (void)argv;
    OT_TRY(ot_ranks_refuse(flags, "tune"));
    ot_stop_install();
    ot_status status = ot_job_open_fitting(flags, &job);
    if (status == OT_OK && flags->nvme.count == 0 && job.plan->nvme_chunk_count > 0)
        status = ot_fail(OT_ERR_USAGE, "tune: this plan uses a drive; say with --nvme DIR which one");
    if (status == OT_OK)
        status = tune(&job);
    ot_job_close(&job);
    return status;
}

ot_status ot_command_tune(int argc, char **argv)
{
    const ot_option_table table = ot_train_table(
        "offtrain tune",
        "Measures steps with other prefetch depths, I/O depths and block sizes, and says what is faster.");
    return ot_train_with_flags(&table, argc, argv, run_tune);
}
