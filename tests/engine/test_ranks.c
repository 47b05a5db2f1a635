/* Several ranks train one model: as one rank does but for rounding; and within a number of ranks, placement changes nothing,
 * what moves is what was planned, and a model goes out and comes in whatever the number. Ranks are threads here. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/data.h"
#include "engine/trainer.h"
#include "tests/support/rank_values.h"
#include "tests/support/ranks.h"
#include "tests/support/test.h"
#include "tests/support/tiny.h"

enum { T = 24, SEQUENCES = 12, STEPS_MAX = 20, SLACK_BYTES = 4 << 20 };

/* Odd sizes: layers of up to four blocks of sums, none of which is a multiple of anything. */
static ot_model *open_model(int tied)
{
    ot_model_config config = tiny_config;
    config.C = 64;
    config.F = 1051;
    config.V = 1031;
    config.qkv_bias = !tied;
    config.tied = tied;
    ot_model *model;
    assert_int_equal(ot_model_open(&config, &model), OT_OK);
    return model;
}

static ot_training training_for(const ot_model *model)
{
    ot_training training = tiny_training(model);
    training.T = T;
    training.M = SEQUENCES;
    training.threads = 1;
    training.budget[OT_TIER_NVME] = UINT64_C(1) << 30;
    training.directory_count = 1;
    return training;
}

/* ---- a run ---- */

typedef struct outcome {
    uint64_t hash;
    double loss[STEPS_MAX], grad_norm[STEPS_MAX], eval_loss, factor_sum;
    int skipped[STEPS_MAX];
} outcome;

typedef struct job {
    ot_training training; /* of one rank; M of all */
    size_t steps;
    size_t windows; /* of a step's data there are no more than so many; 0: all */
    double lr;
    model_values *out; /* NULL: not wanted */
    outcome outcomes[RANKS];
} job;

/* Every byte moved is a byte planned, and no tier holds more than planned. */
static void expect_truth(const ot_trainer *trainer, const ot_step_result *result)
{
    const ot_plan *plan = ot_trainer_plan(trainer);
    for (int lane = 0; lane < OT_LANES; lane++)
        must(result->stats.bytes[lane] == plan->lists[result->list].lane_bytes[lane]);
    for (int tier = 0; tier < OT_TIERS; tier++) {
        uint64_t peak = ot_trainer_peak_bytes(trainer, (ot_tier)tier);
        must(peak <= plan->peak_bytes[tier]);
        must((double)peak + SLACK_BYTES >= 0.85 * (double)plan->peak_bytes[tier]);
    }
}

/* Targets of windows that are not there. */
static uint64_t drop(const ot_training *t, size_t windows, int32_t *data)
{
    size_t stride = t->B * t->T, first = (size_t)t->rank * t->B * t->M;
    uint64_t dropped = 0;
    for (size_t i = 0; i < t->B * t->M; i++)
        for (size_t k = 0; first + i >= windows && k < t->T; k++) {
            int32_t *target = data + i / t->B * 4 * stride + stride + i % t->B * t->T + k;
            dropped += *target != -1;
            *target = -1;
        }
    return dropped;
}

static void run_rank(ot_group *group, void *context)
{
    job *j = context;
    ot_training t = j->training;
    t.group = group;
    t.ranks = ot_group_size(group);
    t.rank = ot_group_rank(group);
    t.M /= (size_t)t.ranks;
    t.directories = &rank_directories[t.rank];
    outcome *out = &j->outcomes[t.rank];
    const ot_data_options options = {.T = T, .V = t.model->config.V, .shuffle = 1, .seed = 3};
    ot_dataset *data;
    ot_trainer *trainer;
    must(ot_dataset_open(&options, &data) == OT_OK);
    must(ot_trainer_open(&t, &trainer) == OT_OK);
    uint64_t trained = 0, all = 0;
    for (uint64_t step = 0; step < j->steps; step++) {
        ot_step_result result;
        int32_t *to = ot_trainer_data(trainer);
        trained = ot_dataset_fill_part(data, step, t.B, t.M, t.rank, t.ranks, to);
        if (j->windows > 0)
            trained -= drop(&t, j->windows, to);
        must(ot_trainer_step(trainer, j->lr, trained, &result) == OT_OK);
        all = result.trained_tokens;
        out->loss[step] = result.loss;
        out->grad_norm[step] = result.grad_norm;
        out->skipped[step] = result.skipped;
        expect_truth(trainer, &result);
    }
    if (all > 0 && j->windows == 0)
        must(ot_trainer_evaluate(trainer, all, &out->eval_loss) == OT_OK);
    must(ot_trainer_hash(trainer, &out->hash) == OT_OK);
    size_t count;
    const float *factors = ot_trainer_factors(trainer, &count);
    for (size_t i = 0; i < count; i++)
        out->factor_sum += factors[i] * (double)(i % 97 + 1);
    const ot_sink sink = {model_values_take, j->out};
    if (j->out != NULL)
        must(ot_trainer_save(trainer, t.rank == 0 ? &sink : NULL) == OT_OK);
    ot_trainer_close(trainer);
    ot_dataset_close(data);
}

/* All ranks get the same results. */
static outcome run(job *j, int ranks)
{
    memset(j->outcomes, 0, sizeof j->outcomes);
    ranks_run(ranks, 120, run_rank, j);
    for (int rank = 1; rank < ranks; rank++)
        assert_memory_equal(&j->outcomes[rank], &j->outcomes[0], sizeof(outcome));
    return j->outcomes[0];
}

/* ---- the number of ranks changes rounding alone ---- */

static void expect_near(const outcome *a, const outcome *b, size_t steps)
{
    for (size_t step = 0; step < steps; step++) {
        if (!(fabs(a->loss[step] - b->loss[step]) <= 1e-5 * b->loss[step]))
            fail_msg("step %zu: loss %.9g, expected %.9g", step, a->loss[step], b->loss[step]);
        assert_true(fabs(a->grad_norm[step] - b->grad_norm[step]) <= 1e-4 * b->grad_norm[step]);
    }
    assert_true(fabs(a->eval_loss - b->eval_loss) <= 1e-5 * fabs(b->eval_loss));
}

static void ranks_change_rounding_only(void **state)
{
    (void)state;
    for (int tied = 0; tied < 2; tied++)
        for (int clipping = 0; clipping < 2; clipping++) {
            ot_model *model = open_model(tied);
            job j = {.training = training_for(model), .steps = STEPS_MAX, .lr = 1e-3};
            j.training.dtype = j.training.grad_dtype = OT_FP32;
            j.training.max_grad_norm = clipping ? 0.5 : 0;
            outcome alone = run(&j, 1);
            assert_true(alone.loss[STEPS_MAX - 1] < 0.9 * alone.loss[0]);
            for (int ranks = 2; ranks <= RANKS; ranks++) {
                outcome several = run(&j, ranks);
                expect_near(&several, &alone, STEPS_MAX);
            }
            ot_model_close(model);
        }
}

/* Its moments are those of whole tensors, which every rank measures for itself. */
static void adafactor_measures_whole_tensors(void **state)
{
    (void)state;
    ot_model *model = open_model(1);
    job j = {.training = training_for(model), .steps = 8, .lr = 1e-3};
    j.training.dtype = j.training.grad_dtype = OT_FP32;
    j.training.optimizer = OT_OPTIMIZER_ADAFACTOR;
    outcome alone = run(&j, 1);
    assert_true(alone.loss[7] < 0.99 * alone.loss[0] && alone.factor_sum > 0);
    for (int ranks = 2; ranks <= RANKS; ranks++) {
        outcome several = run(&j, ranks);
        expect_near(&several, &alone, 8);
        assert_true(fabs(several.factor_sum - alone.factor_sum) <= 1e-4 * alone.factor_sum);
    }
    ot_model_close(model);
}

/* 7 windows: the last of 2 ranks has one to train, of 3 and 4 ranks the last has none. */
static void ranks_without_data_take_part(void **state)
{
    (void)state;
    ot_model *model = open_model(1);
    job j = {.training = training_for(model), .steps = 3, .lr = 1e-3, .windows = 7};
    j.training.dtype = j.training.grad_dtype = OT_FP32;
    outcome alone = run(&j, 1);
    for (int ranks = 2; ranks <= RANKS; ranks++) {
        outcome several = run(&j, ranks);
        expect_near(&several, &alone, 3);
    }
    ot_model_close(model);
}

/* ---- placement changes nothing ---- */

static const ot_placement on_device = {0, OT_TIER_DEVICE, 1}, on_host = {0, OT_TIER_HOST, 1},
                          on_nvme = {0, OT_TIER_NVME, 1}, mostly_host = {0, OT_TIER_HOST, 0.6},
                          half_device = {0, OT_TIER_DEVICE, 0.5}, any = {1, 0, 0};

enum { PLACEMENTS = 8 };

static void place(ot_training *t, int which)
{
    const struct {
        ot_placement weights, states, grads, acts;
    } all[PLACEMENTS] = {
        {any, any, any, any},
        {on_device, on_host, on_host, on_device},
        {on_host, on_host, on_host, on_host},
        {on_nvme, on_nvme, on_nvme, on_nvme},
        {on_host, mostly_host, on_nvme, on_host},
        {half_device, mostly_host, on_host, on_host},
        {on_device, on_device, any, on_device},
        {on_host, half_device, on_nvme, on_host},
    };
    static const int depths[PLACEMENTS] = {0, 1, 2, 1, 3, 2, 1, 2};
    t->weights = all[which].weights;
    t->states = all[which].states;
    if (t->optimizer == OT_OPTIMIZER_ADAFACTOR && t->states.tier == OT_TIER_DEVICE)
        t->states = on_host; /* the device does not update them */
    t->grads = all[which].grads;
    t->acts = all[which].acts;
    t->prefetch_depth = depths[which];
    t->overlap = which != 2;
    t->chunk_params = which == 4 ? 2 * OT_SUM_BLOCK : 0;
    t->jitter_ns = which % 2 ? 20000 : 0;
    t->jitter_seed = (uint64_t)which;
}

/* BF16; FP32 with the update inside backward; FP16 with a loss scale; 8-bit moments; Adafactor. Nor does the ZeRO stage. */
static void placement_changes_nothing(void **state)
{
    (void)state;
    for (int kind = 0; kind < 5; kind++)
        for (int ranks = 2; ranks <= RANKS; ranks += 1 + kind % 2) {
            ot_model *model = open_model(kind % 2);
            job j = {.training = training_for(model), .steps = 3, .lr = 1e-2};
            ot_training *t = &j.training;
            t->dtype = t->grad_dtype = kind == 1 ? OT_FP32 : kind == 2 ? OT_FP16 : OT_BF16;
            t->max_grad_norm = kind == 1 ? 0 : 1;
            t->state_dtype = kind == 3 ? OT_INT8 : OT_FP32;
            t->optimizer = kind == 4 ? OT_OPTIMIZER_ADAFACTOR : OT_OPTIMIZER_ADAMW;
            outcome reference = run(&j, ranks);
            for (int placement = 1; placement < PLACEMENTS; placement++) {
                if (!test_is_chosen(placement + ranks + kind))
                    continue;
                place(t, placement);
                t->zero = kind == 4 ? 1 : 1 + (placement + ranks) % 3;
                outcome other = run(&j, ranks);
                if (memcmp(&other, &reference, sizeof other) != 0)
                    fail_msg("kind %d, %d ranks, placement %d, ZeRO-%d: another result", kind, ranks,
                             placement, t->zero);
            }
            ot_model_close(model);
        }
}

/* ---- a model goes out and comes in ---- */

static void a_model_does_not_depend_on_ranks(void **state)
{
    (void)state;
    ot_model *model = open_model(0);
    const uint64_t bytes = model_elements(model, model->layer_count) * sizeof(float);
    model_values alone, after, again;
    model_values_open(&alone, model);
    model_values_open(&after, model);
    model_values_open(&again, model);
    job j = {.training = training_for(model), .out = &alone};
    outcome fresh = run(&j, 1);
    for (int ranks = 2; ranks <= RANKS; ranks++) {
        after.taken = 0;
        j.out = &after;
        assert_int_equal(run(&j, ranks).hash, fresh.hash);
        assert_int_equal(after.taken, model_elements(model, model->layer_count));
        assert_memory_equal(after.plane[0], alone.plane[0], bytes);
    }
    /* Three steps of 2 ranks, taken up by others: with a rate of 0 the next step changes moments alone. */
    after.taken = 0;
    j.steps = 3;
    j.lr = 1e-2;
    outcome trained = run(&j, 2);
    assert_int_not_equal(trained.hash, fresh.hash);
    const ot_source source = {model_values_fill, &after};
    j.training.source = &source;
    j.steps = 0;
    for (int ranks = 1; ranks <= RANKS; ranks++) {
        again.taken = 0;
        j.out = &again;
        assert_int_equal(run(&j, ranks).hash, trained.hash);
        for (int p = 0; p < 3; p++)
            assert_memory_equal(again.plane[p], after.plane[p], bytes);
    }
    model_values_close(&alone);
    model_values_close(&after);
    model_values_close(&again);
    ot_model_close(model);
}

/* ---- an overflow in one rank is everybody's ---- */

static void an_overflow_skips_all_ranks(void **state)
{
    (void)state;
    ot_model *model = open_model(1);
    job j = {.training = training_for(model), .lr = 1e-2};
    j.training.dtype = j.training.grad_dtype = OT_FP16;
    j.training.loss_scale = 0x1p40; /* beyond FP16 whatever the loss */
    outcome before = run(&j, 3);
    j.steps = 2;
    outcome after = run(&j, 3);
    assert_int_equal(after.hash, before.hash);
    assert_true(after.skipped[0] && after.skipped[1]);
    ot_model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_change_rounding_only),  cmocka_unit_test(ranks_without_data_take_part),
        cmocka_unit_test(placement_changes_nothing),   cmocka_unit_test(a_model_does_not_depend_on_ranks),
        cmocka_unit_test(an_overflow_skips_all_ranks), cmocka_unit_test(adafactor_measures_whole_tensors),
    };
    return cmocka_run_group_tests(tests, rank_folders_open, rank_folders_close);
}
