/* Runs an operation of the CPU device in every instruction set and on 1, 2 and 3 threads, and compares the
 * bytes; and tensors whose values the tests read and write as double, by conversions of their own. */
#ifndef OT_TESTS_KERNELS_HARNESS_H
#define OT_TESTS_KERNELS_HARNESS_H

#include "kernels/kernels.h"

enum { TENSORS_MAX = 256 };

typedef struct tensor {
    ot_dtype dtype;
    size_t n;
    void *data;
    void *before; /* what was in it when it was made */
} tensor;

/* Group set-up and tear-down of a test program; tensors live until the test's own tear-down. */
int open_devices(void **state);
int close_devices(void **state);
int free_tensors(void **state);

/* A tensor of normally distributed values times `scale`, rounded to dtype; the same for the same seed. */
tensor *make_random(ot_dtype dtype, size_t n, double scale, uint32_t seed);

/* A tensor of one value. */
tensor *make_filled(ot_dtype dtype, size_t n, double value);
int32_t *make_indices(size_t n, int32_t below, uint32_t seed);

double get(const tensor *t, size_t i);
void set(tensor *t, size_t i, double value);

/* The value of dtype nearest to x, ties to even: worked out with ldexp, independently of the kernels. */
double round_to(ot_dtype dtype, double x);
double decode16(ot_dtype dtype, uint16_t bits);

typedef void operation(const ot_kernels *kernels, ot_stream *stream, void *context);

/* Runs `run` on every device, each time from the outputs' first values, and fails where a byte differs from
 * the first run. The outputs, up to a NULL, hold the result then. */
void run_everywhere(operation *run, void *context, tensor *const outputs[]);

/* As run_everywhere, for what may be rounded differently in each instruction set: in each, all numbers of
 * threads give the same bytes, and `check` is called once for the result. */
typedef void result_check(void *context);
void run_per_isa(operation *run, result_check *check, void *context, tensor *const outputs[]);

/* `bytes` aligned to 64, filled with NaN; valid until the next call. */
void *make_workspace(size_t bytes);

/* Runs it on one device only, and expects the failure `status`. */
void expect_rejected(operation *run, void *context, ot_status status);

/* Fails where ||t - expected|| > tolerance * ||expected|| over all elements. */
void expect_close(const tensor *t, const double *expected, double tolerance, const char *what);

/* What one rounding to dtype leaves of the tolerances of the project: fp32 2e-6, bf16 4e-3, fp16 5e-4. */
double tolerance_of(ot_dtype dtype);

/* (f(x+h) - f(x-h)) / 2h for element i of x, which is given back as it was. */
typedef double scalar_function(void *context);
double finite_difference(scalar_function *f, void *context, double *x);

double *make_doubles(size_t n);
double *to_doubles(const tensor *t);

#endif
