/* What the benchmarks of matrix products share: products by oneDNN on its own threads, and memory to
 * multiply. */
#ifndef OT_TOOLS_GEMM_H
#define OT_TOOLS_GEMM_H

#include <stdint.h>

#include "kernels/cpu/onednn.h"
#include "kernels/device.h"
#include "kernels/dtype.h"

enum { OT_GEMM_SQUARE = 2048 };

/* OT_ERR_USAGE where option --name is not in least .. most. */
ot_status ot_gemm_check(const char *name, int64_t value, int64_t least, int64_t most) OT_MUST_CHECK;

/* The CPU device with as much memory as there is, and its compute stream. `threads` 0: one for each core; `isa` "auto": the
 * best that this processor has. Fails as ot_device_open does. */
ot_status ot_gemm_open_device(int64_t threads, const char *isa, ot_device **device,
                              ot_stream **stream) OT_MUST_CHECK;

/* Where in an arena the next `bytes` go; moves `*at` behind them, and on, so that not all tensors lie at one
 * place modulo a power of two. */
uint64_t ot_gemm_take(uint64_t *at, uint64_t bytes);

/* n elements between -1 and 1; from 16-bit types the same values for the same seed. */
void ot_gemm_fill(ot_dtype dtype, void *data, size_t n, uint32_t seed);

/* GFLOP/s of one run. */
ot_status ot_gemm_run_plain(const ot_tile *plain, const void *a, const void *b, void *c, double flops,
                            double *rate) OT_MUST_CHECK;

/* The limit that rates are quoted beside: a square product of OT_GEMM_SQUARE rows, in BF16 or FP32. */
ot_status ot_gemm_open_square(ot_onednn *onednn, ot_dtype dtype, int threads, ot_tile **out) OT_MUST_CHECK;

/* Bytes of its three matrices together, in the widest type. */
static inline uint64_t ot_gemm_square_bytes(void)
{
    return 3 * (uint64_t)OT_GEMM_SQUARE * OT_GEMM_SQUARE * 4;
}

/* Fills the memory of that size as ot_gemm_fill does. */
void ot_gemm_fill_square(ot_dtype dtype, void *memory);

/* One run of it on that memory. */
ot_status ot_gemm_run_square(const ot_tile *square, void *memory, double *rate) OT_MUST_CHECK;

#endif
