/* Matrix products on the CPU: fixed tiles of the output, each computed from packed blocks by one thread.
 *
 * Every operation is a product [M,K] [K,n]. The output is cut into parts of rows and columns whose sizes
 * depend on the shape alone, and the summed dimension into chunks of at most OT_TILE_K elements that are added in
 * order, in FP32. So the bytes of the result do not depend on the number of threads, which take the parts as
 * they come. A is packed once, by the whole team, for many rows at a time; B chunk by chunk by who computes
 * a part. Rows and columns are filled up with zeros to the steps of a tile.
 *
 * oneDNN computes the tiles with the best instructions that the processor has, whatever instruction set the
 * device was opened with, except that BF16 is multiplied as such with "avx512" alone. Everywhere else, like
 * FP16 always, it is widened to FP32 while it is packed. */
#include "kernels/cpu/matmul.h"

#include <stdatomic.h>
#include <string.h>

#include "kernels/cpu/state.h"

/* A sum is short if it is of one chunk: A is small then, and tiles are finished one by one. */
enum {
    SUPER_ROWS = 1024, /* rows of A packed at a time */
    SUPER_ROWS_SHORT = 4096,
    PART_ROWS = 512, /* the most rows of a part */
    PART_ROWS_SHORT = 2048,
    PART_ROWS_MIN = 64,
    PART_PANELS = 4,   /* the most panels of OT_TILE_N columns in a part */
    PARTS_WANTED = 16, /* smaller parts are made for so many of them */
};

typedef struct task_args {
    ot_matmul matmul;
    ot_onednn *onednn;
    int paired;
} task_args;

typedef struct product {
    const ot_matmul *matmul;
    const ot_variant *variant;
    ot_onednn *onednn;
    int paired, accumulate;
    size_t M, n, K;
    size_t chunk_step; /* elements of K in a chunk */
    ot_operand a, b;
    size_t super_rows, part_rows, panels;
    size_t tile_rows; /* rows of a panel whose sums are kept from chunk to chunk */
    uint32_t *packed_a;
    unsigned char *scratch; /* of every thread */
} product;

static size_t ceiling(size_t n, size_t step)
{
    return (n + step - 1) / step;
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

static product describe(const ot_matmul *a, int paired)
{
    product p = {.matmul = a, .paired = paired, .accumulate = a->accumulate, .n = a->C};
    if (a->op == OT_MATMUL_FORWARD) {
        p.M = a->N, p.n = a->OC, p.K = a->C;
        p.b = (ot_operand){a->b, a->ld_b, a->OC, a->C, 0};
    } else if (a->op == OT_MATMUL_DX) {
        p.M = a->N, p.K = a->OC;
        p.b = (ot_operand){a->b, a->ld_b, a->OC, a->C, 1};
    } else {
        p.M = a->OC, p.K = a->N;
        p.b = (ot_operand){a->b, a->ld_b, a->N, a->C, 1};
    }
    p.a = a->op == OT_MATMUL_DW ? (ot_operand){a->a, a->ld_a, a->N, a->OC, 1}
                                : (ot_operand){a->a, a->ld_a, p.M, p.K, 0};
    p.chunk_step = p.K > 0 ? ot_matmul_chunk_step(p.K) : OT_TILE_K;
    int is_short = p.K <= p.chunk_step;
    p.super_rows = is_short ? SUPER_ROWS_SHORT : SUPER_ROWS;
    p.part_rows = is_short ? PART_ROWS_SHORT : PART_ROWS;
    p.panels = PART_PANELS;
    while (ceiling(p.M, p.part_rows) * ceiling(p.n, p.panels * OT_TILE_N) < PARTS_WANTED) {
        if (p.panels > 1)
            p.panels--;
        else if (p.part_rows > PART_ROWS_MIN)
            p.part_rows /= 2;
        else
            break;
    }
    p.tile_rows = is_short ? smaller(p.part_rows, OT_TILE_M) : p.part_rows;
    return p;
}

/* ---- Workspace ---- */

/* The packed rows of A; then for each thread a chunk of B, sums of tiles, and what oneDNN wants. */
static size_t packed_b_bytes(const product *p)
{
    return p->panels * OT_TILE_N * ot_words(p->paired, p->chunk_step) * sizeof(uint32_t);
}

static size_t tiles_bytes(const product *p)
{
    return p->panels * p->tile_rows * OT_TILE_N * sizeof(float);
}

static size_t thread_bytes(const product *p)
{
    return packed_b_bytes(p) + tiles_bytes(p) + OT_TILE_SCRATCH_BYTES;
}

static size_t packed_a_bytes(const product *p)
{
    return ot_matmul_padded(smaller(p->M, p->super_rows), OT_PACK_ROWS) *
           ot_words(p->paired, ot_matmul_padded(p->K, OT_TILE_K_STEP)) * sizeof(uint32_t);
}

static int is_paired(const ot_device *device, ot_dtype dtype)
{
    const cpu_device *cpu = (const cpu_device *)device;
    return dtype == OT_BF16 && strcmp(cpu->variant->name, "avx512") == 0 && ot_onednn_pairs();
}

uint64_t ot_cpu_matmul_workspace(const ot_device *device, const ot_matmul *args)
{
    product p = describe(args, is_paired(device, args->dtype));
    if (p.M == 0 || p.n == 0 || p.K == 0)
        return 0;
    return packed_a_bytes(&p) + (uint64_t)ot_cpu_device_threads(device) * thread_bytes(&p);
}

/* ---- One part ---- */

/* Up to super_rows rows of the output, by the whole team. */
typedef struct rows_run {
    const product *p;
    size_t first, count; /* rows; the packed ones are filled up to OT_PACK_ROWS */
    size_t parts_across, parts;
    atomic_size_t next;
    atomic_int failed;
    ot_error error; /* of who set `failed` */
} rows_run;

static void pack_b(const product *p, size_t col, size_t chunk, uint32_t *dst)
{
    ot_matmul_pack args = {.dtype = p->matmul->dtype,
                           .paired = p->paired,
                           .source = p->b,
                           .first = col,
                           .sum_first = chunk,
                           .sum_count = ot_matmul_chunk(chunk, p->K, p->chunk_step),
                           .dst = dst};
    p->variant->ranges[OT_RANGE_MATMUL_PACK_B](&args, 0, smaller(p->panels, ceiling(p->n - col, OT_TILE_N)));
}

static void store_tile(const rows_run *run, size_t row, size_t rows, size_t col, const float *tile)
{
    const product *p = run->p;
    ot_matmul_store args = {p->matmul, p->accumulate, tile, run->first + row, col, p->n - col};
    p->variant->ranges[OT_RANGE_MATMUL_STORE](&args, 0, rows);
}

/* A part of the output: rows, from the first packed one on, and columns. */
typedef struct output_part {
    size_t row, rows, col, panels;
} output_part;

/* The call for tiles of that many rows and elements of the sum: the one that is open, or another. */
static ot_status turn_to(const product *p, int add, size_t rows, size_t k, ot_tile_call *call)
{
    const ot_tile *tile;
    OT_TRY(ot_onednn_tile(p->onednn, p->paired, add, ot_matmul_padded(rows, OT_TILE_M_STEP), k, &tile));
    if (tile == call->tile)
        return OT_OK;
    ot_tile_call_close(call);
    return ot_tile_call_open(tile, call);
}

/* Adds a chunk's product to all tiles of the part, or starts them with it; after the last chunk they are
 * stored while they are near. */
static ot_status multiply_chunk(const rows_run *run, const output_part *part, size_t chunk,
                                unsigned char *scratch, ot_tile_call *call)
{
    const product *p = run->p;
    size_t k = ot_matmul_padded(ot_matmul_chunk(chunk, p->K, p->chunk_step), OT_TILE_K_STEP),
           words = ot_words(p->paired, k);
    const uint32_t *a = p->packed_a + ot_words(p->paired, chunk) * ot_matmul_padded(run->count, OT_PACK_ROWS);
    const uint32_t *b = (const uint32_t *)scratch;
    float *tiles = (float *)(scratch + packed_b_bytes(p));
    void *own = scratch + packed_b_bytes(p) + tiles_bytes(p);
    for (size_t r = 0; r < part->rows; r += OT_TILE_M) {
        size_t rows = smaller(part->rows - r, OT_TILE_M);
        OT_TRY(turn_to(p, chunk > 0, rows, k, call));
        for (size_t panel = 0; panel < part->panels; panel++) {
            float *sums = tiles + (panel * p->tile_rows + r % p->tile_rows) * OT_TILE_N;
            OT_TRY(ot_tile_run(call, a + (part->row + r) * words, b + panel * words * OT_TILE_N, sums, own));
            if (chunk + p->chunk_step >= p->K)
                store_tile(run, part->row + r, rows, part->col + panel * OT_TILE_N, sums);
        }
    }
    return OT_OK;
}

static ot_status multiply_part(const rows_run *run, size_t number, unsigned char *scratch, ot_tile_call *call)
{
    const product *p = run->p;
    output_part part = {.row = number / run->parts_across * p->part_rows,
                        .col = number % run->parts_across * p->panels * OT_TILE_N};
    part.rows = smaller(p->part_rows, run->count - part.row);
    part.panels = smaller(p->panels, ceiling(p->n - part.col, OT_TILE_N));
    for (size_t chunk = 0; chunk < p->K; chunk += p->chunk_step) {
        pack_b(p, part.col, chunk, (uint32_t *)scratch);
        OT_TRY(multiply_chunk(run, &part, chunk, scratch, call));
    }
    return OT_OK;
}

static void multiply_parts(void *context, int index, int count)
{
    (void)count;
    rows_run *run = context;
    unsigned char *scratch = run->p->scratch + (size_t)index * thread_bytes(run->p);
    ot_tile_call call = {0};
    size_t number;
    ot_status status = OT_OK;
    while (status == OT_OK &&
           (number = atomic_fetch_add_explicit(&run->next, 1, memory_order_relaxed)) < run->parts)
        status = multiply_part(run, number, scratch, &call);
    ot_tile_call_close(&call);
    if (status != OT_OK && atomic_exchange(&run->failed, 1) == 0)
        run->error = ot_error_take();
}

/* ---- The operation ---- */

static ot_status multiply_rows(ot_team *team, const product *p, size_t first)
{
    rows_run run = {.p = p, .first = first, .count = smaller(p->super_rows, p->M - first)};
    ot_matmul_pack args = {.dtype = p->matmul->dtype,
                           .paired = p->paired,
                           .source = p->a,
                           .first = first,
                           .count = ot_matmul_padded(run.count, OT_PACK_ROWS),
                           .sum_count = p->K,
                           .sum_chunk = p->chunk_step,
                           .dst = p->packed_a};
    ot_cpu_parallel(team, p->variant->ranges[OT_RANGE_MATMUL_PACK_A], &args,
                    ceiling(p->K, p->chunk_step) * (args.count / OT_PACK_ROWS), 1);
    run.parts_across = ceiling(p->n, p->panels * OT_TILE_N);
    run.parts = run.parts_across * ceiling(run.count, p->part_rows);
    ot_team_run(team, multiply_parts, &run);
    return run.failed ? ot_error_raise(&run.error) : OT_OK;
}

static ot_status matmul_task(ot_team *team, const ot_variant *variant, const void *args)
{
    const task_args *t = args;
    product p = describe(&t->matmul, t->paired);
    p.variant = variant;
    p.onednn = t->onednn;
    p.packed_a = t->matmul.workspace;
    p.scratch = (unsigned char *)t->matmul.workspace + packed_a_bytes(&p);
    for (size_t first = 0; first < p.M; first += p.super_rows)
        OT_TRY(multiply_rows(team, &p, first));
    return OT_OK;
}

/* NULL, or what the arguments do not hold to. */
static const char *broken_rule(const ot_matmul *a)
{
    const size_t row_a = a->op == OT_MATMUL_FORWARD ? a->C : a->OC,
                 row_out = a->op == OT_MATMUL_FORWARD ? a->OC : a->C;
    if (a->dtype != OT_FP32 && a->dtype != OT_BF16 && a->dtype != OT_FP16)
        return "a dtype of fp32, bf16 or fp16";
    if (a->out_dtype != OT_FP32 && (a->out_dtype != a->dtype || a->op == OT_MATMUL_DW))
        return "an out_dtype of fp32, or but for DW that of the inputs";
    if (a->ld_a < row_a || a->ld_b < a->C || a->ld_out < row_out)
        return "rows that do not overlap";
    return a->workspace == NULL ? "a workspace" : NULL;
}

void ot_cpu_matmul(ot_stream *stream, const ot_matmul *args)
{
    if (args->N == 0 || args->C == 0 || args->OC == 0)
        return;
    const char *rule = broken_rule(args);
    if (rule != NULL) {
        ot_cpu_reject(stream, ot_fail(OT_ERR_INTERNAL, "matmul: expected %s", rule));
        return;
    }
    const cpu_device *device = (const cpu_device *)ot_stream_device(stream);
    task_args task = {*args, device->onednn, is_paired(&device->base, args->dtype)};
    ot_cpu_enqueue(stream, matmul_task, &task, sizeof task);
}
