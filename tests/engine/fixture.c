#include "tests/engine/fixture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/random.h"
#include "tests/support/test.h"

enum { ARENA_BYTES = 96 << 20, GUARD_BYTES = 4096, GUARD = 0x5a, DATA_PARTS = 4 };

static void *device_take(fixture *f, size_t bytes)
{
    void *memory = f->arena + f->arena_used;
    f->arena_used += (bytes + 255) / 256 * 256;
    assert_true(f->arena_used <= ARENA_BYTES);
    return memory;
}

static void synchronize(fixture *f)
{
    if (ot_stream_synchronize(f->stream) != OT_OK)
        fail_msg("%s", ot_error_text());
}

static void fill_device(fixture *f, void *dst, int byte, size_t bytes)
{
    void *host = malloc(bytes);
    assert_non_null(host);
    memset(host, byte, bytes);
    ot_copy_h2d(f->stream, dst, host, bytes);
    synchronize(f);
    free(host);
}

/* As the model begins, but with random weights and biases of norms, too. */
static float *random_layer(const ot_model *model, size_t layer)
{
    const ot_layer *l = &model->layers[layer];
    float *values = malloc(l->params * sizeof *values);
    assert_non_null(values);
    ot_model_random(model, layer, 0, l->params, 1, values);
    for (size_t t = 0; t < l->tensor_count; t++) {
        const ot_tensor *tensor = &l->tensors[t];
        for (uint64_t i = 0; !tensor->decay && i < tensor->rows; i++) {
            uint32_t words[4];
            ot_philox(2, tensor->offset + i, layer, words);
            values[tensor->offset + i] += (float)words[0] * 0x1p-33f - 0.25f;
        }
    }
    return values;
}

static void open_device(fixture *f, const fixture_options *options)
{
    ot_device_options device = {
        .kind = "cpu", .memory_bytes = ARENA_BYTES + (8 << 20), .threads = options->threads};
    ot_stream_options stream = {.name = "compute"};
    assert_int_equal(ot_device_open(&device, &f->device), OT_OK);
    assert_int_equal(ot_stream_open(f->device, &stream, &f->stream), OT_OK);
    assert_int_equal(ot_device_arena_open(f->device, "test", ARENA_BYTES, (void **)&f->arena), OT_OK);
}

static void take_memory(fixture *f)
{
    const ot_model *model = f->model;
    size_t size = ot_dtype_bytes(f->compute.dtype), N = f->compute.B * f->compute.T;
    f->weights = calloc(model->layer_count, sizeof *f->weights);
    f->grads = calloc(model->layer_count, sizeof *f->grads);
    f->x = calloc(model->layer_count, sizeof *f->x);
    for (size_t l = 0; l < model->layer_count; l++) {
        f->weights[l] = device_take(f, model->layers[l].params * size);
        f->grads[l] = device_take(f, model->layers[l].params * sizeof(float));
        f->x[l] = device_take(f, N * model->config.C * size);
    }
    uint64_t kept = ot_compute_kept(&f->compute);
    f->kept = calloc(model->layer_count, sizeof *f->kept);
    for (size_t l = 0; l < model->config.L && kept > 0; l++) {
        f->kept[l] = device_take(f, kept + GUARD_BYTES);
        fill_device(f, f->kept[l] + kept, GUARD, GUARD_BYTES);
    }
    f->dx = device_take(f, N * model->config.C * size);
    f->loss_sum = device_take(f, sizeof(double));
    f->data = device_take(f, N * DATA_PARTS * sizeof(int32_t));
    f->compute.workspace_bytes = ot_compute_workspace(&f->compute);
    f->workspace = device_take(f, f->compute.workspace_bytes + GUARD_BYTES);
    fill_device(f, f->workspace + f->compute.workspace_bytes, GUARD, GUARD_BYTES);
}

static void open_rope(fixture *f)
{
    const ot_model_config *c = &f->model->config;
    if (c->family != OT_FAMILY_LLAMA)
        return;
    size_t bytes = ot_rope_table_bytes(c->HD, f->compute.T);
    float *table = malloc(bytes), *copy = device_take(f, bytes);
    assert_non_null(table);
    ot_rope_table(&c->rope, c->HD, f->compute.T, table);
    ot_copy_h2d(f->stream, copy, table, bytes);
    synchronize(f);
    free(table);
    f->compute.rope = copy;
}

fixture *fixture_open(const fixture_options *options)
{
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    if (ot_model_open(&options->config, &f->model) != OT_OK)
        fail_msg("%s", ot_error_text());
    open_device(f, options);
    f->compute = (ot_compute){.model = f->model,
                              .kernels = ot_device_kernels(f->device),
                              .device = f->device,
                              .dtype = options->dtype,
                              .B = options->B,
                              .T = options->T,
                              .loss_chunk = options->loss_chunk,
                              .recompute = options->recompute};
    take_memory(f);
    open_rope(f);
    for (size_t l = 0; l < f->model->layer_count; l++) {
        float *values = random_layer(f->model, l);
        fixture_set_weights(f, l, values);
        free(values);
    }
    fixture_begin(f);
    return f;
}

static void expect_guard(fixture *f, const unsigned char *at)
{
    unsigned char guard[GUARD_BYTES];
    ot_copy_d2h(f->stream, guard, at, sizeof guard);
    synchronize(f);
    for (size_t i = 0; i < sizeof guard; i++)
        assert_int_equal(guard[i], GUARD);
}

void fixture_close(fixture *f)
{
    expect_guard(f, f->workspace + f->compute.workspace_bytes);
    for (size_t l = 0; f->kept[l] != NULL; l++)
        expect_guard(f, f->kept[l] + ot_compute_kept(&f->compute));
    ot_device_close(f->device);
    ot_model_close(f->model);
    free(f->weights);
    free(f->grads);
    free(f->x);
    free(f->kept);
    free(f);
}

void fixture_set_weights(fixture *f, size_t layer, const float *values)
{
    size_t n = f->model->layers[layer].params;
    ot_copy_h2d(f->stream, f->grads[layer], values, n * sizeof *values);
    f->compute.kernels->cast(f->stream, &(ot_cast){.dst_dtype = f->compute.dtype,
                                                   .src_dtype = OT_FP32,
                                                   .n = n,
                                                   .src = f->grads[layer],
                                                   .dst = f->weights[layer]});
    ot_copy_zero(f->stream, f->grads[layer], n * sizeof *values);
    synchronize(f);
}

void fixture_get_grads(fixture *f, size_t layer, float *values)
{
    ot_copy_d2h(f->stream, values, f->grads[layer], f->model->layers[layer].params * sizeof *values);
    synchronize(f);
}

void fixture_begin(fixture *f)
{
    for (size_t l = 0; l < f->model->layer_count; l++)
        ot_copy_zero(f->stream, f->grads[l], f->model->layers[l].params * sizeof(float));
    ot_copy_zero(f->stream, f->loss_sum, sizeof(double));
    f->fresh = 1;
    synchronize(f);
}

static ot_batch upload(fixture *f, const host_batch *batch)
{
    size_t N = f->compute.B * f->compute.T;
    const int32_t *const parts[DATA_PARTS] = {batch->tokens, batch->targets, batch->positions,
                                              batch->doc_start};
    for (size_t i = 0; i < DATA_PARTS; i++)
        ot_copy_h2d(f->stream, f->data + i * N, parts[i], N * sizeof(int32_t));
    synchronize(f);
    return (ot_batch){f->data, f->data + N, f->data + 2 * N, f->data + 3 * N};
}

static void forward(fixture *f, const ot_batch *batch, int keeping)
{
    const ot_compute *c = &f->compute;
    size_t L = f->model->config.L;
    ot_embed_forward(c, f->stream, f->weights[0], batch, f->x[0]);
    for (size_t l = 0; l < L; l++) {
        fill_device(f, f->workspace, 0xff, c->workspace_bytes); /* NaN */
        ot_block_forward(c, f->stream, f->weights[l + 1], batch, f->x[l], f->x[l + 1],
                         keeping ? f->kept[l] : NULL, f->workspace);
    }
    fill_device(f, f->workspace, 0xff, c->workspace_bytes);
}

void fixture_run(fixture *f, const host_batch *host, float grad_scale)
{
    const ot_compute *c = &f->compute;
    const ot_batch batch = upload(f, host);
    size_t L = f->model->config.L;
    forward(f, &batch, 1);
    for (size_t l = 0; f->fresh && l < f->model->layer_count; l++)
        fill_device(f, f->grads[l], 0xff, ot_compute_overwritten(f->model, l) * sizeof(float));
    ot_head(c, f->stream, f->weights[L + 1], f->weights[0], &batch, f->x[L], f->dx, f->grads[L + 1],
            f->grads[0], f->fresh, grad_scale, f->loss_sum, f->workspace);
    for (size_t l = L; l-- > 0;) {
        fill_device(f, f->workspace, 0xff, c->workspace_bytes);
        ot_block_backward(c, f->stream, f->weights[l + 1], &batch, f->x[l], f->dx, f->grads[l + 1], f->fresh,
                          f->kept[l], f->workspace);
    }
    ot_embed_backward(c, f->stream, f->weights[0], &batch, f->dx, f->grads[0], f->workspace);
    f->fresh = 0;
    synchronize(f);
}

void fixture_evaluate(fixture *f, const host_batch *host)
{
    const ot_batch batch = upload(f, host);
    size_t L = f->model->config.L;
    forward(f, &batch, 0);
    ot_head(&f->compute, f->stream, f->weights[L + 1], f->weights[0], &batch, f->x[L], NULL, NULL, NULL, 0, 0,
            f->loss_sum, f->workspace);
    synchronize(f);
}

double fixture_loss(fixture *f)
{
    double loss;
    ot_copy_d2h(f->stream, &loss, f->loss_sum, sizeof loss);
    synchronize(f);
    return loss;
}

float *fixture_all_grads(fixture *f, size_t *count)
{
    size_t total = 0, at = 0;
    for (size_t l = 0; l < f->model->layer_count; l++)
        total += f->model->layers[l].params;
    float *values = calloc(total, sizeof *values);
    assert_non_null(values);
    for (size_t l = 0; l < f->model->layer_count; l++) {
        fixture_get_grads(f, l, values + at);
        at += f->model->layers[l].params;
    }
    *count = total;
    return values;
}

float *fixture_logits(fixture *f)
{
    size_t N = f->compute.B * f->compute.T, L = f->model->config.L, n = N * f->model->config.V,
           used = f->arena_used;
    float *device = device_take(f, n * sizeof *device), *host = malloc(n * sizeof *host);
    assert_non_null(host);
    ot_head_logits(&f->compute, f->stream, f->weights[L + 1], f->weights[0], f->x[L], N, device,
                   f->workspace);
    ot_copy_d2h(f->stream, host, device, n * sizeof *host);
    synchronize(f);
    f->arena_used = used;
    return host;
}

double relative_distance(const float *a, const float *b, size_t n)
{
    double difference = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        difference += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        norm += (double)b[i] * (double)b[i];
    }
    return sqrt(difference / (norm > 0 ? norm : 1));
}
