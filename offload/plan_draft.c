/* A plan in the making: what is asked is checked, and everything that does not depend on choices is worked
 * out. */
#include "offload/plan_draft.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum {
    CHUNK_PARAMS_MAX = 4 << 20,
    CHUNKS_A_LAYER = 8, /* so many in an average one, where the layers are large enough */
};

/* ---- the request ---- */

static ot_status check_placement(const char *what, ot_placement placement, ot_tier fastest)
{
    if (ot_is_automatic(placement))
        return OT_OK;
    if (placement.tier < fastest || placement.tier >= OT_TIERS)
        return ot_fail(OT_ERR_USAGE, "%s cannot be placed on the %s tier", what,
                       ot_tier_name(placement.tier));
    if (!(placement.share >= 0 && placement.share <= 1))
        return ot_fail(OT_ERR_USAGE, "%s: a share of %g, expected 0 to 100%%", what, placement.share);
    if (placement.tier == OT_TIER_NVME && placement.share < 1)
        return ot_fail(OT_ERR_USAGE, "%s=nvme:%g%% leaves the rest without a tier: no tier is slower", what,
                       placement.share * 100);
    return OT_OK;
}

static ot_status check_stages(const ot_plan_request *request)
{
    int layers = request->layer_count > INT_MAX / 4 ? 0 : (int)request->layer_count;
    if (layers == 0 || request->stage_count < 2 || request->stage_count > INT_MAX / 8 ||
        request->micro_batches == 0)
        return ot_fail(OT_ERR_USAGE,
                       "a plan of %zu layers, %zu stages and %zu micro-batches: expected 1, 2 and 1 or more",
                       request->layer_count, request->stage_count, request->micro_batches);
    for (size_t s = 0; s < request->stage_count; s++)
        for (int j = 0; j < OT_STAGE_LAYERS; j++)
            if (request->stages[s].layers[j] < -1 || request->stages[s].layers[j] >= layers ||
                (j > 0 && request->stages[s].layers[j] >= 0 &&
                 request->stages[s].layers[j] == request->stages[s].layers[0]))
                return ot_fail(OT_ERR_USAGE, "stage %s needs layer %d of %d", request->stages[s].name,
                               request->stages[s].layers[j], layers);
    for (size_t l = 0; l < request->layer_count; l++)
        if (request->layers[l].params == 0)
            return ot_fail(OT_ERR_USAGE, "layer %s has no parameters", request->layers[l].name);
    if (request->boundary_bytes == 0)
        return ot_fail(OT_ERR_USAGE, "boundaries of 0 bytes");
    return OT_OK;
}

size_t ot_operations_most(const ot_plan_request *request, size_t chunks)
{
    const double per_micro_batch = 3, per_chunk = 22, per_layer = request->ranks > 1 ? 7 : 0;
    double visits = 2 * (double)request->stage_count - 1;
    double most = per_micro_batch * visits * (double)request->micro_batches + per_chunk * (double)chunks +
                  per_layer * (double)request->layer_count;
    return most < (double)(SIZE_MAX / 2) ? (size_t)most : SIZE_MAX / 2;
}

static ot_status check_length(const ot_plan_request *request, size_t chunks)
{
    size_t most = ot_operations_most(request, chunks);
    if (most <= OT_LIST_OPERATIONS_MAX)
        return OT_OK;
    return ot_fail(
        OT_ERR_USAGE,
        "%zu micro-batches through %zu stages and %zu chunks make a step of up to %zu operations, "
        "more than the %d that a list may have; take a larger --batch-size, so that there are fewer "
        "micro-batches",
        request->micro_batches, request->stage_count, chunks, most, (int)OT_LIST_OPERATIONS_MAX);
}

static ot_status check_ranks(const ot_plan_request *request)
{
    int ranks = ot_rank_count(request->ranks);
    if (request->ranks < 0 || request->rank < 0 || request->rank >= ranks)
        return ot_fail(OT_ERR_USAGE, "rank %d of %d: expected 0 to %d", request->rank, request->ranks,
                       ranks - 1);
    if (request->zero < 0 || request->zero > OT_ZERO_STAGES)
        return ot_fail(OT_ERR_USAGE, "ZeRO stage %d: expected 1, 2 or 3", request->zero);
    if (ranks > 1 && request->measured && request->zero != 1)
        return ot_fail(OT_ERR_USAGE,
                       "passes over a layer's whole gradient, of which %d ranks store a part each; with "
                       "ZeRO-1 each stores all",
                       ranks);
    return OT_OK;
}

static ot_status check_request(const ot_plan_request *request)
{
    OT_TRY(check_stages(request));
    OT_TRY(check_ranks(request));
    if (request->chunk_params % OT_SUM_BLOCK != 0)
        return ot_fail(OT_ERR_USAGE, "chunks of %llu elements: expected a multiple of %d",
                       (unsigned long long)request->chunk_params, OT_SUM_BLOCK);
    if (request->prefetch_depth < 0 || request->ring < 0 || request->ring == 1)
        return ot_fail(
            OT_ERR_USAGE,
            "a prefetch depth of %d and a ring of %d: expected at least 1 and 2, or 0 for automatic",
            request->prefetch_depth, request->ring);
    if (request->measured && request->update_in_backward)
        return ot_fail(OT_ERR_USAGE,
                       "an update inside backward cannot wait for passes over the whole gradient");
    if (request->inference && request->update_in_backward)
        return ot_fail(OT_ERR_USAGE, "a plan for inference has no update, neither in backward nor elsewhere");
    if (request->moments < 0 || request->moments > 2)
        return ot_fail(OT_ERR_USAGE, "%d moments: expected 0, 1 or 2", request->moments);
    if (request->weight_dtype == OT_INT8 || request->grad_dtype == OT_INT8)
        return ot_fail(OT_ERR_USAGE, "weights in %s and gradients in %s: int8 is for moments alone",
                       ot_dtype_name(request->weight_dtype), ot_dtype_name(request->grad_dtype));
    if (request->master_format == OT_MASTER_SPLIT && request->weight_dtype == OT_FP16)
        return ot_fail(OT_ERR_USAGE, "a split master needs bf16 weights, not %s",
                       ot_dtype_name(request->weight_dtype));
    OT_TRY(check_placement("weights", request->weights, OT_TIER_DEVICE));
    OT_TRY(check_placement("states", request->states, OT_TIER_DEVICE));
    if (request->measured && !request->inference && !ot_is_automatic(request->states) &&
        request->states.tier == OT_TIER_DEVICE)
        return ot_fail(OT_ERR_USAGE,
                       "states on the device cannot be updated after passes over a layer's whole "
                       "gradient, which the CPU makes; place them on host or nvme");
    OT_TRY(check_placement("grads", request->grads, OT_TIER_HOST));
    return check_placement("acts", request->acts, OT_TIER_DEVICE);
}

static void fill_rates(const ot_plan_request *request, ot_rates *rates)
{
    static const ot_rates usual = {
        .lane = {5e9, 3e9, 20e9, 20e9, 100e12, 20e9, 40e9},
        .nvme_half_duplex = 1,
        .device_memory = 800e9,
    };
    *rates = usual;
    for (int lane = 0; lane < OT_LANES; lane++)
        if (request->rates.lane[lane] > 0) {
            *rates = request->rates;
            return;
        }
}

/* ---- what does not depend on choices ---- */

static uint64_t chunk_params(const ot_plan_request *request)
{
    if (request->chunk_params > 0)
        return request->chunk_params;
    uint64_t total = 0, blocks;
    for (size_t l = 0; l < request->layer_count; l++)
        total += ot_layer_shard(request, l);
    blocks = total / request->layer_count / CHUNKS_A_LAYER / OT_SUM_BLOCK;
    blocks = blocks > 0 ? blocks : 1;
    return blocks * OT_SUM_BLOCK < CHUNK_PARAMS_MAX ? blocks * OT_SUM_BLOCK : CHUNK_PARAMS_MAX;
}

static int zero_stage(const ot_plan_request *request)
{
    return request->zero > 0 ? request->zero : OT_ZERO_STAGES;
}

/* Whether the homes of a plane are whole with a ZeRO stage. */
static int is_whole(const ot_plan_request *request, int zero, ot_plane plane)
{
    if (request->ranks <= 1 || request->inference)
        return 0;
    if (plane == OT_PLANE_GRAD)
        return zero == 1 && !request->update_in_backward;
    return plane == OT_PLANE_WEIGHT && zero < OT_ZERO_STAGES;
}

/* Without homes of gradients where they meet their update inside backward. */
static uint64_t state_bytes(const ot_plan_request *request, int zero)
{
    uint64_t bytes = 0;
    for (size_t l = 0; l < request->layer_count; l++)
        for (int p = 0; p < OT_PLANE_GRAD + !request->update_in_backward; p++)
            bytes += ot_plane_bytes(request, (ot_plane)p,
                                    is_whole(request, zero, (ot_plane)p) ? ot_layer_whole(request, l)
                                                                         : ot_layer_shard(request, l));
    return bytes;
}

static void describe_ranks(const ot_plan_request *request, ot_plan *plan)
{
    plan->zero = zero_stage(request);
    for (int p = 0; p <= OT_PLANE_GRAD; p++)
        plan->whole[p] = is_whole(request, plan->zero, (ot_plane)p);
    for (int zero = 1; zero <= OT_ZERO_STAGES; zero++)
        plan->state_bytes[zero] = state_bytes(request, zero);
}

/* Of how many ranks each layer has chunks. */
static int count_shards(const ot_plan_request *request)
{
    return is_whole(request, zero_stage(request), OT_PLANE_WEIGHT) ? request->ranks : 1;
}

static uint64_t count_chunks(const ot_plan_request *request, uint64_t size)
{
    uint64_t count = 0;
    for (size_t l = 0; l < request->layer_count; l++)
        count += (ot_layer_shard(request, l) - 1) / size + 1;
    return count * (uint64_t)count_shards(request);
}

static void cut_shard(ot_draft *draft, size_t layer, int rank)
{
    ot_plan *plan = draft->plan;
    uint64_t shard = ot_layer_shard(draft->request, layer), size = plan->chunk_params;
    for (uint64_t first = 0; first < shard; first += size)
        plan->chunks[plan->chunk_count++] = (ot_chunk){.layer = (int32_t)layer,
                                                       .copy = rank != draft->request->rank,
                                                       .first = (uint64_t)rank * shard + first,
                                                       .count = shard - first < size ? shard - first : size};
}

static ot_status cut_chunks(ot_draft *draft)
{
    const ot_plan_request *request = draft->request;
    ot_plan *plan = draft->plan;
    uint64_t size = plan->chunk_params = chunk_params(request), count = count_chunks(request, size);
    plan->shards = count_shards(request);
    plan->chunks = calloc(count, sizeof *plan->chunks);
    draft->deferred = calloc(count, 1);
    if (plan->chunks == NULL || draft->deferred == NULL)
        return ot_fail(OT_ERR_INTERNAL, "no memory for a plan of %llu chunks", (unsigned long long)count);
    for (size_t l = 0; l < request->layer_count; l++) {
        plan->layer_chunks[l] = (uint32_t)plan->chunk_count;
        for (int k = 0; k < plan->shards; k++)
            cut_shard(draft, l, k == 0 ? request->rank : (request->rank + k) % request->ranks);
    }
    plan->layer_chunks[request->layer_count] = (uint32_t)plan->chunk_count;
    return OT_OK;
}

/* Visits of each layer. A layer that no stage needs gets none, which is refused. */
static ot_status find_visits(ot_draft *draft)
{
    const ot_plan_request *request = draft->request;
    for (size_t l = 0; l < request->layer_count; l++)
        draft->first_visit[l] = draft->first_backward[l] = draft->last_backward[l] = -1;
    for (size_t v = 0; v < draft->V; v++)
        for (int j = 0; j < OT_STAGE_LAYERS; j++) {
            int l = request->stages[ot_visit_stage(draft, v)].layers[j];
            draft->weights[v][j] = -1;
            if (l < 0)
                continue;
            if (draft->first_visit[l] < 0)
                draft->first_visit[l] = (int32_t)v;
            if (v + 1 >= draft->S && draft->first_backward[l] < 0)
                draft->first_backward[l] = (int32_t)v;
            if (v + 1 >= draft->S)
                draft->last_backward[l] = (int32_t)v;
        }
    for (size_t l = 0; l < request->layer_count; l++)
        if (draft->first_visit[l] < 0)
            return ot_fail(OT_ERR_USAGE, "no stage needs layer %s", request->layers[l].name);
    return OT_OK;
}

/* Layers of less than a sixteenth and of more than one and a half times the median size. */
static ot_status find_sizes(ot_draft *draft)
{
    const ot_plan_request *request = draft->request;
    size_t n = request->layer_count;
    for (size_t l = 0; l < n; l++) {
        size_t smaller = 0, equal = 0;
        for (size_t k = 0; k < n; k++) {
            smaller += request->layers[k].params < request->layers[l].params;
            equal += request->layers[k].params == request->layers[l].params;
        }
        if (smaller > n / 2 || smaller + equal <= n / 2)
            continue;
        uint64_t median = request->layers[l].params;
        for (size_t k = 0; k < n; k++) {
            draft->small[k] = request->layers[k].params < median / 16;
            draft->large[k] = request->layers[k].params > median + median / 2;
        }
        break;
    }
    return OT_OK;
}

static void *array(size_t count, size_t size, int *complete)
{
    void *memory = calloc(count + 1, size);
    *complete &= memory != NULL;
    return memory;
}

static ot_status allocate(ot_draft *draft)
{
    size_t L = draft->request->layer_count, stays = L + draft->V * OT_STAGE_LAYERS;
    int complete = 1;
    draft->plan = array(1, sizeof *draft->plan, &complete);
    draft->first_visit = array(L, sizeof *draft->first_visit, &complete);
    draft->first_backward = array(L, sizeof *draft->first_backward, &complete);
    draft->last_backward = array(L, sizeof *draft->last_backward, &complete);
    draft->grad32 = array(L, sizeof *draft->grad32, &complete);
    draft->staging = array(L, sizeof *draft->staging, &complete);
    draft->small = array(L, 1, &complete);
    draft->large = array(L, 1, &complete);
    draft->weights = array(draft->V, sizeof *draft->weights, &complete);
    draft->fetched = array(draft->V, sizeof *draft->fetched, &complete);
    draft->boundary = array(draft->S * draft->M, sizeof *draft->boundary, &complete);
    draft->kept = array(draft->S * draft->M, sizeof *draft->kept, &complete);
    draft->stays = array(stays, sizeof *draft->stays, &complete);
    draft->slot_sizes = array(stays, sizeof *draft->slot_sizes, &complete);
    draft->slot_last = array(stays, sizeof *draft->slot_last, &complete);
    draft->stay_slot = array(stays, sizeof *draft->stay_slot, &complete);
    draft->layer_stay = array(L, sizeof *draft->layer_stay, &complete);
    if (draft->plan != NULL) {
        draft->plan->layer_chunks = array(L, sizeof *draft->plan->layer_chunks, &complete);
        draft->plan->resident = array(L, sizeof *draft->plan->resident, &complete);
        draft->plan->partials = array(L, sizeof *draft->plan->partials, &complete);
    }
    return complete ? OT_OK : ot_fail(OT_ERR_INTERNAL, "no memory for a plan of %zu layers", L);
}

ot_status ot_draft_open(const ot_plan_request *request, ot_draft *draft)
{
    *draft = (ot_draft){.request = request};
    OT_TRY(check_request(request));
    OT_TRY(check_length(request, count_chunks(request, chunk_params(request))));
    draft->S = request->stage_count;
    draft->M = request->micro_batches;
    draft->V = request->inference ? draft->S : 2 * draft->S - 1;
    fill_rates(request, &draft->rates);
    ot_status status;
    OT_TRY_GOTO(allocate(draft), out);
    draft->plan->update_in_backward = request->update_in_backward;
    describe_ranks(request, draft->plan);
    OT_TRY_GOTO(find_visits(draft), out);
    OT_TRY_GOTO(find_sizes(draft), out);
    OT_TRY_GOTO(cut_chunks(draft), out);
    return OT_OK;
out:
    ot_draft_close(draft);
    return status;
}

void ot_draft_close(ot_draft *draft)
{
    ot_plan_free(draft->plan);
    free(draft->first_visit);
    free(draft->first_backward);
    free(draft->last_backward);
    free(draft->grad32);
    free(draft->staging);
    free(draft->small);
    free(draft->large);
    free(draft->weights);
    free(draft->fetched);
    free(draft->deferred);
    free(draft->boundary);
    free(draft->kept);
    free(draft->stays);
    free(draft->slot_sizes);
    free(draft->slot_last);
    free(draft->stay_slot);
    free(draft->layer_stay);
    *draft = (ot_draft){0};
}
