/* What reading and writing of model files have in common. */
#include "engine/modelfile_parts.h"

#include <math.h>
#include <stdio.h>

#include "kernels/element.h"

ot_tensor_spec ot_tensor_file_spec(const ot_tensor *tensor, ot_file_dtype dtype)
{
    ot_tensor_spec spec = {.name = tensor->name, .dtype = dtype, .dimensions = 1, .shape = {tensor->rows}};
    /* Vectors have one column; so has a matrix that is one wide, which no model has. */
    if (tensor->decay) {
        spec.dimensions = 2;
        spec.shape[0] = tensor->transposed ? tensor->cols : tensor->rows;
        spec.shape[1] = tensor->transposed ? tensor->rows : tensor->cols;
    }
    return spec;
}

ot_file_dtype ot_value_file_dtype(ot_value_plane plane, ot_dtype dtype)
{
    if (dtype == OT_INT8)
        return plane == OT_VALUE_MOMENT1 ? OT_FILE_I8 : OT_FILE_U8;
    return dtype == OT_FP32 ? OT_FILE_F32 : dtype == OT_BF16 ? OT_FILE_BF16 : OT_FILE_F16;
}

void ot_layer_scales_name(const ot_layer *layer, char out[OT_SCALES_NAME_BYTES])
{
    snprintf(out, OT_SCALES_NAME_BYTES, "%s.scales", layer->name);
}

uint64_t ot_tensor_elements(const ot_tensor *tensor)
{
    return (uint64_t)tensor->rows * tensor->cols;
}

uint64_t ot_layer_scales(const ot_layer *layer)
{
    return layer->params / OT_MOMENT_BLOCK;
}

uint64_t ot_values_narrow(ot_dtype dtype, const float *values, size_t count, uint16_t *restrict out)
{
    uint64_t overflows = 0;
    if (dtype == OT_BF16) {
        for (size_t i = 0; i < count; i++)
            out[i] = ot_narrow_bf16(values[i]);
        return 0;
    }
    for (size_t i = 0; i < count; i++) {
        out[i] = ot_narrow_fp16(values[i]);
        overflows += (out[i] & 0x7fff) == 0x7c00 && fabsf(values[i]) < INFINITY;
    }
    return overflows;
}

size_t ot_model_piece_elements(const ot_model *model)
{
    size_t elements = OT_PIECE_ELEMENTS;
    for (size_t l = 0; l < model->layer_count; l++)
        for (size_t t = 0; t < model->layers[l].tensor_count; t++) {
            const ot_tensor *tensor = &model->layers[l].tensors[t];
            if (tensor->transposed && tensor->rows > elements)
                elements = tensor->rows;
        }
    return elements;
}

uint64_t ot_model_whole_elements(const ot_model *model)
{
    uint64_t elements = 0;
    for (size_t l = 0; l < model->layer_count; l++)
        for (size_t t = 0; t < model->layers[l].tensor_count; t++) {
            const ot_tensor *tensor = &model->layers[l].tensors[t];
            if (tensor->transposed && ot_tensor_elements(tensor) > elements)
                elements = ot_tensor_elements(tensor);
        }
    return elements;
}

uint64_t ot_model_most_scales(const ot_model *model)
{
    uint64_t most = 0;
    for (size_t l = 0; l < model->layer_count; l++)
        if (ot_layer_scales(&model->layers[l]) > most)
            most = ot_layer_scales(&model->layers[l]);
    return most;
}
