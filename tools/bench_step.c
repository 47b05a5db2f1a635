/* `offtrain bench step`: what the engine adds to a training step.
 *
 * With everything resident the limit is the step's kernels alone, one after the other, with nothing moved; with everything on
 * NVMe it is the lane with the most work. Steps and kernels take turns, since machines change their speed by themselves.
 *
 * On NVMe the step is measured without clipping, where updates run inside backward, and with it. Exact clipping parts a step in
 * two, since no update starts before the backward pass before it has ended: updates and forward, then head and backward. No
 * order is then faster than the two parts' largest lanes together. */
#include <jansson.h>
#include <stdio.h>

#include "engine/data.h"
#include "engine/trainer.h"
#include "io/budget.h"
#include "io/stop.h"
#include "offload/drive.h"
#include "tools/bench.h"
#include "tools/job.h"
#include "tools/json.h"
#include "tools/option.h"
#include "tools/sample.h"

typedef struct step_flags {
    const char *model, *dtype, *state_dtype;
    ot_option_list directories;
    int64_t batch, length, threads, rounds;
    int json;
} step_flags;

#define FIELD(name) offsetof(step_flags, name)
static const ot_option step_options[] = {
    {.name = "model",
     .kind = OT_OPTION_TEXT,
     .offset = FIELD(model),
     .value = "NAME",
     .initial = "135m",
     .help = "a preset"},
    {.name = "nvme",
     .kind = OT_OPTION_LIST,
     .offset = FIELD(directories),
     .value = "DIR…",
     .help = "directories on drives, to measure with everything there as well"},
    {.name = "batch-size",
     .kind = OT_OPTION_INT,
     .offset = FIELD(batch),
     .value = "B",
     .initial = "4",
     .help = "sequences"},
    {.name = "seq-len",
     .kind = OT_OPTION_INT,
     .offset = FIELD(length),
     .value = "T",
     .initial = "256",
     .help = "tokens of a sequence"},
    {.name = "precision",
     .kind = OT_OPTION_TEXT,
     .offset = FIELD(dtype),
     .value = "TYPE",
     .initial = "bf16",
     .choices = "bf16|fp16|fp32",
     .help = "of weights and activations"},
    {.name = "state-dtype",
     .kind = OT_OPTION_TEXT,
     .offset = FIELD(state_dtype),
     .value = "TYPE",
     .initial = "fp32",
     .choices = "fp32|bf16|int8",
     .help = "of the moments"},
    {.name = "threads",
     .kind = OT_OPTION_INT,
     .offset = FIELD(threads),
     .value = "N",
     .initial = "0",
     .help = "threads; 0: one for each core"},
    {.name = "rounds",
     .kind = OT_OPTION_INT,
     .offset = FIELD(rounds),
     .value = "N",
     .initial = "5",
     .help = "steps of each kind"},
    {.name = "json", .kind = OT_OPTION_FLAG, .offset = FIELD(json), .help = "print JSON"},
};
static const ot_option_table step_table = {"offtrain bench step",
                                           "Measures what the engine adds to a training step.", step_options,
                                           sizeof step_options / sizeof *step_options};

/* Everything on NVMe. Ratios are of steps to their limits; `simulated` is the ratio to the largest lane that the plan's list has
 * at the speeds that the lanes had. */
typedef struct nvme_result {
    ot_sample step, lane, ratio, parts, parts_ratio, simulated;
    ot_lane largest;
} nvme_result;

typedef struct bench {
    ot_model *model;
    ot_dataset *data;
    ot_training training;
    ot_sample step, kernels, share; /* everything resident; share: kernels / step */
    nvme_result unclipped, clipped;
} bench;

enum { RATES_DEVICE_BYTES = 256 << 20 };

/* ---- set-up ---- */

static ot_status check_flags(const step_flags *flags)
{
    if (flags->batch < 1 || flags->batch > 4096 || flags->length < 1 || flags->length > 1 << 20)
        return ot_fail(OT_ERR_USAGE,
                       "--batch-size and --seq-len: 1 to 4096 sequences of 1 to 1048576 tokens work");
    if (flags->rounds < 1 || flags->rounds > OT_SAMPLE_MAX)
        return ot_fail(OT_ERR_USAGE, "--rounds: 1 to %d work", OT_SAMPLE_MAX);
    if (flags->threads < 0 || flags->threads > 1024)
        return ot_fail(OT_ERR_USAGE, "--threads: 0 to 1024 work");
    return OT_OK;
}

/* The plan weighs its choices by what this machine's lanes do. */
static ot_status measure_rates(ot_training *t)
{
    const ot_device_options options = {
        .kind = "cpu", .memory_bytes = RATES_DEVICE_BYTES, .threads = t->threads};
    ot_device *device = NULL;
    ot_host *host = NULL;
    double drive;
    ot_status status;
    OT_TRY_GOTO(ot_device_open(&options, &device), out);
    OT_TRY_GOTO(ot_rates_measure(device, t->dtype, t->threads, &t->rates), out);
    if (t->directory_count > 0) {
        OT_TRY_GOTO(ot_host_open(OT_DRIVE_HOST_BYTES, &host), out);
        OT_TRY_GOTO(ot_drive_measure(t->directories[0], &t->io, host, &drive), out);
        t->rates.lane[OT_LANE_NVME_READ] = t->rates.lane[OT_LANE_NVME_WRITE] =
            drive * (double)t->directory_count;
    }
out:
    ot_host_close(host);
    ot_device_close(device);
    return status;
}

static ot_status set_up(bench *b, const step_flags *flags)
{
    ot_model_config config;
    ot_memory_budget memory;
    OT_TRY(ot_model_preset(flags->model, &config));
    if ((size_t)flags->length > config.positions)
        return ot_fail(OT_ERR_USAGE, "--seq-len: %s has %zu positions", flags->model, config.positions);
    OT_TRY(ot_model_open(&config, &b->model));
    const ot_data_options data = {.T = (size_t)flags->length, .V = config.V, .shuffle = 1, .seed = 1};
    OT_TRY(ot_dataset_open(&data, &b->data));
    OT_TRY(ot_memory_budget_read("", &memory));
    ot_dtype dtype = ot_dtype_find(flags->dtype);
    b->training = (ot_training){
        .model = b->model,
        .B = (size_t)flags->batch,
        .T = (size_t)flags->length,
        .M = 1,
        .dtype = dtype,
        .state_dtype = ot_dtype_find(flags->state_dtype),
        .grad_dtype = dtype,
        .optimizer = OT_OPTIMIZER_ADAMW,
        .beta1 = 0.9f,
        .beta2 = 0.999f,
        .eps = 1e-8f,
        .max_grad_norm = 1,
        .skip_not_finite = 1,
        .seed = 1,
        .overlap = 1,
        .budget = {memory.bytes / 2, memory.bytes / 2, UINT64_MAX >> 2},
        .device = "cpu",
        .threads = (int)flags->threads,
        .directories = flags->directories.items,
        .directory_count = flags->directories.count,
    };
    return measure_rates(&b->training);
}

static void place(ot_training *t, ot_tier weights, ot_tier states, ot_tier acts)
{
    t->weights = (ot_placement){.tier = weights, .share = 1};
    t->states = t->grads = (ot_placement){.tier = states, .share = 1};
    t->acts = (ot_placement){.tier = acts, .share = 1};
}

/* ---- measuring ---- */

static ot_status run_step(bench *b, ot_trainer *trainer, uint64_t step, ot_step_result *result)
{
    OT_TRY(ot_stop_check());
    uint64_t trained = ot_dataset_fill(b->data, step, b->training.B, 1, ot_trainer_data(trainer));
    return ot_trainer_step(trainer, 1e-5, trained, result);
}

static ot_status measure_resident(bench *b, ot_trainer *trainer, size_t rounds)
{
    ot_step_result result;
    double seconds;
    for (uint64_t step = 0; step < rounds + 2; step++) {
        OT_TRY(run_step(b, trainer, step, &result));
        if (step < 2) /* the first one has no update before it, the second warms that up */
            continue;
        OT_TRY(ot_trainer_time_kernels(trainer, &seconds));
        ot_sample_add(&b->step, result.seconds);
        ot_sample_add(&b->kernels, seconds);
        ot_sample_add(&b->share, seconds / result.seconds);
    }
    return OT_OK;
}

static double largest_of(const double seconds[OT_LANES], ot_lane *lane)
{
    *lane = 0;
    for (int l = 1; l < OT_LANES; l++)
        if (seconds[l] > seconds[*lane])
            *lane = (ot_lane)l;
    return seconds[*lane];
}

/* The largest lane before the head and the largest one from it on, by the last step's operations. */
static double parts_of(const ot_trainer *trainer, const ot_list *list)
{
    const ot_span *spans = ot_mover_spans(ot_trainer_mover(trainer));
    double seconds[2][OT_LANES] = {{0}};
    ot_lane lane;
    int part = 0;
    for (size_t i = 0; i < list->count; i++) {
        part |= list->operations[i].kind == OT_OP_HEAD;
        seconds[part][list->operations[i].lane] += (double)(spans[i].end_ns - spans[i].start_ns) * 1e-9;
    }
    return largest_of(seconds[0], &lane) + largest_of(seconds[1], &lane);
}

/* What the list makes of lanes as fast as they were. The drive's lanes were measured side by side. */
static ot_status simulate(const ot_list *list, const double busy[OT_LANES], double *ratio)
{
    ot_rates rates = {.nvme_half_duplex = 0};
    ot_timeline timeline;
    for (int l = 0; l < OT_LANES; l++) {
        double work = l == OT_LANE_COMPUTE ? list->flops : (double)list->lane_bytes[l];
        rates.lane[l] = busy[l] > 0 ? work / busy[l] : 0;
    }
    OT_TRY(ot_simulate(list, &rates, NULL, &timeline));
    *ratio = timeline.seconds / timeline.bound_s;
    return OT_OK;
}

static ot_status measure_nvme(bench *b, ot_trainer *trainer, size_t rounds, nvme_result *out)
{
    const ot_list *list = ot_steady_list(ot_trainer_plan(trainer));
    ot_step_result result;
    double busy[OT_LANES], simulated;
    for (uint64_t step = 0; step < rounds + 2; step++) {
        OT_TRY(run_step(b, trainer, step, &result));
        if (step < 2)
            continue;
        for (int l = 0; l < OT_LANES; l++)
            busy[l] = (double)result.stats.busy_ns[l] * 1e-9;
        double lane = largest_of(busy, &out->largest), parts = parts_of(trainer, list);
        OT_TRY(simulate(list, busy, &simulated));
        ot_sample_add(&out->step, result.seconds);
        ot_sample_add(&out->lane, lane);
        ot_sample_add(&out->ratio, result.seconds / lane);
        ot_sample_add(&out->parts, parts);
        ot_sample_add(&out->parts_ratio, result.seconds / parts);
        ot_sample_add(&out->simulated, simulated);
    }
    return OT_OK;
}

static ot_status measure_on_nvme(bench *b, size_t rounds, int clipped)
{
    ot_trainer *trainer;
    ot_training training = b->training;
    place(&training, OT_TIER_NVME, OT_TIER_NVME, OT_TIER_NVME);
    training.max_grad_norm = clipped;
    training.skip_not_finite = clipped;
    OT_TRY(ot_trainer_open(&training, &trainer));
    ot_status status = measure_nvme(b, trainer, rounds, clipped ? &b->clipped : &b->unclipped);
    ot_trainer_close(trainer);
    return status;
}

static ot_status measure(bench *b, size_t rounds)
{
    ot_trainer *trainer;
    place(&b->training, OT_TIER_DEVICE, OT_TIER_HOST, OT_TIER_DEVICE);
    OT_TRY(ot_trainer_open(&b->training, &trainer));
    ot_status status = measure_resident(b, trainer, rounds);
    ot_trainer_close(trainer);
    if (status != OT_OK || b->training.directory_count == 0)
        return status;
    OT_TRY(measure_on_nvme(b, rounds, 0));
    return measure_on_nvme(b, rounds, 1);
}

/* ---- reporting ---- */

static void print_nvme(const nvme_result *r, const char *mode)
{
    char a[OT_SAMPLE_TEXT_BYTES], c[OT_SAMPLE_TEXT_BYTES], d[OT_SAMPLE_TEXT_BYTES], e[OT_SAMPLE_TEXT_BYTES];
    printf("on NVMe, %-11s   step %s, largest lane (%s) %s: %s times that (%s simulated)\n", mode,
           ot_sample_text(&r->step, a), ot_lane_name(r->largest), ot_sample_text(&r->lane, c),
           ot_sample_text(&r->ratio, d), ot_sample_text(&r->simulated, e));
}

static void print_text(const bench *b, const step_flags *flags)
{
    char a[OT_SAMPLE_TEXT_BYTES], c[OT_SAMPLE_TEXT_BYTES], d[OT_SAMPLE_TEXT_BYTES];
    printf("%s, %zu x %zu tokens, %s, %s moments; seconds: median (range of %zu steps)\n", flags->model,
           b->training.B, b->training.T, flags->dtype, flags->state_dtype, b->step.count);
    printf("resident               step %s, its kernels alone %s: %s of the step\n",
           ot_sample_text(&b->step, a), ot_sample_text(&b->kernels, c), ot_sample_text(&b->share, d));
    if (b->clipped.step.count == 0)
        return;
    print_nvme(&b->unclipped, "no clipping");
    print_nvme(&b->clipped, "clipping");
    printf("                       of updates and forward, then backward %s: %s times that\n",
           ot_sample_text(&b->clipped.parts, a), ot_sample_text(&b->clipped.parts_ratio, c));
}

static json_t *nvme_json(const nvme_result *r)
{
    return json_pack("{s:o, s:s, s:o, s:o, s:o, s:o, s:o}", "step_s", ot_sample_json(&r->step),
                     "largest_lane", ot_lane_name(r->largest), "lane_s", ot_sample_json(&r->lane), "ratio",
                     ot_sample_json(&r->ratio), "parts_s", ot_sample_json(&r->parts), "parts_ratio",
                     ot_sample_json(&r->parts_ratio), "simulated_ratio", ot_sample_json(&r->simulated));
}

static ot_status print_json(const bench *b, const step_flags *flags)
{
    json_t *root = json_pack("{s:s, s:I, s:I, s:s, s:{s:o, s:o, s:o}}", "model", flags->model, "batch_size",
                             (json_int_t)b->training.B, "seq_len", (json_int_t)b->training.T, "precision",
                             flags->dtype, "resident", "step_s", ot_sample_json(&b->step), "kernels_s",
                             ot_sample_json(&b->kernels), "share", ot_sample_json(&b->share));
    if (root != NULL && b->clipped.step.count > 0) {
        json_object_set_new(root, "nvme", nvme_json(&b->unclipped));
        json_object_set_new(root, "nvme_clipped", nvme_json(&b->clipped));
    }
    return ot_json_line(root, stdout, "the JSON output");
}

static ot_status run(bench *b, const step_flags *flags)
{
    OT_TRY(set_up(b, flags));
    OT_TRY(measure(b, (size_t)flags->rounds));
    if (flags->json)
        return print_json(b, flags);
    print_text(b, flags);
    return OT_OK;
}

ot_status ot_bench_step(int argc, char **argv)
{
    step_flags flags = {0};
    int help;
    OT_TRY(ot_options_parse(&step_table, argc, argv, &flags, &help));
    if (help)
        return OT_OK;
    OT_TRY(check_flags(&flags));
    bench b = {0};
    ot_stop_install();
    ot_status status = run(&b, &flags);
    ot_dataset_close(b.data);
    ot_model_close(b.model);
    return status;
}
