/* `offtrain bench adam`: the optimizer's update beside a probe that moves the same bytes.
 *
 * Update and probe take turns in several rounds, since machines change their speed by themselves: what counts
 * is the share of the probe's rate in each round. The planes begin at different places modulo every large
 * power of two, as chunks of a model do: where they do not, caches that find a line by a hash of its address
 * let them evict each other, and both lose up to half of their rate. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "io/clock.h"
#include "io/host.h"
#include "io/stop.h"
#include "kernels/kernels.h"
#include "tools/bench.h"
#include "tools/busy.h"
#include "tools/json.h"
#include "tools/option.h"
#include "tools/probe.h"
#include "tools/sample.h"

enum { PLANES = 7, SKEW_BYTES = 5 * OT_PAGE_BYTES, ELEMENTS_MIN = 1 << 16 };

typedef struct adam_flags {
    uint64_t parameters;
    int64_t threads, rounds;
    const char *optimizer, *grad, *master, *weight, *moments, *isa;
    ot_option_list directories;
    int json;
} adam_flags;

#define FIELD(name) offsetof(adam_flags, name)
static const ot_option adam_options[] = {
    {"parameters", OT_OPTION_SIZE, FIELD(parameters), "N", "32M", NULL, "parameters of the chunk", NULL},
    {"threads", OT_OPTION_INT, FIELD(threads), "N", "0", NULL, "threads; 0: one for each core", NULL},
    {"rounds", OT_OPTION_INT, FIELD(rounds), "N", "15", NULL, "measurements of each", NULL},
    {"optimizer", OT_OPTION_TEXT, FIELD(optimizer), "NAME", "adamw", "adamw|adam|sgd|lion", "what to measure",
     NULL},
    {"grad", OT_OPTION_TEXT, FIELD(grad), "TYPE", "bf16", "fp32|bf16|fp16", "the gradient's type", NULL},
    {"master", OT_OPTION_TEXT, FIELD(master), "FORMAT", "split", "fp32|split", "the master weight's format",
     NULL},
    {"weight", OT_OPTION_TEXT, FIELD(weight), "TYPE", "bf16", "none|bf16|fp16", "the weight that comes out",
     NULL},
    {"moments", OT_OPTION_TEXT, FIELD(moments), "FORMAT", "fp32", "fp32|bf16|int8", "the moments' format",
     NULL},
    {"isa", OT_OPTION_TEXT, FIELD(isa), "NAME", "auto", "auto|baseline|avx2|avx512", "the instruction set",
     NULL},
    {"nvme", OT_OPTION_LIST, FIELD(directories), "DIR…", NULL, NULL,
     "directories on drives, to measure beside them at work as well", NULL},
    {"json", OT_OPTION_FLAG, FIELD(json), NULL, NULL, NULL, "print JSON", NULL},
};
static const ot_option_table adam_table = {
    "offtrain bench adam", "Measures the optimizer's update beside a probe with the same memory traffic.",
    adam_options, sizeof adam_options / sizeof *adam_options};

typedef struct bench {
    ot_device *device;
    ot_stream *stream;
    ot_team *team; /* the probe's */
    ot_device_info info;
    unsigned char *memory;
    uint64_t memory_bytes, taken_bytes;
    size_t planes;
    ot_update update;
    ot_update_step step;
    ot_probe_stream streams[PLANES];
    size_t stream_count;
    uint64_t bytes; /* moved by one pass */
    ot_sample rate, probe_rate, share;
    ot_busy *busy;                         /* NULL: no drive is asked for */
    ot_sample busy_rate, kept, drive_rate; /* beside the drive; its share of the rate; the drive's rate */
} bench;

/* ---- set-up ---- */

static ot_optimizer optimizer_named(const char *name)
{
    static const char *const names[] = {"adamw", "adam", "sgd", "lion"};
    size_t kind = 0;
    while (strcmp(names[kind], name) != 0)
        kind++;
    return (ot_optimizer)kind;
}

/* The next plane of the arena. */
static void *take(bench *b, uint64_t bytes)
{
    uint64_t at = b->taken_bytes + ++b->planes * SKEW_BYTES;
    b->taken_bytes = ot_round_up(at + bytes, OT_PAGE_BYTES);
    OT_ASSERT(b->taken_bytes <= b->memory_bytes);
    return b->memory + at;
}

static void *take_stream(bench *b, ot_probe_access access, size_t width)
{
    void *base = take(b, b->update.n * width);
    b->streams[b->stream_count++] = (ot_probe_stream){access, base, width};
    return base;
}

/* Gradients of either sign around 1e-2. */
static void fill_grad(ot_update *u, void *grad)
{
    for (size_t i = 0; i < u->n; i++) {
        uint32_t random = (uint32_t)(i * 2654435761u) >> 8, sign = random & 1;
        if (u->grad_dtype == OT_FP32)
            ((float *)grad)[i] = (sign ? -0.01f : 0.01f) * (float)(1 + (random >> 1) % 64) / 64.0f;
        else
            ((uint16_t *)grad)[i] = (uint16_t)((u->grad_dtype == OT_BF16 ? 0x3c00 : 0x2000) | sign << 15 |
                                               ((random >> 1) & 0x7f));
    }
}

/* A moment and, for 8 bits, its scales, which are too few to count. */
static void *take_moment(bench *b, ot_dtype format, float **scale)
{
    if (format == OT_INT8)
        *scale = take(b, (b->update.n / OT_MOMENT_BLOCK + 1) * sizeof(float));
    return take_stream(b, OT_PROBE_CHANGE, ot_dtype_bytes(format));
}

static void set_up_update(bench *b, const adam_flags *flags)
{
    ot_update *u = &b->update;
    *u = (ot_update){
        .kind = optimizer_named(flags->optimizer),
        .n = flags->parameters,
        .beta1 = 0.9f,
        .beta2 = 0.999f,
        .eps = 1e-8f,
        .weight_decay = 0.01f,
        .step = &b->step,
        .grad_dtype = ot_dtype_find(flags->grad),
        .master_format = strcmp(flags->master, "split") == 0 ? OT_MASTER_SPLIT : OT_MASTER_FP32,
        .moment1_format = ot_dtype_find(flags->moments),
        .moment2_format = ot_dtype_find(flags->moments),
        .seed = 1,
    };
    b->step = (ot_update_step){.grad_scale = 1, .lr = 1e-4f, .bias1 = 0.5f, .bias2 = 0.01f, .number = 1};
    void *grad = take_stream(b, OT_PROBE_READ, ot_dtype_bytes(u->grad_dtype));
    fill_grad(u, grad);
    u->grad = grad;
    int split = u->master_format == OT_MASTER_SPLIT;
    u->master = take_stream(b, OT_PROBE_CHANGE, split ? sizeof(int16_t) : sizeof(float));
    if (strcmp(flags->weight, "none") != 0) {
        u->weight_dtype = ot_dtype_find(flags->weight);
        u->weight = take_stream(b, split ? OT_PROBE_CHANGE : OT_PROBE_WRITE, sizeof(uint16_t));
    }
    u->moment1 = take_moment(b, u->moment1_format, &u->scale1);
    if (u->kind == OT_OPTIMIZER_ADAMW || u->kind == OT_OPTIMIZER_ADAM)
        u->moment2 = take_moment(b, u->moment2_format, &u->scale2);
    b->bytes = ot_probe_bytes(b->streams, b->stream_count, u->n);
}

static ot_status set_up(bench *b, const adam_flags *flags)
{
    uint64_t n = flags->parameters;
    b->memory_bytes = n * 18 + n / OT_MOMENT_BLOCK * 8 + (PLANES + 1) * (PLANES + 1) * SKEW_BYTES;
    ot_device_options device = {.kind = "cpu",
                                .memory_bytes = ot_round_up(b->memory_bytes, OT_HUGE_PAGE_BYTES),
                                .threads = (int)flags->threads,
                                .isa = strcmp(flags->isa, "auto") == 0 ? NULL : flags->isa};
    ot_stream_options stream = {.kind = OT_STREAM_UPDATE, .name = "update"};
    void *memory;
    OT_TRY(ot_device_open(&device, &b->device));
    OT_TRY(ot_stream_open(b->device, &stream, &b->stream));
    OT_TRY(ot_device_arena_open(b->device, "bench adam", b->memory_bytes, &memory));
    b->memory = memory;
    ot_device_query(b->device, &b->info);
    OT_TRY(ot_team_open(b->info.units, &b->team));
    set_up_update(b, flags);
    return OT_OK;
}

/* ---- measuring ---- */

static ot_status run_update(bench *b, double *rate)
{
    int64_t start = ot_clock_ns();
    ot_device_kernels(b->device)->update(b->stream, &b->update);
    OT_TRY(ot_stream_synchronize(b->stream));
    *rate = (double)b->bytes / (double)(ot_clock_ns() - start);
    b->step.number++;
    return OT_OK;
}

static double run_probe(bench *b)
{
    int64_t start = ot_clock_ns();
    ot_probe_run(b->team, b->streams, b->stream_count, b->update.n);
    return (double)b->bytes / (double)(ot_clock_ns() - start);
}

/* The probe leaves patterns behind that are no numbers; the update's speed does not depend on them but for
 * subnormal ones, so every round begins with planes of zeros. */
static void clear(bench *b)
{
    for (size_t i = 1; i < b->stream_count; i++)
        memset(b->streams[i].base, 0, b->update.n * b->streams[i].width);
}

/* Alone and beside the drive in turns, each for long enough that the drive's bursts even out. */
static ot_status measure_beside_drive(bench *b)
{
    enum { UPDATES = 4 };
    double drive_rate, sum[2] = {0, 0}, rate;
    clear(b);
    for (int turn = 0; turn < 4; turn++) {
        int busy = turn == 1 || turn == 2;
        if (turn == 1)
            OT_TRY(ot_busy_work(b->busy));
        if (turn == 3) {
            OT_TRY(ot_busy_rest(b->busy, &drive_rate));
            ot_sample_add(&b->drive_rate, drive_rate / 1e9);
        }
        for (int i = 0; i < UPDATES; i++) {
            OT_TRY(run_update(b, &rate));
            sum[busy] += 1 / rate;
        }
    }
    ot_sample_add(&b->busy_rate, 2 * UPDATES / sum[1]);
    ot_sample_add(&b->kept, sum[0] / sum[1]);
    return OT_OK;
}

static ot_status measure(bench *b, const adam_flags *flags)
{
    double rate;
    for (int64_t round = 0; round < flags->rounds; round++) {
        OT_TRY(ot_stop_check());
        clear(b);
        OT_TRY(run_update(b, &rate)); /* moments that are not zero */
        OT_TRY(run_update(b, &rate));
        ot_sample_add(&b->rate, rate);
        /* The gradient is only read, so that it stays. */
        double probe_rate = run_probe(b);
        ot_sample_add(&b->probe_rate, probe_rate);
        ot_sample_add(&b->share, rate / probe_rate);
        if (b->busy != NULL)
            OT_TRY(measure_beside_drive(b));
    }
    return OT_OK;
}

/* ---- reporting ---- */

static void print_text(const bench *b, const adam_flags *flags)
{
    char text[OT_SAMPLE_TEXT_BYTES];
    double width = (double)b->bytes / (double)b->update.n;
    printf("%s: %s gradient, %s master, %s weight, %s moments: %g bytes a parameter\n", flags->optimizer,
           flags->grad, flags->master, flags->weight, flags->moments, width);
    printf("%s, %d thread%s, %zu parameters; median (range of %zu rounds)\n", b->info.isa, b->info.units,
           b->info.units == 1 ? "" : "s", b->update.n, b->rate.count);
    printf("update  %s GB/s, %.2f G parameters/s\n", ot_sample_text(&b->rate, text),
           ot_sample_median(&b->rate) / width);
    printf("probe   %s GB/s, the same streams without arithmetic\n", ot_sample_text(&b->probe_rate, text));
    printf("share   %s\n", ot_sample_text(&b->share, text));
    if (b->busy == NULL)
        return;
    printf("beside  %s GB/s, with the drive moving", ot_sample_text(&b->busy_rate, text));
    printf(" %s GB/s\n", ot_sample_text(&b->drive_rate, text));
    printf("kept    %s of the rate\n", ot_sample_text(&b->kept, text));
}

static ot_status print_json(const bench *b, const adam_flags *flags)
{
    double width = (double)b->bytes / (double)b->update.n;
    json_t *root =
        json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:i, s:I, s:f, s:f, s:o, s:o, s:o}", "optimizer",
                  flags->optimizer, "grad", flags->grad, "master", flags->master, "weight", flags->weight,
                  "moments", flags->moments, "isa", b->info.isa, "threads", b->info.units, "parameters",
                  (json_int_t)b->update.n, "bytes_per_parameter", width, "gparameters_s",
                  ot_sample_median(&b->rate) / width, "gbs", ot_sample_json(&b->rate), "probe_gbs",
                  ot_sample_json(&b->probe_rate), "share", ot_sample_json(&b->share));
    if (root != NULL && b->busy != NULL)
        json_object_set_new(root, "beside_drive",
                            json_pack("{s:o, s:o, s:o}", "gbs", ot_sample_json(&b->busy_rate), "drive_gbs",
                                      ot_sample_json(&b->drive_rate), "kept", ot_sample_json(&b->kept)));
    return ot_json_line(root, stdout, "the JSON output");
}

static ot_status check_flags(const adam_flags *flags)
{
    if (flags->parameters < ELEMENTS_MIN || flags->parameters > (uint64_t)1 << 40)
        return ot_fail(OT_ERR_USAGE, "--parameters: %llu is not in 64K to 1T",
                       (unsigned long long)flags->parameters);
    if (flags->threads < 0 || flags->threads > 1024)
        return ot_fail(OT_ERR_USAGE, "--threads: %lld is not in 0 to 1024", (long long)flags->threads);
    if (flags->rounds < 1 || flags->rounds > OT_SAMPLE_MAX)
        return ot_fail(OT_ERR_USAGE, "--rounds: %lld is not in 1 to %d", (long long)flags->rounds,
                       OT_SAMPLE_MAX);
    if (strcmp(flags->master, "split") == 0 && strcmp(flags->weight, "bf16") != 0)
        return ot_fail(OT_ERR_USAGE, "--master split goes with --weight bf16");
    return OT_OK;
}

static ot_status run(bench *b, const adam_flags *flags)
{
    OT_TRY(set_up(b, flags));
    if (flags->directories.count > 0)
        OT_TRY(ot_busy_open(flags->directories.items, flags->directories.count, &b->busy));
    OT_TRY(measure(b, flags));
    if (flags->json)
        return print_json(b, flags);
    print_text(b, flags);
    return OT_OK;
}

ot_status ot_bench_adam(int argc, char **argv)
{
    adam_flags flags = {0};
    int help;
    OT_TRY(ot_options_parse(&adam_table, argc, argv, &flags, &help));
    if (help)
        return OT_OK;
    OT_TRY(check_flags(&flags));
    bench b = {0};
    ot_stop_install();
    ot_status status = run(&b, &flags);
    ot_busy_close(b.busy);
    ot_team_close(b.team);
    ot_device_close(b.device);
    return status;
}
