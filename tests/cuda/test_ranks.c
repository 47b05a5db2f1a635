/* Several ranks train one model on the emulated CUDA device: as one rank does on the CPU device but for rounding; and within a number
 * of ranks placement and prefetch change nothing, what moves is what was planned, and a model goes out and comes in whatever
 * the number. Ranks are threads here, a card each. */
#include <math.h>
#include <stdio.h>

#include "engine/data.h"
#include "engine/trainer.h"
#include "tests/cuda/emulator.h"
#include "tests/support/rank_values.h"
#include "tests/support/ranks.h"
#include "tests/support/tiny.h"

enum { T = 5, SEQUENCES = 12, STEPS_MAX = 20 };

/* An odd vocabulary, and layers of which no number of ranks is a divisor. */
static ot_model *open_model(int tied)
{
    ot_model_config config = tiny_config;
    config.L = 1;
    config.NH = 2;
    config.NKV = 1;
    config.F = 67;
    config.qkv_bias = !tied;
    config.tied = tied;
    ot_model *model;
    assert_int_equal(ot_model_open(&config, &model), OT_OK);
    return model;
}

static ot_training training_for(const ot_model *model, const char *device, ot_dtype dtype)
{
    ot_training training = tiny_training(model);
    training.B = 3;
    training.T = T;
    training.M = SEQUENCES / 3;
    training.dtype = training.grad_dtype = dtype;
    training.device = device;
    training.threads = 1;
    training.budget[OT_TIER_NVME] = UINT64_C(1) << 30;
    training.directory_count = 1;
    return training;
}

/* ---- a run ---- */

typedef struct outcome {
    uint64_t hash;
    double loss[STEPS_MAX], grad_norm[STEPS_MAX];
} outcome;

typedef struct job {
    ot_training training; /* of one rank; M of all */
    size_t steps;
    model_values *out; /* NULL: not wanted */
    outcome outcomes[RANKS];
} job;

static void expect_truth(const ot_trainer *trainer, const ot_step_result *result)
{
    const ot_plan *plan = ot_trainer_plan(trainer);
    for (int lane = 0; lane < OT_LANES; lane++)
        must(result->stats.bytes[lane] == plan->lists[result->list].lane_bytes[lane]);
    must(ot_trainer_peak_bytes(trainer, OT_TIER_DEVICE) <= plan->peak_bytes[OT_TIER_DEVICE]);
}

static void run_rank(ot_group *group, void *context)
{
    job *j = context;
    ot_training t = j->training;
    t.group = group;
    t.ranks = ot_group_size(group);
    t.rank = t.ordinal = ot_group_rank(group);
    t.B = t.ranks == 3 ? 4 : 3; /* two micro-batches a rank or more, but for 3 and 4 ranks */
    t.M = SEQUENCES / t.B / (size_t)t.ranks;
    t.directories = &rank_directories[t.rank];
    outcome *out = &j->outcomes[t.rank];
    const ot_data_options options = {.T = T, .V = t.model->config.V, .shuffle = 1, .seed = 3};
    ot_dataset *data;
    ot_trainer *trainer;
    must(ot_dataset_open(&options, &data) == OT_OK);
    must(ot_trainer_open(&t, &trainer) == OT_OK);
    for (uint64_t step = 0; step < j->steps; step++) {
        ot_step_result result;
        uint64_t trained =
            ot_dataset_fill_part(data, step, t.B, t.M, t.rank, t.ranks, ot_trainer_data(trainer));
        must(ot_trainer_step(trainer, 1e-2, trained, &result) == OT_OK);
        out->loss[step] = result.loss;
        out->grad_norm[step] = result.grad_norm;
        expect_truth(trainer, &result);
    }
    must(ot_trainer_hash(trainer, &out->hash) == OT_OK);
    const ot_sink sink = {model_values_take, j->out};
    if (j->out != NULL)
        must(ot_trainer_save(trainer, t.rank == 0 ? &sink : NULL) == OT_OK);
    ot_trainer_close(trainer);
    ot_dataset_close(data);
}

/* All ranks get the same results, and the device is used as a card wants it. */
static outcome run(job *j, int ranks, uint64_t seed)
{
    memset(j->outcomes, 0, sizeof j->outcomes);
    if (j->out != NULL)
        j->out->taken = 0;
    fakecuda_configure(&(fakecuda_options){.devices = RANKS, .seed = seed, .threads = FIRST_MODE});
    ranks_run(ranks, 120, run_rank, j);
    for (int rank = 1; rank < ranks; rank++)
        assert_memory_equal(&j->outcomes[rank], &j->outcomes[0], sizeof(outcome));
    assert_int_equal(fakecuda_count().refused, 0);
    assert_int_equal(fakecuda_count().pageable_copies, 0);
    return j->outcomes[0];
}

/* ---- the number of ranks changes rounding alone ---- */

static void it_learns_what_one_rank_on_the_cpu_learns(void **state)
{
    (void)state;
    ot_model *model = open_model(1);
    job cpu = {.training = training_for(model, "cpu", OT_FP32), .steps = STEPS_MAX},
        cuda = {.training = training_for(model, "cuda", OT_FP32), .steps = STEPS_MAX};
    outcome expected = run(&cpu, 1, 1);
    assert_true(expected.loss[STEPS_MAX - 1] < 0.95 * expected.loss[0]);
    for (int ranks = 1; ranks <= RANKS; ranks++) {
        outcome found = run(&cuda, ranks, (uint64_t)ranks);
        double worst = 0;
        for (int step = 0; step < STEPS_MAX; step++)
            worst = fmax(worst, fabs(found.loss[step] - expected.loss[step]) / expected.loss[step]);
        print_message("%d ranks: losses %.5f to %.5f, largest difference %.2g\n", ranks, found.loss[0],
                      found.loss[STEPS_MAX - 1], worst);
        assert_true(worst <= 1e-5);
    }
    ot_model_close(model);
}

/* ---- neither placement nor what ranks share changes anything ---- */

static void place(ot_training *t, int which)
{
    const ot_placement device = {0, OT_TIER_DEVICE, 1}, host = {0, OT_TIER_HOST, 1},
                       nvme = {0, OT_TIER_NVME, 1}, half = {0, OT_TIER_DEVICE, 0.5},
                       mostly_host = {0, OT_TIER_HOST, 0.6};
    t->weights = which == 1 ? device : which == 2 ? half : nvme;
    t->states = which >= 4   ? (which == 4 ? device : half)
                : which == 2 ? mostly_host
                : which == 1 ? host
                             : nvme;
    t->grads = which == 3 ? nvme : host;
    t->acts = which == 1 ? device : which == 2 ? host : nvme;
    t->prefetch_depth = which;
    t->overlap = which != 1;
    t->zero = 1 + which % 3;
}

static void placement_changes_nothing(void **state)
{
    (void)state;
    enum { PLACEMENTS = 6 };
    for (int ranks = 2; ranks <= RANKS; ranks++) {
        ot_model *model = open_model(ranks % 2);
        job j = {.training = training_for(model, "cuda", ranks == 3 ? OT_FP32 : OT_BF16), .steps = 3};
        j.training.max_grad_norm = ranks == 3 ? 0 : 1; /* with 3 the update is inside backward */
        outcome reference = run(&j, ranks, 1);
        for (int placement = 1; placement < PLACEMENTS; placement++) {
            place(&j.training, placement);
            outcome other = run(&j, ranks, 10 + (uint64_t)placement);
            if (memcmp(&other, &reference, sizeof other) != 0)
                fail_msg("%d ranks, placement %d: another result", ranks, placement);
        }
        ot_model_close(model);
    }
}

/* ---- a model goes out and comes in ---- */

static void a_model_does_not_depend_on_ranks(void **state)
{
    (void)state;
    ot_model *model = open_model(0);
    const uint64_t params = model_elements(model, model->layer_count), bytes = params * sizeof(float);
    model_values saved, again;
    model_values_open(&saved, model);
    model_values_open(&again, model);
    job j = {.training = training_for(model, "cuda", OT_BF16), .steps = 3, .out = &saved};
    outcome trained = run(&j, 2, 1);
    assert_int_equal(saved.taken, params);
    const ot_source source = {model_values_fill, &saved};
    j.training.source = &source;
    j.steps = 0;
    j.out = &again;
    for (int ranks = 1; ranks <= RANKS; ranks++) {
        j.training.device = ranks == 4 ? "cpu" : "cuda";
        assert_int_equal(run(&j, ranks, 2).hash, trained.hash);
        for (int p = 0; p < 3; p++)
            assert_memory_equal(again.plane[p], saved.plane[p], bytes);
    }
    model_values_close(&saved);
    model_values_close(&again);
    ot_model_close(model);
}

int main(void)
{
    use_emulator();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_learns_what_one_rank_on_the_cpu_learns),
        cmocka_unit_test(placement_changes_nothing),
        cmocka_unit_test(a_model_does_not_depend_on_ranks),
    };
    return cmocka_run_group_tests(tests, rank_folders_open, rank_folders_close);
}
