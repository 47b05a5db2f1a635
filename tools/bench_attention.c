/* `offtrain bench attention`: attention forward and backward beside the rate of a square matrix product.
 *
 * Counted are the products that a causal mask leaves: forward two of T*T/2 scores a head, backward five.
 * Kernel and square product take turns in several rounds, since machines change their speed by themselves:
 * what counts is the share of the square product's rate in each round. FP16, which oneDNN does not multiply
 * on most processors, is compared with FP32. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "io/clock.h"
#include "io/host.h"
#include "io/stop.h"
#include "kernels/kernels.h"
#include "tools/bench.h"
#include "tools/gemm.h"
#include "tools/json.h"
#include "tools/option.h"
#include "tools/sample.h"

enum { PASSES = 2 };
static const char *const pass_names[PASSES] = {"forward", "backward"};

typedef struct attention_flags {
    int64_t batch, tokens, heads, kv_heads, head_dim, threads, rounds;
    const char *dtype, *isa;
    int json;
} attention_flags;

#define FIELD(name) offsetof(attention_flags, name)
static const ot_option attention_options[] = {
    {"tokens", OT_OPTION_INT, FIELD(tokens), "T", "2048", NULL, "length of a sequence", NULL},
    {"batch", OT_OPTION_INT, FIELD(batch), "B", "1", NULL, "sequences", NULL},
    {"heads", OT_OPTION_INT, FIELD(heads), "N", "8", NULL, "query heads", NULL},
    {"kv-heads", OT_OPTION_INT, FIELD(kv_heads), "N", "0", NULL, "key and value heads; 0: as many", NULL},
    {"head-dim", OT_OPTION_INT, FIELD(head_dim), "N", "128", NULL, "elements of a head", NULL},
    {"dtype", OT_OPTION_TEXT, FIELD(dtype), "TYPE", "bf16", "fp32|bf16|fp16", "the type of all tensors",
     NULL},
    {"threads", OT_OPTION_INT, FIELD(threads), "N", "0", NULL, "threads; 0: one for each core", NULL},
    {"rounds", OT_OPTION_INT, FIELD(rounds), "N", "9", NULL, "measurements of each", NULL},
    {"isa", OT_OPTION_TEXT, FIELD(isa), "NAME", "auto", "auto|baseline|avx2|avx512", "the instruction set",
     NULL},
    {"json", OT_OPTION_FLAG, FIELD(json), NULL, NULL, NULL, "print JSON", NULL},
};
static const ot_option_table attention_table = {
    "offtrain bench attention", "Measures causal attention beside a square matrix product.",
    attention_options, sizeof attention_options / sizeof *attention_options};

typedef struct bench {
    ot_device *device;
    ot_stream *stream;
    ot_device_info info;
    ot_onednn *onednn;
    ot_attention attention;
    uint64_t workspace_bytes;
    ot_tile *square;
    void *square_memory;
    double flops[PASSES];
    ot_sample rates[PASSES], shares[PASSES], square_rate;
} bench;

/* ---- set-up ---- */

static void describe(bench *b, const attention_flags *flags)
{
    ot_attention *a = &b->attention;
    *a = (ot_attention){.dtype = ot_dtype_find(flags->dtype),
                        .B = (size_t)flags->batch,
                        .T = (size_t)flags->tokens,
                        .NH = (size_t)flags->heads,
                        .NKV = (size_t)(flags->kv_heads > 0 ? flags->kv_heads : flags->heads),
                        .HD = (size_t)flags->head_dim};
    a->scale = 1 / sqrtf((float)a->HD);
    a->ld_q = a->ld_out = a->ld_dq = a->NH * a->HD;
    a->ld_kv = a->ld_dkv = a->NKV * a->HD;
    b->flops[0] = 4.0 * (double)a->B * (double)a->NH * ((double)a->T * (double)a->T / 2) * (double)a->HD;
    b->flops[1] = 2.5 * b->flops[0];
}

static ot_status open_memory(bench *b)
{
    ot_attention *a = &b->attention;
    const ot_kernels *kernels = ot_device_kernels(b->device);
    size_t size = ot_dtype_bytes(a->dtype), n = a->B * a->T * a->NH * a->HD,
           kv_n = a->B * a->T * a->NKV * a->HD;
    uint64_t forward = kernels->attention_forward_workspace(b->device, a), bytes = 0;
    uint64_t backward = kernels->attention_backward_workspace(b->device, a);
    b->workspace_bytes = forward > backward ? forward : backward;
    uint64_t at[10] = {ot_gemm_take(&bytes, n * size),
                       ot_gemm_take(&bytes, n * size),
                       ot_gemm_take(&bytes, n * size),
                       ot_gemm_take(&bytes, n * size),
                       ot_gemm_take(&bytes, kv_n * size),
                       ot_gemm_take(&bytes, kv_n * size),
                       ot_gemm_take(&bytes, kv_n * size),
                       ot_gemm_take(&bytes, kv_n * size),
                       ot_gemm_take(&bytes, a->B * a->NH * a->T * sizeof(float)),
                       ot_gemm_take(&bytes, b->workspace_bytes)};
    uint64_t square = ot_gemm_take(&bytes, ot_gemm_square_bytes());
    void *memory;
    OT_TRY(ot_device_arena_open(b->device, "bench attention", bytes, &memory));
    unsigned char *base = memory;
    ot_gemm_fill(a->dtype, base + at[0], n, 1);
    ot_gemm_fill(a->dtype, base + at[2], n, 2);
    ot_gemm_fill(a->dtype, base + at[4], kv_n, 3);
    ot_gemm_fill(a->dtype, base + at[5], kv_n, 4);
    ot_gemm_fill_square(a->dtype, base + square);
    a->q = base + at[0];
    a->out = base + at[1];
    a->dout = base + at[2];
    a->dq = base + at[3];
    a->k = base + at[4];
    a->v = base + at[5];
    a->dk = base + at[6];
    a->dv = base + at[7];
    a->lse = (float *)(void *)(base + at[8]);
    a->workspace = base + at[9];
    b->square_memory = base + square;
    return OT_OK;
}

static ot_status set_up(bench *b, const attention_flags *flags)
{
    OT_TRY(ot_gemm_open_device(flags->threads, flags->isa, &b->device, &b->stream));
    ot_device_query(b->device, &b->info);
    OT_TRY(ot_onednn_open(&b->onednn));
    describe(b, flags);
    OT_TRY(ot_gemm_open_square(b->onednn, b->attention.dtype, b->info.units, &b->square));
    return open_memory(b);
}

/* ---- measuring ---- */

static ot_status run_pass(bench *b, size_t pass, double *rate)
{
    const ot_kernels *kernels = ot_device_kernels(b->device);
    int64_t start = ot_clock_ns();
    (pass == 0 ? kernels->attention_forward : kernels->attention_backward)(b->stream, &b->attention);
    OT_TRY(ot_stream_synchronize(b->stream));
    *rate = b->flops[pass] / (double)(ot_clock_ns() - start);
    return OT_OK;
}

static ot_status measure_round(bench *b, int warm)
{
    double rate, square_rate;
    for (size_t pass = 0; pass < PASSES; pass++) {
        OT_TRY(ot_stop_check());
        OT_TRY(ot_gemm_run_square(b->square, b->square_memory, &square_rate));
        OT_TRY(run_pass(b, pass, &rate));
        if (!warm)
            continue;
        ot_sample_add(&b->square_rate, square_rate);
        ot_sample_add(&b->rates[pass], rate);
        ot_sample_add(&b->shares[pass], rate / square_rate);
    }
    return OT_OK;
}

/* ---- reporting ---- */

static void print_text(const bench *b)
{
    const ot_attention *a = &b->attention;
    char text[OT_SAMPLE_TEXT_BYTES];
    printf("B=%zu T=%zu, %zu heads on %zu, of %zu elements in %s, %s, %d thread%s, %.1f MiB of workspace\n",
           a->B, a->T, a->NH, a->NKV, a->HD, ot_dtype_name(a->dtype), b->info.isa, b->info.units,
           b->info.units == 1 ? "" : "s", (double)b->workspace_bytes / (1 << 20));
    printf("%-8s  %26s  %20s    median (range of %zu rounds)\n", "", "GFLOP/s", "share of the square",
           b->rates[0].count);
    for (size_t pass = 0; pass < PASSES; pass++) {
        printf("%-8s  %26s", pass_names[pass], ot_sample_text(&b->rates[pass], text));
        printf("  %20s\n", ot_sample_text(&b->shares[pass], text));
    }
    printf("%-8s  %26s    oneDNN, %d rows\n", "square", ot_sample_text(&b->square_rate, text),
           OT_GEMM_SQUARE);
}

static ot_status print_json(const bench *b)
{
    const ot_attention *a = &b->attention;
    json_t *root = json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:s, s:s, s:i, s:I, s:o}", "batch", (json_int_t)a->B, "tokens",
        (json_int_t)a->T, "heads", (json_int_t)a->NH, "kv_heads", (json_int_t)a->NKV, "head_dim",
        (json_int_t)a->HD, "dtype", ot_dtype_name(a->dtype), "isa", b->info.isa, "threads", b->info.units,
        "workspace_bytes", (json_int_t)b->workspace_bytes, "square_gflops", ot_sample_json(&b->square_rate));
    for (size_t pass = 0; pass < PASSES; pass++)
        json_object_set_new(root, pass_names[pass],
                            json_pack("{s:o, s:o}", "gflops", ot_sample_json(&b->rates[pass]), "share",
                                      ot_sample_json(&b->shares[pass])));
    return ot_json_line(root, stdout, "the JSON output");
}

static ot_status check_flags(const attention_flags *flags)
{
    OT_TRY(ot_gemm_check("tokens", flags->tokens, 1, 1 << 20));
    OT_TRY(ot_gemm_check("batch", flags->batch, 1, 1 << 16));
    OT_TRY(ot_gemm_check("heads", flags->heads, 1, 1 << 16));
    OT_TRY(ot_gemm_check("kv-heads", flags->kv_heads, 0, flags->heads));
    OT_TRY(ot_gemm_check("head-dim", flags->head_dim, 1, 1 << 16));
    OT_TRY(ot_gemm_check("threads", flags->threads, 0, 1024));
    OT_TRY(ot_gemm_check("rounds", flags->rounds, 1, OT_SAMPLE_MAX));
    if (flags->kv_heads > 0 && flags->heads % flags->kv_heads != 0)
        return ot_fail(OT_ERR_USAGE, "--heads: %lld is not a multiple of --kv-heads %lld",
                       (long long)flags->heads, (long long)flags->kv_heads);
    return OT_OK;
}

static ot_status run(bench *b, const attention_flags *flags)
{
    OT_TRY(set_up(b, flags));
    for (int64_t round = 0; round <= flags->rounds; round++)
        OT_TRY(measure_round(b, round > 0));
    if (flags->json)
        return print_json(b);
    print_text(b);
    return OT_OK;
}

ot_status ot_bench_attention(int argc, char **argv)
{
    attention_flags flags = {0};
    int help;
    OT_TRY(ot_options_parse(&attention_table, argc, argv, &flags, &help));
    if (help)
        return OT_OK;
    OT_TRY(check_flags(&flags));
    bench b = {0};
    ot_stop_install();
    ot_status status = run(&b, &flags);
    ot_plain_close(b.square);
    ot_onednn_close(b.onednn);
    ot_device_close(b.device);
    return status;
}
