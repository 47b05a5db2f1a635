/* The CUDA runtime, cuBLAS and NCCL on the CPU: fakes of the entry points that kernels/cuda calls, with which its host sources
 * link instead, so that the engine runs its CUDA path where there is no GPU.
 *
 * A fake is as strict as a card and less obliging. Work runs late: on one executor, whose seeded choice starves some
 * streams at random, or on a thread for each stream. Device memory is capped, full of NaN when it is new, between
 * pages that fault, and closed to the host while no operation runs (one executor only). What a card lets pass
 * and makes slow or wrong is refused or counted: the NULL stream, calls from host functions, asynchronous copies of
 * host memory that is not pinned, copies across two registrations, a stream of another device.
 *
 * With one executor it starts when somebody waits, asks, or has made no call for a while: one host thread that only
 * waits at the end therefore sees the same order for the same seed. Under ThreadSanitizer use threads: streams are
 * then ordered by events alone (kernels/cpu/counter.h).
 *
 * Everything here is called between runs, while no work is in flight, unless it says otherwise. */
#ifndef OT_TESTS_FAKECUDA_H
#define OT_TESTS_FAKECUDA_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FAKECUDA_EXPORT __attribute__((visibility("default")))

typedef struct fakecuda_options {
    uint64_t seed;
    int threads;           /* 1: a thread for each stream */
    int devices;           /* 0: 1 */
    int major, minor;      /* compute capability; 0: 8.9 */
    uint64_t memory_bytes; /* of each card; 0: 4 GiB */
    uint64_t other_bytes;  /* of it taken by other processes */
    uint64_t pin_bytes;    /* host memory that may be pinned; 0: any */
    const char *root;      /* below which the device reads /proc and /sys; NULL: of this machine */
    uint64_t nccl_bytes;   /* that a communicator takes, times the rank and 1; 0: 24 MiB for each */
} fakecuda_options;

/* Forgets everything but open memory. Without it the environment decides: FAKECUDA_SEED, FAKECUDA_THREADS, FAKECUDA_DEVICES. */
FAKECUDA_EXPORT void fakecuda_configure(const fakecuda_options *options);

typedef struct fakecuda_counters {
    uint64_t calls, kernels, products;
    uint64_t host_syncs;      /* calls that waited for the device */
    uint64_t pageable_copies; /* asynchronous ones, of host memory that is not pinned */
    uint64_t refused;         /* NULL stream, calls from host functions, streams of another device */
    uint64_t h2d_bytes, d2h_bytes, d2d_bytes;
    uint64_t device_bytes, device_peak_bytes; /* of all cards, contexts and libraries included */
    uint64_t pinned_bytes;
} fakecuda_counters;

/* The configured root, or "". */
FAKECUDA_EXPORT const char *fakecuda_root(void);
#define FAKECUDA_ROOT fakecuda_root()

/* At any time. */
FAKECUDA_EXPORT fakecuda_counters fakecuda_count(void);
FAKECUDA_EXPORT uint64_t fakecuda_card_bytes(int card); /* device_bytes of one */

/* The call of `function` ("cudaMalloc") number `after`, from 0, returns `error`; "" stands for the execution of an
 * operation, which loses the device as a failing kernel does. One at a time. */
FAKECUDA_EXPORT void fakecuda_fail(const char *function, uint64_t after, cudaError_t error);

/* From now on what this rank of an emulated NCCL sends has a bit flipped; -1: none does. */
FAKECUDA_EXPORT void fakecuda_damage(int rank);

/* A kernel: `run` is called once, when the stream's turn comes; what it returns other than cudaSuccess loses the
 * device. At any time. */
FAKECUDA_EXPORT cudaError_t fakecuda_launch(cudaStream_t stream, cudaError_t (*run)(void *context),
                                            void *context);

#ifdef __cplusplus
}
#endif
#endif
