/* Final norm, logits and loss, in chunks of tokens, so that no [N,V] ever exists. */
#include "engine/pass.h"

typedef struct head {
    size_t C, V, ld;
    ot_norm_params norm;
    ot_linear matrix; /* [V,C]: its own, or the embedding's */
} head;

static head bind_head(const ot_pass *pass, const ot_head_args *args)
{
    /* Rows of logits begin on cache lines whatever the vocabulary. */
    enum { ROW_STEP = 32 };
    const ot_model *model = pass->compute->model;
    const ot_model_config *c = &model->config;
    const ot_layer *layer = &model->layers[model->layer_count - 1];
    int gpt2 = c->family == OT_FAMILY_GPT2;
    head h = {.C = c->C, .V = c->V, .ld = (c->V + ROW_STEP - 1) / ROW_STEP * ROW_STEP};
    h.norm = ot_norm_bind(pass, layer, gpt2 ? "ln_f" : "norm", args->head_weights, args->head_grads, c->C);
    if (c->tied)
        h.matrix = ot_linear_bind(pass, &model->layers[0], gpt2 ? "wte" : "embed_tokens",
                                  args->embedding_weights, args->embedding_grads, c->V, c->C);
    else
        h.matrix = ot_linear_bind(pass, layer, "lm_head", args->head_weights, args->head_grads, c->V, c->C);
    return h;
}

/* losses [n], and in backward logits [n,V] become their gradient. loss_sum += the losses. */
static void take_losses(ot_pass *pass, const ot_head_args *args, const head *h, const int32_t *targets,
                        size_t n, void *logits, float *losses)
{
    const ot_kernels *kernels = pass->compute->kernels;
    if (pass->stream == NULL)
        return;
    kernels->cross_entropy(pass->stream, &(ot_cross_entropy){.dtype = pass->compute->dtype,
                                                             .N = n,
                                                             .V = h->V,
                                                             .ld_logits = h->ld,
                                                             .logits = logits,
                                                             .targets = targets,
                                                             .losses = losses,
                                                             .backward = args->backward,
                                                             .scale = args->grad_scale});
    kernels->sum_losses(pass->stream, &(ot_sum){.n = n, .x = losses, .out = args->loss_sum, .add = 1});
}

static void head_chunk(ot_pass *pass, const ot_head_args *args, const head *h, const int32_t *targets,
                       size_t n, const void *x, void *dx)
{
    size_t mark = pass->used;
    void *y = ot_pass_take_rows(pass, n, h->C);
    void *logits = ot_pass_take_rows(pass, n, h->ld);
    float *losses = ot_pass_take(pass, n * sizeof(float));
    ot_norm_stats stats = ot_pass_take_stats(pass, n);
    ot_matmul product = {.op = OT_MATMUL_FORWARD,
                         .dtype = pass->compute->dtype,
                         .out_dtype = pass->compute->dtype,
                         .N = n,
                         .C = h->C,
                         .OC = h->V,
                         .a = y,
                         .ld_a = h->C,
                         .b = h->matrix.weight,
                         .ld_b = h->C,
                         .out = logits,
                         .ld_out = h->ld};
    ot_pass_norm(pass, &h->norm, n, 1, h->C, x, y, &stats); /* [n,C] y = norm(x) */
    ot_pass_matmul(pass, product);                          /* [n,V] logits = y W^T */
    take_losses(pass, args, h, targets, n, logits, losses); /* [n,V] logits → dlogits */
    if (args->backward) {
        ot_matmul dweight = product, dinput = product;
        dweight.op = OT_MATMUL_DW; /* [V,C] dW += dlogits^T y */
        dweight.a = logits, dweight.ld_a = h->ld, dweight.b = y;
        dweight.out = h->matrix.dweight, dweight.ld_out = h->C, dweight.out_dtype = OT_FP32;
        dweight.accumulate = !pass->fresh;
        ot_pass_matmul(pass, dweight);
        dinput.op = OT_MATMUL_DX; /* [n,C] y → dy = dlogits W */
        dinput.a = logits, dinput.ld_a = h->ld;
        dinput.out = y, dinput.ld_out = h->C;
        ot_pass_matmul(pass, dinput);
        /* By way of y, as dx may be x. */
        ot_pass_norm_backward(pass, &h->norm, n, 1, h->C, x, &stats, y, NULL, y);
        ot_pass_copy_rows(pass, dx, y, n, h->C);
    }
    pass->used = mark;
}

void ot_pass_head(ot_pass *pass, const ot_head_args *args, const ot_batch *batch, const void *x, void *dx)
{
    const head h = bind_head(pass, args);
    size_t N = pass->compute->B * pass->compute->T, chunk = pass->compute->loss_chunk;
    OT_ASSERT(chunk > 0);
    for (size_t first = 0; first < N; first += chunk) {
        size_t n = N - first < chunk ? N - first : chunk;
        head_chunk(pass, args, &h, batch->targets != NULL ? batch->targets + first : NULL, n,
                   ot_pass_at(pass, x, first * h.C), ot_pass_at_mutable(pass, dx, first * h.C));
        pass->fresh = 0;
    }
}

void ot_pass_head_logits(ot_pass *pass, const ot_head_args *args, const void *x, size_t rows, float *logits)
{
    const head h = bind_head(pass, args);
    size_t mark = pass->used;
    void *y = ot_pass_take_rows(pass, rows, h.C);
    ot_pass_norm(pass, &h.norm, rows, 1, h.C, x, y, NULL);
    ot_pass_matmul(pass, (ot_matmul){.op = OT_MATMUL_FORWARD,
                                     .dtype = pass->compute->dtype,
                                     .out_dtype = OT_FP32,
                                     .N = rows,
                                     .C = h.C,
                                     .OC = h.V,
                                     .a = y,
                                     .ld_a = h.C,
                                     .b = h.matrix.weight,
                                     .ld_b = h.C,
                                     .out = logits,
                                     .ld_out = h.V});
    pass->used = mark;
}
