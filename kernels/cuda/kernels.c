/* The CUDA device's table: each entry checks its arguments and calls the launcher of the kernel (launch.h). */
#include "kernels/cuda/launch.h"
#include "kernels/cuda/state.h"

/* Whether to enqueue; arguments that do not hold to the rule stick to the device. */
static int valid(ot_stream *stream, int holds, const char *operation, const char *rule)
{
    if (!ot_cuda_is_sound(stream))
        return 0;
    if (!holds)
        ot_cuda_reject(stream, ot_fail(OT_ERR_INTERNAL, "%s: expected %s", operation, rule));
    ot_cuda_enter(ot_cuda_device(stream));
    return holds;
}

#define ENQUEUE(operation, holds, rule)                                                                      \
    do {                                                                                                     \
        if (valid(stream, holds, #operation, rule))                                                          \
            ot_cuda_check(stream, ot_cuda_##operation(ot_cuda_handle(stream), args), #operation);            \
    } while (0)

static int is_float(ot_dtype dtype)
{
    return dtype == OT_FP32 || dtype == OT_BF16 || dtype == OT_FP16;
}

static const char a_float[] = "a dtype of fp32, bf16 or fp16",
                  float_rows[] = "fp32, bf16 or fp16, and rows that do not overlap";

/* ---- Embedding and norms ---- */

static void embedding_forward(ot_stream *stream, const ot_embedding *args)
{
    ENQUEUE(embedding_forward, is_float(args->dtype), a_float);
}

static void embedding_backward(ot_stream *stream, const ot_embedding *args)
{
    ENQUEUE(embedding_backward, is_float(args->dtype), a_float);
}

static int has_norm_rows(const ot_norm *args)
{
    size_t row = args->H * args->C;
    return is_float(args->dtype) && args->C > 0 && args->ld_x >= row && args->ld_y >= row;
}

static void norm_forward(ot_stream *stream, const ot_norm *args)
{
    ENQUEUE(norm_forward, has_norm_rows(args), "fp32, bf16 or fp16, C > 0, and rows that do not overlap");
}

static void norm_backward(ot_stream *stream, const ot_norm *args)
{
    int holds = has_norm_rows(args) && args->rstd != NULL &&
                (args->kind == OT_RMSNORM || args->mean != NULL) &&
                (args->dx == NULL || args->ld_dx >= args->H * args->C);
    ENQUEUE(norm_backward, holds,
            "fp32, bf16 or fp16, C > 0, rows that do not overlap, and the statistics of the forward pass");
}

static void bias_backward(ot_stream *stream, const ot_bias_backward *args)
{
    ENQUEUE(bias_backward, is_float(args->dtype) && args->ld_dy >= args->OC, float_rows);
}

/* ---- Rotary positions, attention and activations ---- */

static int has_rope_rows(const ot_rope *args)
{
    return is_float(args->dtype) && args->HD % 2 == 0 && args->ld_x >= args->H * args->HD;
}

static void rope_forward(ot_stream *stream, const ot_rope *args)
{
    ENQUEUE(rope_forward, has_rope_rows(args),
            "fp32, bf16 or fp16, an even head dimension, and rows that do not overlap");
}

static void rope_backward(ot_stream *stream, const ot_rope *args)
{
    ENQUEUE(rope_backward, has_rope_rows(args),
            "fp32, bf16 or fp16, an even head dimension, and rows that do not overlap");
}

static int has_attention_shape(const ot_attention *a)
{
    size_t row = a->NH * a->HD, kv_row = a->NKV * a->HD;
    return is_float(a->dtype) && a->NKV > 0 && a->NH % a->NKV == 0 && a->T <= INT32_MAX &&
           a->HD <= OT_CUDA_HEAD_DIM_MAX && a->ld_q >= row && a->ld_kv >= kv_row && a->ld_out >= row;
}

static const char attention_rule[] =
    "fp32, bf16 or fp16, heads that are a multiple of the key and value heads, a head dimension of up to 256, and rows "
    "that do not overlap; in backward lse";

static void attention_forward(ot_stream *stream, const ot_attention *args)
{
    if (args->B * args->T * args->NH * args->HD > 0)
        ENQUEUE(attention_forward, has_attention_shape(args), attention_rule);
}

static void attention_backward(ot_stream *stream, const ot_attention *args)
{
    if (args->B * args->T * args->NH * args->HD == 0)
        return;
    int holds = has_attention_shape(args) && args->ld_dq >= args->NH * args->HD &&
                args->ld_dkv >= args->NKV * args->HD && args->lse != NULL;
    ENQUEUE(attention_backward, holds, attention_rule);
}

static void swiglu_forward(ot_stream *stream, const ot_swiglu *args)
{
    ENQUEUE(swiglu_forward, is_float(args->dtype) && args->ld_gate >= args->F && args->ld_out >= args->F,
            float_rows);
}

static void swiglu_backward(ot_stream *stream, const ot_swiglu *args)
{
    int holds = is_float(args->dtype) && args->ld_gate >= args->F && args->ld_out >= args->F &&
                args->ld_dgate >= args->F;
    ENQUEUE(swiglu_backward, holds, float_rows);
}

static void gelu_forward(ot_stream *stream, const ot_gelu *args)
{
    ENQUEUE(gelu_forward, is_float(args->dtype), a_float);
}

static void gelu_backward(ot_stream *stream, const ot_gelu *args)
{
    ENQUEUE(gelu_backward, is_float(args->dtype), a_float);
}

static void residual_add(ot_stream *stream, const ot_residual *args)
{
    ENQUEUE(residual_add, is_float(args->dtype), a_float);
}

/* ---- Loss, sums and conversions ---- */

static void cross_entropy(ot_stream *stream, const ot_cross_entropy *args)
{
    ENQUEUE(cross_entropy,
            is_float(args->dtype) && args->V > 0 && args->V <= INT32_MAX && args->ld_logits >= args->V,
            "fp32, bf16 or fp16, 0 < V < 2^31, and rows that do not overlap");
}

static void sum_squares(ot_stream *stream, const ot_sum_squares *args)
{
    ENQUEUE(sum_squares, is_float(args->dtype), a_float);
}

static void sum_losses(ot_stream *stream, const ot_sum *args)
{
    ENQUEUE(sum_losses, 1, "");
}

static void sum_partials(ot_stream *stream, const ot_sum *args)
{
    ENQUEUE(sum_partials, 1, "");
}

static void cast(ot_stream *stream, const ot_cast *args)
{
    int holds = is_float(args->dst_dtype) && is_float(args->src_dtype) &&
                (args->rounding == OT_ROUND_NEAREST || args->src_dtype == OT_FP32);
    ENQUEUE(cast, holds, "fp32, bf16 or fp16 on both sides, and fp32 as the source of stochastic rounding");
}

static void cast_sum_squares(ot_stream *stream, const ot_cast_sum_squares *args)
{
    ENQUEUE(cast_sum_squares, is_float(args->dst_dtype), a_float);
}

static void scale(ot_stream *stream, const ot_scale *args)
{
    ENQUEUE(scale, is_float(args->dtype), a_float);
}

static void accumulate(ot_stream *stream, const ot_accumulate *args)
{
    ENQUEUE(accumulate, is_float(args->src_dtype), a_float);
}

static void split_master(ot_stream *stream, const ot_split *args)
{
    ENQUEUE(split_master, 1, "");
}

static void join_master(ot_stream *stream, const ot_split *args)
{
    ENQUEUE(join_master, 1, "");
}

/* ---- Updates ---- */

/* Gradient, master and weight, which both operations have. */
static int has_planes(const ot_update *u)
{
    return u->step != NULL && u->grad != NULL && u->master != NULL && is_float(u->grad_dtype) &&
           (u->weight == NULL || is_float(u->weight_dtype)) &&
           (u->master_format != OT_MASTER_SPLIT || (u->weight != NULL && u->weight_dtype == OT_BF16));
}

static int has_moment(ot_dtype format, const void *moment, const float *scales)
{
    return (format == OT_FP32 || format == OT_BF16 || format == OT_INT8) && moment != NULL &&
           (format != OT_INT8 || scales != NULL);
}

static const char planes_rule[] =
    "a step, a gradient, a master with its weight, and moments with their scales";

static void update(ot_stream *stream, const ot_update *args)
{
    if (args->n == 0)
        return;
    int second = args->kind == OT_OPTIMIZER_ADAMW || args->kind == OT_OPTIMIZER_ADAM;
    int holds = has_planes(args) && (unsigned)args->kind < OT_OPTIMIZER_ADAFACTOR &&
                has_moment(args->moment1_format, args->moment1, args->scale1) &&
                (!second || has_moment(args->moment2_format, args->moment2, args->scale2));
    ENQUEUE(update, holds, planes_rule);
}

static void adafactor(ot_stream *stream, const ot_adafactor *args)
{
    size_t n = args->update.n, n_rows = args->cols > 0 ? n / args->cols : 0;
    if (n == 0 && args->pass != OT_ADAFACTOR_COLUMNS)
        return;
    int holds = has_planes(&args->update) && n_rows * args->cols == n && args->first_row <= args->rows &&
                n_rows <= args->rows - args->first_row && args->c != NULL &&
                (args->rows == 1 || (args->r != NULL && args->row_mean != NULL)) &&
                (args->pass > OT_ADAFACTOR_COLUMNS || args->column_sums != NULL) &&
                (args->pass != OT_ADAFACTOR_RMS || args->partials != NULL) &&
                (args->pass != OT_ADAFACTOR_APPLY || args->square_sum != NULL);
    ENQUEUE(adafactor, holds, "whole rows of the matrix, its planes, moments and sums");
}

/* ---- Workspaces ---- */

static uint64_t embedding_workspace(const ot_device *device, const ot_embedding *args)
{
    (void)device;
    return ot_cuda_embedding_workspace(args);
}

static uint64_t norm_workspace(const ot_device *device, const ot_norm *args)
{
    (void)device;
    return ot_cuda_norm_workspace(args);
}

static uint64_t bias_backward_workspace(const ot_device *device, const ot_bias_backward *args)
{
    (void)device;
    return ot_cuda_bias_backward_workspace(args);
}

static uint64_t attention_forward_workspace(const ot_device *device, const ot_attention *args)
{
    (void)device;
    return ot_cuda_attention_forward_workspace(args);
}

static uint64_t attention_backward_workspace(const ot_device *device, const ot_attention *args)
{
    (void)device;
    return ot_cuda_attention_backward_workspace(args);
}

const ot_kernels ot_kernels_cuda = {
    .embedding_forward = embedding_forward,
    .embedding_backward = embedding_backward,
    .norm_forward = norm_forward,
    .norm_backward = norm_backward,
    .matmul = ot_cuda_matmul,
    .bias_backward = bias_backward,
    .rope_forward = rope_forward,
    .rope_backward = rope_backward,
    .attention_forward = attention_forward,
    .attention_backward = attention_backward,
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
    .update = update,
    .adafactor = adafactor,
    .embedding_workspace = embedding_workspace,
    .norm_workspace = norm_workspace,
    .matmul_workspace = ot_cuda_matmul_workspace,
    .bias_backward_workspace = bias_backward_workspace,
    .attention_forward_workspace = attention_forward_workspace,
    .attention_backward_workspace = attention_backward_workspace,
};
