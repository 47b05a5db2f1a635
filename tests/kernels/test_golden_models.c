/* Tiny models composed of the kernels, against PyTorch in FP64 (tests/golden/make.py): logits, losses, every
 * gradient, and the weights after five steps of AdamW with clipping, over two micro-batches each. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/kernels/tiny.h"
#include "tests/support/test.h"

/* ---- Llama and its relatives ---- */

static void llama_forward(tiny *t)
{
    size_t q = 0, k = t->NH * t->HD, v = k + t->NKV * t->HD; /* in a row of qkv */
    ot_embedding embedding = {.dtype = t->dtype,
                              .N = t->N,
                              .C = t->C,
                              .V = t->V,
                              .tokens = t->tokens,
                              .table = tiny_find(t, "model.embed_tokens.weight")->weight,
                              .out = t->layers[0].x};
    t->kernels->embedding_forward(t->stream, &embedding);
    for (size_t l = 0; l < t->L; l++) {
        tiny_layer *a = &t->layers[l];
#define P(name) tiny_find(t, "model.layers.%zu." name, l)
#define BIAS(name) (t->qkv_bias ? P(name) : NULL)
        tiny_norm(t, P("input_layernorm.weight"), NULL, a->x, a->h1, NULL, a->rstd1);
        tiny_linear(t, P("self_attn.q_proj.weight"), BIAS("self_attn.q_proj.bias"), a->h1,
                    tiny_at(t, a->qkv_raw, q), t->W);
        tiny_linear(t, P("self_attn.k_proj.weight"), BIAS("self_attn.k_proj.bias"), a->h1,
                    tiny_at(t, a->qkv_raw, k), t->W);
        tiny_linear(t, P("self_attn.v_proj.weight"), BIAS("self_attn.v_proj.bias"), a->h1,
                    tiny_at(t, a->qkv, v), t->W);
        if (t->qk_norm) {
            tiny_head_norm(t, P("self_attn.q_norm.weight"), t->NH, tiny_at(t, a->qkv_raw, q),
                           tiny_at(t, a->qkv, q), a->q_rstd);
            tiny_head_norm(t, P("self_attn.k_norm.weight"), t->NKV, tiny_at(t, a->qkv_raw, k),
                           tiny_at(t, a->qkv, k), a->k_rstd);
        }
        tiny_rope(t, a->qkv, 0);
        tiny_attention(t, a);
        tiny_linear(t, P("self_attn.o_proj.weight"), NULL, a->attn, t->branch, t->C);
        tiny_residual(t, a->x, t->branch, a->x_mid);
        tiny_norm(t, P("post_attention_layernorm.weight"), NULL, a->x_mid, a->h2, NULL, a->rstd2);
        tiny_linear(t, P("mlp.gate_proj.weight"), NULL, a->h2, a->up, 2 * t->F);
        tiny_linear(t, P("mlp.up_proj.weight"), NULL, a->h2, tiny_at(t, a->up, t->F), 2 * t->F);
        ot_swiglu swiglu = {.dtype = t->dtype,
                            .N = t->N,
                            .F = t->F,
                            .ld_gate = 2 * t->F,
                            .gate = a->up,
                            .up = tiny_at(t, a->up, t->F),
                            .ld_out = t->F,
                            .out = a->act};
        t->kernels->swiglu_forward(t->stream, &swiglu);
        tiny_linear(t, P("mlp.down_proj.weight"), NULL, a->act, t->branch, t->C);
        tiny_residual(t, a->x_mid, t->branch, t->layers[l + 1].x);
    }
    tiny_norm(t, tiny_find(t, "model.norm.weight"), NULL, t->layers[t->L].x, t->h, NULL, t->rstd);
    tiny_linear(t, tiny_find(t, t->tied ? "model.embed_tokens.weight" : "lm_head.weight"), NULL, t->h,
                t->logits, t->V);
}

/* From the gradient of the logits, which has taken their place. */
static void llama_backward(tiny *t)
{
    size_t q = 0, k = t->NH * t->HD, v = k + t->NKV * t->HD;
    tiny_parameter *table = tiny_find(t, "model.embed_tokens.weight");
    tiny_linear_backward(t, t->tied ? table : tiny_find(t, "lm_head.weight"), NULL, t->h, t->logits, t->V,
                         t->dh, 0);
    tiny_norm_backward(t, tiny_find(t, "model.norm.weight"), NULL, t->layers[t->L].x, NULL, t->rstd, t->dh,
                       NULL, t->dx);
    for (size_t l = t->L; l-- > 0;) {
        tiny_layer *a = &t->layers[l];
        tiny_linear_backward(t, P("mlp.down_proj.weight"), NULL, a->act, t->dx, t->C, t->dact, 0);
        ot_swiglu swiglu = {.dtype = t->dtype,
                            .N = t->N,
                            .F = t->F,
                            .ld_gate = 2 * t->F,
                            .gate = a->up,
                            .up = tiny_at(t, a->up, t->F),
                            .ld_out = t->F,
                            .dout = t->dact,
                            .ld_dgate = 2 * t->F,
                            .dgate = t->dup,
                            .dup = tiny_at(t, t->dup, t->F)};
        t->kernels->swiglu_backward(t->stream, &swiglu);
        tiny_linear_backward(t, P("mlp.gate_proj.weight"), NULL, a->h2, t->dup, 2 * t->F, t->dh, 0);
        tiny_linear_backward(t, P("mlp.up_proj.weight"), NULL, a->h2, tiny_at(t, t->dup, t->F), 2 * t->F,
                             t->dh, 1);
        tiny_norm_backward(t, P("post_attention_layernorm.weight"), NULL, a->x_mid, NULL, a->rstd2, t->dh,
                           t->dx, t->dx);
        tiny_linear_backward(t, P("self_attn.o_proj.weight"), NULL, a->attn, t->dx, t->C, t->dattn, 0);
        tiny_attention_backward(t, a);
        tiny_rope(t, t->dqkv, 1);
        if (t->qk_norm) {
            tiny_head_norm_backward(t, P("self_attn.q_norm.weight"), t->NH, tiny_at(t, a->qkv_raw, q),
                                    a->q_rstd, tiny_at(t, t->dqkv, q));
            tiny_head_norm_backward(t, P("self_attn.k_norm.weight"), t->NKV, tiny_at(t, a->qkv_raw, k),
                                    a->k_rstd, tiny_at(t, t->dqkv, k));
        }
        tiny_linear_backward(t, P("self_attn.q_proj.weight"), BIAS("self_attn.q_proj.bias"), a->h1,
                             tiny_at(t, t->dqkv, q), t->W, t->dh, 0);
        tiny_linear_backward(t, P("self_attn.k_proj.weight"), BIAS("self_attn.k_proj.bias"), a->h1,
                             tiny_at(t, t->dqkv, k), t->W, t->dh, 1);
        tiny_linear_backward(t, P("self_attn.v_proj.weight"), BIAS("self_attn.v_proj.bias"), a->h1,
                             tiny_at(t, t->dqkv, v), t->W, t->dh, 1);
        tiny_norm_backward(t, P("input_layernorm.weight"), NULL, a->x, NULL, a->rstd1, t->dh, t->dx, t->dx);
#undef P
#undef BIAS
    }
    ot_embedding embedding = {.dtype = t->dtype,
                              .N = t->N,
                              .C = t->C,
                              .V = t->V,
                              .tokens = t->tokens,
                              .dout = t->dx,
                              .dtable = table->grad};
    t->kernels->embedding_backward(t->stream, &embedding);
}

/* ---- GPT-2 ---- */

static void gpt2_forward(tiny *t)
{
    tiny_parameter *wte = tiny_find(t, "wte.weight"), *wpe = tiny_find(t, "wpe.weight");
    ot_embedding words = {.dtype = t->dtype,
                          .N = t->N,
                          .C = t->C,
                          .V = t->V,
                          .tokens = t->tokens,
                          .table = wte->weight,
                          .out = t->layers[0].x};
    ot_embedding places = {.dtype = t->dtype,
                           .N = t->N,
                           .C = t->C,
                           .V = wpe->rows,
                           .tokens = t->positions,
                           .table = wpe->weight,
                           .out = t->layers[0].x,
                           .add = 1};
    t->kernels->embedding_forward(t->stream, &words);
    t->kernels->embedding_forward(t->stream, &places);
    for (size_t l = 0; l < t->L; l++) {
        tiny_layer *a = &t->layers[l];
#define P(name) tiny_find(t, "h.%zu." name, l)
        tiny_norm(t, P("ln_1.weight"), P("ln_1.bias"), a->x, a->h1, a->mean1, a->rstd1);
        tiny_linear(t, P("attn.c_attn.weight"), P("attn.c_attn.bias"), a->h1, a->qkv, t->W);
        tiny_attention(t, a);
        tiny_linear(t, P("attn.c_proj.weight"), P("attn.c_proj.bias"), a->attn, t->branch, t->C);
        tiny_residual(t, a->x, t->branch, a->x_mid);
        tiny_norm(t, P("ln_2.weight"), P("ln_2.bias"), a->x_mid, a->h2, a->mean2, a->rstd2);
        tiny_linear(t, P("mlp.c_fc.weight"), P("mlp.c_fc.bias"), a->h2, a->up, t->F);
        ot_gelu gelu = {.kind = OT_GELU_TANH, .dtype = t->dtype, .n = t->N * t->F, .x = a->up, .y = a->act};
        t->kernels->gelu_forward(t->stream, &gelu);
        tiny_linear(t, P("mlp.c_proj.weight"), P("mlp.c_proj.bias"), a->act, t->branch, t->C);
        tiny_residual(t, a->x_mid, t->branch, t->layers[l + 1].x);
    }
    tiny_norm(t, tiny_find(t, "ln_f.weight"), tiny_find(t, "ln_f.bias"), t->layers[t->L].x, t->h, t->mean,
              t->rstd);
    tiny_linear(t, wte, NULL, t->h, t->logits, t->V);
}

static void gpt2_backward(tiny *t)
{
    tiny_parameter *wte = tiny_find(t, "wte.weight"), *wpe = tiny_find(t, "wpe.weight");
    tiny_linear_backward(t, wte, NULL, t->h, t->logits, t->V, t->dh, 0);
    tiny_norm_backward(t, tiny_find(t, "ln_f.weight"), tiny_find(t, "ln_f.bias"), t->layers[t->L].x, t->mean,
                       t->rstd, t->dh, NULL, t->dx);
    for (size_t l = t->L; l-- > 0;) {
        tiny_layer *a = &t->layers[l];
        tiny_linear_backward(t, P("mlp.c_proj.weight"), P("mlp.c_proj.bias"), a->act, t->dx, t->C, t->dact,
                             0);
        ot_gelu gelu = {.kind = OT_GELU_TANH,
                        .dtype = t->dtype,
                        .n = t->N * t->F,
                        .x = a->up,
                        .dy = t->dact,
                        .dx = t->dup};
        t->kernels->gelu_backward(t->stream, &gelu);
        tiny_linear_backward(t, P("mlp.c_fc.weight"), P("mlp.c_fc.bias"), a->h2, t->dup, t->F, t->dh, 0);
        tiny_norm_backward(t, P("ln_2.weight"), P("ln_2.bias"), a->x_mid, a->mean2, a->rstd2, t->dh, t->dx,
                           t->dx);
        tiny_linear_backward(t, P("attn.c_proj.weight"), P("attn.c_proj.bias"), a->attn, t->dx, t->C,
                             t->dattn, 0);
        tiny_attention_backward(t, a);
        tiny_linear_backward(t, P("attn.c_attn.weight"), P("attn.c_attn.bias"), a->h1, t->dqkv, t->W, t->dh,
                             0);
        tiny_norm_backward(t, P("ln_1.weight"), P("ln_1.bias"), a->x, a->mean1, a->rstd1, t->dh, t->dx,
                           t->dx);
#undef P
    }
    ot_embedding words = {.dtype = t->dtype,
                          .N = t->N,
                          .C = t->C,
                          .V = t->V,
                          .tokens = t->tokens,
                          .dout = t->dx,
                          .dtable = wte->grad};
    ot_embedding places = {.dtype = t->dtype,
                           .N = t->N,
                           .C = t->C,
                           .V = wpe->rows,
                           .tokens = t->positions,
                           .dout = t->dx,
                           .dtable = wpe->grad};
    t->kernels->embedding_backward(t->stream, &words);
    t->kernels->embedding_backward(t->stream, &places);
}

/* ---- Comparing ---- */

/* Relative to the norm of the tensor, or to the number. The bias of the keys moves all scores of a query
 * nearly alike, so that its gradient is mostly rounding, which Adam brings to the size of any other: it has a
 * tolerance of its own. */
typedef struct tolerances {
    double logits, loss, grad, weight, key_bias;
} tolerances;

static tolerances tolerances_of(ot_dtype dtype)
{
    if (dtype == OT_FP32)
        return (tolerances){1e-5, 1e-5, 1e-5, 1e-5, 1e-5};
    return dtype == OT_BF16 ? (tolerances){1e-2, 2e-3, 3e-2, 5e-3, 2e-2}
                            : (tolerances){2e-3, 5e-4, 5e-3, 2e-3, 5e-3};
}

static int has_key_bias(const tiny_parameter *p)
{
    return strstr(p->name, "k_proj.bias") != NULL || strstr(p->name, "c_attn.bias") != NULL;
}

static void expect_near(double value, double expected, double tolerance, const char *what, size_t step)
{
    if (!(fabs(value - expected) <= tolerance * fabs(expected)))
        fail_msg("%s of step %zu: %.9g, expected %.9g", what, step, value, expected);
}

/* The sampled elements of a tensor, by the norm of what is expected of them. */
static void expect_sample(tiny *t, const char *prefix, const char *name, const float *values, size_t n,
                          const tiny_parameter *p, double factor, double tolerance)
{
    char key[TINY_NAME_BYTES + 16];
    snprintf(key, sizeof key, "%s%s", prefix, name);
    const double *expected = golden_doubles(t->vectors, key);
    size_t stride = n > 1024 ? (size_t)golden_number(t->vectors, "stride") : 1,
           count = golden_count(t->vectors, key);
    double error = 0, norm = 0;
    assert_int_equal(count, (n + stride - 1) / stride);
    for (size_t i = 0; i < count; i++) {
        size_t at = i * stride;
        if (p != NULL && p->is_transposed)
            at = at % p->rows * p->cols + at / p->rows;
        double difference = (double)values[at] * factor - expected[i];
        error += difference * difference;
        norm += expected[i] * expected[i];
    }
    if (!(sqrt(error) <= tolerance * sqrt(norm)))
        fail_msg("%s in %s: relative error %.3g > %.3g", key, ot_dtype_name(t->dtype), sqrt(error / norm),
                 tolerance);
}

static void check_gradients(tiny *t, double factor, double tolerance)
{
    const double *norms = golden_doubles(t->vectors, "grad_norms");
    for (size_t i = 0; i < t->parameter_count; i++) {
        tiny_parameter *p = &t->parameters[i];
        float *values = malloc(p->n * sizeof *values);
        double sum = 0;
        assert_non_null(values);
        tiny_download(t, values, p->grad, p->n * sizeof *values);
        for (size_t j = 0; j < p->n; j++)
            sum += (double)values[j] * (double)values[j];
        expect_near(sqrt(sum) * factor, norms[i], tolerance, p->name, 0);
        expect_sample(t, "grad.", p->name, values, p->n, p, factor, tolerance);
        free(values);
    }
}

static void check_weights(tiny *t, const tolerances *allowed)
{
    for (size_t i = 0; i < t->parameter_count; i++) {
        tiny_parameter *p = &t->parameters[i];
        float *values = malloc(p->n * sizeof *values);
        assert_non_null(values);
        tiny_read_master(t, p, values);
        expect_sample(t, "after.", p->name, values, p->n, p, 1,
                      has_key_bias(p) ? allowed->key_bias : allowed->weight);
        free(values);
    }
}

static void check_logits(tiny *t, double tolerance)
{
    size_t n = t->N * t->V;
    float *values = malloc(n * sizeof *values);
    assert_non_null(values);
    tiny_read(t, t->logits, t->dtype, n, values);
    expect_sample(t, "", "logits", values, n, NULL, 1, tolerance);
    free(values);
}

/* ---- Training ---- */

/* Forward and backward of micro-batch `index`; returns the sum of its losses. */
static double run_micro_batch(tiny *t, size_t index, double grad_scale, double logits_tolerance)
{
    const size_t bytes = t->N * sizeof(int32_t);
    tiny_upload(t, t->tokens, golden_integers(t->vectors, "tokens") + index * t->N, bytes);
    tiny_upload(t, t->targets, golden_integers(t->vectors, "targets") + index * t->N, bytes);
    if (t->is_gpt2)
        gpt2_forward(t);
    else
        llama_forward(t);
    if (index == 0)
        check_logits(t, logits_tolerance);
    ot_cross_entropy loss = {.dtype = t->dtype,
                             .N = t->N,
                             .V = t->V,
                             .ld_logits = t->V,
                             .logits = t->logits,
                             .targets = t->targets,
                             .losses = t->losses,
                             .backward = 1,
                             .scale = (float)grad_scale};
    ot_sum all = {.n = t->N, .x = t->losses, .out = t->sum};
    t->kernels->cross_entropy(t->stream, &loss);
    t->kernels->sum_losses(t->stream, &all);
    if (t->is_gpt2)
        gpt2_backward(t);
    else
        llama_backward(t);
    double sum;
    tiny_download(t, &sum, t->sum, sizeof sum);
    return sum;
}

static double trained_tokens(const tiny *t, const int32_t *targets)
{
    double count = 0;
    for (size_t i = 0; i < t->micro_batches * t->N; i++)
        count += targets[i] >= 0;
    return count;
}

/* The norm of all gradients as they are. */
static double gradient_norm(tiny *t)
{
    double square_sum, *partials = t->workspace;
    for (size_t i = 0; i < t->parameter_count; i++) {
        tiny_parameter *p = &t->parameters[i];
        ot_sum_squares squares = {.dtype = OT_FP32, .n = p->n, .x = p->grad, .partials = partials};
        ot_sum all = {.n = ot_sum_blocks(p->n), .x = partials, .out = t->sum, .add = i > 0};
        t->kernels->sum_squares(t->stream, &squares);
        t->kernels->sum_partials(t->stream, &all);
    }
    tiny_download(t, &square_sum, t->sum, sizeof square_sum);
    return sqrt(square_sum);
}

static void update(tiny *t, size_t step, double grad_scale)
{
    golden *g = t->vectors;
    float beta1 = (float)golden_number(g, "beta1"), beta2 = (float)golden_number(g, "beta2");
    ot_update_step now = {.grad_scale = (float)grad_scale,
                          .lr = (float)golden_number(g, "lr"),
                          .bias1 = (float)(1 - pow((double)beta1, (double)step)),
                          .bias2 = (float)(1 - pow((double)beta2, (double)step)),
                          .number = step};
    tiny_upload(t, t->step, &now, sizeof now);
    for (size_t i = 0; i < t->parameter_count; i++) {
        tiny_parameter *p = &t->parameters[i];
        ot_update u = {.kind = OT_OPTIMIZER_ADAMW,
                       .n = p->n,
                       .beta1 = beta1,
                       .beta2 = beta2,
                       .eps = (float)golden_number(g, "eps_adam"),
                       .weight_decay = p->is_matrix ? (float)golden_number(g, "weight_decay") : 0,
                       .step = t->step,
                       .grad_dtype = OT_FP32,
                       .grad = p->grad,
                       .master = p->master,
                       .moment1 = p->moment1,
                       .moment2 = p->moment2};
        u.master_format = t->dtype == OT_BF16 ? OT_MASTER_SPLIT : OT_MASTER_FP32;
        u.weight_dtype = t->dtype;
        u.weight = t->dtype == OT_FP32 ? NULL : p->weight;
        t->kernels->update(t->stream, &u);
    }
}

static void train(const char *name, ot_dtype dtype)
{
    tiny t;
    tiny_open(&t, name, dtype);
    tolerances allowed = tolerances_of(dtype);
    const double *losses = golden_doubles(t.vectors, "losses"), *norms = golden_doubles(t.vectors, "norms");
    const int32_t *targets = golden_integers(t.vectors, "targets");
    double loss_scale = dtype == OT_FP16 ? 1024 : 1, limit = golden_number(t.vectors, "clip");
    size_t steps = golden_count(t.vectors, "losses");
    for (size_t step = 0; step < steps; step++) {
        double loss = 0, count = trained_tokens(&t, targets + step * t.micro_batches * t.N);
        for (size_t i = 0; i < t.parameter_count; i++)
            ot_copy_zero(t.stream, t.parameters[i].grad, t.parameters[i].n * sizeof(float));
        for (size_t m = 0; m < t.micro_batches; m++)
            loss += run_micro_batch(&t, step * t.micro_batches + m, loss_scale / count, allowed.logits);
        expect_near(loss / count, losses[step], allowed.loss, "loss", step);
        if (step == 0)
            check_gradients(&t, 1 / loss_scale, allowed.grad);
        double norm = gradient_norm(&t) / loss_scale;
        expect_near(norm, norms[step], allowed.grad, "norm", step);
        update(&t, step + 1, 1 / loss_scale * fmin(1, limit / (norm + 1e-6)));
    }
    check_weights(&t, &allowed);
    tiny_close(&t);
}

static void train_in_all_types(void **state)
{
    train(*state, OT_FP32);
    train(*state, OT_BF16);
    train(*state, OT_FP16);
}

#define MODEL(model)                                                                                         \
    {                                                                                                        \
        .name = model, .test_func = train_in_all_types, .initial_state = model                               \
    }

int main(void)
{
    char llama2[] = "llama2", llama31[] = "llama31", qwen2[] = "qwen2", qwen3[] = "qwen3",
         mistral[] = "mistral", gpt2[] = "gpt2";
    const struct CMUnitTest tests[] = {MODEL(llama2), MODEL(llama31), MODEL(qwen2),
                                       MODEL(qwen3),  MODEL(mistral), MODEL(gpt2)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
