/* CUDA's norms and sums over rows against the CPU device's. */
#include "tests/simt/compare.h"
#include "tests/support/test.h"

static const ot_dtype dtypes[] = {OT_FP32, OT_BF16, OT_FP16};

typedef struct shape {
    size_t N, H, C, gap; /* gap: elements between two rows */
} shape;

/* Aligned and not, for a warp and for a block of threads, shorter than a pack and longer than what is held. */
static const shape shapes[] = {{5, 1, 64, 0},   {3, 2, 128, 64},  {7, 3, 33, 1},   {1, 1, 1, 0},
                               {4, 1, 1000, 8}, {3, 1, 1025, 0},  {2, 1, 2048, 0}, {300, 1, 40, 0},
                               {2, 1, 9000, 3}, {259, 1, 1032, 0}};

static void forward(const ot_kernels *kernels, ot_stream *stream, void *context)
{
    kernels->norm_forward(stream, context);
}

static void backward(const ot_kernels *kernels, ot_stream *stream, void *context)
{
    ot_norm args = *(const ot_norm *)context;
    args.workspace = make_workspace(kernels->norm_workspace(NULL, &args));
    kernels->norm_backward(stream, &args);
}

static ot_norm make_norm(ot_norm_kind kind, ot_dtype dtype, const shape *s, tensor *outputs[])
{
    size_t ld = s->H * s->C + s->gap, groups = s->N * s->H;
    outputs[0] = make_filled(dtype, s->N * ld, 0.5);
    outputs[1] = make_filled(OT_FP32, groups, 9);
    outputs[2] = kind == OT_LAYERNORM ? make_filled(OT_FP32, groups, 9) : NULL;
    outputs[3] = NULL;
    return (ot_norm){.kind = kind,
                     .dtype = dtype,
                     .N = s->N,
                     .H = s->H,
                     .C = s->C,
                     .eps = 1e-5f,
                     .ld_x = ld,
                     .ld_y = ld,
                     .ld_dx = ld,
                     .x = make_random(dtype, s->N * ld, 2, 1)->data,
                     .weight = make_random(dtype, s->C, 1, 2)->data,
                     .bias = kind == OT_LAYERNORM ? make_random(dtype, s->C, 1, 3)->data : NULL,
                     .y = outputs[0]->data,
                     .rstd = outputs[1]->data,
                     .mean = kind == OT_LAYERNORM ? outputs[2]->data : NULL};
}

static void check_shape(ot_norm_kind kind, ot_dtype dtype, const shape *s, int residual)
{
    tensor *outputs[8];
    ot_norm args = make_norm(kind, dtype, s, outputs);
    compare(forward, &args, outputs, tolerance_between(dtype), "norm_forward");
    size_t elements = s->N * args.ld_x;
    tensor *dx = outputs[0] = make_random(dtype, elements, 1, 5);
    tensor *dweight = outputs[1] = make_random(OT_FP32, s->C, 1, 6);
    tensor *dbias = outputs[2] = kind == OT_LAYERNORM ? make_random(OT_FP32, s->C, 1, 7) : NULL;
    outputs[3] = NULL;
    args.dy = make_random(dtype, elements, 1, 4)->data;
    args.dresidual = residual ? dx->data : NULL; /* in place */
    args.dx = dx->data;
    args.dweight = dweight->data;
    args.dbias = dbias != NULL ? dbias->data : NULL;
    compare(backward, &args, outputs, tolerance_between(dtype), "norm_backward");
}

static void every_shape(void **state)
{
    (void)state;
    for (size_t d = 0; d < 3; d++)
        for (size_t i = d % SHARE; i < sizeof shapes / sizeof *shapes; i += SHARE)
            for (int kind = 0; kind < 2; kind++) {
                check_shape((ot_norm_kind)kind, dtypes[d], &shapes[i], (int)(i + d) % 2);
                free_tensors(NULL);
            }
}

static void backward_over_dy(void **state)
{
    (void)state;
    static const shape wide = {3, 1, 9000, 0};
    tensor *outputs[8], *dy[2] = {NULL, NULL};
    ot_norm args = make_norm(OT_RMSNORM, OT_FP16, &wide, outputs);
    run_on_cpu(forward, &args);
    dy[0] = make_random(OT_FP16, 27000, 1, 4);
    args.dy = args.dx = dy[0]->data;
    compare(backward, &args, dy, tolerance_between(OT_FP16), "norm_backward in place");
}

static void bias(const ot_kernels *kernels, ot_stream *stream, void *context)
{
    ot_bias_backward args = *(const ot_bias_backward *)context;
    args.workspace = make_workspace(kernels->bias_backward_workspace(NULL, &args));
    kernels->bias_backward(stream, &args);
}

static void bias_gradients(void **state)
{
    (void)state;
    static const shape sizes[] = {{1, 1, 1, 0}, {100, 1, 33, 0}, {300, 1, 264, 8}, {33, 1, 2100, 1}};
    for (size_t d = 0; d < 3; d++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            size_t ld = sizes[i].C + sizes[i].gap;
            tensor *outputs[] = {make_random(OT_FP32, sizes[i].C, 1, 1), NULL};
            ot_bias_backward args = {.dtype = dtypes[d],
                                     .N = sizes[i].N,
                                     .OC = sizes[i].C,
                                     .ld_dy = ld,
                                     .dy = make_random(dtypes[d], sizes[i].N * ld, 1, 2)->data,
                                     .dbias = outputs[0]->data};
            compare(bias, &args, outputs, 1e-5, "bias_backward");
            free_tensors(NULL);
        }
}

static void every_barrier_is_needed(void **state)
{
    (void)state;
    tensor *outputs[8];
    enum { N = 259 / SHARE };
    ot_norm args = make_norm(OT_LAYERNORM, OT_FP32, &(shape){N, 1, 1032, 0}, outputs);
    expect_barriers_needed(forward, &args, outputs, "");
    tensor *gradients[] = {make_filled(OT_FP32, N * 1032, 0), make_filled(OT_FP32, 1032, 0), NULL};
    args.dy = make_random(OT_FP32, N * 1032, 1, 4)->data;
    args.dx = gradients[0]->data;
    args.dweight = gradients[1]->data;
    expect_barriers_needed(backward, &args, gradients, "");
}

/* Each byte once: x and y, the weight for each group; no packs for the statistics. */
static void nothing_is_moved_twice(void **state)
{
    (void)state;
    tensor *outputs[8];
    static const shape s = {16, 1, 4096, 0};
    uint64_t rows = 16 * 4096 * 2, weights = 16 * 4096 * 2, sums = 16 * 4096 * 4;
    ot_norm args = make_norm(OT_RMSNORM, OT_FP16, &s, outputs);
    expect_bytes(forward, &args, rows + weights, rows, "norm_forward");
    args.dy = make_random(OT_FP16, 16 * 4096, 1, 4)->data;
    args.dx = make_filled(OT_FP16, 16 * 4096, 0)->data;
    args.dresidual = make_random(OT_FP16, 16 * 4096, 1, 5)->data;
    args.dweight = make_filled(OT_FP32, 4096, 0)->data;
    expect_bytes(backward, &args, 3 * rows + 2 * weights, rows + sums, "norm_backward");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(every_shape, free_tensors),
        cmocka_unit_test_teardown(backward_over_dy, free_tensors),
        cmocka_unit_test_teardown(bias_gradients, free_tensors),
        cmocka_unit_test_teardown(every_barrier_is_needed, free_tensors),
        cmocka_unit_test_teardown(nothing_is_moved_twice, free_tensors),
    };
    return cmocka_run_group_tests(tests, open_cpu, close_cpu);
}
