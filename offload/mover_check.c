/* What a plan must have right before it is executed. A plan that has not is a bug of ours. */
#include "offload/mover_state.h"

static const ot_place *place_of(const ot_plan *plan, const ot_operation *operation, int i)
{
    int32_t place = operation->places[i];
    OT_ASSERT(place >= 0 && (size_t)place < plan->place_count);
    return &plan->places[place];
}

/* A whole chunk is moved between the drive and a host place that has room for its padding. */
static void check_nvme(const ot_plan *plan, const ot_operation *operation, int nvme, int host)
{
    const ot_place *chunk = place_of(plan, operation, nvme), *memory = place_of(plan, operation, host);
    OT_ASSERT(chunk->tier == OT_TIER_NVME && memory->tier == OT_TIER_HOST);
    OT_ASSERT(ot_store_padded(operation->bytes) == ot_store_padded(chunk->bytes));
    OT_ASSERT(ot_store_padded(chunk->bytes) <= ot_store_padded(memory->bytes));
}

static void check_copy(const ot_plan *plan, const ot_operation *operation, int host, int device)
{
    const ot_place *memory = place_of(plan, operation, device);
    OT_ASSERT(memory->tier == OT_TIER_DEVICE && operation->bytes <= memory->bytes &&
              operation->offset <= memory->bytes - operation->bytes);
    if (operation->kind == OT_OP_DATA)
        return;
    const ot_place *other = place_of(plan, operation, host);
    OT_ASSERT(other->tier == OT_TIER_HOST && operation->bytes <= other->bytes);
}

static void check_tier(const ot_plan *plan, const ot_operation *operation, ot_tier tier)
{
    for (int i = 0; i < OT_OPERATION_PLACES; i++)
        OT_ASSERT(operation->places[i] < 0 || place_of(plan, operation, i)->tier == tier);
}

static void check_operation(const ot_plan *plan, const ot_operation *operation)
{
    ot_lane lane = operation->lane;
    switch (operation->kind) {
    case OT_OP_READ:
        OT_ASSERT(lane == OT_LANE_NVME_READ);
        check_nvme(plan, operation, 0, 1);
        break;
    case OT_OP_WRITE:
        OT_ASSERT(lane == OT_LANE_NVME_WRITE);
        check_nvme(plan, operation, 1, 0);
        break;
    case OT_OP_H2D:
    case OT_OP_DATA:
        OT_ASSERT(lane == OT_LANE_H2D);
        check_copy(plan, operation, 0, 1);
        break;
    case OT_OP_D2H:
        OT_ASSERT(lane == OT_LANE_D2H);
        check_copy(plan, operation, 1, 0);
        break;
    case OT_OP_UPDATE:
        OT_ASSERT(lane == OT_LANE_COMPUTE || lane == OT_LANE_CPU);
        check_tier(plan, operation, lane == OT_LANE_COMPUTE ? OT_TIER_DEVICE : OT_TIER_HOST);
        break;
    case OT_OP_FORWARD:
    case OT_OP_HEAD:
    case OT_OP_BACKWARD:
    case OT_OP_REDUCE:
        OT_ASSERT(lane == OT_LANE_COMPUTE);
        check_tier(plan, operation, OT_TIER_DEVICE);
        break;
    case OT_OP_GATHER:
    case OT_OP_SCATTER:
        OT_ASSERT(lane == OT_LANE_COLLECTIVE);
        check_tier(plan, operation, OT_TIER_DEVICE);
        break;
    default:
        OT_ASSERT(operation->kind < OT_OP_KINDS && lane == OT_LANE_CPU);
        check_tier(plan, operation, OT_TIER_HOST);
    }
}

static void check_list(const ot_plan *plan, const ot_list *list)
{
    for (size_t i = 0; i < list->count; i++) {
        const ot_operation *operation = &list->operations[i];
        OT_ASSERT(operation->wait_first <= list->wait_count &&
                  operation->wait_count <= list->wait_count - operation->wait_first);
        for (uint32_t w = 0; w < operation->wait_count; w++)
            OT_ASSERT(list->waits[operation->wait_first + w] < i);
        check_operation(plan, operation);
    }
}

void ot_mover_check(const ot_plan *plan)
{
    size_t chunks = 0;
    for (size_t p = 0; p < plan->place_count; p++) {
        const ot_place *place = &plan->places[p];
        if (place->tier == OT_TIER_NVME) {
            OT_ASSERT(place->bytes > 0 && place->offset < plan->nvme_chunk_count);
            chunks++;
            continue;
        }
        uint64_t arena = plan->arena_bytes[place->tier], bytes = ot_store_padded(place->bytes);
        OT_ASSERT(place->offset % OT_PAGE_BYTES == 0 && bytes <= arena && place->offset <= arena - bytes);
    }
    OT_ASSERT(chunks == plan->nvme_chunk_count);
    for (int list = 0; list < OT_LISTS; list++)
        check_list(plan, &plan->lists[list]);
}
