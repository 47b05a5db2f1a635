/* A sink that writes one plane of a model as a tensor set. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine/modelfile_parts.h"
#include "kernels/element.h"

struct ot_model_writer {
    const ot_model *model;
    ot_value_plane plane;
    ot_dtype dtype;
    int split;
    ot_tensor_writer *files;
    size_t layer; /* what comes next: */
    uint64_t at;  /* this element of it */
    void *piece;
    void *whole;   /* a transposed tensor, as the model has it, in the file's dtype */
    float *scales; /* of the layer at hand, INT8 only */
    uint64_t overflows;
};

/* ---- Opening ---- */

static ot_status open_files(ot_model_writer *w, const ot_model_writer_options *o)
{
    const ot_model *model = w->model;
    size_t count = 0, most = model->layer_count * (OT_LAYER_TENSORS_MAX + 1);
    ot_tensor_spec *specs = calloc(most, sizeof *specs);
    char(*names)[OT_SCALES_NAME_BYTES] = calloc(model->layer_count, sizeof *names);
    ot_status status = OT_OK;
    if (specs == NULL || names == NULL)
        status = ot_fail(OT_ERR_INTERNAL, "out of memory for writing a model");
    for (size_t l = 0; status == OT_OK && l < model->layer_count; l++) {
        const ot_layer *layer = &model->layers[l];
        for (size_t t = 0; t < layer->tensor_count; t++)
            specs[count++] = ot_tensor_file_spec(&layer->tensors[t], ot_value_file_dtype(w->plane, w->dtype));
        if (w->dtype != OT_INT8)
            continue;
        ot_layer_scales_name(layer, names[l]);
        specs[count++] = (ot_tensor_spec){names[l], OT_FILE_F32, 1, {ot_layer_scales(layer)}};
    }
    const ot_tensor_writer_options options = {o->directory, o->stem, specs, count, o->shard_bytes};
    if (status == OT_OK)
        status = ot_tensor_writer_open(&options, &w->files);
    free(specs);
    free(names);
    return status;
}

static ot_status open_buffers(ot_model_writer *w)
{
    uint64_t whole = ot_model_whole_elements(w->model) * ot_dtype_bytes(w->dtype);
    w->piece = malloc(ot_model_piece_elements(w->model) * sizeof(float));
    if (whole > 0)
        w->whole = malloc(whole);
    if (w->dtype == OT_INT8)
        w->scales = malloc(ot_model_most_scales(w->model) * sizeof(float));
    if (w->piece == NULL || (whole > 0 && w->whole == NULL) || (w->dtype == OT_INT8 && w->scales == NULL))
        return ot_fail(OT_ERR_INTERNAL, "out of memory for writing a model");
    return OT_OK;
}

ot_status ot_model_writer_open(const ot_model_writer_options *options, ot_model_writer **out)
{
    OT_ASSERT(options->dtype != OT_INT8 || options->plane != OT_VALUE_MASTER);
    ot_model_writer *w = calloc(1, sizeof *w);
    if (w == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for writing a model");
    w->model = options->model;
    w->plane = options->plane;
    w->dtype = options->dtype;
    w->split = options->split && options->dtype == OT_BF16;
    ot_status status = open_files(w, options);
    if (status == OT_OK)
        status = open_buffers(w);
    if (status != OT_OK) {
        ot_model_writer_close(w);
        return status;
    }
    *out = w;
    return OT_OK;
}

void ot_model_writer_close(ot_model_writer *w)
{
    if (w == NULL)
        return;
    ot_tensor_writer_close(w->files);
    free(w->piece);
    free(w->whole);
    free(w->scales);
    free(w);
}

/* ---- Taking ---- */

static void narrow(ot_model_writer *w, const float *src, size_t n, uint16_t *restrict out)
{
    if (!w->split) {
        w->overflows += ot_values_narrow(w->dtype, src, n, out);
        return;
    }
    for (size_t i = 0; i < n; i++)
        out[i] = ot_split_high(src[i]);
}

/* Whether the values of the plane have to be converted. */
static int converts(const ot_model_writer *w)
{
    return w->plane == OT_VALUE_MASTER && w->dtype != OT_FP32;
}

static ot_status append(ot_model_writer *w, const void *values, uint64_t count)
{
    uint64_t bytes = ot_dtype_bytes(w->dtype);
    if (!converts(w))
        return ot_tensor_writer_append(w->files, values, count * bytes);
    const float *master = values;
    for (uint64_t done = 0; done < count;) {
        uint64_t n = count - done < OT_PIECE_ELEMENTS ? count - done : OT_PIECE_ELEMENTS;
        narrow(w, master + done, n, w->piece);
        OT_TRY(ot_tensor_writer_append(w->files, w->piece, n * bytes));
        done += n;
    }
    return OT_OK;
}

/* `lines` columns of the tensor from `column` on, each a line of the file. */
static void gather_columns(const ot_model_writer *w, const ot_tensor *tensor, size_t column, size_t lines)
{
    for (size_t r = 0; r < tensor->rows; r++)
        for (size_t j = 0; j < lines; j++) {
            size_t from = r * tensor->cols + column + j, to = j * tensor->rows + r;
            if (w->dtype == OT_INT8)
                ((uint8_t *)w->piece)[to] = ((const uint8_t *)w->whole)[from];
            else if (w->dtype == OT_FP32)
                ((float *)w->piece)[to] = ((const float *)w->whole)[from];
            else
                ((uint16_t *)w->piece)[to] = ((const uint16_t *)w->whole)[from];
        }
}

/* Collects the tensor, and appends it once it is whole. */
static ot_status append_transposed(ot_model_writer *w, const ot_tensor *tensor, uint64_t first,
                                   const void *values, uint64_t count)
{
    uint64_t bytes = ot_dtype_bytes(w->dtype);
    if (converts(w))
        narrow(w, values, count, (uint16_t *)w->whole + first);
    else
        memcpy((char *)w->whole + first * bytes, values, count * bytes);
    if (first + count < ot_tensor_elements(tensor))
        return OT_OK;
    size_t most = ot_model_piece_elements(w->model) / tensor->rows;
    for (size_t column = 0; column < tensor->cols;) {
        size_t lines = tensor->cols - column < most ? tensor->cols - column : most;
        gather_columns(w, tensor, column, lines);
        OT_TRY(ot_tensor_writer_append(w->files, w->piece, lines * tensor->rows * bytes));
        column += lines;
    }
    return OT_OK;
}

static ot_status take_tensors(ot_model_writer *w, const ot_chunk_values *chunk, const void *values)
{
    const ot_layer *layer = &w->model->layers[chunk->layer];
    uint64_t end = chunk->first + chunk->count;
    uint64_t bytes = w->plane == OT_VALUE_MASTER ? sizeof(float) : ot_dtype_bytes(w->dtype);
    for (size_t t = 0; t < layer->tensor_count; t++) {
        const ot_tensor *tensor = &layer->tensors[t];
        uint64_t begin = tensor->offset, stop = begin + ot_tensor_elements(tensor);
        begin = begin > chunk->first ? begin : chunk->first;
        stop = stop < end ? stop : end;
        if (begin >= stop)
            continue;
        const char *from = (const char *)values + (begin - chunk->first) * bytes;
        if (tensor->transposed)
            OT_TRY(append_transposed(w, tensor, begin - tensor->offset, from, stop - begin));
        else
            OT_TRY(append(w, from, stop - begin));
    }
    return OT_OK;
}

static ot_status take_scales(ot_model_writer *w, const ot_chunk_values *chunk, const float *scales)
{
    const ot_layer *layer = &w->model->layers[chunk->layer];
    uint64_t first = chunk->first / OT_MOMENT_BLOCK,
             count = (chunk->count + OT_MOMENT_BLOCK - 1) / OT_MOMENT_BLOCK;
    memcpy(w->scales + first, scales, count * sizeof *scales);
    if (chunk->first + chunk->count < layer->params)
        return OT_OK;
    return ot_tensor_writer_append(w->files, w->scales, ot_layer_scales(layer) * sizeof *w->scales);
}

static ot_status take(void *context, const ot_chunk_values *chunk)
{
    ot_model_writer *w = context;
    const void *values = w->plane == OT_VALUE_MASTER    ? chunk->master
                         : w->plane == OT_VALUE_MOMENT1 ? chunk->moment1
                                                        : chunk->moment2;
    if (chunk->layer != w->layer || chunk->first != w->at || values == NULL)
        return ot_fail(OT_ERR_INTERNAL,
                       "writing a model: element %" PRIu64 " of layer %zu came, expected %" PRIu64
                       " of layer %zu",
                       chunk->first, chunk->layer, w->at, w->layer);
    OT_TRY(take_tensors(w, chunk, values));
    if (w->dtype == OT_INT8)
        OT_TRY(take_scales(w, chunk, w->plane == OT_VALUE_MOMENT1 ? chunk->scale1 : chunk->scale2));
    w->at += chunk->count;
    if (w->at == w->model->layers[w->layer].params) {
        w->layer++;
        w->at = 0;
    }
    return OT_OK;
}

ot_sink ot_model_writer_values(ot_model_writer *writer)
{
    return (ot_sink){take, writer};
}

ot_status ot_model_writer_finish(ot_model_writer *w)
{
    if (w->layer < w->model->layer_count)
        return ot_fail(OT_ERR_INTERNAL, "writing a model: it ended in layer %zu of %zu", w->layer,
                       w->model->layer_count);
    return ot_tensor_writer_finish(w->files);
}

const ot_tensor_writer *ot_model_writer_files(const ot_model_writer *writer)
{
    return writer->files;
}

uint64_t ot_model_writer_overflows(const ot_model_writer *writer)
{
    return writer->overflows;
}
