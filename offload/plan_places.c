/* The places of a plan: homes, slots and what each tier comes to. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "io/host.h"
#include "offload/plan_draft.h"

enum { NONE = -1 };

static ot_status add_place(ot_draft *draft, ot_place place, int is_home, int32_t *out)
{
    ot_plan *plan = draft->plan;
    if (plan->place_count == draft->place_room) {
        size_t room = draft->place_room ? draft->place_room * 2 : 1024;
        ot_place *places = reallocarray(plan->places, room, sizeof *places);
        if (places == NULL)
            return ot_fail(OT_ERR_INTERNAL, "no memory for %zu places of a plan", room);
        plan->places = places;
        draft->place_room = room;
    }
    uint64_t padded = ot_round_up(place.bytes, OT_PAGE_BYTES);
    if (place.tier == OT_TIER_NVME)
        place.offset = plan->nvme_chunk_count++;
    else
        place.offset = plan->arena_bytes[place.tier];
    plan->arena_bytes[place.tier] += padded;
    if (is_home)
        plan->plane_bytes[place.tier][place.plane] += padded;
    else
        plan->slot_bytes[place.tier] += padded;
    *out = (int32_t)plan->place_count;
    plan->places[plan->place_count++] = place;
    return OT_OK;
}

static ot_status add_slot(ot_draft *draft, ot_tier tier, ot_plane plane, uint64_t bytes, int32_t *out)
{
    *out = NONE;
    if (bytes == 0)
        return OT_OK;
    return add_place(draft, (ot_place){.tier = tier, .plane = plane, .bytes = bytes, .chunk = NONE}, 0, out);
}

static ot_status add_pool(ot_draft *draft, ot_tier tier, ot_plane plane, uint64_t bytes, size_t count,
                          ot_pool *pool)
{
    *pool = (ot_pool){.first = (int32_t)draft->plan->place_count, .count = count};
    for (size_t i = 0; i < count; i++) {
        int32_t place;
        OT_TRY(add_slot(draft, tier, plane, bytes, &place));
    }
    return OT_OK;
}

/* ---- what is on the device for good ---- */

/* Small layers come first, as they cost nothing; then the large ones or the usual ones, spread evenly over
 * the model. */
static ot_status place_resident(ot_draft *draft)
{
    const ot_plan_request *request = draft->request;
    size_t groups[3] = {0}, taken[3], left = draft->choice.resident_layers;
    int usual = draft->choice.large_first ? 2 : 1, large = draft->choice.large_first ? 1 : 2;
    for (size_t l = 0; l < request->layer_count; l++)
        groups[draft->small[l] ? 0 : draft->large[l] ? large : usual]++;
    for (int g = 0; g < 3; g++) {
        taken[g] = left < groups[g] ? left : groups[g];
        left -= taken[g];
    }
    size_t seen[3] = {0};
    for (size_t l = 0; l < request->layer_count; l++) {
        int g = draft->small[l] ? 0 : draft->large[l] ? large : usual;
        draft->plan->resident[l] = NONE;
        if (!ot_spread(seen[g]++, taken[g], groups[g]))
            continue;
        ot_place place = {.tier = OT_TIER_DEVICE,
                          .plane = OT_PLANE_WEIGHT,
                          .bytes = ot_plane_bytes(request, OT_PLANE_WEIGHT, request->layers[l].params),
                          .chunk = NONE};
        OT_TRY(add_place(draft, place, 1, &draft->plan->resident[l]));
    }
    return OT_OK;
}

/* ---- homes ---- */

static ot_tier weight_tier(const ot_draft *draft, size_t c, ot_tier states, size_t *streamed_seen,
                           size_t streamed)
{
    const ot_plan_request *request = draft->request;
    int forced = !ot_is_automatic(request->weights) && request->weights.tier != OT_TIER_DEVICE;
    if (forced)
        return ot_spread(c, draft->choice.host_weights, draft->plan->chunk_count) ? OT_TIER_HOST
                                                                                  : OT_TIER_NVME;
    if (draft->plan->resident[draft->plan->chunks[c].layer] != NONE)
        return states;
    int on_host = ot_spread((*streamed_seen)++, draft->choice.host_weights, streamed);
    return on_host ? OT_TIER_HOST : states;
}

static ot_status place_homes(ot_draft *draft)
{
    ot_plan *plan = draft->plan;
    const ot_choice *choice = &draft->choice;
    size_t n = plan->chunk_count, streamed = 0, streamed_seen = 0;
    for (size_t c = 0; c < n; c++)
        streamed += plan->resident[plan->chunks[c].layer] == NONE;
    size_t seen[OT_TIERS] = {0}; /* so that what is deferred comes from both tiers alike */
    plan->deferred_chunks = 0;
    for (size_t c = 0; c < n; c++) {
        ot_chunk *chunk = &plan->chunks[c];
        ot_tier states = ot_spread(c, choice->host_states, n) ? OT_TIER_HOST : OT_TIER_NVME;
        ot_tier weight = weight_tier(draft, c, states, &streamed_seen, streamed);
        draft->deferred[c] =
            !draft->request->inference && (!draft->request->update_in_backward ||
                                           ot_spread(seen[states]++, (size_t)choice->deferred_16th, 16));
        plan->deferred_chunks += draft->deferred[c];
        for (int p = OT_PLANE_WEIGHT; p <= OT_PLANE_GRAD; p++) {
            ot_plane plane = (ot_plane)p;
            ot_place place = {.tier = states, .plane = plane, .chunk = (int32_t)c};
            place.bytes = ot_plane_bytes(draft->request, plane, chunk->count);
            if (plane == OT_PLANE_WEIGHT)
                place.tier = weight;
            if (plane == OT_PLANE_GRAD)
                place.tier = ot_spread(c, choice->host_grads, n) ? OT_TIER_HOST : OT_TIER_NVME;
            chunk->home[p] = NONE;
            if (place.bytes > 0 && (plane != OT_PLANE_GRAD || draft->deferred[c]))
                OT_TRY(add_place(draft, place, 1, &chunk->home[p]));
        }
    }
    return OT_OK;
}

/* Boundaries 1 … S-2: the one in front of the head is used up where it is. */
static ot_status place_boundaries(ot_draft *draft)
{
    size_t on_device = draft->choice.device_boundaries, S = draft->S, M = draft->M;
    size_t elsewhere = (S - 2 - on_device) * M, seen = 0;
    for (size_t i = 0; i < S * M; i++)
        draft->boundary[i] = NONE;
    if (draft->request->inference)
        return OT_OK;
    for (size_t s = 1; s + 1 < S; s++)
        for (size_t m = 0; m < M; m++) {
            ot_place place = {
                .plane = OT_PLANE_ACTIVATION, .bytes = draft->request->boundary_bytes, .chunk = NONE};
            if (s + 1 + on_device >= S)
                place.tier = OT_TIER_DEVICE;
            else
                place.tier =
                    ot_spread(seen++, draft->choice.host_acts, elsewhere) ? OT_TIER_HOST : OT_TIER_NVME;
            OT_TRY(add_place(draft, place, 1, &draft->boundary[s * M + m]));
        }
    return OT_OK;
}

/* ---- device slots that layers share ---- */

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

static int is_free(const ot_stay *stays, size_t count, int32_t slot, const ot_stay *wanted)
{
    for (size_t i = 0; i < count; i++)
        if (stays[i].slot == slot && stays[i].first <= wanted->last && wanted->first <= stays[i].last)
            return 0;
    return 1;
}

/* Gives each stay, in the order they have, the free slot that grows least and is least too large. Returns the
 * bytes of all slots. */
static uint64_t assign_slots(ot_stay *stays, size_t count, uint64_t sizes[], size_t *slots)
{
    uint64_t total = 0;
    *slots = 0;
    for (size_t i = 0; i < count; i++) {
        size_t best = *slots;
        uint64_t best_cost = UINT64_MAX;
        for (size_t slot = 0; slot < *slots; slot++) {
            uint64_t cost = sizes[slot] >= stays[i].bytes ? sizes[slot] - stays[i].bytes : UINT64_MAX / 2;
            if (cost < best_cost && is_free(stays, i, (int32_t)slot, &stays[i])) {
                best = slot;
                best_cost = cost;
            }
        }
        if (best == *slots)
            sizes[(*slots)++] = 0;
        stays[i].slot = (int32_t)best;
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
    uint64_t by_size_bytes = assign_slots(stays, count, draft->slot_sizes, &slots);
    qsort(stays, count, sizeof *stays, by_time);
    uint64_t by_time_bytes = assign_slots(stays, count, draft->slot_sizes, &slots);
    if (by_size_bytes < by_time_bytes) {
        qsort(stays, count, sizeof *stays, by_size);
        assign_slots(stays, count, draft->slot_sizes, &slots);
    }
    int32_t first = (int32_t)draft->plan->place_count;
    for (size_t slot = 0; slot < slots; slot++) {
        int32_t place;
        OT_TRY(add_slot(draft, OT_TIER_DEVICE, plane, draft->slot_sizes[slot], &place));
    }
    for (size_t i = 0; i < count; i++)
        stays[i].slot += first;
    return OT_OK;
}

/* Where the weights are at each visit. A layer stays in its slot between two visits that are so close that
 * fetching it again would have to begin at once. */
static ot_status place_weight_slots(ot_draft *draft)
{
    const ot_plan_request *request = draft->request;
    int32_t depth = draft->choice.prefetch_depth;
    size_t count = 0;
    for (size_t l = 0; l < request->layer_count; l++) {
        int32_t last = INT_MIN / 2;
        for (size_t v = 0; v < draft->V; v++)
            for (int j = 0; j < OT_STAGE_LAYERS; j++) {
                if (request->stages[ot_visit_stage(draft, v)].layers[j] != (int)l)
                    continue;
                draft->fetched[v][j] = 0;
                draft->weights[v][j] = draft->plan->resident[l];
                if (draft->plan->resident[l] != NONE)
                    continue;
                if ((int32_t)v - last > 2 * depth) {
                    draft->fetched[v][j] = 1;
                    draft->stays[count++] = (ot_stay){
                        .bytes = ot_plane_bytes(request, OT_PLANE_WEIGHT, request->layers[l].params),
                        .first = (int32_t)v - depth,
                        .tag = (int32_t)l};
                }
                draft->stays[count - 1].last = last = (int32_t)v;
            }
    }
    OT_TRY(share_slots(draft, OT_PLANE_WEIGHT, draft->stays, count));
    for (size_t v = 0; v < draft->V; v++)
        for (int j = 0; j < OT_STAGE_LAYERS; j++) {
            int l = request->stages[ot_visit_stage(draft, v)].layers[j];
            for (size_t i = 0; l >= 0 && draft->plan->resident[l] == NONE && i < count; i++)
                if (draft->stays[i].tag == l && draft->stays[i].first <= (int32_t)v &&
                    (int32_t)v <= draft->stays[i].last)
                    draft->weights[v][j] = draft->stays[i].slot;
        }
    return OT_OK;
}

/* FP32 gradients live from the first backward visit until they are reduced, what crosses to the host one
 * visit longer, so that it crosses while the next layer works. */
static ot_status place_grad_slots(ot_draft *draft)
{
    const ot_plan_request *request = draft->request;
    int crosses_as_is = request->grad_dtype == OT_FP32;
    for (int crossing = 0; crossing < (crosses_as_is ? 1 : 2); crossing++) {
        for (size_t l = 0; l < request->layer_count; l++) {
            ot_stay *stay = &draft->stays[l];
            uint64_t params = request->layers[l].params;
            stay->bytes = crossing ? ot_plane_bytes(request, OT_PLANE_GRAD, params) : params * sizeof(float);
            stay->first = crossing ? draft->last_backward[l] : draft->first_backward[l];
            stay->last = draft->last_backward[l] + (crossing || crosses_as_is);
            stay->tag = (int32_t)l;
        }
        OT_TRY(share_slots(draft, OT_PLANE_GRAD, draft->stays, request->layer_count));
        for (size_t i = 0; i < request->layer_count; i++)
            (crossing ? draft->staging : draft->grad32)[draft->stays[i].tag] = draft->stays[i].slot;
    }
    if (crosses_as_is)
        memcpy(draft->staging, draft->grad32, request->layer_count * sizeof *draft->staging);
    return OT_OK;
}

static uint64_t sums_bytes(uint64_t params)
{
    return ot_sum_blocks(params) * sizeof(double);
}

static ot_status place_device_slots(ot_draft *draft)
{
    const ot_plan_request *request = draft->request;
    ot_plan *plan = draft->plan;
    uint64_t largest = 0;
    for (size_t l = 0; l < request->layer_count; l++)
        largest = largest > request->layers[l].params ? largest : request->layers[l].params;
    OT_TRY(place_weight_slots(draft));
    if (!request->inference)
        OT_TRY(place_grad_slots(draft));
    for (int i = 0; i < 2 && !request->inference; i++)
        OT_TRY(add_slot(draft, OT_TIER_DEVICE, OT_PLANE_GRAD, sums_bytes(largest), &draft->sums[i]));
    /* Without boundaries to fetch one more is enough: each stage writes where the one before has been read. */
    draft->act_spare = request->inference ? 1 : draft->choice.device_boundaries + 2 < draft->S ? 2 : 0;
    OT_TRY(add_pool(draft, OT_TIER_DEVICE, OT_PLANE_ACTIVATION, request->boundary_bytes,
                    draft->M + draft->act_spare, &draft->act_slots));
    OT_TRY(add_slot(draft, OT_TIER_DEVICE, OT_PLANE_ACTIVATION, request->data_bytes, &plan->data_place));
    return add_slot(draft, OT_TIER_DEVICE, OT_PLANE_ACTIVATION, request->workspace_bytes,
                    &plan->workspace_place);
}

/* ---- host slots ---- */

/* Whether gradients meet their update inside backward, in slots alone. */
static int updates_in_backward(const ot_draft *draft)
{
    return draft->request->update_in_backward && draft->plan->deferred_chunks < draft->plan->chunk_count;
}

/* Bytes of the largest chunk of a plane that passes through a slot. */
static uint64_t ring_bytes(const ot_draft *draft, ot_plane plane)
{
    const ot_plan *plan = draft->plan;
    uint64_t largest = 0;
    if (plane == OT_PLANE_ACTIVATION)
        return draft->request->boundary_bytes;
    for (size_t c = 0; c < plan->chunk_count; c++) {
        int32_t home = plan->chunks[c].home[plane];
        int in_slots_alone = home == NONE && plane == OT_PLANE_GRAD;
        if (!in_slots_alone && (home == NONE || plan->places[home].tier != OT_TIER_NVME))
            continue;
        uint64_t bytes = ot_plane_bytes(draft->request, plane, plan->chunks[c].count);
        largest = largest > bytes ? largest : bytes;
    }
    return largest;
}

/* `ring` slots between NVMe and the other lanes, but no more than what they stand for would fill; twice as many for
 * gradients that meet their update inside backward. */
static size_t ring_slots(const ot_draft *draft, ot_plane plane, uint64_t slot_bytes)
{
    size_t ring = (size_t)draft->choice.ring, n = draft->plan->chunk_count;
    if (plane == OT_PLANE_GRAD && updates_in_backward(draft))
        return 2 * ring < n ? 2 * ring : n;
    uint64_t most = slot_bytes > 0 ? draft->plan->plane_bytes[OT_TIER_NVME][plane] / slot_bytes : 0;
    return most < ring ? (size_t)most : ring;
}

static ot_status place_host_slots(ot_draft *draft)
{
    const ot_plan_request *request = draft->request;
    ot_plan *plan = draft->plan;
    for (size_t l = 0; l < request->layer_count; l++)
        OT_TRY(add_slot(draft, OT_TIER_HOST, OT_PLANE_GRAD,
                        request->inference ? 0 : sums_bytes(request->layers[l].params), &plan->partials[l]));
    for (int p = 0; p < OT_PLANES; p++) {
        ot_plane plane = (ot_plane)p;
        uint64_t bytes = ring_bytes(draft, plane);
        size_t count = ring_slots(draft, plane, ot_round_up(bytes, OT_PAGE_BYTES));
        OT_TRY(add_pool(draft, OT_TIER_HOST, plane, bytes, count, &draft->rings[p]));
    }
    return OT_OK;
}

static ot_status lay_out(ot_draft *draft, int device_only)
{
    ot_plan *plan = draft->plan;
    plan->place_count = plan->nvme_chunk_count = 0;
    memset(plan->plane_bytes, 0, sizeof plan->plane_bytes);
    memset(plan->slot_bytes, 0, sizeof plan->slot_bytes);
    memset(plan->arena_bytes, 0, sizeof plan->arena_bytes);
    OT_TRY(place_resident(draft));
    if (!device_only)
        OT_TRY(place_homes(draft));
    OT_TRY(place_boundaries(draft));
    OT_TRY(place_device_slots(draft));
    if (!device_only)
        OT_TRY(place_host_slots(draft));
    const uint64_t fixed[OT_TIERS] = {draft->request->device_fixed_bytes, draft->request->host_fixed_bytes,
                                      0};
    for (int tier = 0; tier < OT_TIERS; tier++) {
        plan->slot_bytes[tier] += fixed[tier];
        plan->peak_bytes[tier] = plan->arena_bytes[tier] + fixed[tier];
    }
    return OT_OK;
}

ot_status ot_draft_layout(ot_draft *draft)
{
    return lay_out(draft, 0);
}

ot_status ot_draft_layout_device(ot_draft *draft)
{
    return lay_out(draft, 1);
}
