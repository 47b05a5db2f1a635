/* What has to be seen on a real card, in one short table: gpu_check [tiny].
 *
 * Every kernel against the CPU device; a small model's losses on both; placements and overlap, byte by byte; the peak
 * under the cap; then speeds. "tiny" is for the emulated card: smaller, and without speeds. Exit code 1 where a line says
 * FAIL. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/data.h"
#include "tests/cuda/gpu_check.h"
#include "tests/support/tiny.h"

static int failures;

void check_line(const char *what, const char *found, int passed)
{
    printf("%-44s %-34s %s\n", what, found, passed < 0 ? "" : passed ? "ok" : "FAIL");
    fflush(stdout);
    failures += passed == 0;
}

void check_fail(const char *what)
{
    check_line(what, ot_error_text(), 0);
}

/* ---- A small model ---- */

enum { T = 32, LOSSES = 20 };

static ot_training training_for(const ot_model *model, const char *device, ot_dtype dtype, ot_placement place)
{
    ot_training training = tiny_training(model);
    training.T = T;
    training.M = 2;
    training.dtype = training.grad_dtype = dtype;
    training.loss_scale = dtype == OT_FP16 ? 1024 : 0;
    training.weights = training.states = training.grads = training.acts = place;
    training.budget[OT_TIER_DEVICE] = UINT64_C(6) << 30;
    training.device = device;
    return training;
}

typedef struct outcome {
    double loss[LOSSES];
    uint64_t hash, peak_bytes;
} outcome;

static ot_status train(const ot_training *training, int steps, outcome *out)
{
    ot_dataset *data = NULL;
    ot_trainer *trainer = NULL;
    ot_status status;
    ot_data_options options = {.T = T, .V = training->model->config.V, .shuffle = 1, .seed = 3};
    OT_TRY_GOTO(ot_dataset_open(&options, &data), out);
    OT_TRY_GOTO(ot_trainer_open(training, &trainer), out);
    for (int step = 0; step < steps; step++) {
        ot_step_result result;
        uint64_t trained =
            ot_dataset_fill(data, (uint64_t)step, training->B, training->M, ot_trainer_data(trainer));
        OT_TRY_GOTO(ot_trainer_step(trainer, 1e-3, trained, &result), out);
        out->loss[step] = result.loss;
    }
    out->peak_bytes = ot_trainer_peak_bytes(trainer, OT_TIER_DEVICE);
    OT_TRY_GOTO(ot_trainer_hash(trainer, &out->hash), out);
out:
    ot_trainer_close(trainer);
    ot_dataset_close(data);
    return status;
}

static void check_losses(const ot_model *model)
{
    static const ot_dtype dtypes[] = {OT_FP32, OT_BF16, OT_FP16};
    for (int d = 0; d < 3; d++) {
        ot_placement any = {1, 0, 0};
        ot_training cpu = training_for(model, "cpu", dtypes[d], any),
                    cuda = training_for(model, "cuda", dtypes[d], any);
        char what[64], found[64];
        outcome expected, got;
        snprintf(what, sizeof what, "20 losses beside the CPU's, %s", ot_dtype_name(dtypes[d]));
        if (train(&cpu, LOSSES, &expected) != OT_OK || train(&cuda, LOSSES, &got) != OT_OK) {
            check_fail(what);
            continue;
        }
        double worst = 0;
        for (int i = 0; i < LOSSES; i++)
            worst = fmax(worst, fabs(got.loss[i] - expected.loss[i]));
        snprintf(found, sizeof found, "%.4f to %.4f, apart %.1e", got.loss[0], got.loss[LOSSES - 1], worst);
        check_line(what, found, worst <= 1e-3);
    }
}

static void check_placements(const ot_model *model)
{
    const ot_placement places[] = {{0, OT_TIER_DEVICE, 1}, {0, OT_TIER_HOST, 1}, {0, OT_TIER_DEVICE, 0.5}};
    outcome first = {.hash = 0}, other;
    char found[64];
    int same = 1, runs = 0;
    for (int overlap = 1; overlap >= 0; overlap--)
        for (int p = 0; p < 3; p++, runs++) {
            ot_training t = training_for(model, "cuda", OT_BF16, places[p]);
            if (p != 1) /* the CPU updates: what it works on is on the host */
                t.states = t.grads = places[1];
            t.overlap = overlap;
            if (train(&t, 3, runs == 0 ? &first : &other) != OT_OK) {
                check_fail("placements and overlap, byte by byte");
                return;
            }
            same &= runs == 0 || (other.hash == first.hash &&
                                  memcmp(other.loss, first.loss, 3 * sizeof first.loss[0]) == 0);
        }
    snprintf(found, sizeof found, "%d runs, %s", runs, same ? "all the same" : "different");
    check_line("placements and overlap, byte by byte", found, same);
    snprintf(found, sizeof found, "%.0f of 6144 MiB", (double)first.peak_bytes / (1 << 20));
    check_line("peak under --gpu-mem 6G", found, first.peak_bytes <= UINT64_C(6) << 30);
}

int main(int count, char **arguments)
{
    int tiny = count > 1 && strcmp(arguments[1], "tiny") == 0;
    ot_device *cuda;
    ot_device_options options = {.kind = "cuda", .memory_bytes = UINT64_C(6) << 30};
    if (ot_device_open(&options, &cuda) != OT_OK) {
        fprintf(stderr, "%s\n", ot_error_text());
        return 2;
    }
    ot_device_info info;
    ot_device_query(cuda, &info);
    printf("%s, %s, %d multiprocessors, context %.0f MiB\n", info.name, info.isa, info.units,
           (double)info.own_bytes / (1 << 20));
    check_kernels(cuda);
    if (!tiny)
        check_speeds(cuda);
    ot_device_close(cuda);
    ot_model *model;
    ot_model_config config = tiny_config;
    config.C = config.HD = 64;
    config.F = 160;
    if (ot_model_open(&config, &model) != OT_OK)
        return 2;
    check_losses(model);
    check_placements(model);
    ot_model_close(model);
    printf("%s\n", failures > 0 ? "FAILED" : "passed");
    return failures > 0;
}
