/* Adafactor: second moments of rows and columns in place of one for every parameter (kernels.h,
 * ot_adafactor). */
#include <math.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/plane.h"

enum { BLOCK = 256, LANES = 16 };

/* FP64 sums in lanes, one for each element number modulo LANES. */
typedef struct sums {
    double lane[LANES];
} sums;

OT_LOOP void add_squares(sums *s, size_t n, const float *restrict x)
{
    size_t whole = n - n % LANES;
    for (size_t i = 0; i < whole; i += LANES)
        for (size_t j = 0; j < LANES; j++)
            s->lane[j] += (double)x[i + j] * (double)x[i + j];
    for (size_t j = 0; j < n - whole; j++)
        s->lane[j] += (double)x[whole + j] * (double)x[whole + j];
}

/* The lanes added up: j and j+8, then j and j+4, and so on. */
static double total(sums *s)
{
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int j = 0; j < width; j++)
            s->lane[j] += s->lane[j + width];
    return s->lane[0];
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* ---- Statistics ---- */

/* Elements: rows of the chunk. */
void OT_VARIANT(ot_adafactor_rows)(const void *args, size_t begin, size_t end)
{
    const ot_adafactor *a = args;
    const ot_update *u = &a->update;
    if (u->step->skip)
        return;
    float beta2 = u->step->beta2_adafactor, grad[BLOCK];
    for (size_t i = begin; i < end; i++) {
        sums squares = {{0}};
        for (size_t j = 0; j < a->cols; j += BLOCK) {
            size_t n = least(BLOCK, a->cols - j);
            ot_load_grad(u, i * a->cols + j, n, grad);
            add_squares(&squares, n, grad);
        }
        float average = (float)(total(&squares) / (double)a->cols + (double)a->eps1);
        float *r = &a->r[a->first_row + i];
        *r = beta2 * *r + (1.0f - beta2) * average;
    }
}

/* Elements: columns; rows one after the other, so that chunks of rows add up as the whole does. */
void OT_VARIANT(ot_adafactor_sums)(const void *args, size_t begin, size_t end)
{
    const ot_adafactor *a = args;
    const ot_update *u = &a->update;
    if (u->step->skip)
        return;
    float grad[BLOCK];
    for (size_t row = 0; row < u->n / a->cols; row++)
        for (size_t j = begin; j < end; j += BLOCK) {
            size_t n = least(BLOCK, end - j);
            float *restrict sum = a->column_sums + j;
            ot_load_grad(u, row * a->cols + j, n, grad);
            for (size_t i = 0; i < n; i++)
                sum[i] += grad[i] * grad[i] + a->eps1;
        }
}

/* Elements: columns. */
void OT_VARIANT(ot_adafactor_columns)(const void *args, size_t begin, size_t end)
{
    const ot_adafactor *a = args;
    if (a->update.step->skip)
        return;
    float beta2 = a->update.step->beta2_adafactor, rows = (float)a->rows;
    float *restrict c = a->c;
    const float *restrict sum = a->column_sums;
    for (size_t j = begin; j < end; j++)
        c[j] = beta2 * c[j] + (1.0f - beta2) * (sum[j] / rows);
}

/* Elements: one. */
void OT_VARIANT(ot_adafactor_row_mean)(const void *args, size_t begin, size_t end)
{
    const ot_adafactor *a = args;
    (void)begin;
    (void)end;
    if (a->update.step->skip)
        return;
    sums s = {{0}};
    for (size_t i = 0; i < a->rows; i++)
        s.lane[i % LANES] += (double)a->r[i];
    a->row_mean[0] = (float)(total(&s) / (double)a->rows);
}

/* ---- The update ---- */

/* u = g / sqrt(r/row_mean * c) of elements begin .. begin+n-1 of the chunk. The roots are taken one by one,
 * since the product of a small r and a small c would be 0. */
OT_LOOP void scale_grad(const ot_adafactor *a, size_t begin, size_t n, float *restrict out)
{
    ot_load_grad(&a->update, begin, n, out);
    for (size_t at = 0; at < n;) {
        size_t element = a->first_column + begin + at, row = element / a->cols, column = element % a->cols,
               count = least(a->cols - column, n - at);
        float root = a->rows == 1 ? 1.0f : sqrtf(a->r[a->first_row + row] / a->row_mean[0]);
        const float *restrict c = a->c + column;
        for (size_t j = 0; j < count; j++)
            out[at + j] /= root * sqrtf(c[j]);
        at += count;
    }
}

/* Elements: blocks of OT_SUM_BLOCK. */
void OT_VARIANT(ot_adafactor_rms_blocks)(const void *args, size_t begin, size_t end)
{
    const ot_adafactor *a = args;
    if (a->update.step->skip)
        return;
    for (size_t block = begin; block < end; block++) {
        size_t first = block * OT_SUM_BLOCK, last = first + least(OT_SUM_BLOCK, a->update.n - first);
        sums squares = {{0}};
        for (size_t i = first; i < last; i += BLOCK) {
            float scaled[BLOCK];
            size_t n = least(BLOCK, last - i);
            scale_grad(a, i, n, scaled);
            add_squares(&squares, n, scaled);
        }
        a->partials[block] = total(&squares);
    }
}

/* Elements: parameters. */
void OT_VARIANT(ot_adafactor_apply)(const void *args, size_t begin, size_t end)
{
    const ot_adafactor *a = args;
    const ot_update *u = &a->update;
    if (u->step->skip)
        return;
    float rms = (float)sqrt(a->square_sum[0] / ((double)a->rows * (double)a->cols));
    float decay = u->step->lr * u->weight_decay, rate = u->step->lr / (rms <= 1.0f ? 1.0f : rms);
    for (size_t i = begin; i < end; i += BLOCK) {
        float scaled[BLOCK], master[BLOCK], next[BLOCK];
        size_t n = least(BLOCK, end - i);
        scale_grad(a, i, n, scaled);
        const float *p = ot_load_master(u, i, n, master);
        for (size_t j = 0; j < n; j++)
            next[j] = (p[j] - decay * p[j]) - rate * scaled[j];
        if (u->step->lr == 0) /* p - 0*x is not always p: -0, inf */
            memcpy(next, p, n * sizeof *p);
        ot_store_master(u, i, n, next);
    }
}
