/* The CPU device's table: each entry checks its arguments and enqueues ranges of the instruction set that was
 * picked. */
#include <inttypes.h>
#include <string.h>
#ifdef OT_HAVE_X86_VARIANTS
#include <cpuid.h>
#endif

#include "kernels/cpu/cpu.h"

/* Shares of at least so many elements, or so many elements' worth of rows: below, waking a thread costs
 * more. */
enum { GRAIN = 4096, COLUMN_GRAIN = 64 };

/* ---- Instruction sets ---- */

extern const ot_variant ot_variant_table_baseline;
#ifdef OT_HAVE_X86_VARIANTS
extern const ot_variant ot_variant_table_avx2, ot_variant_table_avx512;
#endif

static int is_wanted(const ot_variant *variant, const char *name)
{
    return name == NULL || strcmp(variant->name, name) == 0;
}

#ifdef OT_HAVE_X86_VARIANTS
/* clang 14 has no name for it in __builtin_cpu_supports. */
static int has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

const ot_variant *ot_variant_find(const char *name)
{
#ifdef OT_HAVE_X86_VARIANTS
    int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
               __builtin_cpu_supports("bmi2") && has_f16c();
    int avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                 __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    if (avx512 && is_wanted(&ot_variant_table_avx512, name))
        return &ot_variant_table_avx512;
    if (avx2 && is_wanted(&ot_variant_table_avx2, name))
        return &ot_variant_table_avx2;
#endif
    return is_wanted(&ot_variant_table_baseline, name) ? &ot_variant_table_baseline : NULL;
}

/* ---- Checks ---- */

/* Whether the arguments hold to the rule; where they do not, that sticks to the device. */
static int valid(ot_stream *stream, int holds, const char *operation, const char *rule)
{
    if (!holds)
        ot_cpu_reject(stream, ot_fail(OT_ERR_INTERNAL, "%s: expected %s", operation, rule));
    return holds;
}

static int is_float(ot_dtype dtype)
{
    return dtype == OT_FP32 || dtype == OT_BF16 || dtype == OT_FP16;
}

/* Rows that make up a grain. */
static size_t row_grain(size_t row_elements)
{
    return row_elements >= GRAIN ? 1 : (GRAIN + row_elements - 1) / (row_elements > 0 ? row_elements : 1);
}

/* ---- Embedding ---- */

static ot_status check_tokens(const char *operation, const int32_t *tokens, size_t N, int32_t lowest,
                              size_t V)
{
    for (size_t n = 0; n < N; n++)
        if (tokens[n] < lowest || (tokens[n] >= 0 && (size_t)tokens[n] >= V))
            return ot_fail(OT_ERR_INTERNAL,
                           "%s: token %" PRId32 " at position %zu, expected %" PRId32 " .. %zu", operation,
                           tokens[n], n, lowest, V - 1);
    return OT_OK;
}

static ot_status embedding_forward_task(ot_team *team, const ot_variant *variant, const void *args)
{
    const ot_embedding *a = args;
    OT_TRY(check_tokens("embedding_forward", a->tokens, a->N, 0, a->V));
    ot_cpu_parallel(team, variant->ranges[OT_RANGE_EMBEDDING_FORWARD], a, a->N, row_grain(a->C));
    return OT_OK;
}

static ot_status embedding_backward_task(ot_team *team, const ot_variant *variant, const void *args)
{
    const ot_embedding *a = args;
    OT_TRY(check_tokens("embedding_backward", a->tokens, a->N, 0, a->V));
    ot_cpu_parallel(team, variant->ranges[OT_RANGE_EMBEDDING_BACKWARD], a, a->C, COLUMN_GRAIN);
    return OT_OK;
}

static void embedding_forward(ot_stream *stream, const ot_embedding *args)
{
    if (valid(stream, is_float(args->dtype), "embedding_forward", "a dtype of fp32, bf16 or fp16"))
        ot_cpu_enqueue(stream, embedding_forward_task, args, sizeof *args);
}

static void embedding_backward(ot_stream *stream, const ot_embedding *args)
{
    if (valid(stream, is_float(args->dtype), "embedding_backward", "a dtype of fp32, bf16 or fp16"))
        ot_cpu_enqueue(stream, embedding_backward_task, args, sizeof *args);
}

static uint64_t embedding_workspace(const ot_device *device, const ot_embedding *args)
{
    (void)device;
    (void)args;
    return 0;
}

/* ---- Norms ---- */

static void norm_forward(ot_stream *stream, const ot_norm *args)
{
    size_t row = args->H * args->C;
    if (valid(stream, is_float(args->dtype) && args->C > 0 && args->ld_x >= row && args->ld_y >= row,
              "norm_forward", "fp32, bf16 or fp16, C > 0, and rows that do not overlap"))
        ot_cpu_enqueue_range(stream, OT_RANGE_NORM_FORWARD, args, sizeof *args, args->N * args->H,
                             row_grain(args->C));
}

static void norm_backward(ot_stream *stream, const ot_norm *args)
{
    size_t row = args->H * args->C;
    if (!valid(stream, is_float(args->dtype) && args->C > 0 && args->ld_x >= row && args->ld_y >= row,
               "norm_backward", "fp32, bf16 or fp16, C > 0, and rows that do not overlap") ||
        !valid(stream, args->rstd != NULL && (args->kind == OT_RMSNORM || args->mean != NULL),
               "norm_backward", "the statistics of the forward pass") ||
        !valid(stream, args->dx == NULL || args->ld_dx >= row, "norm_backward",
               "rows of dx that do not overlap"))
        return;
    size_t groups = args->N * args->H;
    if (groups > 0 && (args->dweight != NULL || args->dbias != NULL)) /* first: dx may overwrite dy */
        ot_cpu_enqueue_range(stream, OT_RANGE_NORM_BACKWARD_COLUMNS, args, sizeof *args, args->C,
                             COLUMN_GRAIN);
    if (args->dx != NULL)
        ot_cpu_enqueue_range(stream, OT_RANGE_NORM_BACKWARD_ROWS, args, sizeof *args, groups,
                             row_grain(args->C));
}

static uint64_t norm_workspace(const ot_device *device, const ot_norm *args)
{
    (void)device;
    (void)args;
    return 0;
}

static void bias_backward(ot_stream *stream, const ot_bias_backward *args)
{
    if (valid(stream, is_float(args->dtype) && args->ld_dy >= args->OC, "bias_backward",
              "fp32, bf16 or fp16, and rows that do not overlap"))
        ot_cpu_enqueue_range(stream, OT_RANGE_BIAS_BACKWARD, args, sizeof *args, args->OC, COLUMN_GRAIN);
}

static uint64_t bias_backward_workspace(const ot_device *device, const ot_bias_backward *args)
{
    (void)device;
    (void)args;
    return 0;
}

/* ---- Rotary positions and activations ---- */

static void rope(ot_stream *stream, const ot_rope *args, ot_range_id id)
{
    size_t row = args->H * args->HD;
    if (valid(stream, is_float(args->dtype) && args->HD % 2 == 0 && args->ld_x >= row, "rope",
              "fp32, bf16 or fp16, an even head dimension, and rows that do not overlap"))
        ot_cpu_enqueue_range(stream, id, args, sizeof *args, args->N, row_grain(row));
}

static void rope_forward(ot_stream *stream, const ot_rope *args)
{
    rope(stream, args, OT_RANGE_ROPE_FORWARD);
}

static void rope_backward(ot_stream *stream, const ot_rope *args)
{
    rope(stream, args, OT_RANGE_ROPE_BACKWARD);
}

static void swiglu_forward(ot_stream *stream, const ot_swiglu *args)
{
    if (valid(stream, is_float(args->dtype) && args->ld_gate >= args->F && args->ld_out >= args->F,
              "swiglu_forward", "fp32, bf16 or fp16, and rows that do not overlap"))
        ot_cpu_enqueue_range(stream, OT_RANGE_SWIGLU_FORWARD, args, sizeof *args, args->N,
                             row_grain(args->F));
}

static void swiglu_backward(ot_stream *stream, const ot_swiglu *args)
{
    if (valid(stream,
              is_float(args->dtype) && args->ld_gate >= args->F && args->ld_out >= args->F &&
                  args->ld_dgate >= args->F,
              "swiglu_backward", "fp32, bf16 or fp16, and rows that do not overlap"))
        ot_cpu_enqueue_range(stream, OT_RANGE_SWIGLU_BACKWARD, args, sizeof *args, args->N,
                             row_grain(args->F));
}

static void gelu_forward(ot_stream *stream, const ot_gelu *args)
{
    if (valid(stream, is_float(args->dtype), "gelu_forward", "a dtype of fp32, bf16 or fp16"))
        ot_cpu_enqueue_range(stream, OT_RANGE_GELU_FORWARD, args, sizeof *args, args->n, GRAIN);
}

static void gelu_backward(ot_stream *stream, const ot_gelu *args)
{
    if (valid(stream, is_float(args->dtype), "gelu_backward", "a dtype of fp32, bf16 or fp16"))
        ot_cpu_enqueue_range(stream, OT_RANGE_GELU_BACKWARD, args, sizeof *args, args->n, GRAIN);
}

static void residual_add(ot_stream *stream, const ot_residual *args)
{
    if (valid(stream, is_float(args->dtype), "residual_add", "a dtype of fp32, bf16 or fp16"))
        ot_cpu_enqueue_range(stream, OT_RANGE_RESIDUAL_ADD, args, sizeof *args, args->n, GRAIN);
}

/* ---- Loss and sums ---- */

static ot_status cross_entropy_task(ot_team *team, const ot_variant *variant, const void *args)
{
    const ot_cross_entropy *a = args;
    OT_TRY(check_tokens("cross_entropy", a->targets, a->N, -1, a->V));
    ot_cpu_parallel(team, variant->ranges[OT_RANGE_CROSS_ENTROPY], a, a->N, row_grain(a->V));
    return OT_OK;
}

static void cross_entropy(ot_stream *stream, const ot_cross_entropy *args)
{
    if (valid(stream,
              is_float(args->dtype) && args->V > 0 && args->V <= INT32_MAX && args->ld_logits >= args->V,
              "cross_entropy", "fp32, bf16 or fp16, 0 < V < 2^31, and rows that do not overlap"))
        ot_cpu_enqueue(stream, cross_entropy_task, args, sizeof *args);
}

static void sum_squares(ot_stream *stream, const ot_sum_squares *args)
{
    if (valid(stream, is_float(args->dtype), "sum_squares", "a dtype of fp32, bf16 or fp16"))
        ot_cpu_enqueue_range(stream, OT_RANGE_SUM_SQUARES, args, sizeof *args, ot_sum_blocks(args->n), 1);
}

static ot_status sum_losses_task(ot_team *team, const ot_variant *variant, const void *args)
{
    (void)team;
    (void)variant;
    const ot_sum *a = args;
    const float *x = a->x;
    double sum = a->add ? a->out[0] : 0;
    for (size_t i = 0; i < a->n; i++)
        sum += (double)x[i];
    a->out[0] = sum;
    return OT_OK;
}

static ot_status sum_partials_task(ot_team *team, const ot_variant *variant, const void *args)
{
    (void)team;
    (void)variant;
    const ot_sum *a = args;
    const double *x = a->x;
    double sum = a->add ? a->out[0] : 0;
    for (size_t i = 0; i < a->n; i++)
        sum += x[i];
    a->out[0] = sum;
    return OT_OK;
}

static void sum_losses(ot_stream *stream, const ot_sum *args)
{
    ot_cpu_enqueue(stream, sum_losses_task, args, sizeof *args);
}

static void sum_partials(ot_stream *stream, const ot_sum *args)
{
    ot_cpu_enqueue(stream, sum_partials_task, args, sizeof *args);
}

/* ---- Planes ---- */

static void cast(ot_stream *stream, const ot_cast *args)
{
    if (valid(stream, is_float(args->dst_dtype) && is_float(args->src_dtype), "cast",
              "fp32, bf16 or fp16 on both sides") &&
        valid(stream, args->rounding == OT_ROUND_NEAREST || args->src_dtype == OT_FP32, "cast",
              "fp32 as the source of stochastic rounding"))
        ot_cpu_enqueue_range(stream, OT_RANGE_CAST, args, sizeof *args, args->n, GRAIN);
}

static void cast_sum_squares(ot_stream *stream, const ot_cast_sum_squares *args)
{
    if (valid(stream, is_float(args->dst_dtype), "cast_sum_squares", "a dtype of fp32, bf16 or fp16"))
        ot_cpu_enqueue_range(stream, OT_RANGE_CAST_SUM_SQUARES, args, sizeof *args, ot_sum_blocks(args->n),
                             1);
}

static void scale(ot_stream *stream, const ot_scale *args)
{
    if (valid(stream, is_float(args->dtype), "scale", "a dtype of fp32, bf16 or fp16"))
        ot_cpu_enqueue_range(stream, OT_RANGE_SCALE, args, sizeof *args, args->n, GRAIN);
}

static void accumulate(ot_stream *stream, const ot_accumulate *args)
{
    if (valid(stream, is_float(args->src_dtype), "accumulate", "a dtype of fp32, bf16 or fp16"))
        ot_cpu_enqueue_range(stream, OT_RANGE_ACCUMULATE, args, sizeof *args, args->n, GRAIN);
}

static void split_master(ot_stream *stream, const ot_split *args)
{
    ot_cpu_enqueue_range(stream, OT_RANGE_SPLIT_MASTER, args, sizeof *args, args->n, GRAIN);
}

static void join_master(ot_stream *stream, const ot_split *args)
{
    ot_cpu_enqueue_range(stream, OT_RANGE_JOIN_MASTER, args, sizeof *args, args->n, GRAIN);
}

const ot_kernels ot_kernels_cpu = {
    .embedding_forward = embedding_forward,
    .embedding_backward = embedding_backward,
    .norm_forward = norm_forward,
    .norm_backward = norm_backward,
    .matmul = ot_cpu_matmul,
    .bias_backward = bias_backward,
    .rope_forward = rope_forward,
    .rope_backward = rope_backward,
    .attention_forward = ot_cpu_attention_forward,
    .attention_backward = ot_cpu_attention_backward,
    .swiglu_forward = swiglu_forward,
    .swiglu_backward = swiglu_backward,
    .gelu_forward = gelu_forward,
    .gelu_backward = gelu_backward,
    .residual_add = residual_add,
    .cross_entropy = cross_entropy,
    .sum_squares = sum_squares,
    .sum_losses = sum_losses,
    .sum_partials = sum_partials,
    .cast = cast,
    .cast_sum_squares = cast_sum_squares,
    .scale = scale,
    .accumulate = accumulate,
    .split_master = split_master,
    .join_master = join_master,
    .update = ot_cpu_update,
    .adafactor = ot_cpu_adafactor,
    .embedding_workspace = embedding_workspace,
    .norm_workspace = norm_workspace,
    .matmul_workspace = ot_cpu_matmul_workspace,
    .bias_backward_workspace = bias_backward_workspace,
    .attention_forward_workspace = ot_cpu_attention_forward_workspace,
    .attention_backward_workspace = ot_cpu_attention_backward_workspace,
};
