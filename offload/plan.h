/* The plan: the whole training step, written down before anything is allocated.
 *
 * `ot_plan_make` is a pure function of the model, the flags, the budgets and the machine's rates. It says on
 * which tier every plane lives, which slots there are, and in which order which operation runs on which lane.
 * The same lists are printed, simulated (simulate.h), executed (mover.h) and traced.
 *
 * Nouns. A layer is the unit of parameters that is fetched whole. A stage is the unit of computation:
 * embedding, each block, head; it needs one layer or two (a tied head needs its norm and the embedding). A
 * place is a piece of memory on one tier: the home of a plane's chunk, or a slot that one chunk after another
 * passes through.
 *
 * Invariants (tests/offload/test_plan.c checks them on thousands of random models and budgets):
 * 1. A list is a topological order: each operation waits only for earlier ones of its list.
 * 2. Lanes are first-in first-out in list order. So executing a list cannot deadlock.
 * 3. Any two operations of a list that touch the same place, one of them writing, are ordered by waits and
 *    lanes; where an NVMe operation must have ended, by waits alone, since those lanes may have several
 * chunks in flight. Two reads of one NVMe place are ordered as well: the store moves a chunk once at a time.
 * 4. What an operation reads was written before: by the list, or it was there when the list began. That is so
 *    for homes and for what is kept on the device; no list counts on what another left in a slot.
 * 5. Between two lists nothing is in flight. Every home is then up to date, except that after a step the
 *    gradients of that step still wait for their update, unless the update runs inside backward.
 * 6. The bytes of all places of a tier add up to the tier's peak, which is within its budget.
 *
 * Life of a step. With U = the update of the step before, F = forward, B = backward:
 *     FIRST: F B      STEADY: U‖F B      DRAIN: U      EVAL: F without saving boundaries
 * With `update_in_backward` a chunk is updated inside backward, as soon as its gradient is there. Where that
 * would make backward longer, a share of the chunks (`deferred_chunks`) is still updated in the next forward;
 * where not, FIRST and STEADY are both F B‖U, and DRAIN is empty. Chunks whose states are on the device are updated at the
 * same points, by the compute lane; nothing of them crosses. LOAD fills every home, and the weights kept
 * on the device; SAVE hands every home over, chunk by chunk in model order. Micro-batches run 0 … M-1 in
 * forward and in backward alike, so that gradients add up in one order wherever things lie.
 *
 * With several ranks each layer's flat vector is cut into as many shards. Homes, chunks and what crosses to and from the
 * host are of this rank's; on the device a layer is whole: its own slice is sent there, then all ranks' are gathered, and
 * its gradient's slices are summed over all ranks before the own one is reduced. That is ZeRO-3. With ZeRO-2 the homes of
 * weights are whole, with ZeRO-1 those of gradients, too: chunks of the other ranks' shards, called copies, have homes for
 * these planes alone. A gathering fills them, once in a step and before anything reads them in it, so that nothing counts on
 * what an earlier list left there; of weights that a step fetches again all chunks then come from home, and none is gathered.
 *
 * For inference only the weights exist, nothing is kept for a backward, and LOAD, EVAL, LOGITS and SAVE are the lists
 * that are not empty. */
#ifndef OT_OFFLOAD_PLAN_H
#define OT_OFFLOAD_PLAN_H

#include <stddef.h>
#include <stdint.h>

#include "io/status.h"
#include "kernels/kernels.h"

typedef enum ot_tier { OT_TIER_DEVICE, OT_TIER_HOST, OT_TIER_NVME, OT_TIERS } ot_tier;

typedef enum ot_plane {
    OT_PLANE_WEIGHT, /* 16-bit, or FP32; with the split master the high half of it */
    OT_PLANE_MASTER, /* FP32, or the low half; empty with FP32 weights */
    OT_PLANE_MOMENT1,
    OT_PLANE_MOMENT2,
    OT_PLANE_GRAD,
    OT_PLANE_ACTIVATION,
    OT_PLANES,
} ot_plane;

typedef enum ot_lane {
    OT_LANE_NVME_READ,
    OT_LANE_NVME_WRITE,
    OT_LANE_H2D,
    OT_LANE_D2H,
    OT_LANE_COMPUTE,
    OT_LANE_COLLECTIVE,
    OT_LANE_CPU,
    OT_LANES,
} ot_lane;

/* "device"; "weight"; "nvme-read". */
const char *ot_tier_name(ot_tier tier);
const char *ot_plane_name(ot_plane plane);
const char *ot_lane_name(ot_lane lane);

/* ---- What is asked ---- */

enum { OT_STAGE_LAYERS = 2, OT_ZERO_STAGES = 3 };

typedef struct ot_plan_layer {
    const char *name; /* "model.layers.3"; must outlive the plan */
    uint64_t params;  /* elements of its flat vector, padding included */
} ot_plan_layer;

typedef struct ot_plan_stage {
    const char *name;
    int layers[OT_STAGE_LAYERS]; /* whose weights it needs; -1: none */
    /* Of one micro-batch. The last stage (head and loss) has no forward of its own: its backward holds both,
     * and its forward_flops are those of the loss alone, for evaluation. */
    double forward_flops, backward_flops; /* with recompute */
} ot_plan_stage;

/* The share of a plane kind that is to be on a tier, in 0 … 1; the rest goes to the next slower tier. All
 * zero is automatic, too. */
typedef struct ot_placement {
    int automatic;
    ot_tier tier;
    double share;
} ot_placement;

/* What a machine does: measured, or typical. */
typedef struct ot_rates {
    double lane[OT_LANES];           /* bytes a second; compute: flops a second */
    double lane_latency_s[OT_LANES]; /* of one operation */
    int nvme_half_duplex;            /* reads and writes take turns: together they have the rate of one */
    double device_memory; /* bytes a second, of what the compute lane's operations move; 0: no bound */
} ot_rates;

/* Of a field of ranks, in which 0 is one. */
static inline int ot_rank_count(int ranks)
{
    return ranks > 1 ? ranks : 1;
}

/* Elements of each rank's shard of a layer (ZeRO-3): all alike, the last ones padded, whole blocks of sums. */
static inline uint64_t ot_shard_params(uint64_t params, int ranks)
{
    const uint64_t all = (uint64_t)ranks * OT_SUM_BLOCK;
    return ranks <= 1 ? params : (params + all - 1) / all * OT_SUM_BLOCK;
}

typedef struct ot_plan_request {
    /* Model, in forward order: stage 0 makes the first boundary, the last one consumes the last. */
    const ot_plan_layer *layers;
    size_t layer_count;
    const ot_plan_stage *stages;
    size_t stage_count;

    /* One step. */
    size_t micro_batches;     /* M */
    uint64_t boundary_bytes;  /* of one micro-batch: b*T*C elements */
    uint64_t kept_bytes;      /* of one micro-batch: what each stage but the first and the last keeps on the
                                    device for its backward, beside the boundary; 0: nothing */
    uint64_t data_bytes;      /* tokens, targets, positions, document starts of a whole step */
    uint64_t workspace_bytes; /* device: largest of any stage, one micro-batch */
    uint64_t device_fixed_bytes; /* device: context, libraries, tables */
    uint64_t host_fixed_bytes;   /* host: everything that is no place of the plan */

    /* Formats. */
    ot_dtype weight_dtype;
    ot_master_format master_format; /* ignored with FP32 weights */
    ot_dtype moment1_dtype, moment2_dtype;
    int moments;  /* 2; 1 (SGD with momentum, Lion); 0 */
    int measured; /* 1: a layer's update is preceded by two passes over its whole gradient (Adafactor) */
    ot_dtype grad_dtype; /* as it crosses to the host */

    /* The group, of which everything else holds for one rank. All ranks with the same request have the same plan but for
     * where their shards begin, and so their collective operations in the same order. */
    int ranks, rank; /* 0 or 1 ranks: alone */
    /* ZeRO stage: of which planes each rank stores its own shard alone: 1: master and moments; 2: and gradients; 3 (or 0):
     * and weights. */
    int zero;

    /* Choices; 0 or automatic: the plan's. */
    ot_placement weights; /* device: kept there as well as at home; host or nvme: the home */
    /* Home of weight (unless placed by `weights`), master and moments. On the device: of the first layers' chunks, whose weights
     * and gradients are then there alone, too; not with `measured`. The plan itself puts some there only where weights and
     * gradients are not placed elsewhere. */
    ot_placement states;
    ot_placement grads;     /* host, nvme */
    ot_placement acts;      /* device, host, nvme */
    int prefetch_depth;     /* layers fetched ahead */
    uint64_t chunk_params;  /* elements of a chunk, a multiple of OT_SUM_BLOCK */
    int ring;               /* chunks of a plane in flight between NVMe and the other lanes, at most */
    int overlap;            /* 0: every operation waits for the one before: the serial reference */
    int update_in_backward; /* 1: where neither clipping nor loss scaling needs the whole gradient first */
    int inference;          /* 1: the model is evaluated and never trained */

    /* Budgets, in bytes. */
    uint64_t budget[OT_TIERS];

    ot_rates rates; /* for the automatic choices; where all are 0, those of a usual machine */
} ot_plan_request;

/* ---- The answer ---- */

/* A piece of memory. Device and host places are ranges of one arena a tier; an NVMe place is a chunk of the
 * store. */
typedef struct ot_place {
    ot_tier tier;
    ot_plane plane;
    uint64_t offset; /* device, host: in the arena, a multiple of 4096; nvme: the store's chunk */
    uint64_t bytes;  /* not padded */
    int32_t chunk;   /* whose home it is, or -1: a slot */
} ot_place;

/* A run of `count` elements of a layer's flat vector, from `first`. All planes are cut alike. With several ranks the last
 * chunks of a layer may begin or end beyond its elements: what is there is zero and stays so. */
typedef struct ot_chunk {
    int32_t layer;
    int copy; /* 1: of another rank's shard */
    uint64_t first, count;
    /* Place of each plane; -1: the plane does not exist, or lives in slots only. Where the states are on the device, weights
     * lie in their layer's resident place and gradients that wait for their update in one of their layer's. */
    int32_t home[OT_PLANE_GRAD + 1];
} ot_chunk;

typedef enum ot_operation_kind {
    OT_OP_READ,    /* nvme-read:  places[0] nvme → [1] host */
    OT_OP_WRITE,   /* nvme-write: places[0] host → [1] nvme */
    OT_OP_H2D,     /* h2d: places[0] host → [1] device, at byte `offset` of it */
    OT_OP_D2H,     /* d2h: places[0] device, from byte `offset` of it → [1] host */
    OT_OP_DATA,    /* h2d: the step's tokens and masks → [1] device */
    OT_OP_FORWARD, /* compute: stage, micro_batch: weights [0] [1], boundary in [2] (-1: stage 0), out [3],
                      data [4], workspace [5], what is kept for backward out [8] (-1: nothing) */
    OT_OP_HEAD, /* compute: last stage, loss and gradient: weights [0] [1], boundary in [2], its gradient out
                 * [3] (may be [2]; -1: evaluation, the loss alone), data [4], workspace [5], gradients [6]
                 * [7] */
    OT_OP_BACKWARD, /* compute: stage, micro_batch: weights [0] [1], boundary in [2] (-1: stage 0), its
                     * gradient [3] in place, data [4], workspace [5], gradients [6] [7], what was kept [8],
                     * which is used up */
    OT_OP_REDUCE, /* compute: layer's FP32 gradient [0] → `grad_dtype` [1] (may be [0] for FP32), and its sums
                   * of squares, one double for every OT_SUM_BLOCK elements, → [2] */
    OT_OP_UPDATE, /* cpu: chunk: weight [0], master [1], moment1 [2], moment2 [3], gradient [4]; compute, where they are on
                    * the device: [0] is then the layer's, and so is [4], in which the chunk's begins at byte `offset` */
    OT_OP_MEASURE, /* cpu: chunk: one of two passes over the gradient [4], before its layer's first update */
    OT_OP_LOAD,    /* cpu: chunk: fills weight [0], master [1], moment1 [2], moment2 [3] from a model, a
                     checkpoint or a seed */
    OT_OP_SAVE,    /* cpu: chunk: hands the same places over, to be written to a checkpoint or hashed */
    OT_OP_GATHER, /* collective: a layer's weights, or its reduced gradient, [0], of which this rank has its own
                   * slice: those of all others come; bytes: theirs */
    OT_OP_SCATTER, /* collective, in place of the reduction: the layer's FP32 gradient [0] is summed over all ranks,
                    * the own slice, from byte `offset` on, reduced → [1] (which may be [0], in place; where the
                    * plane is whole, in the same slice of it), sums [2] */
    OT_OP_KINDS,
} ot_operation_kind;

const char *ot_operation_name(ot_operation_kind kind);

enum { OT_OPERATION_PLACES = 9 };

typedef struct ot_operation {
    ot_operation_kind kind;
    ot_lane lane;
    int32_t stage, layer, chunk, micro_batch; /* -1: does not apply */
    int32_t places[OT_OPERATION_PLACES];      /* as said at the kind; -1: none */
    uint64_t offset;                          /* of a part of a device place */
    uint64_t bytes;                           /* moved, or touched by the CPU lane or by an update */
    double flops;
    int zero_grads; /* bit i: gradient [6+i] is zeroed first, as nothing has added to it in this step */
    int pass;       /* measure: 0, 1 */
    int deferred;   /* update, measure: 1: the gradient is that of the step before, 0: of this step */
    uint32_t wait_first, wait_count; /* range of ot_list.waits: operations of this list */
} ot_operation;

typedef enum ot_list_kind {
    OT_LIST_LOAD,
    OT_LIST_FIRST,
    OT_LIST_STEADY,
    OT_LIST_DRAIN,
    OT_LIST_EVAL,
    OT_LIST_LOGITS, /* EVAL of the first micro-batch alone */
    OT_LIST_SAVE,
    OT_LISTS,
} ot_list_kind;

typedef struct ot_list {
    ot_operation *operations;
    size_t count;
    uint32_t *waits;
    size_t wait_count;
    uint64_t lane_bytes[OT_LANES];
    double flops;
} ot_list;

/* No list has more operations: this many take about 6 GB, and as much again while the plan is made. Requests that would
 * are refused with OT_ERR_USAGE. */
enum { OT_LIST_OPERATIONS_MAX = 1 << 25 };

typedef struct ot_plan {
    /* The choices that were made. */
    int prefetch_depth, ring, update_in_backward;
    size_t deferred_chunks; /* updated in the step after; all of them without update_in_backward */
    size_t device_chunks;   /* whose states are on the device, which updates them */
    uint64_t chunk_params;
    double predicted_s; /* of a steady step, for inference of an evaluation, at the request's rates */
    /* Padded: homes, and what is kept on the device; slots, workspace, data and the fixed bytes; both; and
     * the places alone. */
    uint64_t plane_bytes[OT_TIERS][OT_PLANES];
    uint64_t slot_bytes[OT_TIERS];
    uint64_t peak_bytes[OT_TIERS];
    uint64_t arena_bytes[OT_TIERS];

    ot_place *places;
    size_t place_count;
    /* Layer after layer: the own in order of `first`, then the copies of each rank after this one, in turn. */
    ot_chunk *chunks;
    size_t chunk_count;
    uint32_t *layer_chunks; /* [layer_count+1]: layer l has chunks layer_chunks[l] … layer_chunks[l+1]-1 */
    int shards; /* of how many ranks each layer has chunks, all cut alike: all, or its own alone */
    int whole[OT_PLANE_GRAD + 1]; /* 1: of this plane copies are stored */
    /* What the homes of one rank hold, by ZeRO stage, where nothing is kept on the device instead. With 2 bytes of weight, 2
     * of gradient and 12 of states for each of P parameters: 2P + 2P + 12P/N, 2P + 14P/N, 16P/N. */
    uint64_t state_bytes[OT_ZERO_STAGES + 1];
    int zero;          /* the stage it is made for */
    int32_t *resident; /* [layer_count]: device place of the layer's weights for good, or -1: streamed */
    size_t nvme_chunk_count; /* chunks of the store */
    int32_t *partials; /* [layer_count]: host place of the sums of squares of the layer's gradient, or -1 */
    int32_t data_place, workspace_place;
    ot_list lists[OT_LISTS];
} ot_plan;

/* Makes a plan, which the caller frees with ot_plan_free. OT_ERR_FIT where the budgets do not hold it: the
 * text gives need and have per tier. OT_ERR_USAGE for choices that contradict each other. */
ot_status ot_plan_make(const ot_plan_request *request, ot_plan **out) OT_MUST_CHECK;

/* The same choices and places with empty lists, for weighing one request against another: predicted_s is then, with
 * many micro-batches, drawn out from a shorter step. */
ot_status ot_plan_outline(const ot_plan_request *request, ot_plan **out) OT_MUST_CHECK;

/* Whether a plan can be made, by byte counts alone: OT_OK, or what ot_plan_make would fail with. */
ot_status ot_plan_fits(const ot_plan_request *request) OT_MUST_CHECK;

void ot_plan_free(ot_plan *plan); /* NULL is allowed */

/* The end of a layer's own chunks, which begin at layer_chunks[layer]. */
static inline uint32_t ot_plan_own_end(const ot_plan *plan, size_t layer)
{
    uint32_t first = plan->layer_chunks[layer];
    return first + (plan->layer_chunks[layer + 1] - first) / (uint32_t)plan->shards;
}

/* Of the chunks, those of this rank's shards. */
static inline size_t ot_plan_own_chunks(const ot_plan *plan)
{
    return plan->chunk_count / (size_t)plan->shards;
}

/* Of the chunks of this rank's shards the number of chunk `c`; of another rank's the number of the own one in its place. */
static inline size_t ot_plan_own_index(const ot_plan *plan, size_t c)
{
    uint32_t layer = (uint32_t)plan->chunks[c].layer, first = plan->layer_chunks[layer];
    return first / (uint32_t)plan->shards + ((uint32_t)c - first) % (ot_plan_own_end(plan, layer) - first);
}

/* Whether a chunk's states are on the device. */
static inline int ot_plan_on_device(const ot_plan *plan, size_t c)
{
    return ot_plan_own_index(plan, c) < plan->device_chunks;
}

/* Bytes that `count` elements of a plane take in the formats of the request; 0: the plane does not exist.
 * Scales of 8-bit moments follow the values, at ot_moment_scales. `count` starts at a multiple of
 * OT_MOMENT_BLOCK. */
uint64_t ot_plane_bytes(const ot_plan_request *request, ot_plane plane, uint64_t count);

/* The byte at which the scales begin in a chunk of `count` 8-bit moments: the values fill whole blocks. */
static inline uint64_t ot_moment_scales(uint64_t count)
{
    return (count + OT_MOMENT_BLOCK - 1) / OT_MOMENT_BLOCK * OT_MOMENT_BLOCK;
}

#endif
