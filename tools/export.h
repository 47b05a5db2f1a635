/* `offtrain export`: what its formats share. */
#ifndef OT_TOOLS_EXPORT_H
#define OT_TOOLS_EXPORT_H

#include "engine/hf_config.h"
#include "engine/modelfile.h"

/* A model on its way out. */
typedef struct ot_export {
    const char *directory; /* where it comes from: config.json, tokenizer files */
    const char *output;    /* where it goes to, without a slash at the end */
    ot_hf_config *config;
    ot_model *model;
    ot_model_source *source;
    ot_dtype dtype; /* of the matrices */
    float *values;  /* [OT_EXPORT_VALUES] */
} ot_export;

/* Elements that are in memory at a time; a row of any matrix is among them. */
enum { OT_EXPORT_VALUES = 1 << 21 };

/* Writes the file `output`, which must not exist: GGUF version 3 for the Llama family, checked by reading it back. */
ot_status ot_export_gguf(const ot_export *export) OT_MUST_CHECK;

#endif
