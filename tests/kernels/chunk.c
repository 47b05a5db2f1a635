#include "tests/kernels/chunk.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/test.h"

const formats masters[MASTERS] = {{.master = OT_MASTER_FP32, .weight = OT_FP32},
                                  {.master = OT_MASTER_FP32, .weight = OT_BF16},
                                  {.master = OT_MASTER_FP32, .weight = OT_FP16},
                                  {.master = OT_MASTER_SPLIT, .weight = OT_BF16}};

tensor *make_plane(chunk *p, size_t bytes)
{
    return p->outputs[p->output_count++] = make_filled(OT_FP32, (bytes + 3) / 4, 0);
}

static tensor *make_moment(chunk *p, ot_dtype format, tensor **scale)
{
    *scale = format == OT_INT8 ? make_plane(p, (p->u.n / OT_MOMENT_BLOCK + 1) * sizeof(float)) : NULL;
    return make_plane(p, p->u.n * ot_dtype_bytes(format));
}

/* Now, and whenever the outputs are put back. */
static void start_from(tensor *t, const void *bytes, size_t size)
{
    memcpy(t->data, bytes, size);
    memcpy(t->before, bytes, size);
}

void set_master(chunk *p, const float *values)
{
    size_t n = p->u.n;
    if (p->u.master_format == OT_MASTER_FP32) {
        start_from(p->master, values, n * sizeof(float));
        return;
    }
    uint16_t *hi = calloc(n, sizeof *hi), *lo = calloc(n, sizeof *lo);
    assert_non_null(hi);
    assert_non_null(lo);
    for (size_t i = 0; i < n; i++) {
        uint32_t raw;
        memcpy(&raw, &values[i], sizeof raw);
        hi[i] = (uint16_t)((raw + 0x8000) >> 16);
        lo[i] = (uint16_t)(raw - ((uint32_t)hi[i] << 16));
    }
    start_from(p->weight, hi, n * sizeof *hi);
    start_from(p->master, lo, n * sizeof *lo);
    free(hi);
    free(lo);
}

float master_at(const chunk *p, size_t i)
{
    float value;
    if (p->u.master_format == OT_MASTER_FP32)
        return ((const float *)p->master->data)[i];
    uint32_t raw = ((uint32_t)((const uint16_t *)p->weight->data)[i] << 16) +
                   (uint32_t)((const int16_t *)p->master->data)[i];
    memcpy(&value, &raw, sizeof value);
    return value;
}

void make_chunk(chunk *p, ot_optimizer kind, size_t n, size_t steps, formats f)
{
    *p = (chunk){.steps = steps};
    p->u = (ot_update){.kind = kind,
                       .n = n,
                       .beta1 = 0.9f,
                       .beta2 = 0.99f,
                       .eps = 1e-8f,
                       .weight_decay = 0.1f,
                       .grad_dtype = f.grad,
                       .master_format = f.master,
                       .weight_dtype = f.weight,
                       .moment1_format = f.moment1,
                       .moment2_format = f.moment2,
                       .seed = 77,
                       .first = 1000};
    for (size_t k = 0; k < steps; k++)
        p->step[k] = (ot_update_step){.grad_scale = 0.5f,
                                      .lr = 1e-2f,
                                      .bias1 = (float)(1 - pow((double)p->u.beta1, (double)k + 1)),
                                      .bias2 = (float)(1 - pow((double)p->u.beta2, (double)k + 1)),
                                      .beta2_adafactor = (float)(1 - pow((double)k + 1, -0.8)),
                                      .number = k + 1};
    p->grad = make_random(f.grad, n * steps, 0.1, 3);
    p->master = make_plane(p, n * (f.master == OT_MASTER_SPLIT ? sizeof(int16_t) : sizeof(float)));
    p->weight = f.weight == OT_FP32 ? NULL : make_plane(p, n * sizeof(uint16_t));
    if (kind != OT_OPTIMIZER_ADAFACTOR)
        p->moment1 = make_moment(p, f.moment1, &p->scale1);
    if (kind == OT_OPTIMIZER_ADAMW || kind == OT_OPTIMIZER_ADAM)
        p->moment2 = make_moment(p, f.moment2, &p->scale2);
    set_master(p, make_random(OT_FP32, n, 1, 4)->data);
}

static void *at(tensor *t, size_t bytes)
{
    return t == NULL ? NULL : (char *)t->data + bytes;
}

ot_update piece(const chunk *p, size_t k, size_t begin, size_t n)
{
    ot_update u = p->u;
    size_t master_bytes = u.master_format == OT_MASTER_SPLIT ? sizeof(int16_t) : sizeof(float);
    u.n = n;
    u.step = &p->step[k];
    u.grad = at(p->grad, (k * p->u.n + begin) * ot_dtype_bytes(u.grad_dtype));
    u.master = at(p->master, begin * master_bytes);
    u.weight = at(p->weight, begin * sizeof(uint16_t));
    u.moment1 = at(p->moment1, begin * ot_dtype_bytes(u.moment1_format));
    u.moment2 = at(p->moment2, begin * ot_dtype_bytes(u.moment2_format));
    u.scale1 = at(p->scale1, begin / OT_MOMENT_BLOCK * sizeof(float));
    u.scale2 = at(p->scale2, begin / OT_MOMENT_BLOCK * sizeof(float));
    u.first += begin;
    return u;
}

void **copy_outputs(const chunk *p)
{
    void **copies = calloc(p->output_count, sizeof *copies);
    assert_non_null(copies);
    for (size_t i = 0; i < p->output_count; i++) {
        copies[i] = malloc(p->outputs[i]->n * sizeof(float));
        assert_non_null(copies[i]);
        memcpy(copies[i], p->outputs[i]->data, p->outputs[i]->n * sizeof(float));
    }
    return copies;
}

void expect_outputs(const chunk *p, void **copies)
{
    for (size_t i = 0; i < p->output_count; i++) {
        assert_memory_equal(p->outputs[i]->data, copies[i], p->outputs[i]->n * sizeof(float));
        free(copies[i]);
    }
    free(copies);
}

void set_hard_values(chunk *p)
{
    static const uint32_t patterns[] = {0x80000000, 0,          0x7f800000, 0xff800000,
                                        0x7fc00123, 0x7f800001, 1,          0x80000001,
                                        0x7f7fffff, 0x3f7fffff, 0x3f808000, 0xffffffff};
    float *values = make_filled(OT_FP32, p->u.n, 0)->data;
    for (size_t i = 0; i < p->u.n; i++)
        memcpy(&values[i], &patterns[i % (sizeof patterns / sizeof *patterns)], sizeof *values);
    set_master(p, values);
}
