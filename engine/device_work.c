/* The lanes of the device: what stages compute, what becomes of a layer's gradient, and what the ranks gather is enqueued. */
#include "engine/trainer_state.h"
#include "engine/training.h"

static ot_batch batch_of(const ot_trainer *t, const ot_operation *op)
{
    size_t tokens = t->training.B * t->training.T;
    const int32_t *data = ot_mover_address(t->mover, op->places[4]);
    data += (size_t)op->micro_batch * OT_BATCH_PARTS * tokens;
    return (ot_batch){data, data + tokens, data + 2 * tokens, data + 3 * tokens};
}

/* Stage s computes with layer s, the head of a tied model also with the embedding, layer 0. What products overwrite is
 * left as it is. */
static void zero_grads(const ot_trainer *t, const ot_operation *op, ot_stream *stream)
{
    for (int i = 0; i < OT_STAGE_LAYERS; i++)
        if ((op->zero_grads >> i & 1) != 0) {
            size_t layer = i == 0 ? (size_t)op->stage : 0;
            uint64_t written = ot_compute_overwritten(t->training.model, layer) * sizeof(float);
            ot_copy_zero(stream, (char *)ot_trainer_at(t, op->places[6 + i]) + written,
                         t->plan->places[op->places[6 + i]].bytes - written);
        }
}

static void run_forward(const ot_trainer *t, const ot_operation *op, ot_stream *stream)
{
    ot_batch batch = batch_of(t, op);
    if (op->stage == 0)
        ot_embed_forward(&t->compute, stream, ot_trainer_at(t, op->places[0]), &batch,
                         ot_trainer_at(t, op->places[3]));
    else
        ot_block_forward(&t->compute, stream, ot_trainer_at(t, op->places[0]), &batch,
                         ot_trainer_at(t, op->places[2]), ot_trainer_at(t, op->places[3]),
                         ot_trainer_at(t, op->places[8]), ot_trainer_at(t, op->places[5]));
}

/* The logits of one row, and no loss. */
static void run_logits(ot_trainer *t, const ot_operation *op, ot_stream *stream)
{
    const ot_model_config *config = &t->training.model->config;
    const char *x = ot_trainer_at(t, op->places[2]);
    ot_head_logits(&t->compute, stream, ot_trainer_at(t, op->places[0]), ot_trainer_at(t, op->places[1]),
                   x + t->logits_row * config->C * ot_dtype_bytes(t->training.dtype), 1, t->logits,
                   ot_trainer_at(t, op->places[5]));
    ot_copy_d2h(stream, t->host_logits, t->logits, config->V * sizeof(float));
}

static void run_head(ot_trainer *t, const ot_operation *op, ot_stream *stream)
{
    ot_batch batch = batch_of(t, op);
    double *loss_sum = &t->device_numbers->loss_sum;
    if (op->micro_batch == 0)
        ot_copy_zero(stream, loss_sum, sizeof *loss_sum);
    zero_grads(t, op, stream);
    ot_head(&t->compute, stream, ot_trainer_at(t, op->places[0]), ot_trainer_at(t, op->places[1]), &batch,
            ot_trainer_at(t, op->places[2]), ot_trainer_at(t, op->places[3]), ot_trainer_at(t, op->places[6]),
            ot_trainer_at(t, op->places[7]), op->zero_grads != 0, t->grad_scale, loss_sum,
            ot_trainer_at(t, op->places[5]));
    if ((size_t)op->micro_batch + 1 == t->training.M)
        ot_copy_d2h(stream, &t->numbers->loss_sum, loss_sum, sizeof *loss_sum);
}

static void run_backward(const ot_trainer *t, const ot_operation *op, ot_stream *stream)
{
    ot_batch batch = batch_of(t, op);
    zero_grads(t, op, stream);
    if (op->stage == 0)
        ot_embed_backward(&t->compute, stream, ot_trainer_at(t, op->places[0]), &batch,
                          ot_trainer_at(t, op->places[3]), ot_trainer_at(t, op->places[6]),
                          ot_trainer_at(t, op->places[5]));
    else
        ot_block_backward(&t->compute, stream, ot_trainer_at(t, op->places[0]), &batch,
                          ot_trainer_at(t, op->places[2]), ot_trainer_at(t, op->places[3]),
                          ot_trainer_at(t, op->places[6]), op->zero_grads != 0,
                          ot_trainer_at(t, op->places[8]), ot_trainer_at(t, op->places[5]));
}

/* Where the own slice of a layer's reduced gradient goes. */
static void *reduced_slice(const ot_trainer *t, const ot_operation *op)
{
    uint64_t first = op->offset / sizeof(float);
    char *base = ot_trainer_at(t, op->places[1]);
    if (op->places[1] == op->places[0])
        return base + op->offset;
    return t->plan->whole[OT_PLANE_GRAD] ? base + first * ot_dtype_bytes(t->training.grad_dtype) : base;
}

/* Of the whole gradient, or of this rank's slice of it. */
static void run_reduce(const ot_trainer *t, const ot_operation *op, ot_stream *stream)
{
    const char *own = (const char *)ot_trainer_at(t, op->places[0]) + op->offset;
    const ot_cast_sum_squares args = {
        .dst_dtype = t->training.grad_dtype,
        .n = ot_training_shard(&t->training, (size_t)op->layer),
        .src = (const float *)(const void *)own,
        .scale = 1,
        .dst = reduced_slice(t, op),
        .partials = ot_trainer_at(t, op->places[2]),
    };
    t->compute.kernels->cast_sum_squares(stream, &args);
}

static void run_gather(const ot_trainer *t, const ot_operation *op, ot_stream *stream)
{
    size_t shard = ot_training_shard(&t->training, (size_t)op->layer);
    int grads = t->plan->places[op->places[0]].plane == OT_PLANE_GRAD;
    ot_dtype dtype = grads ? t->training.grad_dtype : t->training.dtype;
    ot_group_gather(t->training.group, stream, t->training.model->layers[op->layer].name,
                    ot_trainer_at(t, op->places[0]), shard * ot_dtype_bytes(dtype));
}

static void run_scatter(const ot_trainer *t, const ot_operation *op, ot_stream *stream)
{
    ot_group_scatter(t->training.group, stream, t->training.model->layers[op->layer].name,
                     ot_trainer_at(t, op->places[0]), ot_training_shard(&t->training, (size_t)op->layer));
    run_reduce(t, op, stream);
}

ot_status ot_trainer_device_work(void *context, const ot_operation *op, ot_stream *stream)
{
    ot_trainer *t = context;
    switch (op->kind) {
    case OT_OP_FORWARD:
        run_forward(t, op, stream);
        break;
    case OT_OP_HEAD:
        if (t->host_logits != NULL)
            run_logits(t, op, stream);
        else
            run_head(t, op, stream);
        break;
    case OT_OP_BACKWARD:
        run_backward(t, op, stream);
        break;
    case OT_OP_REDUCE:
        run_reduce(t, op, stream);
        break;
    case OT_OP_UPDATE:
        ot_trainer_device_update(t, op, stream);
        break;
    case OT_OP_GATHER:
        run_gather(t, op, stream);
        break;
    case OT_OP_SCATTER:
        run_scatter(t, op, stream);
        break;
    default:
        return ot_fail(OT_ERR_INTERNAL, "operation %s on a device lane", ot_operation_name(op->kind));
    }
    return OT_OK;
}
