/* The engine's basic pattern: chunks are copied into two slots in turn on one stream, and added up on
 * another.
 *
 *     double_buffer complete | no-ready-wait | no-free-wait
 *
 * The last two leave one wait out. The sum is compared with the right one under several seeds of the jitter
 * mode; exit code 1 and "result changed" where one differs. Under ThreadSanitizer the missing wait is a
 * reported race as well. */
#include <stdio.h>
#include <string.h>

#include "kernels/kernels.h"

enum { CHUNKS = 24, N = 20000, SEEDS = 8 };

typedef struct pipeline {
    ot_device *device;
    ot_stream *copies, *compute;
    ot_event *ready[2], *free[2];
    float *slot[2], *sum;
    int wait_ready, wait_free;
} pipeline;

static float host[CHUNKS][N], result[N];

static ot_status open_pipeline(pipeline *p, uint64_t seed)
{
    ot_device_options options = {
        .kind = "cpu", .memory_bytes = 4 << 20, .threads = 2, .jitter_seed = seed, .jitter_ns = 400000};
    ot_stream_options copies = {.kind = OT_STREAM_H2D, .name = "h2d"},
                      compute = {.kind = OT_STREAM_COMPUTE, .name = "compute"};
    OT_TRY(ot_device_open(&options, &p->device));
    OT_TRY(ot_stream_open(p->device, &copies, &p->copies));
    OT_TRY(ot_stream_open(p->device, &compute, &p->compute));
    void *base;
    OT_TRY(ot_device_arena_open(p->device, "slots", 3 * sizeof result, &base));
    for (int i = 0; i < 2; i++) {
        p->slot[i] = (float *)base + i * N;
        OT_TRY(ot_event_open(p->device, 0, &p->ready[i]));
        OT_TRY(ot_event_open(p->device, 0, &p->free[i]));
    }
    p->sum = (float *)base + 2 * N;
    return OT_OK;
}

static ot_status run_pipeline(pipeline *p)
{
    const ot_kernels *kernels = ot_device_kernels(p->device);
    for (int k = 0; k < CHUNKS; k++) {
        int i = k % 2;
        if (p->wait_free)
            ot_stream_wait(p->copies, p->free[i]);
        ot_copy_h2d(p->copies, p->slot[i], host[k], sizeof host[k]);
        ot_event_record(p->ready[i], p->copies);
        if (p->wait_ready)
            ot_stream_wait(p->compute, p->ready[i]);
        ot_accumulate add = {OT_FP32, N, p->sum, p->slot[i], 1};
        kernels->accumulate(p->compute, &add);
        ot_event_record(p->free[i], p->compute);
    }
    ot_copy_d2h(p->compute, result, p->sum, sizeof result);
    return ot_device_synchronize(p->device);
}

/* Whether the sum is right, the chunks being small whole numbers. */
static int is_right(void)
{
    for (int i = 0; i < N; i++) {
        float expected = 0;
        for (int k = 0; k < CHUNKS; k++)
            expected += host[k][i];
        if (result[i] != expected)
            return 0;
    }
    return 1;
}

int main(int count, char **arguments)
{
    const char *mode = count == 2 ? arguments[1] : "";
    int complete = strcmp(mode, "complete") == 0, no_ready = strcmp(mode, "no-ready-wait") == 0;
    if (!complete && !no_ready && strcmp(mode, "no-free-wait") != 0) {
        fprintf(stderr, "usage: double_buffer complete|no-ready-wait|no-free-wait\n");
        return 2;
    }
    for (int k = 0; k < CHUNKS; k++)
        for (int i = 0; i < N; i++)
            host[k][i] = (float)((k * 31 + i) % 101);
    int changed = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        pipeline p = {.wait_ready = !no_ready, .wait_free = complete || no_ready};
        if (open_pipeline(&p, seed) != OT_OK || run_pipeline(&p) != OT_OK) {
            fprintf(stderr, "%s\n", ot_error_text());
            return 2;
        }
        changed += !is_right();
        ot_device_close(p.device);
    }
    printf("%s under %d of %d seeds\n", changed > 0 ? "result changed" : "result right",
           changed > 0 ? changed : SEEDS, SEEDS);
    return changed > 0;
}
