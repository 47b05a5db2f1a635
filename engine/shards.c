/* What the ranks of a group hand to one another beside the plan's operations: a model's chunks on their way out, the
 * sums of a step, and a glance at each other's plans. */
#include <xxhash.h>

#include "engine/trainer_state.h"
#include "engine/training.h"

/* ---- chunks on their way out ---- */

enum { PARTS = 5 };

/* The pieces of memory that make up a chunk's values. */
typedef struct parts {
    void *data[PARTS];
    size_t bytes[PARTS];
} parts;

static parts parts_of(const ot_trainer *t, const ot_chunk_values *v)
{
    size_t moment = v->count * ot_dtype_bytes(t->training.state_dtype);
    size_t scales = (v->count + OT_MOMENT_BLOCK - 1) / OT_MOMENT_BLOCK * sizeof(float);
    parts all = {{v->master, v->moment1, v->moment2, v->scale1, v->scale2},
                 {v->count * sizeof(float), moment, moment, scales, scales}};
    for (int i = 0; i < PARTS; i++)
        if (all.data[i] == NULL)
            all.bytes[i] = 0;
    return all;
}

/* Where a moment of another rank's chunk goes, with its scales behind it; NULL where the own chunk has none. */
static void *incoming(const ot_trainer *t, const void *own, int moment)
{
    return own != NULL ? t->incoming[moment] : NULL;
}

static float *incoming_scales(const ot_trainer *t, const float *own, int moment)
{
    if (own == NULL)
        return NULL;
    return (float *)(void *)((char *)t->incoming[moment] + ot_moment_scales(t->plan->chunk_params));
}

static ot_status take_from(ot_trainer *t, int rank, const ot_chunk_values *like, const ot_chunk *chunk)
{
    size_t layer = (size_t)chunk->layer;
    uint64_t first = chunk->first + (uint64_t)rank * ot_training_shard(&t->training, layer);
    const ot_chunk_values values = {
        .layer = layer,
        .first = first,
        .count = ot_training_present(&t->training, layer, first, chunk->count),
        .master = t->scratch,
        .moment1 = incoming(t, like->moment1, 0),
        .moment2 = incoming(t, like->moment2, 1),
        .scale1 = incoming_scales(t, like->scale1, 0),
        .scale2 = incoming_scales(t, like->scale2, 1),
    };
    const char *name = t->training.model->layers[layer].name;
    if (values.count == 0)
        return OT_OK;
    const parts all = parts_of(t, &values);
    for (int i = 0; i < PARTS; i++)
        OT_TRY(ot_group_receive(t->training.group, name, rank, all.data[i], all.bytes[i]));
    return t->sink->take(t->sink->context, &values);
}

static ot_status send_to_first(const ot_trainer *t, const ot_chunk_values *values)
{
    const char *name = t->training.model->layers[values->layer].name;
    const parts all = parts_of(t, values);
    for (int i = 0; i < PARTS && values->count > 0; i++)
        OT_TRY(ot_group_send(t->training.group, name, 0, all.data[i], all.bytes[i]));
    return OT_OK;
}

ot_status ot_trainer_hand_over(ot_trainer *t, const ot_chunk_values *values, const ot_chunk *chunk)
{
    const uint32_t first = t->plan->layer_chunks[chunk->layer],
                   end = ot_plan_own_end(t->plan, (size_t)chunk->layer);
    if (t->training.rank > 0)
        return send_to_first(t, values);
    if (values->count > 0)
        OT_TRY(t->sink->take(t->sink->context, values));
    if (chunk != &t->plan->chunks[end - 1])
        return OT_OK;
    for (int rank = 1; rank < t->training.ranks; rank++)
        for (uint32_t c = first; c < end; c++)
            OT_TRY(take_from(t, rank, values, &t->plan->chunks[c]));
    return OT_OK;
}

/* ---- sums ---- */

double ot_trainer_own_squares(const ot_trainer *t, size_t l, double sum)
{
    const double *partials = ot_mover_address(t->mover, t->plan->partials[l]);
    for (size_t i = 0; i < ot_sum_blocks(ot_training_shard(&t->training, l)); i++)
        sum += partials[i];
    return sum;
}

ot_status ot_trainer_sum_over_ranks(ot_trainer *t)
{
    size_t layers = t->training.model->layer_count;
    if (t->sums == NULL)
        return OT_OK;
    t->sums[0] = t->numbers->loss_sum;
    for (size_t l = 0; l < layers; l++)
        t->sums[1 + l] = ot_trainer_own_squares(t, l, 0);
    OT_TRY(ot_group_sum(t->training.group, "loss and gradient norm", t->sums, 1 + layers));
    t->numbers->loss_sum = t->sums[0];
    return OT_OK;
}

ot_status ot_trainer_sum_tokens(const ot_trainer *t, uint64_t *trained_tokens)
{
    double tokens = (double)*trained_tokens;
    OT_TRY(ot_group_sum(t->training.group, "trained tokens", &tokens, 1));
    *trained_tokens = (uint64_t)tokens;
    return OT_OK;
}

/* ---- plans ---- */

/* Of everything that must be alike: what is where, and the collective operations. */
static uint64_t hash_plan(const ot_plan *plan)
{
    uint64_t hash = XXH3_64bits(plan->arena_bytes, sizeof plan->arena_bytes) + plan->chunk_count;
    for (int kind = 0; kind < OT_LISTS; kind++)
        for (size_t i = 0; i < plan->lists[kind].count; i++) {
            const ot_operation *op = &plan->lists[kind].operations[i];
            const uint64_t facts[] = {hash, (uint64_t)op->kind, (uint64_t)op->layer, op->bytes};
            if (op->lane == OT_LANE_COLLECTIVE)
                hash = XXH3_64bits(facts, sizeof facts);
        }
    return hash;
}

ot_status ot_trainer_compare_plans(const ot_trainer *t)
{
    uint64_t own = hash_plan(t->plan), first = own;
    OT_TRY(ot_group_broadcast(t->training.group, "the plan", 0, &first, sizeof first));
    if (own == first)
        return OT_OK;
    return ot_fail(OT_ERR_USAGE,
                   "rank %d has another plan than rank 0; all ranks need the same flags, budgets and threads",
                   t->training.rank);
}
