#include "tests/simt/compare.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/cuda/launch.h"
#include "tests/support/test.h"

enum { OUTPUTS_MAX = 8, ORDERS = 5, FIRST_ORDERS = 3 };

static const struct {
    simt_order order;
    uint64_t seed;
} orders[ORDERS] = {
    {SIMT_FORWARD, 0}, {SIMT_REVERSE, 0}, {SIMT_RANDOM, 1}, {SIMT_RANDOM, 2}, {SIMT_RANDOM, 3}};

static ot_device *device;
static ot_stream *stream;
static int faulty; /* a barrier is missing: errors are expected */
static int error_count;

/* ---- The table ---- */

static void check(const char *name, cudaError_t error)
{
    if (error == cudaSuccess)
        return;
    error_count++;
    if (!faulty)
        fail_msg("%s: error %d: %s", name, (int)error, simt_error());
}

#define LAUNCH(name, type)                                                                                   \
    static void name(ot_stream *unused, const type *args)                                                    \
    {                                                                                                        \
        (void)unused;                                                                                        \
        check(#name, ot_cuda_##name(NULL, args));                                                            \
    }

#define WORKSPACE(name, type)                                                                                \
    static uint64_t name(const ot_device *unused, const type *args)                                          \
    {                                                                                                        \
        (void)unused;                                                                                        \
        return ot_cuda_##name(args);                                                                         \
    }

LAUNCH(embedding_forward, ot_embedding)
LAUNCH(embedding_backward, ot_embedding)
LAUNCH(norm_forward, ot_norm)
LAUNCH(norm_backward, ot_norm)
LAUNCH(bias_backward, ot_bias_backward)
LAUNCH(rope_forward, ot_rope)
LAUNCH(rope_backward, ot_rope)
LAUNCH(attention_forward, ot_attention)
LAUNCH(attention_backward, ot_attention)
LAUNCH(swiglu_forward, ot_swiglu)
LAUNCH(swiglu_backward, ot_swiglu)
LAUNCH(gelu_forward, ot_gelu)
LAUNCH(gelu_backward, ot_gelu)
LAUNCH(residual_add, ot_residual)
LAUNCH(cross_entropy, ot_cross_entropy)
LAUNCH(sum_squares, ot_sum_squares)
LAUNCH(sum_losses, ot_sum)
LAUNCH(sum_partials, ot_sum)
LAUNCH(cast, ot_cast)
LAUNCH(cast_sum_squares, ot_cast_sum_squares)
LAUNCH(scale, ot_scale)
LAUNCH(accumulate, ot_accumulate)
LAUNCH(split_master, ot_split)
LAUNCH(join_master, ot_split)
LAUNCH(update, ot_update)
LAUNCH(adafactor, ot_adafactor)
WORKSPACE(embedding_workspace, ot_embedding)
WORKSPACE(norm_workspace, ot_norm)
WORKSPACE(bias_backward_workspace, ot_bias_backward)
WORKSPACE(attention_forward_workspace, ot_attention)
WORKSPACE(attention_backward_workspace, ot_attention)

const ot_kernels simt_kernels = {
    .embedding_forward = embedding_forward,
    .embedding_backward = embedding_backward,
    .norm_forward = norm_forward,
    .norm_backward = norm_backward,
    .bias_backward = bias_backward,
    .rope_forward = rope_forward,
    .rope_backward = rope_backward,
    .attention_forward = attention_forward,
    .attention_backward = attention_backward,
    .swiglu_forward = swiglu_forward,
    .swiglu_backward = swiglu_backward,
    .gelu_forward = gelu_forward,
    .gelu_backward = gelu_backward,
    .residual_add = residual_add,
    .cross_entropy = cross_entropy,
    .sum_squares = sum_squares,
    .sum_losses = sum_losses,
    .sum_partials = sum_partials,
    .cast = cast,
    .cast_sum_squares = cast_sum_squares,
    .scale = scale,
    .accumulate = accumulate,
    .split_master = split_master,
    .join_master = join_master,
    .update = update,
    .adafactor = adafactor,
    .embedding_workspace = embedding_workspace,
    .norm_workspace = norm_workspace,
    .bias_backward_workspace = bias_backward_workspace,
    .attention_forward_workspace = attention_forward_workspace,
    .attention_backward_workspace = attention_backward_workspace,
};

/* ---- The CPU device ---- */

int open_cpu(void **state)
{
    (void)state;
    ot_device_options options = {.kind = "cpu", .memory_bytes = 1 << 21, .threads = 1};
    ot_stream_options stream_options = {.name = "test"};
    assert_int_equal(ot_device_open(&options, &device), OT_OK);
    assert_int_equal(ot_stream_open(device, &stream_options, &stream), OT_OK);
    return 0;
}

int close_cpu(void **state)
{
    (void)state;
    ot_device_close(device);
    return 0;
}

const ot_kernels *cpu_kernels(void)
{
    return ot_device_kernels(device);
}

void run_on_cpu(operation *run, void *context)
{
    run(ot_device_kernels(device), stream, context);
    if (ot_stream_synchronize(stream) != OT_OK)
        fail_msg("%s", ot_error_text());
}

/* ---- Comparisons ---- */

static size_t bytes_of(const tensor *t)
{
    return t->n * ot_dtype_bytes(t->dtype);
}

static void put_back(tensor *const outputs[])
{
    for (size_t k = 0; outputs[k] != NULL; k++)
        memcpy(outputs[k]->data, outputs[k]->before, bytes_of(outputs[k]));
}

static void save(tensor *const outputs[], void *copies[OUTPUTS_MAX])
{
    for (size_t k = 0; outputs[k] != NULL; k++) {
        copies[k] = malloc(bytes_of(outputs[k]) + 1);
        assert_non_null(copies[k]);
        memcpy(copies[k], outputs[k]->data, bytes_of(outputs[k]));
    }
}

static void release(tensor *const outputs[], void *copies[OUTPUTS_MAX])
{
    for (size_t k = 0; outputs[k] != NULL; k++)
        free(copies[k]);
}

/* The number of the first output with other bytes, or -1. */
static int first_difference(tensor *const outputs[], void *const copies[OUTPUTS_MAX])
{
    for (int k = 0; outputs[k] != NULL; k++)
        if (memcmp(outputs[k]->data, copies[k], bytes_of(outputs[k])) != 0)
            return k;
    return -1;
}

static void expect_same(tensor *const outputs[], void *const copies[OUTPUTS_MAX], const char *what,
                        const char *than)
{
    int k = first_difference(outputs, copies);
    if (k < 0)
        return;
    size_t size = ot_dtype_bytes(outputs[k]->dtype), i = 0;
    while (memcmp((char *)outputs[k]->data + i * size, (char *)copies[k] + i * size, size) == 0)
        i++;
    double here = get(outputs[k], i);
    memcpy((char *)outputs[k]->data + i * size, (char *)copies[k] + i * size, size);
    fail_msg("%s: output %d, element %zu of %zu: %.9g, but %.9g %s", what, k, i, outputs[k]->n, here,
             get(outputs[k], i), than);
}

static void run_in_order(operation *run, void *context, tensor *const outputs[], int order)
{
    put_back(outputs);
    simt_clear_error();
    simt_set_order(orders[order].order, orders[order].seed);
    run(&simt_kernels, NULL, context);
}

static void run_in_all_orders(operation *run, void *context, tensor *const outputs[], const char *what)
{
    void *first[OUTPUTS_MAX];
    run_in_order(run, context, outputs, 0);
    save(outputs, first);
    for (int order = 1; order < ORDERS && !SIMT_FINDS_RACES; order++) {
        run_in_order(run, context, outputs, order);
        expect_same(outputs, first, what, "in the first order");
    }
    release(outputs, first);
}

void compare(operation *run, void *context, tensor *const outputs[], double tolerance, const char *what)
{
    double *expected[OUTPUTS_MAX];
    put_back(outputs);
    run_on_cpu(run, context);
    for (size_t k = 0; outputs[k] != NULL; k++)
        expected[k] = to_doubles(outputs[k]);
    run_in_all_orders(run, context, outputs, what);
    for (size_t k = 0; outputs[k] != NULL; k++)
        expect_close(outputs[k], expected[k], tolerance, what);
}

void compare_bytes(operation *run, void *context, tensor *const outputs[], const char *what)
{
    void *expected[OUTPUTS_MAX];
    put_back(outputs);
    run_on_cpu(run, context);
    save(outputs, expected);
    run_in_all_orders(run, context, outputs, what);
    expect_same(outputs, expected, what, "on the CPU device");
    release(outputs, expected);
}

double tolerance_between(ot_dtype dtype)
{
    return dtype == OT_FP32 ? 1e-5 : dtype == OT_BF16 ? 1e-2 : 2e-3;
}

/* ---- Planted faults and counters ---- */

static int is_wrong_without(operation *run, void *context, tensor *const outputs[], void *const right[],
                            int barrier, int order)
{
    faulty = 1;
    error_count = 0;
    simt_leave_out(barrier);
    run_in_order(run, context, outputs, order);
    return error_count > 0 || (!SIMT_FINDS_RACES && first_difference(outputs, right) >= 0);
}

/* Whether a run without this barrier gives other bytes or an error, in a process of its own: it may follow
 * indices that were never written. ThreadSanitizer sees nothing in such a process; a race has to do. */
static int is_missed(operation *run, void *context, tensor *const outputs[], void *const right[], int barrier,
                     int order)
{
    simt_hush();
    pid_t child = SIMT_FINDS_RACES ? 0 : fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        int wrong = is_wrong_without(run, context, outputs, right, barrier, order);
        if (!SIMT_FINDS_RACES)
            _exit(wrong);
        simt_unhush();
        faulty = 0;
        simt_leave_out(-1);
        return wrong;
    }
    simt_unhush();
    assert_true(child > 0);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

/* In one of the orders; where races are found, in any: here in one for each barrier. */
static void expect_missed(operation *run, void *context, tensor *const outputs[], void *const right[],
                          int barrier)
{
    int order = SIMT_FINDS_RACES ? barrier % FIRST_ORDERS : 0;
    int end = SIMT_FINDS_RACES ? order + 1 : ORDERS;
    while (order < end && !is_missed(run, context, outputs, right, barrier, order))
        order++;
    if (order == end)
        fail_msg("nobody misses the barrier at %s", simt_barrier_name(barrier));
}

void expect_barriers_needed(operation *run, void *context, tensor *const outputs[], const char *file)
{
    void *right[OUTPUTS_MAX];
    int tried = 0;
    simt_reset_barriers();
    run_in_order(run, context, outputs, 0);
    save(outputs, right);
    assert_false(is_missed(run, context, outputs, right, -1, 1));
    for (int barrier = 0; barrier < simt_barriers(); barrier++) {
        if (strncmp(simt_barrier_name(barrier), file, strlen(file)) != 0)
            continue;
        expect_missed(run, context, outputs, right, barrier);
        tried++;
    }
    assert_true(tried > 0);
    release(outputs, right);
}

void expect_bytes(operation *run, void *context, uint64_t read_bytes, uint64_t written_bytes,
                  const char *what)
{
    simt_reset_counts();
    simt_set_order(SIMT_FORWARD, 0);
    run(&simt_kernels, NULL, context);
    simt_counts counts = simt_get_counts();
    if (counts.read_bytes != read_bytes || counts.written_bytes != written_bytes)
        fail_msg("%s: %llu bytes read and %llu written, expected %llu and %llu", what,
                 (unsigned long long)counts.read_bytes, (unsigned long long)counts.written_bytes,
                 (unsigned long long)read_bytes, (unsigned long long)written_bytes);
}
