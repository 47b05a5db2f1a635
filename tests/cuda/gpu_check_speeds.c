/* gpu_check: speeds of matrix products, attention and copies, timed by the card's own events. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cuda/gpu_check.h"

enum { ROUNDS = 20, N = 4096, C = 4096, OC = 11008, HEADS = 32, HEAD_DIM = 128 };

#define COPY_BYTES ((size_t)1 << 30)
#define WORKSPACE_BYTES (UINT64_C(1) << 30)

typedef struct bench {
    ot_device *device;
    const ot_kernels *kernels;
    ot_stream *compute, *h2d, *d2h;
    ot_event *begin, *end;
    char *base, *host;
} bench;

static ot_status open_stream(ot_device *device, ot_stream_kind kind, ot_stream **out)
{
    const ot_stream_options options = {.kind = kind, .name = "speed"};
    return ot_stream_open(device, &options, out);
}

static ot_status open_bench(ot_device *device, bench *b)
{
    void *base;
    *b = (bench){.device = device, .kernels = ot_device_kernels(device)};
    b->host = aligned_alloc(4096, 2 * COPY_BYTES);
    if (b->host == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for the copies");
    memset(b->host, 0, 2 * COPY_BYTES);
    OT_TRY(ot_device_pin(device, b->host, 2 * COPY_BYTES));
    OT_TRY(ot_device_arena_open(device, "speeds", 2 * COPY_BYTES + WORKSPACE_BYTES, &base));
    b->base = base;
    OT_TRY(open_stream(device, OT_STREAM_COMPUTE, &b->compute));
    OT_TRY(open_stream(device, OT_STREAM_H2D, &b->h2d));
    OT_TRY(open_stream(device, OT_STREAM_D2H, &b->d2h));
    OT_TRY(ot_event_open(device, 1, &b->begin));
    return ot_event_open(device, 1, &b->end);
}

typedef void work(const bench *b);

/* Seconds of one call, the first ones left out; all of it on `stream`, or ordered with it by the work itself. */
static ot_status measure(bench *b, ot_stream *stream, work *run, double *seconds)
{
    for (int i = 0; i < ROUNDS + 3; i++) {
        if (i == 3)
            ot_event_record(b->begin, stream);
        run(b);
    }
    ot_event_record(b->end, stream);
    OT_TRY(ot_device_synchronize(b->device));
    *seconds = (double)ot_event_elapsed_ns(b->begin, b->end) * 1e-9 / ROUNDS;
    return OT_OK;
}

static void report(bench *b, const char *what, ot_stream *stream, work *run, double amount, const char *unit)
{
    double seconds;
    char found[64];
    if (measure(b, stream, run, &seconds) != OT_OK) {
        check_fail(what);
        return;
    }
    snprintf(found, sizeof found, "%.1f %s", amount / seconds, unit);
    check_line(what, found, -1);
}

static void multiply(const bench *b)
{
    ot_matmul a = {.op = OT_MATMUL_FORWARD,
                   .dtype = OT_BF16,
                   .out_dtype = OT_BF16,
                   .N = N,
                   .C = C,
                   .OC = OC,
                   .a = b->base,
                   .b = b->base + ((size_t)128 << 20),
                   .out = b->base + ((size_t)256 << 20),
                   .ld_a = C,
                   .ld_b = C,
                   .ld_out = OC,
                   .workspace = b->base + 2 * COPY_BYTES};
    b->kernels->matmul(b->compute, &a);
}

static ot_attention attention_of(const bench *b)
{
    const size_t row = HEADS * HEAD_DIM, step = (size_t)64 << 20;
    return (ot_attention){.dtype = OT_BF16,
                          .B = 1,
                          .T = N,
                          .NH = HEADS,
                          .NKV = HEADS,
                          .HD = HEAD_DIM,
                          .scale = 0.088f,
                          .ld_q = row,
                          .ld_kv = row,
                          .ld_out = row,
                          .q = b->base,
                          .k = b->base + step,
                          .v = b->base + 2 * step,
                          .out = b->base + 3 * step,
                          .lse = (float *)(void *)(b->base + 4 * step),
                          .dout = b->base + 5 * step,
                          .ld_dq = row,
                          .ld_dkv = row,
                          .dq = b->base + 6 * step,
                          .dk = b->base + 7 * step,
                          .dv = b->base + 8 * step,
                          .workspace = b->base + 2 * COPY_BYTES};
}

static void attend(const bench *b)
{
    ot_attention a = attention_of(b);
    b->kernels->attention_forward(b->compute, &a);
}

static void attend_backward(const bench *b)
{
    ot_attention a = attention_of(b);
    b->kernels->attention_backward(b->compute, &a);
}

static void copy_up(const bench *b)
{
    ot_copy_h2d(b->h2d, b->base, b->host, COPY_BYTES);
}

static void copy_down(const bench *b)
{
    ot_copy_d2h(b->d2h, b->host + COPY_BYTES, b->base + COPY_BYTES, COPY_BYTES);
}

/* The clock is h2d's; the other direction keeps busy meanwhile. */
static void copy_both(const bench *b)
{
    copy_up(b);
    copy_down(b);
}

void check_speeds(ot_device *cuda)
{
    bench b;
    if (open_bench(cuda, &b) != OT_OK) {
        check_fail("speeds");
        return;
    }
    const double product = 2.0 * N * C * OC,
                 attention = 2.0 * HEADS * HEAD_DIM * (double)N * N; /* causal: a half */
    report(&b, "bf16 product, 4096 x 4096 x 11008", b.compute, multiply, product * 1e-12, "TFLOP/s");
    report(&b, "attention forward, 4096 tokens, 32 heads", b.compute, attend, attention * 1e-12, "TFLOP/s");
    report(&b, "attention backward", b.compute, attend_backward, 2.5 * attention * 1e-12, "TFLOP/s");
    report(&b, "host to device, alone", b.h2d, copy_up, (double)COPY_BYTES * 1e-9, "GB/s");
    report(&b, "device to host, alone", b.d2h, copy_down, (double)COPY_BYTES * 1e-9, "GB/s");
    report(&b, "host to device, both ways at once", b.h2d, copy_both, (double)COPY_BYTES * 1e-9, "GB/s");
    ot_stream_close(b.compute);
    ot_stream_close(b.h2d);
    ot_stream_close(b.d2h);
    ot_device_arena_close(cuda, b.base);
    ot_device_unpin(cuda, b.host);
    free(b.host);
}
