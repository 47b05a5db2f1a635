/* The CPU lane: chunks are filled, updated and handed over, one at a time, in host memory; and the update of those that the
 * device has. */
#include <string.h>

#include "engine/trainer_state.h"
#include "engine/training.h"
#include "io/stop.h"

/* The planes of a chunk, in host memory or on the device. Whichever plane does not exist is NULL. */
typedef struct chunk_planes {
    const ot_chunk *chunk;
    void *weight, *master, *moment1, *moment2, *grad;
} chunk_planes;

static chunk_planes planes_of(const ot_trainer *t, const ot_operation *op)
{
    return (chunk_planes){&t->plan->chunks[op->chunk],     ot_trainer_at(t, op->places[0]),
                          ot_trainer_at(t, op->places[1]), ot_trainer_at(t, op->places[2]),
                          ot_trainer_at(t, op->places[3]), ot_trainer_at(t, op->places[4])};
}

static void *element(void *base, ot_dtype dtype, uint64_t index)
{
    return base != NULL ? (char *)base + index * ot_dtype_bytes(dtype) : NULL;
}

/* The scales of 8-bit moments lie behind the values of the whole chunk. */
static float *scales(void *base, ot_dtype dtype, uint64_t count, uint64_t index)
{
    if (base == NULL || dtype != OT_INT8)
        return NULL;
    return (float *)(void *)((char *)base + ot_moment_scales(count)) + index / OT_MOMENT_BLOCK;
}

/* The update of elements [begin, end) of a chunk, which have the same weight decay. */
static ot_update update_of(const ot_trainer *t, const chunk_planes *p, const ot_update_step *step,
                           uint64_t begin, uint64_t end, float weight_decay)
{
    const ot_training *training = &t->training;
    ot_dtype state = training->state_dtype, dtype = training->dtype;
    const int split = dtype == OT_BF16;
    return (ot_update){
        .kind = training->optimizer,
        .n = end - begin,
        .beta1 = training->beta1,
        .beta2 = training->beta2,
        .eps = training->eps,
        .weight_decay = weight_decay,
        .step = step,
        .grad_dtype = training->grad_dtype,
        .grad = element(p->grad, training->grad_dtype, begin),
        .master_format = split ? OT_MASTER_SPLIT : OT_MASTER_FP32,
        .master = dtype == OT_FP32 ? element(p->weight, OT_FP32, begin)
                                   : element(p->master, split ? OT_BF16 : OT_FP32, begin),
        .weight_dtype = dtype,
        .weight = dtype == OT_FP32 ? NULL : element(p->weight, dtype, begin),
        .moment1_format = state,
        .moment2_format = state,
        .moment1 = element(p->moment1, state, begin),
        .moment2 = element(p->moment2, state, begin),
        .scale1 = scales(p->moment1, state, p->chunk->count, begin),
        .scale2 = scales(p->moment2, state, p->chunk->count, begin),
        .seed = training->seed,
        .first = t->layer_first[p->chunk->layer] + p->chunk->first + begin,
    };
}

/* Enqueues the update of a chunk: matrices, which decay, come first in a layer. */
static void update_planes(const ot_trainer *t, const chunk_planes *p, const ot_update_step *step,
                          ot_stream *stream)
{
    uint64_t first = p->chunk->first, count = p->chunk->count,
             border = t->training.model->layers[p->chunk->layer].undecayed;
    uint64_t decayed = border <= first ? 0 : border - first < count ? border - first : count;
    const ot_update parts[] = {update_of(t, p, step, 0, decayed, t->training.weight_decay),
                               update_of(t, p, step, decayed, count, 0)};
    for (int i = 0; i < 2; i++)
        if (parts[i].n > 0)
            ot_device_kernels(ot_stream_device(stream))->update(stream, &parts[i]);
}

/* What the update reads is on its way before it, on the same stream. */
void ot_trainer_device_update(ot_trainer *t, const ot_operation *op, ot_stream *stream)
{
    if (!t->updates_sent)
        ot_copy_h2d(stream, t->device_numbers->updates, t->numbers->updates, sizeof t->numbers->updates);
    t->updates_sent = 1;
    chunk_planes p = planes_of(t, op);
    p.weight = element(p.weight, t->training.dtype, p.chunk->first);
    p.grad = (char *)p.grad + op->offset;
    update_planes(t, &p, &t->device_numbers->updates[op->deferred], stream);
}

/* Adafactor, tensor by tensor. */
static void update_factored(ot_trainer *t, const chunk_planes *p, const ot_update_step *step)
{
    const ot_layer *layer = &t->training.model->layers[p->chunk->layer];
    ot_tensor_piece piece;
    for (size_t i = 0; i < layer->tensor_count; i++) {
        if (!ot_factored_piece(&layer->tensors[i], p->chunk, &piece))
            continue;
        float decay = layer->tensors[i].decay ? t->training.weight_decay : 0;
        const ot_update args = update_of(t, p, step, piece.offset, piece.offset + piece.count, decay);
        ot_factored_apply(&t->factored, ot_device_kernels(t->cpu), t->update_stream, p->chunk, i, &piece,
                          &args);
    }
}

static ot_status run_measure(ot_trainer *t, const ot_operation *op)
{
    ot_factored_measure(&t->factored, ot_device_kernels(t->cpu), t->update_stream, op->pass,
                        &t->plan->chunks[op->chunk], t->training.grad_dtype, ot_trainer_at(t, op->places[4]),
                        &t->numbers->updates[1]);
    return ot_stream_synchronize(t->update_stream);
}

static void cast(ot_trainer *t, ot_dtype from, const void *src, ot_dtype to, void *dst, uint64_t count)
{
    const ot_cast args = {.dst_dtype = to, .src_dtype = from, .n = count, .src = src, .dst = dst};
    ot_device_kernels(t->cpu)->cast(t->update_stream, &args);
}

/* FP16 weights are written by the update and never read: where it is skipped, or leaves the padding out, they come from the
 * master alone. */
static void restore_weight(ot_trainer *t, const chunk_planes *p)
{
    cast(t, OT_FP32, p->master, OT_FP16, p->weight, p->chunk->count);
}

static ot_status run_update(ot_trainer *t, const ot_operation *op)
{
    chunk_planes p = planes_of(t, op);
    const ot_update_step *step = &t->numbers->updates[op->deferred];
    int factored = ot_training_is_factored(&t->training);
    if (factored)
        update_factored(t, &p, step);
    else
        update_planes(t, &p, step, t->update_stream);
    if ((step->skip || factored) && t->training.dtype == OT_FP16)
        restore_weight(t, &p);
    return ot_stream_synchronize(t->update_stream);
}

/* The FP32 values in the scratch buffer become the chunk's weight and, where there is one, its master. */
static ot_status store_master(ot_trainer *t, const chunk_planes *p)
{
    const ot_kernels *kernels = ot_device_kernels(t->cpu);
    uint64_t count = p->chunk->count;
    if (t->training.dtype == OT_FP32)
        memcpy(p->weight, t->scratch, count * sizeof *t->scratch);
    else if (t->training.dtype == OT_BF16) {
        int16_t *lo = t->training.inference ? t->remainder : p->master;
        const ot_split args = {.n = count, .master = t->scratch, .hi = p->weight, .lo = lo};
        kernels->split_master(t->update_stream, &args);
    } else {
        if (p->master != NULL)
            memcpy(p->master, t->scratch, count * sizeof *t->scratch);
        cast(t, OT_FP32, t->scratch, OT_FP16, p->weight, count);
    }
    return ot_stream_synchronize(t->update_stream);
}

static ot_chunk_values values_of(const ot_trainer *t, const chunk_planes *p, float *master)
{
    ot_dtype state = t->training.state_dtype;
    uint64_t count = p->chunk->count;
    size_t layer = (size_t)p->chunk->layer;
    return (ot_chunk_values){
        .layer = layer,
        .first = p->chunk->first,
        .count = ot_training_present(&t->training, layer, p->chunk->first, count),
        .master = master,
        .moment1 = p->moment1,
        .moment2 = p->moment2,
        .scale1 = scales(p->moment1, state, count, 0),
        .scale2 = scales(p->moment2, state, count, 0),
    };
}

static void zero_moment(const ot_trainer *t, const chunk_planes *p, ot_plane plane, void *moment)
{
    if (moment != NULL)
        memset(moment, 0, t->plan->places[p->chunk->home[plane]].bytes);
}

/* Filling a large model takes minutes, and nothing is lost by a stop in the middle of it. */
static ot_status run_load(ot_trainer *t, const ot_operation *op)
{
    OT_TRY(ot_stop_check());
    chunk_planes p = planes_of(t, op);
    zero_moment(t, &p, OT_PLANE_MOMENT1, p.moment1);
    zero_moment(t, &p, OT_PLANE_MOMENT2, p.moment2);
    ot_chunk_values values = values_of(t, &p, t->scratch);
    const ot_source *source = t->training.source;
    memset(t->scratch + values.count, 0, (p.chunk->count - values.count) * sizeof *t->scratch);
    if (values.count == 0)
        return store_master(t, &p);
    if (source != NULL)
        OT_TRY(source->fill(source->context, &values));
    else
        ot_model_random(t->training.model, values.layer, values.first, values.count, t->training.seed,
                        values.master);
    return store_master(t, &p);
}

/* The FP32 master values of a chunk, for inference its weights, in place or in the scratch buffer. */
static ot_status load_master(ot_trainer *t, const chunk_planes *p, float **values)
{
    ot_dtype dtype = t->training.dtype;
    *values = dtype == OT_FP32 ? p->weight : p->master;
    if (dtype == OT_FP32 || (dtype == OT_FP16 && !t->training.inference))
        return OT_OK;
    const ot_split args = {.n = p->chunk->count, .master = t->scratch, .hi = p->weight, .lo = p->master};
    if (t->training.inference)
        cast(t, dtype, p->weight, OT_FP32, t->scratch, p->chunk->count);
    else
        ot_device_kernels(t->cpu)->join_master(t->update_stream, &args);
    *values = t->scratch;
    return ot_stream_synchronize(t->update_stream);
}

static ot_status run_save(ot_trainer *t, const ot_operation *op)
{
    chunk_planes p = planes_of(t, op);
    float *master;
    OT_TRY(load_master(t, &p, &master));
    const ot_chunk_values values = values_of(t, &p, master);
    return ot_trainer_hand_over(t, &values, p.chunk);
}

ot_status ot_trainer_chunk_work(void *context, const ot_operation *op)
{
    ot_trainer *t = context;
    switch (op->kind) {
    case OT_OP_UPDATE:
        return run_update(t, op);
    case OT_OP_MEASURE:
        return run_measure(t, op);
    case OT_OP_LOAD:
        return run_load(t, op);
    case OT_OP_SAVE:
        return run_save(t, op);
    default:
        return ot_fail(OT_ERR_INTERNAL, "operation %s on the CPU lane", ot_operation_name(op->kind));
    }
}
