/* `offtrain bench step`: what the engine adds to a training step.
 *
 * With everything resident the limit is the step's kernels alone, one after the other, with nothing moved; with everything on
 * NVMe it is the lane with the most work. Steps and kernels take turns, since machines change their speed by themselves. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/data.h"
#include "engine/trainer.h"
#include "io/budget.h"
#include "io/stop.h"
#include "tools/bench.h"
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

typedef struct bench {
    ot_model *model;
    ot_dataset *data;
    ot_training training;
    ot_sample step, kernels, share;     /* everything resident; share: kernels / step */
    ot_sample nvme_step, lane, stretch; /* everything on NVMe; stretch: step / largest lane */
    ot_lane largest;
} bench;

/* ---- set-up ---- */

static ot_dtype dtype_of(const char *name)
{
    int dtype = 0;
    while (strcmp(name, ot_dtype_name((ot_dtype)dtype)) != 0)
        dtype++;
    return (ot_dtype)dtype;
}

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
    ot_dtype dtype = dtype_of(flags->dtype);
    b->training = (ot_training){
        .model = b->model,
        .B = (size_t)flags->batch,
        .T = (size_t)flags->length,
        .M = 1,
        .dtype = dtype,
        .state_dtype = dtype_of(flags->state_dtype),
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
    return OT_OK;
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

static ot_status measure_nvme(bench *b, ot_trainer *trainer, size_t rounds)
{
    ot_step_result result;
    for (uint64_t step = 0; step < rounds + 2; step++) {
        OT_TRY(run_step(b, trainer, step, &result));
        if (step < 2)
            continue;
        const int64_t *busy = result.stats.busy_ns;
        b->largest = 0;
        for (int lane = 1; lane < OT_LANES; lane++)
            if (busy[lane] > busy[b->largest])
                b->largest = (ot_lane)lane;
        ot_sample_add(&b->nvme_step, result.seconds);
        ot_sample_add(&b->lane, (double)busy[b->largest] * 1e-9);
        ot_sample_add(&b->stretch, result.seconds / ((double)busy[b->largest] * 1e-9));
    }
    return OT_OK;
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
    place(&b->training, OT_TIER_NVME, OT_TIER_NVME, OT_TIER_NVME);
    OT_TRY(ot_trainer_open(&b->training, &trainer));
    status = measure_nvme(b, trainer, rounds);
    ot_trainer_close(trainer);
    return status;
}

/* ---- reporting ---- */

static void print_text(const bench *b, const step_flags *flags)
{
    char a[OT_SAMPLE_TEXT_BYTES], c[OT_SAMPLE_TEXT_BYTES], d[OT_SAMPLE_TEXT_BYTES];
    printf("%s, %zu x %zu tokens, %s, %s moments; seconds: median (range of %zu steps)\n", flags->model,
           b->training.B, b->training.T, flags->dtype, flags->state_dtype, b->step.count);
    printf("resident  step %s, its kernels alone %s: %s of the step\n", ot_sample_text(&b->step, a),
           ot_sample_text(&b->kernels, c), ot_sample_text(&b->share, d));
    if (b->nvme_step.count > 0)
        printf("on NVMe   step %s, largest lane (%s) %s: the step is %s times that\n",
               ot_sample_text(&b->nvme_step, a), ot_lane_name(b->largest), ot_sample_text(&b->lane, c),
               ot_sample_text(&b->stretch, d));
}

static ot_status print_json(const bench *b, const step_flags *flags)
{
    json_t *root = json_pack("{s:s, s:I, s:I, s:s, s:{s:o, s:o, s:o}}", "model", flags->model, "batch_size",
                             (json_int_t)b->training.B, "seq_len", (json_int_t)b->training.T, "precision",
                             flags->dtype, "resident", "step_s", ot_sample_json(&b->step), "kernels_s",
                             ot_sample_json(&b->kernels), "share", ot_sample_json(&b->share));
    if (root != NULL && b->nvme_step.count > 0)
        json_object_set_new(root, "nvme",
                            json_pack("{s:o, s:s, s:o, s:o}", "step_s", ot_sample_json(&b->nvme_step),
                                      "largest_lane", ot_lane_name(b->largest), "lane_s",
                                      ot_sample_json(&b->lane), "ratio", ot_sample_json(&b->stretch)));
    int failed = root == NULL || json_dumpf(root, stdout, JSON_COMPACT | JSON_REAL_PRECISION(6)) != 0;
    json_decref(root);
    if (failed)
        return ot_fail(OT_ERR_IO, "cannot write the JSON output");
    putchar('\n');
    return OT_OK;
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
    if (help) {
        ot_options_help(&step_table, stdout);
        return OT_OK;
    }
    OT_TRY(check_flags(&flags));
    bench *b = calloc(1, sizeof *b);
    if (b == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for the benchmark");
    ot_stop_install();
    ot_status status = run(b, &flags);
    ot_dataset_close(b->data);
    ot_model_close(b->model);
    free(b);
    return status;
}
