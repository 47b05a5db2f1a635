/* `offtrain train`: the run from its plan to its report. */
#include "tools/train.h"

#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine/checkpoint_set.h"
#include "io/clock.h"
#include "io/log.h"
#include "io/path.h"
#include "io/stop.h"
#include "tools/command.h"
#include "tools/run.h"

/* ---- the loop ---- */

static ot_status run_step(ot_run *r, uint64_t step)
{
    const ot_training *t = &r->job.training;
    const ot_run_state *state = &r->session.state;
    double lr = ot_learning_rate(&r->job.schedule, state->step - state->skipped + 1);
    int64_t start = ot_clock_ns();
    uint64_t trained = ot_dataset_fill_part(r->job.dataset, step, t->B, t->M, t->rank, t->ranks,
                                            ot_trainer_data(r->trainer));
    int64_t filled = ot_clock_ns();
    ot_step_result result;
    ot_group_set_step(r->group, step + 1);
    ot_status status = ot_trainer_step(r->trainer, lr, trained, &result);
    if (status == OT_ERR_NUMERIC)
        return ot_fail(OT_ERR_NUMERIC, "step %" PRIu64 ": %s", step + 1, ot_error_text());
    OT_TRY(status);
    ot_row row;
    ot_metrics_add(&r->metrics, r->trainer, &result, lr, result.trained_tokens,
                   ot_seconds(ot_clock_ns() - start), ot_seconds(filled - start), &row);
    if (r->trace != NULL)
        OT_TRY(ot_trace_add(r->trace, &r->job, &ot_trainer_plan(r->trainer)->lists[result.list],
                            ot_mover_spans(ot_trainer_mover(r->trainer)), step + 1,
                            ot_seconds(filled - r->metrics.start_ns)));
    return ot_run_show_step(r, &row);
}

static ot_status run_steps(ot_run *r)
{
    while (r->session.state.step < r->job.total_steps) {
        OT_TRY(ot_ranks_stop_check(r->group));
        OT_TRY(run_step(r, r->session.state.step));
        OT_TRY(ot_run_pause(r));
    }
    return OT_OK;
}

static ot_status train(ot_run *r)
{
    uint64_t hash;
    ot_metrics_init(&r->metrics, &r->job, &r->session.state);
    ot_run_plan_pauses(r);
    ot_status status = ot_run_make_up(r);
    if (status == OT_OK)
        status = run_steps(r);
    if (status == OT_OK)
        status = ot_run_finish(r);
    if (ot_is_stopped(status)) {
        ot_error stop = ot_error_take();
        OT_TRY(ot_run_save_last(r));
        OT_TRY(ot_run_show_report(r));
        return ot_error_raise(&stop);
    }
    if (status != OT_OK && r->saved_step > 0)
        return ot_fail(status, "%s; the last checkpoint is %s/checkpoint-%" PRIu64, ot_error_text(),
                       r->dir.path, r->saved_step);
    OT_TRY(status);
    OT_TRY(ot_trainer_hash(r->trainer, &hash));
    OT_TRY(ot_run_show_report(r));
    return ot_run_show_done(r, hash);
}

/* ---- before it ---- */

/* The ranks but the first print nothing, and write nothing but their parts of the NVMe tier. */
static ot_status join_ranks(ot_run *r)
{
    OT_TRY(ot_ranks_join(&r->flags, &r->group));
    r->silent = ot_group_rank(r->group) > 0;
    if (!r->silent)
        return OT_OK;
    ot_log_limit(OT_LOG_WARNING);
    r->flags.quiet = 1;
    r->flags.json = r->flags.verbose = 0;
    r->flags.trace = NULL;
    r->flags.progress = "off";
    return OT_OK;
}

/* What each rank has done by itself: they go on together, or end together. */
static ot_status agree(ot_run *r, ot_status own)
{
    ot_status status = ot_ranks_agree(r->group, own);
    r->agreed = status != OT_OK && !ot_group_has_failed(r->group);
    return status;
}

static ot_status make_folder(ot_run *r, int argc, char **argv)
{
    if (r->silent)
        return OT_OK;
    OT_TRY(ot_session_check_writes(&r->job, &r->session.state));
    OT_TRY(ot_rundir_open(&r->flags, argc, argv, r->session.folder, r->saved_step,
                          r->saved_step >= r->job.total_steps, &r->dir));
    OT_TRY(ot_session_check_space(&r->job, r->dir.path));
    return ot_checkpoint_sweep(r->dir.path);
}

/* The run's folder is rank 0's to make, and the others' to know. What they have on drives is rank 0's plan to say. */
static ot_status open_folder(ot_run *r, int argc, char **argv)
{
    uint64_t chunks = r->job.plan->nvme_chunk_count;
    OT_TRY(agree(r, make_folder(r, argc, argv)));
    OT_TRY(ot_group_broadcast(r->group, "the run's folder", 0, r->dir.path, sizeof r->dir.path));
    OT_TRY(ot_group_broadcast(r->group, "the chunks on drives", 0, &chunks, sizeof chunks));
    r->dir.directory = r->dir.path;
    if (r->flags.nvme.count == 0) {
        if (r->silent && chunks > 0)
            OT_TRY(ot_path_make_folders(r->dir.path)); /* on another machine it need not be there */
        r->job.training.directories = &r->dir.directory;
        r->job.training.directory_count = 1;
    }
    return chunks > 0 ? ot_ranks_make_folders(r->group, &r->job.training, &r->folders) : OT_OK;
}

static ot_status open_job(ot_run *r)
{
    OT_TRY(ot_session_open(&r->flags, &r->session));
    return ot_job_open_fitting(&r->flags, &r->job);
}

static ot_status bind_session(ot_run *r)
{
    OT_TRY(ot_session_bind(&r->session, &r->job));
    return ot_run_check_prompt(r);
}

static ot_status open_run(ot_run *r, int argc, char **argv)
{
    if (r->flags.gpu != NULL)
        return ot_fail(OT_ERR_USAGE,
                       "--gpu %s plans for a card that is not here: offtrain plan, or --dry-run",
                       r->flags.gpu);
    OT_TRY(join_ranks(r));
    if (!r->silent)
        ot_rundir_sweep(&r->flags);
    OT_TRY(agree(r, open_job(r)));
    OT_TRY(ot_ranks_share_training(r->group, &r->job.training));
    OT_TRY(agree(r, bind_session(r)));
    OT_TRY(agree(r, ot_session_compare_ranks(&r->session, &r->job)));
    r->saved_step = r->session.state.step;
    OT_TRY(open_folder(r, argc, argv));
    if (r->flags.trace != NULL)
        OT_TRY(ot_trace_open(r->flags.trace, r->dir.path, &r->trace));
    OT_TRY(ot_run_show_header(r));
    OT_TRY(ot_ranks_stop_check(r->group));
    ot_job_release_device(&r->job);
    OT_TRY(ot_trainer_open(&r->job.training, &r->trainer));
    r->session.state.nvme_bytes +=
        (double)r->job.local_ranks * (double)r->job.plan->lists[OT_LIST_LOAD].lane_bytes[OT_LANE_NVME_WRITE];
    if (*r->session.checkpoint != '\0')
        return ot_checkpoint_restore(r->session.checkpoint, &r->session.state, r->trainer);
    return OT_OK;
}

static ot_status leave_ranks(ot_run *r, ot_status status)
{
    ot_ranks_remove_folders(&r->folders);
    if (r->silent && r->flags.nvme.count == 0)
        (void)rmdir(r->dir.path); /* which is empty where it was made for this rank alone */
    return ot_ranks_leave(r->group, status, r->agreed);
}

static ot_status close_run(ot_run *r, ot_status status)
{
    ot_progress_clear(&r->progress);
    ot_error failure = ot_error_take();
    ot_trainer_close(r->trainer);
    if (status != OT_OK)
        status = ot_error_raise(&failure);
    status = leave_ranks(r, status);
    failure = ot_error_take();
    if (status != OT_OK)
        ot_rundir_log(*failure.text != '\0' ? failure.text : "another rank has failed");
    ot_status trace = ot_trace_close(r->trace);
    ot_status dir = ot_rundir_close(&r->dir);
    ot_job_close(&r->job);
    ot_session_close(&r->session);
    if (status != OT_OK)
        return r->group != NULL ? ot_fail(status, "%s", "") : ot_error_raise(&failure); /* it is told */
    return trace != OT_OK ? trace : dir;
}

static ot_status run_train(const ot_train_flags *flags, int argc, char **argv)
{
    if (flags->dry_run)
        return ot_plan_run(flags, argc, argv);
    if (ot_ranks_must_launch(flags))
        return ot_ranks_launch(flags, argc, argv);
    ot_run *r = calloc(1, sizeof *r);
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
    if (status == OT_OK && !help && flags.print_config)
        status = ot_config_print(table, OT_TRAIN_NOT_IN_CONFIG, &flags, stdout);
    else if (status == OT_OK && !help)
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
