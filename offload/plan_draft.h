/* A plan in the making, shared by the files that make it: plan.c makes the choices, plan_fit.c fits them into
 * the budgets, plan_places.c lays the places out, with plan_slots.c for those that layers share,
 * plan_lists.c writes the lists, with plan_chunks.c for what happens to chunks.
 *
 * A visit is one stage's turn in a step: forward through stages 0 … S-2, the head S-1, backward through S-2 …
 * 0. So there are 2S-1 visits, each of M micro-batches; for inference the S forward ones. */
#ifndef OT_OFFLOAD_PLAN_DRAFT_H
#define OT_OFFLOAD_PLAN_DRAFT_H

#include "offload/plan.h"

enum { OT_RING_MIN = 2 };

/* Everything that is free to choose once the chunks are cut. Counts are of whole things, so that shares are
 * exact. */
typedef struct ot_choice {
    int prefetch_depth, ring;
    int large_first; /* large layers before others become resident */
    size_t resident_layers;
    size_t device_boundaries; /* boundaries of all micro-batches kept on the device, the last ones first */
    size_t host_acts;         /* of the boundaries of single micro-batches that are not on the device */
    size_t host_grads;        /* of all chunks */
    size_t host_weights;      /* of the streamed layers' chunks, or of all where `weights` places the homes */
    size_t host_states;       /* of the chunks whose states are not on the device */
    size_t device_states; /* of the own chunks the first so many; their layers are resident beside others */
    int deferred_16th;    /* update_in_backward: the share of the updates left to the next forward */
} ot_choice;

/* Slots of one size that are used in turn. */
typedef struct ot_pool {
    int32_t first; /* place; the others follow it */
    size_t count, next;
} ot_pool;

/* Layers that use one device slot after the other; times are visits, both ends included. */
typedef struct ot_stay {
    uint64_t bytes;
    int32_t first, last;
    int32_t tag;    /* tells stays apart where they are sorted */
    int32_t slot;   /* of the slots made for these stays; then its place */
    int32_t before; /* the stay that got the slot before this one, -1: none */
} ot_stay;

typedef struct ot_draft {
    const ot_plan_request *request;
    ot_rates rates; /* the request's, with usual ones for those not given */
    size_t S, M, V; /* stages, micro-batches, visits */
    ot_choice choice;
    ot_plan *plan;
    size_t place_room;
    int counting; /* the layout at hand is bytes alone: no place is written down */

    /* By layer: first visit of all, first and last visit of its gradient. */
    int32_t *first_visit, *first_backward, *last_backward;
    int32_t *grad32, *staging; /* device places of its FP32 gradient and of what crosses */
    uint8_t *small, *large;
    /* By visit, for each of the stage's layers: place of the weights, and whether they are fetched for this
     * visit. */
    int32_t (*weights)[OT_STAGE_LAYERS];
    uint8_t (*fetched)[OT_STAGE_LAYERS];
    uint8_t *deferred;    /* by chunk: updated in the step after, and so its gradient has a home */
    int32_t *boundary;    /* [S][M]: home of the boundary in front of a stage, -1: none */
    int32_t *kept;        /* [S][M]: what a stage keeps for its backward, -1: nothing */
    ot_stay *stays;       /* [layer_count + V * OT_STAGE_LAYERS] */
    uint64_t *slot_sizes; /* as many, like the two that follow */
    int32_t *slot_last, *stay_slot;
    int32_t *layer_stay;            /* by layer: its last stay so far */
    int32_t sums[2];                /* device slots of the sums of squares */
    uint64_t ring_bytes[OT_PLANES]; /* of the largest chunk that passes through the ring */
    ot_pool rings[OT_PLANES];       /* host: what passes between NVMe and the other lanes */
    ot_pool act_slots;              /* device: the boundaries at hand */
    size_t act_spare;               /* act_slots beyond one a micro-batch */
} ot_draft;

/* What a step's list has at most: a computation and two moves a micro-batch and visit; for a chunk its update, five
 * reads, four writes, its gradient's two moves, two passes over it with a read each, and a read and a copy for each of
 * up to three visits that fetch it. With several ranks, for a layer up to six gatherings and its scattering. */
size_t ot_operations_most(const ot_plan_request *request, size_t chunks);

/* Checks the request, cuts the chunks, and allocates everything but places and lists. */
ot_status ot_draft_open(const ot_plan_request *request, ot_draft *draft) OT_MUST_CHECK;
void ot_draft_close(ot_draft *draft); /* the plan, too, if it is still there */

/* Lays out all places for draft->choice and sums them up. */
ot_status ot_draft_layout(ot_draft *draft) OT_MUST_CHECK;

/* The sums alone, of the device, which depends on nothing that the other tiers hold; and of host and NVMe
 * beside the device that was counted last. What they leave is good for sums, and not for lists. */
ot_status ot_draft_count_device(ot_draft *draft) OT_MUST_CHECK;
ot_status ot_draft_count_host(ot_draft *draft) OT_MUST_CHECK;

/* Places to `boundary` etc. of the k-th of n things spread evenly: whether thing i is among the k. */
static inline int ot_spread(size_t i, size_t k, size_t n)
{
    return n > 0 && (i + 1) * k / n > i * k / n;
}

/* States on the device, where nobody has placed them. */
typedef enum ot_device_states {
    OT_STATES_AWAY,
    OT_STATES_LAST,  /* as many as weights and boundaries leave room for */
    OT_STATES_FIRST, /* as many as there is room for: what the other tiers then hold is the least */
    OT_STATES_WAYS,
} ot_device_states;

/* Completes draft->choice, in which prefetch_depth, ring, large_first and deferred_16th are set, so that as
 * much as possible is fast: first what is kept on the device, boundaries before weights with `acts_first`;
 * then what is in host memory. Sets *fits; where it does not, the sums are those of the smallest. */
ot_status ot_draft_fit_device(ot_draft *draft, int acts_first, ot_device_states states) OT_MUST_CHECK;
ot_status ot_draft_fit_host(ot_draft *draft, int *fits) OT_MUST_CHECK;

/* Whether what lies on host and drives is more than both hold, however it is split: nothing is left to fit. */
int ot_draft_exceeds(const ot_draft *draft);

/* Sets the choice whose layout is the smallest, to be fitted with boundaries first. */
void ot_draft_smallest(ot_draft *draft);

/* Writes one list for the layout at hand. */
ot_status ot_draft_list(ot_draft *draft, ot_list_kind kind, ot_list *out) OT_MUST_CHECK;

/* Adds a slot of `bytes` to the layout; *out is its place, -1 without bytes. */
ot_status ot_draft_add_slot(ot_draft *draft, ot_tier tier, ot_plane plane, uint64_t bytes,
                            int32_t *out) OT_MUST_CHECK;

/* Adds a device place for good. */
ot_status ot_draft_add_home(ot_draft *draft, ot_plane plane, uint64_t bytes, int32_t *out) OT_MUST_CHECK;

/* The device slots of the weights that are not resident, for each visit, and of the layers' gradients. */
ot_status ot_draft_place_weights(ot_draft *draft) OT_MUST_CHECK;
ot_status ot_draft_place_grads(ot_draft *draft) OT_MUST_CHECK;

static inline size_t ot_draft_layers(const ot_draft *draft)
{
    return draft->request->layer_count;
}

/* Elements of this rank's shard of a layer, and of the whole layer on the device, with the padding of all shards. */
static inline uint64_t ot_layer_shard(const ot_plan_request *request, size_t layer)
{
    return ot_shard_params(request->layers[layer].params, request->ranks);
}

static inline uint64_t ot_layer_whole(const ot_plan_request *request, size_t layer)
{
    return ot_layer_shard(request, layer) * (uint64_t)ot_rank_count(request->ranks);
}

/* Whether the states of any chunk of a layer are on the device. */
static inline int ot_draft_layer_on_device(const ot_draft *draft, size_t layer)
{
    return draft->plan->layer_chunks[layer] / (uint32_t)draft->plan->shards < draft->choice.device_states;
}

/* Of the chunks those whose homes of a plane are on host or drives, as the choice says; of weights beside those that lie with
 * their states, unless `weights` places them all. */
size_t ot_draft_placed(const ot_draft *draft, ot_plane plane);

/* Of the chunks, those that have the plane. */
static inline size_t ot_draft_chunks_of(const ot_draft *draft, ot_plane plane)
{
    return draft->plan->whole[plane] ? draft->plan->chunk_count : ot_plan_own_chunks(draft->plan);
}

/* Of a layer's chunks, those that have weights at home where it is streamed. */
static inline size_t ot_draft_layer_weights(const ot_draft *draft, size_t layer)
{
    const ot_plan *plan = draft->plan;
    uint32_t end =
        plan->whole[OT_PLANE_WEIGHT] ? plan->layer_chunks[layer + 1] : ot_plan_own_end(plan, layer);
    return end - plan->layer_chunks[layer];
}

/* The stage of a visit. */
static inline size_t ot_visit_stage(const ot_draft *draft, size_t visit)
{
    return visit < draft->S ? visit : 2 * draft->S - 2 - visit;
}

static inline int ot_is_automatic(ot_placement placement)
{
    return placement.automatic || (placement.tier == OT_TIER_DEVICE && placement.share <= 0);
}

#endif
