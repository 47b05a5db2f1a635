#include "engine/pass.h"

#include <stdio.h>

/* ---- Workspace ---- */

/* What a kernel wants of its own where there is no device to ask, in a product and otherwise: planning for a
 * GPU, whose library has at most so much for itself. */
enum { PRODUCT_ESTIMATE = 32 << 20, OTHER_ESTIMATE = 4 << 20, ALIGNMENT = 256 };

static void *at_byte(const void *base, uint64_t bytes)
{
    return (void *)((uintptr_t)base + bytes);
}

void *ot_pass_take(ot_pass *pass, size_t bytes)
{
    void *buffer = at_byte(pass->workspace, pass->used);
    pass->used += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (pass->peak < pass->used)
        pass->peak = pass->used;
    OT_ASSERT(pass->stream == NULL || pass->compute->workspace_bytes == 0 ||
              pass->peak <= pass->compute->workspace_bytes);
    return buffer;
}

void *ot_pass_take_rows(ot_pass *pass, size_t N, size_t columns)
{
    return ot_pass_take(pass, N * columns * ot_dtype_bytes(pass->compute->dtype));
}

ot_norm_stats ot_pass_take_stats(ot_pass *pass, size_t groups)
{
    ot_norm_stats stats;
    stats.mean = ot_pass_take(pass, groups * sizeof(float));
    stats.rstd = ot_pass_take(pass, groups * sizeof(float));
    return stats;
}

const void *ot_pass_at(const ot_pass *pass, const void *base, uint64_t elements)
{
    return at_byte(base, elements * ot_dtype_bytes(pass->compute->dtype));
}

void *ot_pass_at_mutable(const ot_pass *pass, void *base, uint64_t elements)
{
    return at_byte(base, elements * ot_dtype_bytes(pass->compute->dtype));
}

/* ---- Parameters ---- */

/* Element of the module's "weight" or "bias" in the layer; -1: it has none. */
static int64_t find(const ot_layer *layer, const char *module, const char *part)
{
    char name[OT_TENSOR_NAME_BYTES];
    snprintf(name, sizeof name, "%s.%s", module, part);
    int index = ot_layer_find(layer, name);
    return index >= 0 ? (int64_t)layer->tensors[index].offset : -1;
}

ot_linear ot_linear_bind(const ot_pass *pass, const ot_layer *layer, const char *module, const void *weights,
                         float *grads, size_t OC, size_t C)
{
    int64_t weight = find(layer, module, "weight"), bias = find(layer, module, "bias");
    OT_ASSERT(weight >= 0);
    ot_linear linear = {.C = C, .OC = OC, .has_bias = bias >= 0};
    linear.weight = ot_pass_at(pass, weights, (uint64_t)weight);
    linear.dweight = at_byte(grads, (uint64_t)weight * sizeof(float));
    if (linear.has_bias) {
        linear.bias = ot_pass_at(pass, weights, (uint64_t)bias);
        linear.dbias = at_byte(grads, (uint64_t)bias * sizeof(float));
    }
    return linear;
}

ot_norm_params ot_norm_bind(const ot_pass *pass, const ot_layer *layer, const char *module,
                            const void *weights, float *grads, size_t C)
{
    ot_linear same = ot_linear_bind(pass, layer, module, weights, grads, C, 1);
    return (ot_norm_params){C, same.has_bias, same.weight, same.bias, same.dweight, same.dbias};
}

/* ---- Kernels with workspace ---- */

void ot_pass_matmul(ot_pass *pass, ot_matmul args)
{
    const ot_kernels *kernels = pass->compute->kernels;
    size_t mark = pass->used;
    args.workspace = ot_pass_take(
        pass, kernels != NULL ? kernels->matmul_workspace(pass->compute->device, &args) : PRODUCT_ESTIMATE);
    if (pass->stream != NULL)
        kernels->matmul(pass->stream, &args);
    pass->used = mark;
}

void ot_pass_attention(ot_pass *pass, ot_attention args)
{
    const ot_kernels *kernels = pass->compute->kernels;
    size_t mark = pass->used;
    args.workspace = ot_pass_take(
        pass, kernels != NULL ? kernels->attention_forward_workspace(pass->compute->device, &args)
                              : OTHER_ESTIMATE);
    if (pass->stream != NULL)
        kernels->attention_forward(pass->stream, &args);
    pass->used = mark;
}

void ot_pass_attention_backward(ot_pass *pass, ot_attention args)
{
    const ot_kernels *kernels = pass->compute->kernels;
    size_t mark = pass->used;
    /* Sums of dq, dk and dv in FP32, and one number a row. */
    size_t estimate = args.B * args.T * ((args.NH + 2 * args.NKV) * args.HD + args.NH) * sizeof(float);
    args.workspace = ot_pass_take(
        pass,
        kernels != NULL ? kernels->attention_backward_workspace(pass->compute->device, &args) : estimate);
    if (pass->stream != NULL)
        kernels->attention_backward(pass->stream, &args);
    pass->used = mark;
}

void ot_pass_embedding_backward(ot_pass *pass, ot_embedding args)
{
    const ot_kernels *kernels = pass->compute->kernels;
    size_t mark = pass->used;
    args.workspace = ot_pass_take(
        pass, kernels != NULL ? kernels->embedding_workspace(pass->compute->device, &args) : OTHER_ESTIMATE);
    if (pass->stream != NULL)
        kernels->embedding_backward(pass->stream, &args);
    pass->used = mark;
}

static void bias_backward(ot_pass *pass, ot_bias_backward args)
{
    const ot_kernels *kernels = pass->compute->kernels;
    size_t mark = pass->used;
    args.workspace =
        ot_pass_take(pass, kernels != NULL ? kernels->bias_backward_workspace(pass->compute->device, &args)
                                           : OTHER_ESTIMATE);
    if (pass->stream != NULL)
        kernels->bias_backward(pass->stream, &args);
    pass->used = mark;
}

void ot_pass_copy_rows(ot_pass *pass, void *dst, const void *src, size_t N, size_t columns)
{
    if (pass->stream != NULL)
        ot_copy_d2d(pass->stream, dst, src, N * columns * ot_dtype_bytes(pass->compute->dtype));
}

/* ---- Linear layers and norms ---- */

void ot_linear_forward(ot_pass *pass, const ot_linear *linear, size_t N, const void *x, void *out, int add)
{
    ot_pass_matmul(pass, (ot_matmul){.op = OT_MATMUL_FORWARD,
                                     .dtype = pass->compute->dtype,
                                     .out_dtype = pass->compute->dtype,
                                     .N = N,
                                     .C = linear->C,
                                     .OC = linear->OC,
                                     .a = x,
                                     .ld_a = linear->C,
                                     .b = linear->weight,
                                     .ld_b = linear->C,
                                     .bias = linear->bias,
                                     .out = out,
                                     .ld_out = linear->OC,
                                     .accumulate = add});
}

void ot_linear_backward(ot_pass *pass, const ot_linear *linear, size_t N, const void *x, const void *dy,
                        void *dx)
{
    ot_matmul args = {.op = OT_MATMUL_DW,
                      .dtype = pass->compute->dtype,
                      .out_dtype = OT_FP32,
                      .N = N,
                      .C = linear->C,
                      .OC = linear->OC,
                      .a = dy,
                      .ld_a = linear->OC,
                      .b = x,
                      .ld_b = linear->C,
                      .out = linear->dweight,
                      .ld_out = linear->C,
                      .accumulate = !pass->fresh};
    ot_pass_matmul(pass, args);
    if (linear->has_bias)
        bias_backward(pass, (ot_bias_backward){.dtype = pass->compute->dtype,
                                               .N = N,
                                               .OC = linear->OC,
                                               .ld_dy = linear->OC,
                                               .dy = dy,
                                               .dbias = linear->dbias});
    args.op = OT_MATMUL_DX;
    args.accumulate = 0;
    args.out_dtype = pass->compute->dtype;
    args.b = linear->weight;
    args.out = dx;
    ot_pass_matmul(pass, args);
}

static ot_norm norm_args(const ot_pass *pass, const ot_norm_params *params, size_t N, size_t H, size_t ld,
                         const void *x, const ot_norm_stats *stats)
{
    return (ot_norm){.kind = params->has_bias ? OT_LAYERNORM : OT_RMSNORM,
                     .dtype = pass->compute->dtype,
                     .N = N,
                     .H = H,
                     .C = params->C,
                     .eps = pass->compute->model->config.norm_eps,
                     .ld_x = ld,
                     .ld_y = ld,
                     .x = x,
                     .weight = params->weight,
                     .bias = params->bias,
                     .mean = stats != NULL ? stats->mean : NULL,
                     .rstd = stats != NULL ? stats->rstd : NULL};
}

void ot_pass_norm(ot_pass *pass, const ot_norm_params *params, size_t N, size_t H, size_t ld, const void *x,
                  void *y, const ot_norm_stats *stats)
{
    ot_norm args = norm_args(pass, params, N, H, ld, x, stats);
    args.y = y;
    if (pass->stream != NULL)
        pass->compute->kernels->norm_forward(pass->stream, &args);
}

void ot_pass_norm_backward(ot_pass *pass, const ot_norm_params *params, size_t N, size_t H, size_t ld,
                           const void *x, const ot_norm_stats *stats, const void *dy, const void *dresidual,
                           void *dx)
{
    const ot_kernels *kernels = pass->compute->kernels;
    ot_norm args = norm_args(pass, params, N, H, ld, x, stats);
    args.dy = dy;
    args.dresidual = dresidual;
    args.ld_dx = ld;
    args.dx = dx;
    args.dweight = params->dweight;
    args.dbias = params->dbias;
    size_t mark = pass->used;
    args.workspace = ot_pass_take(
        pass, kernels != NULL ? kernels->norm_workspace(pass->compute->device, &args) : OTHER_ESTIMATE);
    if (pass->stream != NULL)
        kernels->norm_backward(pass->stream, &args);
    pass->used = mark;
}
