/* Every operation against what PyTorch computes in FP64 (tests/golden/make.py), in FP32, bf16 and FP16, in
 * every instruction set and on several numbers of threads. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/kernels/harness.h"
#include "tests/support/golden.h"
#include "tests/support/test.h"

static const ot_dtype dtypes[] = {OT_FP32, OT_BF16, OT_FP16};
enum { DTYPES = 3, OUTPUTS_MAX = 7 };

static golden *vectors;

static double tolerance(ot_dtype dtype)
{
    return dtype == OT_FP32 ? 1e-5 : dtype == OT_BF16 ? 1e-2 : 2e-3;
}

/* ---- One run and what it should give ---- */

typedef struct trial {
    operation *run;
    const void *args;
    double tolerance;
    size_t count;
    tensor *outputs[OUTPUTS_MAX + 1];
    const double *expected[OUTPUTS_MAX];
    const char *names[OUTPUTS_MAX];
} trial;

/* The values of a golden tensor plus `before`: what an output that adds up begins with. */
static const double *expected_sum(const char *name, double before)
{
    double *values = golden_doubles(vectors, name);
    for (size_t i = 0; i < golden_count(vectors, name); i++)
        values[i] += before;
    return values;
}

static tensor *expect(trial *t, const char *name, ot_dtype dtype, double before)
{
    tensor *output = make_filled(dtype, golden_count(vectors, name), before);
    t->outputs[t->count] = output;
    t->expected[t->count] = expected_sum(name, before);
    t->names[t->count++] = name;
    return output;
}

/* An output that is overwritten. */
static void *result(trial *t, const char *name, ot_dtype dtype)
{
    tensor *output = expect(t, name, dtype, 0);
    memset(output->before, 0xa5, output->n * ot_dtype_bytes(dtype));
    return output->data;
}

/* A gradient of a weight, which is added to. */
static float *sum(trial *t, const char *name)
{
    return expect(t, name, OT_FP32, 0.25)->data;
}

static tensor *make_input(const char *name, ot_dtype dtype)
{
    const double *values = golden_doubles(vectors, name);
    tensor *t = make_filled(dtype, golden_count(vectors, name), 0);
    for (size_t i = 0; i < t->n; i++)
        set(t, i, values[i]);
    memcpy(t->before, t->data, t->n * ot_dtype_bytes(dtype));
    return t;
}

static void *input(const char *name, ot_dtype dtype)
{
    return make_input(name, dtype)->data;
}

/* An output that the operation works on in place, from the values of `from`. */
static void *in_place(trial *t, const char *name, const char *from, ot_dtype dtype)
{
    tensor *output = make_input(from, dtype);
    t->outputs[t->count] = output;
    t->expected[t->count] = golden_doubles(vectors, name);
    t->names[t->count++] = name;
    return output->data;
}

static void check_trial(void *context)
{
    const trial *t = context;
    for (size_t i = 0; i < t->count; i++)
        expect_close(t->outputs[i], t->expected[i], t->tolerance, t->names[i]);
}

static void run_trial(trial *t, operation *run, const void *args, double allowed)
{
    t->run = run;
    t->args = args;
    t->tolerance = allowed;
    run_per_isa(run, check_trial, t, t->outputs);
}

#define RUN(operation)                                                                                       \
    static void run_##operation(const ot_kernels *kernels, ot_stream *stream, void *context)                 \
    {                                                                                                        \
        kernels->operation(stream, ((const trial *)context)->args);                                          \
    }
RUN(embedding_forward)
RUN(embedding_backward)
RUN(norm_forward)
RUN(norm_backward)
RUN(bias_backward)
RUN(rope_forward)
RUN(rope_backward)
RUN(swiglu_forward)
RUN(swiglu_backward)
RUN(gelu_forward)
RUN(gelu_backward)
RUN(residual_add)
RUN(cross_entropy)
RUN(scale)
RUN(accumulate)
RUN(cast)
RUN(split_master)
RUN(join_master)

/* With a workspace as this device wants it. */
#define RUN_IN_WORKSPACE(operation, type, workspace_bytes)                                                   \
    static void run_##operation(const ot_kernels *kernels, ot_stream *stream, void *context)                 \
    {                                                                                                        \
        type args = *(const type *)((const trial *)context)->args;                                           \
        args.workspace = make_workspace(kernels->workspace_bytes(ot_stream_device(stream), &args));          \
        kernels->operation(stream, &args);                                                                   \
    }
RUN_IN_WORKSPACE(matmul, ot_matmul, matmul_workspace)
RUN_IN_WORKSPACE(attention_forward, ot_attention, attention_forward_workspace)
RUN_IN_WORKSPACE(attention_backward, ot_attention, attention_backward_workspace)

static size_t extent(const char *name, size_t dimension)
{
    return golden_shape(vectors, name, dimension);
}

/* "prefix.name", valid for the next KEYS calls. */
static const char *key(const char *prefix, const char *name)
{
    enum { KEYS = 64 };
    static char texts[KEYS][64];
    static size_t next;
    char *text = texts[next++ % KEYS];
    snprintf(text, sizeof texts[0], "%s.%s", prefix, name);
    return text;
}

/* ---- Operations ---- */

static void embedding(void **state)
{
    (void)state;
    for (int d = 0; d < DTYPES; d++) {
        ot_embedding a = {.dtype = dtypes[d],
                          .N = golden_count(vectors, "embedding.tokens"),
                          .C = extent("embedding.table", 1),
                          .V = extent("embedding.table", 0),
                          .tokens = golden_integers(vectors, "embedding.tokens"),
                          .table = input("embedding.table", dtypes[d]),
                          .dout = input("embedding.dout", dtypes[d])};
        trial forward = {0}, added = {0}, backward = {0};
        a.out = result(&forward, "embedding.out", dtypes[d]);
        run_trial(&forward, run_embedding_forward, &a, tolerance(dtypes[d]));
        a.add = 1;
        a.out = in_place(&added, "embedding.added", "embedding.dout", dtypes[d]);
        run_trial(&added, run_embedding_forward, &a, tolerance(dtypes[d]));
        a.dtable = sum(&backward, "embedding.dtable");
        run_trial(&backward, run_embedding_backward, &a, tolerance(dtypes[d]));
    }
}

static void check_norm(ot_dtype dtype, ot_norm_kind kind, const char *name)
{
    const char *x = key(name, "x");
    int layernorm = kind == OT_LAYERNORM;
    ot_norm a = {
        .kind = kind, .dtype = dtype, .N = extent(x, 0), .H = extent(x, 1), .C = extent(x, 2), .eps = 1e-5f};
    a.ld_x = a.ld_y = a.ld_dx = a.H * a.C;
    a.x = input(x, dtype);
    a.weight = input(key(name, "weight"), dtype);
    a.bias = layernorm ? input(key(name, "bias"), dtype) : NULL;
    trial forward = {0}, backward = {0};
    a.y = result(&forward, key(name, "y"), dtype);
    a.mean = layernorm ? result(&forward, key(name, "mean"), OT_FP32) : NULL;
    a.rstd = result(&forward, key(name, "rstd"), OT_FP32);
    run_trial(&forward, run_norm_forward, &a, tolerance(dtype));
    a.dy = input(key(name, "dy"), dtype);
    a.dresidual = input(key(name, "dresidual"), dtype);
    a.dx = result(&backward, key(name, "dx"), dtype);
    a.dweight = sum(&backward, key(name, "dweight"));
    a.dbias = layernorm ? sum(&backward, key(name, "dbias")) : NULL;
    run_trial(&backward, run_norm_backward, &a, tolerance(dtype));
}

static void norms(void **state)
{
    (void)state;
    for (int d = 0; d < DTYPES; d++) {
        check_norm(dtypes[d], OT_RMSNORM, "rmsnorm");
        check_norm(dtypes[d], OT_RMSNORM, "qknorm");
        check_norm(dtypes[d], OT_LAYERNORM, "layernorm");
    }
}

static void matrix_products(void **state)
{
    (void)state;
    for (int d = 0; d < DTYPES; d++) {
        size_t N = extent("matmul.x", 0), C = extent("matmul.x", 1), OC = extent("matmul.w", 0);
        const void *x = input("matmul.x", dtypes[d]), *w = input("matmul.w", dtypes[d]),
                   *dy = input("matmul.dy", dtypes[d]);
        const ot_matmul sizes = {.dtype = dtypes[d], .out_dtype = dtypes[d], .N = N, .C = C, .OC = OC};
        trial y = {0}, added = {0}, dx = {0}, dw = {0}, dbias = {0};
        ot_matmul a = sizes;
        a.op = OT_MATMUL_FORWARD;
        a.a = x, a.b = w, a.ld_a = C, a.ld_b = C, a.ld_out = OC;
        a.bias = input("matmul.bias", dtypes[d]);
        a.out = result(&y, "matmul.y", dtypes[d]);
        run_trial(&y, run_matmul, &a, tolerance(dtypes[d]));
        a.accumulate = 1;
        a.out = in_place(&added, "matmul.added", "matmul.before", dtypes[d]);
        run_trial(&added, run_matmul, &a, tolerance(dtypes[d]));
        a = sizes;
        a.op = OT_MATMUL_DX;
        a.a = dy, a.b = w, a.ld_a = OC, a.ld_b = C, a.ld_out = C;
        a.out = result(&dx, "matmul.dx", dtypes[d]);
        run_trial(&dx, run_matmul, &a, tolerance(dtypes[d]));
        a.op = OT_MATMUL_DW;
        a.a = dy, a.b = x, a.ld_a = OC, a.ld_b = C, a.ld_out = C;
        a.out_dtype = OT_FP32;
        a.accumulate = 1;
        a.out = sum(&dw, "matmul.dw");
        run_trial(&dw, run_matmul, &a, tolerance(dtypes[d]));
        ot_bias_backward bias = {.dtype = dtypes[d], .N = N, .OC = OC, .ld_dy = OC, .dy = dy};
        bias.dbias = sum(&dbias, "matmul.dbias");
        run_trial(&dbias, run_bias_backward, &bias, tolerance(dtypes[d]));
    }
}

static void rotary_positions(void **state)
{
    (void)state;
    enum { POSITIONS = 64 };
    static const char *const names[] = {"rope_plain", "rope_linear", "rope_llama3"};
    static const ot_rope_scaling scalings[] = {{.kind = OT_ROPE_PLAIN, .theta = 10000},
                                               {.kind = OT_ROPE_LINEAR, .theta = 10000, .factor = 4},
                                               {.kind = OT_ROPE_LLAMA3,
                                                .theta = 500000,
                                                .factor = 8,
                                                .low_freq_factor = 1,
                                                .high_freq_factor = 4,
                                                .original_positions = 32}};
    for (int d = 0; d < DTYPES; d++)
        for (int i = 0; i < 3; i++) {
            const char *x = key(names[i], "x"), *y = key(names[i], "y"), *dx = key(names[i], "dx");
            trial forward = {0}, backward = {0};
            ot_rope a = {.dtype = dtypes[d], .N = extent(x, 0), .H = extent(x, 1), .HD = extent(x, 2)};
            float *table = make_filled(OT_FP32, POSITIONS * a.HD, 0)->data;
            ot_rope_table(&scalings[i], a.HD, POSITIONS, table);
            a.table = table;
            a.ld_x = a.H * a.HD;
            a.positions = golden_integers(vectors, "rope.positions");
            a.x = in_place(&forward, y, x, dtypes[d]);
            run_trial(&forward, run_rope_forward, &a, tolerance(dtypes[d]));
            a.x = in_place(&backward, dx, key(names[i], "dout"), dtypes[d]);
            run_trial(&backward, run_rope_backward, &a, tolerance(dtypes[d]));
        }
}

static void check_attention(ot_dtype dtype, const char *name, size_t window)
{
    const char *q = key(name, "q"), *k = key(name, "k");
    ot_attention a = {.dtype = dtype,
                      .B = extent(q, 0),
                      .T = extent(q, 1),
                      .NH = extent(q, 2),
                      .HD = extent(q, 3),
                      .NKV = extent(k, 2),
                      .window = window};
    a.scale = 1 / sqrtf((float)a.HD);
    a.doc_start = golden_integers(vectors, key(name, "doc_start"));
    a.ld_q = a.ld_out = a.ld_dq = a.NH * a.HD;
    a.ld_kv = a.ld_dkv = a.NKV * a.HD;
    a.q = input(q, dtype);
    a.k = input(k, dtype);
    a.v = input(key(name, "v"), dtype);
    trial forward = {0}, backward = {0};
    a.out = result(&forward, key(name, "out"), dtype);
    a.lse = result(&forward, key(name, "lse"), OT_FP32);
    run_trial(&forward, run_attention_forward, &a, tolerance(dtype));
    a.out = input(key(name, "out"), dtype);
    a.lse = input(key(name, "lse"), OT_FP32);
    a.dout = input(key(name, "dout"), dtype);
    a.dq = result(&backward, key(name, "dq"), dtype);
    a.dk = result(&backward, key(name, "dk"), dtype);
    a.dv = result(&backward, key(name, "dv"), dtype);
    run_trial(&backward, run_attention_backward, &a, tolerance(dtype));
}

static void attention(void **state)
{
    (void)state;
    for (int d = 0; d < DTYPES; d++) {
        check_attention(dtypes[d], "attention_full", 0);
        check_attention(dtypes[d], "attention_window", 7);
        check_attention(dtypes[d], "attention_documents", 20);
    }
}

static void activations(void **state)
{
    (void)state;
    for (int d = 0; d < DTYPES; d++) {
        trial forward = {0}, backward = {0};
        size_t F = extent("swiglu.gate", 1);
        ot_swiglu a = {.dtype = dtypes[d],
                       .N = extent("swiglu.gate", 0),
                       .F = F,
                       .ld_gate = F,
                       .ld_out = F,
                       .ld_dgate = F};
        a.gate = input("swiglu.gate", dtypes[d]);
        a.up = input("swiglu.up", dtypes[d]);
        a.out = result(&forward, "swiglu.out", dtypes[d]);
        run_trial(&forward, run_swiglu_forward, &a, tolerance(dtypes[d]));
        a.dout = input("swiglu.dout", dtypes[d]);
        a.dgate = result(&backward, "swiglu.dgate", dtypes[d]);
        a.dup = result(&backward, "swiglu.dup", dtypes[d]);
        run_trial(&backward, run_swiglu_backward, &a, tolerance(dtypes[d]));
        for (int kind = OT_GELU_TANH; kind <= OT_GELU_ERF; kind++) {
            const char *name = kind == OT_GELU_TANH ? "gelu_tanh" : "gelu_erf";
            trial y = {0}, dx = {0};
            ot_gelu g = {.kind = (ot_gelu_kind)kind, .dtype = dtypes[d], .n = extent(key(name, "x"), 0)};
            g.x = input(key(name, "x"), dtypes[d]);
            g.y = result(&y, key(name, "y"), dtypes[d]);
            run_trial(&y, run_gelu_forward, &g, tolerance(dtypes[d]));
            g.dy = input(key(name, "dy"), dtypes[d]);
            g.dx = result(&dx, key(name, "dx"), dtypes[d]);
            run_trial(&dx, run_gelu_backward, &g, tolerance(dtypes[d]));
        }
    }
}

static void planes(void **state)
{
    (void)state;
    for (int d = 0; d < DTYPES; d++) {
        trial added = {0}, scaled = {0}, accumulated = {0};
        size_t n = extent("residual.a", 0);
        ot_residual residual = {.dtype = dtypes[d],
                                .n = n,
                                .a = input("residual.a", dtypes[d]),
                                .b = input("residual.b", dtypes[d])};
        residual.out = result(&added, "residual.out", dtypes[d]);
        run_trial(&added, run_residual_add, &residual, tolerance(dtypes[d]));
        ot_scale factor = {.dtype = dtypes[d], .n = n, .factor = 0.375f};
        factor.x = in_place(&scaled, "scale.out", "scale.x", dtypes[d]);
        run_trial(&scaled, run_scale, &factor, tolerance(dtypes[d]));
        ot_accumulate sums = {
            .src_dtype = dtypes[d], .n = n, .src = input("accumulate.src", dtypes[d]), .factor = 0.375f};
        sums.dst = in_place(&accumulated, "accumulate.out", "accumulate.before", OT_FP32);
        run_trial(&accumulated, run_accumulate, &sums, tolerance(OT_FP32));
    }
}

static void losses(void **state)
{
    (void)state;
    for (int d = 0; d < DTYPES; d++) {
        trial t = {0};
        ot_cross_entropy a = {.dtype = dtypes[d],
                              .N = extent("cross_entropy.logits", 0),
                              .V = extent("cross_entropy.logits", 1),
                              .targets = golden_integers(vectors, "cross_entropy.targets"),
                              .backward = 1,
                              .scale = 0.125f};
        a.ld_logits = a.V;
        a.logits = in_place(&t, "cross_entropy.dlogits", "cross_entropy.logits", dtypes[d]);
        a.losses = result(&t, "cross_entropy.losses", OT_FP32);
        run_trial(&t, run_cross_entropy, &a, tolerance(dtypes[d]));
    }
}

static void run_sums(const ot_kernels *kernels, ot_stream *stream, void *context)
{
    const ot_sum_squares *a = ((const trial *)context)->args;
    ot_sum all = {.n = ot_sum_blocks(a->n), .x = a->partials, .out = a->partials};
    kernels->sum_squares(stream, a);
    kernels->sum_partials(stream, &all);
}

static void sums_of_squares(void **state)
{
    (void)state;
    double partials[1];
    for (int d = 0; d < DTYPES; d++) {
        ot_sum_squares a = {.dtype = dtypes[d],
                            .n = extent("sum_squares.x", 0),
                            .x = input("sum_squares.x", dtypes[d]),
                            .partials = partials};
        trial t = {0};
        run_trial(&t, run_sums, &a, 0);
        double expected = golden_doubles(vectors, "sum_squares.sum")[0];
        assert_true(fabs(partials[0] - expected) <= 1e-6 * expected);
    }
}

/* Bit patterns: FP32 to bf16 and FP16, and the two halves of a split master and back. */
static void patterns(void **state)
{
    (void)state;
    const tensor *x = make_input("cast.x", OT_FP32);
    for (int d = 1; d < DTYPES; d++) {
        trial t = {0};
        tensor *out = t.outputs[0] = make_filled(dtypes[d], x->n, 0);
        ot_cast a = {
            .dst_dtype = dtypes[d], .src_dtype = OT_FP32, .n = x->n, .src = x->data, .dst = out->data};
        const int32_t *expected = golden_integers(vectors, d == 1 ? "cast.bf16" : "cast.fp16");
        run_trial(&t, run_cast, &a, 0);
        for (size_t i = 0; i < x->n; i++)
            assert_int_equal(((uint16_t *)out->data)[i], (uint16_t)expected[i]);
    }
    trial split = {0}, join = {0};
    tensor *hi = split.outputs[0] = make_filled(OT_BF16, x->n, 0),
           *lo = split.outputs[1] = make_filled(OT_BF16, x->n, 0);
    tensor *master = join.outputs[0] = make_filled(OT_FP32, x->n, 0);
    ot_split a = {.n = x->n, .master = x->data, .hi = hi->data, .lo = lo->data};
    run_trial(&split, run_split_master, &a, 0);
    const int32_t *expected_hi = golden_integers(vectors, "split.hi"),
                  *expected_lo = golden_integers(vectors, "split.lo");
    for (size_t i = 0; i < x->n; i++) {
        assert_int_equal(((int16_t *)hi->data)[i], expected_hi[i]);
        assert_int_equal(((int16_t *)lo->data)[i], expected_lo[i]);
    }
    a.master = master->data;
    run_trial(&join, run_join_master, &a, 0);
    assert_memory_equal(master->data, x->data, x->n * sizeof(float));
}

/* ---- Optimizers: three steps ---- */

enum { STEPS = 3 };

typedef struct steps {
    ot_adafactor a; /* its `update` for all optimizers */
    ot_update_step step[STEPS];
    ot_dtype grad_dtype;
} steps;

/* Hyper-parameters as in make.py. */
static steps make_steps(ot_optimizer kind, ot_dtype grad_dtype)
{
    size_t n = extent("update.p", 0);
    steps s = {.a = {.eps1 = 1e-30f}, .grad_dtype = grad_dtype};
    s.a.update = (ot_update){.kind = kind,
                             .n = n,
                             .beta1 = 0.9f,
                             .beta2 = 0.999f,
                             .eps = 1e-8f,
                             .weight_decay = 0.1f,
                             .grad_dtype = grad_dtype,
                             .grad = input("update.grad", grad_dtype)};
    for (int k = 1; k <= STEPS; k++)
        s.step[k - 1] = (ot_update_step){.grad_scale = 1,
                                         .lr = 1e-2f,
                                         .bias1 = (float)(1 - pow((double)0.9f, k)),
                                         .bias2 = (float)(1 - pow((double)0.999f, k)),
                                         .beta2_adafactor = (float)(1 - pow(k, -0.8)),
                                         .number = (uint64_t)k};
    return s;
}

static ot_update update_of_step(const steps *s, size_t k)
{
    ot_update u = s->a.update;
    u.step = &s->step[k];
    u.grad = (const char *)u.grad + k * u.n * ot_dtype_bytes(s->grad_dtype);
    return u;
}

static void run_update_steps(const ot_kernels *kernels, ot_stream *stream, void *context)
{
    const steps *s = ((const trial *)context)->args;
    for (size_t k = 0; k < STEPS; k++) {
        ot_update u = update_of_step(s, k);
        kernels->update(stream, &u);
    }
}

static void run_adafactor_steps(const ot_kernels *kernels, ot_stream *stream, void *context)
{
    const steps *s = ((const trial *)context)->args;
    for (size_t k = 0; k < STEPS; k++) {
        ot_adafactor a = s->a;
        a.update = update_of_step(s, k);
        ot_scale zero = {.dtype = OT_FP32, .n = a.cols, .x = a.column_sums, .factor = 0};
        ot_sum all = {.n = ot_sum_blocks(a.update.n), .x = a.partials, .out = a.partials};
        a.square_sum = a.partials;
        kernels->scale(stream, &zero);
        for (int pass = OT_ADAFACTOR_STATS; pass <= OT_ADAFACTOR_APPLY; pass++) {
            a.pass = (ot_adafactor_pass)pass;
            kernels->adafactor(stream, &a);
            if (pass == OT_ADAFACTOR_RMS)
                kernels->sum_partials(stream, &all);
        }
    }
}

static void *zeros(trial *t, const char *name)
{
    return expect(t, name, OT_FP32, 0)->data;
}

static void set_weight(steps *s, trial *t, const char *p, ot_dtype weight_dtype)
{
    s->a.update.master = in_place(t, p, "update.p", OT_FP32);
    s->a.update.weight_dtype = weight_dtype;
    s->a.update.weight = weight_dtype == OT_FP32 ? NULL : result(t, p, weight_dtype);
}

static void optimizers(void **state)
{
    (void)state;
    static const char *const names[] = {"adamw", "adam", "sgd", "lion"};
    for (int kind = OT_OPTIMIZER_ADAMW; kind <= OT_OPTIMIZER_LION; kind++)
        for (int d = 0; d < DTYPES; d++) {
            trial t = {0};
            steps s = make_steps((ot_optimizer)kind, dtypes[d]);
            set_weight(&s, &t, key(names[kind], "p"), dtypes[d]);
            s.a.update.moment1 = zeros(&t, key(names[kind], "m"));
            if (kind <= OT_OPTIMIZER_ADAM)
                s.a.update.moment2 = zeros(&t, key(names[kind], "v"));
            run_trial(&t, run_update_steps, &s, tolerance(dtypes[d]));
        }
}

static void adafactor(void **state)
{
    (void)state;
    float row_mean[1];
    double partials[1];
    for (int vector = 0; vector <= 1; vector++)
        for (int d = 0; d < DTYPES; d++) {
            const char *name = vector ? "adafactor_vector" : "adafactor";
            trial t = {0};
            steps s = make_steps(OT_OPTIMIZER_ADAFACTOR, dtypes[d]);
            s.a.rows = extent(key(name, "p"), 0);
            s.a.cols = extent(key(name, "p"), 1);
            set_weight(&s, &t, key(name, "p"), dtypes[d]);
            if (!vector)
                s.a.r = zeros(&t, key(name, "r"));
            s.a.c = zeros(&t, key(name, "c"));
            s.a.column_sums = make_filled(OT_FP32, s.a.cols, 0)->data;
            s.a.row_mean = row_mean;
            s.a.partials = partials;
            run_trial(&t, run_adafactor_steps, &s, tolerance(dtypes[d]));
        }
}

static int open_vectors(void **state)
{
    vectors = golden_open("operations");
    return open_devices(state);
}

static int close_vectors(void **state)
{
    golden_close(vectors);
    return close_devices(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(embedding, free_tensors),
        cmocka_unit_test_teardown(norms, free_tensors),
        cmocka_unit_test_teardown(matrix_products, free_tensors),
        cmocka_unit_test_teardown(rotary_positions, free_tensors),
        cmocka_unit_test_teardown(attention, free_tensors),
        cmocka_unit_test_teardown(activations, free_tensors),
        cmocka_unit_test_teardown(planes, free_tensors),
        cmocka_unit_test_teardown(losses, free_tensors),
        cmocka_unit_test_teardown(sums_of_squares, free_tensors),
        cmocka_unit_test_teardown(patterns, free_tensors),
        cmocka_unit_test_teardown(optimizers, free_tensors),
        cmocka_unit_test_teardown(adafactor, free_tensors),
    };
    return cmocka_run_group_tests(tests, open_vectors, close_vectors);
}
