/* Device slots that layers share: each layer's weights and gradients stay for a few visits, and stays that do not meet get the
 * same slot. */
#include <stdlib.h>
#include <string.h>

#include "offload/plan_draft.h"

enum { NONE = -1 };

static int larger_first(const ot_stay *x, const ot_stay *y)
{
    return x->bytes > y->bytes ? -1 : x->bytes < y->bytes;
}

static int earlier_first(const ot_stay *x, const ot_stay *y)
{
    return x->first < y->first ? -1 : x->first > y->first;
}

static int by_size(const void *a, const void *b)
{
    int order = larger_first(a, b);
    return order != 0 ? order : earlier_first(a, b);
}

static int by_time(const void *a, const void *b)
{
    int order = earlier_first(a, b);
    return order != 0 ? order : larger_first(a, b);
}

/* Whether a slot, given by the last of the stays it has got, is free for another. */
static int is_free(const ot_stay *stays, int32_t last, const ot_stay *wanted)
{
    for (int32_t i = last; i != NONE; i = stays[i].before)
        if (stays[i].first <= wanted->last && wanted->first <= stays[i].last)
            return 0;
    return 1;
}

/* Gives each stay, in the order they have, the free slot that grows least and is least too large. Returns the
 * bytes of all slots. */
static uint64_t assign_slots(ot_draft *draft, ot_stay *stays, size_t count, size_t *slots)
{
    uint64_t *sizes = draft->slot_sizes;
    int32_t *last = draft->slot_last;
    uint64_t total = 0;
    *slots = 0;
    for (size_t i = 0; i < count; i++) {
        size_t best = *slots;
        uint64_t best_cost = UINT64_MAX;
        for (size_t slot = 0; slot < *slots; slot++) {
            uint64_t cost = sizes[slot] >= stays[i].bytes ? sizes[slot] - stays[i].bytes : UINT64_MAX / 2;
            if (cost < best_cost && is_free(stays, last[slot], &stays[i])) {
                best = slot;
                best_cost = cost;
            }
        }
        if (best == *slots) {
            sizes[best] = 0;
            last[best] = NONE;
            (*slots)++;
        }
        stays[i].slot = (int32_t)best;
        stays[i].before = last[best];
        last[best] = (int32_t)i;
        uint64_t more = stays[i].bytes > sizes[best] ? stays[i].bytes - sizes[best] : 0;
        sizes[best] += more;
        total += more;
    }
    return total;
}

/* Makes as few bytes of slots as two simple orders find, and turns each stay's slot into its place. The stays
 * come back sorted in one of the orders; `tag` tells them apart. */
static ot_status share_slots(ot_draft *draft, ot_plane plane, ot_stay *stays, size_t count)
{
    size_t slots;
    if (count == 0)
        return OT_OK;
    qsort(stays, count, sizeof *stays, by_size);
    uint64_t by_size_bytes = assign_slots(draft, stays, count, &slots);
    qsort(stays, count, sizeof *stays, by_time);
    uint64_t by_time_bytes = assign_slots(draft, stays, count, &slots);
    if (by_size_bytes < by_time_bytes) {
        qsort(stays, count, sizeof *stays, by_size);
        assign_slots(draft, stays, count, &slots);
    }
    int32_t first = (int32_t)draft->plan->place_count;
    for (size_t slot = 0; slot < slots; slot++) {
        int32_t place;
        OT_TRY(ot_draft_add_slot(draft, OT_TIER_DEVICE, plane, draft->slot_sizes[slot], &place));
    }
    for (size_t i = 0; i < count; i++)
        stays[i].slot += first;
    return OT_OK;
}

/* Where the weights are at each visit. A layer stays in its slot between two visits that are so close that
 * fetching it again would have to begin at once. */
ot_status ot_draft_place_weights(ot_draft *draft)
{
    const ot_plan_request *request = draft->request;
    int32_t depth = draft->choice.prefetch_depth, count = 0;
    for (size_t l = 0; l < request->layer_count; l++)
        draft->layer_stay[l] = NONE;
    for (size_t v = 0; v < draft->V; v++)
        for (int j = 0; j < OT_STAGE_LAYERS; j++) {
            int l = request->stages[ot_visit_stage(draft, v)].layers[j];
            draft->fetched[v][j] = 0;
            draft->weights[v][j] = l >= 0 ? draft->plan->resident[l] : NONE;
            if (l < 0 || draft->plan->resident[l] != NONE)
                continue;
            int32_t stay = draft->layer_stay[l];
            if (stay == NONE || (int32_t)v - draft->stays[stay].last > 2 * depth) {
                draft->fetched[v][j] = 1;
                stay = draft->layer_stay[l] = count++;
                draft->stays[stay] = (ot_stay){
                    .bytes = ot_plane_bytes(request, OT_PLANE_WEIGHT, ot_layer_whole(request, (size_t)l)),
                    .first = (int32_t)v - depth,
                    .tag = stay};
            }
            draft->stays[stay].last = (int32_t)v;
            draft->weights[v][j] = stay; /* until the stay has its slot */
        }
    OT_TRY(share_slots(draft, OT_PLANE_WEIGHT, draft->stays, (size_t)count));
    for (int32_t i = 0; i < count; i++)
        draft->stay_slot[draft->stays[i].tag] = draft->stays[i].slot;
    for (size_t v = 0; v < draft->V; v++)
        for (int j = 0; j < OT_STAGE_LAYERS; j++) {
            int l = request->stages[ot_visit_stage(draft, v)].layers[j];
            if (l >= 0 && draft->plan->resident[l] == NONE)
                draft->weights[v][j] = draft->stay_slot[draft->weights[v][j]];
        }
    return OT_OK;
}

/* Elements of a layer's reduced gradient that go to the host. */
static uint64_t crossing_params(const ot_draft *draft, size_t layer)
{
    return draft->plan->whole[OT_PLANE_GRAD] ? ot_layer_whole(draft->request, layer)
                                             : ot_layer_shard(draft->request, layer);
}

/* Whether a layer's gradient waits on the device for an update there. */
static int waits_on_device(const ot_draft *draft, size_t layer)
{
    return ot_draft_layer_on_device(draft, layer) && !draft->request->update_in_backward;
}

/* FP32 gradients live from the first backward visit until they are reduced, what crosses to the host one
 * visit longer, so that it crosses while the next layer works; with several ranks the sum over them takes its time in
 * between. What waits on the device instead of crossing has a place of its own. */
ot_status ot_draft_place_grads(ot_draft *draft)
{
    const ot_plan_request *request = draft->request;
    int crosses_as_is = request->grad_dtype == OT_FP32, summing = request->ranks > 1;
    for (int crossing = 0; crossing <= !crosses_as_is; crossing++) {
        int32_t *out = crossing ? draft->staging : draft->grad32;
        size_t count = 0;
        for (size_t l = 0; l < request->layer_count; l++) {
            int crosses = crossing || crosses_as_is;
            const ot_stay stay = {
                .bytes = crossing ? ot_plane_bytes(request, OT_PLANE_GRAD, crossing_params(draft, l))
                                  : ot_layer_whole(request, l) * sizeof(float),
                .first = crossing ? draft->last_backward[l] : draft->first_backward[l],
                .last = draft->last_backward[l] + crosses + summing,
                .tag = (int32_t)l};
            if (crosses && waits_on_device(draft, l))
                OT_TRY(ot_draft_add_home(draft, OT_PLANE_GRAD, stay.bytes, &out[l]));
            else
                draft->stays[count++] = stay;
        }
        OT_TRY(share_slots(draft, OT_PLANE_GRAD, draft->stays, count));
        for (size_t i = 0; i < count; i++)
            out[draft->stays[i].tag] = draft->stays[i].slot;
    }
    if (crosses_as_is)
        memcpy(draft->staging, draft->grad32, request->layer_count * sizeof *draft->staging);
    return OT_OK;
}
