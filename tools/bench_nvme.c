/* `offtrain bench nvme`: what the drives give to the NVMe store, by I/O depth and block size.
 *
 * Three patterns over a store of equal chunks that was written once before: read them in order, write them in
 * order, and the mix of a streamed optimizer, in which a ring of buffers takes chunk k+2 in while chunk k-1
 * goes out, so that as much is written as is read. Settings take turns in several rounds, since drives and
 * machines change their speed by themselves; the median of the rounds counts, their range is the spread. */
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/budget.h"
#include "io/clock.h"
#include "io/host.h"
#include "io/log.h"
#include "io/stop.h"
#include "io/text.h"
#include "offload/drive.h"
#include "offload/store.h"
#include "tools/bench.h"
#include "tools/json.h"
#include "tools/option.h"

enum {
    RING = 6,       /* buffers: two chunks coming in, two in the middle, two going out */
    CHUNKS_MIN = 8, /* more than the ring */
    CHUNKS_MAX = 1 << 24,
    BURST_BYTES = 64 << 20,
    CHUNK_BYTES_MIN = 1 << 20,
    CHUNK_BYTES_MAX = 1 << 30,
    SETTINGS_MAX = 64,
    ROUNDS = 5,
};

typedef enum pattern { PATTERN_READ, PATTERN_WRITE, PATTERN_MIXED, PATTERNS } pattern;
static const char *const pattern_names[PATTERNS] = {"read", "write", "mixed"};

typedef struct nvme_flags {
    ot_option_list directories, depths, blocks;
    uint64_t size, chunk, burst;
    double seconds;
    const char *io, *pattern;
    int json, checksums, huge_pages;
} nvme_flags;

#define FIELD(name) offsetof(nvme_flags, name)
static const ot_option nvme_options[] = {
    {"nvme", OT_OPTION_LIST, FIELD(directories), "DIR…", NULL, NULL, "directories on the drives to measure",
     NULL},
    {"size", OT_OPTION_SIZE, FIELD(size), "SIZE", "4G", NULL, "bytes on all drives together", NULL},
    {"chunk", OT_OPTION_SIZE, FIELD(chunk), "SIZE", "64M", NULL, "bytes of a chunk; six are in memory", NULL},
    {"seconds", OT_OPTION_REAL, FIELD(seconds), "S", "30", NULL, "time for all measurements together", NULL},
    {"pattern", OT_OPTION_TEXT, FIELD(pattern), "NAME", "all", "read|write|mixed|all", "what to measure",
     NULL},
    {"io-depth", OT_OPTION_LIST, FIELD(depths), "N…", NULL, NULL, "blocks in flight to try (4 8 16 32)",
     NULL},
    {"io-block", OT_OPTION_LIST, FIELD(blocks), "SIZE…", NULL, NULL, "block sizes to try (256K 1M 4M)", NULL},
    {"io-burst", OT_OPTION_SIZE, FIELD(burst), "SIZE", "0", NULL,
     "read and write in turns of this size; 0: at once", NULL},
    {"io", OT_OPTION_TEXT, FIELD(io), "NAME", "auto", "auto|uring|threads", "how blocks are moved", NULL},
    {"checksums", OT_OPTION_FLAG, FIELD(checksums), NULL, NULL, NULL,
     "hash and verify each block, as training does", NULL},
    {"huge-pages", OT_OPTION_FLAG, FIELD(huge_pages), NULL, NULL, NULL,
     "take the buffers from the reserved huge pages (vm.nr_hugepages)", NULL},
    {"json", OT_OPTION_FLAG, FIELD(json), NULL, NULL, NULL, "print JSON", NULL},
};
static const ot_option_table nvme_table = {"offtrain bench nvme",
                                           "Measures the drives with the I/O of a streamed optimizer.",
                                           nvme_options, sizeof nvme_options / sizeof *nvme_options};

typedef struct setting {
    uint32_t depth;
    uint64_t block, burst;
    double rates[PATTERNS][ROUNDS]; /* bytes a second; sorted once all rounds are done */
} setting;

typedef struct bench {
    ot_host *host;
    ot_store *store;
    unsigned char *buffers[RING];
    ot_store_move moves[2][RING]; /* by direction */
    double weights[OT_STORE_DIRECTORIES_MAX];
    double burst_ratio; /* mixed rate of the best setting in turns of a chunk, as a share of both at once; 0:
                           unknown */
    size_t chunk_count;
    uint64_t chunk_bytes;
    setting settings[SETTINGS_MAX];
    size_t setting_count;
} bench;

/* ---- the patterns ---- */

/* Moves in one direction, over the chunks in order and the ring's buffers in order. They can finish in
 * another order; a buffer is only free again once all moves before its own have ended, too. */
typedef struct sequence {
    size_t submitted, ended; /* all before `ended` have ended */
    unsigned char done[RING];
} sequence;

static void submit(bench *b, sequence *s, ot_block_direction direction)
{
    size_t slot = s->submitted++ % RING;
    ot_store_submit(b->store, &b->moves[direction][slot], direction, (s->submitted - 1) % b->chunk_count,
                    b->buffers[slot], NULL);
}

/* Waits for one move and counts it in its sequence. */
static ot_status finish_one(bench *b, sequence sequences[2])
{
    ot_store_move *move;
    OT_TRY(ot_stop_check());
    while ((move = ot_store_next_done(b->store)) == NULL)
        OT_TRY(ot_store_progress(b->store));
    if (move->error.status != OT_OK)
        return ot_error_raise(&move->error);
    sequence *s = &sequences[move->direction];
    s->done[move - b->moves[move->direction]] = 1;
    while (s->done[s->ended % RING]) {
        s->done[s->ended % RING] = 0;
        s->ended++;
    }
    return OT_OK;
}

static ot_status drain(bench *b, sequence sequences[2])
{
    while (ot_store_pending(b->store) > 0)
        OT_TRY(finish_one(b, sequences));
    return OT_OK;
}

/* Bytes on the drives so far, parts of chunks included. */
static uint64_t moved_bytes(const bench *b)
{
    ot_block_stats stats = ot_store_statistics(b->store);
    return stats.bytes[OT_BLOCK_READ] + stats.bytes[OT_BLOCK_WRITE];
}

/* Moves chunks in order and in one direction, with the whole ring in flight, until `ns` have passed or, with
 * ns 0, each chunk has been moved once. `*rate` is in bytes a second. */
static ot_status run_one_way(bench *b, ot_block_direction direction, int64_t ns, double *rate)
{
    sequence sequences[2] = {0}, *s = &sequences[direction];
    uint64_t before = moved_bytes(b);
    int64_t start = ot_clock_ns(), now = start;
    while (ns > 0 ? now - start < ns : s->ended < b->chunk_count) {
        while (s->submitted - s->ended < RING && (ns > 0 || s->submitted < b->chunk_count))
            submit(b, s, direction);
        OT_TRY(finish_one(b, sequences));
        now = ot_clock_ns();
    }
    *rate = (double)(moved_bytes(b) - before) / ot_seconds(now - start);
    return drain(b, sequences);
}

/* Chunks pass through the ring: up to two come in, two rest, up to two go out. Counts both directions, from
 * the first chunk that is out on: until then the ring fills, and there is less to write than to read. */
static ot_status run_mixed(bench *b, int64_t ns, double *rate)
{
    sequence sequences[2] = {0}, *in = &sequences[OT_BLOCK_READ], *out = &sequences[OT_BLOCK_WRITE];
    uint64_t before = 0;
    int64_t start = 0, now = 0;
    while (start == 0 || now - start < ns) {
        while (in->submitted - out->ended < RING && in->submitted - in->ended < 2)
            submit(b, in, OT_BLOCK_READ);
        while (out->submitted + 1 < in->ended && out->submitted - out->ended < 2)
            submit(b, out, OT_BLOCK_WRITE);
        OT_TRY(finish_one(b, sequences));
        now = ot_clock_ns();
        if (start == 0 && out->ended > 0) {
            start = now;
            before = moved_bytes(b);
        }
    }
    *rate = (double)(moved_bytes(b) - before) / ot_seconds(now - start);
    return drain(b, sequences);
}

static ot_status run_pattern(bench *b, pattern which, int64_t ns, double *rate)
{
    if (which == PATTERN_MIXED)
        return run_mixed(b, ns, rate);
    return run_one_way(b, which == PATTERN_READ ? OT_BLOCK_READ : OT_BLOCK_WRITE, ns, rate);
}

/* ---- set-up ---- */

static ot_status choose_settings(bench *b, const nvme_flags *flags)
{
    static const ot_option_list depths = {4, {"4", "8", "16", "32"}}, blocks = {3, {"256K", "1M", "4M"}};
    const ot_option_list *d = flags->depths.count > 0 ? &flags->depths : &depths;
    const ot_option_list *s = flags->blocks.count > 0 ? &flags->blocks : &blocks;
    if (d->count * s->count > SETTINGS_MAX)
        return ot_fail(OT_ERR_USAGE, "%zu depths and %zu block sizes; at most %d settings", d->count,
                       s->count, SETTINGS_MAX);
    for (size_t i = 0; i < d->count; i++)
        for (size_t j = 0; j < s->count; j++) {
            setting *next = &b->settings[b->setting_count++];
            int64_t depth;
            OT_TRY(ot_parse_int(d->items[i], "--io-depth", &depth));
            OT_TRY(ot_parse_size(s->items[j], "--io-block", &next->block));
            if (depth < 1 || depth > OT_BLOCK_DEPTH_MAX)
                return ot_fail(OT_ERR_USAGE, "--io-depth: %s is not in 1 to %d", d->items[i],
                               OT_BLOCK_DEPTH_MAX);
            if (next->block < OT_BLOCK_PIECE_BYTES_MIN || next->block > OT_BLOCK_PIECE_BYTES_MAX ||
                next->block % OT_BLOCK_PIECE_BYTES_MIN != 0)
                return ot_fail(OT_ERR_USAGE, "--io-block: %s is not a multiple of 4K from 4K to 64M",
                               s->items[j]);
            next->depth = (uint32_t)depth;
            next->burst = flags->burst;
        }
    return OT_OK;
}

static ot_status choose_chunks(bench *b, const nvme_flags *flags)
{
    if (flags->chunk < CHUNK_BYTES_MIN || flags->chunk > CHUNK_BYTES_MAX || flags->chunk % OT_PAGE_BYTES != 0)
        return ot_fail(OT_ERR_USAGE, "--chunk: a multiple of 4K from 1M to 1G is needed");
    b->chunk_bytes = flags->chunk;
    b->chunk_count = (size_t)(flags->size / b->chunk_bytes);
    char size[OT_SIZE_TEXT_BYTES];
    if (b->chunk_count < CHUNKS_MIN)
        return ot_fail(OT_ERR_USAGE, "--size: at least %s are needed, for %d chunks",
                       ot_format_size(CHUNKS_MIN * b->chunk_bytes, size), CHUNKS_MIN);
    if (b->chunk_count > CHUNKS_MAX)
        return ot_fail(OT_ERR_USAGE, "--size: %zu chunks are too many; with this --chunk at most %s work",
                       b->chunk_count, ot_format_size(CHUNKS_MAX * b->chunk_bytes, size));
    return OT_OK;
}

/* Buffers that the machine does not hold would end the process without a word. */
static ot_status check_memory(const bench *b)
{
    ot_memory_budget memory;
    char need[OT_SIZE_TEXT_BYTES], have[OT_SIZE_TEXT_BYTES];
    uint64_t bytes = RING * b->chunk_bytes + OT_DRIVE_HOST_BYTES;
    OT_TRY(ot_memory_budget_read("", &memory));
    if (bytes <= memory.bytes)
        return OT_OK;
    return ot_fail(OT_ERR_FIT, "the buffers need %s of memory; %s are usable, by %s; lower --chunk",
                   ot_format_size(bytes, need), ot_format_size(memory.bytes, have), memory.source);
}

static ot_status open_buffers(bench *b, int huge_pages)
{
    ot_arena *arena;
    OT_TRY(ot_host_open(RING * b->chunk_bytes + OT_DRIVE_HOST_BYTES, &b->host));
    OT_TRY(ot_arena_open(b->host, "bench nvme", RING * b->chunk_bytes,
                         huge_pages ? OT_PAGES_EXPLICIT : OT_PAGES_TRANSPARENT, &arena));
    for (size_t i = 0; i < RING; i++) {
        void *buffer;
        OT_TRY(ot_arena_take(arena, b->chunk_bytes, OT_PAGE_BYTES, &buffer));
        b->buffers[i] = buffer;
        /* Not zeros: some drives and hypervisors do not write those. Any fixed pattern that does not repeat
         * will do. */
        uint64_t word = 0x9E3779B97F4A7C15u * (i + 1);
        for (size_t at = 0; at < b->chunk_bytes; at += sizeof word) {
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
            memcpy(b->buffers[i] + at, &word, sizeof word);
        }
    }
    return OT_OK;
}

static const ot_block_backend *backend_of(const nvme_flags *flags)
{
    return strcmp(flags->io, "threads") == 0 ? &ot_block_threads : &ot_block_uring;
}

/* Several drives share the chunks by their speed. */
static ot_status weigh_drives(bench *b, const nvme_flags *flags)
{
    ot_block_options io = {.backend = backend_of(flags)};
    b->weights[0] = 1;
    for (size_t i = 0; flags->directories.count > 1 && i < flags->directories.count; i++)
        OT_TRY(ot_drive_measure(flags->directories.items[i], &io, b->host, &b->weights[i]));
    return OT_OK;
}

static ot_status open_store(bench *b, const nvme_flags *flags)
{
    ot_store_chunk *chunks = calloc(b->chunk_count, sizeof *chunks);
    if (chunks == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for %zu chunks", b->chunk_count);
    for (size_t i = 0; i < b->chunk_count; i++)
        chunks[i] = (ot_store_chunk){b->chunk_bytes, "bench"};
    ot_block_buffer memory = {b->buffers[0], RING * b->chunk_bytes};
    ot_store_options options = {
        .directories = flags->directories.items,
        .directory_count = flags->directories.count,
        .weights = b->weights,
        .chunks = chunks,
        .chunk_count = b->chunk_count,
        .buffers = &memory,
        .buffer_count = 1,
        .unchecked = !flags->checksums,
        .io = {.backend = backend_of(flags), .piece_bytes = b->settings[0].block},
    };
    for (size_t i = 0; i < b->setting_count; i++) {
        if (b->settings[i].depth > options.io.depth)
            options.io.depth = b->settings[i].depth;
        if (b->settings[i].block < options.io.piece_bytes)
            options.io.piece_bytes = b->settings[i].block;
    }
    ot_status status = ot_store_open(&options, &b->store);
    free(chunks);
    return status;
}

/* ---- measuring ---- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The mix decides, and where it was not measured whatever was. */
static double score(const setting *s)
{
    double best = 0;
    for (int p = 0; p < PATTERNS; p++)
        if (s->rates[p][ROUNDS / 2] > 0)
            best = s->rates[p][ROUNDS / 2];
    return best;
}

static int best_first(const void *a, const void *b)
{
    double x = score(a), y = score(b);
    return (x < y) - (x > y);
}

static int wanted(const nvme_flags *flags, pattern which)
{
    return strcmp(flags->pattern, "all") == 0 || strcmp(flags->pattern, pattern_names[which]) == 0;
}

/* With checksums a new block size makes the chunks unwritten, so they are written again before they are read.
 */
static ot_status apply(bench *b, const setting *s, int refill)
{
    double rate;
    ot_store_tune(b->store, s->depth, s->block, s->burst);
    return refill ? run_one_way(b, OT_BLOCK_WRITE, 0, &rate) : OT_OK;
}

/* Some drives read and write faster in turns. Tries turns of one chunk at the best setting, beside both at
 * once. */
static ot_status try_bursts(bench *b, int64_t ns)
{
    double rates[2][ROUNDS];
    const setting *best = &b->settings[0];
    for (int round = 0; round < ROUNDS; round++)
        for (int bursts = 0; bursts < 2; bursts++) {
            ot_store_tune(b->store, best->depth, best->block, bursts ? BURST_BYTES : 0);
            OT_TRY(run_mixed(b, ns, &rates[bursts][round]));
        }
    for (int bursts = 0; bursts < 2; bursts++)
        qsort(rates[bursts], ROUNDS, sizeof(double), by_value);
    if (rates[0][ROUNDS / 2] > 0)
        b->burst_ratio = rates[1][ROUNDS / 2] / rates[0][ROUNDS / 2];
    return OT_OK;
}

static ot_status measure(bench *b, const nvme_flags *flags)
{
    int patterns = 0;
    for (int p = 0; p < PATTERNS; p++)
        patterns += wanted(flags, (pattern)p);
    int64_t ns = (int64_t)(flags->seconds * 1e9 / (double)b->setting_count / patterns / ROUNDS);
    for (int round = 0; round < ROUNDS; round++)
        for (size_t i = 0; i < b->setting_count; i++) {
            setting *s = &b->settings[i];
            OT_TRY(apply(b, s, flags->checksums || (round == 0 && i == 0)));
            for (int p = 0; p < PATTERNS; p++)
                if (wanted(flags, (pattern)p))
                    OT_TRY(run_pattern(b, (pattern)p, ns > 0 ? ns : 1, &s->rates[p][round]));
        }
    for (size_t i = 0; i < b->setting_count; i++)
        for (int p = 0; p < PATTERNS; p++)
            qsort(b->settings[i].rates[p], ROUNDS, sizeof(double), by_value);
    qsort(b->settings, b->setting_count, sizeof *b->settings, best_first);
    if (!wanted(flags, PATTERN_MIXED) || flags->burst > 0)
        return OT_OK;
    OT_TRY(apply(b, &b->settings[0], flags->checksums));
    return try_bursts(b, ns);
}

/* ---- reporting ---- */

static void print_advice(const bench *b)
{
    char block[OT_SIZE_TEXT_BYTES];
    uint64_t bytes = b->settings[0].block;
    if (bytes % (1 << 20) == 0)
        snprintf(block, sizeof block, "%uM", (unsigned)(bytes >> 20));
    else
        snprintf(block, sizeof block, "%uK", (unsigned)(bytes >> 10));
    int turns = b->burst_ratio >= 1.05;
    if (b->burst_ratio > 0)
        printf("reading and writing in turns of 64 MiB: %.2f of both at once\n", b->burst_ratio);
    printf("best: --io-depth %u --io-block %s%s\n", b->settings[0].depth, block,
           turns ? " --io-burst 64M" : "");
}

static void print_table(const bench *b, const nvme_flags *flags)
{
    char size[OT_SIZE_TEXT_BYTES], chunk[OT_SIZE_TEXT_BYTES];
    printf("%s, %s in chunks of %s over %zu director%s%s; GB/s: median (range of %d rounds)\n",
           ot_store_backend_name(b->store), ot_format_size(b->chunk_count * b->chunk_bytes, size),
           ot_format_size(b->chunk_bytes, chunk), flags->directories.count,
           flags->directories.count == 1 ? "y" : "ies", flags->checksums ? ", checksums" : "", ROUNDS);
    printf("%6s %9s", "depth", "block");
    for (int p = PATTERNS - 1; p >= 0; p--)
        if (wanted(flags, (pattern)p))
            printf("  %20s", pattern_names[p]);
    putchar('\n');
    for (size_t i = 0; i < b->setting_count; i++) {
        const setting *s = &b->settings[i];
        printf("%6u %9s", s->depth, ot_format_size(s->block, size));
        for (int p = PATTERNS - 1; p >= 0; p--)
            if (wanted(flags, (pattern)p)) {
                char cell[64];
                snprintf(cell, sizeof cell, "%.2f (%.2f to %.2f)", s->rates[p][ROUNDS / 2] / 1e9,
                         s->rates[p][0] / 1e9, s->rates[p][ROUNDS - 1] / 1e9);
                printf("  %20s", cell);
            }
        putchar('\n');
    }
    print_advice(b);
}

static ot_status print_json(const bench *b, const nvme_flags *flags)
{
    json_t *directories = json_array(), *settings = json_array();
    for (size_t i = 0; i < flags->directories.count; i++) {
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%s", flags->directories.items[i]);
        json_array_append_new(directories, json_string(ot_clean_utf8(path)));
    }
    for (size_t i = 0; i < b->setting_count; i++) {
        const setting *s = &b->settings[i];
        json_t *row = json_pack("{s:I, s:I}", "depth", (json_int_t)s->depth, "block", (json_int_t)s->block);
        for (int p = 0; p < PATTERNS; p++)
            if (wanted(flags, (pattern)p))
                json_object_set_new(row, pattern_names[p],
                                    json_pack("{s:f, s:f, s:f}", "gbs", s->rates[p][ROUNDS / 2] / 1e9, "min",
                                              s->rates[p][0] / 1e9, "max", s->rates[p][ROUNDS - 1] / 1e9));
        json_array_append_new(settings, row);
    }
    json_t *root =
        json_pack("{s:s, s:I, s:b, s:I, s:f, s:o, s:o}", "backend", ot_store_backend_name(b->store), "size",
                  (json_int_t)(b->chunk_count * b->chunk_bytes), "checksums", flags->checksums, "burst",
                  (json_int_t)flags->burst, "burst_ratio", b->burst_ratio, "directories", directories,
                  "settings", settings);
    return ot_json_line(root, stdout, "the JSON output");
}

static ot_status run(bench *b, const nvme_flags *flags)
{
    OT_TRY(choose_settings(b, flags));
    OT_TRY(choose_chunks(b, flags));
    OT_TRY(check_memory(b));
    OT_TRY(open_buffers(b, flags->huge_pages));
    OT_TRY(weigh_drives(b, flags));
    OT_TRY(open_store(b, flags));
    OT_TRY(measure(b, flags));
    if (flags->json)
        return print_json(b, flags);
    print_table(b, flags);
    return OT_OK;
}

ot_status ot_bench_nvme(int argc, char **argv)
{
    nvme_flags flags = {0};
    int help;
    OT_TRY(ot_options_parse(&nvme_table, argc, argv, &flags, &help));
    if (help)
        return OT_OK;
    if (flags.directories.count == 0)
        return ot_fail(OT_ERR_USAGE, "--nvme: give a directory on the drive to measure");
    if (flags.directories.count > OT_STORE_DIRECTORIES_MAX)
        return ot_fail(OT_ERR_USAGE, "--nvme: %zu directories; at most %d work", flags.directories.count,
                       OT_STORE_DIRECTORIES_MAX);
    if (!(flags.seconds > 0) || flags.seconds > 1e6)
        return ot_fail(OT_ERR_USAGE, "--seconds: %g is not above 0", flags.seconds);
    bench b = {0};
    ot_stop_install();
    ot_status status = run(&b, &flags);
    ot_store_close(b.store);
    ot_host_close(b.host);
    return status;
}
