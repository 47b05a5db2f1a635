/* Makes a plan: weighs a few layouts that fit by the simulated time of a steady step, and writes the lists of
 * the best. */
#include "offload/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/text.h"
#include "offload/plan_draft.h"
#include "offload/simulate.h"

enum {
    RING_CHUNKS = 8,
    RING_MAX = 64,
    DEPTHS = 3,
    CANDIDATES_MAX = 64,
    WORK_ENOUGH = 24000, /* visits of micro-batches that are simulated, of a step that has more */
    DEFERRED_MAX = 8,    /* sixteenths: forward is never half a step */
};

/* Shares of the best time so far below which another choice is taken. */
static const double CLEARLY = 0.999, WORTH_MEMORY = 0.99;

const char *ot_tier_name(ot_tier tier)
{
    static const char *const names[OT_TIERS] = {"device", "host", "nvme"};
    return (unsigned)tier < OT_TIERS ? names[tier] : "?";
}

const char *ot_plane_name(ot_plane plane)
{
    static const char *const names[OT_PLANES] = {"weight",  "master", "moment1",
                                                 "moment2", "grad",   "activation"};
    return (unsigned)plane < OT_PLANES ? names[plane] : "?";
}

const char *ot_lane_name(ot_lane lane)
{
    static const char *const names[OT_LANES] = {"nvme-read", "nvme-write", "h2d", "d2h",
                                                "compute",   "collective", "cpu"};
    return (unsigned)lane < OT_LANES ? names[lane] : "?";
}

const char *ot_operation_name(ot_operation_kind kind)
{
    static const char *const names[OT_OP_KINDS] = {"read",    "write", "h2d",      "d2h",    "data",
                                                   "forward", "head",  "backward", "reduce", "update",
                                                   "measure", "load",  "save",     "gather", "scatter"};
    return (unsigned)kind < OT_OP_KINDS ? names[kind] : "?";
}

static uint64_t moment_bytes(ot_dtype dtype, uint64_t count)
{
    if (dtype != OT_INT8)
        return count * ot_dtype_bytes(dtype);
    return ot_moment_scales(count) + ot_moment_scales(count) / OT_MOMENT_BLOCK * sizeof(float);
}

uint64_t ot_plane_bytes(const ot_plan_request *request, ot_plane plane, uint64_t count)
{
    if (request->inference && plane != OT_PLANE_WEIGHT)
        return 0;
    switch (plane) {
    case OT_PLANE_WEIGHT:
        return count * ot_dtype_bytes(request->weight_dtype);
    case OT_PLANE_MASTER:
        if (request->weight_dtype == OT_FP32)
            return 0;
        return count * (request->master_format == OT_MASTER_SPLIT ? sizeof(int16_t) : sizeof(float));
    case OT_PLANE_MOMENT1:
        return request->moments >= 1 ? moment_bytes(request->moment1_dtype, count) : 0;
    case OT_PLANE_MOMENT2:
        return request->moments >= 2 ? moment_bytes(request->moment2_dtype, count) : 0;
    case OT_PLANE_GRAD:
        return count * ot_dtype_bytes(request->grad_dtype);
    case OT_PLANE_ACTIVATION:
    case OT_PLANES:
        break;
    }
    return 0;
}

/* ---- choices ---- */

static void free_list(ot_list *list)
{
    free(list->operations);
    free(list->waits);
    *list = (ot_list){0};
}

/* Seconds of a steady step, or of an evaluation, with the draft's choice. */
static ot_status simulate_step(ot_draft *draft, double *seconds)
{
    ot_list list;
    ot_timeline timeline;
    OT_TRY(ot_draft_layout(draft));
    OT_TRY(ot_draft_list(draft, draft->request->inference ? OT_LIST_EVAL : OT_LIST_STEADY, &list));
    ot_status status = ot_simulate(&list, &draft->rates, NULL, &timeline);
    free_list(&list);
    *seconds = timeline.seconds;
    return status;
}

/* The same of a step of fewer micro-batches, with the same shares on each tier. */
static ot_status simulate_shorter(const ot_draft *draft, size_t micro_batches, double *seconds)
{
    ot_plan_request request = *draft->request;
    ot_draft shorter;
    request.micro_batches = micro_batches;
    OT_TRY(ot_draft_open(&request, &shorter));
    shorter.choice = draft->choice;
    shorter.choice.host_acts =
        (size_t)((double)draft->choice.host_acts * (double)micro_batches / (double)draft->M + 0.5);
    ot_status status = simulate_step(&shorter, seconds);
    ot_draft_close(&shorter);
    return status;
}

/* Beyond a number of micro-batches each further one adds the same time. */
static ot_status predict(ot_draft *draft, double *seconds)
{
    size_t many = WORK_ENOUGH / draft->V, fewer = many / 2;
    double of_many, of_fewer;
    if (draft->M <= many || fewer == 0)
        return simulate_step(draft, seconds);
    OT_TRY(simulate_shorter(draft, fewer, &of_fewer));
    OT_TRY(simulate_shorter(draft, many, &of_many));
    *seconds = of_many + (of_many - of_fewer) * (double)(draft->M - many) / (double)(many - fewer);
    return OT_OK;
}

typedef struct plan_search {
    ot_draft *draft;
    ot_choice best;
    double best_s;                   /* negative: nothing fits yet */
    ot_device_states states;         /* of the candidates at hand */
    ot_choice tried[CANDIDATES_MAX]; /* before they were fitted to the host */
    size_t tried_count;
} plan_search;

/* Fits one candidate and keeps it where it takes less than `share` of the best time so far. */
static ot_status consider(plan_search *search, ot_choice candidate, int acts_first, double share)
{
    ot_draft *draft = search->draft;
    int fits;
    double seconds;
    draft->choice = candidate;
    OT_TRY(ot_draft_fit_device(draft, acts_first, search->states));
    for (size_t t = 0; t < search->tried_count; t++)
        if (memcmp(&draft->choice, &search->tried[t], sizeof draft->choice) == 0)
            return OT_OK;
    if (search->tried_count < CANDIDATES_MAX)
        search->tried[search->tried_count++] = draft->choice;
    if (ot_draft_exceeds(draft))
        return OT_OK;
    OT_TRY(ot_draft_fit_host(draft, &fits));
    if (!fits)
        return OT_OK;
    OT_TRY(predict(draft, &seconds));
    if (search->best_s < 0 || seconds < search->best_s * share) {
        search->best = draft->choice;
        search->best_s = seconds;
    }
    return OT_OK;
}

/* Prefetch depths, what is first on the device, which layers are first there. */
static ot_status search_device(plan_search *search, ot_choice choice)
{
    const ot_plan_request *request = search->draft->request;
    static const int depths[DEPTHS] = {1, 2, 4};
    for (int d = 0; d < (request->prefetch_depth > 0 ? 1 : DEPTHS); d++)
        for (int acts_first = 0; acts_first < 2; acts_first++)
            for (int large_first = 1; large_first >= 0; large_first--) {
                choice.prefetch_depth = request->prefetch_depth > 0 ? request->prefetch_depth : depths[d];
                choice.large_first = large_first;
                OT_TRY(consider(search, choice, acts_first, CLEARLY));
            }
    return OT_OK;
}

/* Longer rings, where they are worth their memory: the drive then works further ahead and further behind. */
static ot_status search_rings(plan_search *search)
{
    const ot_plan_request *request = search->draft->request;
    if (request->ring > 0 || request->budget[OT_TIER_NVME] == 0)
        return OT_OK;
    for (int ring = 2 * search->best.ring; ring <= RING_MAX; ring *= 2)
        for (int acts_first = 0; acts_first < 2; acts_first++) {
            ot_choice choice = search->best;
            choice.ring = ring;
            OT_TRY(consider(search, choice, acts_first, WORTH_MEMORY));
        }
    return OT_OK;
}

/* Shares of the updates that are left to the next forward. */
static ot_status search_deferred(plan_search *search)
{
    ot_choice choice = search->best;
    for (choice.deferred_16th = 1; choice.deferred_16th <= DEFERRED_MAX; choice.deferred_16th++)
        for (int acts_first = 0; acts_first < 2; acts_first++)
            OT_TRY(consider(search, choice, acts_first, CLEARLY));
    return OT_OK;
}

/* States on the device, where weights and boundaries leave room. */
static ot_status search_states(plan_search *search)
{
    search->states = OT_STATES_LAST;
    for (int acts_first = 0; acts_first < 2; acts_first++) {
        ot_choice choice = search->best;
        OT_TRY(consider(search, choice, acts_first, CLEARLY));
        choice.deferred_16th = 0;
        OT_TRY(consider(search, choice, acts_first, CLEARLY));
    }
    return OT_OK;
}

/* The first rings, from long ones to short ones, with which anything fits. */
static ot_status search_fitting(plan_search *search)
{
    const ot_plan_request *request = search->draft->request;
    ot_choice choice;
    memset(&choice, 0, sizeof choice);
    for (choice.ring = request->ring > 0 ? request->ring : RING_CHUNKS;; choice.ring /= 2) {
        OT_TRY(search_device(search, choice));
        if (search->best_s >= 0 || request->ring > 0 || choice.ring <= OT_RING_MIN)
            return OT_OK;
    }
}

static ot_status search_all(plan_search *search)
{
    for (int states = OT_STATES_AWAY; states < OT_STATES_WAYS && search->best_s < 0; states++) {
        search->states = (ot_device_states)states;
        OT_TRY(search_fitting(search));
    }
    if (search->best_s < 0)
        return OT_OK;
    OT_TRY(search_rings(search));
    if (search->draft->request->update_in_backward)
        OT_TRY(search_deferred(search));
    return search->states == OT_STATES_AWAY ? search_states(search) : OT_OK;
}

/* ---- what does not fit ---- */

/* The plane or the slots that take most of a tier. */
static const char *largest_on(const ot_plan *plan, int tier)
{
    uint64_t most = plan->slot_bytes[tier];
    const char *name = "slots and workspace";
    for (int p = 0; p < OT_PLANES; p++)
        if (plan->plane_bytes[tier][p] > most) {
            most = plan->plane_bytes[tier][p];
            name = ot_plane_name((ot_plane)p);
        }
    return name;
}

/* Lays out the smallest candidate and tells what it would need. */
static ot_status does_not_fit(ot_draft *draft)
{
    const ot_plan_request *request = draft->request;
    char text[OT_TIERS][160], need[OT_SIZE_TEXT_BYTES], have[OT_SIZE_TEXT_BYTES];
    int fits;
    ot_draft_smallest(draft);
    OT_TRY(ot_draft_fit_device(draft, 1, OT_STATES_FIRST));
    OT_TRY(ot_draft_fit_host(draft, &fits));
    for (int tier = 0; tier < OT_TIERS; tier++)
        snprintf(text[tier], sizeof text[tier], "%s needs %s and has %s%s (most of it: %s)",
                 ot_tier_name((ot_tier)tier), ot_format_size(draft->plan->peak_bytes[tier], need),
                 ot_format_size(request->budget[tier], have),
                 draft->plan->peak_bytes[tier] > request->budget[tier] ? ", too little" : "",
                 largest_on(draft->plan, tier));
    return ot_fail(OT_ERR_FIT, "the plan does not fit: %s; %s; %s", text[0], text[1], text[2]);
}

ot_status ot_plan_fits(const ot_plan_request *request)
{
    ot_draft draft;
    ot_status status;
    int fits = 0;
    OT_TRY(ot_draft_open(request, &draft));
    for (int states = 0; states < OT_STATES_WAYS && !fits; states++)
        for (int large_first = 1; large_first >= 0 && !fits; large_first--) {
            ot_draft_smallest(&draft);
            draft.choice.large_first = large_first;
            OT_TRY_GOTO(ot_draft_fit_device(&draft, 1, (ot_device_states)states), out);
            if (draft.choice.large_first == large_first && !ot_draft_exceeds(&draft))
                OT_TRY_GOTO(ot_draft_fit_host(&draft, &fits), out);
        }
    status = fits ? OT_OK : does_not_fit(&draft);
out:
    ot_draft_close(&draft);
    return status;
}

/* ---- the whole ---- */

static ot_status write_lists(ot_draft *draft)
{
    ot_plan *plan = draft->plan;
    ot_timeline timeline;
    for (int kind = 0; kind < OT_LISTS; kind++)
        OT_TRY(ot_draft_list(draft, (ot_list_kind)kind, &plan->lists[kind]));
    const ot_list *step = &plan->lists[draft->request->inference ? OT_LIST_EVAL : OT_LIST_STEADY];
    OT_TRY(ot_simulate(step, &draft->rates, NULL, &timeline));
    plan->predicted_s = timeline.seconds;
    return OT_OK;
}

static ot_status make(const ot_plan_request *request, int with_lists, ot_plan **out)
{
    ot_draft draft;
    ot_status status;
    *out = NULL;
    OT_TRY(ot_draft_open(request, &draft));
    plan_search search = {.draft = &draft, .best_s = -1};
    OT_TRY_GOTO(search_all(&search), out);
    if (search.best_s < 0)
        OT_TRY_GOTO(does_not_fit(&draft), out);
    draft.choice = search.best;
    OT_TRY_GOTO(ot_draft_layout(&draft), out);
    draft.plan->prefetch_depth = search.best.prefetch_depth;
    draft.plan->ring = search.best.ring;
    draft.plan->predicted_s = search.best_s;
    if (with_lists)
        OT_TRY_GOTO(write_lists(&draft), out);
    *out = draft.plan;
    draft.plan = NULL;
out:
    ot_draft_close(&draft);
    return status;
}

ot_status ot_plan_make(const ot_plan_request *request, ot_plan **out)
{
    return make(request, 1, out);
}

ot_status ot_plan_outline(const ot_plan_request *request, ot_plan **out)
{
    return make(request, 0, out);
}

void ot_plan_free(ot_plan *plan)
{
    if (plan == NULL)
        return;
    for (int kind = 0; kind < OT_LISTS; kind++)
        free_list(&plan->lists[kind]);
    free(plan->places);
    free(plan->chunks);
    free(plan->layer_chunks);
    free(plan->resident);
    free(plan->partials);
    free(plan);
}
