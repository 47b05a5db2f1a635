/* A step in small, for the mover's tests. */
#include "tests/support/mover.h"

typedef struct pipeline {
    int32_t weight[8], moment[8], activation[8]; /* nvme */
    int32_t host_weight[2], host_moment[2], host_activation[2], host_gradient[8];
    int32_t slot[2], boundary[2], boundary_gradient, gradient, partials, data, workspace;
} pipeline;

static ot_operation operation_of(ot_operation_kind kind, int layer)
{
    ot_operation operation = {.kind = kind, .layer = layer, .stage = layer, .chunk = layer, .micro_batch = 0};
    for (int i = 0; i < OT_OPERATION_PLACES; i++)
        operation.places[i] = -1;
    return operation;
}

static void place_pipeline(rig *r, pipeline *p, int layers, uint64_t bytes)
{
    for (int l = 0; l < layers; l++) {
        p->weight[l] = rig_home(r, OT_PLANE_WEIGHT, bytes);
        p->moment[l] = rig_home(r, OT_PLANE_MOMENT1, bytes);
        p->activation[l] = rig_place(r, OT_TIER_NVME, OT_PLANE_ACTIVATION, bytes);
        p->host_gradient[l] = rig_place(r, OT_TIER_HOST, OT_PLANE_GRAD, bytes);
    }
    for (int i = 0; i < 2; i++) {
        p->host_weight[i] = rig_place(r, OT_TIER_HOST, OT_PLANE_WEIGHT, bytes);
        p->host_moment[i] = rig_place(r, OT_TIER_HOST, OT_PLANE_MOMENT1, bytes);
        p->host_activation[i] = rig_place(r, OT_TIER_HOST, OT_PLANE_ACTIVATION, bytes);
        p->slot[i] = rig_place(r, OT_TIER_DEVICE, OT_PLANE_WEIGHT, 2 * bytes);
        p->boundary[i] = rig_place(r, OT_TIER_DEVICE, OT_PLANE_ACTIVATION, bytes);
    }
    p->boundary_gradient = rig_place(r, OT_TIER_DEVICE, OT_PLANE_ACTIVATION, bytes);
    p->gradient = rig_place(r, OT_TIER_DEVICE, OT_PLANE_GRAD, bytes);
    p->partials = rig_place(r, OT_TIER_DEVICE, OT_PLANE_GRAD, 64);
    p->data = rig_place(r, OT_TIER_DEVICE, OT_PLANE_ACTIVATION, RIG_DATA_BYTES);
    p->workspace = rig_place(r, OT_TIER_DEVICE, OT_PLANE_ACTIVATION, bytes);
}

static void load_layer(rig *r, const pipeline *p, int l)
{
    ot_operation load = operation_of(OT_OP_LOAD, l);
    load.places[0] = p->host_weight[l % 2];
    load.places[2] = p->host_moment[l % 2];
    rig_add(r, OT_LIST_LOAD, load);
    rig_move(r, OT_LIST_LOAD, OT_OP_WRITE, p->host_weight[l % 2], p->weight[l], 0);
    rig_move(r, OT_LIST_LOAD, OT_OP_WRITE, p->host_moment[l % 2], p->moment[l], 0);
}

static void update_and_forward(rig *r, const pipeline *p, int l, uint64_t half)
{
    int i = l % 2;
    rig_move(r, OT_LIST_STEADY, OT_OP_READ, p->weight[l], p->host_weight[i], 0);
    rig_move(r, OT_LIST_STEADY, OT_OP_READ, p->moment[l], p->host_moment[i], 0);
    ot_operation update = operation_of(OT_OP_UPDATE, l);
    update.places[0] = p->host_weight[i];
    update.places[2] = p->host_moment[i];
    update.places[4] = p->host_gradient[l];
    update.bytes = 3 * half;
    rig_add(r, OT_LIST_STEADY, update);
    rig_move(r, OT_LIST_STEADY, OT_OP_WRITE, p->host_weight[i], p->weight[l], 0);
    rig_move(r, OT_LIST_STEADY, OT_OP_WRITE, p->host_moment[i], p->moment[l], 0);
    rig_move(r, OT_LIST_STEADY, OT_OP_H2D, p->host_weight[i], p->slot[i], l % 3 == 0 ? half : 0);
    ot_operation forward = operation_of(OT_OP_FORWARD, l);
    forward.places[0] = p->slot[i];
    forward.places[2] = p->boundary[i];
    forward.places[3] = p->boundary[1 - i];
    forward.places[4] = p->data;
    forward.places[5] = p->workspace;
    rig_add(r, OT_LIST_STEADY, forward);
    rig_move(r, OT_LIST_STEADY, OT_OP_D2H, p->boundary[1 - i], p->host_activation[i], 0);
    rig_move(r, OT_LIST_STEADY, OT_OP_WRITE, p->host_activation[i], p->activation[l], 0);
}

static void backward(rig *r, const pipeline *p, int l)
{
    int i = l % 2;
    rig_move(r, OT_LIST_STEADY, OT_OP_READ, p->weight[l], p->host_weight[i], 0);
    rig_move(r, OT_LIST_STEADY, OT_OP_H2D, p->host_weight[i], p->slot[i], 0);
    rig_move(r, OT_LIST_STEADY, OT_OP_READ, p->activation[l], p->host_activation[i], 0);
    rig_move(r, OT_LIST_STEADY, OT_OP_H2D, p->host_activation[i], p->boundary[i], 0);
    for (int m = 0; m < 2; m++) {
        ot_operation back = operation_of(OT_OP_BACKWARD, l);
        back.micro_batch = m;
        back.places[0] = p->slot[i];
        back.places[2] = p->boundary[i];
        back.places[3] = p->boundary_gradient;
        back.places[5] = p->workspace;
        back.places[6] = p->gradient;
        back.zero_grads = m == 0;
        rig_add(r, OT_LIST_STEADY, back);
    }
    ot_operation reduce = operation_of(OT_OP_REDUCE, l);
    reduce.places[0] = reduce.places[1] = p->gradient;
    reduce.places[2] = p->partials;
    rig_add(r, OT_LIST_STEADY, reduce);
    rig_move(r, OT_LIST_STEADY, OT_OP_D2H, p->gradient, p->host_gradient[l], 0);
}

static void save_layer(rig *r, const pipeline *p, int l)
{
    rig_move(r, OT_LIST_SAVE, OT_OP_READ, p->weight[l], p->host_weight[l % 2], 0);
    rig_move(r, OT_LIST_SAVE, OT_OP_READ, p->moment[l], p->host_moment[l % 2], 0);
    ot_operation save = operation_of(OT_OP_SAVE, l);
    save.places[0] = p->host_weight[l % 2];
    save.places[2] = p->host_moment[l % 2];
    rig_add(r, OT_LIST_SAVE, save);
}

rig *rig_pipeline(rig_waits waits, int layers, uint64_t bytes)
{
    pipeline p;
    rig *r = rig_open(waits);
    place_pipeline(r, &p, layers, bytes);
    for (int l = 0; l < layers; l++)
        load_layer(r, &p, l);
    ot_operation data = operation_of(OT_OP_DATA, 0);
    data.places[1] = p.data;
    data.bytes = RIG_DATA_BYTES;
    rig_add(r, OT_LIST_STEADY, data);
    for (int l = 0; l < layers; l++)
        update_and_forward(r, &p, l, bytes);
    for (int l = layers; l-- > 0;)
        backward(r, &p, l);
    for (int l = 0; l < layers; l++)
        save_layer(r, &p, l);
    return r;
}
