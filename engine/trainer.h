/* The trainer: a model in training. Ties the plan, the mover and the computation together and offers one step at a time.
 *
 *     ot_trainer_open → ot_trainer_step … → ot_trainer_drain → ot_trainer_hash → ot_trainer_close
 *
 * One thread at a time. With several ranks all of them make the same calls in the same order, and get the same results. */
#ifndef OT_ENGINE_TRAINER_H
#define OT_ENGINE_TRAINER_H

#include "engine/lossscale.h"
#include "engine/model.h"
#include "engine/values.h"
#include "io/host.h"
#include "io/status.h"
#include "kernels/collective.h"
#include "kernels/device.h"
#include "offload/mover.h"
#include "offload/plan.h"

/* Everything that decides the numbers and where they lie, but not the data, the number of steps or the learning rate. */
typedef struct ot_training {
    const ot_model *model; /* outlives the trainer */
    size_t B, T, M;        /* a step: M micro-batches of B sequences of T tokens */
    ot_dtype dtype;        /* weights and activations: OT_BF16, OT_FP16, OT_FP32 */
    ot_dtype state_dtype;  /* moments: OT_FP32, OT_BF16, OT_INT8 */
    ot_dtype grad_dtype;   /* as gradients cross to the host */
    ot_optimizer optimizer;
    float beta1, beta2, eps, weight_decay;
    double max_grad_norm; /* 0: no clipping */
    double loss_scale;    /* FP16: a fixed scale; 0: dynamic. Otherwise ignored */
    int skip_not_finite;  /* 1: a step whose gradient is not finite changes nothing; 0: it ends the run */
    uint64_t seed;
    const ot_source
        *source;       /* of the model's values, while the trainer opens; NULL: random weights of the seed */
    size_t loss_chunk; /* tokens whose logits exist at once; 0: chosen */
    ot_recompute recompute;
    int inference; /* 1: only weights exist: evaluation and saving alone, with the numbers of a training */

    ot_placement weights, states, grads, acts;
    int prefetch_depth, ring, overlap; /* 0: the plan's; overlap: 1 or 0 */
    uint64_t chunk_params;             /* 0: the plan's */
    uint64_t budget[OT_TIERS];
    ot_rates rates;

    const char *device; /* its kind (kernels/device.h); NULL: the best */
    int ordinal; /* which of several devices; with ranks, this one's number among those of its machine */
    int threads; /* 0: from affinity and quota */
    int ranks,
        rank; /* of a group whose ranks all train with this, B and M being one rank's; 0 or 1 ranks: alone */
    int zero; /* ZeRO stage (plan.h): 1, 2, 3; 0: 3, and 1 with Adafactor, which needs whole gradients */
    ot_group *group;          /* outlives the trainer; NULL: alone, or only planned */
    ot_device *sizing_device; /* asked for its kernels' workspaces; NULL: they are estimated */
    uint64_t jitter_seed;
    int64_t jitter_ns;
    const char *const *directories; /* of the NVMe tier */
    size_t directory_count;
    ot_block_options io;
} ot_training;

/* Makes the plan alone, which the caller frees. OT_ERR_FIT as ot_plan_make. */
ot_status ot_training_plan(const ot_training *training, ot_plan **out) OT_MUST_CHECK;

/* The same by ot_plan_outline, and by ot_plan_fits. */
ot_status ot_training_outline(const ot_training *training, ot_plan **out) OT_MUST_CHECK;
ot_status ot_training_fits(const ot_training *training) OT_MUST_CHECK;

typedef struct ot_trainer ot_trainer;

/* Plans, allocates everything, and fills the model from the source. A stop signal ends the filling: ot_stop_check's status. */
ot_status ot_trainer_open(const ot_training *training, ot_trainer **out) OT_MUST_CHECK;
void ot_trainer_close(ot_trainer *trainer); /* NULL is allowed */

/* Host memory for the data of the next step, for the caller to fill before each step: M micro-batches, each of them B*T
 * tokens, B*T targets, B*T positions, B*T document starts (compute.h, ot_batch). */
int32_t *ot_trainer_data(ot_trainer *trainer);

typedef struct ot_step_result {
    ot_list_kind list;       /* what was executed: FIRST or STEADY */
    double loss;             /* mean over the trained tokens */
    uint64_t trained_tokens; /* of all ranks */
    double grad_norm;        /* of the unscaled gradient, before clipping */
    double clip_factor;
    double loss_scale; /* this step's */
    int skipped;
    ot_mover_stats stats; /* of the step's list */
    double seconds, forward_s, backward_s;
    double update_exposed_s; /* time the forward pass stood still for the update of the step before */
} ot_step_result;

/* One step on the data: the update of the step before, forward, backward. Its own update, with learning rate `lr`, follows
 * inside the next step or in ot_trainer_drain, with the same numbers as at once. `trained_tokens` > 0 counts the targets
 * that are not -1, with several ranks this one's (and 0 is allowed on all but one). OT_ERR_NUMERIC where loss or gradient
 * is not finite and that ends the run; the model is then as it was after the last good step, unless the plan updates
 * inside backward. */
ot_status ot_trainer_step(ot_trainer *trainer, double lr, uint64_t trained_tokens,
                          ot_step_result *result) OT_MUST_CHECK;

/* Runs the update that is still due, if one is. */
ot_status ot_trainer_drain(ot_trainer *trainer) OT_MUST_CHECK;

/* Mean loss over `trained_tokens` > 0 of the data, those of all ranks; nothing changed. Drains first. */
ot_status ot_trainer_evaluate(ot_trainer *trainer, uint64_t trained_tokens, double *loss) OT_MUST_CHECK;

/* logits [V] (FP32, host) of one row of one sequence of the first micro-batch: the forward pass over it, and of the head that
 * row alone; the targets are not read. `sequence` < B, `row` < T. Nothing is changed. Drains first. */
ot_status ot_trainer_logits(ot_trainer *trainer, size_t sequence, size_t row, float *logits) OT_MUST_CHECK;

/* Hands the whole model to the sink of rank 0 (others' are not used), which outlives the call; for inference the
 * weights as they are, in place of masters. Drains first. */
ot_status ot_trainer_save(ot_trainer *trainer, const ot_sink *sink) OT_MUST_CHECK;

/* XXH3 over all FP32 masters in model order, padding left out; for inference over the weights. Drains first. */
ot_status ot_trainer_hash(ot_trainer *trainer, uint64_t *hash) OT_MUST_CHECK;

/* Adafactor's second moments in host memory, as long as the trainer is open: of each tensor in model order its rows', then
 * its columns'; of a vector its elements'. To be read after a drain and written before the first step. NULL and 0 with
 * another optimizer. */
float *ot_trainer_factors(ot_trainer *trainer, size_t *count);

/* What the numbers of the steps to come depend on beside the model's values. Plain data. */
typedef struct ot_trainer_state {
    uint64_t updates; /* made so far, skipped steps not counted */
    ot_loss_scale loss_scale;
} ot_trainer_state;

/* As after the last step, its update included. */
ot_trainer_state ot_trainer_get_state(const ot_trainer *trainer);

/* Before the first step: goes on from there. */
void ot_trainer_set_state(ot_trainer *trainer, const ot_trainer_state *state);

/* Runs the kernels of a steady step, updates included, one after the other on one stream, without moving anything, and
 * gives the seconds they take: what a step costs beyond them is the engine's doing. The model is of no use afterwards. */
ot_status ot_trainer_time_kernels(ot_trainer *trainer, double *seconds) OT_MUST_CHECK;

const ot_plan *ot_trainer_plan(const ot_trainer *trainer);
const ot_mover *ot_trainer_mover(const ot_trainer *trainer);

/* Most bytes in use on the tier so far: device and host by their arenas, NVMe by the store. */
uint64_t ot_trainer_peak_bytes(const ot_trainer *trainer, ot_tier tier);

#endif
