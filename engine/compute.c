/* The stages as their callers see them: each is a pass with a stream; the workspace is what all of them take
 * without one. */
#include "engine/compute.h"

#include "engine/pass.h"

uint64_t ot_compute_workspace(const ot_compute *compute)
{
    const ot_batch batch = {0};
    const ot_head_args head = {.backward = !compute->forward_only};
    ot_pass pass = {.compute = compute};
    ot_pass_block_forward(&pass, NULL, &batch, NULL, NULL, NULL);
    if (!compute->forward_only) {
        char somewhere; /* an address that stands for what is kept: nothing is read or written */
        void *kept = compute->recompute == OT_RECOMPUTE_FULL ? NULL : &somewhere;
        ot_pass_embed_backward(&pass, &batch, NULL, NULL);
        ot_pass_block_backward(&pass, NULL, &batch, NULL, NULL, NULL, kept);
    }
    ot_pass_head(&pass, &head, &batch, NULL, NULL);
    ot_pass_head_logits(&pass, &head, NULL, compute->B * compute->T, NULL);
    return pass.peak;
}

/* ---- Embedding ---- */

/* The token table, and for GPT-2 in [1] that of positions. Returns how many there are. */
static int describe_tables(const ot_compute *compute, const ot_batch *batch, ot_embedding tables[2],
                           uint64_t offsets[2])
{
    const ot_model_config *c = &compute->model->config;
    const ot_layer *layer = &compute->model->layers[0];
    int gpt2 = c->family == OT_FAMILY_GPT2;
    ot_embedding table = {
        .dtype = compute->dtype, .N = compute->B * compute->T, .C = c->C, .V = c->V, .tokens = batch->tokens};
    tables[0] = table;
    offsets[0] = layer->tensors[0].offset;
    if (!gpt2)
        return 1;
    table.V = c->positions;
    table.tokens = batch->positions;
    table.add = 1;
    tables[1] = table;
    offsets[1] = layer->tensors[1].offset;
    return 2;
}

void ot_embed_forward(const ot_compute *compute, ot_stream *stream, const void *weights,
                      const ot_batch *batch, void *x)
{
    ot_pass pass = {.compute = compute, .stream = stream};
    ot_embedding tables[2];
    uint64_t offsets[2];
    int count = describe_tables(compute, batch, tables, offsets);
    for (int i = 0; i < count; i++) {
        tables[i].table = ot_pass_at(&pass, weights, offsets[i]);
        tables[i].out = x;
        compute->kernels->embedding_forward(stream, &tables[i]);
    }
}

void ot_pass_embed_backward(ot_pass *pass, const ot_batch *batch, const void *dx, float *grads)
{
    ot_embedding tables[2];
    uint64_t offsets[2];
    int count = describe_tables(pass->compute, batch, tables, offsets);
    for (int i = 0; i < count; i++) {
        tables[i].dout = dx;
        tables[i].dtable = (float *)((uintptr_t)grads + offsets[i] * sizeof(float));
        ot_pass_embedding_backward(pass, tables[i]);
    }
}

void ot_embed_backward(const ot_compute *compute, ot_stream *stream, const void *weights,
                       const ot_batch *batch, const void *dx, float *grads, void *workspace)
{
    (void)weights;
    ot_pass pass = {.compute = compute, .stream = stream, .workspace = workspace};
    ot_pass_embed_backward(&pass, batch, dx, grads);
}

/* ---- Block ---- */

uint64_t ot_compute_overwritten(const ot_model *model, size_t layer)
{
    const ot_layer *l = &model->layers[layer];
    uint64_t elements = 0;
    if (layer == 0)
        return model->config.tied ? (uint64_t)l->tensors[0].rows * l->tensors[0].cols : 0;
    for (size_t i = 0; i < l->tensor_count; i++)
        if (l->tensors[i].decay && l->tensors[i].offset == elements) /* nobody overwrites a gap */
            elements += (uint64_t)l->tensors[i].rows * l->tensors[i].cols;
    return elements;
}

void ot_block_forward(const ot_compute *compute, ot_stream *stream, const void *weights,
                      const ot_batch *batch, const void *x, void *out, void *kept, void *workspace)
{
    ot_pass pass = {.compute = compute, .stream = stream, .workspace = workspace};
    ot_pass_block_forward(&pass, weights, batch, x, out, kept);
}

void ot_block_backward(const ot_compute *compute, ot_stream *stream, const void *weights,
                       const ot_batch *batch, const void *x, void *dx, float *grads, int fresh, void *kept,
                       void *workspace)
{
    ot_pass pass = {.compute = compute, .stream = stream, .workspace = workspace, .fresh = fresh};
    ot_pass_block_backward(&pass, weights, batch, x, dx, grads, kept);
}

/* ---- Head ---- */

void ot_head(const ot_compute *compute, ot_stream *stream, const void *head_weights,
             const void *embedding_weights, const ot_batch *batch, const void *x, void *dx, float *head_grads,
             float *embedding_grads, int fresh, float grad_scale, double *loss_sum, void *workspace)
{
    ot_pass pass = {.compute = compute, .stream = stream, .workspace = workspace, .fresh = fresh};
    const ot_head_args args = {.head_weights = head_weights,
                               .embedding_weights = embedding_weights,
                               .head_grads = head_grads,
                               .embedding_grads = embedding_grads,
                               .backward = dx != NULL,
                               .grad_scale = grad_scale,
                               .loss_sum = loss_sum};
    ot_pass_head(&pass, &args, batch, x, dx);
}

void ot_head_logits(const ot_compute *compute, ot_stream *stream, const void *head_weights,
                    const void *embedding_weights, const void *x, size_t rows, float *logits, void *workspace)
{
    ot_pass pass = {.compute = compute, .stream = stream, .workspace = workspace};
    const ot_head_args args = {.head_weights = head_weights, .embedding_weights = embedding_weights};
    ot_pass_head_logits(&pass, &args, x, rows, logits);
}
