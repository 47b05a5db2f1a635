#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "io/text.h"
#include "tools/plan_report.h"

const char *ot_lane_words(ot_lane lane)
{
    static const char *const words[OT_LANES] = {"NVMe read", "NVMe write", "host to device", "device to host",
                                                "compute",   "collective", "optimizer (CPU)"};
    return words[lane];
}

static const char *precision_words(const ot_training *t)
{
    return t->dtype == OT_BF16   ? "bf16 weights, exact FP32 master"
           : t->dtype == OT_FP16 ? "fp16 weights, FP32 master"
                                 : "FP32 weights";
}

static void print_data(const ot_data_stats *s, const ot_dataset *evaluation, FILE *out)
{
    uint64_t dropped = s->dropped_long + s->dropped_prompt + s->dropped_untrained;
    fprintf(out,
            "data      %" PRIu64 " documents in %" PRIu64 " sequences, %.3g %% full; %" PRIu64 " targets",
            s->documents, s->windows, 100 * s->efficiency, s->trained);
    if (s->truncated > 0)
        fprintf(out, "; %" PRIu64 " cut", s->truncated);
    if (dropped > 0)
        fprintf(out, "; %" PRIu64 " dropped", dropped);
    if (evaluation != NULL)
        fprintf(out, "; evaluation: %" PRIu64 " sequences", ot_dataset_windows(evaluation));
    fprintf(out, "\n");
}

/* Matrices decay, norms and biases never do. */
static void print_groups(const ot_job *job, FILE *out)
{
    uint64_t params[2] = {0};
    size_t tensors[2] = {0};
    for (size_t l = 0; l < job->model->layer_count; l++) {
        const ot_layer *layer = &job->model->layers[l];
        for (size_t i = 0; i < layer->tensor_count; i++) {
            const ot_tensor *tensor = &layer->tensors[i];
            params[tensor->decay] += tensor->rows * tensor->cols;
            tensors[tensor->decay]++;
        }
    }
    fprintf(out,
            "decay     %g of %zu matrices, %" PRIu64 " parameters; none of %zu norms and biases, %" PRIu64
            "\n",
            job->flags->weight_decay, tensors[1], params[1], tensors[0], params[0]);
}

static void print_head(const ot_job *job, FILE *out)
{
    const ot_training *t = &job->training;
    const ot_model_config *c = &job->model->config;
    char memory[OT_SIZE_TEXT_BYTES], params[OT_NUMBER_TEXT_BYTES];
    fprintf(out, "model     %s: %s, %s M parameters, %zu blocks, width %zu, vocabulary %zu%s\n",
            job->flags->model, c->architecture, ot_format_number((double)job->model->params / 1e6, params),
            c->L, c->C, c->V, job->model_directory == NULL && t->source == NULL ? "; random weights" : "");
    fprintf(out, "formats   %s, %s moments, %s gradients to the host; %s\n", precision_words(t),
            t->optimizer == OT_OPTIMIZER_ADAFACTOR ? "factored" : ot_dtype_name(t->state_dtype),
            ot_dtype_name(t->grad_dtype), job->flags->optim);
    print_groups(job, out);
    if (t->M > 0)
        fprintf(out, "step      %zu sequences of %zu tokens = %zu micro-batch%s of %zu\n", job->sequences,
                t->T, t->M, t->M == 1 ? "" : "es", t->B);
    else
        fprintf(out, "step      %zu sequences of %zu tokens\n", job->sequences, t->T);
    fprintf(out, "run       %" PRIu64 " step%s, %.3g epochs of %" PRIu64 " tokens (%s)\n", job->total_steps,
            job->total_steps == 1 ? "" : "s", (double)job->total_steps / (double)job->steps_per_epoch,
            ot_dataset_tokens(job->dataset), job->flags->data.count > 0 ? "--data" : "the built-in sample");
    if (t->ranks > 1)
        fprintf(
            out,
            "ranks     %d, each with its shard of all layers and %zu of the sequences; memory and lanes are those of one\n",
            t->ranks, job->share);
    print_data(ot_dataset_stats(job->dataset), job->data.evaluation, out);
    fprintf(out, "device    %s\n", job->device_name);
    if (job->shared)
        fprintf(out, "memory    %s usable, by %s: device and host share it\n",
                ot_format_size(job->limits.memory, memory), job->memory.source);
}

/* ---- tiers ---- */

static void print_row(const char *name, const uint64_t bytes[OT_TIERS], FILE *out)
{
    char text[OT_SIZE_TEXT_BYTES];
    fprintf(out, "  %-16s", name);
    for (int tier = 0; tier < OT_TIERS; tier++)
        fprintf(out, " %14s", bytes[tier] > 0 ? ot_format_size(bytes[tier], text) : "-");
    fputc('\n', out);
}

static void print_tiers(const ot_job *job, FILE *out)
{
    const ot_plan *plan = job->plan;
    fprintf(out, "\n  %-16s %14s %14s %14s\n", "tier", "device", "host", "nvme");
    for (int plane = 0; plane < OT_PLANES; plane++) {
        uint64_t row[OT_TIERS], sum = 0;
        for (int tier = 0; tier < OT_TIERS; tier++)
            sum += row[tier] = plan->plane_bytes[tier][plane];
        if (sum > 0)
            print_row(ot_plane_name((ot_plane)plane), row, out);
    }
    print_row("slots and work", plan->slot_bytes, out);
    print_row("peak", plan->peak_bytes, out);
    print_row("budget", job->training.budget, out);
}

/* What one rank stores of weights, gradients, masters and moments, by what the ranks share. */
static void print_stages(const ot_job *job, FILE *out)
{
    char name[32], text[OT_SIZE_TEXT_BYTES];
    fprintf(out, "\n  %-16s", "states of a rank");
    for (int zero = 1; zero <= OT_ZERO_STAGES; zero++) {
        snprintf(name, sizeof name, "%s--zero %d", zero == job->plan->zero ? "> " : "", zero);
        fprintf(out, " %14s", name);
    }
    fprintf(out, "\n  %-16s", "");
    for (int zero = 1; zero <= OT_ZERO_STAGES; zero++)
        fprintf(out, " %14s", ot_format_size(job->plan->state_bytes[zero], text));
    fputc('\n', out);
}

static void print_phases(const ot_job *job, FILE *out)
{
    static const struct {
        const char *name;
        ot_list_kind list;
    } phases[] = {{"load", OT_LIST_LOAD},
                  {"step", OT_LIST_STEADY},
                  {"eval", OT_LIST_EVAL},
                  {"save", OT_LIST_SAVE},
                  {"resume", OT_LIST_LOAD}};
    fprintf(out, "\n  %-16s %14s %14s %14s %14s\n", "phase, peak of", "device", "host", "nvme", "predicted");
    for (size_t i = 0; i < sizeof phases / sizeof *phases; i++) {
        ot_list_kind kind = phases[i].list == OT_LIST_STEADY ? ot_steady_kind(job->plan) : phases[i].list;
        char text[OT_SIZE_TEXT_BYTES];
        ot_timeline timeline;
        fprintf(out, "  %-16s", phases[i].name);
        for (int tier = 0; tier < OT_TIERS; tier++) {
            uint64_t bytes = ot_phase_bytes(job->plan, kind, (ot_tier)tier);
            fprintf(out, " %14s", bytes > 0 ? ot_format_size(bytes, text) : "-");
        }
        if (ot_simulate(&job->plan->lists[kind], &job->training.rates, NULL, &timeline) == OT_OK)
            fprintf(out, " %12.3g s", timeline.seconds);
        fputc('\n', out);
    }
}

/* ---- time ---- */

static void print_rate(ot_lane lane, double rate, char out[32])
{
    if (lane == OT_LANE_COMPUTE)
        snprintf(out, 32, "%.4g TFLOP/s", rate / 1e12);
    else
        snprintf(out, 32, "%.3g GB/s", rate / 1e9);
}

static void print_lanes(const ot_job *job, FILE *out)
{
    const ot_list *list = ot_steady_list(job->plan);
    fprintf(out, "\n  %-16s %14s %14s %14s %14s\n", "lane, a step", "moves", "busy", "waits", "at");
    for (int lane = 0; lane < OT_LANES; lane++) {
        char moved[OT_SIZE_TEXT_BYTES], rate[32];
        if (job->timeline.busy_s[lane] <= 0)
            continue;
        if (lane == OT_LANE_COMPUTE)
            snprintf(moved, sizeof moved, "%.4g TFLOP", list->flops / 1e12);
        else
            ot_format_size(list->lane_bytes[lane], moved);
        print_rate((ot_lane)lane, job->training.rates.lane[lane], rate);
        fprintf(out, "  %-16s %14s %12.3g s %12.3g s %14s\n", ot_lane_words((ot_lane)lane), moved,
                job->timeline.busy_s[lane], job->timeline.wait_s[lane], rate);
    }
}

/* Of the parameters of this rank's shards the share whose states are on the device. */
static double device_share(const ot_plan *plan)
{
    uint64_t there = 0, all = 0;
    for (size_t c = 0; c < plan->chunk_count; c++)
        if (!plan->chunks[c].copy) {
            all += plan->chunks[c].count;
            there += ot_plan_on_device(plan, c) ? plan->chunks[c].count : 0;
        }
    return (double)there / (double)all;
}

static void print_prediction(const ot_job *job, FILE *out)
{
    double tokens = (double)ot_job_step_tokens(job), seconds = job->timeline.seconds;
    char rate[OT_NUMBER_TEXT_BYTES];
    size_t resident = 0, layers = job->model->layer_count;
    for (size_t l = 0; l < layers; l++)
        resident += job->plan->resident[l] >= 0;
    fprintf(
        out,
        "plan      weights of %zu of %zu layers stay on the device, %d fetched ahead; recompute %s; update %s\n",
        resident, layers, job->plan->prefetch_depth, job->flags->recompute,
        job->plan->update_in_backward ? "inside backward" : "during the next forward");
    if (job->plan->device_chunks > 0)
        fprintf(out, "          states of %.3g %% of the parameters stay there, too, and are updated there\n",
                100 * device_share(job->plan));
    fprintf(out, "predicted %.3g s a step, %s tokens/s; slowest lane: %s, %.3g s\n", seconds,
            ot_format_number(tokens / seconds, rate), ot_lane_words(job->timeline.bottleneck),
            job->timeline.bound_s);
}

static void print_wear(const ot_job *job, FILE *out)
{
    uint64_t bytes = ot_step_writes(job);
    char text[OT_SIZE_TEXT_BYTES], steps[OT_NUMBER_TEXT_BYTES];
    if (bytes == 0) {
        fprintf(out, "wear      none: a step writes nothing to the drives\n");
        return;
    }
    fprintf(out, "wear      %s written a step, %.3g TB in all steps; %s steps reach %g TBW\n",
            ot_format_size(bytes, text), (double)bytes * (double)job->total_steps / 1e12,
            ot_format_number(floor(job->flags->tbw * 1e12 / (double)bytes), steps), job->flags->tbw);
}

static void print_suggestions(const ot_suggestions *suggestions, FILE *out)
{
    for (size_t i = 0; i < suggestions->count; i++)
        fprintf(out, "%s%s\n", i == 0 ? "faster    " : "          ", suggestions->texts[i]);
}

void ot_plan_print(const ot_job *job, const ot_suggestions *suggestions, int brief, FILE *out)
{
    print_head(job, out);
    if (job->plan == NULL)
        return;
    print_prediction(job, out);
    if (!brief)
        print_wear(job, out);
    print_tiers(job, out);
    if (job->training.ranks > 1)
        print_stages(job, out);
    if (!brief) {
        print_phases(job, out);
        print_lanes(job, out);
        if (suggestions->automatic_s > 0)
            fprintf(out, "\nforced    %.3g s a step; the automatic choices: %.3g s\n", job->timeline.seconds,
                    suggestions->automatic_s);
        else
            fputc('\n', out);
        print_suggestions(suggestions, out);
    }
    fputc('\n', out);
}

ot_status ot_plan_refuse(const ot_job *job, const ot_suggestions *suggestions)
{
    char text[OT_ERROR_TEXT_BYTES] = "", have[OT_SIZE_TEXT_BYTES], need[OT_SIZE_TEXT_BYTES];
    const uint64_t caps[OT_TIERS] = {job->limits.device, job->limits.host, job->limits.nvme};
    size_t at = 0;
    for (int tier = job->shared && caps[0] == job->limits.memory ? OT_TIER_HOST : OT_TIER_DEVICE;
         tier < OT_TIERS; tier++)
        if (at < sizeof text)
            at += (size_t)snprintf(
                text + at, sizeof text - at, "\n  %-7s have %s%s%s",
                job->shared && tier == OT_TIER_HOST && job->flags->host_mem == OT_AUTO_SIZE
                    ? "RAM"
                    : ot_tier_name((ot_tier)tier),
                ot_format_size(ot_job_machine_bytes(job, (ot_tier)tier, caps[tier]), have),
                suggestions->need[tier] > 0 ? ", need " : "",
                suggestions->need[tier] > 0
                    ? ot_format_size(ot_job_machine_bytes(job, (ot_tier)tier, suggestions->need[tier]), need)
                    : "");
    for (size_t i = 0; i < suggestions->count && at < sizeof text; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "%s%s",
                               i == 0 ? "\nany one of these would fit:\n  " : "\n  ", suggestions->texts[i]);
    char ranks[96] = "";
    if (job->training.ranks > 1)
        snprintf(ranks, sizeof ranks, " on %d ranks; device is what each has, host and nvme what they share",
                 job->training.ranks);
    return ot_fail(OT_ERR_FIT, "%s does not fit%s%s%s", job->flags->model, ranks,
                   job->shared ? "; device and host are both this machine's RAM" : "", text);
}
