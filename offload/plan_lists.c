/* Writes the lists of a plan, operation by operation in program order; what waits for what is the builder's.
 */
#include <stdlib.h>
#include <string.h>

#include "offload/builder.h"
#include "offload/plan_draft.h"

enum { NONE = -1, STATE_PLANES = OT_PLANE_MOMENT2 + 1 };

typedef struct emitter {
    ot_draft *draft;
    const ot_plan_request *request;
    ot_plan *plan;
    ot_builder *builder;
    int updating;      /* with the update of the step before */
    int saving;        /* boundaries, for a backward to come */
    int32_t *x;        /* [M]: device place of each micro-batch's boundary, later of its gradient */
    int32_t *returned; /* [chunk_count]: chunks whose gradient is reduced but not yet taken to the host */
    size_t returned_first, returned_count;
    size_t reduced; /* layers so far */
    /* The boundaries that backward fetches, in its order: which, and where from. */
    size_t *fetches; /* stage * M + micro-batch */
    int32_t *fetch_host;
    size_t fetch_count, fetch_read, fetch_sent, fetch_used;
    int32_t fetch_slots[2];
} emitter;

static ot_operation operation(ot_operation_kind kind)
{
    ot_operation o = {.kind = kind, .stage = NONE, .layer = NONE, .chunk = NONE, .micro_batch = NONE};
    for (int p = 0; p < OT_OPERATION_PLACES; p++)
        o.places[p] = NONE;
    return o;
}

static ot_operation chunk_operation(const emitter *e, ot_operation_kind kind, int32_t chunk)
{
    ot_operation o = operation(kind);
    o.chunk = chunk;
    o.layer = e->plan->chunks[chunk].layer;
    return o;
}

static const ot_place *place_at(const emitter *e, int32_t place)
{
    return &e->plan->places[place];
}

static void move(emitter *e, ot_operation o, int32_t from, int32_t to, uint64_t offset, uint64_t bytes)
{
    o.places[0] = from;
    o.places[1] = to;
    o.offset = offset;
    o.bytes = bytes;
    ot_builder_add(e->builder, &o);
}

static uint64_t chunk_bytes(const emitter *e, int32_t chunk, ot_plane plane)
{
    return ot_plane_bytes(e->request, plane, e->plan->chunks[chunk].count);
}

/* Moves a chunk's plane as a whole. */
static void move_chunk(emitter *e, ot_operation_kind kind, int32_t chunk, ot_plane plane, int32_t from,
                       int32_t to)
{
    move(e, chunk_operation(e, kind, chunk), from, to, 0, chunk_bytes(e, chunk, plane));
}

static void send_weights(emitter *e, int32_t chunk, int32_t source, int32_t target)
{
    uint64_t offset = ot_plane_bytes(e->request, OT_PLANE_WEIGHT, e->plan->chunks[chunk].first);
    move(e, chunk_operation(e, OT_OP_H2D, chunk), source, target, offset,
         chunk_bytes(e, chunk, OT_PLANE_WEIGHT));
}

/* Once each rank has its own slice of a layer's plane on the device. */
static void gather(emitter *e, int32_t layer, ot_plane plane, int32_t place)
{
    uint64_t shard = ot_layer_shard(e->request, (size_t)layer);
    if (e->request->ranks <= 1)
        return;
    ot_operation o = operation(OT_OP_GATHER);
    o.layer = layer;
    o.places[0] = place;
    o.bytes = (uint64_t)(e->request->ranks - 1) * ot_plane_bytes(e->request, plane, shard);
    ot_builder_add(e->builder, &o);
}

static uint32_t own_end(const emitter *e, int32_t layer)
{
    return ot_plan_own_end(e->plan, (size_t)layer);
}

static int is_last_own(const emitter *e, int32_t chunk)
{
    return (uint32_t)chunk + 1 == own_end(e, e->plan->chunks[chunk].layer);
}

/* Whether any chunk of a layer is updated in the step after, or any inside backward. */
static int has_chunk(const emitter *e, int32_t layer, int deferred)
{
    for (uint32_t c = e->plan->layer_chunks[layer]; c < own_end(e, layer); c++)
        if (e->draft->deferred[c] == deferred)
            return 1;
    return 0;
}

static int32_t next_slot(ot_pool *pool)
{
    OT_ASSERT(pool->count > 0);
    return pool->first + (int32_t)(pool->next++ % pool->count);
}

/* Where the host has the chunk's plane: its home, or a slot, into which it is read unless it will be
 * overwritten. */
static int32_t bring_to_host(emitter *e, int32_t chunk, ot_plane plane, int read)
{
    int32_t home = e->plan->chunks[chunk].home[plane];
    if (home == NONE || place_at(e, home)->tier == OT_TIER_HOST)
        return home;
    int32_t slot = next_slot(&e->draft->rings[plane]);
    if (read && place_at(e, home)->tier == OT_TIER_NVME)
        move_chunk(e, OT_OP_READ, chunk, plane, home, slot);
    else if (read) {
        uint64_t first = plane == OT_PLANE_WEIGHT ? e->plan->chunks[chunk].first : 0;
        move(e, chunk_operation(e, OT_OP_D2H, chunk), home, slot, ot_plane_bytes(e->request, plane, first),
             chunk_bytes(e, chunk, plane));
    }
    return slot;
}

/* Takes a chunk's plane from byte `offset` of a device place to its home, or to a slot where it has none. Returns the host
 * place. */
static int32_t take_home(emitter *e, int32_t chunk, ot_plane plane, int32_t source, uint64_t offset)
{
    int32_t home = e->plan->chunks[chunk].home[plane], host = home;
    if (home == NONE || place_at(e, home)->tier == OT_TIER_NVME)
        host = next_slot(&e->draft->rings[plane]);
    move(e, chunk_operation(e, OT_OP_D2H, chunk), source, host, offset, chunk_bytes(e, chunk, plane));
    if (home != NONE && home != host)
        move_chunk(e, OT_OP_WRITE, chunk, plane, host, home);
    return host;
}

/* Takes planes from host slots to their homes; weights whose home is their layer's place are the caller's to send. */
static void write_back(emitter *e, int32_t chunk, const int32_t places[])
{
    for (int p = 0; p < STATE_PLANES; p++) {
        int32_t home = e->plan->chunks[chunk].home[p];
        if (home == NONE || home == places[p] || home == e->plan->resident[e->plan->chunks[chunk].layer])
            continue;
        int on_device = place_at(e, home)->tier == OT_TIER_DEVICE;
        move_chunk(e, on_device ? OT_OP_H2D : OT_OP_WRITE, chunk, (ot_plane)p, places[p], home);
    }
}

/* ---- update ---- */

static int weight_is_read(const emitter *e)
{
    return e->request->weight_dtype == OT_FP32 || e->request->master_format == OT_MASTER_SPLIT;
}

static uint64_t update_bytes(const emitter *e, int32_t chunk)
{
    uint64_t bytes = chunk_bytes(e, chunk, OT_PLANE_GRAD);
    for (int p = 0; p < STATE_PLANES; p++)
        bytes += chunk_bytes(e, chunk, (ot_plane)p) * (p == OT_PLANE_WEIGHT && !weight_is_read(e) ? 1 : 2);
    return bytes;
}

static void measure(emitter *e, int32_t chunk, int pass)
{
    ot_operation o = chunk_operation(e, OT_OP_MEASURE, chunk);
    o.pass = pass;
    o.deferred = 1;
    o.places[4] = bring_to_host(e, chunk, OT_PLANE_GRAD, 1);
    o.bytes = chunk_bytes(e, chunk, OT_PLANE_GRAD);
    ot_builder_add(e->builder, &o);
}

/* Both passes over a layer's gradient, in order of its elements whichever rank's they are. */
static void measure_layer(emitter *e, int32_t layer)
{
    const uint32_t first = e->plan->layer_chunks[layer], own = own_end(e, layer) - first,
                   all = own * (uint32_t)e->plan->shards, before = own * (uint32_t)e->request->rank;
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t c = 0; c < all; c++)
            measure(e, (int32_t)(first + (c + all - before) % all), pass);
}

/* Where this rank's shard of a layer begins. */
static uint64_t own_first(const emitter *e, int32_t layer)
{
    return (uint64_t)e->request->rank * ot_layer_shard(e->request, (size_t)layer);
}

/* The byte at which a chunk's gradient begins in what its layer's is reduced to. */
static uint64_t reduced_offset(const emitter *e, int32_t chunk)
{
    int32_t layer = e->plan->chunks[chunk].layer;
    int slice = e->draft->staging[layer] != e->draft->grad32[layer] && !e->plan->whole[OT_PLANE_GRAD];
    uint64_t first = e->plan->chunks[chunk].first - (slice ? own_first(e, layer) : 0);
    return ot_plane_bytes(e->request, OT_PLANE_GRAD, first);
}

/* All of it stays where it is. */
static void update_on_device(emitter *e, int32_t chunk)
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
static void update_chunk(emitter *e, int32_t chunk, int32_t grad, int32_t target)
{
    int32_t layer = e->plan->chunks[chunk].layer;
    if (ot_plan_on_device(e->plan, (size_t)chunk)) {
        update_on_device(e, chunk);
        return;
    }
    if (e->request->measured && (uint32_t)chunk == e->plan->layer_chunks[layer])
        measure_layer(e, layer);
    ot_operation o = chunk_operation(e, OT_OP_UPDATE, chunk);
    o.lane = OT_LANE_CPU;
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
static uint32_t count_visiting(const emitter *e, size_t visit, int j, int32_t layer)
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
static void prepare_chunk(emitter *e, size_t visit, int j, int32_t chunk)
{
    const ot_draft *draft = e->draft;
    int32_t layer = e->plan->chunks[chunk].layer, target = draft->weights[visit][j];
    int first = draft->first_visit[layer] == (int32_t)visit, fetched = draft->fetched[visit][j],
        gathered = first || !e->saving || !e->plan->whole[OT_PLANE_WEIGHT];
    if (e->plan->chunks[chunk].copy && first) {
        take_home(e, chunk, OT_PLANE_WEIGHT, target,
                  ot_plane_bytes(e->request, OT_PLANE_WEIGHT, e->plan->chunks[chunk].first));
        return;
    }
    if (e->updating && first && draft->deferred[chunk])
        update_chunk(e, chunk, NONE, target);
    else if (fetched)
        send_weights(e, chunk, bring_to_host(e, chunk, OT_PLANE_WEIGHT, 1), target);
    if (is_last_own(e, chunk) && gathered && (fetched || has_chunk(e, layer, 1)))
        gather(e, layer, OT_PLANE_WEIGHT, target);
}

/* A share of what is to be done for a visit: micro-batch `m` of M of all chunks that have to do with it. */
static void prepare(emitter *e, size_t visit, size_t m)
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

/* ---- boundaries ---- */

static ot_operation boundary_operation(ot_operation_kind kind, size_t stage, size_t m)
{
    ot_operation o = operation(kind);
    o.stage = (int32_t)stage;
    o.micro_batch = (int32_t)m;
    return o;
}

/* Saves the boundary in front of `stage`, which lies in a device slot. */
static void save_boundary(emitter *e, size_t stage, size_t m)
{
    int32_t home = e->draft->boundary[stage * e->draft->M + m], host = home;
    uint64_t bytes = e->request->boundary_bytes;
    if (place_at(e, home)->tier == OT_TIER_NVME)
        host = next_slot(&e->draft->rings[OT_PLANE_ACTIVATION]);
    move(e, boundary_operation(OT_OP_D2H, stage, m), e->x[m], host, 0, bytes);
    if (host != home)
        move(e, boundary_operation(OT_OP_WRITE, stage, m), host, home, 0, bytes);
}

/* Where stage `stage`+1 finds what `stage` computes. */
static int32_t boundary_out(emitter *e, size_t stage, size_t m)
{
    int32_t home = e->draft->boundary[(stage + 1) * e->draft->M + m];
    if (home != NONE && place_at(e, home)->tier == OT_TIER_DEVICE)
        return home;
    return next_slot(&e->draft->act_slots);
}

/* Lists what backward fetches. Slots of boundaries that are neither their own nor a gradient's serve in turn.
 */
static void begin_fetches(emitter *e)
{
    ot_draft *draft = e->draft;
    for (size_t s = draft->S - 2; s >= 1; s--)
        for (size_t m = 0; m < draft->M; m++) {
            int32_t home = draft->boundary[s * draft->M + m];
            if (place_at(e, home)->tier != OT_TIER_DEVICE)
                e->fetches[e->fetch_count++] = s * draft->M + m;
        }
    for (size_t i = 0; i < draft->act_spare; i++)
        e->fetch_slots[i] =
            draft->act_slots.first + (int32_t)((draft->act_slots.next + i) % draft->act_slots.count);
}

/* The next boundary comes to the host, if it is not there. */
static void read_boundary(emitter *e)
{
    size_t i = e->fetches[e->fetch_read], M = e->draft->M;
    int32_t home = e->draft->boundary[i], host = home;
    if (place_at(e, home)->tier == OT_TIER_NVME) {
        host = next_slot(&e->draft->rings[OT_PLANE_ACTIVATION]);
        move(e, boundary_operation(OT_OP_READ, i / M, i % M), home, host, 0, e->request->boundary_bytes);
    }
    e->fetch_host[e->fetch_read++] = host;
}

/* The next boundary on the host goes to the device. */
static void send_boundary(emitter *e)
{
    size_t i = e->fetches[e->fetch_sent], M = e->draft->M;
    int32_t slot = e->fetch_slots[e->fetch_sent % e->draft->act_spare];
    move(e, boundary_operation(OT_OP_H2D, i / M, i % M), e->fetch_host[e->fetch_sent], slot, 0,
         e->request->boundary_bytes);
    e->fetch_sent++;
}

/* Fetches as far ahead as there are slots. */
static void fetch_boundaries(emitter *e)
{
    size_t ring = e->draft->rings[OT_PLANE_ACTIVATION].count, ahead = ring > 0 ? ring : 1;
    for (;;) {
        if (e->fetch_read < e->fetch_count && e->fetch_read < e->fetch_sent + ahead)
            read_boundary(e);
        else if (e->fetch_sent < e->fetch_read && e->fetch_sent < e->fetch_used + e->draft->act_spare)
            send_boundary(e);
        else
            return;
    }
}

/* ---- compute ---- */

static ot_operation stage_operation(const emitter *e, ot_operation_kind kind, size_t visit, size_t m)
{
    size_t s = ot_visit_stage(e->draft, visit);
    const ot_plan_stage *stage = &e->request->stages[s];
    ot_operation o = boundary_operation(kind, s, m);
    for (int j = 0; j < OT_STAGE_LAYERS; j++) {
        int l = stage->layers[j];
        if (l < 0)
            continue;
        o.places[j] = e->draft->weights[visit][j];
        if (kind == OT_OP_FORWARD || !e->saving)
            continue;
        o.places[6 + j] = e->draft->grad32[l];
        if (m == 0 && e->draft->first_backward[l] == (int32_t)visit)
            o.zero_grads |= 1 << j;
    }
    o.places[4] = e->plan->data_place;
    o.places[5] = e->plan->workspace_place;
    o.places[8] = e->saving ? e->draft->kept[s * e->draft->M + m] : NONE;
    o.flops = kind == OT_OP_FORWARD || !e->saving ? stage->forward_flops : stage->backward_flops;
    return o;
}

static void forward(emitter *e, size_t visit, size_t m)
{
    ot_operation o = stage_operation(e, OT_OP_FORWARD, visit, m);
    o.places[2] = visit > 0 ? e->x[m] : NONE;
    o.places[3] = e->x[m] = boundary_out(e, visit, m);
    ot_builder_add(e->builder, &o);
    int32_t home = e->draft->boundary[(visit + 1) * e->draft->M + m];
    if (e->saving && home != NONE && home != e->x[m])
        save_boundary(e, visit + 1, m);
}

static void head(emitter *e, size_t visit, size_t m)
{
    if (e->saving && m == 0) {
        begin_fetches(e);
        fetch_boundaries(e);
    }
    ot_operation o = stage_operation(e, OT_OP_HEAD, visit, m);
    o.places[2] = e->x[m];
    o.places[3] = e->saving ? e->x[m] : NONE;
    ot_builder_add(e->builder, &o);
}

static void backward(emitter *e, size_t visit, size_t m)
{
    size_t s = ot_visit_stage(e->draft, visit);
    ot_operation o = stage_operation(e, OT_OP_BACKWARD, visit, m);
    int32_t home = e->draft->boundary[s * e->draft->M + m];
    int fetched = home != NONE && place_at(e, home)->tier != OT_TIER_DEVICE;
    o.places[2] = fetched ? e->fetch_slots[e->fetch_used % e->draft->act_spare] : home;
    o.places[3] = e->x[m];
    ot_builder_add(e->builder, &o);
    e->fetch_used += (size_t)fetched;
    fetch_boundaries(e);
}

/* ---- gradients ---- */

/* Takes one reduced chunk to its home or straight into its update; on the device it is at home. */
static void return_gradient(emitter *e, int32_t chunk)
{
    int32_t layer = e->plan->chunks[chunk].layer, host = NONE;
    if (!ot_plan_on_device(e->plan, (size_t)chunk))
        host = take_home(e, chunk, OT_PLANE_GRAD, e->draft->staging[layer], reduced_offset(e, chunk));
    if (e->plan->chunks[chunk].home[OT_PLANE_GRAD] == NONE)
        update_chunk(e, chunk, host, e->plan->resident[layer]);
    if (e->plan->resident[layer] != NONE && is_last_own(e, chunk) && has_chunk(e, layer, 0))
        gather(e, layer, OT_PLANE_WEIGHT, e->plan->resident[layer]);
}

/* With the update inside backward the chunks of a layer are spread over the micro-batches of the next visit.
 */
static void return_gradients(emitter *e, size_t m)
{
    size_t left = e->draft->M - m, count = (e->returned_count - e->returned_first + left - 1) / left;
    for (size_t i = 0; i < count; i++)
        return_gradient(e, e->returned[e->returned_first++]);
}

static void reduce(emitter *e, int32_t layer)
{
    uint64_t peers = (uint64_t)ot_rank_count(e->request->ranks) - 1;
    ot_operation o = operation(peers > 0 ? OT_OP_SCATTER : OT_OP_REDUCE);
    int32_t sums = e->draft->sums[e->reduced++ % 2];
    o.layer = layer;
    o.places[0] = e->draft->grad32[layer];
    o.places[1] = e->draft->staging[layer];
    o.places[2] = sums;
    o.offset = own_first(e, layer) * sizeof(float);
    o.bytes = peers * ot_layer_shard(e->request, (size_t)layer) * sizeof(float);
    ot_builder_add(e->builder, &o);
    ot_operation copy = operation(OT_OP_D2H);
    copy.layer = layer;
    move(e, copy, sums, e->plan->partials[layer], 0, place_at(e, e->plan->partials[layer])->bytes);
    int whole = e->plan->whole[OT_PLANE_GRAD];
    if (whole)
        gather(e, layer, OT_PLANE_GRAD, e->draft->staging[layer]);
    uint32_t end = whole ? e->plan->layer_chunks[layer + 1] : own_end(e, layer);
    for (uint32_t c = e->plan->layer_chunks[layer]; c < end; c++)
        e->returned[e->returned_count++] = (int32_t)c;
    if (!e->request->update_in_backward)
        return_gradients(e, e->draft->M - 1);
}

/* ---- lists ---- */

static void step(emitter *e, size_t visits)
{
    ot_draft *draft = e->draft;
    size_t depth = (size_t)draft->choice.prefetch_depth, M = draft->M;
    if (e->plan->data_place != NONE)
        move(e, operation(OT_OP_DATA), NONE, e->plan->data_place, 0, e->request->data_bytes);
    for (size_t v = 0; v < depth && v < visits; v++)
        for (size_t m = 0; m < M; m++)
            prepare(e, v, m);
    for (size_t v = 0; v < visits; v++) {
        for (size_t m = 0; m < M; m++) {
            if (v + depth < visits)
                prepare(e, v + depth, m);
            return_gradients(e, m);
            if (v + 1 < draft->S)
                forward(e, v, m);
            else if (v + 1 == draft->S)
                head(e, v, m);
            else
                backward(e, v, m);
        }
        for (size_t l = 0; e->saving && l < ot_draft_layers(draft); l++)
            if (draft->last_backward[l] == (int32_t)v)
                reduce(e, (int32_t)l);
    }
    return_gradients(e, M - 1);
}

static void drain(emitter *e)
{
    for (size_t c = 0; c < e->plan->chunk_count; c++) {
        int32_t chunk = (int32_t)c, layer = e->plan->chunks[c].layer, resident = e->plan->resident[layer];
        if (e->draft->deferred[c] && !e->plan->chunks[c].copy)
            update_chunk(e, chunk, NONE, resident);
        if (resident != NONE && is_last_own(e, chunk) && has_chunk(e, layer, 1))
            gather(e, layer, OT_PLANE_WEIGHT, resident);
    }
}

static void load_or_save(emitter *e, ot_operation_kind kind)
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

static void write_list(emitter *e, ot_list_kind kind)
{
    int steps = kind == OT_LIST_FIRST || kind == OT_LIST_STEADY;
    if (e->request->inference && steps)
        return;
    switch (kind) {
    case OT_LIST_LOAD:
    case OT_LIST_SAVE:
        load_or_save(e, kind == OT_LIST_LOAD ? OT_OP_LOAD : OT_OP_SAVE);
        break;
    case OT_LIST_DRAIN:
        drain(e);
        break;
    case OT_LIST_FIRST:
    case OT_LIST_STEADY:
        e->saving = 1;
        e->updating = kind == OT_LIST_STEADY;
        step(e, e->draft->V);
        break;
    case OT_LIST_EVAL:
    case OT_LIST_LOGITS:
        step(e, e->draft->S);
        break;
    case OT_LISTS:
        break;
    }
}

ot_status ot_draft_list(ot_draft *draft, ot_list_kind kind, ot_list *out)
{
    emitter e = {.draft = draft, .request = draft->request, .plan = draft->plan};
    size_t chunks = draft->plan->chunk_count, boundaries = draft->S * draft->M, M = draft->M;
    if (kind == OT_LIST_LOGITS)
        draft->M = 1;
    for (int p = 0; p < OT_PLANES; p++)
        draft->rings[p].next = 0;
    draft->act_slots.next = 0;
    e.x = malloc(draft->M * sizeof *e.x);
    e.returned = malloc(chunks * sizeof *e.returned);
    e.fetches = malloc(boundaries * sizeof *e.fetches);
    e.fetch_host = malloc(boundaries * sizeof *e.fetch_host);
    ot_status status;
    if (e.x == NULL || e.returned == NULL || e.fetches == NULL || e.fetch_host == NULL)
        OT_TRY_GOTO(ot_fail(OT_ERR_INTERNAL, "no memory for a list of %zu chunks", chunks), out);
    int is_step = kind == OT_LIST_FIRST || kind == OT_LIST_STEADY;
    size_t operations = is_step ? ot_operations_most(draft->request, chunks) : chunks;
    OT_TRY_GOTO(ot_builder_open(draft->plan->place_count, operations, !draft->request->overlap, &e.builder),
                out);
    write_list(&e, kind);
    status = ot_builder_finish(e.builder, out);
out:
    draft->M = M;
    ot_builder_close(e.builder);
    free(e.x);
    free(e.returned);
    free(e.fetches);
    free(e.fetch_host);
    return status;
}
