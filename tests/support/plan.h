/* Models and machines for tests of plans, and an independent check of a plan. */
#ifndef OT_TESTS_SUPPORT_PLAN_H
#define OT_TESTS_SUPPORT_PLAN_H

#include "offload/plan.h"

enum { MODEL_LAYERS_MAX = 64 };

typedef struct model {
    ot_plan_layer layers[MODEL_LAYERS_MAX];
    ot_plan_stage stages[MODEL_LAYERS_MAX];
    ot_plan_request request; /* points at the two above: a model is not copied */
} model;

/* Pseudo-random numbers below `limit`, the same on every machine. */
uint64_t draw(uint64_t *seed, uint64_t limit);

/* A small model of odd sizes, with formats, placements and choices of any kind, and budgets without limit. */
void model_random(model *model, uint64_t seed);

/* Llama-2-7B in bf16 with a split master and FP32 moments; micro-batches of one sequence of 2048 tokens. */
void model_7b(model *model, size_t tokens);

/* An RTX 4090, PCIe 4.0 x16, `drives` drives that take turns, and so many decimal gigabytes. */
void machine_4090(model *model, double host_gb, int drives);

/* Fails the cmocka test where the plan breaks one of its invariants; `seed` is for random orders. */
void check_places(const ot_plan_request *request, const ot_plan *plan);
void check_order(const ot_plan *plan, ot_list_kind kind); /* of all pairs that conflict */
void check_life(const ot_plan_request *request, const ot_plan *plan,
                uint64_t seed); /* all lists, by contents */

#endif
