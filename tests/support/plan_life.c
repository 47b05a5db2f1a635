/* Runs the lists of a plan over symbols instead of numbers: every place holds parts, each with a tag that
 * says which value of which step it is. With several ranks this is the world of one; what the others do is what it does
 * itself, so what they bring to a gathering is as new as the own slice. */
#include <stdlib.h>
#include <string.h>

#include "tests/support/plan.h"
#include "tests/support/test.h"

enum { PARTS_MAX = 64 };

typedef enum value {
    EMPTY,
    PLANE_OF_CHUNK, /* a = chunk, b = plane, version; of gradients the step. Another rank's weights: a = the own chunk in
                       their place, b = -1 - rank */
    BOUNDARY,      /* a = stage it is in front of, b = micro-batch, version = step */
    BOUNDARY_GRAD, /* the same */
    LAYER_GRAD,    /* a = layer, version = hash of what was added */
    LAYER_REDUCED, /* a = layer, b = rank after the own, version = step */
    LAYER_SUMS,    /* the same */
    STEP_DATA,     /* version = step, or evaluation */
    KEPT,          /* a = stage, b = micro-batch, version = step */
} value;

typedef struct tag {
    value value;
    int64_t a, b;
    uint64_t version;
} tag;

typedef struct part {
    uint64_t from, to;
    tag tag;
} part;

typedef struct content {
    part parts[PARTS_MAX];
    size_t count;
} content;

typedef struct world {
    const ot_plan_request *request;
    const ot_plan *plan;
    ot_list_kind list;
    content *places;
    uint64_t *version;  /* [chunk]: updates so far */
    int64_t step, data; /* steps so far; data sets so far */
    uint64_t before;    /* steps done when the list began */
    int *handed;        /* [chunk]: loaded or saved in this list */
    int32_t handed_last;
    size_t heads; /* in this list */
    int *reduced; /* [layer] in this list */
    /* Passes over gradients: of the layer at hand, so many chunks in the pass, which are in order. */
    int32_t measured_layer;
    int measured_pass;
    uint32_t measured_chunks;
} world;

/* ---- contents ---- */

static void put(world *w, int32_t place, uint64_t from, uint64_t to, tag new)
{
    content *c = &w->places[place];
    assert_true(to <= w->plan->places[place].bytes);
    size_t kept = 0;
    for (size_t p = 0; p < c->count; p++)
        if (c->parts[p].to <= from || to <= c->parts[p].from)
            c->parts[kept++] = c->parts[p];
    c->count = kept;
    if (new.value == EMPTY)
        return;
    assert_true(c->count < PARTS_MAX);
    c->parts[c->count++] = (part){from, to, new};
}

static void put_all(world *w, int32_t place, tag new)
{
    put(w, place, 0, w->plan->places[place].bytes, new);
}

static tag get(const world *w, int32_t place, uint64_t from, uint64_t to)
{
    const content *c = &w->places[place];
    for (size_t p = 0; p < c->count; p++)
        if (c->parts[p].from == from && c->parts[p].to == to)
            return c->parts[p].tag;
    return (tag){EMPTY, 0, 0, 0};
}

static void expect(tag found, value kind, int64_t a, int64_t b, uint64_t version)
{
    if (found.value != kind || found.a != a || found.b != b || found.version != version)
        fail_msg("found value %d (%lld, %lld) of %llu, expected %d (%lld, %lld) of %llu", (int)found.value,
                 (long long)found.a, (long long)found.b, (unsigned long long)found.version, (int)kind,
                 (long long)a, (long long)b, (unsigned long long)version);
}

static uint64_t bytes_of(const world *w, int32_t chunk, int plane)
{
    return ot_plane_bytes(w->request, (ot_plane)plane, w->plan->chunks[chunk].count);
}

/* ---- shards ---- */

static uint64_t shard_of(const world *w, int layer)
{
    uint64_t params = w->request->layers[layer].params, ranks = (uint64_t)w->request->ranks;
    if (ranks <= 1)
        return params;
    uint64_t blocks = (params + OT_SUM_BLOCK - 1) / OT_SUM_BLOCK;
    return (blocks + ranks - 1) / ranks * OT_SUM_BLOCK;
}

/* Whether all shards of a plane are stored, by the request alone. */
static int is_whole(const world *w, int plane)
{
    const ot_plan_request *r = w->request;
    if (r->ranks <= 1 || r->inference || r->zero % 3 == 0)
        return 0;
    return plane == OT_PLANE_WEIGHT || (plane == OT_PLANE_GRAD && r->zero == 1 && !r->update_in_backward);
}

static uint32_t own_end(const world *w, int32_t layer)
{
    uint32_t first = w->plan->layer_chunks[layer], all = w->plan->layer_chunks[layer + 1] - first;
    return first + (is_whole(w, OT_PLANE_WEIGHT) ? all / (uint32_t)w->request->ranks : all);
}

/* Whose chunk it is, as the number of ranks after the own; and the own chunk in its place. */
static int shift_of(const world *w, int32_t chunk, uint32_t *own)
{
    int32_t layer = w->plan->chunks[chunk].layer;
    uint32_t first = w->plan->layer_chunks[layer], n = own_end(w, layer) - first,
             at = (uint32_t)chunk - first;
    *own = first + at % n;
    return (int)(at / n);
}

/* Whether a chunk, or the own one in its place, has its states on the device: then nothing of it is elsewhere. */
static int on_device(const world *w, int32_t c)
{
    uint32_t own;
    shift_of(w, c, &own);
    const ot_chunk *chunk = &w->plan->chunks[own];
    int device = w->plan->places[chunk->home[OT_PLANE_WEIGHT]].tier == OT_TIER_DEVICE;
    for (int p = OT_PLANE_MASTER; p <= OT_PLANE_GRAD; p++)
        if (chunk->home[p] >= 0)
            assert_int_equal(w->plan->places[chunk->home[p]].tier == OT_TIER_DEVICE, device);
    return device;
}

static uint64_t version_of(const world *w, int32_t chunk)
{
    uint32_t own;
    shift_of(w, chunk, &own);
    return w->version[own];
}

/* The part of a layer's weights on the device that is chunk `c` of rank `rank`, which is cut as the own one. */
static part slice_of(const world *w, uint32_t c, int rank)
{
    const ot_chunk *chunk = &w->plan->chunks[c];
    uint64_t width = ot_dtype_bytes(w->request->weight_dtype), shard = shard_of(w, chunk->layer);
    uint64_t first = chunk->first - (uint64_t)w->request->rank * shard + (uint64_t)rank * shard;
    int64_t b = rank == w->request->rank ? OT_PLANE_WEIGHT : -1 - (int64_t)rank;
    return (part){first * width, (first + chunk->count) * width, {PLANE_OF_CHUNK, c, b, 0}};
}

static int ranks_of(const world *w)
{
    return ot_rank_count(w->request->ranks);
}

/* Where the reduced gradient lies: in all of the place, or in a rank's slice of the FP32 sums or of the whole. */
static part reduced_part(const world *w, int layer, int32_t place, int shift)
{
    uint64_t shard = shard_of(w, layer) * ot_dtype_bytes(w->request->grad_dtype),
             rank = (uint64_t)((w->request->rank + shift) % ranks_of(w));
    part all = {0, w->plan->places[place].bytes, {LAYER_REDUCED, layer, shift, (uint64_t)w->step}};
    if (w->request->ranks > 1 && (w->request->grad_dtype == OT_FP32 || is_whole(w, OT_PLANE_GRAD))) {
        all.from = rank * shard;
        all.to = all.from + shard;
    }
    return all;
}

/* A chunk's gradient of a step is part of what its layer's was reduced to. Returns where in it. */
static uint64_t expect_reduced(const world *w, int32_t c, int32_t place, uint64_t step)
{
    const ot_chunk *chunk = &w->plan->chunks[c];
    uint32_t own;
    int shift = shift_of(w, c, &own);
    part reduced = reduced_part(w, chunk->layer, place, shift);
    expect(get(w, place, reduced.from, reduced.to), LAYER_REDUCED, chunk->layer, shift, step);
    uint64_t rank = (uint64_t)((w->request->rank + shift) % ranks_of(w));
    return reduced.from +
           (chunk->first - rank * shard_of(w, chunk->layer)) * ot_dtype_bytes(w->request->grad_dtype);
}

/* A reduced chunk goes to the host. */
static void take_gradient(world *w, const ot_operation *o)
{
    assert_int_equal(w->plan->chunks[o->chunk].layer, o->layer);
    assert_false(on_device(w, o->chunk));
    assert_int_equal(o->offset, expect_reduced(w, o->chunk, o->places[0], (uint64_t)w->step));
    assert_int_equal(o->bytes, bytes_of(w, o->chunk, OT_PLANE_GRAD));
    put(w, o->places[1], 0, o->bytes, (tag){PLANE_OF_CHUNK, o->chunk, OT_PLANE_GRAD, (uint64_t)w->step});
}

/* ---- what operations need and give ---- */

/* A whole move: what lies there goes over as it is. */
static void do_move(world *w, const ot_operation *o)
{
    uint64_t bytes = o->bytes;
    int of_grads = w->plan->places[o->places[1]].plane == OT_PLANE_GRAD;
    if (o->kind == OT_OP_D2H && o->chunk >= 0 && of_grads) {
        take_gradient(w, o);
        return;
    }
    uint64_t from = o->kind == OT_OP_D2H ? o->offset : 0, to = o->kind == OT_OP_H2D ? o->offset : 0;
    tag moved = get(w, o->places[0], from, from + bytes);
    if (o->kind == OT_OP_D2H && o->layer >= 0 && o->chunk < 0)
        moved = get(w, o->places[0], 0, w->plan->places[o->places[0]].bytes);
    if (moved.value == EMPTY)
        fail_msg("%s of chunk %d, stage %d: nothing there", ot_operation_name(o->kind), o->chunk, o->stage);
    if (o->stage >= 0)
        expect(moved, BOUNDARY, o->stage, o->micro_batch, (uint64_t)w->data);
    else if (o->chunk >= 0) {
        uint32_t own;
        int shift = shift_of(w, o->chunk, &own), rank = (w->request->rank + shift) % ranks_of(w);
        assert_int_equal(moved.value, PLANE_OF_CHUNK);
        assert_int_equal(moved.a, of_grads ? (uint32_t)o->chunk : own);
        assert_true(shift == 0 || of_grads || moved.b == -1 - (int64_t)rank);
        assert_true(shift > 0 || o->kind != OT_OP_D2H || (w->list == OT_LIST_SAVE && on_device(w, o->chunk)));
        if (on_device(w, o->chunk))
            assert_true(w->list == OT_LIST_LOAD || w->list == OT_LIST_SAVE);
    }
    put(w, o->places[1], to, to + bytes, moved);
}

static int is_evaluation(ot_list_kind kind)
{
    return kind == OT_LIST_EVAL || kind == OT_LIST_LOGITS;
}

static void expect_weights(world *w, int32_t place, int layer)
{
    if (layer < 0) {
        assert_int_equal(place, -1);
        return;
    }
    assert_true(place >= 0);
    uint64_t newest = is_evaluation(w->list) ? (uint64_t)w->step : w->before;
    for (int rank = 0; rank < ranks_of(w); rank++)
        for (uint32_t c = w->plan->layer_chunks[layer]; c < own_end(w, layer); c++) {
            part slice = slice_of(w, c, rank);
            expect(get(w, place, slice.from, slice.to), PLANE_OF_CHUNK, c, slice.tag.b, newest);
        }
}

/* All ranks have reduced their slices. */
static void gather_gradient(world *w, const ot_operation *o)
{
    part own = reduced_part(w, o->layer, o->places[0], 0);
    assert_true(is_whole(w, OT_PLANE_GRAD));
    assert_int_equal(o->bytes, (uint64_t)(w->request->ranks - 1) * (own.to - own.from));
    expect(get(w, o->places[0], own.from, own.to), LAYER_REDUCED, o->layer, 0, (uint64_t)w->step);
    for (int shift = 1; shift < w->request->ranks; shift++) {
        part other = reduced_part(w, o->layer, o->places[0], shift);
        put(w, o->places[0], other.from, other.to, other.tag);
    }
}

/* The own slice is whole, and what comes from the others is as new. */
static void do_gather(world *w, const ot_operation *o)
{
    assert_true(w->request->ranks > 1);
    if (w->plan->places[o->places[0]].plane == OT_PLANE_GRAD) {
        gather_gradient(w, o);
        return;
    }
    uint64_t width = ot_dtype_bytes(w->request->weight_dtype);
    assert_int_equal(o->bytes, (uint64_t)(w->request->ranks - 1) * shard_of(w, o->layer) * width);
    for (uint32_t c = w->plan->layer_chunks[o->layer]; c < own_end(w, o->layer); c++) {
        part own = slice_of(w, c, w->request->rank);
        tag found = get(w, o->places[0], own.from, own.to);
        expect(found, PLANE_OF_CHUNK, c, OT_PLANE_WEIGHT, found.version);
        for (int rank = 0; rank < w->request->ranks; rank++) {
            part slice = slice_of(w, c, rank);
            slice.tag.version = found.version;
            put(w, o->places[0], slice.from, slice.to, slice.tag);
        }
    }
}

static uint64_t mix(uint64_t hash, uint64_t stage, uint64_t m)
{
    return (hash ^ (stage * 64 + m + 1)) * 0x100000001b3u;
}

/* What a layer's gradient must be made of: its stages from the last to the first, micro-batches in ascending
 * order. */
static uint64_t whole_gradient(const world *w, int layer)
{
    uint64_t hash = (uint64_t)w->step;
    for (size_t s = w->request->stage_count; s-- > 0;)
        for (int j = 0; j < OT_STAGE_LAYERS; j++)
            for (size_t m = 0; w->request->stages[s].layers[j] == layer && m < w->request->micro_batches; m++)
                hash = mix(hash, s, m);
    return hash;
}

static void add_gradients(world *w, const ot_operation *o)
{
    for (int j = 0; j < OT_STAGE_LAYERS; j++) {
        int layer = w->request->stages[o->stage].layers[j];
        int32_t place = o->places[6 + j];
        assert_int_equal(place >= 0, layer >= 0);
        if (layer < 0)
            continue;
        uint64_t bytes = w->request->layers[layer].params * 4;
        tag sum = get(w, place, 0, bytes);
        if (o->zero_grads >> j & 1)
            sum = (tag){LAYER_GRAD, layer, 0, (uint64_t)w->step};
        expect(sum, LAYER_GRAD, layer, 0, sum.version);
        sum.version = mix(sum.version, (uint64_t)o->stage, (uint64_t)o->micro_batch);
        put_all(w, place, (tag){EMPTY, 0, 0, 0});
        put(w, place, 0, bytes, sum);
    }
}

/* Between a block's forward and its backward; an evaluation keeps nothing. */
static void check_kept(world *w, const ot_operation *o)
{
    int keeps =
        w->request->kept_bytes > 0 && !is_evaluation(w->list) && o->kind != OT_OP_HEAD && o->stage > 0;
    const tag kept = {KEPT, o->stage, o->micro_batch, (uint64_t)w->data}, nothing = {EMPTY, 0, 0, 0};
    assert_int_equal(o->places[8] >= 0, keeps);
    if (!keeps)
        return;
    if (o->kind == OT_OP_BACKWARD)
        expect(get(w, o->places[8], 0, w->request->kept_bytes), KEPT, kept.a, kept.b, kept.version);
    put_all(w, o->places[8], o->kind == OT_OP_FORWARD ? kept : nothing);
}

static void do_compute(world *w, const ot_operation *o)
{
    int64_t s = o->stage, m = o->micro_batch;
    uint64_t data = (uint64_t)w->data;
    int evaluating = is_evaluation(w->list);
    for (int j = 0; j < OT_STAGE_LAYERS; j++)
        expect_weights(w, o->places[j], w->request->stages[s].layers[j]);
    if (s > 0)
        expect(get(w, o->places[2], 0, w->request->boundary_bytes), BOUNDARY, s, m, data);
    if (w->plan->data_place >= 0)
        expect(get(w, o->places[4], 0, w->request->data_bytes), STEP_DATA, 0, 0, data);
    assert_int_equal(o->places[4], w->plan->data_place);
    assert_int_equal(o->places[5], w->plan->workspace_place);
    check_kept(w, o);
    if (o->kind == OT_OP_FORWARD)
        put_all(w, o->places[3], (tag){BOUNDARY, s + 1, m, data});
    else if (o->kind == OT_OP_BACKWARD)
        expect(get(w, o->places[3], 0, w->request->boundary_bytes), BOUNDARY_GRAD, s + 1, m, data);
    if (o->kind != OT_OP_FORWARD && !evaluating) {
        put_all(w, o->places[3], (tag){BOUNDARY_GRAD, s, m, data});
        add_gradients(w, o);
    }
    if (o->kind == OT_OP_HEAD) {
        assert_int_equal(s + 1, w->request->stage_count);
        assert_int_equal(m, w->heads);
        w->heads++;
        assert_int_equal(o->places[3] < 0, evaluating);
    }
}

static void do_reduce(world *w, const ot_operation *o)
{
    uint64_t params = w->request->layers[o->layer].params;
    expect(get(w, o->places[0], 0, params * 4), LAYER_GRAD, o->layer, 0, whole_gradient(w, o->layer));
    assert_int_equal(o->kind, w->request->ranks > 1 ? OT_OP_SCATTER : OT_OP_REDUCE);
    assert_int_equal(o->offset, (uint64_t)w->request->rank * shard_of(w, o->layer) * sizeof(float));
    if (o->kind == OT_OP_SCATTER)
        assert_int_equal(o->bytes, (uint64_t)(w->request->ranks - 1) * shard_of(w, o->layer) * sizeof(float));
    part reduced = reduced_part(w, o->layer, o->places[1], 0);
    put_all(w, o->places[1], (tag){EMPTY, 0, 0, 0});
    put(w, o->places[1], reduced.from, reduced.to, reduced.tag);
    put_all(w, o->places[2], (tag){LAYER_SUMS, o->layer, 0, (uint64_t)w->step});
    w->reduced[o->layer]++;
}

static int exists(const world *w, int32_t chunk, int plane)
{
    return bytes_of(w, chunk, plane) > 0;
}

static int is_read(const world *w, int plane)
{
    return plane != OT_PLANE_WEIGHT || w->request->weight_dtype == OT_FP32 ||
           w->request->master_format == OT_MASTER_SPLIT;
}

static uint32_t chunks_of(const world *w, int32_t layer)
{
    return w->plan->layer_chunks[layer + 1] - w->plan->layer_chunks[layer];
}

/* Pass 0 over all chunks of a layer in order of their elements, pass 1, and then its updates, with nothing of another layer between. */
static void do_measure(world *w, const ot_operation *o)
{
    uint32_t own, first = w->plan->layer_chunks[o->layer],
                  rank = (uint32_t)((w->request->rank + shift_of(w, o->chunk, &own)) % ranks_of(w));
    uint32_t index = rank * (own_end(w, o->layer) - first) + own - first;
    expect(get(w, o->places[4], 0, bytes_of(w, o->chunk, OT_PLANE_GRAD)), PLANE_OF_CHUNK, o->chunk,
           OT_PLANE_GRAD, version_of(w, o->chunk) + 1);
    assert_true(w->request->measured && o->deferred);
    assert_int_equal(o->bytes, bytes_of(w, o->chunk, OT_PLANE_GRAD));
    if (index == 0 && o->pass > 0) {
        assert_int_equal(w->measured_layer, o->layer);
        assert_int_equal(w->measured_chunks, chunks_of(w, o->layer));
    }
    if (index == 0) {
        assert_true(w->measured_layer < 0 || o->pass > 0);
        w->measured_layer = o->layer;
        w->measured_pass = o->pass;
        w->measured_chunks = 0;
    }
    assert_true(w->measured_layer == o->layer && w->measured_pass == o->pass);
    assert_int_equal(w->measured_chunks++, index);
}

/* The whole layer has been measured; its last update ends that. */
static void expect_measured(world *w, const ot_operation *o)
{
    if (!w->request->measured)
        return;
    assert_int_equal(w->measured_layer, o->layer);
    assert_int_equal(w->measured_pass, 1);
    assert_int_equal(w->measured_chunks, chunks_of(w, o->layer));
    if ((uint32_t)o->chunk + 1 == own_end(w, o->layer))
        w->measured_layer = -1;
}

/* Where a chunk's plane is in its place. */
static part part_of(const world *w, const ot_operation *o, int plane)
{
    if (o->lane == OT_LANE_COMPUTE && plane == OT_PLANE_WEIGHT)
        return slice_of(w, (uint32_t)o->chunk, w->request->rank);
    return (part){0, bytes_of(w, o->chunk, plane), {PLANE_OF_CHUNK, o->chunk, plane, 0}};
}

static void do_update(world *w, const ot_operation *o)
{
    expect_measured(w, o);
    assert_true(!w->plan->chunks[o->chunk].copy);
    uint64_t *version = &w->version[o->chunk], touched = bytes_of(w, o->chunk, OT_PLANE_GRAD);
    assert_int_equal(o->lane, on_device(w, o->chunk) ? OT_LANE_COMPUTE : OT_LANE_CPU);
    if (o->lane == OT_LANE_COMPUTE)
        assert_int_equal(o->offset, expect_reduced(w, o->chunk, o->places[4], *version + 1));
    else
        expect(get(w, o->places[4], 0, bytes_of(w, o->chunk, OT_PLANE_GRAD)), PLANE_OF_CHUNK, o->chunk,
               OT_PLANE_GRAD, *version + 1);
    int previous = w->list == OT_LIST_DRAIN || *version + 1 < (uint64_t)w->step;
    assert_int_equal(o->deferred, previous);
    assert_true(w->request->update_in_backward || previous);
    for (int p = 0; p <= OT_PLANE_MOMENT2; p++) {
        assert_int_equal(o->places[p] >= 0, exists(w, o->chunk, p));
        if (!exists(w, o->chunk, p))
            continue;
        part at = part_of(w, o, p);
        if (is_read(w, p))
            expect(get(w, o->places[p], at.from, at.to), PLANE_OF_CHUNK, o->chunk, p, *version);
        if (o->lane == OT_LANE_CPU)
            put(w, o->places[p], 0, w->plan->places[o->places[p]].bytes, (tag){EMPTY, 0, 0, 0});
        at.tag.version = *version + 1;
        put(w, o->places[p], at.from, at.to, at.tag);
        touched += (at.to - at.from) * (is_read(w, p) ? 2 : 1);
    }
    assert_int_equal(o->bytes, touched);
    ++*version;
}

static void do_hand_over(world *w, const ot_operation *o)
{
    do
        w->handed_last++;
    while (w->plan->chunks[w->handed_last].copy);
    assert_int_equal(o->chunk, w->handed_last);
    w->handed[o->chunk]++;
    for (int p = 0; p <= OT_PLANE_MOMENT2; p++) {
        uint64_t bytes = bytes_of(w, o->chunk, p);
        assert_int_equal(o->places[p] >= 0, bytes > 0);
        if (bytes == 0)
            continue;
        if (o->kind == OT_OP_SAVE)
            expect(get(w, o->places[p], 0, bytes), PLANE_OF_CHUNK, o->chunk, p, (uint64_t)w->step);
        else {
            put(w, o->places[p], 0, w->plan->places[o->places[p]].bytes, (tag){EMPTY, 0, 0, 0});
            put(w, o->places[p], 0, bytes, (tag){PLANE_OF_CHUNK, o->chunk, p, 0});
        }
    }
}

static void execute(world *w, const ot_operation *o)
{
    switch (o->kind) {
    case OT_OP_READ:
    case OT_OP_WRITE:
    case OT_OP_H2D:
    case OT_OP_D2H:
        do_move(w, o);
        break;
    case OT_OP_DATA:
        assert_int_equal(o->bytes, w->request->data_bytes);
        put_all(w, o->places[1], (tag){STEP_DATA, 0, 0, (uint64_t)w->data});
        break;
    case OT_OP_FORWARD:
    case OT_OP_HEAD:
    case OT_OP_BACKWARD:
        do_compute(w, o);
        break;
    case OT_OP_REDUCE:
    case OT_OP_SCATTER:
        do_reduce(w, o);
        break;
    case OT_OP_GATHER:
        do_gather(w, o);
        break;
    case OT_OP_UPDATE:
        do_update(w, o);
        break;
    case OT_OP_MEASURE:
        do_measure(w, o);
        break;
    case OT_OP_LOAD:
    case OT_OP_SAVE:
        do_hand_over(w, o);
        break;
    case OT_OP_KINDS:
        fail();
    }
}

/* ---- lists ---- */

/* In a random order that waits and lanes allow; the NVMe lanes may end their operations in any order. */
static void execute_list(world *w, uint64_t *seed)
{
    const ot_list *list = &w->plan->lists[w->list];
    char *done = calloc(list->count + 1, 1);
    size_t left = list->count, next[OT_LANES] = {0};
    while (left > 0) {
        size_t lane = draw(seed, OT_LANES), ahead = lane <= OT_LANE_NVME_WRITE ? draw(seed, 3) : 0;
        size_t found = list->count;
        for (size_t i = 0; i < OT_LANES && found == list->count;
             i++, lane = (lane + 1) % OT_LANES, ahead = 0) {
            while (next[lane] < list->count &&
                   (done[next[lane]] || list->operations[next[lane]].lane != lane))
                next[lane]++;
            for (size_t o = next[lane], skip = ahead; o < list->count && o < next[lane] + 40; o++) {
                if (done[o] || list->operations[o].lane != lane)
                    continue;
                int ready = 1;
                for (uint32_t k = 0; k < list->operations[o].wait_count; k++)
                    ready &= done[list->waits[list->operations[o].wait_first + k]];
                if (ready)
                    found = o;
                if (skip-- == 0)
                    break;
            }
        }
        if (found == list->count)
            fail_msg("list %d: a deadlock with %zu operations left", (int)w->list, left);
        execute(w, &list->operations[found]);
        done[found] = 1;
        left--;
    }
    free(done);
}

/* After a step copies are what it has worked with; after other lists nothing is said of them. */
static void check_copy(const world *w, int32_t c)
{
    const ot_chunk *chunk = &w->plan->chunks[c];
    uint32_t own;
    int shift = shift_of(w, c, &own), rank = (w->request->rank + shift) % ranks_of(w),
        stepped = w->list == OT_LIST_FIRST || w->list == OT_LIST_STEADY;
    for (int p = 0; p <= OT_PLANE_GRAD; p++) {
        int stored = is_whole(w, p) && (p != OT_PLANE_WEIGHT || w->plan->resident[chunk->layer] < 0);
        assert_int_equal(chunk->home[p] >= 0, stored);
        if (!stored || !stepped)
            continue;
        tag found = get(w, chunk->home[p], 0, bytes_of(w, c, p));
        if (p == OT_PLANE_GRAD && on_device(w, c))
            expect_reduced(w, c, chunk->home[p], (uint64_t)w->step);
        else if (p == OT_PLANE_GRAD)
            expect(found, PLANE_OF_CHUNK, c, p, (uint64_t)w->step);
        else
            expect(found, PLANE_OF_CHUNK, own, -1 - (int64_t)rank, w->before);
    }
}

/* After a list every home holds the newest version, and so do the weights kept on the device. */
static void check_homes(const world *w, uint64_t step_begun)
{
    for (size_t c = 0; c < w->plan->chunk_count; c++) {
        const ot_chunk *chunk = &w->plan->chunks[c];
        int32_t resident = w->plan->resident[chunk->layer];
        if (chunk->copy) {
            check_copy(w, (int32_t)c);
            continue;
        }
        int device = on_device(w, (int32_t)c);
        for (int p = 0; p <= OT_PLANE_MOMENT2; p++)
            if (exists(w, (int32_t)c, p) && !(device && p == OT_PLANE_WEIGHT))
                expect(get(w, chunk->home[p], 0, bytes_of(w, (int32_t)c, p)), PLANE_OF_CHUNK, (int64_t)c, p,
                       w->version[c]);
        if (device)
            assert_int_equal(chunk->home[OT_PLANE_WEIGHT], resident);
        for (int rank = 0; rank < ranks_of(w) && resident >= 0; rank++) {
            part slice = slice_of(w, (uint32_t)c, rank);
            expect(get(w, resident, slice.from, slice.to), PLANE_OF_CHUNK, (int64_t)c, slice.tag.b,
                   w->version[c]);
        }
        if (w->list != OT_LIST_FIRST && w->list != OT_LIST_STEADY)
            assert_int_equal(w->version[c], w->step);
        else if (chunk->home[OT_PLANE_GRAD] >= 0 && device)
            expect_reduced(w, (int32_t)c, chunk->home[OT_PLANE_GRAD], step_begun);
        else if (chunk->home[OT_PLANE_GRAD] >= 0)
            expect(get(w, chunk->home[OT_PLANE_GRAD], 0, bytes_of(w, (int32_t)c, OT_PLANE_GRAD)),
                   PLANE_OF_CHUNK, (int64_t)c, OT_PLANE_GRAD, step_begun);
        else
            assert_int_equal(w->version[c], step_begun);
    }
}

static void run(world *w, ot_list_kind kind, uint64_t *seed)
{
    const ot_plan *plan = w->plan;
    int steps = kind == OT_LIST_FIRST || kind == OT_LIST_STEADY,
        hands = kind == OT_LIST_LOAD || kind == OT_LIST_SAVE;
    w->list = kind;
    w->before = (uint64_t)w->step;
    w->step += steps;
    w->data += steps || is_evaluation(kind);
    w->heads = 0;
    w->handed_last = -1;
    memset(w->handed, 0, plan->chunk_count * sizeof *w->handed);
    memset(w->reduced, 0, w->request->layer_count * sizeof *w->reduced);
    execute_list(w, seed);
    size_t micro_batches = kind == OT_LIST_LOGITS ? 1 : w->request->micro_batches;
    assert_int_equal(w->heads, steps || is_evaluation(kind) ? micro_batches : 0);
    for (size_t c = 0; c < plan->chunk_count; c++)
        assert_int_equal(w->handed[c], hands && !plan->chunks[c].copy);
    for (size_t l = 0; l < w->request->layer_count; l++) {
        assert_int_equal(w->reduced[l], steps);
        if (steps)
            expect(get(w, plan->partials[l], 0, plan->places[plan->partials[l]].bytes), LAYER_SUMS,
                   (int64_t)l, 0, (uint64_t)w->step);
    }
    check_homes(w, (uint64_t)w->step);
}

void check_life(const ot_plan_request *request, const ot_plan *plan, uint64_t seed)
{
    static const ot_list_kind training[] = {OT_LIST_LOAD,  OT_LIST_FIRST,  OT_LIST_STEADY, OT_LIST_STEADY,
                                            OT_LIST_DRAIN, OT_LIST_EVAL,   OT_LIST_SAVE,   OT_LIST_FIRST,
                                            OT_LIST_DRAIN, OT_LIST_SAVE,   OT_LIST_FIRST,  OT_LIST_STEADY,
                                            OT_LIST_DRAIN, OT_LIST_LOGITS, OT_LIST_EVAL};
    static const ot_list_kind inference[] = {OT_LIST_LOAD, OT_LIST_EVAL, OT_LIST_SAVE, OT_LIST_LOGITS,
                                             OT_LIST_EVAL};
    const ot_list_kind *lists = request->inference ? inference : training;
    size_t count = (request->inference ? sizeof inference : sizeof training) / sizeof *lists;
    world w = {.request = request, .plan = plan, .measured_layer = -1};
    w.places = calloc(plan->place_count + 1, sizeof *w.places);
    w.version = calloc(plan->chunk_count, sizeof *w.version);
    w.handed = calloc(plan->chunk_count, sizeof *w.handed);
    w.reduced = calloc(request->layer_count, sizeof *w.reduced);
    for (size_t l = 0; l < count; l++)
        run(&w, lists[l], &seed);
    free(w.places);
    free(w.version);
    free(w.handed);
    free(w.reduced);
}
