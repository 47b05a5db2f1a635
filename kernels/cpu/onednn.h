/* Products of packed tiles through oneDNN, each on the calling thread alone.
 *
 * A tile product is C [m,64] (+)= A [m,k] B [k,64], dense, in the layouts of pack.h: A by rows, B by words of
 * the summed dimension, C in FP32. All tiles of any matrix product are of few sizes, so their primitives fit
 * into a small table: each is made when it is first asked for, and from then on oneDNN compiles nothing any
 * more. It does allocate a few small objects for a call and in an execution; nothing of ours, and nothing that grows. */
#ifndef OT_KERNELS_CPU_ONEDNN_H
#define OT_KERNELS_CPU_ONEDNN_H

#include <stddef.h>

#include "io/status.h"

enum {
    OT_TILE_M = 128, /* the most rows of a tile; fewer are a multiple of OT_TILE_M_STEP */
    OT_TILE_M_STEP = 32,
    OT_TILE_N = 64,   /* columns */
    OT_TILE_K = 1024, /* the most elements of the summed dimension; fewer: a multiple of OT_TILE_K_STEP */
    OT_TILE_K_STEP = 64,
    OT_TILE_SCRATCH_BYTES = 1 << 20, /* what an execution gets */
    OT_TILE_MATRICES = 4,            /* A, B, C and scratch */
};

typedef struct ot_onednn ot_onednn;
typedef struct ot_tile ot_tile;

ot_status ot_onednn_open(ot_onednn **out) OT_MUST_CHECK;

/* NULL is allowed. */
void ot_onednn_close(ot_onednn *onednn);

/* Whether this processor multiplies BF16 faster than FP32. */
int ot_onednn_pairs(void);

/* The product of that size: A and B in BF16 pairs or in FP32, adding to C or overwriting it. Thread-safe. */
ot_status ot_onednn_tile(ot_onednn *onednn, int paired, int add, size_t m, size_t k,
                         const ot_tile **out) OT_MUST_CHECK;

/* What runs one of them any number of times, on one thread: oneDNN's objects, which cost as much as a small product. */
typedef struct ot_tile_call {
    const ot_tile *tile; /* NULL: closed */
    struct dnnl_stream *stream;
    struct dnnl_memory *matrices[OT_TILE_MATRICES];
    int count;
} ot_tile_call;

ot_status ot_tile_call_open(const ot_tile *tile, ot_tile_call *call) OT_MUST_CHECK;
void ot_tile_call_close(ot_tile_call *call); /* closed ones too */

/* The pointers are aligned to 64 bytes; `scratch` is for this call alone. */
ot_status ot_tile_run(const ot_tile_call *call, const void *a, const void *b, float *c,
                      void *scratch) OT_MUST_CHECK;

/* ---- What the kernels are measured against: a whole product on threads of oneDNN's own ---- */

/* C [M,N] = A [M,K] B [K,N], or with `add` C += that. A and B, in FP32 or BF16, lie by rows, or turned; C by
 * rows, in FP32 or, with c_paired, in BF16. */
typedef struct ot_plain_product {
    size_t M, N, K;
    int paired, c_paired, add, turned_a, turned_b;
    int threads;
} ot_plain_product;

/* Closed by ot_plain_close; `onednn` stays open until then. */
ot_status ot_plain_open(ot_onednn *onednn, const ot_plain_product *product, ot_tile **out) OT_MUST_CHECK;
void ot_plain_close(ot_tile *plain);
ot_status ot_plain_run(const ot_tile *plain, const void *a, const void *b, void *c) OT_MUST_CHECK;

#endif
