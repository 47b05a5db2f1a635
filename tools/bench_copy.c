/* `offtrain bench copy`: memory bandwidth of the host, and of copies between host and device.
 *
 * Copy and triad are those of the STREAM benchmark (McCalpin 1995), all threads together; the device's copies
 * are the ones that training makes, on streams, in either direction and in both at once. They take turns in
 * several rounds. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "io/clock.h"
#include "io/host.h"
#include "io/stop.h"
#include "io/team.h"
#include "io/text.h"
#include "kernels/device.h"
#include "tools/bench.h"
#include "tools/json.h"
#include "tools/option.h"
#include "tools/sample.h"

enum { BLOCKS = 3, SKEW_BYTES = 5 * OT_PAGE_BYTES };

typedef enum pattern {
    PATTERN_COPY,
    PATTERN_TRIAD,
    PATTERN_H2D,
    PATTERN_D2H,
    PATTERN_BOTH,
    PATTERNS
} pattern;
static const char *const pattern_names[PATTERNS] = {"copy", "triad", "h2d", "d2h", "both"};
static const char *const pattern_help[PATTERNS] = {
    "a = b on all threads, read and written bytes",
    "a = b + s*c on all threads, read and written bytes",
    "host to device, copied bytes",
    "device to host, copied bytes",
    "host to device and device to host at once, copied bytes of both",
};
static const uint64_t pattern_passes[PATTERNS] = {2, 3, 1, 1, 2}; /* times the size that is counted */

typedef struct copy_flags {
    uint64_t size;
    int64_t threads, rounds;
    const char *device;
    int json;
} copy_flags;

#define FIELD(name) offsetof(copy_flags, name)
static const ot_option copy_options[] = {
    {"size", OT_OPTION_SIZE, FIELD(size), "SIZE", "256M", NULL, "bytes of each array", NULL},
    {"threads", OT_OPTION_INT, FIELD(threads), "N", "0", NULL, "threads; 0: one for each core", NULL},
    {"rounds", OT_OPTION_INT, FIELD(rounds), "N", "9", NULL, "measurements of each", NULL},
    {"device", OT_OPTION_TEXT, FIELD(device), "NAME", "auto", OT_DEVICE_KINDS,
     "the device to copy to and from", NULL},
    {"json", OT_OPTION_FLAG, FIELD(json), NULL, NULL, NULL, "print JSON", NULL},
};
static const ot_option_table copy_table = {
    "offtrain bench copy", "Measures the bandwidth of memory and of the copies to and from the device.",
    copy_options, sizeof copy_options / sizeof *copy_options};

typedef struct bench {
    ot_host *host;
    ot_team *team;
    ot_device *device;
    ot_device_info info;
    ot_stream *h2d, *d2h;
    void *pinned; /* the host's arena, once it is */
    float *arrays[BLOCKS];
    unsigned char *device_memory;
    uint64_t size;
    ot_sample rates[PATTERNS];
} bench;

/* ---- the patterns ---- */

static void copy_share(void *context, int index, int count)
{
    const bench *b = context;
    size_t begin, end;
    ot_team_share(b->size / sizeof(float), 1024, index, count, &begin, &end);
    memcpy(b->arrays[0] + begin, b->arrays[1] + begin, (end - begin) * sizeof(float));
}

static void triad_share(void *context, int index, int count)
{
    const bench *b = context;
    size_t begin, end;
    ot_team_share(b->size / sizeof(float), 1024, index, count, &begin, &end);
    float *restrict x = b->arrays[0];
    const float *restrict y = b->arrays[1], *restrict z = b->arrays[2];
    for (size_t i = begin; i < end; i++)
        x[i] = y[i] + 3.0f * z[i];
}

static ot_status run_pattern(bench *b, pattern which)
{
    if (which == PATTERN_COPY)
        ot_team_run(b->team, copy_share, b);
    if (which == PATTERN_TRIAD)
        ot_team_run(b->team, triad_share, b);
    if (which == PATTERN_H2D || which == PATTERN_BOTH)
        ot_copy_h2d(b->h2d, b->device_memory, b->arrays[1], b->size);
    if (which == PATTERN_D2H || which == PATTERN_BOTH)
        ot_copy_d2h(b->d2h, b->arrays[0], b->device_memory + b->size + SKEW_BYTES, b->size);
    OT_TRY(ot_stream_synchronize(b->h2d));
    return ot_stream_synchronize(b->d2h);
}

static ot_status measure(bench *b, const copy_flags *flags)
{
    for (int64_t round = -1; round < flags->rounds; round++) /* the first one warms up */
        for (int p = 0; p < PATTERNS; p++) {
            OT_TRY(ot_stop_check());
            int64_t start = ot_clock_ns();
            OT_TRY(run_pattern(b, (pattern)p));
            double rate = (double)(b->size * pattern_passes[p]) / (double)(ot_clock_ns() - start);
            if (round >= 0)
                ot_sample_add(&b->rates[p], rate);
        }
    return OT_OK;
}

/* ---- set-up ---- */

static ot_status set_up(bench *b, const copy_flags *flags)
{
    ot_arena *arena;
    void *base;
    uint64_t host_bytes = ot_round_up(BLOCKS * (flags->size + SKEW_BYTES), OT_HUGE_PAGE_BYTES);
    uint64_t device_bytes = ot_round_up(2 * (flags->size + SKEW_BYTES), OT_HUGE_PAGE_BYTES);
    ot_device_options device = {.kind = flags->device,
                                .memory_bytes =
                                    device_bytes + ((uint64_t)1 << 30), /* and the device's own needs */
                                .threads = (int)flags->threads};
    ot_stream_options h2d = {.kind = OT_STREAM_H2D, .name = "h2d"},
                      d2h = {.kind = OT_STREAM_D2H, .name = "d2h"};
    b->size = flags->size;
    OT_TRY(ot_host_open(host_bytes, &b->host));
    OT_TRY(ot_arena_open(b->host, "bench copy", host_bytes, OT_PAGES_TRANSPARENT, &arena));
    base = ot_arena_base(arena);
    for (size_t i = 0; i < BLOCKS; i++)
        b->arrays[i] = (float *)(void *)((unsigned char *)base + i * (flags->size + SKEW_BYTES));
    OT_TRY(ot_team_open((int)flags->threads, &b->team));
    OT_TRY(ot_device_open(&device, &b->device));
    ot_device_query(b->device, &b->info);
    OT_TRY(ot_device_pin(b->device, base, host_bytes));
    b->pinned = base;
    OT_TRY(ot_stream_open(b->device, &h2d, &b->h2d));
    OT_TRY(ot_stream_open(b->device, &d2h, &b->d2h));
    OT_TRY(ot_device_arena_open(b->device, "bench copy", device_bytes, &base));
    b->device_memory = base;
    return OT_OK;
}

static void tear_down(bench *b)
{
    ot_stream_close(b->h2d);
    ot_stream_close(b->d2h);
    if (b->pinned != NULL)
        ot_device_unpin(b->device, b->pinned);
    ot_device_close(b->device);
    ot_team_close(b->team);
    ot_host_close(b->host);
}

/* ---- reporting ---- */

static void print_text(const bench *b)
{
    char text[OT_SAMPLE_TEXT_BYTES], size[OT_SIZE_TEXT_BYTES];
    int threads = ot_team_count(b->team);
    printf("%d thread%s, device %s (%s), arrays of %s; GB/s: median (range of %zu rounds)\n", threads,
           threads == 1 ? "" : "s", b->info.kind, b->info.name, ot_format_size(b->size, size),
           b->rates[0].count);
    for (int p = 0; p < PATTERNS; p++)
        printf("%-6s %24s  %s\n", pattern_names[p], ot_sample_text(&b->rates[p], text), pattern_help[p]);
}

static ot_status print_json(const bench *b)
{
    json_t *root = json_pack("{s:s, s:s, s:i, s:I}", "device", b->info.kind, "name", b->info.name, "threads",
                             ot_team_count(b->team), "size", (json_int_t)b->size);
    for (int p = 0; p < PATTERNS; p++)
        json_object_set_new(root, pattern_names[p], ot_sample_json(&b->rates[p]));
    return ot_json_line(root, stdout, "the JSON output");
}

static ot_status check_flags(const copy_flags *flags)
{
    if (flags->size < OT_PAGE_BYTES || flags->size % OT_PAGE_BYTES != 0 || flags->size > (uint64_t)1 << 40)
        return ot_fail(OT_ERR_USAGE, "--size: %llu bytes; a multiple of 4K up to 1T is needed",
                       (unsigned long long)flags->size);
    if (flags->threads < 0 || flags->threads > 1024)
        return ot_fail(OT_ERR_USAGE, "--threads: %lld is not in 0 to 1024", (long long)flags->threads);
    if (flags->rounds < 1 || flags->rounds > OT_SAMPLE_MAX)
        return ot_fail(OT_ERR_USAGE, "--rounds: %lld is not in 1 to %d", (long long)flags->rounds,
                       OT_SAMPLE_MAX);
    return OT_OK;
}

static ot_status run(bench *b, const copy_flags *flags)
{
    OT_TRY(set_up(b, flags));
    OT_TRY(measure(b, flags));
    if (flags->json)
        return print_json(b);
    print_text(b);
    return OT_OK;
}

ot_status ot_bench_copy(int argc, char **argv)
{
    copy_flags flags = {0};
    int help;
    OT_TRY(ot_options_parse(&copy_table, argc, argv, &flags, &help));
    if (help)
        return OT_OK;
    OT_TRY(check_flags(&flags));
    bench b = {0};
    ot_stop_install();
    ot_status status = run(&b, &flags);
    tear_down(&b);
    return status;
}
