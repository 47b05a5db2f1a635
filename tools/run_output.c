/* What a run prints, and what it writes into its folder. */
#include "tools/run.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "io/text.h"
#include "tools/json.h"
#include "tools/page.h"

void ot_run_say(ot_run *r, const char *format, ...)
{
    char *line;
    va_list arguments;
    va_start(arguments, format);
    int length = vasprintf(&line, format, arguments);
    va_end(arguments);
    if (length < 0)
        return;
    ot_rundir_log(line);
    if (!r->flags.json && !r->flags.quiet) {
        ot_progress_clear(&r->progress);
        printf("%s\n", line);
        fflush(stdout);
    }
    free(line);
}

ot_status ot_run_emit(const ot_run *r, const char *event, json_t *object)
{
    if (!r->flags.json) {
        json_decref(object);
        return OT_OK;
    }
    json_object_set_new(object, "event", json_string(event));
    return ot_json_line(object, stdout, "the JSON output");
}

ot_status ot_run_show_header(ot_run *r)
{
    if (r->silent)
        return OT_OK;
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
    return ot_run_emit(r, "plan", plan);
}

ot_status ot_run_add_row(ot_run *r, json_t *row)
{
    if (r->silent) {
        json_decref(row);
        return OT_OK;
    }
    if (ot_json_line(row, r->dir.metrics, "metrics.jsonl") != OT_OK)
        return ot_fail(OT_ERR_IO, "%s: %s", r->dir.path, ot_error_text());
    return OT_OK;
}

ot_status ot_run_show_step(ot_run *r, const ot_row *row)
{
    json_t *object = ot_row_json(row);
    OT_TRY(ot_run_add_row(r, json_incref(object)));
    if (row->step % (uint64_t)r->flags.logging_steps == 0 || row->step == row->total_steps) {
        char eta[OT_DURATION_BYTES], rate[OT_NUMBER_TEXT_BYTES];
        ot_run_say(r,
                   "step %" PRIu64 "/%" PRIu64 "  loss %.4f  grad %.3g  lr %.3g  %.3g s  %s tok/s  ETA %s%s",
                   row->step, row->total_steps, row->loss, row->grad_norm, row->learning_rate, row->step_s,
                   ot_format_number(row->tok_per_s, rate), ot_format_duration(row->eta_s, eta),
                   row->skipped ? "  skipped: not finite" : "");
    }
    if (!r->flags.json && !r->flags.quiet)
        ot_progress_draw(&r->progress, row);
    return ot_run_emit(r, "step", object);
}

ot_status ot_run_show_report(ot_run *r)
{
    char *text = NULL;
    size_t size;
    if (r->silent)
        return OT_OK;
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
    return ot_run_emit(r, "report", ot_report_json(&r->metrics, r->trainer));
}

ot_status ot_run_show_done(ot_run *r, uint64_t hash)
{
    const ot_run_state *state = &r->session.state;
    double seconds = state->seconds;
    char line[256], text[32];
    if (r->silent)
        return OT_OK;
    snprintf(text, sizeof text, "xxh3:%016" PRIx64, hash);
    snprintf(line, sizeof line, "done steps=%" PRIu64 " loss=%.6f tokens=%" PRIu64 " seconds=%.3f params=%s",
             state->step, state->loss, state->tokens, seconds, text);
    ot_rundir_log(line);
    if (!r->flags.json)
        printf("%s\n", line);
    return ot_run_emit(r, "done",
                       json_pack("{s:I, s:o, s:I, s:f, s:s}", "steps", (json_int_t)state->step, "loss",
                                 ot_json_real(state->loss), "tokens", (json_int_t)state->tokens, "seconds",
                                 seconds, "params", text));
}
