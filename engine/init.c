/* Random weights. Everything is exact arithmetic or correctly rounded, not the C library's functions, so that
 * a seed gives the same model on every machine. */
#include <math.h>
#include <string.h>

#include "engine/model.h"
#include "io/text.h"
#include "kernels/random.h"

/* log(x) for normal x > 0: x = m 2^e with m in [sqrt(1/2), sqrt(2)), then 2 artanh((m-1)/(m+1)). */
static double logarithm(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    const uint64_t root_half = 0x3fe6a09e667f3bcd;
    int64_t e = (int64_t)(bits - root_half) >> 52;
    bits -= (uint64_t)e << 52;
    double m;
    memcpy(&m, &bits, sizeof m);
    double s = (m - 1) / (m + 1), z = s * s;
    double series = 1 + z * (1.0 / 3 + z * (1.0 / 5 + z * (1.0 / 7 + z * (1.0 / 9 + z * (1.0 / 11)))));
    return (double)e * 0.69314718055994530942 + 2 * s * series;
}

/* Cosine and sine of (word / 2^32) turns: the word's top two bits are the quadrant, the rest an angle a of up
 * to a quarter turn either side of it, halved: Taylor on [-pi/4, pi/4]. */
static void rotate(uint32_t word, double *cosine, double *sine)
{
    uint32_t quadrant = (word + 0x20000000u) >> 30;
    double a = (double)(int32_t)(word - (quadrant << 30)) * (1.57079632679489661923 / 0x1p30), z = a * a;
    double c = 1 - z / 2 * (1 - z / 12 * (1 - z / 30 * (1 - z / 56 * (1 - z / 90))));
    double s = a * (1 - z / 6 * (1 - z / 20 * (1 - z / 42 * (1 - z / 72 * (1 - z / 110)))));
    *cosine = quadrant == 0 ? c : quadrant == 1 ? -s : quadrant == 2 ? -c : s;
    *sine = quadrant == 0 ? s : quadrant == 1 ? c : quadrant == 2 ? -s : -c;
}

/* Four standard normal values from four words (Box & Muller 1958). */
static void normal4(const uint32_t words[4], double out[4])
{
    for (int i = 0; i < 4; i += 2) {
        double radius = sqrt(-2 * logarithm(((double)words[i] + 0.5) * 0x1p-32)), cosine, sine;
        rotate(words[i + 1], &cosine, &sine);
        out[i] = radius * cosine;
        out[i + 1] = radius * sine;
    }
}

/* out[0 … count-1] = elements first … of the layer; four elements share one counter. */
static void fill_normal(double std, size_t layer, uint64_t first, uint64_t count, uint64_t seed, float *out)
{
    for (uint64_t e = first; e < first + count;) {
        uint32_t words[4];
        double values[4];
        ot_philox(seed, e / 4, layer, words);
        normal4(words, values);
        do {
            out[e - first] = (float)(std * values[e % 4]);
        } while (++e % 4 != 0 && e < first + count);
    }
}

static void fill(const ot_model_config *c, const ot_tensor *tensor, size_t layer, uint64_t first,
                 uint64_t count, uint64_t seed, float *out)
{
    if (tensor->decay) {
        int residual = c->family == OT_FAMILY_GPT2 && ot_ends_with(tensor->name, "c_proj.weight");
        double std = residual ? c->init_std / sqrt(2 * (double)c->L) : c->init_std;
        fill_normal(std, layer, first, count, seed, out);
    } else if (ot_ends_with(tensor->name, ".weight")) {
        for (uint64_t i = 0; i < count; i++)
            out[i] = 1;
    }
}

void ot_model_random(const ot_model *model, size_t layer, uint64_t first, uint64_t count, uint64_t seed,
                     float *out)
{
    const ot_layer *l = &model->layers[layer];
    memset(out, 0, count * sizeof *out);
    for (size_t t = 0; t < l->tensor_count; t++) {
        const ot_tensor *tensor = &l->tensors[t];
        uint64_t begin = tensor->offset, end = begin + (uint64_t)tensor->rows * tensor->cols;
        begin = begin > first ? begin : first;
        end = end < first + count ? end : first + count;
        if (begin < end)
            fill(&model->config, tensor, layer, begin, end - begin, seed, out + (begin - first));
    }
}
