/* A checkpoint: a Hugging Face directory of the model, the exact state beside it, and a manifest.
 *
 *     checkpoint-N/  config.json, model*.safetensors (weight dtype of the run), the tokenizer's files unchanged
 *                    state/master*.safetensors (FP32), state/moment1*, state/moment2* (state dtype, scales of 8-bit ones)
 *                    with Adafactor state/factors.safetensors instead of moments
 *                    state/trainer.json, manifest.json
 *
 * It does not depend on where the planes lay, nor on the number of ranks. */
#ifndef OT_ENGINE_CHECKPOINT_H
#define OT_ENGINE_CHECKPOINT_H

#include "engine/companions.h"
#include "engine/hf_config.h"
#include "engine/run_state.h"

typedef struct ot_checkpoint_options {
    const char *folder;              /* of the run */
    const ot_training *training;     /* as the trainer was opened with */
    const ot_hf_config *config;      /* goes along; NULL: made from the model's dimensions */
    const ot_companions *companions; /* go along; NULL: none */
    uint64_t shard_bytes;            /* 0: as cli.md says */
    uint64_t limit;                  /* checkpoints of the run that are kept, with this one */
} ot_checkpoint_options;

/* Bytes that a checkpoint of this training takes. A pure function. */
uint64_t ot_checkpoint_bytes(const ot_training *training);

/* Drains and writes the model as it is after `state->step` steps; verifies it, publishes it, then removes older ones. A
 * failure, such as OT_ERR_IO for a full drive, leaves the checkpoints that were there. `*bytes`: written. */
ot_status ot_checkpoint_save(const ot_checkpoint_options *options, ot_trainer *trainer, ot_run_state *state,
                             uint64_t *bytes) OT_MUST_CHECK;

/* The values of a checkpoint, for a trainer to open with. The formats are the training's: OT_ERR_FORMAT where the files have
 * others. */
typedef struct ot_checkpoint_source ot_checkpoint_source;
ot_status ot_checkpoint_source_open(const char *path, const ot_training *training,
                                    ot_checkpoint_source **out) OT_MUST_CHECK;
/* Fills what of the state is no plane of a chunk, after the trainer has been opened with the values. */
ot_status ot_checkpoint_restore(const char *path, const ot_run_state *state,
                                ot_trainer *trainer) OT_MUST_CHECK;
const ot_source *ot_checkpoint_source_values(const ot_checkpoint_source *source);
void ot_checkpoint_source_close(ot_checkpoint_source *source); /* NULL is allowed */

#endif
