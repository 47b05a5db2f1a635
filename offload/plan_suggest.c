/* What would make a request fit: tried out, one change after the other. */
#include "offload/plan_draft.h"

static const uint64_t MIB = 1 << 20;

static int fits(const ot_plan_request *request)
{
    return ot_plan_fits(request) == OT_OK;
}

/* The least budget of a tier with which the request fits, or 0 where none is enough. */
static uint64_t least_budget(ot_plan_request request, ot_tier tier)
{
    uint64_t low = 0, high = (uint64_t)1 << 50;
    request.budget[tier] = high;
    if (!fits(&request))
        return 0;
    while (high - low > MIB) {
        request.budget[tier] = low + (high - low) / 2 / MIB * MIB;
        *(fits(&request) ? &high : &low) = request.budget[tier];
    }
    return high;
}

static void give_up(ot_placement *placement)
{
    *placement = (ot_placement){.automatic = 1};
}

/* Applies a change that is no budget. Returns 0 where it changes nothing. */
static int apply(ot_plan_request *request, ot_change change)
{
    ot_placement *const placements[] = {&request->weights, &request->acts, &request->states, &request->grads};
    if (change == OT_CHANGE_MOMENTS) {
        int already =
            request->moments == 0 || (request->moment1_dtype == OT_INT8 && request->moment2_dtype == OT_INT8);
        request->moment1_dtype = request->moment2_dtype = OT_INT8;
        return !already;
    }
    if (ot_is_automatic(*placements[change]))
        return 0;
    give_up(placements[change]);
    return 1;
}

static const ot_change budget_changes[OT_TIERS] = {OT_CHANGE_DEVICE, OT_CHANGE_HOST, OT_CHANGE_NVME};

/* Two budgets, or all three, where one is not enough: the device's first, whose need depends on no other. */
static size_t suggest_together(ot_plan_request request, ot_suggestion out[OT_CHANGES])
{
    size_t count = 0;
    ot_plan_request unlimited = request;
    for (int tier = OT_TIER_HOST; tier < OT_TIERS; tier++)
        unlimited.budget[tier] = UINT64_MAX / 2;
    for (int t = 0; t < OT_TIERS; t++) {
        ot_tier tier = (ot_tier)t;
        ot_plan_request *tried = tier == OT_TIER_NVME ? &request : &unlimited;
        uint64_t least = least_budget(*tried, tier);
        if (least == 0)
            return 0;
        if (least <= request.budget[tier])
            least = request.budget[tier];
        else
            out[count++] = (ot_suggestion){budget_changes[tier], least, 1};
        request.budget[tier] = unlimited.budget[tier] = least;
        if (fits(&request))
            break;
    }
    if (count > 0)
        out[count - 1].with_next = 0;
    return count;
}

size_t ot_plan_suggest(const ot_plan_request *request, ot_suggestion out[OT_CHANGES])
{
    size_t count = 0;
    if (fits(request))
        return 0;
    for (int change = 0; change < OT_CHANGE_DEVICE; change++) {
        ot_plan_request changed = *request;
        if (apply(&changed, (ot_change)change) && fits(&changed))
            out[count++] = (ot_suggestion){(ot_change)change, 0, 0};
    }
    for (int tier = 0; tier < OT_TIERS; tier++) {
        uint64_t least = least_budget(*request, (ot_tier)tier);
        if (least > 0)
            out[count++] = (ot_suggestion){budget_changes[tier], least, 0};
    }
    return count > 0 ? count : suggest_together(*request, out);
}
