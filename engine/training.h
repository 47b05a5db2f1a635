/* What the trainer derives from a training's description. For the engine alone. */
#ifndef OT_ENGINE_TRAINING_H
#define OT_ENGINE_TRAINING_H

#include "engine/compute.h"
#include "engine/trainer.h"

/* Tokens, targets, positions, document starts. */
enum { OT_BATCH_PARTS = 4 };

/* The shared part of all stages' computation. Without a device only sizes can be asked of it. */
ot_compute ot_training_compute(const ot_training *training, ot_device *device);

/* First and second moment, or one of them, or none. */
int ot_training_moments(const ot_training *training);

uint64_t ot_training_data_bytes(const ot_training *training); /* of one step */
uint64_t ot_training_rope_bytes(const ot_training *training);
uint64_t ot_training_logits_bytes(const ot_training *training); /* of one row, in FP32 */

/* Elements of each rank's shard of a layer, and how many of a shard's or a chunk's are the layer's own: the rest is padding. */
uint64_t ot_training_shard(const ot_training *training, size_t layer);
uint64_t ot_training_present(const ot_training *training, size_t layer, uint64_t first, uint64_t count);

/* Of one moment of the largest chunk, as it comes from another rank; 0: nothing comes. */
uint64_t ot_training_incoming_bytes(const ot_training *training, uint64_t chunk_params);

/* Whether the moments are those of rows and columns: Adafactor, in training. */
int ot_training_is_factored(const ot_training *training);

/* Whether splitting a master leaves a remainder that nobody keeps: the weights are then those of a training, bit for bit. */
int ot_training_drops_remainder(const ot_training *training);

/* The trainer's own arenas beside the plan's. */
uint64_t ot_training_device_bytes(const ot_training *training);
uint64_t ot_training_host_bytes(const ot_training *training, uint64_t chunk_params);

#endif
