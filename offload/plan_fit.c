/* Fits a plan into the budgets: what is kept on the device, and then what on the host. */
#include <string.h>

#include "offload/plan_draft.h"

static size_t share_of(ot_placement placement, size_t count)
{
    return (size_t)(placement.share * (double)count + 0.5);
}

/* Tries a knob of the choice at `value`. Sets how far its tier's budget is exceeded; negative: room is left. */
static ot_status try_value(ot_draft *draft, size_t *knob, size_t value, ot_tier tier, double *excess)
{
    *knob = value;
    OT_TRY(tier == OT_TIER_DEVICE ? ot_draft_count_device(draft) : ot_draft_count_host(draft));
    uint64_t peak = draft->plan->peak_bytes[tier], budget = draft->request->budget[tier];
    *excess = peak > budget ? (double)(peak - budget) : -(double)(budget - peak);
    return OT_OK;
}

/* Turns a knob up as far as its tier allows, and leaves the sums so. Bytes grow about evenly with the knob, so
 * that the next value to try is where the budget would then be reached; halving every third time bounds the
 * number of tries where they do not. */
static ot_status maximise(ot_draft *draft, size_t *knob, size_t most, ot_tier tier)
{
    size_t low = 0, high = most;
    double excess, below, above;
    OT_TRY(try_value(draft, knob, most, tier, &above));
    if (above <= 0)
        return OT_OK;
    OT_TRY(try_value(draft, knob, 0, tier, &below));
    for (int tries = 1; below <= 0 && low + 1 < high; tries++) {
        double part = tries % 3 == 0 ? 0.5 : below / (below - above);
        size_t step = (size_t)(part * (double)(high - low));
        size_t middle = low + (step < 1 ? 1 : step < high - low ? step : high - low - 1);
        OT_TRY(try_value(draft, knob, middle, tier, &excess));
        *(excess <= 0 ? &low : &high) = middle;
        *(excess <= 0 ? &below : &above) = excess;
    }
    return *knob == low ? OT_OK : try_value(draft, knob, low, tier, &excess);
}

/* ---- device ---- */

/* As many chunks' states as the device takes; with each layer's first chunk its weights come to stay. */
static ot_status fit_device_states(ot_draft *draft)
{
    return maximise(draft, &draft->choice.device_states, ot_plan_own_chunks(draft->plan), OT_TIER_DEVICE);
}

/* Weights and gradients go with the states, so none of the three may have been placed elsewhere. */
static int may_take_states(const ot_plan_request *request)
{
    const ot_placement weights = request->weights;
    int with_weights = ot_is_automatic(weights) || (weights.tier == OT_TIER_DEVICE && weights.share >= 1);
    return with_weights && ot_is_automatic(request->states) && ot_is_automatic(request->grads);
}

ot_status ot_draft_fit_device(ot_draft *draft, int acts_first, ot_device_states states)
{
    const ot_plan_request *request = draft->request;
    ot_choice *choice = &draft->choice;
    size_t layers = request->layer_count, boundaries = draft->S - 2;
    int weights_free = ot_is_automatic(request->weights), acts_free = ot_is_automatic(request->acts);
    choice->host_acts = choice->host_grads = choice->host_weights = choice->host_states = 0;
    choice->resident_layers = 0;
    choice->device_boundaries = 0;
    choice->device_states = 0;
    if (request->inference || request->measured || !may_take_states(request))
        states = OT_STATES_AWAY;
    if (!request->inference && !ot_is_automatic(request->states) && request->states.tier == OT_TIER_DEVICE)
        choice->device_states = share_of(request->states, ot_plan_own_chunks(draft->plan));
    if (!weights_free && request->weights.tier == OT_TIER_DEVICE)
        choice->resident_layers = share_of(request->weights, layers);
    if (!acts_free && request->acts.tier == OT_TIER_DEVICE)
        choice->device_boundaries = share_of(request->acts, boundaries);
    if (states == OT_STATES_FIRST)
        OT_TRY(fit_device_states(draft));
    if (acts_first && acts_free)
        OT_TRY(maximise(draft, &choice->device_boundaries, boundaries, OT_TIER_DEVICE));
    if (weights_free)
        OT_TRY(maximise(draft, &choice->resident_layers, layers, OT_TIER_DEVICE));
    if (!acts_first && acts_free)
        OT_TRY(maximise(draft, &choice->device_boundaries, boundaries, OT_TIER_DEVICE));
    if (states == OT_STATES_LAST)
        OT_TRY(fit_device_states(draft));
    /* Which layers come first makes no difference where all or none are kept. */
    if (choice->resident_layers == 0 || choice->resident_layers == layers)
        choice->large_first = 1;
    OT_TRY(ot_draft_count_device(draft));
    return ot_draft_count_host(draft);
}

/* ---- host ---- */

typedef struct host_knob {
    size_t *value, most;
    ot_placement placement;
    int free; /* the plan's to turn */
} host_knob;

enum { HOST_KNOBS = 4 };

/* In the order in which they get host memory. */
static void list_host_knobs(ot_draft *draft, host_knob knobs[HOST_KNOBS])
{
    const ot_plan_request *request = draft->request;
    ot_choice *choice = &draft->choice;
    size_t weights = ot_draft_placed(draft, OT_PLANE_WEIGHT), grads = ot_draft_placed(draft, OT_PLANE_GRAD),
           states = ot_draft_placed(draft, OT_PLANE_MASTER);
    size_t acts = (draft->S - 2 - choice->device_boundaries) * draft->M;
    int weights_free = ot_is_automatic(request->weights) || request->weights.tier == OT_TIER_DEVICE;
    knobs[0] = (host_knob){&choice->host_acts, acts, request->acts, ot_is_automatic(request->acts)};
    knobs[1] = (host_knob){&choice->host_grads, grads, request->grads, ot_is_automatic(request->grads)};
    knobs[2] = (host_knob){&choice->host_weights, weights, request->weights, weights_free};
    knobs[3] = (host_knob){&choice->host_states, states, request->states, ot_is_automatic(request->states)};
    for (int k = 0; k < HOST_KNOBS; k++) /* what the device does not get */
        if (!knobs[k].free && knobs[k].placement.tier == OT_TIER_DEVICE)
            knobs[k].placement = (ot_placement){.tier = OT_TIER_HOST, .share = 1};
}

static int all_fit(const ot_draft *draft)
{
    for (int tier = 0; tier < OT_TIERS; tier++)
        if (draft->plan->peak_bytes[tier] > draft->request->budget[tier])
            return 0;
    return 1;
}

ot_status ot_draft_fit_host(ot_draft *draft, int *fits)
{
    host_knob knobs[HOST_KNOBS];
    list_host_knobs(draft, knobs);
    for (int k = 0; k < HOST_KNOBS; k++) {
        int on_host = knobs[k].placement.tier == OT_TIER_HOST;
        *knobs[k].value = knobs[k].free ? knobs[k].most
                          : on_host     ? share_of(knobs[k].placement, knobs[k].most)
                                        : 0;
    }
    OT_TRY(ot_draft_count_host(draft));
    *fits = all_fit(draft);
    if (*fits || draft->request->budget[OT_TIER_NVME] == 0)
        return OT_OK;
    for (int k = 0; k < HOST_KNOBS; k++)
        if (knobs[k].free)
            *knobs[k].value = 0;
    for (int k = 0; k < HOST_KNOBS; k++)
        if (knobs[k].free)
            OT_TRY(maximise(draft, knobs[k].value, knobs[k].most, OT_TIER_HOST));
    OT_TRY(ot_draft_count_host(draft));
    *fits = all_fit(draft);
    return OT_OK;
}

int ot_draft_exceeds(const ot_draft *draft)
{
    const uint64_t *budget = draft->request->budget;
    uint64_t homes = 0;
    for (int plane = 0; plane < OT_PLANES; plane++)
        homes +=
            draft->plan->plane_bytes[OT_TIER_HOST][plane] + draft->plan->plane_bytes[OT_TIER_NVME][plane];
    return homes > budget[OT_TIER_HOST] && homes - budget[OT_TIER_HOST] > budget[OT_TIER_NVME];
}

void ot_draft_smallest(ot_draft *draft)
{
    const ot_plan_request *request = draft->request;
    memset(&draft->choice, 0, sizeof draft->choice);
    draft->choice.ring = request->ring > 0 ? request->ring : OT_RING_MIN;
    draft->choice.prefetch_depth = request->prefetch_depth > 0 ? request->prefetch_depth : 1;
    draft->choice.large_first = 1;
}
