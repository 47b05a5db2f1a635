/* One transformer block, forward and backward. Both families are
 *     y = x + attention(norm1(x)) Wo^T,   out = y + mlp(norm2(y)) Wd^T
 * (Radford et al. 2019, Touvron et al. 2023). N = B*T tokens; q, k and v lie side by side in rows of Q =
 * (NH+2*NKV)*HD, gate and up in rows of U = 2*F (GPT-2: F). */
#include <math.h>

#include "engine/pass.h"

typedef struct block {
    size_t N, C, Q, A, U, F; /* A = NH*HD */
    ot_norm_params norm1, norm2, q_norm, k_norm;
    ot_linear qkv, out, up, down;
} block;

static block bind_block(const ot_pass *pass, const void *weights, float *grads)
{
    const ot_model_config *c = &pass->compute->model->config;
    const ot_layer *layer = &pass->compute->model->layers[1];
    block b = {.N = pass->compute->B * pass->compute->T,
               .C = c->C,
               .Q = (c->NH + 2 * c->NKV) * c->HD,
               .A = c->NH * c->HD,
               .U = c->family == OT_FAMILY_GPT2 ? c->F : 2 * c->F,
               .F = c->F};
    if (c->family == OT_FAMILY_GPT2) {
        b.norm1 = ot_norm_bind(pass, layer, "ln_1", weights, grads, b.C);
        b.qkv = ot_linear_bind(pass, layer, "attn.c_attn", weights, grads, b.Q, b.C);
        b.out = ot_linear_bind(pass, layer, "attn.c_proj", weights, grads, b.C, b.A);
        b.norm2 = ot_norm_bind(pass, layer, "ln_2", weights, grads, b.C);
        b.up = ot_linear_bind(pass, layer, "mlp.c_fc", weights, grads, b.U, b.C);
        b.down = ot_linear_bind(pass, layer, "mlp.c_proj", weights, grads, b.C, b.F);
        return b;
    }
    b.norm1 = ot_norm_bind(pass, layer, "input_layernorm", weights, grads, b.C);
    b.qkv = ot_linear_bind(pass, layer, "self_attn.q_proj", weights, grads, b.Q, b.C);
    b.out = ot_linear_bind(pass, layer, "self_attn.o_proj", weights, grads, b.C, b.A);
    b.norm2 = ot_norm_bind(pass, layer, "post_attention_layernorm", weights, grads, b.C);
    b.up = ot_linear_bind(pass, layer, "mlp.gate_proj", weights, grads, b.U, b.C);
    b.down = ot_linear_bind(pass, layer, "mlp.down_proj", weights, grads, b.C, b.F);
    if (c->qk_norm) {
        b.q_norm = ot_norm_bind(pass, layer, "self_attn.q_norm", weights, grads, c->HD);
        b.k_norm = ot_norm_bind(pass, layer, "self_attn.k_norm", weights, grads, c->HD);
    }
    return b;
}

/* ---- Attention ---- */

/* q and k of qkv [N,Q] turned by their positions, or in backward back again, in place. They are heads side by
 * side. */
static void turn_heads(ot_pass *pass, const block *b, const ot_batch *batch, void *qkv, int backward)
{
    const ot_model_config *c = &pass->compute->model->config;
    if (c->family == OT_FAMILY_GPT2 || pass->stream == NULL)
        return;
    ot_rope args = {.dtype = pass->compute->dtype,
                    .N = b->N,
                    .H = c->NH + c->NKV,
                    .HD = c->HD,
                    .positions = batch->positions,
                    .table = pass->compute->rope,
                    .ld_x = b->Q,
                    .x = qkv};
    const ot_kernels *kernels = pass->compute->kernels;
    (backward ? kernels->rope_backward : kernels->rope_forward)(pass->stream, &args);
}

/* With q/k-norm, q and k of qkv = norms of those of raw. `stats`: of q and of k, or NULL. */
static void norm_heads(ot_pass *pass, const block *b, const void *raw, void *qkv,
                       const ot_norm_stats stats[2])
{
    const ot_model_config *c = &pass->compute->model->config;
    if (!c->qk_norm)
        return;
    ot_pass_norm(pass, &b->q_norm, b->N, c->NH, b->Q, raw, qkv, stats);
    ot_pass_norm(pass, &b->k_norm, b->N, c->NKV, b->Q, ot_pass_at(pass, raw, b->A),
                 ot_pass_at_mutable(pass, qkv, b->A), stats != NULL ? &stats[1] : NULL);
}

/* dqkv in place: from the gradients of the normed q and k to those of raw. */
static void norm_heads_backward(ot_pass *pass, const block *b, const void *raw, const ot_norm_stats stats[2],
                                void *dqkv)
{
    const ot_model_config *c = &pass->compute->model->config;
    if (!c->qk_norm)
        return;
    void *dk = ot_pass_at_mutable(pass, dqkv, b->A);
    ot_pass_norm_backward(pass, &b->q_norm, b->N, c->NH, b->Q, raw, &stats[0], dqkv, NULL, dqkv);
    ot_pass_norm_backward(pass, &b->k_norm, b->N, c->NKV, b->Q, ot_pass_at(pass, raw, b->A), &stats[1], dk,
                          NULL, dk);
}

static ot_attention attention_args(const ot_pass *pass, const block *b, const ot_batch *batch,
                                   const void *qkv, void *a, float *lse)
{
    const ot_model_config *c = &pass->compute->model->config;
    return (ot_attention){.dtype = pass->compute->dtype,
                          .B = pass->compute->B,
                          .T = pass->compute->T,
                          .NH = c->NH,
                          .NKV = c->NKV,
                          .HD = c->HD,
                          .scale = (float)(1 / sqrt((double)c->HD)),
                          .window = c->window,
                          .doc_start = batch->doc_start,
                          .ld_q = b->Q,
                          .ld_kv = b->Q,
                          .ld_out = b->A,
                          .q = qkv,
                          .k = ot_pass_at(pass, qkv, b->A),
                          .v = ot_pass_at(pass, qkv, b->A + c->NKV * c->HD),
                          .out = a,
                          .lse = lse};
}

/* dqkv [N,Q] = from da [N,A]. */
static void attention_backward(ot_pass *pass, const block *b, const ot_batch *batch, const void *qkv, void *a,
                               float *lse, const void *da, void *dqkv)
{
    const ot_model_config *c = &pass->compute->model->config;
    ot_attention args = attention_args(pass, b, batch, qkv, a, lse);
    args.dout = da;
    args.ld_dq = args.ld_dkv = b->Q;
    args.dq = dqkv;
    args.dk = ot_pass_at_mutable(pass, dqkv, b->A);
    args.dv = ot_pass_at_mutable(pass, dqkv, b->A + c->NKV * c->HD);
    ot_pass_attention_backward(pass, args);
}

/* ---- Activation ---- */

/* f [N,F] = silu(gate) * up of u [N,2*F], or gelu(u [N,F]). */
static void activate(ot_pass *pass, const block *b, const void *u, void *f)
{
    const ot_compute *c = pass->compute;
    if (pass->stream == NULL)
        return;
    if (c->model->config.family == OT_FAMILY_GPT2)
        c->kernels->gelu_forward(
            pass->stream,
            &(ot_gelu){.kind = c->model->config.gelu, .dtype = c->dtype, .n = b->N * b->F, .x = u, .y = f});
    else
        c->kernels->swiglu_forward(pass->stream, &(ot_swiglu){.dtype = c->dtype,
                                                              .N = b->N,
                                                              .F = b->F,
                                                              .ld_gate = b->U,
                                                              .gate = u,
                                                              .up = ot_pass_at(pass, u, b->F),
                                                              .ld_out = b->F,
                                                              .out = f});
}

/* u becomes its gradient from df [N,F]. */
static void activate_backward(ot_pass *pass, const block *b, void *u, const void *df)
{
    const ot_compute *c = pass->compute;
    if (pass->stream == NULL)
        return;
    void *up = ot_pass_at_mutable(pass, u, b->F);
    if (c->model->config.family == OT_FAMILY_GPT2)
        c->kernels->gelu_backward(pass->stream, &(ot_gelu){.kind = c->model->config.gelu,
                                                           .dtype = c->dtype,
                                                           .n = b->N * b->F,
                                                           .x = u,
                                                           .dy = df,
                                                           .dx = u});
    else
        c->kernels->swiglu_backward(pass->stream, &(ot_swiglu){.dtype = c->dtype,
                                                               .N = b->N,
                                                               .F = b->F,
                                                               .ld_gate = b->U,
                                                               .gate = u,
                                                               .up = up,
                                                               .ld_out = b->F,
                                                               .dout = df,
                                                               .ld_dgate = b->U,
                                                               .dgate = u,
                                                               .dup = up});
}

/* ---- What is kept ---- */

/* What backward needs of the forward pass, beside x; NULL: not kept. The names are those below. */
typedef struct values {
    void *h1, *raw, *qkv, *a, *y, *h2, *u, *f;
    float *lse;
    ot_norm_stats norm1, heads[2], norm2;
} values;

/* Selective keeps the results of matrix products and attention. What it leaves out, the outputs of norms and of the
 * activation, is a third of all bytes of a Llama block, and takes passes over memory alone: next to no time beside the
 * products. The other candidate, attention, is a fifteenth of the bytes and grows with the square of the length. */
static values find_kept(const ot_pass *pass, const block *b, void *kept, uint64_t *bytes)
{
    const ot_model_config *c = &pass->compute->model->config;
    int all = pass->compute->recompute == OT_RECOMPUTE_NONE;
    ot_pass shelf = {.compute = pass->compute, .workspace = kept};
    values v = {0};
    *bytes = 0;
    if (kept == NULL || pass->compute->recompute == OT_RECOMPUTE_FULL)
        return v;
    v.a = ot_pass_take_rows(&shelf, b->N, b->A);
    v.lse = ot_pass_take(&shelf, b->N * c->NH * sizeof(float));
    v.y = ot_pass_take_rows(&shelf, b->N, b->C);
    v.u = ot_pass_take_rows(&shelf, b->N, b->U);
    v.raw = c->qk_norm ? ot_pass_take_rows(&shelf, b->N, b->Q) : NULL;
    v.qkv = all || !c->qk_norm ? ot_pass_take_rows(&shelf, b->N, b->Q) : NULL;
    if (all) {
        v.h1 = ot_pass_take_rows(&shelf, b->N, b->C);
        v.h2 = ot_pass_take_rows(&shelf, b->N, b->C);
        v.f = ot_pass_take_rows(&shelf, b->N, b->F);
        v.norm1 = ot_pass_take_stats(&shelf, b->N);
        v.norm2 = ot_pass_take_stats(&shelf, b->N);
        v.heads[0] = ot_pass_take_stats(&shelf, c->qk_norm ? b->N * c->NH : 0);
        v.heads[1] = ot_pass_take_stats(&shelf, c->qk_norm ? b->N * c->NKV : 0);
    }
    *bytes = shelf.used;
    return v;
}

uint64_t ot_compute_kept(const ot_compute *compute)
{
    const ot_pass pass = {.compute = compute};
    const block b = bind_block(&pass, NULL, NULL);
    char somewhere; /* for sizes alone */
    uint64_t bytes;
    find_kept(&pass, &b, &somewhere, &bytes);
    return bytes;
}

/* The kept rows, or others of the workspace. */
static void *rows(ot_pass *pass, void *kept, size_t N, size_t columns)
{
    return kept != NULL ? kept : ot_pass_take_rows(pass, N, columns);
}

static ot_norm_stats stats_of(ot_pass *pass, ot_norm_stats kept, size_t groups)
{
    return kept.rstd != NULL ? kept : ot_pass_take_stats(pass, groups);
}

/* For a norm's forward: NULL where the statistics are not kept. */
static const ot_norm_stats *if_kept(const ot_norm_stats *stats)
{
    return stats->rstd != NULL ? stats : NULL;
}

/* ---- The block ---- */

void ot_pass_block_forward(ot_pass *pass, const void *weights, const ot_batch *batch, const void *x,
                           void *out, void *kept)
{
    const block b = bind_block(pass, weights, NULL);
    size_t mark = pass->used;
    uint64_t kept_bytes;
    const values k = find_kept(pass, &b, kept, &kept_bytes);

    void *h = rows(pass, k.h1, b.N, b.C);
    void *qkv = rows(pass, k.qkv, b.N, b.Q);
    void *raw = k.raw != NULL ? k.raw : qkv;
    void *a = rows(pass, k.a, b.N, b.A);
    void *y = k.y != NULL ? k.y : out;
    ot_pass_norm(pass, &b.norm1, b.N, 1, b.C, x, h, if_kept(&k.norm1)); /* [N,C] h = norm1(x) */
    ot_linear_forward(pass, &b.qkv, b.N, h, raw, 0);                    /* [N,Q] q,k,v = h Wqkv^T */
    if (raw != qkv)
        ot_pass_copy_rows(pass, qkv, raw, b.N, b.Q);
    norm_heads(pass, &b, raw, qkv, if_kept(k.heads));                        /* q, k = norm(q), norm(k) */
    turn_heads(pass, &b, batch, qkv, 0);                                     /* q, k = rope(q), rope(k) */
    ot_pass_attention(pass, attention_args(pass, &b, batch, qkv, a, k.lse)); /* [N,A] a = attention(q,k,v) */
    ot_pass_copy_rows(pass, y, x, b.N, b.C);
    ot_linear_forward(pass, &b.out, b.N, a, y, 1); /* [N,C] y = x + a Wo^T */
    pass->used = mark;

    h = rows(pass, k.h2, b.N, b.C);
    void *u = rows(pass, k.u, b.N, b.U);
    void *f = rows(pass, k.f, b.N, b.F);
    ot_pass_norm(pass, &b.norm2, b.N, 1, b.C, y, h, if_kept(&k.norm2)); /* [N,C] h = norm2(y) */
    ot_linear_forward(pass, &b.up, b.N, h, u, 0);                       /* [N,U] u = h Wu^T */
    activate(pass, &b, u, f);                                           /* [N,F] f = act(u) */
    if (y != out)
        ot_pass_copy_rows(pass, out, y, b.N, b.C);
    ot_linear_forward(pass, &b.down, b.N, f, out, 1); /* [N,C] out = y + f Wd^T */
    pass->used = mark;
}

void ot_pass_block_backward(ot_pass *pass, const void *weights, const ot_batch *batch, const void *x,
                            void *dx, float *grads, void *kept)
{
    const block b = bind_block(pass, weights, grads);
    const ot_model_config *c = &pass->compute->model->config;
    size_t start = pass->used;
    uint64_t kept_bytes;
    const values k = find_kept(pass, &b, kept, &kept_bytes);
    const int products = k.a == NULL, others = k.f == NULL; /* what is computed again */

    /* Needed until the end. The output, and with it the down projection, is not. */
    void *qkv = rows(pass, k.qkv, b.N, b.Q);
    void *raw = c->qk_norm ? rows(pass, k.raw, b.N, b.Q) : qkv;
    void *a = rows(pass, k.a, b.N, b.A);
    float *lse = products ? ot_pass_take(pass, b.N * c->NH * sizeof(float)) : k.lse;
    size_t normed = c->qk_norm ? b.N : 0;
    ot_norm_stats head_stats[2] = {stats_of(pass, k.heads[0], normed * c->NH),
                                   stats_of(pass, k.heads[1], normed * c->NKV)};
    size_t attention_mark = pass->used;

    void *y = rows(pass, k.y, b.N, b.C);
    size_t mlp_mark = pass->used;
    void *h = NULL;
    if (products) {
        h = ot_pass_take_rows(pass, b.N, b.C);
        ot_pass_norm(pass, &b.norm1, b.N, 1, b.C, x, h, NULL); /* [N,C] h = norm1(x) */
        ot_linear_forward(pass, &b.qkv, b.N, h, raw, 0);       /* [N,Q] q,k,v = h Wqkv^T */
    }
    if (k.qkv == NULL) {
        if (raw != qkv)
            ot_pass_copy_rows(pass, qkv, raw, b.N, b.Q);
        norm_heads(pass, &b, raw, qkv, head_stats); /* q, k = norm(q), norm(k) */
        turn_heads(pass, &b, batch, qkv, 0);        /* q, k = rope(q), rope(k) */
    }
    if (products) {
        /* [N,A] a = attention(q,k,v) */
        ot_pass_attention(pass, attention_args(pass, &b, batch, qkv, a, lse));
        ot_pass_copy_rows(pass, y, x, b.N, b.C);
        ot_linear_forward(pass, &b.out, b.N, a, y, 1); /* [N,C] y = x + a Wo^T */
    }
    pass->used = mlp_mark;

    /* dx is the gradient of out = y + f Wd^T, and becomes that of y. */
    h = rows(pass, k.h2, b.N, b.C);
    void *u = rows(pass, k.u, b.N, b.U);
    void *f = rows(pass, k.f, b.N, b.F);
    ot_norm_stats stats = stats_of(pass, k.norm2, b.N);
    if (others)
        ot_pass_norm(pass, &b.norm2, b.N, 1, b.C, y, h, &stats); /* [N,C] h = norm2(y) */
    if (products)
        ot_linear_forward(pass, &b.up, b.N, h, u, 0); /* [N,U] u = h Wu^T */
    if (others)
        activate(pass, &b, u, f);                     /* [N,F] f = act(u) */
    ot_linear_backward(pass, &b.down, b.N, f, dx, f); /* [N,F] dWd; f → df */
    activate_backward(pass, &b, u, f);                /* [N,U] u → du */
    ot_linear_backward(pass, &b.up, b.N, h, u, h);    /* [N,C] dWu; h → dh */
    /* [N,C] dx: out → y */
    ot_pass_norm_backward(pass, &b.norm2, b.N, 1, b.C, y, &stats, h, dx, dx);
    pass->used = attention_mark;

    /* dx is the gradient of y = x + a Wo^T, and becomes that of x. */
    void *da = ot_pass_take_rows(pass, b.N, b.A);
    void *dqkv = ot_pass_take_rows(pass, b.N, b.Q);
    ot_linear_backward(pass, &b.out, b.N, a, dx, da);           /* [N,A] dWo; da */
    attention_backward(pass, &b, batch, qkv, a, lse, da, dqkv); /* [N,Q] dq,dk,dv */
    turn_heads(pass, &b, batch, dqkv, 1);                       /* dq, dk before rope */
    norm_heads_backward(pass, &b, raw, head_stats, dqkv);       /* dq, dk before their norms */
    h = rows(pass, k.h1, b.N, b.C);
    stats = stats_of(pass, k.norm1, b.N);
    if (others)
        ot_pass_norm(pass, &b.norm1, b.N, 1, b.C, x, h, &stats); /* [N,C] h = norm1(x) */
    ot_linear_backward(pass, &b.qkv, b.N, h, dqkv, h);           /* [N,C] dWqkv; h → dh */
    /* [N,C] dx: y → x */
    ot_pass_norm_backward(pass, &b.norm1, b.N, 1, b.C, x, &stats, h, dx, dx);
    pass->used = start;
}
