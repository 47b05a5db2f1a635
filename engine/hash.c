/* The hash of a model's parameters: a sink like any other. */
#include <xxhash.h>

#include "engine/trainer_state.h"

typedef struct hash_sink {
    const ot_model *model;
    XXH3_state_t *state;
} hash_sink;

/* What the chunk holds of each tensor. */
static ot_status add_chunk(void *context, const ot_chunk_values *chunk)
{
    const hash_sink *sink = context;
    const ot_layer *layer = &sink->model->layers[chunk->layer];
    uint64_t first = chunk->first, end = first + chunk->count;
    for (size_t i = 0; i < layer->tensor_count; i++) {
        const ot_tensor *tensor = &layer->tensors[i];
        uint64_t begin = tensor->offset, stop = tensor->offset + (uint64_t)tensor->rows * tensor->cols;
        begin = begin > first ? begin : first;
        stop = stop < end ? stop : end;
        if (begin < stop)
            XXH3_64bits_update(sink->state, chunk->master + (begin - first), (stop - begin) * sizeof(float));
    }
    return OT_OK;
}

ot_status ot_trainer_hash(ot_trainer *t, uint64_t *hash)
{
    hash_sink context = {t->training.model, XXH3_createState()};
    if (context.state == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for a hash");
    XXH3_64bits_reset(context.state);
    const ot_sink sink = {add_chunk, &context};
    ot_status status = ot_trainer_save(t, &sink);
    *hash = XXH3_64bits_digest(context.state);
    XXH3_freeState(context.state);
    OT_TRY(status);
    return ot_group_broadcast(t->training.group, "the hash of the parameters", 0, hash, sizeof *hash);
}
