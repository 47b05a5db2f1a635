/* The invariants of the whole engine on small models: placement, prefetch, I/O, overlap, threads and timing change nothing;
 * micro-batching changes only rounding; lr = 0 gives the model back; the plan tells the truth. */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "engine/data.h"
#include "engine/trainer.h"
#include "io/stop.h"
#include "tests/support/test.h"
#include "tests/support/tiny.h"

enum { T = 24, SEQUENCES = 4, STEPS = 3, SLACK_BYTES = 4 << 20 };

/* Width 64, odd vocabulary; several chunks a layer. */
static ot_model_config config_of(int tied)
{
    ot_model_config config = tiny_config;
    config.C = 64;
    config.L = 3;
    config.F = 512;
    config.V = 1031;
    config.qkv_bias = !tied;
    config.tied = tied;
    return config;
}

typedef struct outcome {
    uint64_t hash;
    double loss[STEPS];
    double grad_norm[STEPS];
} outcome;

/* The NVMe tier: a folder of this process alone. */
static char folder[] = "./offtrain-test-XXXXXX";
static const char *const here[] = {folder};

static int open_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) != NULL ? 0 : -1;
}

/* Fails where a test left something in it. */
static int close_folder(void **state)
{
    (void)state;
    return rmdir(folder);
}

/* The CPU device, or what OT_TEST_DEVICE says: the same must hold on every device. */
static const char *device_kind(void)
{
    const char *kind = getenv("OT_TEST_DEVICE");
    return kind != NULL ? kind : "cpu";
}

static ot_training training_for(const ot_model *model)
{
    ot_training training = tiny_training(model);
    training.T = T;
    training.M = SEQUENCES;
    training.device = device_kind();
    training.budget[OT_TIER_NVME] = UINT64_C(1) << 30;
    training.directories = here;
    training.directory_count = 1;
    return training;
}

/* Every byte moved is a byte planned, and no tier holds more than planned. */
static void expect_truth(const ot_trainer *trainer, const ot_step_result *result, int first)
{
    const ot_plan *plan = ot_trainer_plan(trainer);
    const ot_list *list = &plan->lists[first || plan->deferred_chunks == 0 ? OT_LIST_FIRST : OT_LIST_STEADY];
    for (int lane = 0; lane < OT_LANES; lane++)
        assert_int_equal(result->stats.bytes[lane], list->lane_bytes[lane]);
    for (int tier = 0; tier < OT_TIERS; tier++) {
        uint64_t peak = ot_trainer_peak_bytes(trainer, (ot_tier)tier);
        assert_true(peak <= plan->peak_bytes[tier]);
        /* Arenas are whole huge pages, which is much for a model as small as this. */
        assert_true((double)peak + SLACK_BYTES >= 0.85 * (double)plan->peak_bytes[tier]);
    }
}

/* States placed on the device are there; and where all are, a step sends its data, brings its sums and moves nothing else. */
static void expect_states_on_device(const ot_training *t, const ot_plan *plan, const ot_step_result *result)
{
    if (t->states.automatic || t->states.tier != OT_TIER_DEVICE)
        return;
    assert_int_equal(plan->device_chunks, (size_t)(t->states.share * (double)plan->chunk_count + 0.5));
    if (plan->device_chunks < plan->chunk_count || t->acts.tier != OT_TIER_DEVICE)
        return;
    uint64_t sums = 0;
    for (size_t l = 0; l < t->model->layer_count; l++)
        sums += (t->model->layers[l].params + OT_SUM_BLOCK - 1) / OT_SUM_BLOCK * sizeof(double);
    assert_int_equal(result->stats.bytes[OT_LANE_H2D], 4 * T * SEQUENCES * sizeof(int32_t));
    assert_int_equal(result->stats.bytes[OT_LANE_D2H], sums);
    assert_int_equal(result->stats.bytes[OT_LANE_CPU], 0);
}

static void run(const ot_training *training, double lr, outcome *out)
{
    ot_dataset *data;
    ot_data_options options = {.T = T, .V = training->model->config.V, .shuffle = 1, .seed = 3};
    assert_int_equal(ot_dataset_open(&options, &data), OT_OK);
    ot_trainer *trainer;
    if (ot_trainer_open(training, &trainer) != OT_OK)
        fail_msg("%s", ot_error_text());
    for (uint64_t step = 0; step < STEPS; step++) {
        ot_step_result result;
        uint64_t trained = ot_dataset_fill(data, step, training->B, training->M, ot_trainer_data(trainer));
        assert_int_equal(trained, T * SEQUENCES);
        if (ot_trainer_step(trainer, lr, trained, &result) != OT_OK)
            fail_msg("%s", ot_error_text());
        out->loss[step] = result.loss;
        out->grad_norm[step] = result.grad_norm;
        expect_truth(trainer, &result, step == 0);
        expect_states_on_device(training, ot_trainer_plan(trainer), &result);
    }
    assert_int_equal(ot_trainer_hash(trainer, &out->hash), OT_OK);
    ot_trainer_close(trainer);
    ot_dataset_close(data);
}

/* ---- 1. Placement changes nothing ---- */

static const ot_placement on_device = {0, OT_TIER_DEVICE, 1}, on_host = {0, OT_TIER_HOST, 1},
                          on_nvme = {0, OT_TIER_NVME, 1}, mostly_host = {0, OT_TIER_HOST, 0.6},
                          half_device = {0, OT_TIER_DEVICE, 0.5}, any = {1, 0, 0};

static void place(ot_training *t, int which)
{
    const struct {
        ot_placement weights, states, grads, acts;
    } all[] = {
        {any, any, any, any},
        {on_device, on_host, on_host, on_device},
        {on_host, on_host, on_host, on_host},
        {on_device, on_nvme, on_host, on_device},
        {on_nvme, on_nvme, on_nvme, on_nvme},
        {on_host, mostly_host, on_nvme, on_host},
        {on_host, on_nvme, on_host, on_nvme},
        {half_device, mostly_host, on_host, on_host},
        {on_device, on_device, any, on_device},
        {on_host, half_device, on_nvme, on_host},
    };
    t->weights = all[which].weights;
    t->states = all[which].states;
    if (t->optimizer == OT_OPTIMIZER_ADAFACTOR && t->states.tier == OT_TIER_DEVICE)
        t->states = on_host; /* the device does not update them */
    t->grads = all[which].grads;
    t->acts = all[which].acts;
}

enum { PLACEMENTS = 10, VARIANTS = 6 };

/* Six ways to execute each of ten placements: 60 combinations. */
static void vary(ot_training *t, int variant)
{
    static const int threads[VARIANTS] = {2, 1, 3, 2, 1, 2}, depth[VARIANTS] = {0, 1, 2, 1, 3, 2};
    t->threads = threads[variant];
    t->prefetch_depth = depth[variant];
    t->overlap = variant != 1;
    t->io.backend = variant % 2 ? &ot_block_threads : &ot_block_uring;
    t->io.depth = variant == 4 ? 1 : 4;
    t->io.piece_bytes = variant == 2 ? 16 << 10 : 64 << 10;
    t->ring = variant == 3 ? 2 : 0;
    t->chunk_params = variant == 5 ? 2 * OT_SUM_BLOCK : 0;
    t->jitter_ns = variant >= 4 ? 20000 : 0;
    t->jitter_seed = (uint64_t)variant;
}

static void compare_all(ot_training base)
{
    outcome reference, other;
    run(&base, 1e-2, &reference);
    for (int placement = 0; placement < PLACEMENTS; placement++)
        for (int variant = 0; variant < VARIANTS; variant++) {
            if (!test_is_chosen(placement + 3 * variant))
                continue;
            ot_training t = base;
            place(&t, placement);
            vary(&t, variant);
            run(&t, 1e-2, &other);
            if (other.hash != reference.hash)
                print_error("placement %d, variant %d\n", placement, variant);
            assert_int_equal(other.hash, reference.hash);
            assert_memory_equal(other.loss, reference.loss, sizeof other.loss);
            assert_memory_equal(other.grad_norm, reference.grad_norm, sizeof other.grad_norm);
        }
}

static void placement_changes_nothing(void **state)
{
    (void)state;
    ot_model_config config = config_of(0);
    ot_model *model;
    assert_int_equal(ot_model_open(&config, &model), OT_OK);
    compare_all(training_for(model));
    ot_model_close(model);
}

/* A tied head, 8-bit moments, FP16 with a loss scale, the update inside backward, what backward computes again, and Adafactor,
 * each over all placements. */
static void placement_changes_nothing_elsewhere(void **state)
{
    (void)state;
    for (int which = 0; which < 8; which++) {
        ot_model_config config = config_of(1);
        config.qk_norm = which == 4;
        config.C = which >= 6 ? 72 : config.C; /* chunks end within rows */
        ot_model *model;
        assert_int_equal(ot_model_open(&config, &model), OT_OK);
        ot_training base = training_for(model), t;
        base.state_dtype = which == 1 ? OT_INT8 : OT_FP32;
        base.dtype = base.grad_dtype = which == 2 || which == 7 ? OT_FP16 : which == 3 ? OT_FP32 : OT_BF16;
        base.optimizer = which >= 6 ? OT_OPTIMIZER_ADAFACTOR : base.optimizer;
        base.max_grad_norm = which == 3 ? 0 : 1;
        outcome reference, other;
        run(&base, 1e-2, &reference);
        for (int placement = 0; placement < PLACEMENTS; placement++) {
            if (!test_is_chosen(placement + which))
                continue;
            t = base;
            place(&t, placement);
            vary(&t, (placement + which) % VARIANTS);
            if (which == 4 || which == 5)
                t.recompute = placement % 2 ? OT_RECOMPUTE_NONE : OT_RECOMPUTE_SELECTIVE;
            run(&t, 1e-2, &other);
            if (other.hash != reference.hash)
                print_error("kind %d, placement %d\n", which, placement);
            assert_int_equal(other.hash, reference.hash);
        }
        ot_model_close(model);
    }
}

/* ---- 4. Micro-batching changes nothing but rounding ---- */

static void micro_batches_change_rounding_only(void **state)
{
    (void)state;
    ot_model_config config = config_of(0);
    ot_model *model;
    assert_int_equal(ot_model_open(&config, &model), OT_OK);
    outcome whole, split;
    ot_training t = training_for(model);
    t.dtype = t.grad_dtype = OT_FP32;
    t.B = 4;
    t.M = 1;
    run(&t, 1e-2, &whole);
    for (size_t B = 1; B <= 2; B++) {
        t.B = B;
        t.M = SEQUENCES / B;
        run(&t, 1e-2, &split);
        for (int step = 0; step < STEPS; step++) {
            assert_true(fabs(split.loss[step] - whole.loss[step]) <= 1e-5 * whole.loss[step]);
            assert_true(fabs(split.grad_norm[step] - whole.grad_norm[step]) <= 1e-4 * whole.grad_norm[step]);
        }
    }
    ot_model_close(model);
}

/* ---- 5. lr = 0 gives the input back ---- */

static void a_learning_rate_of_zero_changes_nothing(void **state)
{
    (void)state;
    static const ot_dtype dtypes[] = {OT_BF16, OT_FP16, OT_FP32};
    ot_model_config config = config_of(0);
    ot_model *model;
    assert_int_equal(ot_model_open(&config, &model), OT_OK);
    for (size_t i = 0; i < 3; i++) {
        ot_training t = training_for(model);
        t.dtype = t.grad_dtype = dtypes[i];
        ot_trainer *trainer;
        uint64_t before;
        assert_int_equal(ot_trainer_open(&t, &trainer), OT_OK);
        assert_int_equal(ot_trainer_hash(trainer, &before), OT_OK);
        ot_trainer_close(trainer);
        for (int placement = 0; placement < PLACEMENTS; placement++) {
            if (!test_is_chosen(placement + (int)i))
                continue;
            outcome after;
            place(&t, placement);
            run(&t, 0, &after);
            assert_int_equal(after.hash, before);
        }
        outcome moved;
        run(&t, 1e-2, &moved);
        assert_int_not_equal(moved.hash, before);
    }
    ot_model_close(model);
}

/* ---- evaluation ---- */

/* The loss of the next step's forward, and nothing changes. */
static void evaluation_is_a_forward_pass(void **state)
{
    (void)state;
    ot_model_config config = config_of(1);
    ot_model *model;
    ot_dataset *data;
    ot_data_options options = {.T = T, .V = config.V, .seed = 3};
    assert_int_equal(ot_model_open(&config, &model), OT_OK);
    assert_int_equal(ot_dataset_open(&options, &data), OT_OK);
    for (int placement = 0; placement < PLACEMENTS; placement++) {
        ot_training t = training_for(model);
        place(&t, placement);
        ot_trainer *trainer;
        assert_int_equal(ot_trainer_open(&t, &trainer), OT_OK);
        ot_step_result first, second;
        double loss;
        uint64_t trained = ot_dataset_fill(data, 0, t.B, t.M, ot_trainer_data(trainer)), hash, again;
        assert_int_equal(ot_trainer_step(trainer, 1e-2, trained, &first), OT_OK);
        assert_int_equal(ot_trainer_evaluate(trainer, trained, &loss), OT_OK);
        assert_int_equal(ot_trainer_hash(trainer, &hash), OT_OK);
        assert_int_equal(ot_trainer_evaluate(trainer, trained, &loss), OT_OK);
        assert_int_equal(ot_trainer_hash(trainer, &again), OT_OK);
        assert_int_equal(hash, again);
        assert_int_equal(ot_trainer_step(trainer, 1e-2, trained, &second), OT_OK);
        assert_true(loss == second.loss);
        assert_true(second.loss < first.loss);
        ot_trainer_close(trainer);
    }
    ot_dataset_close(data);
    ot_model_close(model);
}

/* Weights of 16 bits are between two of bf16 for one FP32 master in eight, where rounding to even and rounding up differ. */
static ot_status fill_between(void *context, const ot_chunk_values *chunk)
{
    const ot_model *model = context;
    ot_model_random(model, chunk->layer, chunk->first, chunk->count, 11, chunk->master);
    for (uint64_t i = 0; i < chunk->count; i += 8) {
        uint32_t raw;
        memcpy(&raw, &chunk->master[i], sizeof raw);
        raw = (raw & 0xffff0000u) | (raw != 0 ? 0x8000u : 0);
        memcpy(&chunk->master[i], &raw, sizeof raw);
    }
    return OT_OK;
}

typedef struct kept_values {
    const ot_model *model;
    float *values; /* of all layers */
    uint64_t count;
} kept_values;

static ot_status keep(void *context, const ot_chunk_values *chunk)
{
    kept_values *kept = context;
    memcpy(kept->values + kept->count, chunk->master, chunk->count * sizeof(float));
    kept->count += chunk->count;
    return OT_OK;
}

static kept_values saved(ot_trainer *trainer, const ot_model *model)
{
    kept_values kept = {.model = model};
    uint64_t count = 0;
    for (size_t l = 0; l < model->layer_count; l++)
        count += model->layers[l].params;
    kept.values = malloc(count * sizeof(float));
    assert_non_null(kept.values);
    const ot_sink sink = {keep, &kept};
    assert_int_equal(ot_trainer_save(trainer, &sink), OT_OK);
    assert_int_equal(kept.count, count);
    return kept;
}

/* The weight of a master, by the raw pattern. */
static float weight_of(float master, ot_dtype dtype)
{
    uint32_t raw;
    memcpy(&raw, &master, sizeof raw);
    if (dtype == OT_BF16)
        raw = (raw + 0x8000u) & 0xffff0000u;
    memcpy(&master, &raw, sizeof raw);
    return master;
}

static kept_values evaluate_and_save(const ot_training *training, const ot_dataset *data, double *loss,
                                     uint64_t *device_bytes)
{
    ot_trainer *trainer;
    if (ot_trainer_open(training, &trainer) != OT_OK)
        fail_msg("%s", ot_error_text());
    uint64_t trained = ot_dataset_fill(data, 0, training->B, training->M, ot_trainer_data(trainer));
    assert_int_equal(ot_trainer_evaluate(trainer, trained, loss), OT_OK);
    const ot_plan *plan = ot_trainer_plan(trainer);
    for (int tier = 0; tier < OT_TIERS; tier++)
        assert_true(ot_trainer_peak_bytes(trainer, (ot_tier)tier) <= plan->peak_bytes[tier]);
    *device_bytes = plan->arena_bytes[OT_TIER_DEVICE];
    kept_values kept = saved(trainer, training->model);
    ot_trainer_close(trainer);
    return kept;
}

/* Without states an evaluation gives the same loss, bit for bit, in every placement, and what is saved is the weights. */
static void inference_evaluates_as_training_does(void **state)
{
    (void)state;
    static const ot_dtype dtypes[] = {OT_BF16, OT_FP16, OT_FP32};
    ot_model_config config = config_of(0);
    ot_model *model;
    ot_dataset *data;
    ot_data_options options = {.T = T, .V = config.V, .seed = 3};
    assert_int_equal(ot_model_open(&config, &model), OT_OK);
    assert_int_equal(ot_dataset_open(&options, &data), OT_OK);
    const ot_source source = {fill_between, model};
    for (size_t i = 0; i < 3; i++) {
        ot_training t = training_for(model);
        t.dtype = t.grad_dtype = dtypes[i];
        t.source = &source;
        double loss, again;
        uint64_t with_states, alone, changed = 0;
        kept_values masters = evaluate_and_save(&t, data, &loss, &with_states);
        t.inference = 1;
        for (int placement = 0; placement < PLACEMENTS; placement++) {
            place(&t, placement);
            kept_values weights = evaluate_and_save(&t, data, &again, &alone);
            assert_memory_equal(&again, &loss, sizeof loss);
            assert_true(alone < with_states);
            for (uint64_t k = 0; k < masters.count && dtypes[i] != OT_FP16; k++) {
                float expected = weight_of(masters.values[k], dtypes[i]);
                assert_memory_equal(&weights.values[k], &expected, sizeof expected);
                changed += masters.values[k] != expected;
            }
            free(weights.values);
        }
        assert_int_equal(changed > masters.count / 4, dtypes[i] == OT_BF16);
        free(masters.values);
    }
    ot_dataset_close(data);
    ot_model_close(model);
}

/* ---- a steady step ---- */

/* No page is touched for the first time and nothing is allocated once the run is under way. The matrix library warms up for
 * some steps. */
static void a_steady_step_allocates_nothing(void **state)
{
    (void)state;
    ot_model_config config = config_of(0);
    ot_model *model;
    ot_dataset *data;
    ot_data_options options = {.T = T, .V = config.V, .seed = 3};
    assert_int_equal(ot_model_open(&config, &model), OT_OK);
    assert_int_equal(ot_dataset_open(&options, &data), OT_OK);
    ot_training t = training_for(model);
    place(&t, 4);
    ot_trainer *trainer;
    assert_int_equal(ot_trainer_open(&t, &trainer), OT_OK);
    struct rusage before, after;
    ot_object_report objects_before = {0}, objects_after = {0};
    for (uint64_t step = 0; step < 60; step++) {
        if (step == 39 || step == 40) { /* the first call warms up the measurement itself */
            objects_before = ot_object_bytes();
            getrusage(RUSAGE_SELF, &before);
        }
        ot_step_result result;
        uint64_t trained = ot_dataset_fill(data, step, t.B, t.M, ot_trainer_data(trainer));
        assert_int_equal(ot_trainer_step(trainer, 1e-3, trained, &result), OT_OK);
    }
    getrusage(RUSAGE_SELF, &after);
    objects_after = ot_object_bytes();
    assert_in_range(after.ru_minflt - before.ru_minflt, 0, 4); /* a page a step would be 20 */
    assert_true(objects_after.allocated_bytes <= objects_before.allocated_bytes + 512);
    ot_trainer_close(trainer);
    ot_dataset_close(data);
    ot_model_close(model);
}

/* ---- faults ---- */

/* A gradient that is not finite ends the run with its name, or is passed over: then no byte changes. */
static void a_gradient_that_is_not_finite_is_named(void **state)
{
    (void)state;
    ot_model_config config = config_of(0);
    ot_model *model;
    assert_int_equal(ot_model_open(&config, &model), OT_OK);
    config = model->config;
    model->config.init_std = HUGE_VAL; /* weights that are not finite */
    for (int skip = 0; skip < 2; skip++) {
        ot_training t = training_for(model);
        t.skip_not_finite = skip;
        ot_trainer *trainer;
        uint64_t hash, again;
        assert_int_equal(ot_trainer_open(&t, &trainer), OT_OK);
        assert_int_equal(ot_trainer_hash(trainer, &hash), OT_OK);
        int32_t *data = ot_trainer_data(trainer);
        memset(data, 0, sizeof *data * 4 * T * SEQUENCES);
        ot_step_result result;
        ot_status status = ot_trainer_step(trainer, 1e-2, T * SEQUENCES, &result);
        assert_int_equal(status, skip ? OT_OK : OT_ERR_NUMERIC);
        if (skip)
            assert_true(result.skipped);
        else
            assert_non_null(strstr(ot_error_text(), "not finite"));
        assert_int_equal(ot_trainer_hash(trainer, &again), OT_OK);
        assert_int_equal(hash, again);
        ot_trainer_close(trainer);
    }
    ot_model_close(model);
}

/* Steps that overflow change no byte of what any tier holds: weights that the update writes and never reads, too. */
static void an_overflow_changes_nothing(void **state)
{
    (void)state;
    ot_model_config config = config_of(1);
    ot_model *model;
    assert_int_equal(ot_model_open(&config, &model), OT_OK);
    ot_training t = training_for(model);
    t.dtype = t.grad_dtype = OT_FP16;
    t.loss_scale = 1e30;
    outcome reference, other;
    run(&t, 1e-2, &reference);
    for (int placement = 0; placement < PLACEMENTS; placement++) {
        place(&t, placement);
        run(&t, 1e-2, &other);
        assert_int_equal(other.hash, reference.hash);
        for (int step = 0; step < STEPS; step++) {
            assert_true(!isfinite(other.grad_norm[step]));
            assert_memory_equal(&other.loss[step], &reference.loss[step], sizeof(double));
        }
    }
    ot_model_close(model);
}

/* Factors on the second block's feed-forward weights; the head's are large, so that the gradient is. */
typedef struct steep {
    const ot_model *model;
    float gate, up, down;
} steep;

static ot_status fill_steep(void *context, const ot_chunk_values *chunk)
{
    const steep *s = context;
    const ot_layer *layer = &s->model->layers[chunk->layer];
    ot_model_random(s->model, chunk->layer, chunk->first, chunk->count, 11, chunk->master);
    for (size_t i = 0; i < layer->tensor_count; i++) {
        const ot_tensor *tensor = &layer->tensors[i];
        int second = chunk->layer == 2;
        float factor = second && strstr(tensor->name, "gate_proj") != NULL   ? s->gate
                       : second && strstr(tensor->name, "up_proj") != NULL   ? s->up
                       : second && strstr(tensor->name, "down_proj") != NULL ? s->down
                       : strstr(tensor->name, "lm_head") != NULL             ? 1e3f
                                                                             : 1;
        for (uint64_t k = 0; k < tensor->rows * tensor->cols; k++)
            if (tensor->offset + k >= chunk->first && tensor->offset + k < chunk->first + chunk->count)
                chunk->master[tensor->offset + k - chunk->first] *= factor;
    }
    return OT_OK;
}

/* Steps until one fails, at most `limit`; returns how many there were. The loss is finite in all of them. */
static int steps_of_steep(const steep *s, double loss_scale, int limit, ot_status *status,
                          ot_step_result *result)
{
    const ot_source source = {fill_steep, (void *)s};
    ot_training t = training_for(s->model);
    t.dtype = t.grad_dtype = OT_FP16;
    t.loss_scale = loss_scale;
    t.source = &source;
    ot_trainer *trainer;
    int steps = 0;
    *status = OT_OK;
    assert_int_equal(ot_trainer_open(&t, &trainer), OT_OK);
    memset(ot_trainer_data(trainer), 0, sizeof(int32_t) * 4 * T * SEQUENCES);
    for (; *status == OT_OK && steps < limit; steps++) {
        *status = ot_trainer_step(trainer, 1e-2, T * SEQUENCES, result);
        assert_true(isfinite(result->loss) && !isfinite(result->grad_norm) && result->skipped);
    }
    ot_trainer_close(trainer);
    return steps;
}

/* Case 30: an overflow is told from a loss that is not finite; where no scale helps, the layer is named in which it begins, and
 * not one of those behind it in backward, which are as bad. A down projection as large as this makes all of them so. */
static void the_first_bad_layer_is_named(void **state)
{
    (void)state;
    ot_model_config config = config_of(0);
    ot_model *model;
    assert_int_equal(ot_model_open(&config, &model), OT_OK);
    const steep s = {model, 1, 0, 1e5f};
    ot_step_result result;
    ot_status status;
    assert_int_equal(steps_of_steep(&s, 0, 20, &status, &result), 17); /* from 65536 to 1 */
    assert_int_equal(status, OT_ERR_NUMERIC);
    assert_non_null(strstr(ot_error_text(), "the lowest there is"));
    if (strstr(ot_error_text(), model->layers[2].name) == NULL)
        fail_msg("'%s' does not name %s", ot_error_text(), model->layers[2].name);
    ot_model_close(model);
}

/* Case 29: a gradient that FP16 cannot hold has an infinite norm, which is no factor to clip by. */
static void an_infinite_norm_clips_nothing(void **state)
{
    (void)state;
    ot_model_config config = config_of(0);
    ot_model *model;
    assert_int_equal(ot_model_open(&config, &model), OT_OK);
    const steep s = {model, 100, 100, 1e-3f};
    ot_step_result result;
    ot_status status;
    steps_of_steep(&s, 1, 1, &status, &result);
    assert_int_equal(status, OT_OK);
    assert_true(isinf(result.grad_norm));
    assert_true(result.clip_factor == 1);
    ot_model_close(model);
}

/* ---- clipping ---- */

static ot_status fill_zero(void *context, const ot_chunk_values *chunk)
{
    (void)context;
    memset(chunk->master, 0, chunk->count * sizeof *chunk->master);
    return OT_OK;
}

/* Case 29: without momentum a clipped step is as long as the rate times the limit, however many micro-batches it has: a limit on
 * each of them would make it longer. */
static void one_norm_over_all_clips(void **state)
{
    (void)state;
    ot_model_config config = config_of(0);
    ot_model *model;
    ot_dataset *data;
    ot_data_options options = {.T = T, .V = config.V, .seed = 3};
    assert_int_equal(ot_model_open(&config, &model), OT_OK);
    assert_int_equal(ot_dataset_open(&options, &data), OT_OK);
    for (int which = 0; which < 4; which++) {
        const double lr = 0.5, limit = 0.01;
        ot_training t = training_for(model);
        t.dtype = t.grad_dtype = which < 2 ? OT_FP32 : OT_FP16;
        t.B = which % 2 ? 1 : SEQUENCES;
        t.M = SEQUENCES / t.B;
        t.optimizer = OT_OPTIMIZER_SGD;
        t.beta1 = t.weight_decay = 0;
        t.max_grad_norm = limit;
        ot_trainer *trainer;
        ot_step_result result;
        assert_int_equal(ot_trainer_open(&t, &trainer), OT_OK);
        kept_values before = saved(trainer, model);
        uint64_t trained = ot_dataset_fill(data, 0, t.B, t.M, ot_trainer_data(trainer));
        assert_int_equal(ot_trainer_step(trainer, lr, trained, &result), OT_OK);
        kept_values after = saved(trainer, model);
        double square = 0;
        for (uint64_t k = 0; k < after.count; k++)
            square += pow((double)after.values[k] - (double)before.values[k], 2);
        assert_true(result.grad_norm > 10 * limit);
        assert_true(fabs(result.clip_factor * result.grad_norm / limit - 1) < 1e-4);
        if (fabs(sqrt(square) / (lr * limit) - 1) > 1e-2)
            fail_msg("case %d: the step is %g long instead of %g", which, sqrt(square), lr * limit);
        free(before.values);
        free(after.values);
        ot_trainer_close(trainer);
    }
    ot_dataset_close(data);
    ot_model_close(model);
}

/* Case 29: a model of zeros has no gradient, and a loss of log V. */
static void a_norm_of_zero_is_legal(void **state)
{
    (void)state;
    ot_model_config config = config_of(0);
    ot_model *model;
    assert_int_equal(ot_model_open(&config, &model), OT_OK);
    const ot_source source = {fill_zero, model};
    ot_training t = training_for(model);
    t.source = &source;
    ot_trainer *trainer;
    assert_int_equal(ot_trainer_open(&t, &trainer), OT_OK);
    memset(ot_trainer_data(trainer), 0, sizeof(int32_t) * 4 * T * SEQUENCES);
    for (int step = 0; step < STEPS; step++) {
        ot_step_result result;
        assert_int_equal(ot_trainer_step(trainer, 1e-2, T * SEQUENCES, &result), OT_OK);
        assert_true(result.grad_norm == 0 && result.clip_factor == 1 && !result.skipped);
        assert_true(fabs(result.loss - log((double)config.V)) < 1e-5);
    }
    kept_values after = saved(trainer, model);
    for (uint64_t k = 0; k < after.count; k++)
        assert_true(after.values[k] == 0);
    free(after.values);
    ot_trainer_close(trainer);
    ot_model_close(model);
}

/* ---- a stop while loading ---- */

static ot_status fill_and_stop(void *context, const ot_chunk_values *chunk)
{
    int *fills = context;
    if (++*fills == 3)
        raise(SIGTERM);
    return fill_zero(NULL, chunk);
}

/* Case 25: the filling ends at once, and nothing is left on the drive. */
static void a_stop_ends_the_load(void **state)
{
    (void)state;
    ot_model_config config = config_of(0);
    ot_model *model;
    assert_int_equal(ot_model_open(&config, &model), OT_OK);
    int fills = 0;
    const ot_source source = {fill_and_stop, &fills};
    ot_training t = training_for(model);
    t.source = &source;
    t.chunk_params = 2 * OT_SUM_BLOCK;
    t.threads = 1;
    place(&t, 4);
    ot_trainer *trainer;
    ot_stop_install();
    assert_int_equal(ot_trainer_open(&t, &trainer), OT_STOPPED_TERM);
    assert_in_range(fills, 3, 4);
    ot_model_close(model);
}

/* "steady" runs alone, in a process that nothing has allocated in before; "stopped" in one that is asked to stop for good;
 * "invariants" are a part, for emulated devices. */
int main(int argc, char **argv)
{
    const struct CMUnitTest steady[] = {cmocka_unit_test(a_steady_step_allocates_nothing)};
    if (argc > 1 && strcmp(argv[1], "steady") == 0)
        return cmocka_run_group_tests(steady, open_folder, close_folder);
    const struct CMUnitTest stopped[] = {cmocka_unit_test(a_stop_ends_the_load)};
    if (argc > 1 && strcmp(argv[1], "stopped") == 0)
        return cmocka_run_group_tests(stopped, open_folder, close_folder);
    const struct CMUnitTest invariants[] = {
        cmocka_unit_test(placement_changes_nothing),
        cmocka_unit_test(placement_changes_nothing_elsewhere),
        cmocka_unit_test(micro_batches_change_rounding_only),
        cmocka_unit_test(a_learning_rate_of_zero_changes_nothing),
    };
    if (argc > 1 && strcmp(argv[1], "invariants") == 0)
        return cmocka_run_group_tests(invariants, open_folder, close_folder);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(placement_changes_nothing),
        cmocka_unit_test(placement_changes_nothing_elsewhere),
        cmocka_unit_test(micro_batches_change_rounding_only),
        cmocka_unit_test(a_learning_rate_of_zero_changes_nothing),
        cmocka_unit_test(evaluation_is_a_forward_pass),
        cmocka_unit_test(inference_evaluates_as_training_does),
        cmocka_unit_test(a_gradient_that_is_not_finite_is_named),
        cmocka_unit_test(an_overflow_changes_nothing),
        cmocka_unit_test(the_first_bad_layer_is_named),
        cmocka_unit_test(an_infinite_norm_clips_nothing),
        cmocka_unit_test(one_norm_over_all_clips),
        cmocka_unit_test(a_norm_of_zero_is_legal),
    };
    return cmocka_run_group_tests(tests, open_folder, close_folder);
}
