/* The rig: a plan's builder, the engine, and the serial execution. */
#include "tests/support/mover.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/support/test.h"

enum { LIST_MAX = 1024, WAITS_MAX = 1 << 16, CHUNKS_MAX = 64 };

/* ---- What an operation touches ---- */

typedef struct touched {
    int32_t reads[OT_OPERATION_PLACES], writes[OT_OPERATION_PLACES];
    int read_count, write_count;
} touched;

static void reads(touched *t, const ot_operation *operation, int i)
{
    if (operation->places[i] >= 0)
        t->reads[t->read_count++] = operation->places[i];
}

static void writes(touched *t, const ot_operation *operation, int i)
{
    if (operation->places[i] >= 0)
        t->writes[t->write_count++] = operation->places[i];
}

static touched touched_by(const ot_operation *operation)
{
    touched t = {.read_count = 0};
    ot_operation_kind kind = operation->kind;
    int boundary_in_place = kind == OT_OP_BACKWARD;
    switch (kind) {
    case OT_OP_READ:
    case OT_OP_WRITE:
    case OT_OP_H2D:
    case OT_OP_D2H:
        reads(&t, operation, 0);
        writes(&t, operation, 1);
        break;
    case OT_OP_DATA:
        writes(&t, operation, 1);
        break;
    case OT_OP_FORWARD:
    case OT_OP_HEAD:
    case OT_OP_BACKWARD:
        for (int i = 0; i < 5; i++)
            if (i != 3 || boundary_in_place)
                reads(&t, operation, i);
        writes(&t, operation, 3);
        writes(&t, operation, 5);
        for (int i = 6; i < 8; i++) {
            if (!(operation->zero_grads >> (i - 6) & 1))
                reads(&t, operation, i);
            writes(&t, operation, i);
        }
        if (kind == OT_OP_BACKWARD)
            reads(&t, operation, 8);
        writes(&t, operation, 8);
        break;
    case OT_OP_REDUCE:
        reads(&t, operation, 0);
        writes(&t, operation, 1);
        writes(&t, operation, 2);
        break;
    case OT_OP_UPDATE:
        for (int i = 0; i < 5; i++)
            reads(&t, operation, i);
        for (int i = 0; i < 4; i++)
            writes(&t, operation, i);
        break;
    case OT_OP_LOAD:
        for (int i = 0; i < 4; i++)
            writes(&t, operation, i);
        break;
    case OT_OP_MEASURE:
        reads(&t, operation, 4);
        break;
    default:
        for (int i = 0; i < 4; i++)
            reads(&t, operation, i);
    }
    return t;
}

/* ---- The arithmetic ---- */

static uint32_t *words(const rig *r, const rig_memory *memory, int32_t place, size_t *count)
{
    const ot_place *p = &r->plan->places[place];
    *count = (size_t)(p->bytes / 4); /* a place of a few bytes counts as empty */
    return (uint32_t *)(void *)(memory->base[p->tier] + p->offset);
}

static uint64_t digest(const rig *r, const rig_memory *memory, const touched *t)
{
    uint64_t hash = 1469598103934665603u;
    for (int i = 0; i < t->read_count; i++) {
        size_t count;
        const uint32_t *in = words(r, memory, t->reads[i], &count);
        for (size_t k = 0; k < count; k++)
            hash = (hash ^ in[k]) * 1099511628211u;
    }
    return hash;
}

/* Words of every place that is written come from words of all places that are read. Not commutative: the
 * order counts. Long places have most of their words left out, for speed. */
static void compute(const rig *r, const rig_memory *memory, const ot_operation *operation)
{
    touched t = touched_by(operation);
    for (int i = 0; i < t.write_count; i++) {
        size_t count, in_count[OT_OPERATION_PLACES];
        const uint32_t *in[OT_OPERATION_PLACES];
        uint32_t *out = words(r, memory, t.writes[i], &count);
        for (int s = 0; s < t.read_count; s++)
            in[s] = words(r, memory, t.reads[s], &in_count[s]);
        uint32_t salt = (uint32_t)operation->kind * 7919u + (uint32_t)operation->layer * 104729u +
                        (uint32_t)operation->chunk * 1299709u + (uint32_t)operation->micro_batch * 15485863u +
                        (uint32_t)i * 31u;
        for (size_t k = 0; k < count; k += 1 + count / 4096) {
            uint32_t value = salt + (uint32_t)k;
            for (int s = 0; s < t.read_count; s++)
                value = value * 31 + (in_count[s] > 0 ? in[s][k % in_count[s]] : 0);
            out[k] = value * 2654435761u;
        }
    }
}

static void run_on_cpu(rig *r, const rig_memory *memory, ot_list_kind list, const ot_operation *operation)
{
    if (operation->kind == OT_OP_SAVE) {
        touched t = touched_by(operation);
        memory->digests[list][operation - r->plan->lists[list].operations] = digest(r, memory, &t);
    } else
        compute(r, memory, operation);
}

/* ---- The engine ---- */

static void sleep_ns(int64_t ns)
{
    if (ns > 0)
        nanosleep(&(struct timespec){ns / 1000000000, ns % 1000000000}, NULL);
}

static ot_status compute_on_stream(void *context, ot_status before)
{
    rig_call *call = context;
    rig *r = call->rig;
    if (before != OT_OK)
        return OT_OK;
    if (atomic_fetch_add_explicit(&r->device_count, 1, memory_order_relaxed) == r->fail_device)
        return ot_fail(OT_ERR_DEVICE, "the device fails as planned");
    sleep_ns(r->compute_ns);
    compute(r, &r->real, call->operation);
    return OT_OK;
}

static ot_status engine_compute(void *context, const ot_operation *operation, ot_stream *stream)
{
    rig *r = context;
    if (r->compute_count++ == r->fail_compute)
        return ot_fail(OT_ERR_NUMERIC, "compute fails as planned");
    rig_call *call = &r->calls[r->running][operation - r->plan->lists[r->running].operations];
    *call = (rig_call){r, operation};
    ot_stream_call(stream, compute_on_stream, call);
    return OT_OK;
}

static ot_status engine_cpu(void *context, const ot_operation *operation)
{
    rig *r = context;
    if (r->cpu_count++ == r->fail_cpu)
        return ot_fail(OT_ERR_NUMERIC, "cpu fails as planned");
    sleep_ns(r->cpu_ns);
    run_on_cpu(r, &r->real, r->running, operation);
    return OT_OK;
}

static const void *engine_data(void *context)
{
    return ((rig *)context)->data;
}

static const char *chunk_name(void *context, const ot_chunk *chunk, ot_plane plane)
{
    (void)context;
    (void)chunk;
    return plane == OT_PLANE_WEIGHT ? "some weight" : "some other plane";
}

/* ---- The builder ---- */

rig *rig_open(rig_waits waits)
{
    rig *r = calloc(1, sizeof *r);
    assert_non_null(r);
    r->waits = waits;
    r->plan = &r->own;
    r->own.places = calloc(RIG_PLACES_MAX, sizeof *r->own.places);
    r->own.chunks = calloc(CHUNKS_MAX, sizeof *r->own.chunks);
    assert_non_null(r->own.places);
    assert_non_null(r->own.chunks);
    r->fail_compute = r->fail_device = r->fail_cpu = -1;
    return r;
}

void rig_close(rig *r)
{
    rig_stop(r);
    for (int l = 0; l < OT_LISTS; l++) {
        free(r->own.lists[l].operations);
        free(r->own.lists[l].waits);
    }
    free(r->own.chunks);
    free(r->own.places);
    free(r);
}

int32_t rig_place(rig *r, ot_tier tier, ot_plane plane, uint64_t bytes)
{
    ot_plan *plan = &r->own;
    assert_true(plan->place_count < RIG_PLACES_MAX);
    uint64_t offset = tier == OT_TIER_NVME ? plan->nvme_chunk_count++ : plan->arena_bytes[tier];
    plan->places[plan->place_count] =
        (ot_place){.tier = tier, .plane = plane, .offset = offset, .bytes = bytes, .chunk = -1};
    plan->arena_bytes[tier] += ot_store_padded(bytes);
    return (int32_t)plan->place_count++;
}

int32_t rig_home(rig *r, ot_plane plane, uint64_t bytes)
{
    int32_t place = rig_place(r, OT_TIER_NVME, plane, bytes);
    assert_true(r->own.chunk_count < CHUNKS_MAX);
    r->own.places[place].chunk = (int32_t)r->own.chunk_count++;
    return place;
}

static int has(const int32_t places[], int count, int32_t place)
{
    for (int i = 0; i < count; i++)
        if (places[i] == place)
            return 1;
    return 0;
}

/* Whether the two touch a place that one of them writes. */
static int conflict(const touched *a, const touched *b)
{
    for (int i = 0; i < a->write_count; i++)
        if (has(b->reads, b->read_count, a->writes[i]) || has(b->writes, b->write_count, a->writes[i]))
            return 1;
    for (int i = 0; i < b->write_count; i++)
        if (has(a->reads, a->read_count, b->writes[i]))
            return 1;
    return 0;
}

static void add_waits(const rig *r, ot_list *list, size_t later)
{
    ot_operation *operation = &list->operations[later];
    touched own = touched_by(operation);
    int seen[OT_LANES] = {0};
    operation->wait_first = (uint32_t)list->wait_count;
    for (size_t i = later; i-- > 0;) {
        ot_lane lane = list->operations[i].lane;
        touched other = touched_by(&list->operations[i]);
        if (r->waits == RIG_WAITS_SERIAL ? i + 1 < later : !conflict(&own, &other))
            continue;
        if (r->waits == RIG_WAITS_PRUNED && (lane == operation->lane || seen[lane]++))
            continue;
        assert_true(list->wait_count < WAITS_MAX);
        list->waits[list->wait_count++] = (uint32_t)i;
    }
    operation->wait_count = (uint32_t)list->wait_count - operation->wait_first;
}

static ot_lane lane_of(ot_operation_kind kind)
{
    static const ot_lane lanes[] = {
        [OT_OP_READ] = OT_LANE_NVME_READ, [OT_OP_WRITE] = OT_LANE_NVME_WRITE,
        [OT_OP_H2D] = OT_LANE_H2D,        [OT_OP_DATA] = OT_LANE_H2D,
        [OT_OP_D2H] = OT_LANE_D2H,        [OT_OP_FORWARD] = OT_LANE_COMPUTE,
        [OT_OP_HEAD] = OT_LANE_COMPUTE,   [OT_OP_BACKWARD] = OT_LANE_COMPUTE,
        [OT_OP_REDUCE] = OT_LANE_COMPUTE, [OT_OP_UPDATE] = OT_LANE_CPU,
        [OT_OP_LOAD] = OT_LANE_CPU,       [OT_OP_SAVE] = OT_LANE_CPU,
        [OT_OP_MEASURE] = OT_LANE_CPU,
    };
    return lanes[kind];
}

size_t rig_add(rig *r, ot_list_kind kind, ot_operation operation)
{
    ot_list *list = &r->own.lists[kind];
    if (list->operations == NULL) {
        list->operations = calloc(LIST_MAX, sizeof *list->operations);
        list->waits = calloc(WAITS_MAX, sizeof *list->waits);
        assert_non_null(list->operations);
        assert_non_null(list->waits);
    }
    assert_true(list->count < LIST_MAX);
    operation.lane = lane_of(operation.kind);
    list->operations[list->count] = operation;
    add_waits(r, list, list->count);
    list->lane_bytes[operation.lane] += operation.bytes;
    return list->count++;
}

size_t rig_move(rig *r, ot_list_kind list, ot_operation_kind kind, int32_t from, int32_t to, uint64_t offset)
{
    uint64_t a = r->own.places[from].bytes, b = r->own.places[to].bytes;
    ot_operation operation = {
        .kind = kind, .places = {from, to, -1, -1, -1, -1, -1, -1, -1}, .offset = offset};
    operation.bytes = kind == OT_OP_READ || kind == OT_OP_D2H ? (kind == OT_OP_READ ? a : b)
                      : kind == OT_OP_WRITE                   ? b
                                                              : a;
    return rig_add(r, list, operation);
}

void rig_remove_wait(rig *r, ot_list_kind kind, size_t later, size_t earlier)
{
    ot_list *list = &r->own.lists[kind];
    ot_operation *operation = &list->operations[later];
    uint32_t *own = &list->waits[operation->wait_first];
    for (uint32_t w = 0; w < operation->wait_count; w++)
        if (own[w] == earlier) {
            own[w] = own[--operation->wait_count];
            return;
        }
    fail_msg("operation %zu does not wait for %zu", later, earlier);
}

/* ---- Both executions ---- */

enum { DATA_BYTES = 1 << 20 };

static void open_memory(rig *r)
{
    const ot_plan *plan = r->plan;
    r->data = malloc(DATA_BYTES);
    assert_non_null(r->data);
    for (size_t i = 0; i < DATA_BYTES; i++)
        r->data[i] = (unsigned char)(i * i >> 3);
    for (int tier = 0; tier < OT_TIERS; tier++) {
        uint64_t bytes = 0; /* an NVMe place lies at its number times the longest one */
        for (size_t p = 0; p < plan->place_count; p++)
            if ((int)plan->places[p].tier == tier && tier == OT_TIER_NVME && plan->places[p].bytes > bytes)
                bytes = plan->places[p].bytes;
        bytes =
            tier == OT_TIER_NVME ? ot_store_padded(bytes) * plan->nvme_chunk_count : plan->arena_bytes[tier];
        r->serial.base[tier] = calloc(bytes + 1, 1);
        assert_non_null(r->serial.base[tier]);
    }
    for (int l = 0; l < OT_LISTS; l++) {
        size_t count = plan->lists[l].count + 1;
        r->calls[l] = calloc(count, sizeof *r->calls[l]);
        r->real.digests[l] = calloc(count, sizeof(uint64_t));
        r->serial.digests[l] = calloc(count, sizeof(uint64_t));
        assert_non_null(r->calls[l]);
        assert_non_null(r->real.digests[l]);
        assert_non_null(r->serial.digests[l]);
    }
}

/* Where places begin; NULL on a tier without. */
static void find_bases(rig *r)
{
    r->real.base[OT_TIER_DEVICE] = r->real.base[OT_TIER_HOST] = NULL;
    for (size_t p = 0; p < r->plan->place_count; p++) {
        const ot_place *place = &r->plan->places[p];
        if (place->tier != OT_TIER_NVME && r->real.base[place->tier] == NULL)
            r->real.base[place->tier] =
                (unsigned char *)ot_mover_address(r->mover, (int32_t)p) - place->offset;
    }
}

static ot_status open_mover(rig *r, const rig_setup *setup)
{
    const uint64_t spare = 4 << 20;
    ot_device_options device = {
        .kind = "cpu",
        .memory_bytes = r->plan->arena_bytes[OT_TIER_DEVICE] + spare,
        .threads = 1,
        .queue_length = setup->queue_length,
        .jitter_seed = setup->jitter_seed,
        .jitter_ns = setup->jitter_ns,
    };
    OT_TRY(ot_device_open(&device, &r->device));
    OT_TRY(ot_host_open(r->plan->arena_bytes[OT_TIER_HOST] + spare, &r->host));
    ot_mover_options options = {
        .plan = r->plan,
        .device = r->device,
        .host = r->host,
        .directories = setup->directories,
        .directory_count = setup->directory_count,
        .io = {.backend = setup->backend, .depth = 4, .piece_bytes = 64 << 10},
        .chunk_name = chunk_name,
        .compute = engine_compute,
        .cpu = engine_cpu,
        .data = engine_data,
        .context = r,
    };
    return ot_mover_open(&options, &r->mover);
}

ot_status rig_start(rig *r, const rig_setup *setup)
{
    rig_stop(r);
    r->compute_count = r->cpu_count = 0;
    atomic_store(&r->device_count, 0);
    open_memory(r);
    OT_TRY(open_mover(r, setup));
    find_bases(r);
    return OT_OK;
}

void rig_stop(rig *r)
{
    ot_mover_close(r->mover);
    r->mover = NULL;
    if (r->host != NULL)
        assert_int_equal(ot_host_bytes(r->host), 0);
    if (r->device != NULL)
        assert_int_equal(ot_device_bytes(r->device), 0);
    ot_host_close(r->host);
    ot_device_close(r->device);
    r->host = NULL;
    r->device = NULL;
    for (int l = 0; l < OT_LISTS; l++) {
        free(r->calls[l]);
        free(r->real.digests[l]);
        free(r->serial.digests[l]);
        r->calls[l] = NULL;
        r->real.digests[l] = r->serial.digests[l] = NULL;
    }
    for (int tier = 0; tier < OT_TIERS; tier++) {
        free(r->serial.base[tier]);
        r->serial.base[tier] = NULL;
    }
    free(r->data);
    r->data = NULL;
}

ot_status rig_run(rig *r, ot_list_kind list)
{
    r->running = list;
    return ot_mover_run(r->mover, list);
}

static unsigned char *serial_address(const rig *r, int32_t place)
{
    const ot_plan *plan = r->plan;
    const ot_place *p = &plan->places[place];
    if (p->tier != OT_TIER_NVME)
        return r->serial.base[p->tier] + p->offset;
    uint64_t longest = 0;
    for (size_t i = 0; i < plan->place_count; i++)
        if (plan->places[i].tier == OT_TIER_NVME && plan->places[i].bytes > longest)
            longest = plan->places[i].bytes;
    return r->serial.base[OT_TIER_NVME] + p->offset * ot_store_padded(longest);
}

void rig_run_serially(rig *r, ot_list_kind kind)
{
    const ot_list *list = &r->plan->lists[kind];
    for (size_t i = 0; i < list->count; i++) {
        const ot_operation *operation = &list->operations[i];
        const int32_t *places = operation->places;
        switch (operation->kind) {
        case OT_OP_READ:
        case OT_OP_WRITE:
            memcpy(serial_address(r, places[1]), serial_address(r, places[0]),
                   ot_store_padded(operation->bytes));
            break;
        case OT_OP_H2D:
            memcpy(serial_address(r, places[1]) + operation->offset, serial_address(r, places[0]),
                   operation->bytes);
            break;
        case OT_OP_D2H:
            memcpy(serial_address(r, places[1]), serial_address(r, places[0]) + operation->offset,
                   operation->bytes);
            break;
        case OT_OP_DATA:
            memcpy(serial_address(r, places[1]) + operation->offset, r->data, operation->bytes);
            break;
        default:
            if (operation->lane == OT_LANE_CPU)
                run_on_cpu(r, &r->serial, kind, operation);
            else
                compute(r, &r->serial, operation);
        }
    }
}

int rig_is_equal(const rig *r, ot_list_kind saved)
{
    for (int tier = OT_TIER_DEVICE; tier <= OT_TIER_HOST; tier++)
        if (r->real.base[tier] != NULL &&
            memcmp(r->real.base[tier], r->serial.base[tier], r->plan->arena_bytes[tier]) != 0)
            return 0;
    return memcmp(r->real.digests[saved], r->serial.digests[saved],
                  r->plan->lists[saved].count * sizeof(uint64_t)) == 0;
}
