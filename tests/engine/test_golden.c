/* Whole tiny models against what PyTorch computes in FP64 (tests/golden/make.py): logits, losses, gradients,
 * and weights after five clipped steps of AdamW. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/trainer.h"
#include "tests/engine/fixture.h"
#include "tests/support/golden.h"
#include "tests/support/test.h"

static const char *const names[] = {"llama2", "llama31", "mistral", "qwen2", "qwen3", "gpt2"};
enum { MODELS = sizeof names / sizeof names[0] };

typedef struct trial {
    golden *g;
    fixture *f;
    double tolerance, grad_tolerance;
    float loss_scale; /* a power of two, so that it is taken off again exactly */
    const char *name;
    float **masters; /* each layer's FP32 weights */
} trial;

static size_t size_of(const golden *g, const char *key)
{
    return (size_t)golden_number(g, key);
}

static ot_rope_scaling rope_of(const golden *g)
{
    ot_rope_scaling rope = {.kind = OT_ROPE_PLAIN, .theta = golden_number(g, "theta")};
    if (strcmp(golden_text(g, "rope.kind"), "llama3") == 0)
        rope = (ot_rope_scaling){.kind = OT_ROPE_LLAMA3,
                                 .theta = rope.theta,
                                 .factor = golden_number(g, "rope.factor"),
                                 .low_freq_factor = golden_number(g, "rope.low"),
                                 .high_freq_factor = golden_number(g, "rope.high"),
                                 .original_positions = golden_number(g, "rope.original")};
    return rope;
}

static ot_model_config config_of(const golden *g)
{
    int is_gpt2 = strcmp(golden_text(g, "family"), "gpt2") == 0;
    ot_model_config config = {
        .family = is_gpt2 ? OT_FAMILY_GPT2 : OT_FAMILY_LLAMA,
        .C = size_of(g, "C"),
        .L = size_of(g, "L"),
        .NH = size_of(g, "NH"),
        .NKV = size_of(g, "NKV"),
        .HD = size_of(g, "head_dim"),
        .F = size_of(g, "ffn"),
        .V = size_of(g, "V"),
        .positions = is_gpt2 ? golden_shape(g, "initial.wpe.weight", 0) : size_of(g, "T"),
        .norm_eps = (float)golden_number(g, "eps"),
        .window = size_of(g, "window"),
        .tied = (int)golden_number(g, "tied"),
        .bos = -1,
        .eos = -1,
    };
    if (!is_gpt2) {
        config.rope = rope_of(g);
        config.qkv_bias = (int)golden_number(g, "qkv_bias");
        config.qk_norm = (int)golden_number(g, "qk_norm");
    }
    return config;
}

/* "initial." and the tensor's name, for GPT-2 without the prefix that the file lacks. */
static const char *golden_tensor(const char *kind, const ot_tensor *tensor)
{
    static char name[256];
    const char *prefix = "transformer.";
    int skip = strncmp(tensor->name, prefix, strlen(prefix)) == 0 ? (int)strlen(prefix) : 0;
    snprintf(name, sizeof name, "%s.%s", kind, tensor->name + skip);
    return name;
}

/* Where element i of the file's tensor is in ours. */
static size_t place_of(const ot_tensor *tensor, size_t i)
{
    return tensor->transposed ? i % tensor->rows * tensor->cols + i / tensor->rows : i;
}

static void load_initial(trial *t)
{
    const ot_model *model = t->f->model;
    for (size_t l = 0; l < model->layer_count; l++) {
        const ot_layer *layer = &model->layers[l];
        t->masters[l] = calloc(layer->params, sizeof(float));
        assert_non_null(t->masters[l]);
        for (size_t k = 0; k < layer->tensor_count; k++) {
            const ot_tensor *tensor = &layer->tensors[k];
            const char *name = golden_tensor("initial", tensor);
            size_t n = tensor->rows * tensor->cols;
            assert_int_equal(golden_count(t->g, name), n);
            double *values = golden_doubles(t->g, name);
            for (size_t i = 0; i < n; i++)
                t->masters[l][tensor->offset + place_of(tensor, i)] = (float)values[i];
        }
        fixture_set_weights(t->f, l, t->masters[l]);
    }
}

/* Relative to a tensor's norm, or to the number. A gradient in 16 bits has been rounded a dozen times on its
 * way, which leaves it up to five units in the last place away. */
static trial open_trial(const char *name, ot_dtype dtype)
{
    trial t = {.g = golden_open(name), .name = name};
    t.tolerance = dtype == OT_FP32 ? 1e-5 : dtype == OT_BF16 ? 1e-2 : 2e-3;
    t.grad_tolerance = dtype == OT_FP32 ? 1e-5 : dtype == OT_BF16 ? 2e-2 : 3e-3;
    t.loss_scale = dtype == OT_FP16 ? 1024 : 1;
    fixture_options options = {.config = config_of(t.g),
                               .dtype = dtype,
                               .B = size_of(t.g, "B"),
                               .T = size_of(t.g, "T"),
                               .loss_chunk = 10,
                               .threads = 2};
    t.f = fixture_open(&options);
    t.masters = calloc(t.f->model->layer_count, sizeof *t.masters);
    assert_non_null(t.masters);
    load_initial(&t);
    return t;
}

static void close_trial(trial *t)
{
    for (size_t l = 0; l < t->f->model->layer_count; l++)
        free(t->masters[l]);
    free(t->masters);
    fixture_close(t->f);
    golden_close(t->g);
}

/* ||a - expected|| <= tolerance ||expected||, over the elements that the file kept. `at` tells where they are
 * in `a`. */
static void expect_tensor(const trial *t, const char *name, const float *a, size_t n, const ot_tensor *tensor,
                          double tolerance)
{
    size_t kept = golden_count(t->g, name), stride = kept == n ? 1 : size_of(t->g, "stride");
    assert_int_equal(kept, (n + stride - 1) / stride);
    const double *expected = golden_doubles(t->g, name);
    double difference = 0, norm = 0;
    for (size_t i = 0; i < kept; i++) {
        size_t place = tensor != NULL ? place_of(tensor, i * stride) : i * stride;
        double d = (double)a[place] - expected[i];
        difference += d * d;
        norm += expected[i] * expected[i];
    }
    if (!(sqrt(difference) <= tolerance * sqrt(norm)))
        fail_msg("%s: %s is %.3g of its norm away, expected %.3g", t->name, name, sqrt(difference / norm),
                 tolerance);
}

static void expect_number(const trial *t, const char *what, double value, double expected)
{
    if (!(fabs(value - expected) <= t->tolerance * fabs(expected)))
        fail_msg("%s: %s %.9g, expected %.9g", t->name, what, value, expected);
}

/* ---- One step ---- */

/* Trained tokens of a step; runs its micro-batches. */
static size_t run_step(const trial *t, size_t step)
{
    size_t N = t->f->compute.B * t->f->compute.T, micro = size_of(t->g, "micro"), trained = 0;
    const int32_t *tokens = golden_integers(t->g, "tokens"), *targets = golden_integers(t->g, "targets");
    const int32_t *positions = golden_integers(t->g, "positions"),
                  *starts = golden_integers(t->g, "doc_start");
    tokens += step * micro * N;
    targets += step * micro * N;
    for (size_t i = 0; i < micro * N; i++)
        trained += targets[i] >= 0;
    fixture_begin(t->f);
    for (size_t m = 0; m < micro; m++) {
        host_batch batch = {tokens + m * N, targets + m * N, positions, starts};
        fixture_run(t->f, &batch, t->loss_scale / (float)trained);
        if (step == 0 && m == 0) {
            float *logits = fixture_logits(t->f);
            expect_tensor(t, "logits", logits, N * t->f->model->config.V, NULL, t->tolerance);
            free(logits);
        }
    }
    return trained;
}

/* The norm of all gradients; those of the first step are compared. */
static double check_grads(const trial *t, size_t step)
{
    const ot_model *model = t->f->model;
    double square = 0;
    for (size_t l = 0; l < model->layer_count; l++) {
        const ot_layer *layer = &model->layers[l];
        float *grads = malloc(layer->params * sizeof *grads);
        assert_non_null(grads);
        fixture_get_grads(t->f, l, grads);
        for (size_t i = 0; i < layer->params; i++)
            grads[i] /= t->loss_scale;
        for (size_t i = 0; i < layer->params; i++)
            square += (double)grads[i] * (double)grads[i];
        for (size_t k = 0; step == 0 && k < layer->tensor_count; k++) {
            const ot_tensor *tensor = &layer->tensors[k];
            expect_tensor(t, golden_tensor("grad", tensor), grads + tensor->offset,
                          tensor->rows * tensor->cols, tensor, t->grad_tolerance);
        }
        free(grads);
    }
    return sqrt(square);
}

static void check_first_step(const char *name, ot_dtype dtype)
{
    trial t = open_trial(name, dtype);
    size_t trained = run_step(&t, 0);
    expect_number(&t, "loss", fixture_loss(t.f) / (double)trained, golden_doubles(t.g, "losses")[0]);
    expect_number(&t, "gradient norm", check_grads(&t, 0), golden_doubles(t.g, "norms")[0]);
    close_trial(&t);
}

static void test_first_step_in_fp32(void **state)
{
    (void)state;
    for (size_t i = 0; i < MODELS; i++)
        check_first_step(names[i], OT_FP32);
}

static void test_first_step_in_bf16(void **state)
{
    (void)state;
    for (size_t i = 0; i < MODELS; i++)
        check_first_step(names[i], OT_BF16);
}

static void test_first_step_in_fp16(void **state)
{
    (void)state;
    for (size_t i = 0; i < MODELS; i++)
        check_first_step(names[i], OT_FP16);
}

/* ---- Logits by the trainer ---- */

static ot_status fill_initial(void *context, const ot_chunk_values *chunk)
{
    const trial *t = context;
    memcpy(chunk->master, t->masters[chunk->layer] + chunk->first, chunk->count * sizeof(float));
    return OT_OK;
}

/* From the file's model, which the source gives. */
static ot_training training_of(const trial *t, const ot_source *source)
{
    const ot_compute *c = &t->f->compute;
    return (ot_training){.model = t->f->model,
                         .B = c->B,
                         .T = c->T,
                         .M = 1,
                         .dtype = c->dtype,
                         .grad_dtype = c->dtype,
                         .source = source,
                         .overlap = 1,
                         .budget = {UINT64_C(1) << 28, UINT64_C(1) << 28, 0},
                         .device = "cpu",
                         .threads = 2};
}

static ot_trainer *open_trainer(const ot_training *training)
{
    ot_trainer *trainer;
    if (ot_trainer_open(training, &trainer) != OT_OK)
        fail_msg("%s", ot_error_text());
    return trainer;
}

/* Micro-batches from number `first` of the file on. Returns the trained tokens. */
static uint64_t fill_data(const trial *t, ot_trainer *trainer, size_t first, size_t count)
{
    size_t N = t->f->compute.B * t->f->compute.T;
    uint64_t trained = 0;
    for (size_t m = 0; m < count; m++) {
        const int32_t *const parts[] = {golden_integers(t->g, "tokens") + (first + m) * N,
                                        golden_integers(t->g, "targets") + (first + m) * N,
                                        golden_integers(t->g, "positions"),
                                        golden_integers(t->g, "doc_start")};
        for (size_t i = 0; i < 4; i++)
            memcpy(ot_trainer_data(trainer) + (4 * m + i) * N, parts[i], N * sizeof(int32_t));
        for (size_t i = 0; i < N; i++)
            trained += parts[1][i] >= 0;
    }
    return trained;
}

/* A row at a time, the logits of all rows of the first micro-batch. */
static void check_logits(const trial *t, int inference, ot_tier weights)
{
    const ot_compute *c = &t->f->compute;
    const ot_source source = {fill_initial, (void *)(uintptr_t)t};
    size_t N = c->B * c->T, V = t->f->model->config.V;
    ot_training training = training_of(t, &source);
    training.inference = inference;
    training.weights = (ot_placement){.tier = weights, .share = 1};
    ot_trainer *trainer = open_trainer(&training);
    fill_data(t, trainer, 0, 1);
    float *logits = calloc(N * V, sizeof *logits);
    assert_non_null(logits);
    for (size_t row = N; row-- > 0;)
        assert_int_equal(ot_trainer_logits(trainer, row / c->T, row % c->T, logits + row * V), OT_OK);
    expect_tensor(t, "logits", logits, N * V, NULL, t->tolerance);
    double loss;
    assert_int_equal(ot_trainer_evaluate(trainer, 1, &loss), OT_OK); /* evaluation is as it was */
    assert_true(loss > 0);
    ot_trainer_close(trainer);
    free(logits);
}

static void test_logits_by_the_trainer(void **state)
{
    (void)state;
    for (size_t i = 0; i < MODELS; i++)
        for (int sixteen = 0; sixteen < 2; sixteen++) {
            trial t = open_trial(names[i], sixteen ? OT_BF16 : OT_FP32);
            check_logits(&t, 1, OT_TIER_DEVICE);
            check_logits(&t, 1, OT_TIER_HOST);
            check_logits(&t, 0, OT_TIER_HOST);
            close_trial(&t);
        }
}

/* ---- Training ---- */

typedef struct moments {
    float *first, *second;
} moments;

/* AdamW by the kernel, the decayed part of each layer and the rest in turn, on the device's copies. */
static void update(const trial *t, size_t step, double factor, moments *moments_of)
{
    const ot_model *model = t->f->model;
    double beta1 = golden_number(t->g, "beta1"), beta2 = golden_number(t->g, "beta2"), k = (double)(step + 1);
    const ot_update_step at = {.grad_scale = (float)factor,
                               .lr = (float)golden_number(t->g, "lr"),
                               .bias1 = (float)(1 - pow(beta1, k)),
                               .bias2 = (float)(1 - pow(beta2, k)),
                               .number = step + 1};
    for (size_t l = 0; l < model->layer_count; l++) {
        const ot_layer *layer = &model->layers[l];
        for (int decayed = 0; decayed <= 1; decayed++) {
            size_t first = decayed ? 0 : layer->undecayed, end = decayed ? layer->undecayed : layer->params;
            t->f->compute.kernels->update(
                t->f->stream,
                &(ot_update){.kind = OT_OPTIMIZER_ADAMW,
                             .n = end - first,
                             .beta1 = (float)beta1,
                             .beta2 = (float)beta2,
                             .eps = (float)golden_number(t->g, "eps_adam"),
                             .weight_decay = decayed ? (float)golden_number(t->g, "weight_decay") : 0,
                             .step = &at,
                             .grad_dtype = OT_FP32,
                             .grad = t->f->grads[l] + first,
                             .master_format = OT_MASTER_FP32,
                             .master = (float *)t->f->weights[l] + first,
                             .weight_dtype = OT_FP32,
                             .moment1_format = OT_FP32,
                             .moment2_format = OT_FP32,
                             .moment1 = moments_of[l].first + first,
                             .moment2 = moments_of[l].second + first});
        }
    }
    assert_int_equal(ot_stream_synchronize(t->f->stream), OT_OK);
}

static void check_weights(const trial *t)
{
    const ot_model *model = t->f->model;
    for (size_t l = 0; l < model->layer_count; l++) {
        const ot_layer *layer = &model->layers[l];
        float *weights = t->masters[l];
        ot_copy_d2h(t->f->stream, weights, t->f->weights[l], layer->params * sizeof *weights);
        assert_int_equal(ot_stream_synchronize(t->f->stream), OT_OK);
        for (size_t k = 0; k < layer->tensor_count; k++) {
            const ot_tensor *tensor = &layer->tensors[k];
            expect_tensor(t, golden_tensor("after", tensor), weights + tensor->offset,
                          tensor->rows * tensor->cols, tensor, t->tolerance);
        }
        uint64_t end = 0;
        for (size_t k = 0; k <= layer->tensor_count; k++) {
            uint64_t next = k < layer->tensor_count ? layer->tensors[k].offset : layer->params;
            for (; end < next; end++)
                assert_true(weights[end] == 0); /* padding stays zero */
            if (k < layer->tensor_count)
                end += (uint64_t)layer->tensors[k].rows * layer->tensors[k].cols;
        }
    }
}

static void train(const char *name)
{
    trial t = open_trial(name, OT_FP32);
    size_t layers = t.f->model->layer_count;
    moments *moments_of = calloc(layers, sizeof *moments_of);
    assert_non_null(moments_of);
    for (size_t l = 0; l < layers; l++) {
        moments_of[l].first = calloc(t.f->model->layers[l].params, sizeof(float));
        moments_of[l].second = calloc(t.f->model->layers[l].params, sizeof(float));
    }
    for (size_t step = 0; step < size_of(t.g, "steps"); step++) {
        size_t trained = run_step(&t, step);
        expect_number(&t, "loss", fixture_loss(t.f) / (double)trained, golden_doubles(t.g, "losses")[step]);
        double norm = check_grads(&t, step);
        expect_number(&t, "gradient norm", norm, golden_doubles(t.g, "norms")[step]);
        update(&t, step, fmin(1, golden_number(t.g, "clip") / (norm + 1e-6)), moments_of);
    }
    check_weights(&t);
    for (size_t l = 0; l < layers; l++) {
        free(moments_of[l].first);
        free(moments_of[l].second);
    }
    free(moments_of);
    close_trial(&t);
}

static void test_five_steps_in_fp32(void **state)
{
    (void)state;
    for (size_t i = 0; i < MODELS; i++)
        train(names[i]);
}

/* ---- Training with Adafactor, by the trainer ---- */

static ot_status take_masters(void *context, const ot_chunk_values *chunk)
{
    const trial *t = context;
    memcpy(t->masters[chunk->layer] + chunk->first, chunk->master, chunk->count * sizeof(float));
    return OT_OK;
}

/* The gradient of GPT-2's biases of keys is 0: they change no difference of two scores. What is left of it is rounding, which
 * a second moment of its own size makes steps of. */
static int is_noise(const ot_tensor *tensor)
{
    const char *end = "attn.c_attn.bias";
    size_t length = strlen(tensor->name), tail = strlen(end);
    return length >= tail && strcmp(tensor->name + length - tail, end) == 0;
}

static void train_with_adafactor(const char *name)
{
    trial t = open_trial(name, OT_FP32);
    trial after = t;
    after.g = golden_open("adafactor");
    /* A vector's elements have a second moment each: small gradients step as far as large ones, and so does their rounding. */
    after.tolerance = 10 * t.tolerance;
    const ot_source source = {fill_initial, &t};
    const ot_sink sink = {take_masters, &t};
    ot_training training = training_of(&t, &source);
    training.M = size_of(t.g, "micro");
    training.optimizer = OT_OPTIMIZER_ADAFACTOR;
    training.weight_decay = (float)golden_number(t.g, "weight_decay");
    training.max_grad_norm = golden_number(t.g, "clip");
    ot_trainer *trainer = open_trainer(&training);
    char kind[64];
    for (size_t step = 0; step < size_of(t.g, "steps"); step++) {
        uint64_t trained = fill_data(&t, trainer, step * training.M, training.M);
        ot_step_result result;
        assert_int_equal(ot_trainer_step(trainer, golden_number(t.g, "lr"), trained, &result), OT_OK);
        snprintf(kind, sizeof kind, "%s.losses", name);
        expect_number(&after, "loss", result.loss, golden_doubles(after.g, kind)[step]);
        snprintf(kind, sizeof kind, "%s.norms", name);
        expect_number(&after, "gradient norm", result.grad_norm, golden_doubles(after.g, kind)[step]);
    }
    assert_int_equal(ot_trainer_save(trainer, &sink), OT_OK);
    snprintf(kind, sizeof kind, "%s.after", name);
    for (size_t l = 0; l < t.f->model->layer_count; l++)
        for (size_t k = 0; k < t.f->model->layers[l].tensor_count; k++) {
            const ot_tensor *tensor = &t.f->model->layers[l].tensors[k];
            double tolerance = after.tolerance * (tensor->cols == 1 ? 10 : 1);
            if (!is_noise(tensor))
                expect_tensor(&after, golden_tensor(kind, tensor), t.masters[l] + tensor->offset,
                              tensor->rows * tensor->cols, tensor, tolerance);
        }
    ot_trainer_close(trainer);
    golden_close(after.g);
    close_trial(&t);
}

static void test_five_steps_of_adafactor(void **state)
{
    (void)state;
    train_with_adafactor("llama2");
    train_with_adafactor("qwen2");
    train_with_adafactor("gpt2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_first_step_in_fp32), cmocka_unit_test(test_first_step_in_bf16),
        cmocka_unit_test(test_first_step_in_fp16), cmocka_unit_test(test_logits_by_the_trainer),
        cmocka_unit_test(test_five_steps_in_fp32), cmocka_unit_test(test_five_steps_of_adafactor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
