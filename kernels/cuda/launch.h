/* The CUDA device's own kernels: one launcher for every operation of kernels.h but the matrix product, which
 * is cuBLAS's.
 *
 * Each enqueues on `stream` what the operation of the same name in kernels.h says, and returns at once;
 * `args` is read during the call only. It checks nothing but what it has no kernel for: a dtype that it does
 * not take, a head dimension above OT_CUDA_HEAD_DIM_MAX, more heads than a grid holds; then, and where a
 * launch is refused, it returns the error and part of the operation may be enqueued. A count of zero is
 * cudaSuccess. No launcher allocates, waits, or reads what is on the device, so each may be captured in a
 * graph. Results depend on the arguments alone, not on the card's number of multiprocessors.
 *
 * Tokens are on the device, so nobody checks them before: a token outside its range gives a row of NaN
 * (embedding_forward), a loss and a gradient of NaN (cross_entropy), and is left out by embedding_backward;
 * no memory outside the table is touched.
 *
 * Common subset of C and C++; needs the CUDA toolkit's headers. */
#ifndef OT_KERNELS_CUDA_LAUNCH_H
#define OT_KERNELS_CUDA_LAUNCH_H

#include <cuda_runtime_api.h>

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { OT_CUDA_HEAD_DIM_MAX = 256 };

cudaError_t ot_cuda_embedding_forward(cudaStream_t stream, const ot_embedding *args);
cudaError_t ot_cuda_embedding_backward(cudaStream_t stream, const ot_embedding *args);
cudaError_t ot_cuda_norm_forward(cudaStream_t stream, const ot_norm *args);
cudaError_t ot_cuda_norm_backward(cudaStream_t stream, const ot_norm *args);
cudaError_t ot_cuda_bias_backward(cudaStream_t stream, const ot_bias_backward *args);
cudaError_t ot_cuda_rope_forward(cudaStream_t stream, const ot_rope *args);
cudaError_t ot_cuda_rope_backward(cudaStream_t stream, const ot_rope *args);
cudaError_t ot_cuda_attention_forward(cudaStream_t stream, const ot_attention *args);
cudaError_t ot_cuda_attention_backward(cudaStream_t stream, const ot_attention *args);
cudaError_t ot_cuda_swiglu_forward(cudaStream_t stream, const ot_swiglu *args);
cudaError_t ot_cuda_swiglu_backward(cudaStream_t stream, const ot_swiglu *args);
cudaError_t ot_cuda_gelu_forward(cudaStream_t stream, const ot_gelu *args);
cudaError_t ot_cuda_gelu_backward(cudaStream_t stream, const ot_gelu *args);
cudaError_t ot_cuda_residual_add(cudaStream_t stream, const ot_residual *args);
cudaError_t ot_cuda_cross_entropy(cudaStream_t stream, const ot_cross_entropy *args);
cudaError_t ot_cuda_sum_squares(cudaStream_t stream, const ot_sum_squares *args);
cudaError_t ot_cuda_sum_losses(cudaStream_t stream, const ot_sum *args);
cudaError_t ot_cuda_sum_partials(cudaStream_t stream, const ot_sum *args);
cudaError_t ot_cuda_cast(cudaStream_t stream, const ot_cast *args);
cudaError_t ot_cuda_cast_sum_squares(cudaStream_t stream, const ot_cast_sum_squares *args);
cudaError_t ot_cuda_scale(cudaStream_t stream, const ot_scale *args);
cudaError_t ot_cuda_accumulate(cudaStream_t stream, const ot_accumulate *args);
cudaError_t ot_cuda_split_master(cudaStream_t stream, const ot_split *args);
cudaError_t ot_cuda_join_master(cudaStream_t stream, const ot_split *args);

/* The same bytes as the CPU device's, so that a plane may be updated on either. */
cudaError_t ot_cuda_update(cudaStream_t stream, const ot_update *args);
cudaError_t ot_cuda_adafactor(cudaStream_t stream, const ot_adafactor *args);

/* The bias of OT_MATMUL_FORWARD, enqueued before the product, which then accumulates whatever
 * `args->accumulate` says, so that the sum is rounded once: out[n,:] = bias, or with `accumulate` out[n,:] +=
 * bias, over N rows of OC. Of `args`, dtype, out_dtype, N, OC, bias, out, ld_out and accumulate are read. */
cudaError_t ot_cuda_add_bias(cudaStream_t stream, const ot_matmul *args);

/* Bytes, as the functions of kernels.h without a device. */
uint64_t ot_cuda_embedding_workspace(const ot_embedding *args);
uint64_t ot_cuda_norm_workspace(const ot_norm *args);
uint64_t ot_cuda_bias_backward_workspace(const ot_bias_backward *args);
uint64_t ot_cuda_attention_forward_workspace(const ot_attention *args);
uint64_t ot_cuda_attention_backward_workspace(const ot_attention *args);

#ifdef __cplusplus
}
#endif
#endif
