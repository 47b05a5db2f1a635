/* The small model that the engine's tests train, and its training. Each test changes what it is about. */
#ifndef OT_TESTS_SUPPORT_TINY_H
#define OT_TESTS_SUPPORT_TINY_H

#include "engine/trainer.h"

/* Llama: two blocks of width 32, an odd vocabulary, a head of its own. */
extern const ot_model_config tiny_config;

/* AdamW with clipping in bf16, FP32 states: steps of four sequences of 24 tokens, one a micro-batch, on the CPU device with two
 * threads. Everything is where the plan places it, within 1 GiB of device and as much of host memory, without drives. The model
 * must outlive it. */
ot_training tiny_training(const ot_model *model);

#endif
