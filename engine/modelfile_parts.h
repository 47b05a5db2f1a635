/* What reading and writing of model files have in common. For engine/model*.c alone. */
#ifndef OT_ENGINE_MODELFILE_PARTS_H
#define OT_ENGINE_MODELFILE_PARTS_H

#include "engine/modelfile.h"

enum {
    OT_PIECE_ELEMENTS = 65536, /* of a tensor that is converted on its way */
    OT_SCALES_NAME_BYTES = OT_TENSOR_NAME_BYTES + 8,
};

/* The tensor as files have it. */
ot_tensor_spec ot_tensor_file_spec(const ot_tensor *tensor, ot_file_dtype dtype);
ot_file_dtype ot_value_file_dtype(ot_value_plane plane, ot_dtype dtype);

uint64_t ot_tensor_elements(const ot_tensor *tensor);

/* The scales of a layer's 8-bit moments: name and number. */
void ot_layer_scales_name(const ot_layer *layer, char out[OT_SCALES_NAME_BYTES]);
uint64_t ot_layer_scales(const ot_layer *layer);

/* Buffers, in elements: for pieces, which hold a file's row of every transposed tensor; for one whole transposed tensor,
 * 0 where there is none; for the scales of one layer. */
size_t ot_model_piece_elements(const ot_model *model);
uint64_t ot_model_whole_elements(const ot_model *model);
uint64_t ot_model_most_scales(const ot_model *model);

#endif
