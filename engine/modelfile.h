/* Models in safetensors files: weights of Hugging Face's directories, and the masters and moments of checkpoints, as a
 * source and as a sink of a model's values (values.h).
 *
 * Files hold tensors under Hugging Face's names, GPT-2's Conv1D weights as [cols,rows], which is [in,out]. 8-bit moments:
 * moment1 as I8, moment2 as U8, and for each layer one F32 tensor "LAYER.scales" with a scale for every OT_MOMENT_BLOCK
 * elements of the layer's flat vector (model.h), padding included.
 *
 * Host memory is taken at the opening: for each plane a piece of a tensor, the largest transposed tensor and the scales of one
 * layer, whatever the model's size. */
#ifndef OT_ENGINE_MODELFILE_H
#define OT_ENGINE_MODELFILE_H

#include "engine/model.h"
#include "engine/values.h"
#include "io/safetensors.h"

/* ---- Reading ---- */

typedef struct ot_model_source ot_model_source;

typedef struct ot_model_source_options {
    const ot_model *model; /* outlives the source */
    const char *directory;
    const char *stem;                        /* of the weights or masters, in FP32, BF16 or FP16: "model" */
    const char *moment1_stem, *moment2_stem; /* of moments; NULL: there are none */
    ot_dtype state_dtype;                    /* of the moments, exactly */
} ot_model_source_options;

/* Opens the tensor sets and checks them against the model: OT_ERR_FORMAT, with file and tensor, where one is missing, has
 * another shape or dtype, or is not the model's. GPT-2's mask buffers and inv_freq are passed over, and names may lack
 * "transformer." or "model.". A head of a tied model is accepted where it equals the embedding byte for byte. */
ot_status ot_model_source_open(const ot_model_source_options *options, ot_model_source **out) OT_MUST_CHECK;

/* The source itself; lives as long. Chunks may come in any order, in model order they are read once. OT_ERR_IO. */
ot_source ot_model_source_values(ot_model_source *source);

/* The dtype of most values of the weights' files: what an export without a wish writes. */
ot_dtype ot_model_source_dtype(const ot_model_source *source);

void ot_model_source_close(ot_model_source *source); /* NULL is allowed */

/* ---- Writing ---- */

typedef struct ot_model_writer ot_model_writer;

typedef enum ot_value_plane {
    OT_VALUE_MASTER, /* the weights, too: cast from the master */
    OT_VALUE_MOMENT1,
    OT_VALUE_MOMENT2,
} ot_value_plane;

typedef struct ot_model_writer_options {
    const ot_model *model; /* outlives the writer */
    const char *directory, *stem;
    ot_value_plane plane;
    ot_dtype dtype; /* of the file; of moments the run's state dtype */
    int split; /* BF16: the high half of the split master, half up, which is the weight of a bf16 run; 0: to nearest even */
    uint64_t shard_bytes; /* as in ot_tensor_writer_options */
} ot_model_writer_options;

ot_status ot_model_writer_open(const ot_model_writer_options *options, ot_model_writer **out) OT_MUST_CHECK;

/* The sink: chunks in model order, without a gap. OT_ERR_IO. */
ot_sink ot_model_writer_values(ot_model_writer *writer);

/* Behind the last chunk: makes the files durable. */
ot_status ot_model_writer_finish(ot_model_writer *writer) OT_MUST_CHECK;

/* The files that have been written, for names, sizes and hashes. */
const ot_tensor_writer *ot_model_writer_files(const ot_model_writer *writer);

/* Converts values to BF16 or FP16, to nearest even. Returns how many finite ones were too large for FP16 and are inf now. */
uint64_t ot_values_narrow(ot_dtype dtype, const float *values, size_t count, uint16_t *out);

/* Finite values that were too large for FP16 and are inf in the file. */
uint64_t ot_model_writer_overflows(const ot_model_writer *writer);

void ot_model_writer_close(ot_model_writer *writer); /* NULL is allowed */

#endif
