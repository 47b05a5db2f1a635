/* The engine on the emulated CUDA device: it learns what the CPU device learns, waits for the device at the end of a step
 * only, and gives the same bytes for every seed and both ways to run. */
#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "engine/data.h"
#include "engine/trainer.h"
#include "io/log.h"
#include "tests/cuda/emulator.h"
#include "tests/support/tiny.h"
#include "tests/support/tree.h"

enum { T = 24, SEQUENCES = 2, LOSSES = TEST_IS_SLOW ? 8 : 20, CLOCK_TRIES = 3, DEVICE_STREAMS = 3 };

static ot_model *open_model(void)
{
    ot_model *model;
    assert_int_equal(ot_model_open(&tiny_config, &model), OT_OK);
    return model;
}

static ot_training training_for(const ot_model *model, const char *device, ot_dtype dtype)
{
    ot_training training = tiny_training(model);
    training.T = T;
    training.M = SEQUENCES;
    training.dtype = training.grad_dtype = dtype;
    training.loss_scale = dtype == OT_FP16 ? 1024 : 0;
    training.device = device;
    return training;
}

typedef struct outcome {
    double loss[LOSSES];
    uint64_t hash;
    uint64_t host_syncs; /* the most in one step */
} outcome;

/* A run between two of its parts: its planes in the order in which the trainer hands them over, and its state. */
typedef struct kept_run {
    unsigned char *planes;
    size_t bytes, at;
    ot_trainer_state state;
} kept_run;

enum { STATES_MAX = 1 << 21 };

/* Of one chunk, in FP32. */
static ot_status each_plane(kept_run *kept, const ot_chunk_values *chunk, int fill)
{
    void *planes[] = {chunk->master, chunk->moment1, chunk->moment2};
    for (int i = 0; i < 3; i++) {
        size_t bytes = chunk->count * sizeof(float);
        assert_true(planes[i] != NULL && kept->at + bytes <= STATES_MAX);
        if (fill)
            memcpy(planes[i], kept->planes + kept->at, bytes);
        else
            memcpy(kept->planes + kept->at, planes[i], bytes);
        kept->at += bytes;
    }
    return OT_OK;
}

static ot_status fill(void *context, const ot_chunk_values *chunk)
{
    return each_plane(context, chunk, 1);
}

static ot_status take(void *context, const ot_chunk_values *chunk)
{
    return each_plane(context, chunk, 0);
}

/* Steps `first` to `end` - 1, from what `kept` holds where first > 0, into which the end of them goes. */
static void train_part(ot_training training, int first, int end, kept_run *kept, outcome *out)
{
    const ot_source source = {fill, kept};
    const ot_sink sink = {take, kept};
    ot_dataset *data;
    ot_data_options options = {.T = T, .V = training.model->config.V, .shuffle = 1, .seed = 3};
    assert_int_equal(ot_dataset_open(&options, &data), OT_OK);
    training.source = first > 0 ? &source : NULL;
    kept->at = 0;
    ot_trainer *trainer;
    if (ot_trainer_open(&training, &trainer) != OT_OK)
        fail_msg("%s", ot_error_text());
    if (first > 0)
        ot_trainer_set_state(trainer, &kept->state);
    for (int step = first; step < end; step++) {
        ot_step_result result;
        uint64_t trained =
            ot_dataset_fill(data, (uint64_t)step, training.B, training.M, ot_trainer_data(trainer));
        if (ot_trainer_step(trainer, 3e-3, trained, &result) != OT_OK)
            fail_msg("%s", ot_error_text());
        out->loss[step] = result.loss;
    }
    kept->at = 0;
    assert_int_equal(ot_trainer_save(trainer, &sink), OT_OK);
    kept->bytes = kept->at;
    kept->state = ot_trainer_get_state(trainer);
    ot_trainer_close(trainer);
    ot_dataset_close(data);
}

static void train(const ot_training *training, int steps, outcome *out)
{
    ot_dataset *data;
    ot_data_options options = {.T = T, .V = training->model->config.V, .shuffle = 1, .seed = 3};
    assert_int_equal(ot_dataset_open(&options, &data), OT_OK);
    ot_trainer *trainer;
    if (ot_trainer_open(training, &trainer) != OT_OK)
        fail_msg("%s", ot_error_text());
    out->host_syncs = 0;
    for (int step = 0; step < steps; step++) {
        ot_step_result result;
        uint64_t trained =
            ot_dataset_fill(data, (uint64_t)step, training->B, training->M, ot_trainer_data(trainer));
        uint64_t before = fakecuda_count().host_syncs;
        if (ot_trainer_step(trainer, 3e-3, trained, &result) != OT_OK)
            fail_msg("%s", ot_error_text());
        uint64_t waits = fakecuda_count().host_syncs - before;
        out->host_syncs = waits > out->host_syncs ? waits : out->host_syncs;
        out->loss[step] = result.loss;
    }
    assert_int_equal(ot_trainer_hash(trainer, &out->hash), OT_OK);
    ot_trainer_close(trainer);
    ot_dataset_close(data);
}

static void it_learns_what_the_cpu_device_learns(void **state)
{
    (void)state;
    static const ot_dtype dtypes[] = {OT_FP32, OT_BF16, OT_FP16};
    if (FIRST_MODE == 1)
        skip(); /* minutes under ThreadSanitizer, and the same operations as below */
    ot_model *model = open_model();
    fakecuda_configure(&(fakecuda_options){.seed = 1, .threads = FIRST_MODE});
    for (int d = 0; d < 3; d++) {
        ot_training cpu = training_for(model, "cpu", dtypes[d]),
                    cuda = training_for(model, "cuda", dtypes[d]);
        outcome expected, found;
        train(&cpu, LOSSES, &expected);
        train(&cuda, LOSSES, &found);
        double worst = 0;
        for (int step = 0; step < LOSSES; step++)
            worst = fmax(worst, fabs(found.loss[step] - expected.loss[step]));
        print_message("%s: losses %.4f to %.4f, largest difference %.2g\n", ot_dtype_name(dtypes[d]),
                      expected.loss[0], expected.loss[LOSSES - 1], worst);
        assert_true(expected.loss[LOSSES - 1] < expected.loss[0] - 0.05);
        assert_true(worst <= 1e-3);
    }
    ot_model_close(model);
}

static const ot_placement half_device = {0, OT_TIER_DEVICE, 0.5}, on_device = {0, OT_TIER_DEVICE, 1};

/* Everything on the host, so that all of it moves in each step. */
static ot_training moving(const ot_model *model)
{
    const ot_placement on_host = {0, OT_TIER_HOST, 1};
    ot_training training = training_for(model, "cuda", OT_BF16);
    training.weights = training.states = training.grads = training.acts = on_host;
    return training;
}

static void a_step_waits_at_its_end_only(void **state)
{
    (void)state;
    ot_model *model = open_model();
    fakecuda_configure(&(fakecuda_options){.seed = 5, .threads = FIRST_MODE});
    ot_training training = moving(model);
    outcome out[2];
    for (int device = 0; device < 2; device++) {
        if (device)
            training.states = half_device;
        train(&training, FIRST_MODE == 1 ? 2 : 3, &out[device]);
        assert_in_range(out[device].host_syncs, 1,
                        CLOCK_TRIES + DEVICE_STREAMS); /* of hundreds of operations */
    }
    assert_int_equal(out[1].hash, out[0].hash);
    fakecuda_counters counted = fakecuda_count();
    assert_int_equal(counted.pageable_copies, 0);
    assert_int_equal(counted.refused, 0);
    assert_int_equal(counted.pinned_bytes, 0); /* given back */
    assert_true(counted.h2d_bytes > 0 && counted.d2h_bytes > 0 && counted.products > 0);
    ot_model_close(model);
}

/* With all states on the device nothing crosses in a step but its data and the update's numbers, and loss and sums; and the update
 * there gives the CPU's bytes. */
static void states_on_the_device_stay_there(void **state)
{
    (void)state;
    if (FIRST_MODE == 1)
        skip();
    enum { STEPS = 3 };
    ot_model *model = open_model();
    for (int in_backward = 0; in_backward < 2; in_backward++) {
        ot_training training = moving(model);
        outcome host, device;
        uint64_t up[2], down[2];
        training.max_grad_norm = in_backward ? 0 : 1;
        fakecuda_configure(&(fakecuda_options){.seed = 8, .threads = FIRST_MODE});
        train(&training, STEPS, &host);
        training.weights = training.states = training.acts = (ot_placement){0, OT_TIER_DEVICE, 1};
        for (int more = 0; more < 2; more++) {
            fakecuda_configure(&(fakecuda_options){.seed = 9, .threads = FIRST_MODE});
            train(&training, STEPS - 1 + more, &device);
            up[more] = fakecuda_count().h2d_bytes;
            down[more] = fakecuda_count().d2h_bytes;
        }
        assert_int_equal(device.hash, host.hash);
        assert_memory_equal(device.loss, host.loss, STEPS * sizeof host.loss[0]);
        uint64_t sums = 0;
        for (size_t l = 0; l < model->layer_count; l++)
            sums += (model->layers[l].params + OT_SUM_BLOCK - 1) / OT_SUM_BLOCK * sizeof(double);
        assert_int_equal(up[1] - up[0], 4 * T * SEQUENCES * sizeof(int32_t) + 2 * sizeof(ot_update_step));
        assert_int_equal(down[1] - down[0], sums + sizeof(double));
    }
    ot_model_close(model);
}

static int lines;

static void count_lines(ot_log_level level, const char *line)
{
    lines += level == OT_LOG_WARNING && strstr(line, "pinning host memory stopped after") != NULL &&
             strstr(line, "cudaError2") != NULL && strstr(line, "ulimit -l") != NULL;
}

/* Where nothing but the small rings can be pinned, the same bytes, no wait more, and one line. */
static void a_run_that_cannot_pin_gives_the_same(void **state)
{
    (void)state;
    enum { STEPS = 2 };
    ot_model *model = open_model();
    ot_training training = moving(model);
    outcome pinned, not_pinned;
    fakecuda_configure(&(fakecuda_options){.seed = 4, .threads = FIRST_MODE});
    train(&training, STEPS, &pinned);
    fakecuda_configure(&(fakecuda_options){.seed = 4, .threads = FIRST_MODE, .pin_bytes = RING_BYTES + MIB});
    lines = 0;
    ot_log_open(OT_LOG_WARNING, count_lines);
    train(&training, STEPS, &not_pinned);
    ot_log_open(OT_LOG_WARNING, NULL);
    assert_int_equal(lines, 1);
    assert_int_equal(not_pinned.hash, pinned.hash);
    assert_memory_equal(not_pinned.loss, pinned.loss, STEPS * sizeof pinned.loss[0]);
    assert_in_range(not_pinned.host_syncs, 1, CLOCK_TRIES + DEVICE_STREAMS);
    assert_int_equal(fakecuda_count().pageable_copies, 0);
    ot_model_close(model);
}

static void count_nodes(ot_log_level level, const char *line)
{
    lines += level == OT_LOG_INFO &&
             strstr(line, "Emulated GPU 0 at 0000:01:00.0 is nearest to memory node 0") != NULL;
}

/* Once a run, and with the numbers of any other. */
static void a_run_goes_near_its_card(void **state)
{
    (void)state;
    char *root = tree_open();
    tree_write(root, "/sys/bus/pci/devices/0000:01:00.0/numa_node", "0\n");
    ot_model *model = open_model();
    ot_training training = moving(model);
    outcome anywhere, near;
    fakecuda_configure(&(fakecuda_options){.seed = 4, .threads = FIRST_MODE});
    train(&training, 2, &anywhere);
    fakecuda_configure(&(fakecuda_options){.seed = 4, .threads = FIRST_MODE, .root = root});
    lines = 0;
    ot_log_open(OT_LOG_INFO, count_nodes);
    train(&training, 2, &near);
    ot_log_open(OT_LOG_WARNING, NULL);
    assert_int_equal(lines, 1);
    assert_int_equal(near.hash, anywhere.hash);
    fakecuda_configure(&(fakecuda_options){.seed = 4, .threads = FIRST_MODE});
    ot_model_close(model);
    tree_close(root);
}

/* k + j steps are k, and j in another placement, after another order of the device's work: with states on the device after the
 * host, and on the host after the device. */
static void resuming_elsewhere_changes_nothing(void **state)
{
    (void)state;
    if (FIRST_MODE == 1)
        skip();
    enum { K = 2, END = 4, WAYS = 2 };
    ot_model *model = open_model();
    kept_run whole = {.planes = malloc(STATES_MAX)}, parts = {.planes = malloc(STATES_MAX)};
    assert_true(whole.planes != NULL && parts.planes != NULL);
    for (int way = 0; way < WAYS; way++) {
        outcome first = {.loss = {0}}, other = {.loss = {0}};
        ot_training training = moving(model), elsewhere;
        training.dtype = training.grad_dtype = way ? OT_FP16 : OT_BF16; /* with a dynamic scale */
        elsewhere = training;
        elsewhere.weights = elsewhere.states = way ? half_device : on_device;
        elsewhere.acts = on_device;
        fakecuda_configure(&(fakecuda_options){.seed = 1});
        train_part(training, 0, END, &whole, &first);
        fakecuda_configure(&(fakecuda_options){.seed = 2 + (uint64_t)way, .threads = !way});
        train_part(way ? elsewhere : training, 0, K, &parts, &other);
        fakecuda_configure(&(fakecuda_options){.seed = 12 + (uint64_t)way, .threads = way});
        train_part(way ? training : elsewhere, K, END, &parts, &other);
        assert_memory_equal(other.loss, first.loss, END * sizeof first.loss[0]);
        assert_int_equal(parts.bytes, whole.bytes);
        assert_memory_equal(parts.planes, whole.planes, whole.bytes);
        assert_int_equal(parts.state.updates, whole.state.updates);
        assert_true(parts.state.loss_scale.scale == whole.state.loss_scale.scale);
    }
    free(whole.planes);
    free(parts.planes);
    ot_model_close(model);
}

static void the_order_of_the_device_changes_nothing(void **state)
{
    (void)state;
    if (FIRST_MODE == 1)
        skip(); /* minutes under ThreadSanitizer, and the same operations as above */
    enum { STEPS = 2 };
    ot_model *model = open_model();
    ot_training training = moving(model);
    outcome first = {.loss = {0}}, other;
    fakecuda_options options = {0};
    FOR_EVERY_RUN(options)
    {
        train(&training, STEPS, first.loss[0] == 0 ? &first : &other);
        if (memcmp(first.loss, other.loss, STEPS * sizeof first.loss[0]) != 0 &&
            seed_ + (uint64_t)mode_ > 1 + FIRST_MODE)
            fail_msg("threads %d, seed %d: loss %.17g, expected %.17g", options.threads, (int)options.seed,
                     other.loss[STEPS - 1], first.loss[STEPS - 1]);
    }
    ot_model_close(model);
}

/* With --gpu-mem a hair above what is planned the run fits, and the card never holds more than that. */
static void the_cap_holds(void **state)
{
    (void)state;
    if (FIRST_MODE == 1)
        skip();
    ot_model *model = open_model();
    fakecuda_configure(&(fakecuda_options){.seed = 2, .threads = FIRST_MODE});
    ot_training training = training_for(model, "cuda", OT_BF16);
    training.budget[OT_TIER_DEVICE] = 128 * MIB;
    outcome out;
    train(&training, 2, &out);
    assert_in_range(fakecuda_count().device_peak_bytes, 60 * MIB, 128 * MIB);
    training.budget[OT_TIER_DEVICE] = 92 * MIB; /* 88 of them for the context */
    ot_trainer *trainer;
    assert_int_equal(ot_trainer_open(&training, &trainer), OT_ERR_FIT);
    ot_model_close(model);
}

int main(void)
{
    use_emulator();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_learns_what_the_cpu_device_learns),
        cmocka_unit_test(a_step_waits_at_its_end_only),
        cmocka_unit_test(states_on_the_device_stay_there),
        cmocka_unit_test(a_run_that_cannot_pin_gives_the_same),
        cmocka_unit_test(a_run_goes_near_its_card),
        cmocka_unit_test(resuming_elsewhere_changes_nothing),
        cmocka_unit_test(the_order_of_the_device_changes_nothing),
        cmocka_unit_test(the_cap_holds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
