/* Matrix products of the CUDA device against the CPU device's: operands turned as cuBLAS wants them, the bias, adding to
 * what is there, rows inside wider ones. */
#include <math.h>

#include "tests/cuda/emulator.h"
#include "tests/kernels/harness.h"

typedef struct product {
    ot_matmul args; /* pointers left out */
    const tensor *a, *b, *bias, *out;
} product;

static size_t bytes_of(const tensor *t)
{
    return t->n * ot_dtype_bytes(t->dtype);
}

static char *put(ot_stream *stream, char **next, const tensor *t)
{
    char *at = *next;
    ot_copy_h2d(stream, at, t->data, bytes_of(t));
    *next += (bytes_of(t) + 4095) / 4096 * 4096;
    return at;
}

/* The result on a device, as doubles. */
static double *run_on(const char *kind, const product *p)
{
    ot_device *device;
    ot_device_options options = {.kind = kind, .memory_bytes = 256 * MIB, .threads = kind[1] == 'p' ? 1 : 0};
    assert_int_equal(ot_device_open(&options, &device), OT_OK);
    ot_stream *stream = open_stream(device, OT_STREAM_COMPUTE, "test");
    char *next = open_arena(device, 12 * MIB);
    ot_matmul args = p->args;
    args.a = put(stream, &next, p->a);
    args.b = put(stream, &next, p->b);
    args.bias = p->bias != NULL ? put(stream, &next, p->bias) : NULL;
    args.out = put(stream, &next, p->out);
    args.workspace = next + 64; /* aligned no better than it has to be */
    const ot_kernels *kernels = ot_device_kernels(device);
    assert_true(kernels->matmul_workspace(device, &args) < 32 * MIB);
    kernels->matmul(stream, &args);
    tensor result = *p->out;
    result.data = malloc(bytes_of(p->out));
    ot_copy_d2h(stream, result.data, args.out, bytes_of(p->out));
    if (ot_stream_synchronize(stream) != OT_OK)
        fail_msg("%s", ot_error_text());
    double *values = to_doubles(&result);
    free(result.data);
    ot_device_close(device);
    return values;
}

static double relative_error(const double *found, const double *expected, size_t n)
{
    double error = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        error += (found[i] - expected[i]) * (found[i] - expected[i]);
        norm += expected[i] * expected[i];
    }
    return sqrt(error / norm);
}

static void compare(ot_matmul args, int biased)
{
    size_t rows_a = args.N, rows_b = args.op == OT_MATMUL_DW ? args.N : args.OC,
           rows_out = args.op == OT_MATMUL_DW ? args.OC : args.N;
    args.ld_a = (args.op == OT_MATMUL_FORWARD ? args.C : args.OC) + 3;
    args.ld_b = args.C + 5;
    args.ld_out = (args.op == OT_MATMUL_FORWARD ? args.OC : args.C) + 7;
    product p = {.args = args,
                 .a = make_random(args.dtype, rows_a * args.ld_a, 1, 1),
                 .b = make_random(args.dtype, rows_b * args.ld_b, 1, 2),
                 .bias = biased ? make_random(args.dtype, args.OC, 3, 3) : NULL,
                 .out = make_random(args.out_dtype, rows_out * args.ld_out, 1, 4)};
    static const double limits[] = {[OT_FP32] = 1e-5, [OT_BF16] = 1e-2, [OT_FP16] = 2e-3};
    const double *expected = run_on("cpu", &p), *found = run_on("cuda", &p);
    double error = relative_error(found, expected, p.out->n), limit = limits[args.out_dtype];
    if (!(error <= limit))
        fail_msg("op %d, %s to %s, N %zu C %zu OC %zu, bias %d, accumulate %d: error %.3g > %.3g",
                 (int)args.op, ot_dtype_name(args.dtype), ot_dtype_name(args.out_dtype), args.N, args.C,
                 args.OC, biased, args.accumulate, error, limit);
    for (size_t r = 0; r < rows_out; r++) /* between the rows nothing is written */
        for (size_t i = args.ld_out - 7; i < args.ld_out; i++)
            assert_true(found[r * args.ld_out + i] == get(p.out, r * args.ld_out + i));
    free_tensors(NULL);
}

static void products_match_the_cpu_device(void **state)
{
    (void)state;
    static const size_t shapes[][3] = {{1, 33, 100}, {100, 1, 33}, {33, 100, 1}, {65, 70, 66}};
    static const ot_dtype dtypes[] = {OT_FP32, OT_BF16, OT_FP16};
    fakecuda_configure(&(fakecuda_options){.seed = 1, .threads = FIRST_MODE});
    for (size_t s = 0; s < 4; s++)
        for (int d = 0; d < 3; d++)
            for (int op = 0; op < 3; op++)
                for (int wide = 0; wide < 2; wide++)
                    for (int accumulate = 0; accumulate < 2; accumulate++)
                        for (int biased = 0; biased <= (op == OT_MATMUL_FORWARD); biased++) {
                            if (op == OT_MATMUL_DW && !wide)
                                continue;
                            compare((ot_matmul){.op = (ot_matmul_op)op,
                                                .dtype = dtypes[d],
                                                .out_dtype = wide ? OT_FP32 : dtypes[d],
                                                .N = shapes[s][0],
                                                .C = shapes[s][1],
                                                .OC = shapes[s][2],
                                                .accumulate = accumulate},
                                    biased);
                        }
}

static void a_product_belongs_on_a_compute_stream(void **state)
{
    (void)state;
    fakecuda_configure(&(fakecuda_options){.seed = 1, .threads = FIRST_MODE});
    ot_device *device = open_device(256 * MIB, 0);
    ot_stream *stream = open_stream(device, OT_STREAM_H2D, "h2d");
    float *arena = open_arena(device, 12 * MIB);
    ot_matmul args = {.N = 1,
                      .C = 1,
                      .OC = 1,
                      .a = arena,
                      .b = arena,
                      .out = arena,
                      .ld_a = 1,
                      .ld_b = 1,
                      .ld_out = 1,
                      .workspace = arena};
    ot_device_kernels(device)->matmul(stream, &args);
    assert_int_equal(ot_stream_synchronize(stream), OT_ERR_INTERNAL);
    says("a compute stream");
    ot_device_close(device);
}

int main(void)
{
    use_emulator();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_match_the_cpu_device),
        cmocka_unit_test(a_product_belongs_on_a_compute_stream),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
