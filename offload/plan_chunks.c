/* What the lists of a plan do with chunks: they are fetched, updated, filled and handed over, and their gradients returned. */
#include <string.h>

#include "offload/plan_emitter.h"

enum { NONE = -1, STATE_PLANES = OT_PLANE_MOMENT2 + 1 };

static ot_operation chunk_operation(const ot_emitter *e, ot_operation_kind kind, int32_t chunk)
{
    ot_operation o = ot_operation_of(kind);
    o.chunk = chunk;
    o.layer = e->plan->chunks[chunk].layer;
    return o;
}

static uint64_t chunk_bytes(const ot_emitter *e, int32_t chunk, ot_plane plane)
{
    return ot_plane_bytes(e->request, plane, e->plan->chunks[chunk].count);
}

/* Moves a chunk's plane as a whole. */
static void move_chunk(ot_emitter *e, ot_operation_kind kind, int32_t chunk, ot_plane plane, int32_t from,
                       int32_t to)
{
    ot_emitter_move(e, chunk_operation(e, kind, chunk), from, to, 0, chunk_bytes(e, chunk, plane));
}

/* The byte at which a chunk's weights begin in their layer's place. */
static uint64_t weights_offset(const ot_emitter *e, int32_t chunk)
{
    return ot_plane_bytes(e->request, OT_PLANE_WEIGHT, e->plan->chunks[chunk].first);
}

static void send_weights(ot_emitter *e, int32_t chunk, int32_t source, int32_t target)
{
    ot_emitter_move(e, chunk_operation(e, OT_OP_H2D, chunk), source, target, weights_offset(e, chunk),
                    chunk_bytes(e, chunk, OT_PLANE_WEIGHT));
}

/* Once each rank has its own slice of a layer's plane on the device. */
static void gather(ot_emitter *e, int32_t layer, ot_plane plane, int32_t place)
{
    uint64_t shard = ot_layer_shard(e->request, (size_t)layer);
    if (e->request->ranks <= 1)
        return;
    ot_operation o = ot_operation_of(OT_OP_GATHER);
    o.layer = layer;
    o.places[0] = place;
    o.bytes = (uint64_t)(e->request->ranks - 1) * ot_plane_bytes(e->request, plane, shard);
    ot_builder_add(e->builder, &o);
}

static uint32_t own_end(const ot_emitter *e, int32_t layer)
{
    return ot_plan_own_end(e->plan, (size_t)layer);
}

static int is_last_own(const ot_emitter *e, int32_t chunk)
{
    return (uint32_t)chunk + 1 == own_end(e, e->plan->chunks[chunk].layer);
}

/* Whether any chunk of a layer is updated in the step after, or any inside backward. */
static int has_chunk(const ot_emitter *e, int32_t layer, int deferred)
{
    for (uint32_t c = e->plan->layer_chunks[layer]; c < own_end(e, layer); c++)
        if (e->draft->deferred[c] == deferred)
            return 1;
    return 0;
}

/* Where the host has the chunk's plane: its home, or a slot, into which it is read unless it will be
 * overwritten. */
static int32_t bring_to_host(ot_emitter *e, int32_t chunk, ot_plane plane, int read)
{
    int32_t home = e->plan->chunks[chunk].home[plane];
    if (home == NONE || ot_emitter_tier(e, home) == OT_TIER_HOST)
        return home;
    int32_t slot = ot_pool_next(&e->draft->rings[plane]);
    if (read && ot_emitter_tier(e, home) == OT_TIER_NVME)
        move_chunk(e, OT_OP_READ, chunk, plane, home, slot);
    else if (read)
        ot_emitter_move(e, chunk_operation(e, OT_OP_D2H, chunk), home, slot,
                        plane == OT_PLANE_WEIGHT ? weights_offset(e, chunk) : 0,
                        chunk_bytes(e, chunk, plane));
    return slot;
}

/* Takes a chunk's plane from byte `offset` of a device place to its home, or to a slot where it has none. Returns the host
 * place. */
static int32_t take_home(ot_emitter *e, int32_t chunk, ot_plane plane, int32_t source, uint64_t offset)
{
    int32_t home = e->plan->chunks[chunk].home[plane], host = home;
    if (home == NONE || ot_emitter_tier(e, home) == OT_TIER_NVME)
        host = ot_pool_next(&e->draft->rings[plane]);
    ot_emitter_move(e, chunk_operation(e, OT_OP_D2H, chunk), source, host, offset,
                    chunk_bytes(e, chunk, plane));
    if (home != NONE && home != host)
        move_chunk(e, OT_OP_WRITE, chunk, plane, host, home);
    return host;
}

/* Takes planes from host slots to their homes; weights whose home is their layer's place are the caller's to send. */
static void write_back(ot_emitter *e, int32_t chunk, const int32_t places[])
{
    for (int p = 0; p < STATE_PLANES; p++) {
        int32_t home = e->plan->chunks[chunk].home[p];
        if (home == NONE || home == places[p] || home == e->plan->resident[e->plan->chunks[chunk].layer])
            continue;
        int on_device = ot_emitter_tier(e, home) == OT_TIER_DEVICE;
        move_chunk(e, on_device ? OT_OP_H2D : OT_OP_WRITE, chunk, (ot_plane)p, places[p], home);
    }
}

/* ---- update ---- */

static int weight_is_read(const ot_emitter *e)
{
    return e->request->weight_dtype == OT_FP32 || e->request->master_format == OT_MASTER_SPLIT;
}

static uint64_t update_bytes(const ot_emitter *e, int32_t chunk)
{
    uint64_t bytes = chunk_bytes(e, chunk, OT_PLANE_GRAD);
    for (int p = 0; p < STATE_PLANES; p++)
        bytes += chunk_bytes(e, chunk, (ot_plane)p) * (p == OT_PLANE_WEIGHT && !weight_is_read(e) ? 1 : 2);
    return bytes;
}

static void measure(ot_emitter *e, int32_t chunk, int pass)
{
    ot_operation o = chunk_operation(e, OT_OP_MEASURE, chunk);
    o.pass = pass;
    o.deferred = 1;
    o.places[4] = bring_to_host(e, chunk, OT_PLANE_GRAD, 1);
    o.bytes = chunk_bytes(e, chunk, OT_PLANE_GRAD);
    ot_builder_add(e->builder, &o);
}

/* Both passes over a layer's gradient, in order of its elements whichever rank's they are. */
static void measure_layer(ot_emitter *e, int32_t layer)
{
    const uint32_t first = e->plan->layer_chunks[layer], own = own_end(e, layer) - first,
                   all = own * (uint32_t)e->plan->shards, before = own * (uint32_t)e->request->rank;
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t c = 0; c < all; c++)
            measure(e, (int32_t)(first + (c + all - before) % all), pass);
}

/* Where this rank's shard of a layer begins. */
static uint64_t own_first(const ot_emitter *e, int32_t layer)
{
    return (uint64_t)e->request->rank * ot_layer_shard(e->request, (size_t)layer);
}

/* The byte at which a chunk's gradient begins in what its layer's is reduced to. */
static uint64_t reduced_offset(const ot_emitter *e, int32_t chunk)
{
    int32_t layer = e->plan->chunks[chunk].layer;
    int slice = e->draft->staging[layer] != e->draft->grad32[layer] && !e->plan->whole[OT_PLANE_GRAD];
    uint64_t first = e->plan->chunks[chunk].first - (slice ? own_first(e, layer) : 0);
    return ot_plane_bytes(e->request, OT_PLANE_GRAD, first);
}

/* All of it stays where it is. */
static void update_on_device(ot_emitter *e, int32_t chunk)
{
    ot_operation o = chunk_operation(e, OT_OP_UPDATE, chunk);
    o.lane = OT_LANE_COMPUTE;
    o.deferred = e->draft->deferred[chunk];
    memcpy(o.places, e->plan->chunks[chunk].home, STATE_PLANES * sizeof *o.places);
    o.places[4] = e->draft->staging[o.layer];
    o.offset = reduced_offset(e, chunk);
    o.bytes = update_bytes(e, chunk);
    ot_builder_add(e->builder, &o);
}

/* Updates a chunk with the gradient in `grad`, or at home, and sends the new weights to `target`. */
static void update_chunk(ot_emitter *e, int32_t chunk, int32_t grad, int32_t target)
{
    int32_t layer = e->plan->chunks[chunk].layer;
    if (ot_plan_on_device(e->plan, (size_t)chunk)) {
        update_on_device(e, chunk);
        return;
    }
    if (e->request->measured && (uint32_t)chunk == e->plan->layer_chunks[layer])
        measure_layer(e, layer);
    ot_operation o = chunk_operation(e, OT_OP_UPDATE, chunk);
    o.deferred = grad == NONE;
    for (int p = 0; p < STATE_PLANES; p++)
        o.places[p] = bring_to_host(e, chunk, (ot_plane)p, p != OT_PLANE_WEIGHT || weight_is_read(e));
    o.places[4] = grad != NONE ? grad : bring_to_host(e, chunk, OT_PLANE_GRAD, 1);
    o.bytes = update_bytes(e, chunk);
    ot_builder_add(e->builder, &o);
    write_back(e, chunk, o.places);
    if (target != NONE)
        send_weights(e, chunk, o.places[OT_PLANE_WEIGHT], target);
}

/* Of a layer's chunks those that have to do with a visit: the own where they are updated or fetched for it; and in a step
 * that fetches the layer its copies, which are kept the first time and sent from then on. */
static uint32_t count_visiting(const ot_emitter *e, size_t visit, int j, int32_t layer)
{
    const ot_draft *draft = e->draft;
    int fetched = draft->fetched[visit][j],
        updated = e->updating && draft->first_visit[layer] == (int32_t)visit;
    uint32_t end = !fetched && !updated ? e->plan->layer_chunks[layer]
                   : fetched && e->saving && e->plan->whole[OT_PLANE_WEIGHT]
                       ? e->plan->layer_chunks[layer + 1]
                       : own_end(e, layer);
    return end - e->plan->layer_chunks[layer];
}

/* The own chunks first, whose update or copy to the device the gathering follows, and then the copies. */
static void prepare_chunk(ot_emitter *e, size_t visit, int j, int32_t chunk)
{
    const ot_draft *draft = e->draft;
    int32_t layer = e->plan->chunks[chunk].layer, target = draft->weights[visit][j];
    int first = draft->first_visit[layer] == (int32_t)visit, fetched = draft->fetched[visit][j],
        gathered = first || !e->saving || !e->plan->whole[OT_PLANE_WEIGHT];
    if (e->plan->chunks[chunk].copy && first) {
        take_home(e, chunk, OT_PLANE_WEIGHT, target, weights_offset(e, chunk));
        return;
    }
    if (e->updating && first && draft->deferred[chunk])
        update_chunk(e, chunk, NONE, target);
    else if (fetched)
        send_weights(e, chunk, bring_to_host(e, chunk, OT_PLANE_WEIGHT, 1), target);
    if (is_last_own(e, chunk) && gathered && (fetched || has_chunk(e, layer, 1)))
        gather(e, layer, OT_PLANE_WEIGHT, target);
}

void ot_emitter_prepare(ot_emitter *e, size_t visit, size_t m)
{
    ot_draft *draft = e->draft;
    if (visit >= draft->V)
        return;
    const ot_plan_stage *stage = &e->request->stages[ot_visit_stage(draft, visit)];
    size_t counts[OT_STAGE_LAYERS] = {0}, total = 0;
    for (int j = 0; j < OT_STAGE_LAYERS; j++) {
        if (stage->layers[j] >= 0)
            counts[j] = count_visiting(e, visit, j, stage->layers[j]);
        total += counts[j];
    }
    for (size_t i = total * m / draft->M; i < total * (m + 1) / draft->M; i++) {
        int j = i >= counts[0];
        size_t before = e->plan->layer_chunks[stage->layers[j]];
        prepare_chunk(e, visit, j, (int32_t)(before + i - (j > 0 ? counts[0] : 0)));
    }
}

/* ---- gradients ---- */

/* Takes one reduced chunk to its home or straight into its update; on the device it is at home. */
static void return_gradient(ot_emitter *e, int32_t chunk)
{
    int32_t layer = e->plan->chunks[chunk].layer, host = NONE;
    if (!ot_plan_on_device(e->plan, (size_t)chunk))
        host = take_home(e, chunk, OT_PLANE_GRAD, e->draft->staging[layer], reduced_offset(e, chunk));
    if (e->plan->chunks[chunk].home[OT_PLANE_GRAD] == NONE)
        update_chunk(e, chunk, host, e->plan->resident[layer]);
    if (e->plan->resident[layer] != NONE && is_last_own(e, chunk) && has_chunk(e, layer, 0))
        gather(e, layer, OT_PLANE_WEIGHT, e->plan->resident[layer]);
}

/* With the update inside backward the chunks of a layer are spread over the micro-batches of the next visit. */
void ot_emitter_return_gradients(ot_emitter *e, size_t m)
{
    size_t left = e->draft->M - m, count = (e->returned_count - e->returned_first + left - 1) / left;
    for (size_t i = 0; i < count; i++)
        return_gradient(e, e->returned[e->returned_first++]);
}

void ot_emitter_reduce(ot_emitter *e, int32_t layer)
{
    uint64_t peers = (uint64_t)ot_rank_count(e->request->ranks) - 1;
    ot_operation o = ot_operation_of(peers > 0 ? OT_OP_SCATTER : OT_OP_REDUCE);
    int32_t sums = e->draft->sums[e->reduced++ % 2];
    o.layer = layer;
    o.places[0] = e->draft->grad32[layer];
    o.places[1] = e->draft->staging[layer];
    o.places[2] = sums;
    o.offset = own_first(e, layer) * sizeof(float);
    o.bytes = peers * ot_layer_shard(e->request, (size_t)layer) * sizeof(float);
    ot_builder_add(e->builder, &o);
    ot_operation copy = ot_operation_of(OT_OP_D2H);
    copy.layer = layer;
    int32_t partials = e->plan->partials[layer];
    ot_emitter_move(e, copy, sums, partials, 0, e->plan->places[partials].bytes);
    int whole = e->plan->whole[OT_PLANE_GRAD];
    if (whole)
        gather(e, layer, OT_PLANE_GRAD, e->draft->staging[layer]);
    uint32_t end = whole ? e->plan->layer_chunks[layer + 1] : own_end(e, layer);
    for (uint32_t c = e->plan->layer_chunks[layer]; c < end; c++)
        e->returned[e->returned_count++] = (int32_t)c;
    if (!e->request->update_in_backward)
        ot_emitter_return_gradients(e, e->draft->M - 1);
}

/* ---- lists ---- */

void ot_emitter_drain(ot_emitter *e)
{
    for (size_t c = 0; c < e->plan->chunk_count; c++) {
        int32_t chunk = (int32_t)c, layer = e->plan->chunks[c].layer, resident = e->plan->resident[layer];
        if (e->draft->deferred[c] && !e->plan->chunks[c].copy)
            update_chunk(e, chunk, NONE, resident);
        if (resident != NONE && is_last_own(e, chunk) && has_chunk(e, layer, 1))
            gather(e, layer, OT_PLANE_WEIGHT, resident);
    }
}

void ot_emitter_load_or_save(ot_emitter *e, ot_operation_kind kind)
{
    for (size_t c = 0; c < e->plan->chunk_count; c++) {
        int32_t chunk = (int32_t)c, resident = e->plan->resident[e->plan->chunks[c].layer];
        ot_operation o = chunk_operation(e, kind, chunk);
        if (e->plan->chunks[c].copy)
            continue;
        for (int p = 0; p < STATE_PLANES; p++) {
            o.places[p] = bring_to_host(e, chunk, (ot_plane)p, kind == OT_OP_SAVE);
            o.bytes += chunk_bytes(e, chunk, (ot_plane)p);
        }
        ot_builder_add(e->builder, &o);
        if (kind == OT_OP_SAVE)
            continue;
        write_back(e, chunk, o.places);
        if (resident == NONE)
            continue;
        send_weights(e, chunk, o.places[OT_PLANE_WEIGHT], resident);
        if (is_last_own(e, chunk))
            gather(e, o.layer, OT_PLANE_WEIGHT, resident);
    }
}
