/* What a run does between its steps: checkpoints, evaluations, samples. */
#include "tools/run.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "io/clock.h"
#include "io/log.h"
#include "io/text.h"
#include "tools/evaluate.h"
#include "tools/generate.h"
#include "tools/json.h"

static ot_status save(ot_run *r)
{
    uint64_t bytes = 0, step = r->session.state.step;
    char size[OT_SIZE_TEXT_BYTES];
    int64_t start = ot_clock_ns();
    ot_progress_clear(&r->progress);
    if (r->silent)
        OT_TRY(ot_trainer_save(r->trainer, NULL));
    else
        OT_TRY(ot_session_save(&r->session, &r->job, r->trainer, r->dir.path, &bytes));
    double seconds = ot_seconds(ot_clock_ns() - start);
    ot_metrics_pause(&r->metrics, OT_PAUSE_SAVE, seconds);
    r->saved_step = step;
    r->session.state.nvme_bytes += (double)bytes;
    ot_run_say(r, "saved %s/checkpoint-%" PRIu64 "  %s in %.3g s", r->dir.path, step,
               ot_format_size(bytes, size), seconds);
    return ot_run_emit(r, "save",
                       json_pack("{s:I, s:I, s:f}", "step", (json_int_t)step, "bytes", (json_int_t)bytes,
                                 "seconds", seconds));
}

ot_status ot_run_save_last(ot_run *r)
{
    uint64_t every;
    if (!ot_session_saves(&r->flags, &every) || r->saved_step == r->session.state.step)
        return OT_OK;
    return save(r);
}

static ot_status evaluate(ot_run *r)
{
    ot_evaluation found;
    uint64_t step = r->session.state.step;
    ot_progress_clear(&r->progress);
    OT_TRY(ot_evaluate(r->trainer, &r->job.training, r->job.data.evaluation, &found));
    ot_metrics_pause(&r->metrics, OT_PAUSE_EVAL, found.seconds);
    ot_run_say(r, "eval %" PRIu64 "  loss %.4f  perplexity %.5g  %" PRIu64 " tokens in %.3g s", step,
               found.loss, found.perplexity, found.tokens, found.seconds);
    json_t *row = json_pack("{s:I, s:f, s:o, s:I, s:f}", "step", (json_int_t)step, "eval_loss", found.loss,
                            "eval_ppl", ot_json_real(found.perplexity), "eval_tokens",
                            (json_int_t)found.tokens, "eval_s", found.seconds);
    OT_TRY(ot_run_add_row(r, json_incref(row)));
    return ot_run_emit(r, "eval", row);
}

static ot_status generate(ot_run *r, const ot_generation *generation, ot_ids *ids)
{
    char *text;
    size_t bytes;
    uint64_t step = r->session.state.step;
    const ot_tokenizer *tokenizer = r->job.data.tokenizer;
    OT_TRY(ot_generation_prompt(generation, tokenizer, ids));
    OT_TRY(ot_generate(r->trainer, &r->job.training, tokenizer, r->job.model->config.eos, generation, ids));
    OT_TRY(ot_generated_text(tokenizer, ids, &text, &bytes));
    ot_run_say(r, "sample %" PRIu64 "  %s", step, text);
    json_t *row = json_pack("{s:I, s:s%}", "step", (json_int_t)step, "sample", text, bytes);
    free(text);
    if (row == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for a sample");
    OT_TRY(ot_run_add_row(r, json_incref(row)));
    return ot_run_emit(r, "sample", row);
}

static ot_generation generation_of(const ot_run *r)
{
    return (ot_generation){
        .prompt = r->flags.sample_prompt,
        .max_tokens = (size_t)r->flags.max_tokens,
        .temperature = r->flags.temperature,
        .top_p = r->flags.top_p,
        .seed = (uint64_t)r->flags.seed,
    };
}

static ot_status sample(ot_run *r)
{
    const ot_generation generation = generation_of(r);
    ot_ids ids = {0};
    int64_t start = ot_clock_ns();
    ot_progress_clear(&r->progress);
    ot_status status = generate(r, &generation, &ids);
    ot_ids_free(&ids);
    ot_metrics_pause(&r->metrics, OT_PAUSE_SAMPLE, ot_seconds(ot_clock_ns() - start));
    return status;
}

ot_status ot_run_check_prompt(const ot_run *r)
{
    ot_ids ids = {0};
    const ot_generation generation = generation_of(r);
    size_t T = r->job.training.T;
    if (generation.prompt == NULL)
        return OT_OK;
    ot_status status = ot_generation_prompt(&generation, r->job.data.tokenizer, &ids);
    if (status == OT_OK && ids.count >= T)
        status = ot_fail(OT_ERR_USAGE,
                         "--sample-prompt: %zu tokens; nothing can follow in a sequence of --seq-len %zu",
                         ids.count, T);
    ot_ids_free(&ids);
    return status;
}

/* ---- when ---- */

static int is_due(const ot_run *r, ot_pause pause)
{
    uint64_t every = r->metrics.every[pause], step = r->session.state.step;
    return every > 0 && step > 0 && step % every == 0 && step < r->job.total_steps;
}

ot_status ot_run_pause(ot_run *r)
{
    if (is_due(r, OT_PAUSE_EVAL))
        OT_TRY(evaluate(r));
    if (is_due(r, OT_PAUSE_SAMPLE))
        OT_TRY(sample(r));
    if (is_due(r, OT_PAUSE_SAVE))
        OT_TRY(save(r));
    return OT_OK;
}

ot_status ot_run_make_up(ot_run *r)
{
    if (*r->session.folder == '\0')
        return OT_OK;
    if (is_due(r, OT_PAUSE_EVAL) && !r->dir.evaluated)
        OT_TRY(evaluate(r));
    if (is_due(r, OT_PAUSE_SAMPLE) && !r->dir.sampled)
        OT_TRY(sample(r));
    return OT_OK;
}

ot_status ot_run_finish(ot_run *r)
{
    OT_TRY(ot_run_save_last(r));
    if (r->job.data.evaluation != NULL)
        OT_TRY(evaluate(r));
    if (r->flags.sample_prompt != NULL)
        OT_TRY(sample(r));
    return OT_OK;
}

void ot_run_plan_pauses(ot_run *r)
{
    uint64_t *every = r->metrics.every;
    if (!ot_session_saves(&r->flags, &every[OT_PAUSE_SAVE]))
        every[OT_PAUSE_SAVE] = 0;
    if (r->job.data.evaluation != NULL)
        every[OT_PAUSE_EVAL] = (uint64_t)r->flags.eval_steps;
    else if (r->flags.eval_steps > 0 && !r->silent)
        ot_log(OT_LOG_WARNING,
               "--eval-steps: there is nothing to evaluate; give --eval-data, or --val-split");
    if (r->flags.sample_prompt != NULL)
        every[OT_PAUSE_SAMPLE] = (uint64_t)r->flags.sample_steps;
}
