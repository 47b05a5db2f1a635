/* From a training's description to what the plan is asked. */
#include <stdlib.h>

#include "engine/compute.h"
#include "engine/factored.h"
#include "engine/trainer.h"
#include "engine/training.h"

/* Every chunk reads the whole output matrix and adds to its whole gradient, and a short last one does so for little: few
 * chunks, of even size. */
static size_t choose_loss_chunk(const ot_training *training)
{
    enum { LOGITS_BYTES = 128 << 20 /* of one chunk, about */, STEP = 64 };
    uint64_t row = training->model->config.V * ot_dtype_bytes(training->dtype);
    size_t tokens = training->B * training->T, most = row < LOGITS_BYTES ? (size_t)(LOGITS_BYTES / row) : 1;
    size_t chunks = (tokens + most - 1) / most, even = (tokens + chunks - 1) / chunks;
    return (even + STEP - 1) / STEP * STEP;
}

ot_compute ot_training_compute(const ot_training *training, ot_device *device)
{
    size_t tokens = training->B * training->T,
           chunk = training->loss_chunk > 0 ? training->loss_chunk : choose_loss_chunk(training);
    return (ot_compute){
        .model = training->model,
        .kernels = device != NULL ? ot_device_kernels(device) : NULL,
        .device = device,
        .dtype = training->dtype,
        .B = training->B,
        .T = training->T,
        .loss_chunk = chunk < tokens ? chunk : tokens,
        .forward_only = training->inference,
        .recompute = training->recompute,
    };
}

int ot_training_moments(const ot_training *training)
{
    if (training->optimizer == OT_OPTIMIZER_ADAFACTOR) /* whose moments are no planes: factored.h */
        return 0;
    return training->optimizer == OT_OPTIMIZER_SGD || training->optimizer == OT_OPTIMIZER_LION ? 1 : 2;
}

uint64_t ot_training_data_bytes(const ot_training *training)
{
    return (uint64_t)training->M * training->B * training->T * OT_BATCH_PARTS * sizeof(int32_t);
}

uint64_t ot_training_rope_bytes(const ot_training *training)
{
    const ot_model_config *config = &training->model->config;
    return config->family == OT_FAMILY_LLAMA ? ot_rope_table_bytes(config->HD, training->T) : 0;
}

uint64_t ot_training_logits_bytes(const ot_training *training)
{
    return ot_round_up(training->model->config.V * sizeof(float), OT_PAGE_BYTES);
}

int ot_training_is_factored(const ot_training *training)
{
    return training->optimizer == OT_OPTIMIZER_ADAFACTOR && !training->inference;
}

int ot_training_drops_remainder(const ot_training *training)
{
    return training->inference && training->dtype == OT_BF16;
}

uint64_t ot_training_shard(const ot_training *training, size_t layer)
{
    return ot_shard_params(training->model->layers[layer].params, training->ranks);
}

uint64_t ot_training_present(const ot_training *training, size_t layer, uint64_t first, uint64_t count)
{
    uint64_t params = training->model->layers[layer].params;
    return first >= params ? 0 : params - first < count ? params - first : count;
}

uint64_t ot_training_incoming_bytes(const ot_training *training, uint64_t chunk_params)
{
    if (training->ranks <= 1 || training->inference || ot_training_moments(training) == 0)
        return 0;
    uint64_t scales = ot_moment_scales(chunk_params) / OT_MOMENT_BLOCK * sizeof(float);
    return ot_round_up(ot_moment_scales(chunk_params) * ot_dtype_bytes(training->state_dtype) + scales,
                       OT_PAGE_BYTES);
}

/* The trainer's own arenas, rounded as arenas are. */
uint64_t ot_training_device_bytes(const ot_training *training)
{
    return ot_round_up(ot_training_rope_bytes(training) + ot_training_logits_bytes(training) +
                           2 * OT_PAGE_BYTES,
                       OT_HUGE_PAGE_BYTES);
}

uint64_t ot_training_host_bytes(const ot_training *training, uint64_t chunk_params)
{
    uint64_t bytes =
        ot_training_data_bytes(training) + ot_training_rope_bytes(training) + chunk_params * sizeof(float);
    if (ot_training_drops_remainder(training))
        bytes += chunk_params * sizeof(int16_t);
    if (ot_training_is_factored(training))
        bytes += ot_factored_lay_out(training->model, chunk_params, NULL, &(ot_factored){0});
    bytes += 2 * ot_training_incoming_bytes(training, chunk_params);
    return ot_round_up(bytes + 6 * OT_PAGE_BYTES, OT_HUGE_PAGE_BYTES);
}

/* Without anything that needs the whole gradient first, a layer is updated as soon as its own gradient is complete. */
static int may_update_in_backward(const ot_training *training)
{
    int scaled = training->dtype == OT_FP16;
    int whole_layer = ot_training_is_factored(training);
    return training->max_grad_norm == 0 && !scaled && !training->skip_not_finite && !training->inference &&
           !whole_layer;
}

static void describe_stages(const ot_training *training, ot_plan_layer layers[], ot_plan_stage stages[])
{
    const ot_model *model = training->model;
    ot_model_flops flops = ot_model_count_flops(model, training->B, training->T, training->recompute);
    for (size_t l = 0; l < model->layer_count; l++) {
        layers[l] = (ot_plan_layer){model->layers[l].name, model->layers[l].params};
        stages[l] =
            (ot_plan_stage){model->layers[l].name, {(int)l, -1}, flops.block_forward, flops.block_backward};
    }
    stages[0].forward_flops = stages[0].backward_flops = 0;
    ot_plan_stage *head = &stages[model->layer_count - 1];
    head->forward_flops = flops.head_forward;
    head->backward_flops = flops.head;
    if (model->config.tied)
        head->layers[1] = 0;
}

/* How many chunks a layer is cut into, unless told: enough for a pipeline, none tiny. */
static uint64_t choose_chunk(const ot_training *training)
{
    enum { LARGEST = 4 << 20, PER_BLOCK = 4 };
    if (training->chunk_params > 0)
        return ot_round_up(training->chunk_params, OT_SUM_BLOCK);
    uint64_t block = ot_training_shard(training, 1) / PER_BLOCK;
    uint64_t chunk = ot_round_up(block < LARGEST ? block : LARGEST, OT_SUM_BLOCK);
    return chunk > 0 ? chunk : OT_SUM_BLOCK;
}

/* What the device takes of its cap before anything is placed on it. */
static uint64_t device_own_bytes(const ot_training *training)
{
    ot_device_info info = {.own_bytes = 0};
    if (training->sizing_device != NULL)
        ot_device_query(training->sizing_device, &info);
    return info.own_bytes;
}

static int zero_stage(const ot_training *training)
{
    return training->zero != 0 ? training->zero : ot_training_is_factored(training) ? 1 : 3;
}

/* `layers` and `stages` have room for layer_count entries each, which the request points to. */
static void make_request(const ot_training *training, ot_plan_layer layers[], ot_plan_stage stages[],
                         ot_plan_request *request)
{
    describe_stages(training, layers, stages);
    ot_compute compute = ot_training_compute(training, training->sizing_device);
    uint64_t chunk = choose_chunk(training);
    *request = (ot_plan_request){
        .layers = layers,
        .layer_count = training->model->layer_count,
        .stages = stages,
        .stage_count = training->model->layer_count,
        .micro_batches = training->M,
        .boundary_bytes =
            (uint64_t)training->B * training->T * training->model->config.C * ot_dtype_bytes(training->dtype),
        .kept_bytes = training->inference ? 0 : ot_compute_kept(&compute),
        .data_bytes = ot_training_data_bytes(training),
        .workspace_bytes = ot_compute_workspace(&compute),
        /* What the plan's own arenas are rounded up by is in it, too. */
        .device_fixed_bytes =
            ot_training_device_bytes(training) + device_own_bytes(training) + OT_HUGE_PAGE_BYTES,
        .host_fixed_bytes = ot_training_host_bytes(training, chunk) + OT_HUGE_PAGE_BYTES,
        .weight_dtype = training->dtype,
        .master_format = training->dtype == OT_BF16 ? OT_MASTER_SPLIT : OT_MASTER_FP32,
        .moment1_dtype = training->state_dtype,
        .moment2_dtype = training->state_dtype,
        .moments = ot_training_moments(training),
        .measured = ot_training_is_factored(training),
        .grad_dtype = training->grad_dtype,
        .ranks = training->ranks,
        .rank = training->rank,
        .zero = zero_stage(training),
        .weights = training->weights,
        .states = training->states,
        .grads = training->grads,
        .acts = training->acts,
        .prefetch_depth = training->prefetch_depth,
        .chunk_params = chunk,
        .ring = training->ring,
        .overlap = training->overlap,
        .update_in_backward = may_update_in_backward(training),
        .inference = training->inference,
        .rates = training->rates,
    };
    for (int tier = 0; tier < OT_TIERS; tier++)
        request->budget[tier] = training->budget[tier];
}

typedef ot_status (*plan_call)(const ot_plan_request *request, ot_plan **out);

static ot_status ask_plan(const ot_training *training, plan_call call, ot_plan **out)
{
    size_t count = training->model->layer_count;
    ot_plan_layer *layers = calloc(count, sizeof *layers);
    ot_plan_stage *stages = calloc(count, sizeof *stages);
    ot_status status;
    if (layers == NULL || stages == NULL)
        OT_TRY_GOTO(ot_fail(OT_ERR_INTERNAL, "out of memory for a plan of %zu layers", count), out);
    ot_plan_request request;
    make_request(training, layers, stages, &request);
    OT_TRY_GOTO(call(&request, out), out);
out:
    free(stages);
    free(layers);
    return status;
}

ot_status ot_training_plan(const ot_training *training, ot_plan **out)
{
    return ask_plan(training, ot_plan_make, out);
}

ot_status ot_training_outline(const ot_training *training, ot_plan **out)
{
    return ask_plan(training, ot_plan_outline, out);
}

static ot_status fits(const ot_plan_request *request, ot_plan **out)
{
    *out = NULL;
    return ot_plan_fits(request);
}

ot_status ot_training_fits(const ot_training *training)
{
    ot_plan *none;
    return ask_plan(training, fits, &none);
}
