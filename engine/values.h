/* A model's values on their way in and out: where the trainer gets them from as it fills, and to whom it hands them.
 *
 * Both go chunk by chunk in model order: layers ascending, within a layer elements ascending and without a gap, each element
 * once. So a source reads its files forward, and a sink writes its files by appending. Elements are those of the layer's flat
 * vector (model.h), padding included: a source fills it with zeros, a sink leaves it out. */
#ifndef OT_ENGINE_VALUES_H
#define OT_ENGINE_VALUES_H

#include <stddef.h>
#include <stdint.h>

#include "io/status.h"

/* The values of `count` elements of a layer from element `first` on. Moments are in the run's state dtype: FP32, BF16, or
 * INT8 with one FP32 scale for every OT_MOMENT_BLOCK elements; `first` is a multiple of OT_MOMENT_BLOCK. NULL: the run has
 * no such plane. */
typedef struct ot_chunk_values {
    size_t layer;
    uint64_t first, count;
    float *master; /* [count] */
    void *moment1, *moment2;
    float *scale1, *scale2; /* [ceil(count / OT_MOMENT_BLOCK)], INT8 only */
} ot_chunk_values;

/* Called on one thread, the CPU lane's; may block on files. A source fills what is not NULL; moments are zero when they
 * arrive and stay so where the source has none. A sink only reads. */
typedef struct ot_source {
    ot_status (*fill)(void *context, const ot_chunk_values *chunk);
    void *context;
} ot_source;

typedef struct ot_sink {
    ot_status (*take)(void *context, const ot_chunk_values *chunk);
    void *context;
} ot_sink;

#endif
