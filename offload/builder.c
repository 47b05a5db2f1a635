/* Builds one list of a plan. */
#include "offload/builder.h"

#include <stdlib.h>
#include <string.h>

#include "io/grow.h"

enum { NONE = -1 };

/* One operation that touches a place; `next` links those of one kind. */
typedef struct access {
    uint32_t operation;
    int32_t next;
} access;

/* `writes` fill the place one behind the other up to byte `filled`, `reads` came after them, and `old` is
 * what came before, which each of the writes has waited for. */
typedef struct place_state {
    int32_t writes, reads, old;
    uint64_t filled;
} place_state;

/* What is known to have ended before an operation starts: so many operations of each lane. */
typedef struct progress {
    uint32_t ended[OT_LANES];
} progress;

struct ot_builder {
    int serial, failed;
    place_state *places;
    access *accesses;
    size_t access_count, access_room;
    ot_operation *operations;
    progress *progress; /* when the operation has ended, itself included */
    size_t count, room;
    uint32_t *waits;
    size_t wait_count, wait_room;
    uint32_t *candidates;
    size_t candidate_count, candidate_room;
    uint32_t lane_count[OT_LANES];
    progress lane_progress[OT_LANES]; /* after the lane's last operation */
};

/* What is not touched costs nothing, whereas growing copies. */
static int make_room(ot_builder *builder, size_t operations)
{
    builder->room = builder->wait_room = operations;
    builder->operations = malloc(operations * sizeof *builder->operations);
    builder->progress = malloc(operations * sizeof *builder->progress);
    builder->waits = malloc(operations * sizeof *builder->waits);
    return builder->operations != NULL && builder->progress != NULL && builder->waits != NULL;
}

ot_status ot_builder_open(size_t place_count, size_t operations, int serial, ot_builder **out)
{
    *out = NULL;
    ot_builder *builder = calloc(1, sizeof *builder);
    if (builder != NULL)
        builder->places = malloc((place_count + 1) * sizeof *builder->places);
    if (builder == NULL || builder->places == NULL || !make_room(builder, operations + 1)) {
        ot_builder_close(builder);
        return ot_fail(OT_ERR_INTERNAL, "no memory for a step list over %zu places", place_count);
    }
    builder->serial = serial;
    for (size_t p = 0; p < place_count; p++)
        builder->places[p] = (place_state){NONE, NONE, NONE, 0};
    *out = builder;
    return OT_OK;
}

void ot_builder_close(ot_builder *builder)
{
    if (builder == NULL)
        return;
    free(builder->places);
    free(builder->accesses);
    free(builder->operations);
    free(builder->progress);
    free(builder->waits);
    free(builder->candidates);
    free(builder);
}

/* Makes room for one more element; 0 where there is none. */
static int grow(ot_builder *builder, void *array, size_t *room, size_t count, size_t size)
{
    if (ot_grow(array, room, count + 1, size, "a step list") == OT_OK)
        return 1;
    builder->failed = 1;
    return 0;
}

/* ---- conflicts ---- */

static int in_order(ot_lane lane)
{
    return lane != OT_LANE_NVME_READ && lane != OT_LANE_NVME_WRITE;
}

/* In a lane that keeps its order the last access stands for all before it. */
static void add_access(ot_builder *builder, int32_t *list, uint32_t operation)
{
    ot_lane lane = builder->operations[operation].lane;
    if (in_order(lane))
        for (int32_t a = *list; a != NONE; a = builder->accesses[a].next)
            if (builder->operations[builder->accesses[a].operation].lane == lane) {
                builder->accesses[a].operation = operation;
                return;
            }
    if (!grow(builder, &builder->accesses, &builder->access_room, builder->access_count,
              sizeof *builder->accesses))
        return;
    builder->accesses[builder->access_count] = (access){operation, *list};
    *list = (int32_t)builder->access_count++;
}

static void add_candidates(ot_builder *builder, int32_t list)
{
    for (int32_t a = list; a != NONE; a = builder->accesses[a].next)
        if (grow(builder, &builder->candidates, &builder->candidate_room, builder->candidate_count,
                 sizeof *builder->candidates))
            builder->candidates[builder->candidate_count++] = builder->accesses[a].operation;
}

static void join(ot_builder *builder, int32_t *list, int32_t tail)
{
    if (*list == NONE) {
        *list = tail;
        return;
    }
    int32_t last = *list;
    while (builder->accesses[last].next != NONE)
        last = builder->accesses[last].next;
    builder->accesses[last].next = tail;
}

static void read_place(ot_builder *builder, uint32_t operation, int32_t place)
{
    if (place < 0)
        return;
    place_state *state = &builder->places[place];
    add_candidates(builder, state->writes);
    add_candidates(builder, state->old);
    add_access(builder, &state->reads, operation);
}

static void write_place(ot_builder *builder, uint32_t operation, int32_t place)
{
    if (place < 0)
        return;
    place_state *state = &builder->places[place];
    add_candidates(builder, state->writes);
    add_candidates(builder, state->reads);
    add_candidates(builder, state->old);
    *state = (place_state){NONE, NONE, NONE, UINT64_MAX};
    add_access(builder, &state->writes, operation);
}

static void fill_place(ot_builder *builder, uint32_t operation, int32_t place)
{
    place_state *state = &builder->places[place];
    uint64_t offset = builder->operations[operation].offset;
    if (state->reads != NONE || offset < state->filled) {
        join(builder, &state->writes, state->reads);
        *state = (place_state){NONE, NONE, state->writes, 0};
    }
    add_candidates(builder, state->old);
    add_access(builder, &state->writes, operation);
    state->filled = offset + builder->operations[operation].bytes;
}

static void touch_gradients(ot_builder *builder, uint32_t o, const int32_t *places)
{
    read_place(builder, o, places[4]);
    write_place(builder, o, places[5]);
    write_place(builder, o, places[6]);
    write_place(builder, o, places[7]);
}

/* Notes what the operation touches, and finds whom it conflicts with. */
static void touch(ot_builder *builder, uint32_t o)
{
    const ot_operation *operation = &builder->operations[o];
    const int32_t *places = operation->places;
    switch (operation->kind) {
    case OT_OP_READ: /* as if it wrote, since the store moves a chunk once at a time */
        write_place(builder, o, places[0]);
        write_place(builder, o, places[1]);
        break;
    case OT_OP_WRITE:
    case OT_OP_D2H:
        read_place(builder, o, places[0]);
        write_place(builder, o, places[1]);
        break;
    case OT_OP_H2D:
        read_place(builder, o, places[0]);
        fill_place(builder, o, places[1]);
        break;
    case OT_OP_DATA:
        write_place(builder, o, places[1]);
        break;
    case OT_OP_FORWARD:
    case OT_OP_HEAD:
    case OT_OP_BACKWARD:
        for (int i = 0; i < 3; i++)
            if (i < 2 || places[2] != places[3])
                read_place(builder, o, places[i]);
        write_place(builder, o, places[3]);
        touch_gradients(builder, o, places);
        write_place(builder, o, places[8]);
        break;
    case OT_OP_REDUCE:
        if (places[0] != places[1])
            read_place(builder, o, places[0]);
        write_place(builder, o, places[1]);
        write_place(builder, o, places[2]);
        break;
    case OT_OP_GATHER:
        write_place(builder, o, places[0]);
        break;
    case OT_OP_SCATTER:
        for (int i = 0; i < 3; i++)
            if (i != 1 || places[1] != places[0])
                write_place(builder, o, places[i]);
        break;
    case OT_OP_UPDATE:
    case OT_OP_LOAD:
        for (int i = 0; i < 4; i++)
            write_place(builder, o, places[i]);
        read_place(builder, o, places[4]);
        break;
    case OT_OP_MEASURE:
    case OT_OP_SAVE:
        for (int i = 0; i < 5; i++)
            read_place(builder, o, places[i]);
        break;
    case OT_OP_KINDS:
        break;
    }
}

/* ---- waits ---- */

static void learn(progress *known, const progress *more)
{
    for (int lane = 0; lane < OT_LANES; lane++)
        if (known->ended[lane] < more->ended[lane])
            known->ended[lane] = more->ended[lane];
}

static void add_wait(ot_builder *builder, ot_operation *operation, uint32_t other, progress *known)
{
    if (!grow(builder, &builder->waits, &builder->wait_room, builder->wait_count, sizeof *builder->waits))
        return;
    builder->waits[builder->wait_count++] = other;
    operation->wait_count++;
    learn(known, &builder->progress[other]);
}

static int later_first(const void *a, const void *b)
{
    uint32_t x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return x < y ? 1 : x > y ? -1 : 0;
}

/* Operations whose end other waits do not tell of. Later ones first, since they tell of earlier ones. */
static void add_waits(ot_builder *builder, ot_operation *operation, progress *known)
{
    if (builder->candidate_count > 1)
        qsort(builder->candidates, builder->candidate_count, sizeof *builder->candidates, later_first);
    for (size_t c = 0; c < builder->candidate_count; c++) {
        uint32_t other = builder->candidates[c];
        ot_lane lane = builder->operations[other].lane;
        if (c > 0 && other == builder->candidates[c - 1])
            continue;
        if (in_order(lane) && known->ended[lane] >= builder->progress[other].ended[lane])
            continue;
        add_wait(builder, operation, other, known);
    }
}

ot_operation ot_operation_of(ot_operation_kind kind)
{
    static const ot_lane lanes[OT_OP_KINDS] = {
        [OT_OP_READ] = OT_LANE_NVME_READ,
        [OT_OP_WRITE] = OT_LANE_NVME_WRITE,
        [OT_OP_H2D] = OT_LANE_H2D,
        [OT_OP_D2H] = OT_LANE_D2H,
        [OT_OP_DATA] = OT_LANE_H2D,
        [OT_OP_FORWARD] = OT_LANE_COMPUTE,
        [OT_OP_HEAD] = OT_LANE_COMPUTE,
        [OT_OP_BACKWARD] = OT_LANE_COMPUTE,
        [OT_OP_REDUCE] = OT_LANE_COMPUTE,
        [OT_OP_UPDATE] = OT_LANE_CPU,
        [OT_OP_LOAD] = OT_LANE_CPU,
        [OT_OP_SAVE] = OT_LANE_CPU,
        [OT_OP_MEASURE] = OT_LANE_CPU,
        [OT_OP_GATHER] = OT_LANE_COLLECTIVE,
        [OT_OP_SCATTER] = OT_LANE_COLLECTIVE,
    };
    ot_operation o = {
        .kind = kind, .lane = lanes[kind], .stage = -1, .layer = -1, .chunk = -1, .micro_batch = -1};
    for (int p = 0; p < OT_OPERATION_PLACES; p++)
        o.places[p] = -1;
    return o;
}

void ot_builder_add(ot_builder *builder, const ot_operation *given)
{
    size_t progress_room = builder->room;
    if (builder->failed ||
        !grow(builder, &builder->progress, &progress_room, builder->count, sizeof *builder->progress) ||
        !grow(builder, &builder->operations, &builder->room, builder->count, sizeof *builder->operations))
        return;
    uint32_t o = (uint32_t)builder->count++;
    ot_operation *operation = &builder->operations[o];
    *operation = *given;
    operation->wait_first = (uint32_t)builder->wait_count;
    operation->wait_count = 0;

    ot_lane lane = operation->lane;
    progress known = builder->lane_progress[lane];
    builder->candidate_count = 0;
    if (!builder->serial)
        touch(builder, o);
    else if (o > 0)
        add_wait(builder, operation, o - 1, &known);
    if (!builder->serial)
        add_waits(builder, operation, &known);
    if (in_order(lane)) {
        known.ended[lane] = ++builder->lane_count[lane];
        builder->lane_progress[lane] = known;
    }
    builder->progress[o] = known;
}

/* Cuts an array to its bytes; keeping it as it is does no harm. */
static void give_back(void *array, size_t bytes)
{
    void *old, *cut;
    memcpy(&old, array, sizeof old);
    cut = realloc(old, bytes > 0 ? bytes : 1);
    if (cut != NULL)
        memcpy(array, &cut, sizeof cut);
}

ot_status ot_builder_finish(ot_builder *builder, ot_list *out)
{
    *out = (ot_list){0};
    if (builder->failed)
        return ot_fail(OT_ERR_INTERNAL, "no memory for a step list of %zu operations", builder->count);
    out->operations = builder->operations;
    out->count = builder->count;
    out->waits = builder->waits;
    out->wait_count = builder->wait_count;
    builder->operations = NULL;
    builder->waits = NULL;
    give_back(&out->operations, out->count * sizeof *out->operations);
    give_back(&out->waits, out->wait_count * sizeof *out->waits);
    for (size_t o = 0; o < out->count; o++) {
        out->lane_bytes[out->operations[o].lane] += out->operations[o].bytes;
        out->flops += out->operations[o].flops;
    }
    return OT_OK;
}
