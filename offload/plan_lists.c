/* Writes the lists of a plan, operation by operation in program order; what waits for what is the builder's. */
#include <stdlib.h>

#include "offload/plan_emitter.h"

enum { NONE = -1 };

/* ---- boundaries ---- */

static ot_operation boundary_operation(ot_operation_kind kind, size_t stage, size_t m)
{
    ot_operation o = ot_operation_of(kind);
    o.stage = (int32_t)stage;
    o.micro_batch = (int32_t)m;
    return o;
}

/* Saves the boundary in front of `stage`, which lies in a device slot. */
static void save_boundary(ot_emitter *e, size_t stage, size_t m)
{
    int32_t home = e->draft->boundary[stage * e->draft->M + m], host = home;
    uint64_t bytes = e->request->boundary_bytes;
    if (ot_emitter_tier(e, home) == OT_TIER_NVME)
        host = ot_pool_next(&e->draft->rings[OT_PLANE_ACTIVATION]);
    ot_emitter_move(e, boundary_operation(OT_OP_D2H, stage, m), e->x[m], host, 0, bytes);
    if (host != home)
        ot_emitter_move(e, boundary_operation(OT_OP_WRITE, stage, m), host, home, 0, bytes);
}

/* Where stage `stage`+1 finds what `stage` computes. */
static int32_t boundary_out(ot_emitter *e, size_t stage, size_t m)
{
    int32_t home = e->draft->boundary[(stage + 1) * e->draft->M + m];
    if (home != NONE && ot_emitter_tier(e, home) == OT_TIER_DEVICE)
        return home;
    return ot_pool_next(&e->draft->act_slots);
}

/* Lists what backward fetches. Slots of boundaries that are neither their own nor a gradient's serve in turn. */
static void begin_fetches(ot_emitter *e)
{
    ot_draft *draft = e->draft;
    for (size_t s = draft->S - 2; s >= 1; s--)
        for (size_t m = 0; m < draft->M; m++) {
            int32_t home = draft->boundary[s * draft->M + m];
            if (ot_emitter_tier(e, home) != OT_TIER_DEVICE)
                e->fetches[e->fetch_count++] = s * draft->M + m;
        }
    for (size_t i = 0; i < draft->act_spare; i++)
        e->fetch_slots[i] =
            draft->act_slots.first + (int32_t)((draft->act_slots.next + i) % draft->act_slots.count);
}

/* The next boundary comes to the host, if it is not there. */
static void read_boundary(ot_emitter *e)
{
    size_t i = e->fetches[e->fetch_read], M = e->draft->M;
    int32_t home = e->draft->boundary[i], host = home;
    if (ot_emitter_tier(e, home) == OT_TIER_NVME) {
        host = ot_pool_next(&e->draft->rings[OT_PLANE_ACTIVATION]);
        ot_emitter_move(e, boundary_operation(OT_OP_READ, i / M, i % M), home, host, 0,
                        e->request->boundary_bytes);
    }
    e->fetch_host[e->fetch_read++] = host;
}

/* The next boundary on the host goes to the device. */
static void send_boundary(ot_emitter *e)
{
    size_t i = e->fetches[e->fetch_sent], M = e->draft->M;
    int32_t slot = e->fetch_slots[e->fetch_sent % e->draft->act_spare];
    ot_emitter_move(e, boundary_operation(OT_OP_H2D, i / M, i % M), e->fetch_host[e->fetch_sent], slot, 0,
                    e->request->boundary_bytes);
    e->fetch_sent++;
}

/* Fetches as far ahead as there are slots. */
static void fetch_boundaries(ot_emitter *e)
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

static ot_operation stage_operation(const ot_emitter *e, ot_operation_kind kind, size_t visit, size_t m)
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

static void forward(ot_emitter *e, size_t visit, size_t m)
{
    ot_operation o = stage_operation(e, OT_OP_FORWARD, visit, m);
    o.places[2] = visit > 0 ? e->x[m] : NONE;
    o.places[3] = e->x[m] = boundary_out(e, visit, m);
    ot_builder_add(e->builder, &o);
    int32_t home = e->draft->boundary[(visit + 1) * e->draft->M + m];
    if (e->saving && home != NONE && home != e->x[m])
        save_boundary(e, visit + 1, m);
}

static void head(ot_emitter *e, size_t visit, size_t m)
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

static void backward(ot_emitter *e, size_t visit, size_t m)
{
    size_t s = ot_visit_stage(e->draft, visit);
    ot_operation o = stage_operation(e, OT_OP_BACKWARD, visit, m);
    int32_t home = e->draft->boundary[s * e->draft->M + m];
    int fetched = home != NONE && ot_emitter_tier(e, home) != OT_TIER_DEVICE;
    o.places[2] = fetched ? e->fetch_slots[e->fetch_used % e->draft->act_spare] : home;
    o.places[3] = e->x[m];
    ot_builder_add(e->builder, &o);
    e->fetch_used += (size_t)fetched;
    fetch_boundaries(e);
}

/* ---- lists ---- */

static void step(ot_emitter *e, size_t visits)
{
    ot_draft *draft = e->draft;
    size_t depth = (size_t)draft->choice.prefetch_depth, M = draft->M;
    if (e->plan->data_place != NONE)
        ot_emitter_move(e, ot_operation_of(OT_OP_DATA), NONE, e->plan->data_place, 0, e->request->data_bytes);
    for (size_t v = 0; v < depth && v < visits; v++)
        for (size_t m = 0; m < M; m++)
            ot_emitter_prepare(e, v, m);
    for (size_t v = 0; v < visits; v++) {
        for (size_t m = 0; m < M; m++) {
            if (v + depth < visits)
                ot_emitter_prepare(e, v + depth, m);
            ot_emitter_return_gradients(e, m);
            if (v + 1 < draft->S)
                forward(e, v, m);
            else if (v + 1 == draft->S)
                head(e, v, m);
            else
                backward(e, v, m);
        }
        for (size_t l = 0; e->saving && l < ot_draft_layers(draft); l++)
            if (draft->last_backward[l] == (int32_t)v)
                ot_emitter_reduce(e, (int32_t)l);
    }
    ot_emitter_return_gradients(e, M - 1);
}

static void write_list(ot_emitter *e, ot_list_kind kind)
{
    int steps = kind == OT_LIST_FIRST || kind == OT_LIST_STEADY;
    if (e->request->inference && steps)
        return;
    switch (kind) {
    case OT_LIST_LOAD:
    case OT_LIST_SAVE:
        ot_emitter_load_or_save(e, kind == OT_LIST_LOAD ? OT_OP_LOAD : OT_OP_SAVE);
        break;
    case OT_LIST_DRAIN:
        ot_emitter_drain(e);
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
    ot_emitter e = {.draft = draft, .request = draft->request, .plan = draft->plan};
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
