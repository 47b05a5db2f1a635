#include "tests/kernels/tiny.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/test.h"

enum { MEMORY_BYTES = 64 << 20, WORKSPACE_BYTES = 16 << 20, WIDE_ELEMENTS = 1 << 18 };

static void *take(tiny *t, size_t bytes)
{
    void *block = t->memory + t->taken_bytes;
    t->taken_bytes += (bytes + 63) / 64 * 64;
    assert_true(t->taken_bytes <= MEMORY_BYTES);
    return block;
}

static void *take_elements(tiny *t, size_t n)
{
    return take(t, n * ot_dtype_bytes(t->dtype));
}

static float *take_floats(tiny *t, size_t n)
{
    return take(t, n * sizeof(float));
}

void *tiny_at(const tiny *t, void *array, size_t i)
{
    return (unsigned char *)array + i * ot_dtype_bytes(t->dtype);
}

static void check(ot_status status)
{
    if (status != OT_OK)
        fail_msg("%s", ot_error_text());
}

/* ---- Host ---- */

void tiny_upload(tiny *t, void *device_dst, const void *host_src, size_t bytes)
{
    ot_copy_h2d(t->stream, device_dst, host_src, bytes);
    check(ot_stream_synchronize(t->stream)); /* the source may go */
}

void tiny_download(tiny *t, void *host_dst, const void *device_src, size_t bytes)
{
    ot_copy_d2h(t->stream, host_dst, device_src, bytes);
    check(ot_stream_synchronize(t->stream));
}

void tiny_read(tiny *t, const void *device_src, ot_dtype dtype, size_t n, float *out)
{
    assert_true(n <= WIDE_ELEMENTS);
    ot_cast widen = {.dst_dtype = OT_FP32, .src_dtype = dtype, .n = n, .src = device_src, .dst = t->wide};
    t->kernels->cast(t->stream, &widen);
    tiny_download(t, out, t->wide, n * sizeof(float));
}

void tiny_read_master(tiny *t, const tiny_parameter *p, float *out)
{
    if (t->dtype == OT_BF16) {
        ot_split join = {.n = p->n, .master = t->wide, .hi = p->weight, .lo = p->master};
        t->kernels->join_master(t->stream, &join);
        tiny_download(t, out, t->wide, p->n * sizeof(float));
    } else {
        tiny_download(t, out, p->master, p->n * sizeof(float));
    }
}

/* ---- Set-up ---- */

/* The master comes from the file; the weight is made from it on the device. */
static void load_parameter(tiny *t, tiny_parameter *p)
{
    char key[TINY_NAME_BYTES + 16];
    snprintf(key, sizeof key, "initial.%s", p->name);
    const double *values = golden_doubles(t->vectors, key);
    float *master = malloc(p->n * sizeof *master);
    assert_non_null(master);
    for (size_t i = 0; i < p->n; i++)
        master[i] = (float)values[p->is_transposed ? i % p->cols * p->rows + i / p->cols : i];
    tiny_upload(t, t->dtype == OT_BF16 ? t->wide : p->master, master, p->n * sizeof *master);
    ot_split split = {.n = p->n, .master = t->wide, .hi = p->weight, .lo = p->master};
    ot_cast narrow = {
        .dst_dtype = OT_FP16, .src_dtype = OT_FP32, .n = p->n, .src = p->master, .dst = p->weight};
    if (t->dtype == OT_BF16)
        t->kernels->split_master(t->stream, &split);
    if (t->dtype == OT_FP16)
        t->kernels->cast(t->stream, &narrow);
    check(ot_stream_synchronize(t->stream));
    free(master);
}

static void add_parameter(tiny *t, const char *name)
{
    char key[TINY_NAME_BYTES + 16];
    assert_true(t->parameter_count < TINY_PARAMETERS_MAX);
    tiny_parameter *p = &t->parameters[t->parameter_count++];
    snprintf(p->name, sizeof p->name, "%s", name);
    snprintf(key, sizeof key, "initial.%s", name);
    p->n = golden_count(t->vectors, key);
    p->is_matrix = golden_dimensions(t->vectors, key) == 2;
    p->is_transposed = p->is_matrix && t->is_gpt2 && strncmp(name, "h.", 2) == 0;
    p->cols = !p->is_matrix ? 1 : golden_shape(t->vectors, key, p->is_transposed ? 0 : 1);
    p->rows = p->n / p->cols;
    p->weight = take_elements(t, p->n);
    p->master = t->dtype == OT_FP32 ? p->weight
                                    : take(t, p->n * (t->dtype == OT_BF16 ? sizeof(int16_t) : sizeof(float)));
    p->grad = take_floats(t, p->n);
    p->moment1 = take_floats(t, p->n);
    p->moment2 = take_floats(t, p->n);
    load_parameter(t, p);
}

tiny_parameter *tiny_find(tiny *t, const char *format, ...)
{
    char name[TINY_NAME_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(name, sizeof name, format, arguments);
    va_end(arguments);
    for (size_t i = 0; i < t->parameter_count; i++)
        if (strcmp(t->parameters[i].name, name) == 0)
            return &t->parameters[i];
    fail_msg("no parameter %s", name);
    return NULL;
}

static void read_sizes(tiny *t)
{
    golden *g = t->vectors;
    t->B = (size_t)golden_number(g, "B");
    t->T = (size_t)golden_number(g, "T");
    t->N = t->B * t->T;
    t->V = (size_t)golden_number(g, "V");
    t->C = (size_t)golden_number(g, "C");
    t->NH = (size_t)golden_number(g, "NH");
    t->NKV = (size_t)golden_number(g, "NKV");
    t->HD = (size_t)golden_number(g, "head_dim");
    t->F = (size_t)golden_number(g, "ffn");
    t->L = (size_t)golden_number(g, "L");
    t->W = (t->NH + 2 * t->NKV) * t->HD;
    t->window = (size_t)golden_number(g, "window");
    t->micro_batches = (size_t)golden_number(g, "micro");
    t->eps = (float)golden_number(g, "eps");
    t->is_gpt2 = strcmp(golden_text(g, "family"), "gpt2") == 0;
    t->tied = golden_number(g, "tied") != 0;
    t->qkv_bias = !t->is_gpt2 && golden_number(g, "qkv_bias") != 0;
    t->qk_norm = !t->is_gpt2 && golden_number(g, "qk_norm") != 0;
    assert_true(t->L <= TINY_LAYERS_MAX);
}

static void take_layer(tiny *t, tiny_layer *a)
{
    size_t N = t->N;
    a->x = take_elements(t, N * t->C);
    a->h1 = take_elements(t, N * t->C);
    a->qkv = take_elements(t, N * t->W);
    a->qkv_raw = t->qk_norm ? take_elements(t, N * t->W) : a->qkv;
    a->attn = take_elements(t, N * t->NH * t->HD);
    a->x_mid = take_elements(t, N * t->C);
    a->h2 = take_elements(t, N * t->C);
    a->up = take_elements(t, N * 2 * t->F);
    a->act = take_elements(t, N * t->F);
    a->mean1 = take_floats(t, N);
    a->rstd1 = take_floats(t, N);
    a->mean2 = take_floats(t, N);
    a->rstd2 = take_floats(t, N);
    a->q_rstd = take_floats(t, N * t->NH);
    a->k_rstd = take_floats(t, N * t->NKV);
    a->lse = take_floats(t, N * t->NH);
}

static void take_buffers(tiny *t)
{
    size_t N = t->N;
    for (size_t l = 0; l <= t->L; l++)
        take_layer(t, &t->layers[l]);
    t->h = take_elements(t, N * t->C);
    t->logits = take_elements(t, N * t->V);
    t->mean = take_floats(t, N);
    t->rstd = take_floats(t, N);
    t->losses = take_floats(t, N);
    t->dx = take_elements(t, N * t->C);
    t->dh = take_elements(t, N * t->C);
    t->branch = take_elements(t, N * t->C);
    t->dqkv = take_elements(t, N * t->W);
    t->dattn = take_elements(t, N * t->NH * t->HD);
    t->dup = take_elements(t, N * 2 * t->F);
    t->dact = take_elements(t, N * t->F);
    t->tokens = take(t, N * sizeof(int32_t));
    t->targets = take(t, N * sizeof(int32_t));
    t->positions = take(t, N * sizeof(int32_t));
    t->doc_start = take(t, N * sizeof(int32_t));
    t->sum = take(t, sizeof *t->sum);
    t->step = take(t, sizeof *t->step);
}

static void make_rope_table(tiny *t)
{
    golden *g = t->vectors;
    int is_scaled = strcmp(golden_text(g, "rope.kind"), "llama3") == 0;
    ot_rope_scaling scaling = {.kind = OT_ROPE_PLAIN, .theta = golden_number(g, "theta")};
    if (is_scaled) {
        scaling.kind = OT_ROPE_LLAMA3;
        scaling.factor = golden_number(g, "rope.factor");
        scaling.low_freq_factor = golden_number(g, "rope.low");
        scaling.high_freq_factor = golden_number(g, "rope.high");
        scaling.original_positions = golden_number(g, "rope.original");
    }
    size_t bytes = ot_rope_table_bytes(t->HD, t->T);
    float *table = malloc(bytes);
    assert_non_null(table);
    ot_rope_table(&scaling, t->HD, t->T, table);
    t->rope_table = take(t, bytes);
    tiny_upload(t, t->rope_table, table, bytes);
    free(table);
}

void tiny_open(tiny *t, const char *name, ot_dtype dtype)
{
    const char *parameter;
    void *memory;
    ot_device_options device = {.kind = "cpu", .memory_bytes = MEMORY_BYTES, .threads = 2};
    ot_stream_options stream = {.kind = OT_STREAM_COMPUTE, .name = "tiny"};
    *t = (tiny){.vectors = golden_open(name), .dtype = dtype};
    check(ot_device_open(&device, &t->device));
    check(ot_stream_open(t->device, &stream, &t->stream));
    check(ot_device_arena_open(t->device, name, MEMORY_BYTES, &memory)); /* zeroed */
    t->memory = memory;
    t->kernels = ot_device_kernels(t->device);
    t->workspace = take(t, WORKSPACE_BYTES);
    t->wide = take_floats(t, WIDE_ELEMENTS);
    read_sizes(t);
    for (size_t i = 0; (parameter = golden_name(t->vectors, "initial.", i)) != NULL; i++)
        add_parameter(t, parameter);
    take_buffers(t);
    if (!t->is_gpt2)
        make_rope_table(t);
    tiny_upload(t, t->positions, golden_integers(t->vectors, "positions"), t->N * sizeof(int32_t));
    tiny_upload(t, t->doc_start, golden_integers(t->vectors, "doc_start"), t->N * sizeof(int32_t));
}

void tiny_close(tiny *t)
{
    ot_device_close(t->device);
    golden_close(t->vectors);
}

/* ---- Operations ---- */

static void run_matmul(tiny *t, ot_matmul *a)
{
    assert_true(t->kernels->matmul_workspace(t->device, a) <= WORKSPACE_BYTES);
    a->workspace = t->workspace;
    t->kernels->matmul(t->stream, a);
}

void tiny_linear(tiny *t, const tiny_parameter *weight, const tiny_parameter *bias, const void *x, void *out,
                 size_t ld_out)
{
    ot_matmul y = {.op = OT_MATMUL_FORWARD,
                   .dtype = t->dtype,
                   .out_dtype = t->dtype,
                   .N = t->N,
                   .C = weight->cols,
                   .OC = weight->rows,
                   .a = x,
                   .ld_a = weight->cols,
                   .b = weight->weight,
                   .ld_b = weight->cols,
                   .bias = bias != NULL ? bias->weight : NULL,
                   .out = out,
                   .ld_out = ld_out};
    run_matmul(t, &y);
}

void tiny_linear_backward(tiny *t, tiny_parameter *weight, tiny_parameter *bias, const void *x,
                          const void *dy, size_t ld_dy, void *dx, int accumulate)
{
    size_t C = weight->cols, OC = weight->rows;
    ot_matmul input = {.op = OT_MATMUL_DX,
                       .dtype = t->dtype,
                       .out_dtype = t->dtype,
                       .N = t->N,
                       .C = C,
                       .OC = OC,
                       .a = dy,
                       .ld_a = ld_dy,
                       .b = weight->weight,
                       .ld_b = C,
                       .out = dx,
                       .ld_out = C,
                       .accumulate = accumulate};
    ot_matmul grad = {.op = OT_MATMUL_DW,
                      .dtype = t->dtype,
                      .out_dtype = OT_FP32,
                      .N = t->N,
                      .C = C,
                      .OC = OC,
                      .a = dy,
                      .ld_a = ld_dy,
                      .b = x,
                      .ld_b = C,
                      .out = weight->grad,
                      .ld_out = C,
                      .accumulate = 1};
    run_matmul(t, &input);
    run_matmul(t, &grad);
    if (bias != NULL) {
        ot_bias_backward sum = {
            .dtype = t->dtype, .N = t->N, .OC = OC, .ld_dy = ld_dy, .dy = dy, .dbias = bias->grad};
        assert_true(t->kernels->bias_backward_workspace(t->device, &sum) <= WORKSPACE_BYTES);
        sum.workspace = t->workspace;
        t->kernels->bias_backward(t->stream, &sum);
    }
}

static void run_norm_backward(tiny *t, ot_norm *a)
{
    assert_true(t->kernels->norm_workspace(t->device, a) <= WORKSPACE_BYTES);
    a->workspace = t->workspace;
    t->kernels->norm_backward(t->stream, a);
}

void tiny_norm(tiny *t, const tiny_parameter *weight, const tiny_parameter *bias, const void *x, void *y,
               float *mean, float *rstd)
{
    ot_norm a = {.kind = bias != NULL ? OT_LAYERNORM : OT_RMSNORM,
                 .dtype = t->dtype,
                 .N = t->N,
                 .H = 1,
                 .C = t->C,
                 .eps = t->eps,
                 .ld_x = t->C,
                 .ld_y = t->C,
                 .x = x,
                 .weight = weight->weight,
                 .bias = bias != NULL ? bias->weight : NULL,
                 .y = y,
                 .mean = mean,
                 .rstd = rstd};
    t->kernels->norm_forward(t->stream, &a);
}

void tiny_norm_backward(tiny *t, tiny_parameter *weight, tiny_parameter *bias, const void *x, float *mean,
                        float *rstd, const void *dy, const void *dresidual, void *dx)
{
    ot_norm a = {.kind = bias != NULL ? OT_LAYERNORM : OT_RMSNORM,
                 .dtype = t->dtype,
                 .N = t->N,
                 .H = 1,
                 .C = t->C,
                 .eps = t->eps,
                 .ld_x = t->C,
                 .ld_y = t->C,
                 .ld_dx = t->C,
                 .x = x,
                 .weight = weight->weight,
                 .mean = mean,
                 .rstd = rstd,
                 .dy = dy,
                 .dresidual = dresidual,
                 .dx = dx,
                 .dweight = weight->grad,
                 .dbias = bias != NULL ? bias->grad : NULL};
    run_norm_backward(t, &a);
}

void tiny_head_norm(tiny *t, const tiny_parameter *weight, size_t H, const void *x, void *y, float *rstd)
{
    ot_norm a = {.kind = OT_RMSNORM,
                 .dtype = t->dtype,
                 .N = t->N,
                 .H = H,
                 .C = t->HD,
                 .eps = t->eps,
                 .ld_x = t->W,
                 .ld_y = t->W,
                 .x = x,
                 .weight = weight->weight,
                 .y = y,
                 .rstd = rstd};
    t->kernels->norm_forward(t->stream, &a);
}

void tiny_head_norm_backward(tiny *t, tiny_parameter *weight, size_t H, const void *x, float *rstd, void *dy)
{
    ot_norm a = {.kind = OT_RMSNORM,
                 .dtype = t->dtype,
                 .N = t->N,
                 .H = H,
                 .C = t->HD,
                 .eps = t->eps,
                 .ld_x = t->W,
                 .ld_y = t->W,
                 .ld_dx = t->W,
                 .x = x,
                 .weight = weight->weight,
                 .rstd = rstd,
                 .dy = dy,
                 .dx = dy,
                 .dweight = weight->grad};
    run_norm_backward(t, &a);
}

static ot_attention attention_args(const tiny *t, tiny_layer *a)
{
    return (ot_attention){
        .dtype = t->dtype,
        .B = t->B,
        .T = t->T,
        .NH = t->NH,
        .NKV = t->NKV,
        .HD = t->HD,
        .scale = 1 / sqrtf((float)t->HD),
        .window = t->window,
        .doc_start = t->doc_start,
        .ld_q = t->W,
        .ld_kv = t->W,
        .ld_out = t->NH * t->HD,
        .q = a->qkv,
        .k = tiny_at(t, a->qkv, t->NH * t->HD),
        .v = tiny_at(t, a->qkv, (t->NH + t->NKV) * t->HD),
        .out = a->attn,
        .lse = a->lse,
        .workspace = t->workspace,
    };
}

void tiny_attention(tiny *t, tiny_layer *a)
{
    ot_attention args = attention_args(t, a);
    assert_true(t->kernels->attention_forward_workspace(t->device, &args) <= WORKSPACE_BYTES);
    t->kernels->attention_forward(t->stream, &args);
}

void tiny_attention_backward(tiny *t, tiny_layer *a)
{
    ot_attention args = attention_args(t, a);
    args.dout = t->dattn;
    args.ld_dq = args.ld_dkv = t->W;
    args.dq = t->dqkv;
    args.dk = tiny_at(t, t->dqkv, t->NH * t->HD);
    args.dv = tiny_at(t, t->dqkv, (t->NH + t->NKV) * t->HD);
    assert_true(t->kernels->attention_backward_workspace(t->device, &args) <= WORKSPACE_BYTES);
    t->kernels->attention_backward(t->stream, &args);
}

/* The heads of q and k lie side by side. */
void tiny_rope(tiny *t, void *qkv, int backward)
{
    ot_rope a = {.dtype = t->dtype,
                 .N = t->N,
                 .H = t->NH + t->NKV,
                 .HD = t->HD,
                 .positions = t->positions,
                 .table = t->rope_table,
                 .ld_x = t->W,
                 .x = qkv};
    if (backward)
        t->kernels->rope_backward(t->stream, &a);
    else
        t->kernels->rope_forward(t->stream, &a);
}

void tiny_residual(tiny *t, const void *a, const void *b, void *out)
{
    ot_residual args = {.dtype = t->dtype, .n = t->N * t->C, .a = a, .b = b, .out = out};
    t->kernels->residual_add(t->stream, &args);
}
