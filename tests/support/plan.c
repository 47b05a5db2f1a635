/* Models and machines for tests of plans. */
#include "tests/support/plan.h"

#include <string.h>

uint64_t draw(uint64_t *seed, uint64_t limit)
{
    *seed += 0x9e3779b97f4a7c15u;
    uint64_t x = *seed;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return (x ^ (x >> 31)) % limit;
}

static void add_layer(model *m, uint64_t params)
{
    m->layers[m->request.layer_count++] = (ot_plan_layer){"layer", params};
}

static void add_stage(model *m, int first, int second, double flops)
{
    m->stages[m->request.stage_count++] = (ot_plan_stage){"stage", {first, second}, flops, 4 * flops};
}

static void begin(model *m)
{
    memset(m, 0, sizeof *m);
    m->request.layers = m->layers;
    m->request.stages = m->stages;
    m->request.overlap = 1;
    for (int tier = 0; tier < OT_TIERS; tier++)
        m->request.budget[tier] = UINT64_MAX;
    ot_placement *placements[] = {&m->request.weights, &m->request.states, &m->request.grads,
                                  &m->request.acts};
    for (int p = 0; p < 4; p++)
        placements[p]->automatic = 1;
}

static void draw_placement(ot_placement *placement, int fastest, uint64_t *seed)
{
    if (draw(seed, 2))
        return;
    placement->automatic = 0;
    placement->tier = (ot_tier)(fastest + (int)draw(seed, (uint64_t)(OT_TIERS - fastest)));
    placement->share = placement->tier == OT_TIER_NVME || draw(seed, 2) ? 1 : (double)draw(seed, 101) / 100;
}

static void draw_formats(ot_plan_request *r, uint64_t *seed)
{
    static const ot_dtype weights[] = {OT_FP32, OT_BF16, OT_FP16, OT_BF16};
    static const ot_dtype moments[] = {OT_FP32, OT_BF16, OT_INT8};
    r->weight_dtype = weights[draw(seed, 4)];
    r->master_format = r->weight_dtype == OT_BF16 && draw(seed, 2) ? OT_MASTER_SPLIT : OT_MASTER_FP32;
    r->moment1_dtype = moments[draw(seed, 3)];
    r->moment2_dtype = moments[draw(seed, 3)];
    r->moments = draw(seed, 4) ? 2 : (int)draw(seed, 2);
    r->grad_dtype = draw(seed, 3) ? r->weight_dtype : OT_FP32;
}

void model_random(model *m, uint64_t seed)
{
    begin(m);
    ot_plan_request *r = &m->request;
    int blocks = (int)draw(&seed, 10), tied = (int)draw(&seed, 2), norm_apart = tied || draw(&seed, 2);
    uint64_t largest = draw(&seed, 2) ? 400000 : 1000;
    add_layer(m, 1 + draw(&seed, 2 * largest));
    uint64_t block = 1 + draw(&seed, largest);
    int same = (int)draw(&seed, 2);
    for (int b = 0; b < blocks; b++)
        add_layer(m, same ? block : 1 + draw(&seed, largest));
    if (norm_apart)
        add_layer(m, 1 + draw(&seed, 5000));
    if (!tied)
        add_layer(m, 1 + draw(&seed, 2 * largest));
    add_stage(m, 0, -1, 1e6);
    for (int b = 0; b < blocks; b++)
        add_stage(m, 1 + b, -1, (double)(1 + draw(&seed, 1000)) * 1e9);
    add_stage(m, 1 + blocks, tied ? 0 : norm_apart ? 2 + blocks : -1, 1e10);
    r->micro_batches = 1 + draw(&seed, 4);
    r->boundary_bytes = 1 + draw(&seed, 20000);
    r->data_bytes = draw(&seed, 5) ? 1 + draw(&seed, 10000) : 0;
    r->workspace_bytes = draw(&seed, 5) ? draw(&seed, 100000) : 0;
    r->device_fixed_bytes = draw(&seed, 10000);
    r->host_fixed_bytes = draw(&seed, 10000);
    draw_formats(r, &seed);
    draw_placement(&r->weights, OT_TIER_DEVICE, &seed);
    draw_placement(&r->states, OT_TIER_DEVICE, &seed);
    draw_placement(&r->grads, OT_TIER_HOST, &seed);
    draw_placement(&r->acts, OT_TIER_DEVICE, &seed);
    r->prefetch_depth = draw(&seed, 2) ? (int)draw(&seed, 6) : 0;
    r->chunk_params = draw(&seed, 3) * OT_SUM_BLOCK;
    r->ring = draw(&seed, 2) ? 2 + (int)draw(&seed, 5) : 0;
    r->overlap = draw(&seed, 8) > 0;
    r->update_in_backward = draw(&seed, 3) == 0;
    r->rates.nvme_half_duplex = (int)draw(&seed, 2);
    for (int lane = 0; lane < OT_LANES; lane++)
        r->rates.lane[lane] = (double)(1 + draw(&seed, 20)) * (lane == OT_LANE_COMPUTE ? 1e13 : 1e9);
    r->rates.device_memory = (double)(1 + draw(&seed, 20)) * 1e10;
    r->measured = !r->update_in_backward && draw(&seed, 4) == 0 &&
                  (r->states.automatic || r->states.tier != OT_TIER_DEVICE || r->states.share <= 0);
    r->kept_bytes = draw(&seed, 3) ? 0 : 1 + draw(&seed, 50000);
}

void model_7b(model *m, size_t tokens)
{
    enum { LAYERS = 32 };
    const double C = 4096, F = 11008, T = 2048, V = 32000;
    begin(m);
    ot_plan_request *r = &m->request;
    double block = 4 * C * C + 3 * C * F, forward = (2 * block + 2 * T * C) * T;
    add_layer(m, (uint64_t)(V * C));
    for (int l = 0; l < LAYERS; l++)
        add_layer(m, (uint64_t)(block + 2 * C));
    add_layer(m, (uint64_t)(V * C + C));
    add_stage(m, 0, -1, 0);
    for (int l = 0; l < LAYERS; l++) {
        add_stage(m, 1 + l, -1, forward);
        m->stages[r->stage_count - 1].backward_flops = 3 * forward - 2 * C * F * T;
    }
    add_stage(m, 1 + LAYERS, -1, 2 * V * C * T);
    m->stages[r->stage_count - 1].backward_flops = 6 * V * C * T;
    r->micro_batches = tokens / 2048;
    r->boundary_bytes = (uint64_t)(2 * C * T);
    r->data_bytes = tokens * 16;
    r->workspace_bytes = 1 << 30;
    r->device_fixed_bytes = 600 << 20;
    r->host_fixed_bytes = 1 << 30;
    r->weight_dtype = r->grad_dtype = OT_BF16;
    r->master_format = OT_MASTER_SPLIT;
    r->moments = 2;
}

void machine_4090(model *m, double host_gb, int drives)
{
    ot_plan_request *r = &m->request;
    r->budget[OT_TIER_DEVICE] = (uint64_t)24 << 30;
    r->budget[OT_TIER_HOST] = (uint64_t)(host_gb * 1e9);
    r->budget[OT_TIER_NVME] = drives > 0 ? (uint64_t)2e12 : 0;
    r->rates = (ot_rates){.nvme_half_duplex = 1};
    r->rates.lane[OT_LANE_NVME_READ] = 7e9 * drives;
    r->rates.lane[OT_LANE_NVME_WRITE] = 6e9 * drives;
    r->rates.lane[OT_LANE_H2D] = r->rates.lane[OT_LANE_D2H] = 25e9;
    r->rates.lane[OT_LANE_COMPUTE] = 145e12;
    r->rates.lane[OT_LANE_CPU] = 60e9;
    r->rates.device_memory = 900e9;
}
