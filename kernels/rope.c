/* Tables of rotary positions, on the host. */
#include <math.h>

#include "kernels/kernels.h"

/* Llama 3: wavelengths above original_positions/low_freq_factor are stretched by factor, those below
 * original_positions/high_freq_factor kept, and those between are interpolated. */
static double scale_llama3(const ot_rope_scaling *s, double frequency)
{
    double turns = s->original_positions * frequency / (2 * 3.14159265358979323846);
    if (turns < s->low_freq_factor)
        return frequency / s->factor;
    if (turns > s->high_freq_factor)
        return frequency;
    double smooth = (turns - s->low_freq_factor) / (s->high_freq_factor - s->low_freq_factor);
    return (1 - smooth) * frequency / s->factor + smooth * frequency;
}

double ot_rope_frequency(const ot_rope_scaling *s, size_t i, size_t HD)
{
    double frequency = pow(s->theta, -2.0 * (double)i / (double)HD);
    if (s->kind == OT_ROPE_LINEAR)
        frequency /= s->factor;
    else if (s->kind == OT_ROPE_LLAMA3)
        frequency = scale_llama3(s, frequency);
    return frequency;
}

void ot_rope_table(const ot_rope_scaling *scaling, size_t HD, size_t positions, float *table)
{
    size_t half = HD / 2;
    for (size_t i = 0; i < half; i++) {
        float frequency = (float)ot_rope_frequency(scaling, i, HD);
        for (size_t p = 0; p < positions; p++) {
            double angle = (double)p * (double)frequency;
            table[p * HD + i] = (float)cos(angle);
            table[p * HD + half + i] = (float)sin(angle);
        }
    }
}
