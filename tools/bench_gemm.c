/* `offtrain bench gemm`: the three matrix products of a linear layer beside the same products by plain
 * oneDNN.
 *
 * Plain oneDNN gets the matrices as they lie and as many threads, of its own. Both take turns in several
 * rounds, since machines change their speed by themselves: what counts is the share of plain oneDNN's rate in
 * each round. FP16, which it does not multiply on most processors, is compared with its FP32. */
#include <jansson.h>
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

enum { OPERATIONS = 3 };
static const char *const operation_names[OPERATIONS] = {"forward", "dX", "dW"};

typedef struct gemm_flags {
    int64_t tokens, width, outputs, threads, rounds;
    const char *dtype, *isa;
    int json;
} gemm_flags;

#define FIELD(name) offsetof(gemm_flags, name)
static const ot_option gemm_options[] = {
    {"tokens", OT_OPTION_INT, FIELD(tokens), "N", "512", NULL, "rows of the activations", NULL},
    {"width", OT_OPTION_INT, FIELD(width), "C", "4096", NULL, "columns of the activations that go in", NULL},
    {"outputs", OT_OPTION_INT, FIELD(outputs), "OC", "11008", NULL, "columns of those that come out", NULL},
    {"dtype", OT_OPTION_TEXT, FIELD(dtype), "TYPE", "bf16", "fp32|bf16|fp16", "the type of both", NULL},
    {"threads", OT_OPTION_INT, FIELD(threads), "N", "0", NULL, "threads; 0: one for each core", NULL},
    {"rounds", OT_OPTION_INT, FIELD(rounds), "N", "9", NULL, "measurements of each", NULL},
    {"isa", OT_OPTION_TEXT, FIELD(isa), "NAME", "auto", "auto|baseline|avx2|avx512", "the instruction set",
     NULL},
    {"json", OT_OPTION_FLAG, FIELD(json), NULL, NULL, NULL, "print JSON", NULL},
};
static const ot_option_table gemm_table = {"offtrain bench gemm",
                                           "Measures a linear layer's matrix products beside plain oneDNN.",
                                           gemm_options, sizeof gemm_options / sizeof *gemm_options};

typedef struct bench {
    ot_device *device;
    ot_stream *stream;
    ot_device_info info;
    ot_onednn *onednn;
    ot_matmul products[OPERATIONS];
    ot_tile *plain[OPERATIONS], *square;
    void *square_memory;
    double flops;
    ot_sample rates[OPERATIONS], plain_rates[OPERATIONS], shares[OPERATIONS], square_rate;
} bench;

/* ---- set-up ---- */

static void describe_products(bench *b, const gemm_flags *flags)
{
    size_t N = (size_t)flags->tokens, C = (size_t)flags->width, OC = (size_t)flags->outputs;
    ot_dtype dtype = ot_dtype_find(flags->dtype);
    ot_matmul common = {.dtype = dtype, .out_dtype = dtype, .N = N, .C = C, .OC = OC, .ld_b = C};
    for (size_t i = 0; i < OPERATIONS; i++) {
        ot_matmul *m = &b->products[i];
        *m = common;
        m->op = (ot_matmul_op)i;
        m->ld_a = m->op == OT_MATMUL_FORWARD ? C : OC;
        m->ld_out = m->op == OT_MATMUL_FORWARD ? OC : C;
        if (m->op == OT_MATMUL_DW)
            m->out_dtype = OT_FP32, m->accumulate = 1;
    }
    b->flops = 2 * (double)N * (double)C * (double)OC;
}

static ot_status open_plain(bench *b, size_t i)
{
    const ot_matmul *m = &b->products[i];
    int paired = m->dtype == OT_BF16;
    ot_plain_product p = {
        .M = m->N, .N = m->C, .K = m->OC, .paired = paired, .c_paired = paired, .threads = b->info.units};
    if (m->op == OT_MATMUL_FORWARD) {
        p.N = m->OC;
        p.K = m->C;
        p.turned_b = 1;
    } else if (m->op == OT_MATMUL_DW) {
        p.M = m->OC;
        p.K = m->N;
        p.turned_a = p.add = 1;
        p.c_paired = 0;
    }
    return ot_plain_open(b->onednn, &p, &b->plain[i]);
}

/* The activations on both sides, the weight, its gradient, the memory of the square product, and the
 * workspace. */
static ot_status open_memory(bench *b)
{
    const ot_matmul *m = &b->products[0];
    const ot_kernels *kernels = ot_device_kernels(b->device);
    uint64_t bytes = 0, workspace_bytes = 0;
    uint64_t x = ot_gemm_take(&bytes, m->N * m->C * 4), y = ot_gemm_take(&bytes, m->N * m->OC * 4),
             w = ot_gemm_take(&bytes, m->C * m->OC * 4);
    uint64_t dw = ot_gemm_take(&bytes, m->C * m->OC * 4),
             square = ot_gemm_take(&bytes, ot_gemm_square_bytes());
    for (size_t i = 0; i < OPERATIONS; i++) {
        uint64_t need = kernels->matmul_workspace(b->device, &b->products[i]);
        workspace_bytes = need > workspace_bytes ? need : workspace_bytes;
    }
    uint64_t workspace = ot_gemm_take(&bytes, workspace_bytes);
    void *memory;
    OT_TRY(ot_device_arena_open(b->device, "bench gemm", bytes, &memory));
    unsigned char *base = memory;
    ot_gemm_fill(m->dtype, base + x, m->N * m->C, 1);
    ot_gemm_fill(m->dtype, base + y, m->N * m->OC, 2);
    ot_gemm_fill(m->dtype, base + w, m->C * m->OC, 3);
    ot_gemm_fill_square(m->dtype, base + square);
    for (size_t i = 0; i < OPERATIONS; i++) {
        b->products[i].a = base + (i == OT_MATMUL_FORWARD ? x : y);
        b->products[i].b = base + (i == OT_MATMUL_DW ? x : w);
        b->products[i].out = base + (i == OT_MATMUL_FORWARD ? y : i == OT_MATMUL_DX ? x : dw);
        b->products[i].workspace = base + workspace;
    }
    b->square_memory = base + square;
    return OT_OK;
}

static ot_status set_up(bench *b, const gemm_flags *flags)
{
    OT_TRY(ot_gemm_open_device(flags->threads, flags->isa, &b->device, &b->stream));
    ot_device_query(b->device, &b->info);
    OT_TRY(ot_onednn_open(&b->onednn));
    describe_products(b, flags);
    for (size_t i = 0; i < OPERATIONS; i++)
        OT_TRY(open_plain(b, i));
    OT_TRY(ot_gemm_open_square(b->onednn, b->products[0].dtype, b->info.units, &b->square));
    return open_memory(b);
}

static void tear_down(bench *b)
{
    for (size_t i = 0; i < OPERATIONS; i++)
        ot_plain_close(b->plain[i]);
    ot_plain_close(b->square);
    ot_onednn_close(b->onednn);
    ot_device_close(b->device);
}

/* ---- measuring ---- */

static ot_status run_product(bench *b, size_t i, double *rate)
{
    int64_t start = ot_clock_ns();
    ot_device_kernels(b->device)->matmul(b->stream, &b->products[i]);
    OT_TRY(ot_stream_synchronize(b->stream));
    *rate = b->flops / (double)(ot_clock_ns() - start);
    return OT_OK;
}

/* The activations that come out of one product go into the next, and grow from round to round: so they are
 * filled anew. FP16's are, for plain oneDNN, nonsense in FP32, but numbers. */
static void refill(bench *b)
{
    const ot_matmul *m = &b->products[0];
    ot_gemm_fill(m->dtype, (void *)(uintptr_t)m->a, m->N * m->C, 1);
    ot_gemm_fill(m->dtype, m->out, m->N * m->OC, 2);
    memset(b->products[OT_MATMUL_DW].out, 0, m->C * m->OC * sizeof(float));
}

static ot_status measure_round(bench *b, int warm)
{
    double rate, plain_rate, square_rate;
    OT_TRY(ot_gemm_run_square(b->square, b->square_memory, &square_rate));
    if (warm)
        ot_sample_add(&b->square_rate, square_rate);
    for (size_t i = 0; i < OPERATIONS; i++) {
        const ot_matmul *m = &b->products[i];
        refill(b);
        OT_TRY(ot_stop_check());
        OT_TRY(run_product(b, i, &rate));
        refill(b);
        OT_TRY(ot_gemm_run_plain(b->plain[i], m->a, m->b, m->out, b->flops, &plain_rate));
        if (!warm)
            continue;
        ot_sample_add(&b->rates[i], rate);
        ot_sample_add(&b->plain_rates[i], plain_rate);
        ot_sample_add(&b->shares[i], rate / plain_rate);
    }
    return OT_OK;
}

/* ---- reporting ---- */

static void print_text(const bench *b, const gemm_flags *flags)
{
    char text[OT_SAMPLE_TEXT_BYTES];
    printf("%lld x %lld x %lld in %s, %s, %d thread%s; GFLOP/s: median (range of %zu rounds)\n",
           (long long)flags->tokens, (long long)flags->width, (long long)flags->outputs, flags->dtype,
           b->info.isa, b->info.units, b->info.units == 1 ? "" : "s", b->square_rate.count);
    printf("%-8s  %26s", "", "offtrain");
    printf("  %26s", "plain oneDNN");
    printf("  %20s\n", "share");
    for (size_t i = 0; i < OPERATIONS; i++) {
        printf("%-8s  %26s", operation_names[i], ot_sample_text(&b->rates[i], text));
        printf("  %26s", ot_sample_text(&b->plain_rates[i], text));
        printf("  %20s\n", ot_sample_text(&b->shares[i], text));
    }
    printf("%-8s  %26s", "square", "");
    printf("  %26s\n", ot_sample_text(&b->square_rate, text));
}

static ot_status print_json(const bench *b, const gemm_flags *flags)
{
    json_t *products = json_object();
    for (size_t i = 0; i < OPERATIONS; i++)
        json_object_set_new(products, operation_names[i],
                            json_pack("{s:o, s:o, s:o}", "gflops", ot_sample_json(&b->rates[i]),
                                      "plain_gflops", ot_sample_json(&b->plain_rates[i]), "share",
                                      ot_sample_json(&b->shares[i])));
    json_t *root = json_pack("{s:I, s:I, s:I, s:s, s:s, s:i, s:o, s:o}", "tokens", (json_int_t)flags->tokens,
                             "width", (json_int_t)flags->width, "outputs", (json_int_t)flags->outputs,
                             "dtype", flags->dtype, "isa", b->info.isa, "threads", b->info.units, "products",
                             products, "square_gflops", ot_sample_json(&b->square_rate));
    return ot_json_line(root, stdout, "the JSON output");
}

static ot_status check_flags(const gemm_flags *flags)
{
    OT_TRY(ot_gemm_check("tokens", flags->tokens, 1, 1 << 20));
    OT_TRY(ot_gemm_check("width", flags->width, 1, 1 << 20));
    OT_TRY(ot_gemm_check("outputs", flags->outputs, 1, 1 << 20));
    OT_TRY(ot_gemm_check("threads", flags->threads, 0, 1024));
    return ot_gemm_check("rounds", flags->rounds, 1, OT_SAMPLE_MAX);
}

static ot_status run(bench *b, const gemm_flags *flags)
{
    OT_TRY(set_up(b, flags));
    for (int64_t round = 0; round <= flags->rounds; round++)
        OT_TRY(measure_round(b, round > 0));
    if (flags->json)
        return print_json(b, flags);
    print_text(b, flags);
    return OT_OK;
}

ot_status ot_bench_gemm(int argc, char **argv)
{
    gemm_flags flags = {0};
    int help;
    OT_TRY(ot_options_parse(&gemm_table, argc, argv, &flags, &help));
    if (help)
        return OT_OK;
    OT_TRY(check_flags(&flags));
    bench b = {0};
    ot_stop_install();
    ot_status status = run(&b, &flags);
    tear_down(&b);
    return status;
}
