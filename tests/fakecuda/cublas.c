/* cuBLAS's matrix product: sums in FP32, in ascending order, rounded once. */
#include <cublas_v2.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fakecuda/state.h"

enum { HANDLE_BYTES = 8 << 20 };

struct cublasContext {
    cudaStream_t stream;
    void *workspace;
};

/* ---- Values ---- */

static float from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t to_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float half_to_float(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, magnitude = half & 0x7fffu;
    if (magnitude >= 0x7c00)
        return from_bits(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
    float scaled = from_bits(magnitude << 13) * from_bits((127u + 112u) << 23); /* subnormals, too */
    return from_bits(sign | to_bits(scaled));
}

static uint16_t float_to_half(float value)
{
    uint32_t bits = to_bits(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000)
        return (uint16_t)(sign | 0x7e00);
    if (magnitude >= 0x477ff000) /* halfway between 65504 and what would follow it */
        return (uint16_t)(sign | 0x7c00);
    if (magnitude < 0x38800000) { /* subnormal: the adder rounds at 2^-24 */
        float shifted = from_bits(magnitude) + 0.5f;
        return (uint16_t)(sign | (to_bits(shifted) - to_bits(0.5f)));
    }
    uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
    return (uint16_t)(sign | (rounded - (112u << 23)) >> 13);
}

static uint16_t float_to_bfloat(float value)
{
    uint32_t bits = to_bits(value);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float load(const void *base, cudaDataType type, int64_t i)
{
    if (type == CUDA_R_32F)
        return ((const float *)base)[i];
    uint16_t bits = ((const uint16_t *)base)[i];
    return type == CUDA_R_16F ? half_to_float(bits) : from_bits((uint32_t)bits << 16);
}

static void store(void *base, cudaDataType type, int64_t i, float value)
{
    if (type == CUDA_R_32F)
        ((float *)base)[i] = value;
    else
        ((uint16_t *)base)[i] = type == CUDA_R_16F ? float_to_half(value) : float_to_bfloat(value);
}

/* ---- The product ---- */

typedef struct product {
    int turned_a, turned_b;
    int64_t m, n, k, lda, ldb, ldc;
    cudaDataType type, out_type;
    float alpha, beta;
    const void *a, *b;
    void *c, *workspace;
} product;

/* Column l of op(A) is side by side in `packed`, so that the inner loop goes down a column of C. */
static void pack(const product *p, float *packed)
{
    for (int64_t l = 0; l < p->k; l++)
        for (int64_t i = 0; i < p->m; i++)
            packed[l * p->m + i] = load(p->a, p->type, p->turned_a ? l + i * p->lda : i + l * p->lda);
}

static void multiply_column(const product *p, const float *packed, int64_t j, float *sums)
{
    memset(sums, 0, (size_t)p->m * sizeof *sums);
    for (int64_t l = 0; l < p->k; l++) {
        float b = load(p->b, p->type, p->turned_b ? j + l * p->ldb : l + j * p->ldb);
        const float *a = packed + l * p->m;
        for (int64_t i = 0; i < p->m; i++)
            sums[i] += a[i] * b;
    }
    for (int64_t i = 0; i < p->m; i++) {
        float before = p->beta != 0 ? p->beta * load(p->c, p->out_type, i + j * p->ldc) : 0;
        store(p->c, p->out_type, i + j * p->ldc, p->alpha * sums[i] + before);
    }
}

static cudaError_t run_product(void *args)
{
    const product *p = args;
    float *packed = malloc((size_t)(p->m * (p->k + 1)) * sizeof *packed);
    if (packed == NULL)
        return cudaErrorMemoryAllocation;
    memset(p->workspace, 0x5a, 256); /* its content is the library's */
    pack(p, packed);
    for (int64_t j = 0; j < p->n; j++)
        multiply_column(p, packed, j, packed + p->m * p->k);
    free(packed);
    return cudaSuccess;
}

static int is_supported(const product *p, cudaDataType b_type, cublasComputeType_t compute)
{
    int sixteen = p->type == CUDA_R_16F || p->type == CUDA_R_16BF;
    return b_type == p->type && compute == CUBLAS_COMPUTE_32F && (sixteen || p->type == CUDA_R_32F) &&
           (p->out_type == CUDA_R_32F || p->out_type == p->type) && p->lda >= (p->turned_a ? p->k : p->m) &&
           p->ldb >= (p->turned_b ? p->n : p->k) && p->ldc >= p->m;
}

cublasStatus_t cublasGemmEx_64(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b,
                               int64_t m, int64_t n, int64_t k, const void *alpha, const void *A,
                               cudaDataType a_type, int64_t lda, const void *B, cudaDataType b_type,
                               int64_t ldb, const void *beta, void *C, cudaDataType c_type, int64_t ldc,
                               cublasComputeType_t compute, cublasGemmAlgo_t algorithm)
{
    (void)algorithm;
    if (fake_enter(__func__) != cudaSuccess || !fake_stream_usable(handle->stream))
        return CUBLAS_STATUS_EXECUTION_FAILED;
    product p = {op_a == CUBLAS_OP_T,
                 op_b == CUBLAS_OP_T,
                 m,
                 n,
                 k,
                 lda,
                 ldb,
                 ldc,
                 a_type,
                 c_type,
                 *(const float *)alpha,
                 *(const float *)beta,
                 A,
                 B,
                 C,
                 handle->workspace};
    if (!is_supported(&p, b_type, compute))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (p.workspace == NULL)
        return CUBLAS_STATUS_ALLOC_FAILED; /* the library would allocate, beside the cap */
    fake_add(&fake.products, 1);
    fake_enqueue(handle->stream, run_product, 1, &p, sizeof p);
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- Handles ---- */

cublasStatus_t cublasCreate_v2(cublasHandle_t *out)
{
    if (fake_enter(__func__) != cudaSuccess)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    if (!fake_take_bytes(HANDLE_BYTES))
        return CUBLAS_STATUS_ALLOC_FAILED;
    *out = calloc(1, sizeof **out);
    return *out != NULL ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle)
{
    fake_give_bytes(HANDLE_BYTES);
    free(handle);
    return CUBLAS_STATUS_SUCCESS;
}

/* Takes the user's workspace away, as the library does. */
cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream)
{
    handle->stream = stream;
    handle->workspace = NULL;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void *workspace, size_t bytes)
{
    if ((uintptr_t)workspace % 256 != 0 || !fake_in_block(workspace, bytes))
        return CUBLAS_STATUS_INVALID_VALUE;
    handle->workspace = workspace;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode)
{
    (void)handle;
    int reduced =
        !(mode & CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION) || (mode & CUBLAS_TF32_TENSOR_OP_MATH);
    return reduced ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
}

const char *cublasGetStatusString(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_SUCCESS ? "success" : "a failure of the fake cuBLAS";
}
