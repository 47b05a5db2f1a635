/* Checks a plan without the code that makes plans: places by their ranges, order by reachability over all
 * pairs, and the life of a run by what every place holds. */
#include <stdlib.h>
#include <string.h>

#include "io/host.h"
#include "tests/support/plan.h"
#include "tests/support/test.h"

/* ---- places ---- */

static int by_offset(const void *a, const void *b)
{
    const ot_place *x = a, *y = b;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static void check_tier(const ot_plan_request *request, const ot_plan *plan, ot_tier tier)
{
    ot_place *places = malloc((plan->place_count + 1) * sizeof *places);
    size_t count = 0;
    uint64_t padded = 0, end = 0, planes = 0;
    for (size_t p = 0; p < plan->place_count; p++)
        if (plan->places[p].tier == tier)
            places[count++] = plan->places[p];
    qsort(places, count, sizeof *places, by_offset);
    for (size_t p = 0; p < count; p++) {
        assert_true(places[p].bytes > 0);
        padded += ot_round_up(places[p].bytes, 4096);
        if (tier == OT_TIER_NVME) {
            assert_int_equal(places[p].offset, p);
            continue;
        }
        assert_int_equal(places[p].offset % 4096, 0);
        assert_true(places[p].offset >= end);
        end = places[p].offset + places[p].bytes;
    }
    free(places);
    assert_true(tier == OT_TIER_NVME || end <= plan->arena_bytes[tier]);
    assert_int_equal(padded, plan->arena_bytes[tier]);
    uint64_t fixed = tier == OT_TIER_DEVICE ? request->device_fixed_bytes
                     : tier == OT_TIER_HOST ? request->host_fixed_bytes
                                            : 0;
    assert_int_equal(plan->peak_bytes[tier], padded + fixed);
    assert_true(plan->peak_bytes[tier] <= request->budget[tier]);
    for (int plane = 0; plane < OT_PLANES; plane++)
        planes += plan->plane_bytes[tier][plane];
    assert_int_equal(planes + plan->slot_bytes[tier], plan->peak_bytes[tier]);
    assert_true(tier != OT_TIER_NVME || plan->nvme_chunk_count == count);
}

void check_places(const ot_plan_request *request, const ot_plan *plan)
{
    for (int tier = 0; tier < OT_TIERS; tier++)
        check_tier(request, plan, (ot_tier)tier);
    size_t c = 0;
    for (size_t l = 0; l < request->layer_count; l++) {
        uint64_t ranks = (uint64_t)ot_rank_count(request->ranks), params = request->layers[l].params;
        uint64_t unit = ranks * OT_SUM_BLOCK;
        uint64_t shard = ranks > 1 ? (params + unit - 1) / unit * OT_SUM_BLOCK : params;
        uint64_t shards = ranks > 1 && !request->inference && request->zero % 3 != 0 ? ranks : 1;
        assert_int_equal(plan->layer_chunks[l], c);
        for (uint64_t k = 0; k < shards; k++) {
            uint64_t rank = ((uint64_t)request->rank + k) % ranks, next = rank * shard;
            for (; next < (rank + 1) * shard; c++) {
                assert_true(c < plan->layer_chunks[l + 1]);
                assert_int_equal(plan->chunks[c].layer, l);
                assert_int_equal(plan->chunks[c].copy, k > 0);
                assert_int_equal(plan->chunks[c].first, next);
                assert_int_equal(next % OT_SUM_BLOCK, 0);
                next += plan->chunks[c].count;
            }
            assert_int_equal(next, (rank + 1) * shard);
        }
    }
    assert_int_equal(c, plan->chunk_count);
}

/* ---- order ---- */

typedef struct touched {
    int32_t place;
    uint64_t from, to;
    int writes;
} touched;

/* What an operation touches, by plan.h. Returns the number. */
static size_t touches(const ot_plan *plan, const ot_operation *o, touched out[])
{
    static const char *const modes[OT_OP_KINDS] = {[OT_OP_READ] = "ww",       [OT_OP_WRITE] = "rw",
                                                   [OT_OP_H2D] = "rw",        [OT_OP_D2H] = "rw",
                                                   [OT_OP_DATA] = ".w",       [OT_OP_FORWARD] = "rrrwrw..w",
                                                   [OT_OP_HEAD] = "rrrwrwww", [OT_OP_BACKWARD] = "rrrwrwwww",
                                                   [OT_OP_REDUCE] = "rww",    [OT_OP_UPDATE] = "wwwwr",
                                                   [OT_OP_MEASURE] = "....r", [OT_OP_LOAD] = "wwww",
                                                   [OT_OP_SAVE] = "rrrr",     [OT_OP_GATHER] = "w",
                                                   [OT_OP_SCATTER] = "www"};
    size_t count = 0;
    const char *mode = modes[o->kind];
    for (size_t i = 0; i < OT_OPERATION_PLACES; i++) {
        int used = i < strlen(mode) && mode[i] != '.';
        if (!used)
            assert_int_equal(o->places[i], -1);
        if (!used || o->places[i] < 0)
            continue;
        touched t = {o->places[i], 0, plan->places[o->places[i]].bytes, mode[i] == 'w'};
        if ((o->kind == OT_OP_H2D && i == 1) || (o->kind == OT_OP_D2H && i == 0)) {
            t.from = o->offset;
            t.to = o->offset + o->bytes;
        }
        assert_true(t.to <= plan->places[t.place].bytes);
        out[count++] = t;
    }
    return count;
}

static int keeps_order(ot_lane lane)
{
    return lane != OT_LANE_NVME_READ && lane != OT_LANE_NVME_WRITE;
}

typedef struct reach {
    uint64_t *bits; /* [count][words]: who has ended before */
    size_t words;
} reach;

static int reaches(const reach *r, size_t later, size_t earlier)
{
    return (r->bits[later * r->words + earlier / 64] >> (earlier % 64)) & 1;
}

static void follow(reach *r, size_t later, size_t earlier)
{
    for (size_t w = 0; w < r->words; w++)
        r->bits[later * r->words + w] |= r->bits[earlier * r->words + w];
    r->bits[later * r->words + earlier / 64] |= (uint64_t)1 << (earlier % 64);
}

static void find_reach(const ot_list *list, reach *r)
{
    size_t last[OT_LANES] = {0};
    r->words = list->count / 64 + 1;
    r->bits = calloc(r->words * (list->count + 1), sizeof *r->bits);
    for (size_t o = 0; o < list->count; o++) {
        const ot_operation *operation = &list->operations[o];
        assert_true(operation->wait_first + operation->wait_count <= list->wait_count);
        for (uint32_t w = 0; w < operation->wait_count; w++) {
            assert_true(list->waits[operation->wait_first + w] < o);
            follow(r, o, list->waits[operation->wait_first + w]);
        }
        /* What the lane's operation before has waited for has ended in any case, itself only in a lane in
         * order. */
        if (keeps_order(operation->lane) && last[operation->lane] > 0)
            follow(r, o, last[operation->lane] - 1);
        last[operation->lane] = o + 1;
    }
}

void check_order(const ot_plan *plan, ot_list_kind kind)
{
    const ot_list *list = &plan->lists[kind];
    struct {
        touched t;
        size_t operation;
        int32_t next;
    } *all = malloc((list->count + 1) * OT_OPERATION_PLACES * sizeof *all);
    int32_t *heads = malloc((plan->place_count + 1) * sizeof *heads), used = 0;
    reach r;
    find_reach(list, &r);
    for (size_t p = 0; p < plan->place_count; p++)
        heads[p] = -1;
    for (size_t o = 0; o < list->count; o++) {
        touched own[OT_OPERATION_PLACES];
        size_t count = touches(plan, &list->operations[o], own);
        for (size_t i = 0; i < count; i++) {
            for (int32_t a = heads[own[i].place]; a >= 0; a = all[a].next)
                if (all[a].operation != o && (all[a].t.writes || own[i].writes) &&
                    all[a].t.from < own[i].to && own[i].from < all[a].t.to &&
                    !reaches(&r, o, all[a].operation))
                    fail_msg("list %d: operation %zu (%s) and %zu (%s) touch place %d in no order", (int)kind,
                             all[a].operation, ot_operation_name(list->operations[all[a].operation].kind), o,
                             ot_operation_name(list->operations[o].kind), own[i].place);
            all[used].t = own[i];
            all[used].operation = o;
            all[used].next = heads[own[i].place];
            heads[own[i].place] = used++;
        }
    }
    free(r.bits);
    free(heads);
    free(all);
}
