/* `offtrain train`: the run from its plan to its report. */
#include "tools/train.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/checkpoint_set.h"
#include "io/clock.h"
#include "io/log.h"
#include "io/stop.h"
#include "io/text.h"
#include "tools/command.h"
#include "tools/metrics.h"
#include "tools/page.h"
#include "tools/plan_report.h"
#include "tools/progress.h"
#include "tools/rundir.h"
#include "tools/session.h"
#include "tools/trace.h"

typedef struct run {
    ot_train_flags flags;
    ot_session session;
    ot_job job;
    ot_rundir dir;
    ot_trainer *trainer;
    ot_trace *trace;
    ot_metrics metrics;
    ot_progress progress;
    ot_suggestions suggestions;
    uint64_t saved_step; /* of the newest checkpoint; that of the start is one */
} run;

/* ---- what is printed ---- */

/* A line for people, on stdout and in train.log. */
__attribute__((format(printf, 2, 3))) static void say(run *r, const char *format, ...)
{
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    ot_rundir_log(line);
    if (r->flags.json || r->flags.quiet)
        return;
    ot_progress_clear(&r->progress);
    printf("%s\n", line);
    fflush(stdout);
}

/* An object for programs. Takes the reference. */
static ot_status emit(const run *r, const char *event, json_t *object)
{
    ot_status status = OT_OK;
    if (r->flags.json) {
        json_object_set_new(object, "event", json_string(event));
        if (object == NULL || json_dumpf(object, stdout, JSON_COMPACT | JSON_REAL_PRECISION(9)) != 0)
            status = ot_fail(OT_ERR_IO, "cannot write to stdout");
        putchar('\n');
        fflush(stdout);
    }
    json_decref(object);
    return status;
}

static ot_status show_header(run *r)
{
    json_t *plan = ot_plan_json(&r->job, &r->suggestions);
    ot_status status = ot_rundir_json(&r->dir, "plan.json", plan);
    if (status != OT_OK) {
        json_decref(plan);
        return status;
    }
    if (!r->flags.json && !r->flags.quiet) {
        ot_plan_print(&r->job, &r->suggestions, !r->flags.verbose, stdout);
        printf("folder    %s\n", r->dir.path);
        fflush(stdout);
    }
    return emit(r, "plan", plan);
}

static ot_status show_step(run *r, const ot_row *row)
{
    json_t *object = ot_row_json(row);
    int failed =
        object == NULL || json_dumpf(object, r->dir.metrics, JSON_COMPACT | JSON_REAL_PRECISION(9)) != 0;
    failed |= fputc('\n', r->dir.metrics) == EOF;
    failed |= fflush(r->dir.metrics) != 0;
    if (failed) {
        json_decref(object);
        return ot_fail(OT_ERR_IO, "%s/metrics.jsonl: cannot be written", r->dir.path);
    }
    if (row->step % (uint64_t)r->flags.logging_steps == 0 || row->step == row->total_steps) {
        char eta[OT_DURATION_BYTES];
        say(r, "step %" PRIu64 "/%" PRIu64 "  loss %.4f  grad %.3g  lr %.3g  %.3g s  %.4g tok/s  ETA %s%s",
            row->step, row->total_steps, row->loss, row->grad_norm, row->learning_rate, row->step_s,
            row->tok_per_s, ot_format_duration(row->eta_s, eta), row->skipped ? "  skipped: not finite" : "");
    }
    if (!r->flags.json && !r->flags.quiet)
        ot_progress_draw(&r->progress, row);
    return emit(r, "step", object);
}

static ot_status show_report(run *r)
{
    char *text = NULL;
    size_t size;
    ot_progress_clear(&r->progress);
    FILE *memory = open_memstream(&text, &size);
    if (memory != NULL) {
        ot_report_print(&r->metrics, r->trainer, memory);
        fclose(memory);
        ot_rundir_log(text);
        if (!r->flags.json && !r->flags.quiet)
            fputs(text, stdout);
    }
    free(text);
    OT_TRY(ot_page_write(r->dir.path));
    return emit(r, "report", ot_report_json(&r->metrics, r->trainer));
}

static ot_status show_done(run *r, uint64_t hash, double seconds)
{
    const ot_run_state *state = &r->session.state;
    char line[256], text[32];
    snprintf(text, sizeof text, "xxh3:%016" PRIx64, hash);
    snprintf(line, sizeof line, "done steps=%" PRIu64 " loss=%.6f tokens=%" PRIu64 " seconds=%.3f params=%s",
             state->step, r->metrics.loss, state->tokens, seconds, text);
    ot_rundir_log(line);
    if (!r->flags.json)
        printf("%s\n", line);
    return emit(r, "done",
                json_pack("{s:I, s:o, s:I, s:f, s:s}", "steps", (json_int_t)state->step, "loss",
                          isfinite(r->metrics.loss) ? json_real(r->metrics.loss) : json_null(), "tokens",
                          (json_int_t)state->tokens, "seconds", seconds, "params", text));
}

/* ---- the loop ---- */

static ot_status run_step(run *r, uint64_t step)
{
    const ot_training *t = &r->job.training;
    const ot_run_state *state = &r->session.state;
    double lr = ot_learning_rate(&r->job.schedule, state->step - state->skipped + 1);
    int64_t start = ot_clock_ns();
    uint64_t trained = ot_dataset_fill(r->job.dataset, step, t->B, t->M, ot_trainer_data(r->trainer));
    int64_t filled = ot_clock_ns();
    ot_step_result result;
    ot_status status = ot_trainer_step(r->trainer, lr, trained, &result);
    if (status == OT_ERR_NUMERIC)
        return ot_fail(OT_ERR_NUMERIC, "step %" PRIu64 ": %s", step + 1, ot_error_text());
    OT_TRY(status);
    ot_row row;
    ot_metrics_add(&r->metrics, r->trainer, &result, lr, trained, ot_seconds(ot_clock_ns() - start),
                   ot_seconds(filled - start), &row);
    if (r->trace != NULL)
        OT_TRY(ot_trace_add(r->trace, &r->job, &ot_trainer_plan(r->trainer)->lists[result.list],
                            ot_mover_spans(ot_trainer_mover(r->trainer)), step + 1,
                            ot_seconds(filled - r->metrics.start_ns)));
    return show_step(r, &row);
}

/* ---- checkpoints ---- */

static ot_status save(run *r)
{
    uint64_t bytes, step = r->session.state.step;
    char size[OT_SIZE_TEXT_BYTES];
    int64_t start = ot_clock_ns();
    ot_progress_clear(&r->progress);
    OT_TRY(ot_session_save(&r->session, &r->job, r->trainer, r->dir.path, &bytes));
    double seconds = ot_seconds(ot_clock_ns() - start);
    ot_metrics_pause(&r->metrics, OT_PAUSE_SAVE, seconds);
    r->saved_step = step;
    r->session.state.nvme_bytes += (double)bytes;
    say(r, "saved %s/checkpoint-%" PRIu64 "  %s in %.3g s", r->dir.path, step, ot_format_size(bytes, size),
        seconds);
    return emit(r, "save",
                json_pack("{s:I, s:I, s:f}", "step", (json_int_t)step, "bytes", (json_int_t)bytes, "seconds",
                          seconds));
}

/* At the end, also of a run that was stopped, unless that step is saved already. */
static ot_status save_last(run *r)
{
    uint64_t every;
    if (!ot_session_saves(&r->flags, &every) || r->saved_step == r->session.state.step)
        return OT_OK;
    return save(r);
}

static ot_status after_step(run *r)
{
    uint64_t step = r->session.state.step, every = r->metrics.every[OT_PAUSE_SAVE];
    if (every > 0 && step % every == 0 && step < r->job.total_steps)
        OT_TRY(save(r));
    return OT_OK;
}

static ot_status run_steps(run *r)
{
    while (r->session.state.step < r->job.total_steps) {
        OT_TRY(ot_stop_check());
        OT_TRY(run_step(r, r->session.state.step));
        OT_TRY(after_step(r));
    }
    return OT_OK;
}

static int is_stopped(ot_status status)
{
    return status == OT_STOPPED_INT || status == OT_STOPPED_TERM;
}

static ot_status train(run *r)
{
    uint64_t hash;
    ot_metrics_init(&r->metrics, &r->job, &r->session.state);
    if (!ot_session_saves(&r->flags, &r->metrics.every[OT_PAUSE_SAVE]))
        r->metrics.every[OT_PAUSE_SAVE] = 0;
    ot_status status = run_steps(r);
    if (is_stopped(status)) {
        ot_error stop = ot_error_take();
        OT_TRY(save_last(r));
        OT_TRY(show_report(r));
        return ot_error_raise(&stop);
    }
    if (status != OT_OK && r->saved_step > 0)
        return ot_fail(status, "%s; the last checkpoint is %s/checkpoint-%" PRIu64, ot_error_text(),
                       r->dir.path, r->saved_step);
    OT_TRY(status);
    OT_TRY(save_last(r));
    OT_TRY(ot_trainer_hash(r->trainer, &hash));
    OT_TRY(show_report(r));
    return show_done(r, hash, r->session.state.seconds);
}

/* ---- before it ---- */

/* Terabytes that the run will have written when it is done, checkpoints in it. */
static ot_status check_writes(const run *r)
{
    const ot_job *job = &r->job;
    const ot_run_state *state = &r->session.state;
    double limit = job->flags->max_tbw * 1e12, left = (double)(job->total_steps - state->step);
    double load = (double)job->plan->lists[OT_LIST_LOAD].lane_bytes[OT_LANE_NVME_WRITE];
    double step = (double)ot_steady_list(job->plan)->lane_bytes[OT_LANE_NVME_WRITE];
    uint64_t every;
    if (ot_session_saves(job->flags, &every)) {
        double checkpoint = (double)ot_checkpoint_bytes(&job->training);
        load += checkpoint; /* the last one */
        step += every > 0 ? checkpoint / (double)every : 0;
    }
    double all = state->nvme_bytes + load + step * left;
    if (job->flags->max_tbw == OT_AUTO_REAL || all <= limit)
        return OT_OK;
    double room = limit - state->nvme_bytes - load;
    return ot_fail(
        OT_ERR_FIT,
        "--max-tbw %g: this run writes %.3g TB; --max-steps %.0f would stay below, more --host-mem, "
        "--state-dtype int8 or rarer checkpoints write less",
        job->flags->max_tbw, all / 1e12, (double)state->step + (room > 0 ? floor(room / step) : 0));
}

static ot_status open_run(run *r, int argc, char **argv)
{
    if (r->flags.gpu != NULL)
        return ot_fail(OT_ERR_USAGE,
                       "--gpu %s plans for a card that is not here: offtrain plan, or --dry-run",
                       r->flags.gpu);
    ot_rundir_sweep(r->flags.output_dir);
    OT_TRY(ot_session_open(&r->flags, &r->session));
    OT_TRY(ot_job_open_fitting(&r->flags, &r->job));
    OT_TRY(ot_session_bind(&r->session, &r->job));
    OT_TRY(check_writes(r));
    r->saved_step = r->session.state.step;
    OT_TRY(ot_rundir_open(&r->flags, argc, argv, r->session.folder, r->saved_step, &r->dir));
    OT_TRY(ot_session_check_space(&r->job, r->dir.path));
    OT_TRY(ot_checkpoint_sweep(r->dir.path));
    if (r->flags.nvme.count == 0) {
        r->job.training.directories = &r->dir.directory;
        r->job.training.directory_count = 1;
    }
    if (r->flags.trace != NULL)
        OT_TRY(ot_trace_open(r->flags.trace, r->dir.path, &r->trace));
    OT_TRY(show_header(r));
    OT_TRY(ot_stop_check());
    ot_job_release_device(&r->job);
    OT_TRY(ot_trainer_open(&r->job.training, &r->trainer));
    r->session.state.nvme_bytes += (double)r->job.plan->lists[OT_LIST_LOAD].lane_bytes[OT_LANE_NVME_WRITE];
    if (*r->session.checkpoint != '\0')
        ot_trainer_set_state(r->trainer, &r->session.state.trainer);
    return OT_OK;
}

static ot_status close_run(run *r, ot_status status)
{
    ot_progress_clear(&r->progress);
    ot_error failure = ot_error_take();
    if (status != OT_OK)
        ot_rundir_log(failure.text);
    ot_trainer_close(r->trainer);
    ot_status trace = ot_trace_close(r->trace);
    ot_status dir = ot_rundir_close(&r->dir);
    ot_job_close(&r->job);
    ot_session_close(&r->session);
    if (status != OT_OK)
        return ot_error_raise(&failure);
    return trace != OT_OK ? trace : dir;
}

static ot_status run_train(const ot_train_flags *flags, int argc, char **argv)
{
    if (flags->dry_run)
        return ot_plan_run(flags, argc, argv);
    run *r = calloc(1, sizeof *r);
    if (r == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for a run");
    r->flags = *flags;
    ot_progress_init(&r->progress, flags->progress);
    ot_stop_install();
    ot_status status = open_run(r, argc, argv);
    if (status == OT_OK)
        status = train(r);
    status = close_run(r, status);
    free(r);
    return status;
}

/* ---- the command ---- */

ot_status ot_train_with_flags(const ot_option_table *table, int argc, char **argv, ot_train_command *command)
{
    ot_train_flags flags;
    ot_config *config;
    int help;
    /* Lists cut their words at commas: command.txt is written from what was typed. */
    char **typed = calloc((size_t)argc + 1, sizeof *typed);
    int copied = 0;
    while (typed != NULL && copied < argc && (typed[copied] = strdup(argv[copied])) != NULL)
        copied++;
    ot_status status = copied < argc ? ot_fail(OT_ERR_INTERNAL, "out of memory for the arguments")
                                     : ot_train_flags_read(table, argc, argv, &flags, &config, &help);
    if (status == OT_OK && help)
        ot_options_help(table, stdout);
    else if (status == OT_OK && flags.print_config)
        status = ot_config_print(table, OT_TRAIN_NOT_IN_CONFIG, &flags, stdout);
    else if (status == OT_OK)
        status = command(&flags, argc, typed);
    if (copied == argc && (status != OT_OK || !help))
        ot_config_close(config);
    while (copied > 0)
        free(typed[--copied]);
    free(typed);
    return status;
}

ot_status ot_command_train(int argc, char **argv)
{
    const ot_option_table table =
        ot_train_table("offtrain [train]", "Trains a model in full. Every flag has a default but --model.");
    return ot_train_with_flags(&table, argc, argv, run_train);
}
