/* What a trainer consists of. For the trainer's own files alone: trainer.c opens it and runs the steps; device_work.c is the
 * device's lanes; chunk_work.c is the CPU lane, where chunks are filled, updated and handed over; hash.c is one that they are
 * handed over to. */
#ifndef OT_ENGINE_TRAINER_STATE_H
#define OT_ENGINE_TRAINER_STATE_H

#include "engine/compute.h"
#include "engine/factored.h"
#include "engine/trainer.h"

/* What a step leaves and what its updates read: in a page of the host and in one of the device. */
typedef struct ot_trainer_numbers {
    double loss_sum; /* over the step's trained tokens */
    /* Of this step's gradient, and of the one before: an operation's `deferred` says which. */
    ot_update_step updates[2];
} ot_trainer_numbers;

struct ot_trainer {
    ot_training training;
    ot_plan *plan;
    ot_host *host;
    ot_device *device,
        *cpu; /* cpu: the device of the CPU lane; the same one where training runs on the CPU */
    ot_stream *update_stream;
    ot_mover *mover;
    ot_compute compute;

    uint64_t *layer_first; /* [layer_count]: number of each layer's element 0 in the model */
    int32_t *data;         /* host: the step's data */
    float *scratch;        /* host: FP32 values of one chunk */
    int16_t *remainder; /* host: what is left of them beside weights, for inference in bf16; otherwise NULL */
    ot_factored factored; /* host: with Adafactor; otherwise without moments */
    int numa_node;        /* nearest to the device; -1: none */
    ot_arena *arena;      /* what the trainer has of the host: pinned, where the device can */
    int pinned;
    double *sums; /* host: [1+layer_count] loss and each layer's square sum, over all ranks; alone NULL */
    void *incoming[2];  /* host: moments of another rank's chunk, in rank 0; alone NULL */
    float *logits;      /* device: [V], of one row */
    size_t logits_row;  /* of the micro-batch */
    float *host_logits; /* where the head's row goes in place of its loss, or NULL */

    float grad_scale;                             /* of the loss: loss scale / trained tokens */
    int update_due;                               /* gradients of the last step wait for their update */
    ot_trainer_numbers *numbers, *device_numbers; /* host; device */
    int updates_sent;                             /* to the device, in this list; the compute lane's */
    ot_loss_scale loss_scale;
    const ot_sink *sink; /* of the list that saves */
};

/* A place's address, or NULL for none. */
void *ot_trainer_at(const ot_trainer *trainer, int32_t place);

/* Enqueues an operation of the compute lane or of the collective one; `context` is the trainer. */
ot_status ot_trainer_device_work(void *context, const ot_operation *operation,
                                 ot_stream *stream) OT_MUST_CHECK;

/* Runs an operation of the CPU lane, on the lane's thread; `context` is the trainer. */
ot_status ot_trainer_chunk_work(void *context, const ot_operation *operation) OT_MUST_CHECK;

/* Enqueues the update of a chunk whose states are on the device. */
void ot_trainer_device_update(ot_trainer *trainer, const ot_operation *operation, ot_stream *stream);

/* Hands a chunk over: to the sink, or to rank 0, which then has those of the others in model order; shards.c. */
ot_status ot_trainer_hand_over(ot_trainer *trainer, const ot_chunk_values *values,
                               const ot_chunk *chunk) OT_MUST_CHECK;

/* Adds the squares of this rank's slice of a layer's scaled gradient to a sum. */
double ot_trainer_own_squares(const ot_trainer *trainer, size_t layer, double sum);

/* What a step has left with each rank, loss and squares, becomes what it has left in all; and trained tokens. */
ot_status ot_trainer_sum_over_ranks(ot_trainer *trainer) OT_MUST_CHECK;
ot_status ot_trainer_sum_tokens(const ot_trainer *trainer, uint64_t *trained_tokens) OT_MUST_CHECK;

/* Fails where another rank's plan is not the same. */
ot_status ot_trainer_compare_plans(const ot_trainer *trainer) OT_MUST_CHECK;

#endif
