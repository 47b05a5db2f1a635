#include "tests/kernels/harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/test.h"

enum { DEVICES_MAX = 9, BLOCKS_MAX = 1024 };

typedef struct setting {
    const char *isa;
    int threads;
    ot_device *device;
    ot_stream *stream;
} setting;

static setting settings[DEVICES_MAX];
static size_t setting_count, tensor_count, block_count;
static tensor tensors[TENSORS_MAX];
static void *blocks[BLOCKS_MAX];

int open_devices(void **state)
{
    (void)state;
    static const char *const isas[] = {"baseline", "avx2", "avx512"};
    for (size_t i = 0; i < sizeof isas / sizeof isas[0]; i++) {
        for (int threads = 1; threads <= 3; threads++) {
            setting *s = &settings[setting_count];
            ot_device_options options = {
                .kind = "cpu", .memory_bytes = 1 << 21, .isa = isas[i], .threads = threads};
            ot_status status = ot_device_open(&options, &s->device);
            if (status == OT_ERR_USAGE && i > 0) {
                print_message("this processor has no %s: not tested\n", isas[i]);
                break;
            }
            assert_int_equal(status, OT_OK);
            ot_stream_options stream = {.name = "test"};
            assert_int_equal(ot_stream_open(s->device, &stream, &s->stream), OT_OK);
            s->isa = isas[i];
            s->threads = threads;
            setting_count++;
        }
    }
    return 0;
}

int close_devices(void **state)
{
    (void)state;
    while (setting_count > 0)
        ot_device_close(settings[--setting_count].device);
    return 0;
}

static void *allocate(size_t bytes)
{
    assert_true(block_count < BLOCKS_MAX);
    void *block = calloc(1, bytes > 0 ? bytes : 1);
    assert_non_null(block);
    return blocks[block_count++] = block;
}

int free_tensors(void **state)
{
    (void)state;
    while (block_count > 0)
        free(blocks[--block_count]);
    tensor_count = 0;
    return 0;
}

double *make_doubles(size_t n)
{
    return allocate(n * sizeof(double));
}

static tensor *make_tensor(ot_dtype dtype, size_t n)
{
    assert_true(tensor_count < TENSORS_MAX);
    tensor *t = &tensors[tensor_count++];
    *t = (tensor){dtype, n, allocate(n * ot_dtype_bytes(dtype)), allocate(n * ot_dtype_bytes(dtype))};
    return t;
}

/* xorshift, uniform in (0,1). */
static double uniform(uint32_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return (*state + 0.5) / 4294967296.0;
}

tensor *make_random(ot_dtype dtype, size_t n, double scale, uint32_t seed)
{
    tensor *t = make_tensor(dtype, n);
    uint32_t random = seed * 2654435761u + 1;
    for (size_t i = 0; i < n; i++) {
        double radius = sqrt(-2 * log(uniform(&random)));
        set(t, i, scale * radius * cos(6.283185307179586 * uniform(&random)));
    }
    memcpy(t->before, t->data, n * ot_dtype_bytes(dtype));
    return t;
}

tensor *make_filled(ot_dtype dtype, size_t n, double value)
{
    tensor *t = make_tensor(dtype, n);
    for (size_t i = 0; i < n; i++)
        set(t, i, value);
    memcpy(t->before, t->data, n * ot_dtype_bytes(dtype));
    return t;
}

int32_t *make_indices(size_t n, int32_t below, uint32_t seed)
{
    int32_t *indices = allocate(n * sizeof *indices);
    uint32_t random = seed * 2654435761u + 1;
    for (size_t i = 0; i < n; i++)
        indices[i] = (int32_t)(uniform(&random) * below);
    return indices;
}

double decode16(ot_dtype dtype, uint16_t bits)
{
    int mantissa_bits = dtype == OT_BF16 ? 7 : 10, top = dtype == OT_BF16 ? 255 : 31,
        bias = dtype == OT_BF16 ? 127 : 15;
    int exponent = bits >> mantissa_bits & top, mantissa = bits & ((1 << mantissa_bits) - 1);
    double sign = bits & 0x8000 ? -1 : 1;
    if (exponent == top)
        return mantissa != 0 ? (double)NAN : sign * (double)INFINITY;
    if (exponent == 0)
        return sign * ldexp(mantissa, 1 - bias - mantissa_bits);
    return sign * ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

double round_to(ot_dtype dtype, double x)
{
    if (dtype == OT_FP32)
        return (double)(float)x;
    if (x == 0 || !isfinite(x))
        return x;
    int mantissa_bits = dtype == OT_BF16 ? 7 : 10, smallest = dtype == OT_BF16 ? -126 : -14, exponent;
    frexp(x, &exponent);
    exponent = exponent - 1 < smallest ? smallest : exponent - 1;
    double rounded = ldexp(nearbyint(ldexp(x, mantissa_bits - exponent)), exponent - mantissa_bits);
    double largest = dtype == OT_BF16 ? ldexp(255, 120) : 65504;
    return fabs(rounded) > largest ? copysign((double)INFINITY, x) : rounded;
}

static uint16_t encode16(ot_dtype dtype, double x)
{
    if (x != x)
        return dtype == OT_BF16 ? 0x7fc0 : 0x7e00;
    double rounded = fabs(round_to(dtype, x));
    uint16_t low = 0, high = dtype == OT_BF16 ? 0x7f80 : 0x7c00;
    while (low < high) { /* patterns of one sign are ordered as their values are */
        uint16_t middle = (uint16_t)((low + high) / 2);
        if (decode16(dtype, middle) < rounded)
            low = (uint16_t)(middle + 1);
        else
            high = middle;
    }
    return (uint16_t)(low | (signbit(x) ? 0x8000 : 0));
}

double get(const tensor *t, size_t i)
{
    return t->dtype == OT_FP32 ? (double)((const float *)t->data)[i]
                               : decode16(t->dtype, ((const uint16_t *)t->data)[i]);
}

void set(tensor *t, size_t i, double value)
{
    if (t->dtype == OT_FP32)
        ((float *)t->data)[i] = (float)value;
    else
        ((uint16_t *)t->data)[i] = encode16(t->dtype, value);
}

double *to_doubles(const tensor *t)
{
    double *values = make_doubles(t->n);
    for (size_t i = 0; i < t->n; i++)
        values[i] = get(t, i);
    return values;
}

static void compare_outputs(tensor *const outputs[], void *const first[], const setting *s)
{
    for (size_t k = 0; outputs[k] != NULL; k++) {
        size_t size = ot_dtype_bytes(outputs[k]->dtype);
        if (memcmp(outputs[k]->data, first[k], outputs[k]->n * size) == 0)
            continue;
        size_t i = 0;
        while (memcmp((char *)outputs[k]->data + i * size, (char *)first[k] + i * size, size) == 0)
            i++;
        fail_msg("output %zu, element %zu of %zu: %.9g on %s with %d threads differs from the first run", k,
                 i, outputs[k]->n, get(outputs[k], i), s->isa, s->threads);
    }
}

static void copy_outputs(tensor *const outputs[], void *const first[])
{
    for (size_t k = 0; outputs[k] != NULL; k++)
        memcpy(first[k], outputs[k]->data, outputs[k]->n * ot_dtype_bytes(outputs[k]->dtype));
}

static void run_setting(setting *s, operation *run, void *context, tensor *const outputs[])
{
    for (size_t k = 0; outputs[k] != NULL; k++)
        memcpy(outputs[k]->data, outputs[k]->before, outputs[k]->n * ot_dtype_bytes(outputs[k]->dtype));
    run(ot_device_kernels(s->device), s->stream, context);
    if (ot_stream_synchronize(s->stream) != OT_OK)
        fail_msg("%s", ot_error_text());
}

static void run_all(operation *run, result_check *check, void *context, tensor *const outputs[])
{
    void *first[8] = {NULL};
    for (size_t k = 0; outputs[k] != NULL; k++)
        first[k] = allocate(outputs[k]->n * ot_dtype_bytes(outputs[k]->dtype));
    for (size_t i = 0; i < setting_count; i++) {
        setting *s = &settings[i];
        run_setting(s, run, context, outputs);
        if (i > 0 && (check == NULL || s->isa == settings[i - 1].isa)) {
            compare_outputs(outputs, first, s);
            continue;
        }
        copy_outputs(outputs, first);
        if (check != NULL)
            check(context);
    }
}

void run_everywhere(operation *run, void *context, tensor *const outputs[])
{
    run_all(run, NULL, context, outputs);
}

void run_per_isa(operation *run, result_check *check, void *context, tensor *const outputs[])
{
    run_all(run, check, context, outputs);
}

void *make_workspace(size_t bytes)
{
    static void *workspace;
    size_t rounded = (bytes + 63) / 64 * 64;
    free(workspace);
    workspace = NULL;
    if (rounded > 0) {
        workspace = aligned_alloc(64, rounded);
        assert_non_null(workspace);
        memset(workspace, 0xff, rounded);
    }
    return workspace;
}

void expect_rejected(operation *run, void *context, ot_status status)
{
    ot_device *device;
    ot_stream *stream;
    ot_device_options options = {.kind = "cpu", .memory_bytes = 1 << 21, .threads = 1};
    ot_stream_options stream_options = {.name = "test"};
    assert_int_equal(ot_device_open(&options, &device), OT_OK);
    assert_int_equal(ot_stream_open(device, &stream_options, &stream), OT_OK);
    run(ot_device_kernels(device), stream, context);
    assert_int_equal(ot_stream_synchronize(stream), status);
    ot_device_close(device);
}

void expect_close(const tensor *t, const double *expected, double tolerance, const char *what)
{
    double error = 0, norm = 0;
    size_t worst = 0;
    for (size_t i = 0; i < t->n; i++) {
        double d = get(t, i) - expected[i];
        if (fabs(d) > fabs(get(t, worst) - expected[worst]) || d != d)
            worst = i;
        error += d * d;
        norm += expected[i] * expected[i];
    }
    if (!(sqrt(error) <= tolerance * sqrt(norm)))
        fail_msg("%s, %s: relative error %.3g > %.3g; worst at %zu of %zu: %.9g, expected %.9g", what,
                 ot_dtype_name(t->dtype), sqrt(error / norm), tolerance, worst, t->n, get(t, worst),
                 expected[worst]);
}

double tolerance_of(ot_dtype dtype)
{
    return dtype == OT_FP32 ? 2e-6 : dtype == OT_BF16 ? 4e-3 : 5e-4;
}

double finite_difference(scalar_function *f, void *context, double *x)
{
    double h = 1e-4, before = *x;
    *x = before + h;
    double up = f(context);
    *x = before - h;
    double down = f(context);
    *x = before;
    return (up - down) / (2 * h);
}
