#include "tools/rates.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/clock.h"
#include "io/host.h"
#include "io/text.h"
#include "kernels/kernels.h"

/* Peak figures of the makers' data sheets times what large products reach of them. */
static const ot_card cards[] = {
    {"rtx3080", 10, 52, 25, 25, 680},  {"rtx3090", 24, 62.5, 30, 25, 840}, {"rtx4080", 16, 86, 41, 25, 640},
    {"rtx4090", 24, 145, 70, 25, 900}, {"rtx5080", 16, 96, 48, 50, 860},   {"rtx5090", 32, 178, 89, 50, 1600},
    {"a100", 80, 265, 17, 25, 1800},   {"h100", 80, 700, 55, 50, 3000},    {"h200", 141, 700, 55, 50, 4300},
};
enum { CARDS = sizeof cards / sizeof *cards };

/* Of a desktop's memory, of one drive of the better kind after its cache is full, and of a virtual disk. */
static const double host_memory_rate = 60e9, drive_read_rate = 7e9, drive_write_rate = 6e9,
                    disk_read_rate = 5e9, disk_write_rate = 3e9;

ot_status ot_card_find(const char *name, const ot_card **out)
{
    const char *names[CARDS];
    for (int i = 0; i < CARDS; i++) {
        names[i] = cards[i].name;
        if (strcmp(name, names[i]) == 0) {
            *out = &cards[i];
            return OT_OK;
        }
    }
    const char *nearest = ot_nearest_name(name, names, CARDS);
    if (nearest != NULL)
        return ot_fail(OT_ERR_USAGE, "--gpu: no figures of '%s'; did you mean %s?", name, nearest);
    char all[256] = "";
    for (int i = 0; i < CARDS; i++)
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", i > 0 ? ", " : "", names[i]);
    return ot_fail(OT_ERR_USAGE, "--gpu: no figures of '%s'; there are %s", name, all);
}

static void set_latencies(ot_rates *rates, double device_s)
{
    for (int lane = 0; lane < OT_LANES; lane++)
        rates->lane_latency_s[lane] = 5e-6;
    rates->lane_latency_s[OT_LANE_NVME_READ] = rates->lane_latency_s[OT_LANE_NVME_WRITE] = 100e-6;
    rates->lane_latency_s[OT_LANE_H2D] = rates->lane_latency_s[OT_LANE_D2H] = device_s;
    rates->lane_latency_s[OT_LANE_COMPUTE] = device_s;
}

void ot_rates_of_card(const ot_card *card, ot_dtype dtype, ot_rates *out)
{
    *out = (ot_rates){.nvme_half_duplex = 1};
    out->lane[OT_LANE_COMPUTE] = (dtype == OT_FP32 ? card->fp32_tflops : card->tflops) * 1e12;
    out->lane[OT_LANE_H2D] = out->lane[OT_LANE_D2H] = card->pcie_gbs * 1e9;
    out->lane[OT_LANE_COLLECTIVE] = card->pcie_gbs * 1e9;
    out->lane[OT_LANE_CPU] = host_memory_rate;
    out->device_memory = card->memory_gbs * 1e9;
    out->lane[OT_LANE_NVME_READ] = drive_read_rate;
    out->lane[OT_LANE_NVME_WRITE] = drive_write_rate;
    set_latencies(out, 20e-6);
}

/* ---- measuring ---- */

/* DEVICE_UPDATE_COUNT: more than a card's caches hold. */
enum { RUNS = 4, COPY_BYTES = 16 << 20, UPDATE_COUNT = 1 << 20, DEVICE_UPDATE_COUNT = 6 << 20 };
enum { UPDATE_BYTES = 16 /* of a parameter */, UPDATE_MOVES = 28 };

/* The shortest of several runs, in seconds: the first one warms up. */
typedef void enqueue(void *context, ot_stream *stream);

static ot_status fastest(enqueue *work, void *context, ot_stream *stream, double *seconds)
{
    *seconds = 0;
    for (int run = 0; run < RUNS; run++) {
        int64_t start = ot_clock_ns();
        work(context, stream);
        OT_TRY(ot_stream_synchronize(stream));
        double taken = ot_seconds(ot_clock_ns() - start);
        if (run == 1 || (run > 1 && taken < *seconds))
            *seconds = taken;
    }
    return OT_OK;
}

typedef struct product {
    const ot_kernels *kernels;
    ot_matmul args;
} product;

static void enqueue_product(void *context, ot_stream *stream)
{
    const product *p = context;
    p->kernels->matmul(stream, &p->args);
}

static ot_status measure_product(ot_device *device, ot_stream *stream, ot_dtype dtype, double *rate)
{
    ot_device_info info;
    ot_device_query(device, &info);
    size_t side = info.host_memory ? 1024 : 4096;
    uint64_t matrix = side * side * ot_dtype_bytes(dtype);
    product p = {
        .kernels = ot_device_kernels(device),
        .args = {.op = OT_MATMUL_FORWARD,
                 .dtype = dtype,
                 .out_dtype = dtype,
                 .N = side,
                 .C = side,
                 .OC = side,
                 .ld_a = side,
                 .ld_b = side,
                 .ld_out = side},
    };
    void *base;
    uint64_t workspace = p.kernels->matmul_workspace(device, &p.args);
    OT_TRY(ot_device_arena_open(device, "measurement", 3 * matrix + workspace, &base));
    unsigned char *at = base;
    p.args.a = at;
    p.args.b = at + matrix;
    p.args.out = at + 2 * matrix;
    p.args.workspace = at + 3 * matrix;
    double seconds, n = (double)side;
    ot_status status = fastest(enqueue_product, &p, stream, &seconds);
    ot_device_arena_close(device, base);
    *rate = 2 * n * n * n / seconds;
    return status;
}

typedef struct copy {
    void *host, *device;
    int up;
} copy;

static void enqueue_copy(void *context, ot_stream *stream)
{
    const copy *c = context;
    if (c->up)
        ot_copy_h2d(stream, c->device, c->host, COPY_BYTES);
    else
        ot_copy_d2h(stream, c->host, c->device, COPY_BYTES);
}

static ot_status measure_copies(ot_device *device, ot_stream *stream, void *host, ot_rates *out)
{
    copy c = {.host = host};
    OT_TRY(ot_device_arena_open(device, "measurement", COPY_BYTES, &c.device));
    int pinned = ot_device_pin(device, host, COPY_BYTES) == OT_OK;
    ot_status status = OT_OK;
    for (c.up = 0; status == OT_OK && c.up < 2; c.up++) {
        double seconds;
        status = fastest(enqueue_copy, &c, stream, &seconds);
        out->lane[c.up ? OT_LANE_H2D : OT_LANE_D2H] = COPY_BYTES / seconds;
    }
    if (pinned)
        ot_device_unpin(device, host);
    ot_device_arena_close(device, c.device);
    return status;
}

typedef struct update {
    const ot_kernels *kernels;
    ot_update args;
} update;

static void enqueue_update(void *context, ot_stream *stream)
{
    const update *u = context;
    u->kernels->update(stream, &u->args);
}

static const ot_update_step some_step = {.grad_scale = 1, .lr = 1e-3f, .bias1 = 1, .bias2 = 1};

/* AdamW in FP32 with 16-bit gradients and weights of n parameters, all of them in `memory`: 28 bytes of each pass through it. */
static ot_status measure_update(ot_stream *stream, unsigned char *memory, size_t n,
                                const ot_update_step *step, double *rate)
{
    update u = {
        .kernels = ot_device_kernels(ot_stream_device(stream)),
        .args = {.kind = OT_OPTIMIZER_ADAMW,
                 .n = n,
                 .beta1 = 0.9f,
                 .beta2 = 0.999f,
                 .eps = 1e-8f,
                 .grad_dtype = OT_BF16,
                 .master_format = OT_MASTER_FP32,
                 .weight_dtype = OT_BF16,
                 .step = step,
                 .master = memory,
                 .moment1 = memory + n * 4,
                 .moment2 = memory + n * 8,
                 .grad = memory + n * 12,
                 .weight = memory + n * 14},
    };
    double seconds;
    OT_TRY(fastest(enqueue_update, &u, stream, &seconds));
    *rate = (double)n * UPDATE_MOVES / seconds;
    return OT_OK;
}

static ot_status measure_cpu_update(ot_device *cpu, unsigned char *host, double *rate)
{
    ot_stream *stream;
    const ot_stream_options options = {.kind = OT_STREAM_UPDATE, .name = "measurement"};
    OT_TRY(ot_stream_open(cpu, &options, &stream));
    ot_status status = measure_update(stream, host, UPDATE_COUNT, &some_step, rate);
    ot_stream_close(stream);
    return status;
}

static ot_status measure_device_update(ot_device *device, ot_stream *stream, double *rate)
{
    const size_t bytes = (size_t)DEVICE_UPDATE_COUNT * UPDATE_BYTES;
    void *base;
    OT_TRY(ot_device_arena_open(device, "measurement", bytes + sizeof some_step, &base));
    unsigned char *step = (unsigned char *)base + bytes;
    ot_copy_h2d(stream, step, &some_step, sizeof some_step);
    ot_status status =
        measure_update(stream, base, DEVICE_UPDATE_COUNT, (const ot_update_step *)(const void *)step, rate);
    ot_device_arena_close(device, base);
    return status;
}

/* Where the device is the CPU its memory is the host's. */
static ot_status measure_updates(ot_device *device, ot_device *cpu, ot_stream *stream, unsigned char *host,
                                 ot_rates *out)
{
    OT_TRY(measure_cpu_update(cpu, host, &out->lane[OT_LANE_CPU]));
    out->device_memory = out->lane[OT_LANE_CPU];
    return device != cpu ? measure_device_update(device, stream, &out->device_memory) : OT_OK;
}

static ot_status measure_lanes(ot_device *device, ot_device *cpu, ot_dtype dtype, unsigned char *host,
                               ot_rates *out)
{
    ot_stream *stream;
    const ot_stream_options options = {.kind = OT_STREAM_COMPUTE, .name = "measurement"};
    OT_TRY(ot_stream_open(device, &options, &stream));
    ot_status status = measure_product(device, stream, dtype, &out->lane[OT_LANE_COMPUTE]);
    if (status == OT_OK)
        status = measure_copies(device, stream, host, out);
    if (status == OT_OK)
        status = measure_updates(device, cpu, stream, host, out);
    ot_stream_close(stream);
    return status;
}

ot_status ot_rates_measure(ot_device *device, ot_dtype dtype, int threads, ot_rates *out)
{
    ot_device_info info;
    ot_device_query(device, &info);
    *out = (ot_rates){.nvme_half_duplex = 1};
    set_latencies(out, info.host_memory ? 10e-6 : 20e-6);
    out->lane[OT_LANE_NVME_READ] = disk_read_rate;
    out->lane[OT_LANE_NVME_WRITE] = disk_write_rate;
    unsigned char *host = aligned_alloc(OT_HUGE_PAGE_BYTES, COPY_BYTES);
    if (host == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for a measurement");
    memset(host, 0, COPY_BYTES);
    ot_device *cpu = NULL;
    ot_status status = OT_OK;
    if (!info.host_memory) {
        const ot_device_options lane = {
            .kind = "cpu", .memory_bytes = OT_HUGE_PAGE_BYTES, .threads = threads};
        status = ot_device_open(&lane, &cpu);
    }
    if (status == OT_OK)
        status = measure_lanes(device, cpu != NULL ? cpu : device, dtype, host, out);
    ot_device_close(cpu);
    free(host);
    out->lane[OT_LANE_COLLECTIVE] = out->lane[OT_LANE_H2D];
    return status;
}
