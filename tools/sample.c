#include "tools/sample.h"

#include <stdio.h>

void ot_sample_add(ot_sample *sample, double value)
{
    if (sample->count == OT_SAMPLE_MAX)
        return;
    size_t at = sample->count++;
    for (; at > 0 && sample->values[at - 1] > value; at--)
        sample->values[at] = sample->values[at - 1];
    sample->values[at] = value;
}

double ot_sample_median(const ot_sample *sample)
{
    size_t n = sample->count;
    return n == 0 ? 0 : (sample->values[(n - 1) / 2] + sample->values[n / 2]) / 2;
}

static double smallest(const ot_sample *sample)
{
    return sample->count == 0 ? 0 : sample->values[0];
}

static double largest(const ot_sample *sample)
{
    return sample->count == 0 ? 0 : sample->values[sample->count - 1];
}

const char *ot_sample_text(const ot_sample *sample, char out[OT_SAMPLE_TEXT_BYTES])
{
    snprintf(out, OT_SAMPLE_TEXT_BYTES, "%.2f (%.2f to %.2f)", ot_sample_median(sample), smallest(sample),
             largest(sample));
    return out;
}

json_t *ot_sample_json(const ot_sample *sample)
{
    return json_pack("{s:f, s:f, s:f}", "median", ot_sample_median(sample), "min", smallest(sample), "max",
                     largest(sample));
}
