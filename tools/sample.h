/* What a benchmark measured in several rounds: its median, and the range of it. */
#ifndef OT_TOOLS_SAMPLE_H
#define OT_TOOLS_SAMPLE_H

#include <jansson.h>
#include <stddef.h>

enum { OT_SAMPLE_MAX = 99, OT_SAMPLE_TEXT_BYTES = 64 };

typedef struct ot_sample {
    size_t count;
    double values[OT_SAMPLE_MAX]; /* ascending */
} ot_sample;

/* Adds a value; beyond OT_SAMPLE_MAX they are dropped. */
void ot_sample_add(ot_sample *sample, double value);

/* 0 without values. */
double ot_sample_median(const ot_sample *sample);

/* "52.1 (50.3 to 52.8)" into `out`, which it returns. */
const char *ot_sample_text(const ot_sample *sample, char out[OT_SAMPLE_TEXT_BYTES]);

/* {"median": …, "min": …, "max": …}; a new reference. */
json_t *ot_sample_json(const ot_sample *sample);

#endif
