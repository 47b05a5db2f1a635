/* The SIMT emulator as tests and the fake runtime see it: how it runs kernels, what it found, what it counted.
 *
 * A launch runs on the calling thread, block after block; several threads may run kernels at the same time.
 * The order and the hook are set before any thread launches. Common subset of C and C++. */
#ifndef OT_TESTS_SIMT_CONTROL_H
#define OT_TESTS_SIMT_CONTROL_H

#include <stdint.h>

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Which of the threads that can run goes on when one waits, and in which order the blocks run. */
typedef enum simt_order {
    SIMT_FORWARD,
    SIMT_REVERSE,
    SIMT_RANDOM,
} simt_order;

void simt_set_order(simt_order order, uint64_t seed);

/* What becomes of a launch. By default it runs at once. A hook gets it instead, with a context of its own,
 * and calls run(context) exactly once, when the stream's turn comes: that runs the kernel, frees the context
 * and returns what a real launch failure would be. A hook that returns an error has not called it and never
 * will. Bad launches are refused before the hook. */
typedef cudaError_t simt_run(void *context);
typedef cudaError_t simt_hook(cudaStream_t stream, simt_run *run, void *context);
void simt_set_hook(simt_hook *hook);

/* The first error since the last call of simt_clear_error, on any thread: which kernel, block and threads, and
 * what they did; empty without one. A kernel stops at its first error. */
const char *simt_error(void);
void simt_clear_error(void);

/* Whether data races within a launch are among them: under ThreadSanitizer, whose report comes first. A program that
 * links the emulator does not exit with its code; the report itself has to fail the test (simt.cmake). */
#if defined(__SANITIZE_THREAD__)
enum { SIMT_FINDS_RACES = 1 };
#else
enum { SIMT_FINDS_RACES = 0 };
#endif

/* Keeps what a sanitizer says of planted faults to itself: what is written to stderr between the two is lost. */
void simt_hush(void);
void simt_unhush(void);

/* Planted faults. Every place in a kernel source that has a __syncthreads or __syncwarp gets a number when it
 * is first passed after the reset; the one left out does nothing. -1: none. */
void simt_reset_barriers(void);
int simt_barriers(void);
void simt_leave_out(int barrier);
const char *simt_barrier_name(int barrier); /* "file:line", valid until the next call */

/* Bytes of global memory that kernels read and wrote through the vector accessors of kernels/cuda, and the
 * number of kernels run, since the last reset. */
typedef struct simt_counts {
    uint64_t read_bytes, written_bytes, kernels;
} simt_counts;

simt_counts simt_get_counts(void);
void simt_reset_counts(void);

#ifdef __cplusplus
}
#endif
#endif
