/* The computation of whole models against itself: finite differences, micro-batches, packed documents,
 * threads, loss chunks. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/random.h"
#include "tests/engine/fixture.h"
#include "tests/support/test.h"

enum { T = 20, SEQUENCES = 4, V = 67, TOKENS = SEQUENCES * T };

/* ---- Models and data ---- */

static const ot_model_config llama = {
    .family = OT_FAMILY_LLAMA,
    .C = 24,
    .L = 2,
    .NH = 6,
    .NKV = 2,
    .HD = 8,
    .F = 43, /* with padding between matrices */
    .V = V,
    .positions = T,
    .norm_eps = 1e-5f,
    .rope = {.kind = OT_ROPE_LINEAR, .theta = 10000, .factor = 2},
    .window = 9,
    .qkv_bias = 1,
    .qk_norm = 1,
    .bos = -1,
    .eos = -1,
    .init_std = 0.15,
};

static const ot_model_config tied = {
    .family = OT_FAMILY_LLAMA,
    .C = 32,
    .L = 2,
    .NH = 4,
    .NKV = 4,
    .HD = 8,
    .F = 48,
    .V = V,
    .positions = T,
    .norm_eps = 1e-6f,
    .rope = {.kind = OT_ROPE_PLAIN, .theta = 10000},
    .tied = 1,
    .bos = -1,
    .eos = -1,
    .init_std = 0.15,
};

static const ot_model_config gpt2 = {
    .family = OT_FAMILY_GPT2,
    .C = 32,
    .L = 2,
    .NH = 4,
    .NKV = 4,
    .HD = 8,
    .F = 128,
    .V = V,
    .positions = T,
    .norm_eps = 1e-5f,
    .gelu = OT_GELU_ERF,
    .bos = -1,
    .eos = -1,
    .init_std = 0.15,
};

static const struct {
    const char *name;
    const ot_model_config *config;
} models[] = {{"llama", &llama}, {"tied llama", &tied}, {"gpt2", &gpt2}};
enum { MODELS = sizeof models / sizeof models[0] };

static int32_t tokens[TOKENS], targets[TOKENS], positions[TOKENS], starts[TOKENS];

/* Random tokens, a fifth of the targets masked, one document a sequence. */
static int make_data(void **state)
{
    (void)state;
    for (int i = 0; i < TOKENS; i++) {
        uint32_t words[4];
        ot_philox(3, (uint64_t)i, 0, words);
        tokens[i] = (int32_t)(words[0] % V);
        targets[i] = words[1] % 5 == 0 ? -1 : (int32_t)(words[2] % V);
        positions[i] = i % T;
        starts[i] = 0;
    }
    return 0;
}

static host_batch batch_at(size_t token)
{
    return (host_batch){tokens + token, targets + token, positions + token, starts + token};
}

static fixture_options options_of(size_t model, ot_dtype dtype, size_t B)
{
    return (fixture_options){
        .config = *models[model].config, .dtype = dtype, .B = B, .T = T, .loss_chunk = B * T, .threads = 2};
}

/* Loss and gradients of all sequences; the gradients are freed by the caller. */
typedef struct outcome {
    double loss;
    float *grads;
    size_t count;
} outcome;

static outcome run_all(fixture_options options)
{
    fixture *f = fixture_open(&options);
    size_t N = options.B * options.T;
    for (size_t at = 0; at < TOKENS; at += N) {
        host_batch batch = batch_at(at);
        fixture_run(f, &batch, 0.25f);
    }
    outcome out = {.loss = fixture_loss(f)};
    out.grads = fixture_all_grads(f, &out.count);
    fixture_close(f);
    return out;
}

/* ---- The gradient is that of the loss ---- */

/* Moves layer `l` by `step` times its gradient, and gives the loss there. */
static double loss_along(fixture *f, size_t l, const float *start, const float *grads, double step)
{
    size_t n = f->model->layers[l].params;
    float *moved = malloc(n * sizeof *moved);
    assert_non_null(moved);
    for (size_t i = 0; i < n; i++)
        moved[i] = (float)((double)start[i] + step * (double)grads[i]);
    fixture_set_weights(f, l, moved);
    fixture_begin(f);
    host_batch batch = batch_at(0);
    fixture_evaluate(f, &batch);
    free(moved);
    return fixture_loss(f);
}

static void read_weights(fixture *f, size_t l, float *values)
{
    ot_copy_d2h(f->stream, values, f->weights[l], f->model->layers[l].params * sizeof *values);
    assert_int_equal(ot_stream_synchronize(f->stream), OT_OK);
}

/* (loss(w + h g) - loss(w - h g)) / 2h = |g|^2, for the gradient of every layer and of every tensor in it. */
static void check_tensor(fixture *f, size_t l, const ot_tensor *tensor, const float *all, const float *start)
{
    size_t n = f->model->layers[l].params;
    float *grads = calloc(n, sizeof *grads);
    assert_non_null(grads);
    memcpy(grads + tensor->offset, all + tensor->offset, (size_t)tensor->rows * tensor->cols * sizeof *grads);
    double square = 0;
    for (size_t i = 0; i < n; i++)
        square += (double)grads[i] * (double)grads[i];
    /* The loss is a sum over tokens; so it changes by about 0.2 each way, well above rounding, and the cubic
     * term is taken out by a second difference at twice the distance. */
    double h = 0.2 / square;
    double near = loss_along(f, l, start, grads, h) - loss_along(f, l, start, grads, -h);
    double far = loss_along(f, l, start, grads, 2 * h) - loss_along(f, l, start, grads, -2 * h);
    double slope = (8 * near - far) / (12 * h);
    if (square < 1e-12 || fabs(slope / square - 1) > 2e-3)
        fail_msg("%s: slope %g along a gradient of square %g", tensor->name, slope, square);
    fixture_set_weights(f, l, start);
    free(grads);
}

static void test_gradients_are_slopes_of_the_loss(void **state)
{
    (void)state;
    for (size_t m = 0; m < MODELS; m++) {
        fixture_options options = options_of(m, OT_FP32, SEQUENCES);
        fixture *f = fixture_open(&options);
        host_batch batch = batch_at(0);
        fixture_run(f, &batch, 1);
        size_t count, at = 0;
        float *grads = fixture_all_grads(f, &count);
        for (size_t l = 0; l < f->model->layer_count; l++) {
            const ot_layer *layer = &f->model->layers[l];
            float *start = malloc(layer->params * sizeof *start);
            assert_non_null(start);
            read_weights(f, l, start);
            for (size_t t = 0; t < layer->tensor_count; t++)
                check_tensor(f, l, &layer->tensors[t], grads + at, start);
            free(start);
            at += layer->params;
        }
        free(grads);
        fixture_close(f);
    }
}

/* ---- What must not change the numbers ---- */

static void expect_near(const outcome *a, const outcome *b, double tolerance, const char *what)
{
    double distance = relative_distance(a->grads, b->grads, b->count);
    if (fabs(a->loss - b->loss) > tolerance * fabs(b->loss) || distance > tolerance)
        fail_msg("%s: losses %.9g and %.9g, gradients %g apart", what, a->loss, b->loss, distance);
}

static void test_micro_batches_give_the_same(void **state)
{
    (void)state;
    for (size_t m = 0; m < MODELS; m++) {
        outcome whole = run_all(options_of(m, OT_FP32, 4)), halves = run_all(options_of(m, OT_FP32, 2)),
                single = run_all(options_of(m, OT_FP32, 1));
        expect_near(&halves, &whole, 1e-6, "2x2 against 4x1");
        expect_near(&single, &whole, 1e-6, "1x4 against 4x1");
        free(whole.grads);
        free(halves.grads);
        free(single.grads);
    }
}

static void test_loss_chunks_give_the_same(void **state)
{
    (void)state;
    static const size_t chunks[] = {1, 7, 64};
    for (size_t m = 0; m < MODELS; m++) {
        fixture_options options = options_of(m, OT_FP32, SEQUENCES);
        outcome whole = run_all(options);
        for (size_t i = 0; i < sizeof chunks / sizeof chunks[0]; i++) {
            options.loss_chunk = chunks[i];
            outcome cut = run_all(options);
            expect_near(&cut, &whole, 1e-6, "loss chunks");
            free(cut.grads);
        }
        free(whole.grads);
    }
}

static void test_threads_give_the_same_bytes(void **state)
{
    (void)state;
    for (size_t m = 0; m < MODELS; m++)
        for (ot_dtype dtype = OT_FP32; dtype <= OT_FP16; dtype++) {
            fixture_options options = options_of(m, dtype, 2);
            outcome two = run_all(options);
            options.threads = 1;
            outcome one = run_all(options);
            assert_true(one.loss == two.loss && isfinite(one.loss));
            assert_memory_equal(one.grads, two.grads, one.count * sizeof(float));
            free(one.grads);
            free(two.grads);
        }
}

/* Documents of 9 and 11 tokens in a sequence of 20, and the same as sequences of their own. */
static void test_packed_documents_are_separate_sequences(void **state)
{
    (void)state;
    static const size_t lengths[] = {9, 11};
    for (size_t m = 0; m < MODELS; m++) {
        int32_t at[T], start[T];
        for (int32_t i = 0; i < T; i++) {
            start[i] = i < 9 ? 0 : 9;
            at[i] = i - start[i];
        }
        fixture_options options = options_of(m, OT_FP32, 1);
        fixture *packed = fixture_open(&options);
        host_batch batch = {tokens, targets, at, start};
        fixture_run(packed, &batch, 0.25f);
        outcome expected = {0}, together = {.loss = fixture_loss(packed)};
        together.grads = fixture_all_grads(packed, &together.count);
        fixture_close(packed);
        for (size_t d = 0; d < 2; d++) {
            options.T = lengths[d];
            fixture *single = fixture_open(&options);
            size_t first = d * lengths[0];
            batch = (host_batch){tokens + first, targets + first, positions, starts};
            fixture_run(single, &batch, 0.25f);
            float *grads = fixture_all_grads(single, &expected.count);
            expected.loss += fixture_loss(single);
            for (size_t i = 0; d > 0 && i < expected.count; i++)
                grads[i] += expected.grads[i];
            free(expected.grads);
            expected.grads = grads;
            fixture_close(single);
        }
        expect_near(&together, &expected, 1e-6, "packed against separate");
        free(together.grads);
        free(expected.grads);
    }
}

/* Both formulas of GELU are within 5e-4 of each other (Hendrycks & Gimpel 2016), and are not the same. */
static void test_gelu_is_the_one_asked_for(void **state)
{
    (void)state;
    fixture_options options = options_of(2, OT_FP32, SEQUENCES);
    outcome erf_loss = run_all(options);
    options.config.gelu = OT_GELU_TANH;
    outcome tanh_loss = run_all(options);
    double difference = fabs(erf_loss.loss / tanh_loss.loss - 1);
    assert_true(difference > 1e-7 && difference < 1e-3);
    free(erf_loss.grads);
    free(tanh_loss.grads);
}

/* ---- Recompute ---- */

/* Whatever is kept, all bytes are the same, and as many are kept as the tensors that backward reads have. */
static void test_recompute_changes_nothing(void **state)
{
    (void)state;
    static const ot_dtype dtypes[] = {OT_FP32, OT_BF16};
    for (size_t m = 0; m < MODELS; m++)
        for (size_t d = 0; d < 2; d++) {
            fixture_options options = options_of(m, dtypes[d], SEQUENCES / 2);
            outcome full = run_all(options);
            for (int mode = OT_RECOMPUTE_SELECTIVE; mode <= OT_RECOMPUTE_NONE; mode++) {
                options.recompute = (ot_recompute)mode;
                outcome other = run_all(options);
                assert_true(other.loss == full.loss);
                assert_memory_equal(other.grads, full.grads, full.count * sizeof *full.grads);
                free(other.grads);
            }
            free(full.grads);
        }
}

static uint64_t kept_row(const ot_model_config *config, ot_recompute recompute)
{
    ot_model *model;
    assert_int_equal(ot_model_open(config, &model), OT_OK);
    const ot_compute compute = {
        .model = model, .dtype = OT_BF16, .B = 1, .T = 2048, .loss_chunk = 64, .recompute = recompute};
    uint64_t bytes = ot_compute_kept(&compute);
    ot_model_close(model);
    assert_int_equal(bytes % 2048, 0);
    return bytes / 2048;
}

static void test_what_is_kept(void **state)
{
    (void)state;
    ot_model_config config;
    assert_int_equal(ot_model_preset("7b", &config), OT_OK);
    const uint64_t C = 4096, F = 11008, lse = 4 * 32, stats = 2 * 2 * 4;
    assert_int_equal(kept_row(&config, OT_RECOMPUTE_FULL), 0);
    /* q, k, v, the attention's output, y, gate and up; then both norms' outputs and their product, too. */
    assert_int_equal(kept_row(&config, OT_RECOMPUTE_SELECTIVE), 2 * (5 * C + 2 * F) + lse);
    assert_int_equal(kept_row(&config, OT_RECOMPUTE_NONE), 2 * (7 * C + 3 * F) + lse + stats);
    config.qk_norm = 1; /* q, k and v before and after their norms, or before them alone */
    assert_int_equal(kept_row(&config, OT_RECOMPUTE_SELECTIVE), 2 * (5 * C + 2 * F) + lse);
    assert_int_equal(kept_row(&config, OT_RECOMPUTE_NONE),
                     2 * (10 * C + 3 * F) + lse + stats + 2 * 2 * 4 * 32);
}

/* ---- The ends ---- */

static void test_evaluation_gives_the_loss_alone(void **state)
{
    (void)state;
    for (size_t m = 0; m < MODELS; m++) {
        fixture_options options = options_of(m, OT_BF16, SEQUENCES);
        options.loss_chunk = 7;
        outcome trained = run_all(options);
        fixture *f = fixture_open(&options);
        host_batch batch = batch_at(0);
        fixture_evaluate(f, &batch);
        assert_true(fixture_loss(f) == trained.loss);
        size_t count;
        float *grads = fixture_all_grads(f, &count);
        for (size_t i = 0; i < count; i++)
            assert_true(grads[i] == 0);
        free(grads);
        free(trained.grads);
        fixture_close(f);
    }
}

static void test_no_trained_token_gives_nothing(void **state)
{
    (void)state;
    int32_t masked[TOKENS];
    memset(masked, 0xff, sizeof masked);
    fixture_options options = options_of(0, OT_FP32, SEQUENCES);
    fixture *f = fixture_open(&options);
    host_batch batch = {tokens, masked, positions, starts};
    fixture_run(f, &batch, 1);
    assert_true(fixture_loss(f) == 0);
    size_t count;
    float *grads = fixture_all_grads(f, &count);
    for (size_t i = 0; i < count; i++)
        assert_true(grads[i] == 0);
    free(grads);
    fixture_close(f);
}

/* The head's gradient may take the place of its input. */
static void test_head_in_place(void **state)
{
    (void)state;
    fixture_options options = options_of(0, OT_FP32, SEQUENCES);
    options.loss_chunk = 33;
    fixture *f = fixture_open(&options);
    host_batch batch = batch_at(0);
    fixture_run(f, &batch, 1); /* leaves the last boundary in x[L] and the data in place */
    size_t L = f->model->config.L, n = TOKENS * f->model->config.C, bytes = n * sizeof(float);
    const ot_batch data = {f->data, f->data + TOKENS, f->data + 2 * TOKENS, f->data + 3 * TOKENS};
    float *apart = malloc(bytes), *in_place = malloc(bytes);
    assert_non_null(apart);
    assert_non_null(in_place);
    for (int i = 0; i < 2; i++) {
        void *dx = i == 0 ? f->dx : f->x[L];
        ot_head(&f->compute, f->stream, f->weights[L + 1], NULL, &data, f->x[L], dx, f->grads[L + 1], NULL, 0,
                1, f->loss_sum, f->workspace);
        ot_copy_d2h(f->stream, i == 0 ? apart : in_place, dx, bytes);
        assert_int_equal(ot_stream_synchronize(f->stream), OT_OK);
    }
    assert_memory_equal(apart, in_place, bytes);
    free(apart);
    free(in_place);
    fixture_close(f);
}

/* ---- Workspace ---- */

/* What a pass takes is checked by assertion and by guard bytes; here that it does not grow with what it
 * should not. */
static void test_workspace_grows_with_tokens_alone(void **state)
{
    (void)state;
    ot_model_config config;
    ot_model *model;
    assert_int_equal(ot_model_preset("7b", &config), OT_OK);
    assert_int_equal(ot_model_open(&config, &model), OT_OK);
    ot_compute compute = {.model = model, .dtype = OT_BF16, .B = 1, .T = 2048, .loss_chunk = 512};
    uint64_t one = ot_compute_workspace(&compute);
    /* Of the widest moment: q, k, v, the attention's output, y, h, gate, up and their product. */
    double row = 2.0 * (3 * 4096 + 4096 + 4096 + 4096 + 3 * 11008) + 4 * (32 + 2 * 2);
    assert_true(fabs((double)one / (2048 * row) - 1) < 0.35);
    compute.B = 2;
    uint64_t two = ot_compute_workspace(&compute);
    assert_true(two < 2 * one && two > one * 3 / 2);
    model->config.L = 1;
    assert_int_equal(ot_compute_workspace(&compute), two);
    ot_model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients_are_slopes_of_the_loss),
        cmocka_unit_test(test_micro_batches_give_the_same),
        cmocka_unit_test(test_loss_chunks_give_the_same),
        cmocka_unit_test(test_threads_give_the_same_bytes),
        cmocka_unit_test(test_packed_documents_are_separate_sequences),
        cmocka_unit_test(test_gelu_is_the_one_asked_for),
        cmocka_unit_test(test_recompute_changes_nothing),
        cmocka_unit_test(test_what_is_kept),
        cmocka_unit_test(test_evaluation_gives_the_loss_alone),
        cmocka_unit_test(test_no_trained_token_gives_nothing),
        cmocka_unit_test(test_head_in_place),
        cmocka_unit_test(test_workspace_grows_with_tokens_alone),
    };
    return cmocka_run_group_tests(tests, make_data, NULL);
}
