#include "engine/factored.h"

#include <string.h>

#include "io/host.h"

enum { ALIGNMENT = 64 };

/* A tensor as Adafactor sees it: a vector is one row. */
typedef struct matrix {
    size_t rows, cols;
} matrix;

static matrix matrix_of(const ot_tensor *tensor)
{
    return tensor->cols == 1 ? (matrix){1, tensor->rows} : (matrix){tensor->rows, tensor->cols};
}

static size_t row_moments(matrix m)
{
    return m.rows > 1 ? m.rows : 0;
}

/* ---- memory ---- */

static size_t count_layer(const ot_layer *layer, size_t tensors)
{
    size_t count = 0;
    for (size_t i = 0; i < tensors; i++) {
        matrix m = matrix_of(&layer->tensors[i]);
        count += row_moments(m) + m.cols;
    }
    return count;
}

static size_t count_layers(const ot_model *model, size_t layers)
{
    size_t count = 0;
    for (size_t l = 0; l < layers; l++)
        count += count_layer(&model->layers[l], model->layers[l].tensor_count);
    return count;
}

size_t ot_factored_count(const ot_model *model)
{
    return count_layers(model, model->layer_count);
}

/* Columns in front of a tensor, of those that the layer's tensors have side by side. */
static size_t columns_before(const ot_layer *layer, size_t tensor)
{
    size_t count = 0;
    for (size_t i = 0; i < tensor; i++)
        count += matrix_of(&layer->tensors[i]).cols;
    return count;
}

static void *take(void *memory, uint64_t *used, uint64_t bytes)
{
    void *taken = (void *)((uintptr_t)memory + *used);
    *used += ot_round_up(bytes, ALIGNMENT);
    return taken;
}

uint64_t ot_factored_lay_out(const ot_model *model, uint64_t chunk_params, void *memory, ot_factored *out)
{
    size_t columns = 0, longest = 0;
    uint64_t used = 0;
    for (size_t l = 0; l < model->layer_count; l++) {
        const ot_layer *layer = &model->layers[l];
        size_t all = columns_before(layer, layer->tensor_count);
        columns = all > columns ? all : columns;
        for (size_t i = 0; i < layer->tensor_count; i++) {
            size_t cols = matrix_of(&layer->tensors[i]).cols;
            longest = cols > longest ? cols : longest;
        }
    }
    out->model = model;
    out->moments = take(memory, &used, ot_factored_count(model) * sizeof(float));
    out->column_sums = take(memory, &used, columns * sizeof(float));
    out->row_mean = take(memory, &used, OT_LAYER_TENSORS_MAX * sizeof(float));
    out->square_sum = take(memory, &used, OT_LAYER_TENSORS_MAX * sizeof(double));
    out->partials = take(memory, &used, ot_sum_blocks(chunk_params) * sizeof(double));
    out->row = take(memory, &used, longest * sizeof(float));
    return used;
}

/* ---- passes ---- */

int ot_factored_piece(const ot_tensor *tensor, const ot_chunk *chunk, ot_tensor_piece *out)
{
    uint64_t begin = tensor->offset, end = begin + (uint64_t)tensor->rows * tensor->cols;
    uint64_t first = begin > chunk->first ? begin : chunk->first, chunk_end = chunk->first + chunk->count;
    end = end < chunk_end ? end : chunk_end;
    if (first >= end)
        return 0;
    *out = (ot_tensor_piece){first - begin, end - first, first - chunk->first};
    return 1;
}

/* The operation of a pass over elements of a tensor from `first` on. */
static ot_adafactor operation_of(const ot_factored *f, size_t l, size_t tensor, ot_adafactor_pass pass,
                                 uint64_t first, const ot_update *update)
{
    const ot_layer *layer = &f->model->layers[l];
    matrix m = matrix_of(&layer->tensors[tensor]);
    float *r = f->moments + count_layers(f->model, l) + count_layer(layer, tensor);
    return (ot_adafactor){
        .pass = pass,
        .update = *update,
        .rows = m.rows,
        .cols = m.cols,
        .first_row = first / m.cols,
        .first_column = first % m.cols,
        .eps1 = 1e-30f,
        .r = m.rows > 1 ? r : NULL,
        .c = r + row_moments(m),
        .column_sums = f->column_sums + columns_before(layer, tensor),
        .row_mean = &f->row_mean[tensor],
        .partials = f->partials,
        .square_sum = &f->square_sum[tensor],
    };
}

typedef struct measuring {
    const ot_factored *f;
    const ot_kernels *kernels;
    ot_stream *stream;
    size_t layer, tensor;
    ot_dtype dtype;
    const ot_update_step *step;
} measuring;

static void run(const measuring *w, ot_adafactor_pass pass, uint64_t first, uint64_t count, ot_dtype dtype,
                const void *grad)
{
    const ot_update update = {.n = count, .step = w->step, .grad_dtype = dtype, .grad = grad};
    const ot_adafactor args = operation_of(w->f, w->layer, w->tensor, pass, first, &update);
    w->kernels->adafactor(w->stream, &args);
}

/* Rows and columns of whole rows, and of the row that is complete now. */
static void gather(const measuring *w, const ot_tensor_piece *piece, const char *grad, matrix m)
{
    const size_t size = ot_dtype_bytes(w->dtype);
    uint64_t at = piece->first, end = piece->first + piece->count;
    while (at < end) {
        uint64_t column = at % m.cols, left = end - at, n = left - left % m.cols;
        const char *source = grad + (at - piece->first) * size;
        if (column == 0 && n > 0) {
            run(w, OT_ADAFACTOR_STATS, at, n, w->dtype, source);
        } else {
            n = left < m.cols - column ? left : m.cols - column;
            const ot_cast part = {.dst_dtype = OT_FP32,
                                  .src_dtype = w->dtype,
                                  .n = n,
                                  .src = source,
                                  .dst = w->f->row + column};
            w->kernels->cast(w->stream, &part);
            if (column + n == m.cols)
                run(w, OT_ADAFACTOR_STATS, at - column, m.cols, OT_FP32, w->f->row);
        }
        at += n;
    }
}

/* Squares of the scaled gradient, in the layer's blocks. */
static void measure(const measuring *w, const ot_tensor_piece *piece, const char *grad, uint64_t in_layer)
{
    const size_t size = ot_dtype_bytes(w->dtype);
    uint64_t n, to_block = OT_SUM_BLOCK - in_layer % OT_SUM_BLOCK;
    for (uint64_t at = 0; at < piece->count; at += n) {
        uint64_t left = piece->count - at;
        n = at > 0 || left < to_block || to_block == OT_SUM_BLOCK ? left : to_block;
        run(w, OT_ADAFACTOR_RMS, piece->first + at, n, w->dtype, grad + at * size);
        const ot_sum sum = {.n = ot_sum_blocks(n),
                            .x = w->f->partials,
                            .out = &w->f->square_sum[w->tensor],
                            .add = at > 0 || piece->first > 0};
        w->kernels->sum_partials(w->stream, &sum);
    }
}

void ot_factored_measure(const ot_factored *f, const ot_kernels *kernels, ot_stream *stream, int pass,
                         const ot_chunk *chunk, ot_dtype grad_dtype, const void *grad,
                         const ot_update_step *step)
{
    const ot_layer *layer = &f->model->layers[chunk->layer];
    measuring w = {f, kernels, stream, (size_t)chunk->layer, 0, grad_dtype, step};
    for (; w.tensor < layer->tensor_count; w.tensor++) {
        const ot_tensor *tensor = &layer->tensors[w.tensor];
        matrix m = matrix_of(tensor);
        ot_tensor_piece piece;
        if (!ot_factored_piece(tensor, chunk, &piece))
            continue;
        const char *of_piece = (const char *)grad + piece.offset * ot_dtype_bytes(grad_dtype);
        if (pass == 1) {
            measure(&w, &piece, of_piece, tensor->offset + piece.first);
            continue;
        }
        if (piece.first == 0)
            memset(f->column_sums + columns_before(layer, w.tensor), 0, m.cols * sizeof(float));
        gather(&w, &piece, of_piece, m);
        if (piece.first + piece.count == (uint64_t)m.rows * m.cols)
            run(&w, OT_ADAFACTOR_COLUMNS, 0, 0, grad_dtype, grad);
    }
}

void ot_factored_apply(const ot_factored *f, const ot_kernels *kernels, ot_stream *stream,
                       const ot_chunk *chunk, size_t tensor, const ot_tensor_piece *piece,
                       const ot_update *update)
{
    const ot_adafactor args =
        operation_of(f, (size_t)chunk->layer, tensor, OT_ADAFACTOR_APPLY, piece->first, update);
    kernels->adafactor(stream, &args);
}
