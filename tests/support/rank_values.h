/* What tests of several ranks share: a folder for each, and a whole model's values on their way out of a trainer and back. */
#ifndef OT_TESTS_SUPPORT_RANK_VALUES_H
#define OT_TESTS_SUPPORT_RANK_VALUES_H

#include "engine/model.h"
#include "engine/values.h"

enum { RANKS = 4 };

/* Folders for the NVMe tier, in the working directory; set-up and tear-down of a group of tests. Closing fails where a test left
 * something in them. */
extern const char *rank_directories[RANKS];
int rank_folders_open(void **state);
int rank_folders_close(void **state);

/* A model in model order, padding in it. */
typedef struct model_values {
    const ot_model *model;
    float *plane[3]; /* masters, first and second moments in FP32 */
    uint64_t taken;  /* elements so far, of model_elements */
} model_values;

/* Of the layers before `layer`. */
uint64_t model_elements(const ot_model *model, size_t layer);

void model_values_open(model_values *v, const ot_model *model);
void model_values_close(model_values *v);

/* A sink's and a source's function, whose context is the values. What comes out must come in model order, without a gap. */
ot_status model_values_take(void *context, const ot_chunk_values *chunk);
ot_status model_values_fill(void *context, const ot_chunk_values *chunk);

#endif
