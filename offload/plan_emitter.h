/* A list in the making, shared by the files that write it: plan_lists.c has the order of operations, what stages compute and
 * their boundaries; plan_chunks.c what happens to chunks: fetched, updated, filled, handed over, their gradients returned. */
#ifndef OT_OFFLOAD_PLAN_EMITTER_H
#define OT_OFFLOAD_PLAN_EMITTER_H

#include "offload/builder.h"
#include "offload/plan_draft.h"

typedef struct ot_emitter {
    ot_draft *draft;
    const ot_plan_request *request;
    ot_plan *plan;
    ot_builder *builder;
    int updating; /* with the update of the step before */
    int saving;   /* boundaries, for a backward to come */
    /* plan_chunks.c */
    int32_t *returned; /* [chunk_count]: chunks whose gradient is reduced but not yet taken to the host */
    size_t returned_first, returned_count;
    size_t reduced; /* layers so far */
    /* plan_lists.c */
    int32_t *x; /* [M]: device place of each micro-batch's boundary, later of its gradient */
    /* The boundaries that backward fetches, in its order: which, and where from. */
    size_t *fetches; /* stage * M + micro-batch */
    int32_t *fetch_host;
    size_t fetch_count, fetch_read, fetch_sent, fetch_used;
    int32_t fetch_slots[2];
} ot_emitter;

static inline ot_tier ot_emitter_tier(const ot_emitter *e, int32_t place)
{
    return e->plan->places[place].tier;
}

/* Adds the operation as one that moves `bytes`; `offset`: in the place on the device. */
static inline void ot_emitter_move(ot_emitter *e, ot_operation o, int32_t from, int32_t to, uint64_t offset,
                                   uint64_t bytes)
{
    o.places[0] = from;
    o.places[1] = to;
    o.offset = offset;
    o.bytes = bytes;
    ot_builder_add(e->builder, &o);
}

/* The place of the slot whose turn it is. */
static inline int32_t ot_pool_next(ot_pool *pool)
{
    OT_ASSERT(pool->count > 0);
    return pool->first + (int32_t)(pool->next++ % pool->count);
}

/* A share of what is to be done with chunks for a visit, beyond the last of which there is nothing: micro-batch `m` of M of
 * all that have to do with it. */
void ot_emitter_prepare(ot_emitter *e, size_t visit, size_t m);

/* Reduces a layer's gradient, which is complete; its chunks are then to be returned. */
void ot_emitter_reduce(ot_emitter *e, int32_t layer);

/* Takes chunks' gradients home or into their updates, as many as are micro-batch `m`'s share of those that are reduced. */
void ot_emitter_return_gradients(ot_emitter *e, size_t m);

/* The lists that are about chunks alone; `kind`: OT_OP_LOAD or OT_OP_SAVE. */
void ot_emitter_drain(ot_emitter *e);
void ot_emitter_load_or_save(ot_emitter *e, ot_operation_kind kind);

#endif
