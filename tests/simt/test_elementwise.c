/* CUDA's embedding, rotary positions, activations and loss against the CPU device's. */
#include <math.h>
#include <string.h>

#include "tests/simt/compare.h"
#include "tests/support/test.h"

static const ot_dtype dtypes[] = {OT_FP32, OT_BF16, OT_FP16};

#define RUN(name, type)                                                                                      \
    static void name(const ot_kernels *kernels, ot_stream *stream, void *context)                            \
    {                                                                                                        \
        kernels->name(stream, (const type *)context);                                                        \
    }

RUN(embedding_forward, ot_embedding)
RUN(rope_forward, ot_rope)
RUN(rope_backward, ot_rope)
RUN(swiglu_forward, ot_swiglu)
RUN(swiglu_backward, ot_swiglu)
RUN(gelu_forward, ot_gelu)
RUN(gelu_backward, ot_gelu)
RUN(residual_add, ot_residual)
RUN(cross_entropy, ot_cross_entropy)

static void embedding_backward(const ot_kernels *kernels, ot_stream *stream, void *context)
{
    ot_embedding args = *(const ot_embedding *)context;
    args.workspace = make_workspace(kernels->embedding_workspace(NULL, &args));
    kernels->embedding_backward(stream, &args);
}

static void *data(tensor *t)
{
    return t->data;
}

/* ---- Embedding ---- */

static void embedding(void **state)
{
    (void)state;
    static const size_t sizes[][3] = {{1, 1, 1}, {33, 64, 7}, {100, 33, 1000}, {300, 136, 2500}};
    for (size_t d = 0; d < 3; d++)
        for (size_t i = 0; i < 4; i++) {
            size_t N = sizes[i][0], C = sizes[i][1], V = sizes[i][2];
            ot_embedding args = {.dtype = dtypes[d], .N = N, .C = C, .V = V, .add = i % 2};
            tensor *out[] = {make_random(dtypes[d], N * C, 1, 3), NULL};
            tensor *dtable[] = {make_random(OT_FP32, V * C, 1, 4), NULL};
            args.tokens = make_indices(N, (int32_t)V, 1);
            args.table = data(make_random(dtypes[d], V * C, 1, 2));
            args.out = data(out[0]);
            compare_bytes(embedding_forward, &args, out, "embedding_forward");
            args.dout = data(make_random(dtypes[d], N * C, 1, 5));
            args.dtable = data(dtable[0]);
            compare_bytes(embedding_backward, &args, dtable, "embedding_backward");
            if (i == 3 && d == 0)
                expect_barriers_needed(embedding_backward, &args, dtable, "");
            free_tensors(NULL);
        }
}

static void a_wrong_token_is_not_followed(void **state)
{
    (void)state;
    int32_t tokens[] = {1, -1, 5, 2147483647, 0};
    tensor *out = make_filled(OT_FP16, 5 * 8, 0), *dtable = make_filled(OT_FP32, 5 * 8, 0);
    ot_embedding args = {.dtype = OT_FP16,
                         .N = 5,
                         .C = 8,
                         .V = 5,
                         .tokens = tokens,
                         .table = data(make_filled(OT_FP16, 5 * 8, 2)),
                         .out = data(out),
                         .dout = data(make_filled(OT_FP16, 5 * 8, 3)),
                         .dtable = data(dtable)};
    embedding_forward(&simt_kernels, NULL, &args);
    embedding_backward(&simt_kernels, NULL, &args);
    for (size_t i = 0; i < 5 * 8; i++) {
        assert_int_equal(isnan(get(out, i)), i / 8 >= 1 && i / 8 <= 3);
        assert_true(get(dtable, i) == (i / 8 <= 1 ? 3 : 0));
    }
}

/* ---- Rotary positions ---- */

static void rope(void **state)
{
    (void)state;
    static const size_t sizes[][3] = {{1, 1, 64}, {33, 3, 80}, {7, 2, 6}, {100, 5, 128}, {5, 1, 96}};
    for (size_t d = 0; d < 3; d++)
        for (size_t i = 0; i < 5; i++) {
            size_t N = sizes[i][0], H = sizes[i][1], HD = sizes[i][2], ld = H * HD + i % 2 * 8;
            tensor *table = make_filled(OT_FP32, 50 * HD, 0),
                   *x[] = {make_random(dtypes[d], N * ld, 1, 1), NULL};
            ot_rope_scaling scaling = {.kind = OT_ROPE_PLAIN, .theta = 10000};
            ot_rope_table(&scaling, HD, 50, data(table));
            ot_rope args = {.dtype = dtypes[d],
                            .N = N,
                            .H = H,
                            .HD = HD,
                            .positions = make_indices(N, 50, 2),
                            .table = data(table),
                            .ld_x = ld,
                            .x = data(x[0])};
            compare(rope_forward, &args, x, tolerance_between(dtypes[d]), "rope_forward");
            compare(rope_backward, &args, x, tolerance_between(dtypes[d]), "rope_backward");
            free_tensors(NULL);
        }
}

/* ---- Activations ---- */

static void swiglu(void **state)
{
    (void)state;
    static const size_t sizes[][2] = {{1, 1}, {33, 100}, {5, 2056}, {100, 64}};
    for (size_t d = 0; d < 3; d++)
        for (size_t i = 0; i < 4; i++) {
            size_t N = sizes[i][0], F = sizes[i][1];
            tensor *both = make_random(dtypes[d], N * 2 * F, 3, 1);
            tensor *out[] = {make_filled(dtypes[d], N * F, 0), NULL};
            void *up = (char *)both->data + F * ot_dtype_bytes(dtypes[d]);
            ot_swiglu args = {.dtype = dtypes[d],
                              .N = N,
                              .F = F,
                              .ld_gate = 2 * F,
                              .gate = both->data,
                              .up = up,
                              .ld_out = F,
                              .out = data(out[0]),
                              .dout = data(make_random(dtypes[d], N * F, 1, 2)),
                              .ld_dgate = 2 * F,
                              .dgate = both->data,
                              .dup = up};
            compare(swiglu_forward, &args, out, tolerance_between(dtypes[d]), "swiglu_forward");
            tensor *gradients[] = {both, NULL};
            compare(swiglu_backward, &args, gradients, tolerance_between(dtypes[d]), "swiglu_backward");
            free_tensors(NULL);
        }
}

static void gelu_and_residual(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 33, 4096, 2051};
    for (size_t d = 0; d < 3; d++)
        for (size_t i = 0; i < 4; i++)
            for (int kind = 0; kind < 2; kind++) {
                double tolerance = tolerance_between(dtypes[d]);
                tensor *y[] = {make_random(dtypes[d], sizes[i], 3, 1), NULL};
                tensor *dx[] = {make_random(dtypes[d], sizes[i], 1, 2), NULL};
                ot_gelu args = {.kind = (ot_gelu_kind)kind,
                                .dtype = dtypes[d],
                                .n = sizes[i],
                                .x = data(y[0]),
                                .y = data(y[0]),
                                .dy = data(dx[0]),
                                .dx = data(dx[0])};
                compare(gelu_forward, &args, y, tolerance, "gelu_forward");
                compare(gelu_backward, &args, dx, tolerance, "gelu_backward");
                ot_residual sum = {
                    .dtype = dtypes[d], .n = sizes[i], .a = data(y[0]), .b = data(dx[0]), .out = data(dx[0])};
                compare_bytes(residual_add, &sum, dx, "residual_add");
                free_tensors(NULL);
            }
}

static void the_lower_tail_of_gelu(void **state)
{
    (void)state;
    tensor *y[] = {make_filled(OT_FP32, 64, 0), NULL}, *x = make_filled(OT_FP32, 64, 0);
    for (size_t i = 0; i < 64; i++)
        set(x, i, -0.2 * (double)i);
    ot_gelu args = {.kind = OT_GELU_ERF, .dtype = OT_FP32, .n = 64, .x = data(x), .y = data(y[0])};
    gelu_forward(&simt_kernels, NULL, &args);
    for (size_t i = 0; i < 64; i++) {
        double v = get(x, i), expected = v * 0.5 * erfc(-v / sqrt(2.0));
        assert_true(fabs(get(y[0], i) - expected) <= 1e-5 * fabs(expected) + 1e-37);
    }
}

/* ---- Loss ---- */

static void loss(void **state)
{
    (void)state;
    static const size_t sizes[][3] = {{1, 1, 1}, {33, 100, 104}, {5, 5001, 5003}, {4, 8192, 8192}};
    for (size_t d = 0; d < 3; d++)
        for (size_t i = 0; i < 4; i++)
            for (int backward = 0; backward < 2; backward++) {
                size_t N = sizes[i][0], V = sizes[i][1], ld = sizes[i][2];
                tensor *losses = make_filled(OT_FP32, N, 7), *logits = make_random(dtypes[d], N * ld, 4, 1);
                tensor *outputs[] = {logits, losses, NULL};
                int32_t *targets = make_indices(N, (int32_t)V, 2);
                targets[N / 2] = N > 1 ? -1 : 0;
                ot_cross_entropy args = {.dtype = dtypes[d],
                                         .N = N,
                                         .V = V,
                                         .ld_logits = ld,
                                         .logits = data(logits),
                                         .targets = targets,
                                         .losses = data(losses),
                                         .backward = backward,
                                         .scale = 128};
                compare(cross_entropy, &args, outputs, tolerance_between(dtypes[d]), "cross_entropy");
                if (i == 2 && d == 0 && backward)
                    expect_barriers_needed(cross_entropy, &args, outputs, "");
                free_tensors(NULL);
            }
}

/* Rows with infinities and NaN give what the CPU device gives, up to NaN's bits. */
static void loss_of_what_is_not_finite(void **state)
{
    (void)state;
    enum { ROWS = 5, V = 600 };
    tensor *logits = make_random(OT_FP32, ROWS * V, 1, 1), *losses = make_filled(OT_FP32, ROWS, 7);
    for (size_t i = 0; i < V; i++) {
        set(logits, i, i == 3 ? 1 : -INFINITY);
        set(logits, 4 * V + i, -INFINITY);
    }
    set(logits, V + 500, INFINITY);
    set(logits, 2 * V + 77, NAN);
    memcpy(logits->before, logits->data, sizeof(float) * ROWS * V);
    int32_t targets[ROWS] = {3, 5, 6, 7, 8};
    ot_cross_entropy args = {.dtype = OT_FP32,
                             .N = ROWS,
                             .V = V,
                             .ld_logits = V,
                             .logits = data(logits),
                             .targets = targets,
                             .losses = data(losses),
                             .backward = 1,
                             .scale = 1};
    run_on_cpu(cross_entropy, &args);
    double *expected = to_doubles(logits), *expected_losses = to_doubles(losses);
    memcpy(logits->data, logits->before, sizeof(float) * ROWS * V);
    cross_entropy(&simt_kernels, NULL, &args);
    for (size_t n = 0; n < ROWS; n++) {
        assert_int_equal(isnan(get(losses, n)), isnan(expected_losses[n]));
        for (size_t i = n * V; i < (n + 1) * V; i++)
            assert_true(isnan(expected[i]) ? isnan(get(logits, i))
                                           : fabs(get(logits, i) - expected[i]) < 1e-6);
    }
}

/* ---- Bytes ---- */

static void nothing_is_moved_twice(void **state)
{
    (void)state;
    enum { N = 4, F = 4096, BYTES = N * F * 2 };
    void *block[6];
    for (int i = 0; i < 6; i++)
        block[i] = data(make_random(OT_BF16, N * F, 1, 1));
    ot_swiglu glu = {.dtype = OT_BF16,
                     .N = N,
                     .F = F,
                     .ld_gate = F,
                     .gate = block[0],
                     .up = block[1],
                     .ld_out = F,
                     .out = block[2],
                     .dout = block[3],
                     .ld_dgate = F,
                     .dgate = block[4],
                     .dup = block[5]};
    expect_bytes(swiglu_forward, &glu, 2 * BYTES, BYTES, "swiglu_forward");
    expect_bytes(swiglu_backward, &glu, 3 * BYTES, 2 * BYTES, "swiglu_backward");
    ot_gelu gelu = {
        .dtype = OT_BF16, .n = N * F, .x = block[0], .y = block[1], .dy = block[2], .dx = block[3]};
    expect_bytes(gelu_forward, &gelu, BYTES, BYTES, "gelu_forward");
    expect_bytes(gelu_backward, &gelu, 2 * BYTES, BYTES, "gelu_backward");
    ot_residual sum = {.dtype = OT_BF16, .n = N * F, .a = block[0], .b = block[1], .out = block[2]};
    expect_bytes(residual_add, &sum, 2 * BYTES, BYTES, "residual_add");
    int32_t targets[N] = {1, 2, 3, 4};
    float losses[N];
    ot_cross_entropy ce = {.dtype = OT_BF16,
                           .N = N,
                           .V = F,
                           .ld_logits = F,
                           .logits = block[0],
                           .targets = targets,
                           .losses = losses,
                           .backward = 1,
                           .scale = 1};
    expect_bytes(cross_entropy, &ce, 2 * BYTES, BYTES, "cross_entropy"); /* the second time from the cache */
    int32_t tokens[N] = {0, 1, 2, 3};
    ot_embedding embedding_args = {
        .dtype = OT_BF16, .N = N, .C = F, .V = N, .tokens = tokens, .table = block[0], .out = block[1]};
    expect_bytes(embedding_forward, &embedding_args, BYTES, BYTES, "embedding_forward");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(embedding, free_tensors),
        cmocka_unit_test_teardown(a_wrong_token_is_not_followed, free_tensors),
        cmocka_unit_test_teardown(rope, free_tensors),
        cmocka_unit_test_teardown(swiglu, free_tensors),
        cmocka_unit_test_teardown(gelu_and_residual, free_tensors),
        cmocka_unit_test_teardown(the_lower_tail_of_gelu, free_tensors),
        cmocka_unit_test_teardown(loss, free_tensors),
        cmocka_unit_test_teardown(loss_of_what_is_not_finite, free_tensors),
        cmocka_unit_test_teardown(nothing_is_moved_twice, free_tensors),
    };
    return cmocka_run_group_tests(tests, open_cpu, close_cpu);
}
