/* `offtrain plan`: what a run would take and how long, before anything is allocated. */
#include <stdlib.h>

#include "tools/command.h"
#include "tools/json.h"
#include "tools/plan_report.h"
#include "tools/session.h"
#include "tools/train.h"

static ot_status print_json(const ot_job *job, const ot_suggestions *suggestions)
{
    json_t *root = ot_plan_json(job, suggestions);
    return ot_json_line(root, stdout, "the JSON output");
}

static ot_status show(const ot_job *job, int json)
{
    ot_suggestions *suggestions = malloc(sizeof *suggestions);
    if (suggestions == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for suggestions");
    ot_job_suggest(job, suggestions);
    ot_status status = OT_OK;
    if (json)
        status = print_json(job, suggestions);
    else
        ot_plan_print(job, suggestions, 0, stdout);
    if (status == OT_OK && job->plan == NULL)
        status = ot_plan_refuse(job, suggestions);
    free(suggestions);
    return status == OT_OK ? ot_session_check_writes(job, &(ot_run_state){.step = 0}) : status;
}

ot_status ot_job_open_fitting(const ot_train_flags *flags, ot_job *job)
{
    ot_status status = ot_job_open(flags, job);
    if (status != OT_ERR_FIT || job->plan != NULL || job->schedule.total_steps == 0)
        return status;
    ot_suggestions *suggestions = malloc(sizeof *suggestions);
    if (suggestions == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for suggestions");
    ot_job_suggest(job, suggestions);
    status = ot_plan_refuse(job, suggestions);
    free(suggestions);
    return status;
}

ot_status ot_plan_run(const ot_train_flags *flags, int argc, char **argv)
{
    ot_job job;
    (void)argc;
    (void)argv;
    ot_status status = ot_job_open(flags, &job);
    if (status == OT_OK || status == OT_ERR_FIT)
        status = show(&job, flags->json);
    ot_job_close(&job);
    return status;
}

ot_status ot_command_plan(int argc, char **argv)
{
    const ot_option_table table = ot_train_table(
        "offtrain plan",
        "Says what a training run would take, how fast it would be, and what would help; exits with 3 "
        "where it does not fit.");
    return ot_train_with_flags(&table, argc, argv, ot_plan_run);
}
