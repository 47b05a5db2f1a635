/* Presets against published counts, layouts, random weights, counts of operations. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model.h"
#include "kernels/random.h"
#include "tests/support/test.h"

static ot_model *open_preset(const char *name)
{
    ot_model_config config;
    ot_model *model;
    assert_int_equal(ot_model_preset(name, &config), OT_OK);
    assert_int_equal(ot_model_open(&config, &model), OT_OK);
    return model;
}

/* As the models' cards and the index files of their checkpoints give them. */
static const struct {
    const char *name;
    uint64_t params;
} published[] = {
    {"124m", 124439808},  {"135m", 134515008},  {"360m", 361821120},  {"0.5b", 494032768},
    {"1b", 1235814400},   {"3b", 3212749824},   {"7b", 6738415616},   {"8b", 8030261248},
    {"13b", 13015864320}, {"14b", 14770033664}, {"32b", 32763876352}, {"70b", 70553706496},
};

static void test_presets_have_the_published_sizes(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof published / sizeof published[0]; i++) {
        ot_model *model = open_preset(published[i].name);
        assert_int_equal(model->params, published[i].params);
        assert_int_equal(model->layer_count, model->config.L + 2);
        ot_model_close(model);
    }
}

static void test_every_preset_opens(void **state)
{
    (void)state;
    size_t count = 0;
    for (const char *name; (name = ot_model_preset_name(count)) != NULL; count++)
        ot_model_close(open_preset(name));
    assert_int_equal(count, sizeof published / sizeof published[0] + 1);
    assert_string_equal(ot_model_preset_name(0), "tiny");
}

static void test_unknown_preset_names_the_nearest(void **state)
{
    (void)state;
    ot_model_config config;
    assert_int_equal(ot_model_preset("tinny", &config), OT_ERR_USAGE);
    assert_non_null(strstr(ot_error_text(), "did you mean tiny"));
    assert_int_equal(ot_model_preset("gemma-something", &config), OT_ERR_USAGE);
}

static void expect_refused(ot_model_config config, const char *text)
{
    ot_model *model;
    assert_int_equal(ot_model_open(&config, &model), OT_ERR_FORMAT);
    if (strstr(ot_error_text(), text) == NULL)
        fail_msg("'%s' does not say '%s'", ot_error_text(), text);
}

static void test_impossible_dimensions_are_refused(void **state)
{
    (void)state;
    ot_model_config tiny, gpt2, config;
    assert_int_equal(ot_model_preset("tiny", &tiny), OT_OK);
    assert_int_equal(ot_model_preset("124m", &gpt2), OT_OK);
    config = tiny, config.C = 0, expect_refused(config, "hidden size is 0");
    config = tiny, config.F = (size_t)1 << 40, expect_refused(config, "feed-forward width");
    config = tiny, config.NKV = 3, expect_refused(config, "no multiple of 3");
    config = tiny, config.HD = 31, expect_refused(config, "head dimension is 31");
    config = tiny, config.norm_eps = 0, expect_refused(config, "epsilon");
    config = tiny, config.rope.theta = NAN, expect_refused(config, "rope_theta");
    config = tiny, config.rope.kind = OT_ROPE_LLAMA3, expect_refused(config, "factor");
    config = tiny, config.eos = 258, expect_refused(config, "EOS token is 258");
    config = tiny, config.positions = 0, expect_refused(config, "positions");
    config = gpt2, config.HD = 32, expect_refused(config, "GPT-2");
    config = gpt2, config.window = 7, expect_refused(config, "window");
}

/* ---- Layout ---- */

static uint64_t elements(const ot_tensor *tensor)
{
    return (uint64_t)tensor->rows * tensor->cols;
}

static void check_layer(const ot_layer *layer)
{
    assert_int_equal(layer->params % OT_MOMENT_BLOCK, 0);
    assert_int_equal(layer->undecayed % OT_MOMENT_BLOCK, 0);
    assert_true(layer->undecayed <= layer->params);
    uint64_t end = 0, sum = 0;
    for (size_t t = 0; t < layer->tensor_count; t++) {
        const ot_tensor *tensor = &layer->tensors[t];
        assert_true(tensor->offset >= end);
        end = tensor->offset + elements(tensor);
        sum += elements(tensor);
        assert_true(end <= layer->params);
        assert_int_equal(tensor->decay, tensor->cols > 1);
        if (tensor->decay)
            assert_true(end <= layer->undecayed);
        else
            assert_true(tensor->offset >= layer->undecayed);
        assert_int_equal(ot_layer_find(layer, tensor->name), t);
    }
    /* Little is lost to padding. */
    assert_true(layer->params - sum <= (uint64_t)layer->tensor_count * 64 + 2 * OT_MOMENT_BLOCK);
}

static void test_layouts_hold_to_their_rules(void **state)
{
    (void)state;
    for (size_t i = 0; ot_model_preset_name(i) != NULL; i++) {
        ot_model *model = open_preset(ot_model_preset_name(i));
        for (size_t l = 0; l < model->layer_count; l++)
            check_layer(&model->layers[l]);
        ot_model_close(model);
    }
}

static const ot_tensor *tensor_of(const ot_layer *layer, const char *name)
{
    int index = ot_layer_find(layer, name);
    if (index < 0)
        fail_msg("%s has no %s", layer->name, name);
    return &layer->tensors[index];
}

/* The tensors named lie one behind the other, and begin at a multiple of 64. */
static void check_group(const ot_layer *layer, const char *const names[], size_t count)
{
    uint64_t end = tensor_of(layer, names[0])->offset;
    assert_int_equal(end % 64, 0);
    for (size_t i = 0; i < count; i++) {
        const ot_tensor *tensor = tensor_of(layer, names[i]);
        assert_int_equal(tensor->offset, end);
        end += elements(tensor);
    }
}

static void test_groups_are_one_matrix(void **state)
{
    (void)state;
    ot_model *model = open_preset("0.5b");
    const ot_layer *block = &model->layers[4];
    check_group(block, (const char *[]){"q_proj.weight", "k_proj.weight", "v_proj.weight"}, 3);
    check_group(block, (const char *[]){"gate_proj.weight", "up_proj.weight"}, 2);
    check_group(block, (const char *[]){"q_proj.bias", "k_proj.bias", "v_proj.bias"}, 3);
    assert_string_equal(block->name, "model.layers.3");
    assert_string_equal(tensor_of(block, "q_proj.weight")->name, "model.layers.3.self_attn.q_proj.weight");
    assert_int_equal(tensor_of(block, "k_proj.weight")->rows, 128);
    assert_int_equal(tensor_of(block, "k_proj.weight")->cols, 896);
    assert_int_equal(ot_layer_find(block, "proj.weight"), -1);
    ot_model_close(model);
}

static void test_ends_of_the_model(void **state)
{
    (void)state;
    ot_model *tied = open_preset("1b"), *untied = open_preset("8b"), *gpt2 = open_preset("124m");
    assert_int_equal(tied->layers[17].tensor_count, 1);
    assert_int_equal(tied->layers[17].undecayed, 0);
    assert_string_equal(tied->layers[17].tensors[0].name, "model.norm.weight");
    assert_string_equal(untied->layers[33].tensors[0].name, "lm_head.weight");
    assert_string_equal(untied->layers[0].tensors[0].name, "model.embed_tokens.weight");
    assert_int_equal(untied->layers[0].undecayed, untied->layers[0].params);
    assert_string_equal(gpt2->layers[0].tensors[1].name, "transformer.wpe.weight");
    assert_string_equal(gpt2->layers[13].tensors[1].name, "transformer.ln_f.bias");
    const ot_tensor *attention = tensor_of(&gpt2->layers[12], "attn.c_attn.weight");
    assert_string_equal(attention->name, "transformer.h.11.attn.c_attn.weight");
    assert_true(attention->transposed && attention->rows == 2304 && attention->cols == 768);
    assert_false(tensor_of(&gpt2->layers[12], "attn.c_attn.bias")->transposed);
    assert_false(gpt2->layers[0].tensors[0].transposed);
    ot_model_close(tied);
    ot_model_close(untied);
    ot_model_close(gpt2);
}

/* ---- Random weights ---- */

static float *random_layer(const ot_model *model, size_t layer, uint64_t seed)
{
    float *values = malloc(model->layers[layer].params * sizeof *values);
    assert_non_null(values);
    memset(values, 0xff, model->layers[layer].params * sizeof *values);
    ot_model_random(model, layer, 0, model->layers[layer].params, seed, values);
    return values;
}

/* Mean, variance and kurtosis of a normal sample of n: standard errors 1, sqrt(2) and sqrt(24) over sqrt(n).
 * And the share within one standard deviation. */
static void check_normal(const float *values, uint64_t n, double std)
{
    double sum = 0, squares = 0, fourths = 0, within = 0;
    for (uint64_t i = 0; i < n; i++) {
        double z = (double)values[i] / std;
        sum += z;
        squares += z * z;
        fourths += z * z * z * z;
        within += fabs(z) < 1;
    }
    double count = (double)n, error = 5 / sqrt(count);
    assert_true(fabs(sum / count) < error);
    assert_true(fabs(squares / count - 1) < error * sqrt(2));
    assert_true(fabs(fourths / count - 3) < error * sqrt(96));
    assert_true(fabs(within / count - 0.682689492) < error * 0.4655);
}

/* Neighbours are not correlated: they come in fours from one counter. */
static void check_uncorrelated(const float *values, uint64_t n, uint64_t lag, double std)
{
    double sum = 0;
    for (uint64_t i = 0; i + lag < n; i++)
        sum += (double)values[i] * (double)values[i + lag] / (std * std);
    assert_true(fabs(sum / (double)n) < 5 / sqrt((double)n));
}

static void test_random_weights_are_normal(void **state)
{
    (void)state;
    ot_model *model = open_preset("124m");
    const ot_layer *block = &model->layers[3];
    float *values = random_layer(model, 3, 42);
    const ot_tensor *in = tensor_of(block, "mlp.c_fc.weight"), *out = tensor_of(block, "mlp.c_proj.weight"),
                    *attention = tensor_of(block, "attn.c_proj.weight");
    check_normal(values + in->offset, elements(in), 0.02);
    check_normal(values + out->offset, elements(out), 0.02 / sqrt(24));
    check_normal(values + attention->offset, elements(attention), 0.02 / sqrt(24));
    for (uint64_t lag = 1; lag <= 4; lag++)
        check_uncorrelated(values + in->offset, elements(in), lag, 0.02);
    check_uncorrelated(values + in->offset, elements(in), 768, 0.02);

    for (uint64_t i = 0; i < 768; i++) {
        assert_true(values[tensor_of(block, "ln_1.weight")->offset + i] == 1);
        assert_true(values[tensor_of(block, "ln_1.bias")->offset + i] == 0);
        assert_true(values[tensor_of(block, "attn.c_attn.bias")->offset + i] == 0);
    }
    free(values);
    ot_model_close(model);
}

static void test_random_padding_is_zero(void **state)
{
    (void)state;
    ot_model_config config;
    ot_model *model;
    assert_int_equal(ot_model_preset("tiny", &config), OT_OK);
    config.C = 30, config.HD = 6, config.F = 37, config.qk_norm = 1;
    assert_int_equal(ot_model_open(&config, &model), OT_OK);
    const ot_layer *block = &model->layers[2];
    float *values = random_layer(model, 2, 1);
    for (size_t t = 0; t < block->tensor_count; t++)
        for (uint64_t i = 0; i < elements(&block->tensors[t]); i++) {
            float *value = &values[block->tensors[t].offset + i];
            assert_true(*value != 0 && isfinite(*value));
            *value = 0;
        }
    for (uint64_t i = 0; i < block->params; i++)
        assert_true(values[i] == 0);
    free(values);
    ot_model_close(model);
}

static void test_random_weights_do_not_depend_on_the_split(void **state)
{
    (void)state;
    ot_model *model = open_preset("tiny");
    uint64_t n = model->layers[1].params;
    float *whole = random_layer(model, 1, 7), *parts = malloc(n * sizeof *parts),
          *other = random_layer(model, 1, 8), *next = random_layer(model, 2, 7);
    assert_non_null(parts);
    for (uint64_t at = 0, step = 1; at < n; at += step, step = step * 3 + 1) {
        step = step < n - at ? step : n - at;
        ot_model_random(model, 1, at, step, 7, parts + at);
    }
    assert_memory_equal(whole, parts, n * sizeof *parts);
    assert_true(memcmp(whole, other, n * sizeof *parts) != 0);
    assert_true(memcmp(whole, next, n * sizeof *parts) != 0);
    free(whole);
    free(parts);
    free(other);
    free(next);
    ot_model_close(model);
}

/* Philox with key 42 at counter (0,1), through the C library's logarithm, cosine and sine. */
static void test_random_weights_follow_box_and_muller(void **state)
{
    (void)state;
    ot_model *model = open_preset("tiny");
    for (uint64_t counter = 0; counter < 2000; counter++) {
        uint32_t words[4];
        float values[4];
        ot_philox(42, counter, 1, words);
        ot_model_random(model, 1, counter * 4, 4, 42, values);
        for (int i = 0; i < 4; i += 2) {
            double radius = 0.02 * sqrt(-2 * log(((double)words[i] + 0.5) / 4294967296.0));
            double angle = 2 * 3.14159265358979323846 * ((double)words[i + 1] / 4294967296.0);
            assert_true(fabs((double)values[i] - radius * cos(angle)) < 1e-8);
            assert_true(fabs((double)values[i + 1] - radius * sin(angle)) < 1e-8);
        }
    }
    ot_model_close(model);
}

/* ---- Operations ---- */

/* shared figures of Llama-2-7B at 2048 tokens: 51.9 GFLOP a token with recompute, 13.8 forward;
 * Llama-3.1-8B: 57.4. */
static void test_operations_of_a_step(void **state)
{
    (void)state;
    const struct {
        const char *name;
        double total;
    } expected[] = {{"7b", 51.9e9}, {"8b", 57.4e9}};
    for (size_t i = 0; i < 2; i++) {
        ot_model *model = open_preset(expected[i].name);
        ot_model_flops flops = ot_model_count_flops(model, 1, 2048, OT_RECOMPUTE_FULL),
                       twice = ot_model_count_flops(model, 2, 2048, OT_RECOMPUTE_FULL);
        double L = (double)model->config.L;
        double total = (L * (flops.block_forward + flops.block_backward) + flops.head) / 2048;
        assert_true(fabs(total / expected[i].total - 1) < 1e-3);
        assert_true(twice.block_backward == 2 * flops.block_backward && twice.head == 2 * flops.head);
        double without = ot_model_count_flops(model, 1, 2048, OT_RECOMPUTE_NONE).block_backward;
        assert_true(ot_model_count_flops(model, 1, 2048, OT_RECOMPUTE_SELECTIVE).block_backward == without);
        total = (L * (flops.block_forward + without) + flops.head) / 2048;
        assert_true(i > 0 || fabs(total / 41.3e9 - 1) < 2e-3); /* as much as is said without recompute */
        if (i == 0)
            assert_true(fabs((L * flops.block_forward + flops.head_forward) / 2048 / 13.8e9 - 1) < 5e-3);
        ot_model_close(model);
    }
}

static void test_operations_of_a_window(void **state)
{
    (void)state;
    ot_model *model = open_preset("tiny");
    double full = ot_model_count_flops(model, 1, 10, OT_RECOMPUTE_FULL).block_forward;
    model->config.window = 3;
    /* Pairs: 10*11/2 = 55 without, 1+2+3*8 = 27 with it; 4 operations for each of NH*HD = 128 columns. */
    assert_true(full - ot_model_count_flops(model, 1, 10, OT_RECOMPUTE_FULL).block_forward ==
                4 * 128 * (55 - 27));
    model->config.window = 100;
    assert_true(full == ot_model_count_flops(model, 1, 10, OT_RECOMPUTE_FULL).block_forward);
    ot_model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_presets_have_the_published_sizes),
        cmocka_unit_test(test_every_preset_opens),
        cmocka_unit_test(test_unknown_preset_names_the_nearest),
        cmocka_unit_test(test_impossible_dimensions_are_refused),
        cmocka_unit_test(test_layouts_hold_to_their_rules),
        cmocka_unit_test(test_groups_are_one_matrix),
        cmocka_unit_test(test_ends_of_the_model),
        cmocka_unit_test(test_random_weights_are_normal),
        cmocka_unit_test(test_random_padding_is_zero),
        cmocka_unit_test(test_random_weights_do_not_depend_on_the_split),
        cmocka_unit_test(test_random_weights_follow_box_and_muller),
        cmocka_unit_test(test_operations_of_a_step),
        cmocka_unit_test(test_operations_of_a_window),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
