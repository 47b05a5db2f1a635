/* Case 27: the loss of the same documents is the same packed and padded, in any order, in any micro-batches; and the one that each
 * document has alone. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/data.h"
#include "engine/trainer.h"
#include "tests/support/test.h"
#include "tests/support/tiny.h"

enum { T = 32, V = 131, DOCUMENTS = 12 };

static ot_model *open_model(void)
{
    ot_model_config config = tiny_config;
    config.HD = 8;
    config.F = 64;
    config.V = V;
    config.tied = 1;
    config.init_std = 0.3;
    ot_model *model;
    assert_int_equal(ot_model_open(&config, &model), OT_OK);
    return model;
}

/* Documents `first` to `last`; about half of the tokens of each are trained. */
static ot_tokens *make_tokens(size_t first, size_t last)
{
    static const char *const files[] = {"made up"};
    const ot_tokens_options options = {.V = V, .files = files, .file_count = 1};
    ot_tokens_writer *writer;
    ot_tokens *tokens;
    assert_int_equal(ot_tokens_writer_open(NULL, &options, &writer), OT_OK);
    for (size_t d = first; d <= last; d++) {
        size_t length = 3 + d * 7 % 29;
        for (size_t i = 0; i < length; i++) {
            int32_t id = (int32_t)((d * 31 + i * i * 17 + i) % V);
            unsigned char trained = i > length / 2;
            assert_int_equal(ot_tokens_writer_add(writer, &id, &trained, 1), OT_OK);
        }
        assert_int_equal(ot_tokens_writer_end(writer, 0, d + 1, 0), OT_OK);
    }
    assert_int_equal(ot_tokens_writer_close(writer, &tokens), OT_OK);
    return tokens;
}

typedef struct measured {
    double loss, grad_norm;
    uint64_t trained, windows;
} measured;

/* The first step over all documents first … last. */
static measured measure(size_t first, size_t last, int packing, uint64_t seed, size_t B, size_t M)
{
    ot_model *model = open_model();
    ot_tokens *tokens = make_tokens(first, last);
    const ot_tokens *list[] = {tokens};
    const ot_data_options data = {.tokens = list,
                                  .token_count = 1,
                                  .T = T,
                                  .V = V,
                                  .packing = packing,
                                  .shuffle = seed != 0,
                                  .seed = seed};
    ot_training training = tiny_training(model);
    training.B = B;
    training.T = T;
    training.M = M;
    training.dtype = training.grad_dtype = OT_FP32;
    training.seed = 5;
    ot_dataset *dataset;
    ot_trainer *trainer = NULL;
    ot_step_result result;
    measured out;
    if (ot_dataset_open(&data, &dataset) != OT_OK || ot_trainer_open(&training, &trainer) != OT_OK)
        fail_msg("%s", ot_error_text());
    out.windows = ot_dataset_windows(dataset);
    assert_true(out.windows <= B * M);
    out.trained = ot_dataset_fill(dataset, 0, B, M, ot_trainer_data(trainer));
    assert_int_equal(ot_trainer_step(trainer, 0, out.trained, &result), OT_OK);
    out.loss = result.loss;
    out.grad_norm = result.grad_norm;
    ot_trainer_close(trainer);
    ot_dataset_close(dataset);
    ot_tokens_close(tokens);
    ot_model_close(model);
    return out;
}

static void near(double found, double expected)
{
    if (!(fabs(found - expected) <= 1e-5 * fabs(expected)))
        fail_msg("%.9g instead of %.9g", found, expected);
}

static void packing_changes_rounding_only(void **state)
{
    (void)state;
    measured padded = measure(0, DOCUMENTS - 1, 0, 0, 1, DOCUMENTS);
    measured packed = measure(0, DOCUMENTS - 1, 1, 0, 1, DOCUMENTS);
    assert_int_equal(padded.windows, DOCUMENTS);
    assert_true(packed.windows < DOCUMENTS);
    assert_int_equal(packed.trained, padded.trained);
    near(packed.loss, padded.loss);
    near(packed.grad_norm, padded.grad_norm);
    for (uint64_t seed = 1; seed < 3; seed++)
        for (int packing = 0; packing < 2; packing++) {
            measured shuffled =
                measure(0, DOCUMENTS - 1, packing, seed, seed == 1 ? 4 : DOCUMENTS, seed == 1 ? 3 : 1);
            assert_int_equal(shuffled.trained, padded.trained);
            near(shuffled.loss, padded.loss);
            near(shuffled.grad_norm, padded.grad_norm);
        }
}

/* The mean over tokens, and not over documents, micro-batches or places. */
static void the_loss_is_the_documents_own(void **state)
{
    (void)state;
    double sum = 0;
    uint64_t trained = 0;
    for (size_t d = 0; d < DOCUMENTS; d++) {
        measured alone = measure(d, d, 0, 0, 1, 1);
        sum += alone.loss * (double)alone.trained;
        trained += alone.trained;
    }
    measured packed = measure(0, DOCUMENTS - 1, 1, 0, 2, DOCUMENTS / 2);
    assert_int_equal(packed.trained, trained);
    near(packed.loss, sum / (double)trained);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packing_changes_rounding_only),
        cmocka_unit_test(the_loss_is_the_documents_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
