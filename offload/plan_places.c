/* The places of a plan: homes, slots and what each tier comes to. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "io/grow.h"
#include "io/host.h"
#include "offload/plan_draft.h"

enum { NONE = -1 };

/* Adds `count` places' bytes to their tier. */
static void count_places(ot_draft *draft, ot_tier tier, ot_plane plane, uint64_t bytes, uint64_t count,
                         int is_home)
{
    ot_plan *plan = draft->plan;
    uint64_t padded = ot_round_up(bytes, OT_PAGE_BYTES) * count;
    plan->arena_bytes[tier] += padded;
    if (is_home)
        plan->plane_bytes[tier][plane] += padded;
    else
        plan->slot_bytes[tier] += padded;
}

static ot_status add_place(ot_draft *draft, ot_place place, int is_home, int32_t *out)
{
    ot_plan *plan = draft->plan;
    if (place.tier == OT_TIER_NVME)
        place.offset = plan->nvme_chunk_count++;
    else
        place.offset = plan->arena_bytes[place.tier];
    count_places(draft, place.tier, place.plane, place.bytes, 1, is_home);
    *out = (int32_t)plan->place_count++;
    if (draft->counting)
        return OT_OK;
    OT_TRY(ot_grow(&plan->places, &draft->place_room, (size_t)*out + 1, sizeof *plan->places,
                   "the places of a plan"));
    plan->places[*out] = place;
    return OT_OK;
}

ot_status ot_draft_add_slot(ot_draft *draft, ot_tier tier, ot_plane plane, uint64_t bytes, int32_t *out)
{
    *out = NONE;
    if (bytes == 0)
        return OT_OK;
    return add_place(draft, (ot_place){.tier = tier, .plane = plane, .bytes = bytes, .chunk = NONE}, 0, out);
}

ot_status ot_draft_add_home(ot_draft *draft, ot_plane plane, uint64_t bytes, int32_t *out)
{
    return add_place(draft, (ot_place){.tier = OT_TIER_DEVICE, .plane = plane, .bytes = bytes, .chunk = NONE},
                     1, out);
}

/* Adds the home of a chunk's plane, where the plane exists; while counting, its bytes alone. */
static ot_status add_chunk_home(ot_draft *draft, size_t c, int plane, ot_tier tier, uint64_t bytes)
{
    ot_place place = {.tier = tier, .plane = (ot_plane)plane, .bytes = bytes, .chunk = (int32_t)c};
    if (bytes > 0 && !draft->counting)
        return add_place(draft, place, 1, &draft->plan->chunks[c].home[plane]);
    count_places(draft, tier, (ot_plane)plane, bytes, 1, 1);
    return OT_OK;
}

static ot_status add_pool(ot_draft *draft, ot_tier tier, ot_plane plane, uint64_t bytes, size_t count,
                          ot_pool *pool)
{
    *pool = (ot_pool){.first = (int32_t)draft->plan->place_count, .count = count};
    for (size_t i = 0; i < count; i++) {
        int32_t place;
        OT_TRY(ot_draft_add_slot(draft, tier, plane, bytes, &place));
    }
    return OT_OK;
}

/* ---- what is on the device for good ---- */

/* Layers whose states are there; then small ones, as they cost nothing; then the large ones or the usual ones, spread evenly
 * over the model. */
static int resident_group(const ot_draft *draft, size_t layer)
{
    if (ot_draft_layer_on_device(draft, layer))
        return 0;
    if (draft->small[layer])
        return 1;
    return draft->large[layer] == draft->choice.large_first ? 2 : 3;
}

enum { RESIDENT_GROUPS = 4 };

static ot_status place_resident(ot_draft *draft)
{
    const ot_plan_request *request = draft->request;
    size_t groups[RESIDENT_GROUPS] = {0}, taken[RESIDENT_GROUPS], left = draft->choice.resident_layers;
    for (size_t l = 0; l < request->layer_count; l++)
        groups[resident_group(draft, l)]++;
    left = left > groups[0] ? left : groups[0];
    for (int g = 0; g < RESIDENT_GROUPS; g++) {
        taken[g] = left < groups[g] ? left : groups[g];
        left -= taken[g];
    }
    size_t seen[RESIDENT_GROUPS] = {0};
    for (size_t l = 0; l < request->layer_count; l++) {
        int g = resident_group(draft, l);
        draft->plan->resident[l] = NONE;
        if (ot_spread(seen[g]++, taken[g], groups[g]))
            OT_TRY(ot_draft_add_home(draft, OT_PLANE_WEIGHT,
                                     ot_plane_bytes(request, OT_PLANE_WEIGHT, ot_layer_whole(request, l)),
                                     &draft->plan->resident[l]));
    }
    return OT_OK;
}

/* Masters and moments of the first own chunks. */
static ot_status place_device_states(ot_draft *draft)
{
    const ot_plan *plan = draft->plan;
    for (size_t c = 0, placed = 0; placed < plan->device_chunks; c++) {
        if (plan->chunks[c].copy)
            continue;
        placed++;
        for (int p = OT_PLANE_MASTER; p <= OT_PLANE_MOMENT2; p++)
            OT_TRY(add_chunk_home(draft, c, p, OT_TIER_DEVICE,
                                  ot_plane_bytes(draft->request, (ot_plane)p, plan->chunks[c].count)));
    }
    return OT_OK;
}

/* ---- homes ---- */

/* Walks over n things of which k are chosen, spread evenly: ot_spread of 0, 1, 2, … without its divisions. */
typedef struct spread_walk {
    size_t k, n, sum;
} spread_walk;

static int next_chosen(spread_walk *walk)
{
    walk->sum += walk->k;
    if (walk->n == 0 || walk->sum < walk->n)
        return 0;
    walk->sum -= walk->n;
    return 1;
}

/* Walks over the chunks and says on which tier each plane has its home. */
typedef struct home_walk {
    ot_draft *draft;
    int weights_forced;
    spread_walk states, weights, grads;
    spread_walk deferred[OT_TIERS]; /* so that what is deferred comes from both tiers alike */
} home_walk;

static int weights_forced(const ot_draft *draft)
{
    const ot_placement weights = draft->request->weights;
    return !ot_is_automatic(weights) && weights.tier != OT_TIER_DEVICE;
}

/* Of a layer's own chunks, those whose states are not on the device. */
static size_t chunks_away(const ot_draft *draft, size_t layer)
{
    const ot_plan *plan = draft->plan;
    size_t first = plan->layer_chunks[layer] / (uint32_t)plan->shards, device = draft->choice.device_states,
           end = first + ot_plan_own_end(plan, layer) - plan->layer_chunks[layer];
    size_t away = first > device ? first : device;
    return away < end ? end - away : 0;
}

static size_t placed_weights(const ot_draft *draft)
{
    size_t count = 0;
    for (size_t l = 0; l < draft->request->layer_count; l++)
        if (draft->plan->resident[l] == NONE)
            count += ot_draft_layer_weights(draft, l);
        else if (weights_forced(draft))
            count += chunks_away(draft, l);
    return count;
}

size_t ot_draft_placed(const ot_draft *draft, ot_plane plane)
{
    size_t device = draft->choice.device_states;
    if (plane == OT_PLANE_WEIGHT)
        return placed_weights(draft);
    return ot_draft_chunks_of(draft, plane) -
           device * (size_t)(draft->plan->whole[plane] ? draft->plan->shards : 1);
}

static home_walk start_homes(ot_draft *draft)
{
    const ot_choice *choice = &draft->choice;
    home_walk walk = {.draft = draft,
                      .weights_forced = weights_forced(draft),
                      .states = {choice->host_states, ot_draft_placed(draft, OT_PLANE_MASTER), 0},
                      .weights = {choice->host_weights, ot_draft_placed(draft, OT_PLANE_WEIGHT), 0},
                      .grads = {choice->host_grads, ot_draft_placed(draft, OT_PLANE_GRAD), 0}};
    for (int tier = 0; tier < OT_TIERS; tier++)
        walk.deferred[tier] = (spread_walk){(size_t)choice->deferred_16th, 16, 0};
    return walk;
}

/* Whether a chunk has the plane: copies, where it is whole, but no weights beside those that are on the device for good. */
static int has_plane(const ot_draft *draft, const ot_chunk *chunk, int plane)
{
    if (!chunk->copy)
        return 1;
    return draft->plan->whole[plane] &&
           (plane != OT_PLANE_WEIGHT || draft->plan->resident[chunk->layer] == NONE);
}

/* The tiers of the next chunk's planes, in their order; whether its gradient has none is in draft->deferred. */
static void next_homes(home_walk *walk, size_t c, ot_tier tiers[OT_PLANE_GRAD + 1])
{
    ot_draft *draft = walk->draft;
    const ot_chunk *chunk = &draft->plan->chunks[c];
    int states_on_host = !chunk->copy && next_chosen(&walk->states),
        grad_on_host = has_plane(draft, chunk, OT_PLANE_GRAD) && next_chosen(&walk->grads),
        weight_on_host = states_on_host, in_backward = draft->request->update_in_backward;
    if (walk->weights_forced)
        weight_on_host = has_plane(draft, chunk, OT_PLANE_WEIGHT) && next_chosen(&walk->weights);
    else if (draft->plan->resident[chunk->layer] == NONE && has_plane(draft, chunk, OT_PLANE_WEIGHT))
        weight_on_host |= next_chosen(&walk->weights);
    ot_tier states = states_on_host ? OT_TIER_HOST : OT_TIER_NVME;
    tiers[OT_PLANE_WEIGHT] = weight_on_host ? OT_TIER_HOST : OT_TIER_NVME;
    tiers[OT_PLANE_MASTER] = tiers[OT_PLANE_MOMENT1] = tiers[OT_PLANE_MOMENT2] = states;
    tiers[OT_PLANE_GRAD] = grad_on_host ? OT_TIER_HOST : OT_TIER_NVME;
    draft->deferred[c] = !draft->request->inference &&
                         (!in_backward || (!chunk->copy && next_chosen(&walk->deferred[states])));
}

/* What passes through a plane's ring has these bytes. */
static void widen_ring(ot_draft *draft, int plane, uint64_t bytes)
{
    if (bytes > draft->ring_bytes[plane])
        draft->ring_bytes[plane] = bytes;
}

/* A chunk whose states are on the device: weights lie in their layer's place, and nothing passes through the rings but for a
 * load or a save. */
static void leave_on_device(ot_draft *draft, size_t c)
{
    ot_chunk *chunk = &draft->plan->chunks[c];
    draft->deferred[c] = !draft->request->update_in_backward;
    if (chunk->copy)
        return;
    for (int p = OT_PLANE_WEIGHT; p <= OT_PLANE_MOMENT2; p++)
        widen_ring(draft, p, ot_plane_bytes(draft->request, (ot_plane)p, chunk->count));
    if (!draft->counting)
        chunk->home[OT_PLANE_WEIGHT] = draft->plan->resident[chunk->layer];
}

/* What waits on the device for its update. */
static void find_device_grads(ot_draft *draft)
{
    ot_plan *plan = draft->plan;
    for (size_t c = 0; c < plan->chunk_count; c++)
        if (ot_plan_on_device(plan, c) && draft->deferred[c] &&
            (!plan->chunks[c].copy || plan->whole[OT_PLANE_GRAD]))
            plan->chunks[c].home[OT_PLANE_GRAD] = draft->staging[plan->chunks[c].layer];
}

/* The homes of the next chunk; `usual`: bytes of its planes where it is as large as most. */
static ot_status place_chunk(home_walk *walk, size_t c, const uint64_t usual[])
{
    ot_draft *draft = walk->draft;
    const ot_chunk *chunk = &draft->plan->chunks[c];
    ot_tier tiers[OT_PLANE_GRAD + 1];
    next_homes(walk, c, tiers);
    for (int p = OT_PLANE_WEIGHT; p <= OT_PLANE_GRAD; p++) {
        if (!has_plane(draft, chunk, p))
            continue;
        uint64_t bytes = chunk->count == draft->plan->chunk_params
                             ? usual[p]
                             : ot_plane_bytes(draft->request, (ot_plane)p, chunk->count);
        int slots_alone = p == OT_PLANE_GRAD && !draft->deferred[c];
        if (slots_alone || tiers[p] == OT_TIER_NVME)
            widen_ring(draft, p, bytes);
        if (!slots_alone)
            OT_TRY(add_chunk_home(draft, c, p, tiers[p], bytes));
    }
    return OT_OK;
}

/* Of all chunks but what place_device_states places. */
static ot_status place_homes(ot_draft *draft)
{
    ot_plan *plan = draft->plan;
    home_walk walk = start_homes(draft);
    uint64_t usual[OT_PLANE_GRAD + 1];
    plan->deferred_chunks = 0;
    memset(draft->ring_bytes, 0, sizeof draft->ring_bytes);
    for (int p = 0; p <= OT_PLANE_GRAD; p++)
        usual[p] = ot_plane_bytes(draft->request, (ot_plane)p, plan->chunk_params);
    for (size_t c = 0; c < plan->chunk_count; c++) {
        if (ot_plan_on_device(plan, c))
            leave_on_device(draft, c);
        else
            OT_TRY(place_chunk(&walk, c, usual));
        plan->deferred_chunks += draft->deferred[c] && !plan->chunks[c].copy;
    }
    return OT_OK;
}

/* Boundaries 1 … S-2, as the one in front of the head is used up where it is, and what is kept beside them. */
static void count_acts(ot_draft *draft, int of_device)
{
    uint64_t bytes = draft->request->boundary_bytes, host = draft->choice.host_acts;
    uint64_t on_device = draft->choice.device_boundaries * draft->M, all = (draft->S - 2) * draft->M;
    if (draft->request->inference)
        return;
    if (of_device) {
        count_places(draft, OT_TIER_DEVICE, OT_PLANE_ACTIVATION, bytes, on_device, 1);
        count_places(draft, OT_TIER_DEVICE, OT_PLANE_ACTIVATION, draft->request->kept_bytes, all, 1);
        return;
    }
    count_places(draft, OT_TIER_HOST, OT_PLANE_ACTIVATION, bytes, host, 1);
    count_places(draft, OT_TIER_NVME, OT_PLANE_ACTIVATION, bytes, all - on_device - host, 1);
}

static ot_status place_boundaries(ot_draft *draft)
{
    size_t on_device = draft->choice.device_boundaries, S = draft->S, M = draft->M;
    spread_walk on_host = {draft->choice.host_acts, (S - 2 - on_device) * M, 0};
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
                place.tier = next_chosen(&on_host) ? OT_TIER_HOST : OT_TIER_NVME;
            OT_TRY(add_place(draft, place, 1, &draft->boundary[s * M + m]));
        }
    return OT_OK;
}

/* On the device alone: to move it would take longer than to compute it again. */
static ot_status place_kept(ot_draft *draft)
{
    const ot_plan_request *request = draft->request;
    const ot_place place = {
        .tier = OT_TIER_DEVICE, .plane = OT_PLANE_ACTIVATION, .bytes = request->kept_bytes, .chunk = NONE};
    size_t S = draft->S, M = draft->M;
    for (size_t i = 0; i < S * M; i++) {
        size_t s = i / M;
        draft->kept[i] = NONE;
        if (request->kept_bytes > 0 && !request->inference && s > 0 && s + 1 < S)
            OT_TRY(add_place(draft, place, 1, &draft->kept[i]));
    }
    return OT_OK;
}

/* ---- device slots ---- */

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
        largest = largest > ot_layer_shard(request, l) ? largest : ot_layer_shard(request, l);
    OT_TRY(ot_draft_place_weights(draft));
    if (!request->inference)
        OT_TRY(ot_draft_place_grads(draft));
    for (int i = 0; i < 2 && !request->inference; i++)
        OT_TRY(ot_draft_add_slot(draft, OT_TIER_DEVICE, OT_PLANE_GRAD, sums_bytes(largest), &draft->sums[i]));
    /* Without boundaries to fetch one more is enough: each stage writes where the one before has been read. */
    draft->act_spare = request->inference ? 1 : draft->choice.device_boundaries + 2 < draft->S ? 2 : 0;
    OT_TRY(add_pool(draft, OT_TIER_DEVICE, OT_PLANE_ACTIVATION, request->boundary_bytes,
                    draft->M + draft->act_spare, &draft->act_slots));
    OT_TRY(ot_draft_add_slot(draft, OT_TIER_DEVICE, OT_PLANE_ACTIVATION, request->data_bytes,
                             &plan->data_place));
    return ot_draft_add_slot(draft, OT_TIER_DEVICE, OT_PLANE_ACTIVATION, request->workspace_bytes,
                             &plan->workspace_place);
}

/* ---- host slots ---- */

/* Whether gradients meet their update inside backward, in slots alone. */
static int updates_in_backward(const ot_draft *draft)
{
    return draft->request->update_in_backward &&
           draft->plan->deferred_chunks < ot_draft_placed(draft, OT_PLANE_MASTER);
}

/* `ring` slots between NVMe and the other lanes, but no more than what they stand for would fill; twice as many for
 * gradients that meet their update inside backward. Two are enough for what passes only in a load or a save. */
static size_t ring_slots(const ot_draft *draft, ot_plane plane, uint64_t slot_bytes)
{
    size_t ring = (size_t)draft->choice.ring, n = ot_draft_placed(draft, OT_PLANE_MASTER);
    size_t passing = plane <= OT_PLANE_MOMENT2 && slot_bytes > 0 ? draft->plan->device_chunks : 0;
    if (plane == OT_PLANE_GRAD && updates_in_backward(draft))
        return 2 * ring < n ? 2 * ring : n;
    uint64_t most = slot_bytes > 0 ? draft->plan->plane_bytes[OT_TIER_NVME][plane] / slot_bytes : 0;
    size_t slots = most < ring ? (size_t)most : ring;
    passing = passing < 2 ? passing : 2;
    return slots > passing ? slots : passing;
}

static ot_status place_host_slots(ot_draft *draft)
{
    const ot_plan_request *request = draft->request;
    ot_plan *plan = draft->plan;
    for (size_t l = 0; l < request->layer_count; l++)
        OT_TRY(ot_draft_add_slot(draft, OT_TIER_HOST, OT_PLANE_GRAD,
                                 request->inference ? 0 : sums_bytes(ot_layer_shard(request, l)),
                                 &plan->partials[l]));
    for (int p = 0; p < OT_PLANES; p++) {
        ot_plane plane = (ot_plane)p;
        uint64_t bytes = plane == OT_PLANE_ACTIVATION ? request->boundary_bytes : draft->ring_bytes[p];
        size_t count = ring_slots(draft, plane, ot_round_up(bytes, OT_PAGE_BYTES));
        OT_TRY(add_pool(draft, OT_TIER_HOST, plane, bytes, count, &draft->rings[p]));
    }
    return OT_OK;
}

/* ---- the whole ---- */

static void forget_homes(ot_plan *plan)
{
    for (size_t c = 0; c < plan->chunk_count; c++)
        for (int p = 0; p <= OT_PLANE_GRAD; p++)
            plan->chunks[c].home[p] = NONE;
}

static void forget(ot_draft *draft, ot_tier tier)
{
    ot_plan *plan = draft->plan;
    memset(plan->plane_bytes[tier], 0, sizeof plan->plane_bytes[tier]);
    plan->slot_bytes[tier] = plan->arena_bytes[tier] = 0;
}

static void add_fixed(ot_draft *draft, ot_tier tier, uint64_t fixed_bytes)
{
    draft->plan->slot_bytes[tier] += fixed_bytes;
    draft->plan->peak_bytes[tier] = draft->plan->arena_bytes[tier] + fixed_bytes;
}

ot_status ot_draft_count_device(ot_draft *draft)
{
    draft->counting = 1;
    forget(draft, OT_TIER_DEVICE);
    draft->plan->place_count = 0;
    draft->plan->device_chunks = draft->choice.device_states;
    OT_TRY(place_resident(draft));
    OT_TRY(place_device_states(draft));
    count_acts(draft, 1);
    OT_TRY(place_device_slots(draft));
    add_fixed(draft, OT_TIER_DEVICE, draft->request->device_fixed_bytes);
    return OT_OK;
}

ot_status ot_draft_count_host(ot_draft *draft)
{
    draft->counting = 1;
    forget(draft, OT_TIER_HOST);
    forget(draft, OT_TIER_NVME);
    OT_TRY(place_homes(draft));
    count_acts(draft, 0);
    OT_TRY(place_host_slots(draft));
    add_fixed(draft, OT_TIER_HOST, draft->request->host_fixed_bytes);
    add_fixed(draft, OT_TIER_NVME, 0);
    return OT_OK;
}

ot_status ot_draft_layout(ot_draft *draft)
{
    ot_plan *plan = draft->plan;
    const uint64_t fixed[OT_TIERS] = {draft->request->device_fixed_bytes, draft->request->host_fixed_bytes,
                                      0};
    draft->counting = 0;
    plan->place_count = plan->nvme_chunk_count = 0;
    plan->device_chunks = draft->choice.device_states;
    forget_homes(plan);
    for (int tier = 0; tier < OT_TIERS; tier++)
        forget(draft, (ot_tier)tier);
    OT_TRY(place_resident(draft));
    OT_TRY(place_device_states(draft));
    OT_TRY(place_homes(draft));
    OT_TRY(place_boundaries(draft));
    OT_TRY(place_kept(draft));
    OT_TRY(place_device_slots(draft));
    find_device_grads(draft);
    OT_TRY(place_host_slots(draft));
    for (int tier = 0; tier < OT_TIERS; tier++)
        add_fixed(draft, (ot_tier)tier, fixed[tier]);
    return OT_OK;
}
