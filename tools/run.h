/* A run of `offtrain train` while it goes on. For tools/train.c, which is its course, run_output.c, which is what it prints and
 * writes, and run_pauses.c, which is what it does between steps. */
#ifndef OT_TOOLS_RUN_H
#define OT_TOOLS_RUN_H

#include "tools/metrics.h"
#include "tools/plan_report.h"
#include "tools/progress.h"
#include "tools/ranks.h"
#include "tools/rundir.h"
#include "tools/session.h"
#include "tools/trace.h"

typedef struct ot_run {
    ot_train_flags flags;
    ot_group *group;         /* NULL: alone */
    int silent;              /* 1: rank 0 prints and writes what there is, this one nothing */
    int agreed;              /* 1: all ranks end here, for a failure that one of them tells */
    ot_rank_folders folders; /* of the NVMe tier */
    ot_session session;
    ot_job job;
    ot_rundir dir;
    ot_trainer *trainer;
    ot_trace *trace;
    ot_metrics metrics;
    ot_progress progress;
    ot_suggestions suggestions;
    uint64_t saved_step; /* of the newest checkpoint; that of the start is one */
} ot_run;

/* A line for people, on stdout and in train.log. */
__attribute__((format(printf, 2, 3))) void ot_run_say(ot_run *run, const char *format, ...);

/* An object for programs, on stdout with --json. Takes the reference. */
ot_status ot_run_emit(const ot_run *run, const char *event, json_t *object) OT_MUST_CHECK;

/* The plan, before anything is allocated. */
ot_status ot_run_show_header(ot_run *run) OT_MUST_CHECK;

/* A step's line, its row in metrics.jsonl, and the bar. */
ot_status ot_run_show_step(ot_run *run, const ot_row *row) OT_MUST_CHECK;

/* Adds a row that is no step's to metrics.jsonl. Takes the reference. */
ot_status ot_run_add_row(ot_run *run, json_t *row) OT_MUST_CHECK;

/* The report at the end, on stdout and as report.html. */
ot_status ot_run_show_report(ot_run *run) OT_MUST_CHECK;

/* The last line. */
ot_status ot_run_show_done(ot_run *run, uint64_t hash) OT_MUST_CHECK;

/* Before the first step: OT_ERR_USAGE where nothing can be sampled after --sample-prompt. */
ot_status ot_run_check_prompt(const ot_run *run) OT_MUST_CHECK;

/* What was due where the run goes on and is not in metrics.jsonl: it was stopped in the middle of it. */
ot_status ot_run_make_up(ot_run *run) OT_MUST_CHECK;

/* When there are pauses. */
void ot_run_plan_pauses(ot_run *run);

/* What is due after a step; all of it at the end; and of a run that is stopped the checkpoint alone, where that step has none. */
ot_status ot_run_pause(ot_run *run) OT_MUST_CHECK;
ot_status ot_run_finish(ot_run *run) OT_MUST_CHECK;
ot_status ot_run_save_last(ot_run *run) OT_MUST_CHECK;

#endif
