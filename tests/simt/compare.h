/* Runs an operation on the CPU device and on the emulator, in the emulator's three orders, and compares. */
#ifndef OT_TESTS_SIMT_COMPARE_H
#define OT_TESTS_SIMT_COMPARE_H

#include "tests/kernels/harness.h"
#include "tests/simt/control.h"

/* CUDA's kernels as a table; it has no matrix product. The stream is not looked at; a launch runs at once,
 * on the host's memory, and fails the test where the emulator finds something wrong. */
extern const ot_kernels simt_kernels;

/* A sanitizer takes several times as long, and gets every so-manyth of the larger shapes. ThreadSanitizer finds a race in
 * any order, and runs one. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SHARE = 4 };
#else
enum { SHARE = 1 };
#endif

/* Set-up and tear-down of a test program. */
int open_cpu(void **state);
int close_cpu(void **state);

/* The table of the CPU device, and a run on it that waits. */
const ot_kernels *cpu_kernels(void);
void run_on_cpu(operation *run, void *context);

/* Each time from the outputs' first values. The outputs, up to a NULL, are within `tolerance` of the CPU
 * device's, as in expect_close, and the same bytes in every order. They hold the emulator's values then. */
void compare(operation *run, void *context, tensor *const outputs[], double tolerance, const char *what);

/* The same, and the CPU device's bytes. */
void compare_bytes(operation *run, void *context, tensor *const outputs[], const char *what);

/* fp32 1e-5, bf16 1e-2, fp16 2e-3. */
double tolerance_between(ot_dtype dtype);

/* Runs on the emulator with each barrier of `file` left out in turn ("": of all files), in every order; fails
 * for one that nobody misses: the bytes are right each time, and no error is found. */
void expect_barriers_needed(operation *run, void *context, tensor *const outputs[], const char *file);

/* The bytes that the operation reads and writes through packs: fails where they are not these. */
void expect_bytes(operation *run, void *context, uint64_t read_bytes, uint64_t written_bytes,
                  const char *what);

#endif
