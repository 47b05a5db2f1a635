/* CUDA as the kernels use it: shared memory, launches, and the instructions that C++ does not have.
 *
 * The kernels compile a second time for the CPU (tests/simt), where these names come from a header included
 * in front of this one; so shared memory and launches are written with the macros only. */
#ifndef OT_KERNELS_CUDA_DEVICE_CUH
#define OT_KERNELS_CUDA_DEVICE_CUH

#include <math.h>
#include <stdint.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#ifndef OT_SIMT

#define OT_COUNT_READ(bytes)
#define OT_COUNT_WRITE(bytes)

#define OT_SHARED(type, dims, name) __shared__ __align__(16) type name dims
#define OT_SHARED_DYNAMIC(name) extern __shared__ __align__(16) unsigned char name[]

/* A launch that returns its error. More shared memory than 48 KB has to be asked for. */
template <class... P, class... A>
cudaError_t ot_launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                      A... args)
{
    if (shared_bytes > 48 << 10) {
        cudaError_t error =
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes);
        if (error != cudaSuccess)
            return error;
    }
    kernel<<<grid, block, shared_bytes, stream>>>(args...);
    return cudaGetLastError();
}

#define OT_LAUNCH(kernel, grid, block, shared, stream, ...)                                                  \
    ot_launch(kernel, grid, block, shared, stream, __VA_ARGS__)

/* ---- Instructions (PTX ISA: ldmatrix, mma.m16n8k16, cp.async) ---- */

__device__ inline uint32_t ot_shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* Four 8x8 matrices of 16-bit values; lane i names the row i%8 of matrix i/8. */
__device__ inline void ot_ldmatrix_x4(uint32_t out[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(ot_shared_address(row))
                 : "memory");
}

__device__ inline void ot_ldmatrix_x4_trans(uint32_t out[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(ot_shared_address(row))
                 : "memory");
}

/* c [16,8] += a [16,16] b [16,8]; the type says how the bits of a and b are read. */
__device__ inline void ot_mma(__half, float c[4], const uint32_t a[4], const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ inline void ot_mma(__nv_bfloat16, float c[4], const uint32_t a[4], const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
                 "{%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* Starts a copy of 16 bytes to shared memory, of which `bytes` are read and the rest are zeros. */
__device__ inline void ot_copy_async(void *shared, const void *global, unsigned bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(ot_shared_address(shared)),
                 "l"(global), "r"(bytes)
                 : "memory");
}

/* Ends a group of this thread's copies. */
__device__ inline void ot_copy_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until at most so many of this thread's groups are under way. */
template <int groups_left> __device__ inline void ot_copy_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(groups_left) : "memory");
}

#endif
#endif
