/* Adafactor's sums over matrices that chunks cut anywhere: the same bytes for every size of chunks, and what the whole
 * matrix gives. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/factored.h"
#include "kernels/random.h"
#include "tests/support/test.h"
#include "tests/support/tiny.h"

enum { SIZES = 4, ARENA_BYTES = 1 << 20 };

static float grad_of(size_t layer, uint64_t element)
{
    uint32_t words[4];
    ot_philox(5, element, layer, words);
    return ((float)words[0] * 0x1p-32f - 0.5f) * (words[1] % 97 == 0 ? 0 : 0.01f);
}

/* What both passes over a layer leave behind. */
typedef struct sums {
    float *moments;
    double *square_sum; /* [layers][OT_LAYER_TENSORS_MAX] */
} sums;

static void measure_layer(const ot_factored *f, ot_device *device, ot_stream *stream, size_t l, uint64_t size,
                          const float *grads)
{
    const ot_update_step step = {.grad_scale = 0.5f, .lr = 1e-2f, .beta2_adafactor = 0.25f, .number = 2};
    uint64_t params = f->model->layers[l].params;
    for (int pass = 0; pass < 2; pass++)
        for (uint64_t first = 0; first < params; first += size) {
            const ot_chunk chunk = {
                .layer = (int32_t)l, .first = first, .count = params - first < size ? params - first : size};
            ot_factored_measure(f, ot_device_kernels(device), stream, pass, &chunk, OT_FP32, grads + first,
                                &step);
            assert_int_equal(ot_stream_synchronize(stream), OT_OK);
        }
}

static sums measure(const ot_model *model, ot_device *device, ot_stream *stream, uint64_t size)
{
    ot_factored f;
    size_t count = ot_factored_count(model);
    uint64_t bytes = ot_factored_lay_out(model, size, NULL, &f);
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    sums out = {malloc(count * sizeof(float)),
                calloc(model->layer_count * OT_LAYER_TENSORS_MAX, sizeof(double))};
    assert_true(memory != NULL && out.moments != NULL && out.square_sum != NULL);
    memset(memory, 0xff, bytes); /* NaN, but for the moments */
    assert_int_equal(ot_factored_lay_out(model, size, memory, &f), bytes);
    for (size_t i = 0; i < count; i++)
        f.moments[i] = 0.001f;
    for (size_t l = 0; l < model->layer_count; l++) {
        uint64_t params = model->layers[l].params;
        float *grads = malloc(params * sizeof *grads);
        assert_non_null(grads);
        for (uint64_t i = 0; i < params; i++)
            grads[i] = grad_of(l, i);
        measure_layer(&f, device, stream, l, size, grads);
        memcpy(out.square_sum + l * OT_LAYER_TENSORS_MAX, f.square_sum,
               model->layers[l].tensor_count * sizeof(double));
        free(grads);
    }
    memcpy(out.moments, f.moments, count * sizeof(float));
    free(memory);
    return out;
}

static void expect_close(double value, double expected)
{
    assert_true(fabs(value - expected) <= 1e-5 * fabs(expected));
}

/* A tensor's moments and the size of its update by the formulas, in FP64. Returns the number of its moments. */
static size_t check_tensor(const ot_tensor *tensor, size_t l, const float *moments, double square_sum)
{
    size_t rows = tensor->cols == 1 ? 1 : tensor->rows,
           cols = tensor->cols == 1 ? tensor->rows : tensor->cols;
    size_t row_count = rows > 1 ? rows : 0;
    double *r = calloc(rows, sizeof *r), *c = calloc(cols, sizeof *c), mean = 0, squares = 0;
    for (size_t i = 0; i < rows * cols; i++) {
        double g = 0.5 * (double)grad_of(l, tensor->offset + i);
        r[i / cols] += g * g / (double)cols;
        c[i % cols] += g * g / (double)rows;
    }
    for (size_t i = 0; i < rows; i++) {
        r[i] = 0.25 * 0.001 + 0.75 * r[i];
        mean += r[i] / (double)rows;
        if (rows > 1)
            expect_close((double)moments[i], r[i]);
    }
    for (size_t j = 0; j < cols; j++) {
        c[j] = 0.25 * 0.001 + 0.75 * c[j];
        expect_close((double)moments[row_count + j], c[j]);
    }
    for (size_t i = 0; i < rows * cols; i++) {
        double g = 0.5 * (double)grad_of(l, tensor->offset + i);
        squares += g * g / (rows > 1 ? r[i / cols] / mean * c[i % cols] : c[i]);
    }
    expect_close(square_sum, squares);
    free(r);
    free(c);
    return row_count + cols;
}

static void chunks_change_nothing(void **state)
{
    (void)state;
    static const uint64_t blocks[SIZES] = {100, 1, 2, 3};
    const ot_device_options options = {.kind = "cpu", .memory_bytes = ARENA_BYTES, .threads = 2};
    const ot_stream_options stream_options = {.kind = OT_STREAM_UPDATE, .name = "update"};
    ot_model *model;
    ot_device *device;
    ot_stream *stream;
    /* Rows of 72, 64 and 712 elements, none of which chunks are multiples of; layers of one to five blocks of a sum. */
    ot_model_config config = tiny_config;
    config.C = 72;
    config.L = 1;
    config.F = 712;
    config.V = 4099;
    assert_int_equal(ot_model_open(&config, &model), OT_OK);
    assert_int_equal(ot_device_open(&options, &device), OT_OK);
    assert_int_equal(ot_stream_open(device, &stream_options, &stream), OT_OK);
    sums whole = {0};
    for (size_t i = 0; i < SIZES; i++) {
        sums out = measure(model, device, stream, blocks[i] * OT_SUM_BLOCK);
        if (i == 0) {
            whole = out;
            continue;
        }
        assert_memory_equal(out.moments, whole.moments, ot_factored_count(model) * sizeof(float));
        assert_memory_equal(out.square_sum, whole.square_sum,
                            model->layer_count * OT_LAYER_TENSORS_MAX * sizeof(double));
        free(out.moments);
        free(out.square_sum);
    }
    const float *moments = whole.moments;
    for (size_t l = 0; l < model->layer_count; l++)
        for (size_t t = 0; t < model->layers[l].tensor_count; t++)
            moments += check_tensor(&model->layers[l].tensors[t], l, moments,
                                    whole.square_sum[l * OT_LAYER_TENSORS_MAX + t]);
    assert_int_equal(moments - whole.moments, ot_factored_count(model));
    free(whole.moments);
    free(whole.square_sum);
    ot_stream_close(stream);
    ot_device_close(device);
    ot_model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(chunks_change_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
