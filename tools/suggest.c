/* What would make a job fit, found by asking the plan again with one thing changed, and what would make it faster. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "io/text.h"
#include "tools/job.h"

__attribute__((format(printf, 2, 3))) static void add(ot_suggestions *out, const char *format, ...)
{
    if (out->count == OT_SUGGESTIONS_MAX)
        return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(out->texts[out->count++], OT_SUGGESTION_BYTES, format, arguments);
    va_end(arguments);
}

/* The job with its smallest batch. */
static ot_job smallest_job(const ot_job *job)
{
    ot_job small = *job;
    small.batch_fixed = 1;
    if (!job->batch_fixed) {
        small.training.B = 1;
        small.training.M = job->share;
    }
    return small;
}

/* Bytes of weights, masters, moments and gradients. */
static uint64_t state_bytes(const ot_training *t)
{
    double moment =
        t->state_dtype == OT_INT8 ? 1 + 4.0 / OT_MOMENT_BLOCK : (double)ot_dtype_bytes(t->state_dtype);
    double moments = t->optimizer == OT_OPTIMIZER_ADAFACTOR                                  ? 0
                     : t->optimizer == OT_OPTIMIZER_SGD || t->optimizer == OT_OPTIMIZER_LION ? 1
                                                                                             : 2;
    double weight = t->dtype == OT_FP16 ? 2 + 4 : 4; /* with its master */
    double gradient = (double)ot_dtype_bytes(t->grad_dtype);
    return (uint64_t)((double)t->model->params * (weight + moments * moment + gradient));
}

/* A cap that may be enough: what the states take beyond the other of host and drives, and a tenth. */
static uint64_t guess_cap(const ot_job *job, const ot_training *training, ot_tier tier)
{
    uint64_t all = state_bytes(training), other = tier == OT_TIER_HOST ? job->limits.nvme : job->limits.host;
    uint64_t rest = tier == OT_TIER_DEVICE ? 2 * job->limits.device : all > other ? all - other : 0;
    return rest + rest / 10 + (UINT64_C(1) << 30);
}

/* Where device memory is RAM, the host's cap is that of RAM for both, as far as no flag caps the device. */
static void set_cap(const ot_job *job, ot_tier tier, uint64_t cap, ot_limits *limits)
{
    *(tier == OT_TIER_DEVICE ? &limits->device : tier == OT_TIER_HOST ? &limits->host : &limits->nvme) = cap;
    if (job->shared && tier == OT_TIER_HOST) {
        limits->memory = cap > limits->memory ? cap : limits->memory;
        limits->device = job->flags->gpu_mem == OT_AUTO_SIZE ? limits->memory : limits->device;
    }
}

static int fits_with(const ot_job *job, const ot_training *training, ot_tier tier, uint64_t cap)
{
    ot_limits limits = job->limits;
    set_cap(job, tier, cap, &limits);
    return ot_job_fits(&limits, training) == OT_OK;
}

/* A cap of one rank that is printed exactly, with two decimals, where the machine's is: what is followed as printed fits. */
static uint64_t round_up(const ot_job *job, ot_tier tier, uint64_t cap)
{
    uint64_t ranks = ot_job_machine_bytes(job, tier, 1), all = cap * ranks, unit = 1;
    while (all / unit >= 1023)
        unit *= 1024;
    uint64_t hundredths = (uint64_t)ceil((double)all * 100 / (double)unit);
    uint64_t rounded = (uint64_t)((double)hundredths * (double)unit / 100);
    return (rounded + ranks - 1) / ranks;
}

/* About the smallest cap of a tier that fits, the other tiers as they are; 0: none. */
static uint64_t smallest_cap(const ot_job *job, const ot_training *training, ot_tier tier)
{
    enum { STEPS = 16 };
    const uint64_t largest = tier != OT_TIER_DEVICE ? UINT64_C(1) << 42
                             : job->shared          ? job->limits.memory
                                                    : UINT64_C(1) << 38;
    const uint64_t have = tier == OT_TIER_DEVICE ? job->limits.device
                          : tier == OT_TIER_HOST ? job->limits.host
                                                 : job->limits.nvme;
    uint64_t low = have, high = guess_cap(job, training, tier);
    if (high <= low)
        high = low + low / 4;
    if (tier == OT_TIER_DEVICE && (have >= largest || !fits_with(job, training, tier, largest)))
        return 0;
    if (tier == OT_TIER_DEVICE && high > largest)
        high = largest;
    while (!fits_with(job, training, tier, high)) {
        if (high >= largest)
            return 0;
        low = high;
        high *= 2;
    }
    for (int step = 0; step < STEPS && high - low > high / 32; step++) {
        uint64_t middle = low + (high - low) / 2;
        *(fits_with(job, training, tier, middle) ? &high : &low) = middle;
    }
    return round_up(job, tier, high);
}

enum { CAP_TEXT_BYTES = 96 };

static const char *cap_text(const ot_job *job, int tier, uint64_t cap, char out[CAP_TEXT_BYTES])
{
    char need[OT_SIZE_TEXT_BYTES], have[OT_SIZE_TEXT_BYTES];
    const uint64_t caps[OT_TIERS] = {job->limits.device, job->limits.host, job->limits.nvme};
    const ot_train_flags *flags = job->flags;
    ot_format_size(ot_job_machine_bytes(job, (ot_tier)tier, cap), need);
    ot_format_size(ot_job_machine_bytes(job, (ot_tier)tier, caps[tier]), have);
    if (tier == OT_TIER_NVME)
        snprintf(out, CAP_TEXT_BYTES, "%s free under --nvme (have %s)", need, have);
    else
        snprintf(out, CAP_TEXT_BYTES, "%s of %s (have %s)",
                 tier == OT_TIER_HOST             ? flags->host_mem != OT_AUTO_SIZE ? "--host-mem" : "RAM"
                 : flags->gpu_mem != OT_AUTO_SIZE ? "--gpu-mem"
                                                  : "a GPU with memory",
                 need, have);
    return out;
}

/* Whether the tier's cap is that of RAM, which the host's stands for. */
static int is_ram(const ot_job *job, int tier)
{
    return tier == OT_TIER_DEVICE && job->shared && job->limits.device == job->limits.memory;
}

static void suggest_caps(const ot_job *job, const ot_training *training, ot_suggestions *out)
{
    char text[CAP_TEXT_BYTES];
    for (int tier = 0; tier < OT_TIERS; tier++) {
        if (is_ram(job, tier))
            continue;
        out->need[tier] = smallest_cap(job, training, (ot_tier)tier);
        if (out->need[tier] > 0)
            add(out, "%s", cap_text(job, tier, out->need[tier], text));
    }
}

/* Caps that do it together, where none does alone: the smallest of each tier with plenty on the next ones; `flags` go before them. */
static void suggest_caps_together(const ot_job *job, const ot_training *training, const char *flags,
                                  ot_suggestions *out)
{
    const uint64_t plenty = UINT64_C(1) << 41;
    ot_job raised = *job;
    uint64_t need[OT_TIERS] = {0};
    char texts[OT_TIERS][CAP_TEXT_BYTES] = {"", "", ""};
    size_t count = 0;
    for (int tier = 0; tier < OT_TIERS; tier++) {
        ot_job tried = raised;
        for (int next = tier + 1; next < OT_TIERS; next++)
            set_cap(job, (ot_tier)next, plenty, &tried.limits);
        if (is_ram(job, tier) || ot_job_fits(&tried.limits, training) == OT_OK)
            continue;
        need[tier] = smallest_cap(&tried, training, (ot_tier)tier);
        if (need[tier] == 0)
            return;
        set_cap(job, (ot_tier)tier, need[tier], &raised.limits);
        cap_text(job, tier, need[tier], texts[count++]);
    }
    memcpy(out->need, need, sizeof need);
    add(out, "%s%s%s%s%s%s", flags, texts[0], count > 1 ? " with " : "", texts[1], count > 2 ? " with " : "",
        texts[2]);
}

static void suggest_formats(const ot_job *job, const ot_training *training, ot_suggestions *out)
{
    ot_training t = *training;
    char need[OT_SIZE_TEXT_BYTES];
    if (t.state_dtype == OT_INT8 || t.inference || t.optimizer == OT_OPTIMIZER_ADAFACTOR)
        return;
    t.state_dtype = OT_INT8;
    if (ot_job_fits(&job->limits, &t) == OT_OK) {
        add(out, "--state-dtype int8");
        return;
    }
    uint64_t cap = smallest_cap(job, &t, OT_TIER_NVME);
    if (cap > 0)
        add(out, "--state-dtype int8 with %s free under --nvme",
            ot_format_size(ot_job_machine_bytes(job, OT_TIER_NVME, cap), need));
}

static void suggest_stage(const ot_job *job, const ot_training *training, ot_suggestions *out)
{
    ot_training t = *training;
    for (t.zero++; t.ranks > 1 && t.zero > 1 && t.zero <= OT_ZERO_STAGES; t.zero++)
        if (ot_job_fits(&job->limits, &t) == OT_OK) {
            add(out, "--zero %d", t.zero);
            return;
        }
}

/* The first that fits of the modes that keep less. */
static void suggest_recompute(const ot_job *job, const ot_training *training, ot_suggestions *out)
{
    ot_training t = *training;
    while (t.recompute != OT_RECOMPUTE_FULL) {
        t.recompute = t.recompute == OT_RECOMPUTE_NONE ? OT_RECOMPUTE_SELECTIVE : OT_RECOMPUTE_FULL;
        if (ot_job_fits(&job->limits, &t) != OT_OK)
            continue;
        add(out, "--recompute %s", t.recompute == OT_RECOMPUTE_SELECTIVE ? "selective" : "full");
        return;
    }
}

static void suggest_batch(const ot_job *job, const ot_training *training, ot_suggestions *out)
{
    ot_training t = *training;
    if (t.B > 1) {
        t.B = 1;
        t.M = job->share;
        if (ot_job_fits(&job->limits, &t) == OT_OK) {
            add(out, "--batch-size 1");
            return;
        }
    }
    for (t.T /= 2; t.T >= 256; t.T /= 2)
        if (ot_job_fits(&job->limits, &t) == OT_OK) {
            add(out, "--seq-len %zu%s", t.T, t.B != training->B ? " --batch-size 1" : "");
            return;
        }
}

static int is_forced(const ot_job *job)
{
    const ot_training *t = &job->training;
    return !t->weights.automatic || !t->states.automatic || !t->grads.automatic || !t->acts.automatic ||
           t->prefetch_depth != 0 || !t->overlap;
}

static void free_choices(ot_training *t)
{
    t->weights = t->states = t->grads = t->acts = (ot_placement){.automatic = 1};
    t->prefetch_depth = 0;
    t->overlap = 1;
}

static void suggest_automatic(const ot_job *job, ot_suggestions *out)
{
    ot_training t = job->training;
    ot_plan *plan;
    ot_timeline timeline;
    free_choices(&t);
    ot_job fixed = *job;
    fixed.batch_fixed = job->plan != NULL || job->batch_fixed;
    if (ot_job_fit(&fixed, &job->limits, &t, &plan, &timeline) != OT_OK)
        return;
    ot_plan_free(plan);
    out->automatic_s = timeline.seconds;
    if (job->plan == NULL)
        add(out, "the automatic choices in place of --place, --prefetch-depth and --overlap off");
    else if (timeline.seconds < 0.99 * job->timeline.seconds)
        add(out, "the automatic choices in place of the forced ones: %.3g s a step in place of %.3g s",
            timeline.seconds, job->timeline.seconds);
}

/* The knob that helps against each bottleneck. */
static void suggest_speed(const ot_job *job, ot_suggestions *out)
{
    const ot_timeline *timeline = &job->timeline;
    if (timeline->seconds > 1.2 * timeline->bound_s)
        add(out, "a larger --global-batch-size, so that more of the lanes' work overlaps");
    switch (timeline->bottleneck) {
    case OT_LANE_NVME_READ:
    case OT_LANE_NVME_WRITE:
        add(out,
            "more --host-mem, another drive under --nvme, or --state-dtype int8: less of the states passes the drive");
        add(out, "a larger --global-batch-size: the same traffic for more tokens");
        break;
    case OT_LANE_H2D:
    case OT_LANE_D2H:
        add(out, "more --gpu-mem, so that more weights stay on the device, or a larger --global-batch-size");
        break;
    case OT_LANE_CPU:
        add(out,
            "a larger --global-batch-size, more --gpu-mem or --threads, or --state-dtype bf16: the CPU optimizer is the slowest lane");
        break;
    default:
        break; /* compute: nothing moves that does not hide behind it */
    }
}

void ot_job_suggest(const ot_job *job, ot_suggestions *out)
{
    *out = (ot_suggestions){0};
    if (is_forced(job))
        suggest_automatic(job, out);
    if (job->plan != NULL) {
        suggest_speed(job, out);
        return;
    }
    ot_job small = smallest_job(job);
    suggest_stage(&small, &small.training, out);
    suggest_recompute(&small, &small.training, out);
    suggest_formats(&small, &small.training, out);
    suggest_batch(&small, &small.training, out);
    suggest_caps(&small, &small.training, out);
    if (out->count == 0)
        suggest_caps_together(&small, &small.training, "", out);
    if (out->count == 0 && small.training.recompute != OT_RECOMPUTE_FULL) {
        small.training.recompute = OT_RECOMPUTE_FULL;
        suggest_caps_together(&small, &small.training, "--recompute full with ", out);
    }
}
