/* CUDA's dialect for a host compiler: kernels/cuda compiles against this header, included in front of every
 * file, and runs on the CPU with each CUDA thread a fiber.
 *
 * What a kernel source keeps to: shared memory is declared with OT_SHARED and OT_SHARED_DYNAMIC, launches go
 * through OT_LAUNCH, and the instructions that C++ does not have (mma, ldmatrix, cp.async) through the
 * functions at the end, which kernels/cuda/device.cuh implements for the real compiler. Blocks are made of
 * whole warps, and warp-wide functions name all 32 lanes.
 *
 * What it finds: see simt.cc. */
#ifndef OT_TESTS_SIMT_SIMT_H
#define OT_TESTS_SIMT_SIMT_H

#define OT_SIMT 1

#include <math.h>
#include <stdint.h>
#include <string.h>

#include <new>
#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include "tests/simt/control.h"

#undef __launch_bounds__
#define __launch_bounds__(...)

/* ---- The threads ---- */

struct simt_position {
    dim3 thread, block, block_size, grid_size;
};

/* Of the fiber that runs; a fiber stays on its operating-system thread. */
extern __thread simt_position *simt_here;

#define threadIdx (simt_here->thread)
#define blockIdx (simt_here->block)
#define blockDim (simt_here->block_size)
#define gridDim (simt_here->grid_size)

/* ---- Launches ---- */

struct simt_launch_options {
    const char *kernel;
    dim3 grid, block;
    size_t shared_bytes;
    cudaStream_t stream;
};

typedef void simt_body(void *context);
cudaError_t simt_launch(const simt_launch_options *options, simt_body *body, simt_body *release,
                        void *context);

template <class F> cudaError_t simt_launch_function(const simt_launch_options &options, F function)
{
    F *copy = new F(function);
    return simt_launch(
        &options, [](void *f) { (*(F *)f)(); }, [](void *f) { delete (F *)f; }, copy);
}

/* The arguments are copied at the launch, as on a card. */
#define OT_LAUNCH(kernel_, grid_, block_, shared_, stream_, ...)                                             \
    simt_launch_kernel(#kernel_, kernel_, grid_, block_, shared_, stream_, __VA_ARGS__)

template <class... P, class... A>
cudaError_t simt_launch_kernel(const char *name, void (*kernel)(P...), dim3 grid, dim3 block,
                               size_t shared_bytes, cudaStream_t stream, A... args)
{
    return simt_launch_function(simt_launch_options{name, grid, block, shared_bytes, stream},
                                [=] { kernel(args...); });
}

/* ---- Shared memory ---- */

void *simt_shared(const void *declaration, size_t bytes);
void *simt_shared_dynamic(void);

#define OT_SHARED(type, dims, name)                                                                          \
    static const char name##_declaration = 0;                                                                \
    type(&name) dims = *(type(*) dims)simt_shared(&name##_declaration, sizeof(type dims))

#define OT_SHARED_DYNAMIC(name) unsigned char *name = (unsigned char *)simt_shared_dynamic()

/* ---- Barriers and what a warp does together ---- */

void simt_block_barrier(const char *file, int line);
void simt_warp_barrier(unsigned mask, const char *file, int line);

/* All 32 lanes meet; the last to arrive runs `work` with every lane's operand and result. */
typedef void simt_work(const void *const in[32], void *const out[32]);
void simt_warp(const char *what, unsigned mask, const char *file, int line, const void *in, void *out,
               simt_work *work);

#define OT_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncthreads(OT_SITE)
{
    simt_block_barrier(file, line);
}

inline void __syncwarp(unsigned mask = 0xffffffffu, OT_SITE)
{
    simt_warp_barrier(mask, file, line);
}

unsigned simt_lane(void);

template <class T> struct simt_shuffle {
    T value;
    unsigned source;
};

template <class T> T simt_shuffle_from(unsigned mask, T value, unsigned source, const char *file, int line)
{
    simt_shuffle<T> in = {value, source};
    T out;
    simt_warp("a shuffle", mask, file, line, &in, &out, [](const void *const *ins, void *const *outs) {
        for (int lane = 0; lane < 32; lane++) {
            const simt_shuffle<T> *mine = (const simt_shuffle<T> *)ins[lane];
            *(T *)outs[lane] = ((const simt_shuffle<T> *)ins[mine->source])->value;
        }
    });
    return out;
}

template <class T> T __shfl_sync(unsigned mask, T value, int source, OT_SITE)
{
    return simt_shuffle_from(mask, value, (unsigned)source & 31, file, line);
}

template <class T> T __shfl_xor_sync(unsigned mask, T value, int bits, OT_SITE)
{
    return simt_shuffle_from(mask, value, simt_lane() ^ (unsigned)bits, file, line);
}

template <class T> T __shfl_down_sync(unsigned mask, T value, unsigned delta, OT_SITE)
{
    unsigned lane = simt_lane();
    return simt_shuffle_from(mask, value, lane + delta < 32 ? lane + delta : lane, file, line);
}

inline unsigned __ballot_sync(unsigned mask, int predicate, OT_SITE)
{
    unsigned out;
    simt_warp("__ballot_sync", mask, file, line, &predicate, &out,
              [](const void *const *ins, void *const *outs) {
                  unsigned bits = 0;
                  for (int lane = 0; lane < 32; lane++)
                      bits |= *(const int *)ins[lane] != 0 ? 1u << lane : 0;
                  for (int lane = 0; lane < 32; lane++)
                      *(unsigned *)outs[lane] = bits;
              });
    return out;
}

/* ---- Atomics: across the operating system's threads, too ---- */

inline unsigned atomicAdd(unsigned *p, unsigned value)
{
    return __atomic_fetch_add(p, value, __ATOMIC_RELAXED);
}

/* ---- Functions of CUDA's that C++ names otherwise ---- */

inline float __uint_as_float(unsigned u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

inline unsigned __float_as_uint(float x)
{
    unsigned u;
    memcpy(&u, &x, sizeof u);
    return u;
}

/* Compiled without contraction. */
inline float __fmul_rn(float a, float b)
{
    return a * b;
}

/* A lane's read of 16 bytes of shared memory, for ldmatrix; an error where they are not there. */
void simt_read_row(const void *row);

/* ---- Counters ---- */

void simt_count(uint64_t read_bytes, uint64_t written_bytes);
#define OT_COUNT_READ(bytes) simt_count(bytes, 0)
#define OT_COUNT_WRITE(bytes) simt_count(0, bytes)

/* ---- Instructions: as in kernels/cuda/device.cuh ---- */

void ot_ldmatrix_x4(uint32_t out[4], const void *row, OT_SITE);
void ot_ldmatrix_x4_trans(uint32_t out[4], const void *row, OT_SITE);
void ot_mma(__half, float c[4], const uint32_t a[4], const uint32_t b[2], OT_SITE);
void ot_mma(__nv_bfloat16, float c[4], const uint32_t a[4], const uint32_t b[2], OT_SITE);

/* The destination holds poison until the thread has waited; `bytes` of 16 are read, zeros follow. */
void ot_copy_async(void *shared, const void *global, unsigned bytes);
void ot_copy_commit(void);
void simt_copy_wait(unsigned groups_left);

template <int groups_left> void ot_copy_wait()
{
    simt_copy_wait(groups_left);
}

#endif
