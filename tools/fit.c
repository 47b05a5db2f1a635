/* The search for a plan: the micro-batch by memory alone, so that the numbers of a run do not hang on measured rates; then the
 * split of RAM between device and host, which changes nothing but the time. */
#include <string.h>

#include "tools/job.h"

/* More tokens at once make no matrix product faster. */
enum { TOKENS_ENOUGH = 8192 };

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

typedef struct attempt {
    ot_training training;
    ot_plan *plan; /* without lists; NULL: none so far */
} attempt;

/* Outlines the plan of `training` and keeps it where it is the faster one. */
static ot_status try_plan(const ot_training *training, attempt *best)
{
    ot_plan *plan;
    OT_TRY(ot_training_outline(training, &plan));
    if (best->plan == NULL || plan->predicted_s < best->plan->predicted_s) {
        ot_plan_free(best->plan);
        *best = (attempt){*training, plan};
    } else
        ot_plan_free(plan);
    return OT_OK;
}

/* Whether no other split can be faster: nothing is fetched twice, and nothing comes from a drive. */
static int is_resident(const attempt *best)
{
    const ot_plan *plan = best->plan;
    for (size_t l = 0; plan != NULL && l < best->training.model->layer_count; l++)
        if (plan->resident[l] < 0)
            return 0;
    return plan != NULL && plan->nvme_chunk_count == 0;
}

static const double shares[] = {0.5, 0.25, 0.125, 0.75};
enum { SHARES = sizeof shares / sizeof *shares };

/* Whether the caps leave open how RAM is split. */
static int is_split(const ot_limits *limits)
{
    return limits->memory < UINT64_MAX && limits->device + limits->host > limits->memory;
}

static void set_budgets(const ot_limits *limits, double share, ot_training *t)
{
    t->budget[OT_TIER_DEVICE] = limits->device;
    t->budget[OT_TIER_HOST] = limits->host;
    t->budget[OT_TIER_NVME] = limits->nvme;
    if (!is_split(limits))
        return;
    t->budget[OT_TIER_DEVICE] = smaller(limits->device, (uint64_t)((double)limits->memory * share));
    t->budget[OT_TIER_HOST] = smaller(limits->host, limits->memory - t->budget[OT_TIER_DEVICE]);
}

ot_status ot_job_fits(const ot_limits *limits, const ot_training *training)
{
    enum { RING_SMALLEST = 2 };
    ot_training t = *training;
    t.prefetch_depth = t.prefetch_depth > 0 ? t.prefetch_depth : 1;
    t.ring = t.ring > 0 ? t.ring : RING_SMALLEST;
    ot_status status = OT_ERR_FIT;
    for (int i = 0; i < (is_split(limits) ? SHARES : 1) && status == OT_ERR_FIT; i++) {
        set_budgets(limits, shares[i], &t);
        status = ot_training_fits(&t);
    }
    return status;
}

/* All splits of the memory for one batch. Returns the last failure where none fits. */
static ot_status try_splits(const ot_limits *limits, const ot_training *training, attempt *best)
{
    ot_training t = *training;
    ot_status status = OT_OK;
    for (int i = 0; i < (is_split(limits) ? SHARES : 1); i++) {
        set_budgets(limits, shares[i], &t);
        status = try_plan(&t, best);
        if (status != OT_OK && status != OT_ERR_FIT)
            return status;
        if (is_resident(best))
            break;
    }
    return best->plan != NULL ? OT_OK : status;
}

ot_status ot_job_fit(const ot_job *job, const ot_limits *limits, ot_training *training, ot_plan **plan,
                     ot_timeline *timeline)
{
    attempt best = {.plan = NULL};
    ot_training t = *training;
    size_t first = job->batch_fixed ? t.B : job->share, last = job->batch_fixed ? t.B : 1;
    t.B = last;
    t.M = job->share / t.B;
    OT_TRY(ot_job_fits(limits, &t)); /* where the smallest does not fit, none does */
    ot_status status = OT_ERR_FIT;
    for (size_t B = first; B >= last && status == OT_ERR_FIT; B--) {
        if (!job->batch_fixed && (job->share % B != 0 || (B > 1 && B * t.T > TOKENS_ENOUGH)))
            continue;
        t.B = B;
        t.M = job->share / B;
        status = try_splits(limits, &t, &best);
    }
    ot_plan_free(best.plan);
    if (status != OT_OK)
        return status;
    *training = best.training;
    OT_TRY(ot_training_plan(training, plan));
    return ot_simulate(ot_steady_list(*plan), &training->rates, NULL, timeline);
}
