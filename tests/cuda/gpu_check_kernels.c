/* gpu_check: every operation on the card against the CPU device.
 *
 * Both get the same arena of slots full of random values; an operation's operands are slots, and what it changed on the
 * CPU device is compared. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cuda/gpu_check.h"
#include "tests/kernels/harness.h"

enum { SLOTS = 14, FLOAT_SLOT = 8, SLOT_BYTES = 256 << 10, WORKSPACE_BYTES = 48 << 20 };
enum { N = 100, C = 256, NH = 4, NKV = 2, HD = 64, F = 200, V = 131, OC = 150, PLANE = 30011 };

/* Slots 0 to 7 hold the dtype, those from FLOAT_SLOT on FP32; the last three tokens, a step and zeros. */
enum { TOKENS = 11, STEP = 12, ZEROS = 13 };

typedef struct bench {
    ot_device *device;
    const ot_kernels *kernels;
    ot_stream *stream;
    char *base;
    ot_dtype dtype;
} bench;

static void *slot(const bench *b, int i)
{
    return b->base + (size_t)i * SLOT_BYTES;
}

static void *workspace(const bench *b)
{
    return b->base + (size_t)SLOTS * SLOT_BYTES;
}

/* ---- The operations ---- */

static ot_embedding embedding_of(const bench *b)
{
    return (ot_embedding){b->dtype,   N, C,          V,          slot(b, TOKENS), slot(b, 0),
                          slot(b, 1), 0, slot(b, 2), slot(b, 8), workspace(b)};
}

static void embedding_forward(const bench *b)
{
    ot_embedding a = embedding_of(b);
    b->kernels->embedding_forward(b->stream, &a);
}

static void embedding_backward(const bench *b)
{
    ot_embedding a = embedding_of(b);
    b->kernels->embedding_backward(b->stream, &a);
}

/* The statistics of backward are those of a forward pass before it. */
static void norm(const bench *b, ot_norm_kind kind, int backward)
{
    ot_norm a = {.kind = kind,
                 .dtype = b->dtype,
                 .N = N,
                 .H = 1,
                 .C = C,
                 .eps = 1e-5f,
                 .ld_x = C,
                 .ld_y = C,
                 .x = slot(b, 0),
                 .weight = slot(b, 1),
                 .bias = kind == OT_LAYERNORM ? slot(b, 2) : NULL,
                 .y = slot(b, 3),
                 .mean = slot(b, 8),
                 .rstd = (float *)slot(b, 8) + N,
                 .dy = slot(b, 4),
                 .dresidual = slot(b, 5),
                 .ld_dx = C,
                 .dx = slot(b, 6),
                 .dweight = slot(b, 9),
                 .dbias = kind == OT_LAYERNORM ? slot(b, 10) : NULL,
                 .workspace = workspace(b)};
    b->kernels->norm_forward(b->stream, &a);
    if (backward)
        b->kernels->norm_backward(b->stream, &a);
}

static void rmsnorm_forward(const bench *b)
{
    norm(b, OT_RMSNORM, 0);
}

static void rmsnorm_backward(const bench *b)
{
    norm(b, OT_RMSNORM, 1);
}

static void layernorm_backward(const bench *b)
{
    norm(b, OT_LAYERNORM, 1);
}

static void matmul(const bench *b, ot_matmul_op op)
{
    const int forward = op == OT_MATMUL_FORWARD, dw = op == OT_MATMUL_DW;
    ot_matmul a = {.op = op,
                   .dtype = b->dtype,
                   .out_dtype = dw ? OT_FP32 : b->dtype,
                   .N = N,
                   .C = C,
                   .OC = OC,
                   .a = slot(b, 0),
                   .b = slot(b, 1),
                   .ld_a = forward ? C : OC,
                   .ld_b = C,
                   .bias = forward ? slot(b, 2) : NULL,
                   .out = slot(b, dw ? 8 : 3),
                   .accumulate = dw,
                   .ld_out = forward ? OC : C,
                   .workspace = workspace(b)};
    b->kernels->matmul(b->stream, &a);
}

static void matmul_forward(const bench *b)
{
    matmul(b, OT_MATMUL_FORWARD);
}

static void matmul_dx(const bench *b)
{
    matmul(b, OT_MATMUL_DX);
}

static void matmul_dw(const bench *b)
{
    matmul(b, OT_MATMUL_DW);
}

static void bias_backward(const bench *b)
{
    ot_bias_backward a = {b->dtype, N, OC, OC, slot(b, 0), slot(b, 8), workspace(b)};
    b->kernels->bias_backward(b->stream, &a);
}

static void rope_both(const bench *b)
{
    ot_rope a = {b->dtype, N, NH, HD, slot(b, TOKENS), slot(b, 8), NH * HD, slot(b, 0)};
    b->kernels->rope_forward(b->stream, &a);
    a.x = slot(b, 1);
    b->kernels->rope_backward(b->stream, &a);
}

static void attention(const bench *b, int backward)
{
    ot_attention a = {.dtype = b->dtype,
                      .B = 1,
                      .T = N,
                      .NH = NH,
                      .NKV = NKV,
                      .HD = HD,
                      .scale = 0.125f,
                      .ld_q = NH * HD,
                      .ld_kv = NKV * HD,
                      .ld_out = NH * HD,
                      .q = slot(b, 0),
                      .k = slot(b, 1),
                      .v = slot(b, 2),
                      .out = slot(b, 3),
                      .lse = slot(b, 8),
                      .dout = slot(b, 4),
                      .ld_dq = NH * HD,
                      .ld_dkv = NKV * HD,
                      .dq = slot(b, 5),
                      .dk = slot(b, 6),
                      .dv = slot(b, 7),
                      .workspace = workspace(b)};
    b->kernels->attention_forward(b->stream, &a);
    if (backward)
        b->kernels->attention_backward(b->stream, &a);
}

static void attention_forward(const bench *b)
{
    attention(b, 0);
}

static void attention_backward(const bench *b)
{
    attention(b, 1);
}

static void swiglu_both(const bench *b)
{
    ot_swiglu a = {b->dtype, N,          F,          F, slot(b, 0), slot(b, 1),
                   F,        slot(b, 2), slot(b, 3), F, slot(b, 4), slot(b, 5)};
    b->kernels->swiglu_forward(b->stream, &a);
    b->kernels->swiglu_backward(b->stream, &a);
}

static void gelu_both(const bench *b)
{
    for (int kind = 0; kind < 2; kind++) {
        ot_gelu a = {(ot_gelu_kind)kind,   b->dtype, N * F, slot(b, 0), slot(b, 2 + 2 * kind), slot(b, 1),
                     slot(b, 3 + 2 * kind)};
        b->kernels->gelu_forward(b->stream, &a);
        b->kernels->gelu_backward(b->stream, &a);
    }
}

static void residual_add(const bench *b)
{
    ot_residual a = {b->dtype, PLANE, slot(b, 0), slot(b, 1), slot(b, 2)};
    b->kernels->residual_add(b->stream, &a);
}

static void cross_entropy(const bench *b)
{
    ot_cross_entropy a = {b->dtype, N, V, V, slot(b, 0), slot(b, TOKENS), slot(b, 8), 1, 0.125f};
    b->kernels->cross_entropy(b->stream, &a);
}

static void conversions(const bench *b)
{
    ot_cast down = {b->dtype, OT_FP32, PLANE, slot(b, 8), slot(b, 0), OT_ROUND_NEAREST, 0, 0, 0};
    ot_cast_sum_squares grads = {b->dtype, PLANE, slot(b, 9), 0.5f, slot(b, 1), workspace(b)};
    ot_scale scaled = {b->dtype, PLANE, slot(b, 2), 1.5f};
    ot_accumulate sums = {b->dtype, PLANE, slot(b, 10), slot(b, 3), 0.25f};
    b->kernels->cast(b->stream, &down);
    b->kernels->cast_sum_squares(b->stream, &grads);
    b->kernels->scale(b->stream, &scaled);
    b->kernels->accumulate(b->stream, &sums);
}

static void update(const bench *b)
{
    ot_update a = {.kind = OT_OPTIMIZER_ADAMW,
                   .n = PLANE,
                   .beta1 = 0.9f,
                   .beta2 = 0.99f,
                   .eps = 1e-8f,
                   .weight_decay = 0.1f,
                   .step = slot(b, STEP),
                   .grad_dtype = b->dtype,
                   .grad = slot(b, 0),
                   .master_format = OT_MASTER_FP32,
                   .master = slot(b, 8),
                   .weight_dtype = b->dtype,
                   .weight = b->dtype == OT_FP32 ? NULL : slot(b, 1),
                   .moment1_format = OT_FP32,
                   .moment2_format = OT_FP32,
                   .moment1 = slot(b, 9),
                   .moment2 = slot(b, ZEROS)};
    b->kernels->update(b->stream, &a);
}

typedef struct entry {
    const char *name;
    void (*run)(const bench *b);
} entry;

static const entry entries[] = {
    {"embedding_forward", embedding_forward},
    {"embedding_backward", embedding_backward},
    {"rmsnorm_forward", rmsnorm_forward},
    {"rmsnorm_backward", rmsnorm_backward},
    {"layernorm_backward", layernorm_backward},
    {"matmul_forward", matmul_forward},
    {"matmul_dx", matmul_dx},
    {"matmul_dw", matmul_dw},
    {"bias_backward", bias_backward},
    {"rope", rope_both},
    {"attention_forward", attention_forward},
    {"attention_backward", attention_backward},
    {"swiglu", swiglu_both},
    {"gelu", gelu_both},
    {"residual_add", residual_add},
    {"cross_entropy", cross_entropy},
    {"conversions", conversions},
    {"update", update},
};

/* ---- Comparing ---- */

/* What every slot holds at first. */
static void fill(ot_dtype dtype, char *arena)
{
    const ot_update_step step = {.grad_scale = 1, .lr = 0.01f, .bias1 = 0.1f, .bias2 = 0.01f, .number = 1};
    memset(arena, 0, (size_t)SLOTS * SLOT_BYTES);
    for (int i = 0; i < TOKENS; i++) {
        ot_dtype of = i < FLOAT_SLOT ? dtype : OT_FP32;
        tensor *t = make_random(of, SLOT_BYTES / 4, 0.5, (uint32_t)i + 1);
        memcpy(arena + (size_t)i * SLOT_BYTES, t->data, t->n * ot_dtype_bytes(of));
    }
    for (int32_t n = 0; n < N; n++) {
        int32_t token = n * 37 % V;
        memcpy(arena + (size_t)TOKENS * SLOT_BYTES + (size_t)n * sizeof token, &token, sizeof token);
    }
    memcpy(arena + (size_t)STEP * SLOT_BYTES, &step, sizeof step);
    free_tensors(NULL);
}

static ot_status run_on(bench *b, const entry *e, const char *before, char *after)
{
    size_t bytes = (size_t)SLOTS * SLOT_BYTES;
    ot_copy_h2d(b->stream, b->base, before, bytes);
    e->run(b);
    ot_copy_d2h(b->stream, after, b->base, bytes);
    return ot_stream_synchronize(b->stream);
}

/* The largest relative error of a slot, over the elements that the CPU device changed; 1 where it changed none. */
static double largest_error(ot_dtype dtype, const char *before, const char *expected, const char *found)
{
    double worst = -1;
    for (int i = 0; i < SLOTS; i++) {
        ot_dtype of = i < FLOAT_SLOT ? dtype : OT_FP32;
        size_t size = ot_dtype_bytes(of), at = (size_t)i * SLOT_BYTES, n = SLOT_BYTES / size;
        tensor e = {of, n, (void *)(uintptr_t)(expected + at), NULL},
               f = {of, n, (void *)(uintptr_t)(found + at), NULL};
        double error = 0, norm = 0;
        for (size_t k = 0; k < n; k++) {
            int changed = memcmp(before + at + k * size, expected + at + k * size, size) != 0;
            double difference = get(&f, k) - get(&e, k);
            if (changed)
                norm += get(&e, k) * get(&e, k);
            if (changed || difference != 0)
                error += difference * difference;
        }
        if (norm > 0)
            worst = fmax(worst, sqrt(error / norm));
        else if (error != 0)
            worst = HUGE_VAL; /* written where nothing was to be */
    }
    return worst < 0 ? 1 : worst;
}

static ot_status open_bench(ot_device *device, bench *b)
{
    const ot_stream_options options = {.kind = OT_STREAM_COMPUTE, .name = "check"};
    void *base;
    OT_TRY(ot_device_arena_open(device, "check", (uint64_t)SLOTS * SLOT_BYTES + WORKSPACE_BYTES, &base));
    *b = (bench){.device = device, .kernels = ot_device_kernels(device), .base = base};
    return ot_stream_open(device, &options, &b->stream);
}

static void check_entries(bench *cpu, bench *cuda, char *host)
{
    static const ot_dtype dtypes[] = {OT_FP32, OT_BF16, OT_FP16};
    static const double limits[] = {[OT_FP32] = 1e-5, [OT_BF16] = 1e-2, [OT_FP16] = 2e-3};
    char *before = host, *expected = host + (size_t)SLOTS * SLOT_BYTES,
         *got = expected + (size_t)SLOTS * SLOT_BYTES;
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        char found[96] = "", part[32];
        int passed = 1;
        for (int d = 0; d < 3; d++) {
            cpu->dtype = cuda->dtype = dtypes[d];
            fill(dtypes[d], before);
            if (run_on(cpu, &entries[i], before, expected) != OT_OK ||
                run_on(cuda, &entries[i], before, got) != OT_OK) {
                check_fail(entries[i].name);
                return;
            }
            double error = largest_error(dtypes[d], before, expected, got);
            passed &= error <= limits[dtypes[d]];
            snprintf(part, sizeof part, "%s %.0e  ", ot_dtype_name(dtypes[d]), error);
            strncat(found, part, sizeof found - strlen(found) - 1);
        }
        check_line(entries[i].name, found, passed);
    }
}

void check_kernels(ot_device *cuda_device)
{
    ot_device *cpu_device;
    ot_device_options options = {.kind = "cpu", .memory_bytes = 128 << 20, .threads = 2};
    bench cpu, cuda;
    char *host = malloc((size_t)3 * SLOTS * SLOT_BYTES);
    if (host == NULL || ot_device_open(&options, &cpu_device) != OT_OK ||
        open_bench(cpu_device, &cpu) != OT_OK || open_bench(cuda_device, &cuda) != OT_OK) {
        check_fail("kernels");
        return;
    }
    check_entries(&cpu, &cuda, host);
    ot_stream_close(cuda.stream);
    ot_device_arena_close(cuda_device, cuda.base);
    ot_device_close(cpu_device);
    free(host);
}
