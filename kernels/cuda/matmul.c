/* Matrix products through cuBLAS: FP32 sums, no TF32, one rounding at the end.
 *
 * A row-major [rows,cols] is a column-major [cols,rows], so each product is computed turned: with ' for what
 * cuBLAS sees, FORWARD is Y' = W X', DX is dX' = W' dY', DW is dW' = X' dY, and the left factor is always `b`.
 *
 * The workspace is the operation's own, so that the library allocates nothing and what one stream computes does
 * not depend on what another does. */
#include "kernels/cuda/launch.h"
#include "kernels/cuda/state.h"

enum { ALIGNMENT = 256, WORKSPACE_ALIGNMENT = 64 };

static int is_float(ot_dtype dtype)
{
    return dtype == OT_FP32 || dtype == OT_BF16 || dtype == OT_FP16;
}

static cudaDataType_t type_of(ot_dtype dtype)
{
    return dtype == OT_FP32 ? CUDA_R_32F : dtype == OT_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

uint64_t ot_cuda_matmul_workspace(const ot_device *base, const ot_matmul *args)
{
    (void)args;
    return ((const cuda_device *)base)->workspace_bytes + ALIGNMENT - WORKSPACE_ALIGNMENT;
}

/* NULL, or what the arguments do not hold to. */
static const char *broken_rule(const ot_stream *stream, const ot_matmul *a)
{
    const size_t row_a = a->op == OT_MATMUL_FORWARD ? a->C : a->OC,
                 row_out = a->op == OT_MATMUL_FORWARD ? a->OC : a->C;
    if (((const cuda_stream *)stream)->cublas == NULL)
        return "a compute stream";
    if (!is_float(a->dtype))
        return "a dtype of fp32, bf16 or fp16";
    if (a->out_dtype != OT_FP32 && (a->out_dtype != a->dtype || a->op == OT_MATMUL_DW))
        return "an out_dtype of fp32, or but for DW that of the inputs";
    if (a->ld_a < row_a || a->ld_b < a->C || a->ld_out < row_out)
        return "rows that do not overlap";
    return a->workspace == NULL ? "a workspace" : NULL;
}

static ot_status multiply(ot_stream *stream, const ot_matmul *a, int accumulate)
{
    cublasHandle_t cublas = ((cuda_stream *)stream)->cublas;
    uintptr_t workspace = ((uintptr_t)a->workspace + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    OT_TRY(ot_cublas_error(
        cublasSetWorkspace(cublas, (void *)workspace, ot_cuda_device(stream)->workspace_bytes), "matmul"));
    const int forward = a->op == OT_MATMUL_FORWARD, dw = a->op == OT_MATMUL_DW;
    const size_t m = forward ? a->OC : a->C, n = dw ? a->OC : a->N, k = forward ? a->C : dw ? a->N : a->OC;
    const float alpha = 1, beta = accumulate ? 1 : 0;
    return ot_cublas_error(
        cublasGemmEx_64(cublas, forward ? CUBLAS_OP_T : CUBLAS_OP_N, dw ? CUBLAS_OP_T : CUBLAS_OP_N,
                        (int64_t)m, (int64_t)n, (int64_t)k, &alpha, a->b, type_of(a->dtype), (int64_t)a->ld_b,
                        a->a, type_of(a->dtype), (int64_t)a->ld_a, &beta, a->out, type_of(a->out_dtype),
                        (int64_t)a->ld_out, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
        "matmul");
}

void ot_cuda_matmul(ot_stream *stream, const ot_matmul *args)
{
    if (args->N == 0 || args->C == 0 || args->OC == 0 || !ot_cuda_is_sound(stream))
        return;
    const char *rule = broken_rule(stream, args);
    if (rule != NULL) {
        ot_cuda_reject(stream, ot_fail(OT_ERR_INTERNAL, "matmul: expected %s", rule));
        return;
    }
    ot_cuda_enter(ot_cuda_device(stream));
    int biased = args->op == OT_MATMUL_FORWARD && args->bias != NULL;
    if (biased)
        ot_cuda_check(stream, ot_cuda_add_bias(ot_cuda_handle(stream), args), "matmul's bias");
    int accumulate = biased || args->accumulate;
    if (ot_cuda_is_sound(stream) && multiply(stream, args, accumulate) != OT_OK) {
        ot_cuda_reject(stream, ot_fail(OT_ERR_DEVICE, "%s", ot_error_text()));
        ot_cuda_check(stream, cudaPeekAtLastError(), "matmul");
    }
}
