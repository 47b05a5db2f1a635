/* Optimizer updates: checks the arguments and enqueues the ranges of optimizer.c and adafactor.c. */
#include "kernels/cpu/cpu.h"

/* A share of the team: whole blocks of moments, and enough of them to be worth waking a thread. */
enum { UPDATE_GRAIN = 16 * OT_MOMENT_BLOCK, COLUMN_GRAIN = 256 };

static int is_float(ot_dtype dtype)
{
    return dtype == OT_FP32 || dtype == OT_BF16 || dtype == OT_FP16;
}

static ot_status check_moment(const char *name, ot_dtype format, const void *moment, const float *scale)
{
    if (format != OT_FP32 && format != OT_BF16 && format != OT_INT8)
        return ot_fail(OT_ERR_INTERNAL, "update: %s in %s, expected fp32, bf16 or int8", name,
                       ot_dtype_name(format));
    if (moment == NULL || (format == OT_INT8 && scale == NULL))
        return ot_fail(OT_ERR_INTERNAL, "update: no %s, or none of its scales", name);
    return OT_OK;
}

static ot_status check_gradient(const char *operation, const ot_update *u)
{
    if (u->step == NULL || u->grad == NULL)
        return ot_fail(OT_ERR_INTERNAL, "%s: no step or gradient", operation);
    if (!is_float(u->grad_dtype))
        return ot_fail(OT_ERR_INTERNAL, "%s: gradient in %s, expected fp32, bf16 or fp16", operation,
                       ot_dtype_name(u->grad_dtype));
    return OT_OK;
}

/* Gradient, master and weight, which both operations have. */
static ot_status check_planes(const char *operation, const ot_update *u)
{
    OT_TRY(check_gradient(operation, u));
    if (u->master == NULL)
        return ot_fail(OT_ERR_INTERNAL, "%s: no master", operation);
    if (u->weight != NULL && !is_float(u->weight_dtype))
        return ot_fail(OT_ERR_INTERNAL, "%s: weight in %s, expected fp32, bf16 or fp16", operation,
                       ot_dtype_name(u->weight_dtype));
    if (u->master_format == OT_MASTER_SPLIT && (u->weight == NULL || u->weight_dtype != OT_BF16))
        return ot_fail(OT_ERR_INTERNAL, "%s: a split master without its bf16 weight", operation);
    return OT_OK;
}

static ot_status check_update(const ot_update *u)
{
    OT_TRY(check_planes("update", u));
    if ((unsigned)u->kind >= OT_OPTIMIZER_ADAFACTOR)
        return ot_fail(OT_ERR_INTERNAL, "update: optimizer %d, expected AdamW, Adam, SGD or Lion",
                       (int)u->kind);
    OT_TRY(check_moment("moment1", u->moment1_format, u->moment1, u->scale1));
    if (u->kind == OT_OPTIMIZER_ADAMW || u->kind == OT_OPTIMIZER_ADAM)
        OT_TRY(check_moment("moment2", u->moment2_format, u->moment2, u->scale2));
    return OT_OK;
}

void ot_cpu_update(ot_stream *stream, const ot_update *args)
{
    if (args->n == 0)
        return;
    ot_status status = check_update(args);
    if (status == OT_OK)
        ot_cpu_enqueue_range(stream, OT_RANGE_UPDATE, args, sizeof *args, args->n, UPDATE_GRAIN);
    else
        ot_cpu_reject(stream, status);
}

static ot_status check_adafactor(const ot_adafactor *a)
{
    OT_TRY(a->pass == OT_ADAFACTOR_APPLY ? check_planes("adafactor", &a->update)
                                         : check_gradient("adafactor", &a->update));
    size_t end = a->first_column + a->update.n, n_rows = a->cols > 0 ? (end + a->cols - 1) / a->cols : 0;
    int whole = a->pass == OT_ADAFACTOR_STATS;
    if ((whole && (a->first_column != 0 || end != n_rows * a->cols)) || a->first_column > a->cols ||
        a->first_row > a->rows || n_rows > a->rows - a->first_row)
        return ot_fail(
            OT_ERR_INTERNAL,
            "adafactor: %zu elements from row %zu and column %zu, expected %s of a matrix of %zu x %zu",
            a->update.n, a->first_row, a->first_column, whole ? "whole rows" : "a part", a->rows, a->cols);
    if (a->c == NULL || (a->rows > 1 && (a->r == NULL || a->row_mean == NULL)) ||
        (a->pass <= OT_ADAFACTOR_COLUMNS && a->column_sums == NULL) ||
        (a->pass == OT_ADAFACTOR_RMS && a->partials == NULL) ||
        (a->pass == OT_ADAFACTOR_APPLY && a->square_sum == NULL))
        return ot_fail(OT_ERR_INTERNAL, "adafactor: a moment or a sum of pass %d is missing", (int)a->pass);
    return OT_OK;
}

static void enqueue_adafactor(ot_stream *stream, ot_range_id id, const ot_adafactor *args, size_t total,
                              size_t grain)
{
    ot_cpu_enqueue_range(stream, id, args, sizeof *args, total, grain);
}

void ot_cpu_adafactor(ot_stream *stream, const ot_adafactor *args)
{
    size_t n = args->update.n, cols = args->cols;
    if (n == 0 && args->pass != OT_ADAFACTOR_COLUMNS)
        return;
    ot_status status = check_adafactor(args);
    if (status != OT_OK) {
        ot_cpu_reject(stream, status);
        return;
    }
    switch (args->pass) {
    case OT_ADAFACTOR_STATS:
        if (args->rows > 1)
            enqueue_adafactor(stream, OT_RANGE_ADAFACTOR_ROWS, args, n / cols,
                              (UPDATE_GRAIN + cols - 1) / cols);
        enqueue_adafactor(stream, OT_RANGE_ADAFACTOR_SUMS, args, cols, COLUMN_GRAIN);
        return;
    case OT_ADAFACTOR_COLUMNS:
        enqueue_adafactor(stream, OT_RANGE_ADAFACTOR_COLUMNS, args, cols, UPDATE_GRAIN);
        if (args->rows > 1)
            enqueue_adafactor(stream, OT_RANGE_ADAFACTOR_ROW_MEAN, args, 1, 1);
        return;
    case OT_ADAFACTOR_RMS:
        enqueue_adafactor(stream, OT_RANGE_ADAFACTOR_RMS, args, ot_sum_blocks(n), 1);
        return;
    case OT_ADAFACTOR_APPLY:
        enqueue_adafactor(stream, OT_RANGE_ADAFACTOR_APPLY, args, n, UPDATE_GRAIN);
        return;
    }
}
