/* Evaluation, and `offtrain eval`. */
#include "tools/evaluate.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "io/clock.h"
#include "io/stop.h"
#include "tools/command.h"
#include "tools/job.h"
#include "tools/json.h"
#include "tools/ranks.h"
#include "tools/train.h"

ot_status ot_evaluate(ot_trainer *trainer, const ot_training *training, const ot_dataset *dataset,
                      ot_evaluation *out)
{
    int ranks = ot_rank_count(training->ranks);
    uint64_t steps = ot_dataset_steps(dataset, training->B * training->M * (size_t)ranks);
    int64_t start = ot_clock_ns();
    double sum = 0;
    *out = (ot_evaluation){.tokens = 0};
    for (uint64_t step = 0; step < steps; step++) {
        double loss, all;
        OT_TRY(ot_ranks_stop_check(training->group));
        uint64_t trained = ot_dataset_fill_part(dataset, step, training->B, training->M, training->rank,
                                                ranks, ot_trainer_data(trainer));
        all = (double)trained;
        OT_TRY(ot_group_sum(training->group, "evaluated tokens", &all, 1));
        if (all <= 0)
            continue;
        OT_TRY(ot_trainer_evaluate(trainer, (uint64_t)all, &loss));
        sum += loss * all;
        out->tokens += (uint64_t)all;
    }
    if (out->tokens == 0)
        return ot_fail(OT_ERR_DATA, "evaluation: no token of the data is trained, so there is no loss");
    out->loss = sum / (double)out->tokens;
    if (!isfinite(out->loss))
        return ot_fail(OT_ERR_NUMERIC,
                       "evaluation: the loss is %g; the model's weights, or its activations in %s, are not "
                       "finite",
                       out->loss, ot_dtype_name(training->dtype));
    out->perplexity = exp(out->loss);
    out->seconds = ot_seconds(ot_clock_ns() - start);
    return OT_OK;
}

/* ---- the command ---- */

static ot_status print_evaluation(const ot_train_flags *flags, const ot_evaluation *found)
{
    if (flags->json)
        return ot_json_line(json_pack("{s:s, s:o, s:o, s:I, s:f}", "event", "eval", "eval_loss",
                                      ot_json_real(found->loss), "eval_ppl", ot_json_real(found->perplexity),
                                      "tokens", (json_int_t)found->tokens, "seconds", found->seconds),
                            stdout, "the JSON output");
    printf("eval_loss=%.6f eval_ppl=%.6g tokens=%" PRIu64 "\n", found->loss, found->perplexity,
           found->tokens);
    return OT_OK;
}

static ot_status evaluate(ot_job *job)
{
    ot_trainer *trainer;
    ot_evaluation found;
    OT_TRY(ot_job_open_source(job));
    ot_job_release_device(job);
    OT_TRY(ot_trainer_open(&job->training, &trainer));
    ot_status status = ot_evaluate(trainer, &job->training, job->dataset, &found);
    ot_trainer_close(trainer);
    return status == OT_OK ? print_evaluation(job->flags, &found) : status;
}

static ot_status run_eval(const ot_train_flags *flags, int argc, char **argv)
{
    ot_train_flags own = *flags;
    ot_job job;
    (void)argc;
    (void)argv;
    OT_TRY(ot_ranks_refuse(flags, "eval"));
    ot_stop_install();
    own.inference = 1;
    own.shuffle = 0;
    ot_status status = ot_job_open_fitting(&own, &job);
    if (status == OT_OK)
        status = evaluate(&job);
    ot_job_close(&job);
    return status;
}

ot_status ot_command_eval(int argc, char **argv)
{
    const ot_option_table table = ot_train_table(
        "offtrain eval",
        "The loss and perplexity of a model on --data; nothing is trained. Flags of the optimizer and the\n"
        "loop do nothing here.");
    return ot_train_with_flags(&table, argc, argv, run_eval);
}
