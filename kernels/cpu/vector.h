/* Vector arithmetic that gives the same bytes in every instruction set.
 *
 * GCC's and Clang's vector types, as wide as the machine's registers: OT_LANES elements. Each lane is plain
 * IEEE arithmetic without contraction, so what is computed element by element does not depend on the width;
 * sums run in OT_SUM_LANES lanes whatever the width (ot_sum16). The elementary functions are polynomials of
 * our own for the same reason: a library's differ between processors.
 *
 * For files that are compiled per instruction set. A file that needs another width defines OT_LANES first. */
#ifndef OT_KERNELS_CPU_VECTOR_H
#define OT_KERNELS_CPU_VECTOR_H

#include <math.h>
#include <stdint.h>
#include <string.h>
#ifdef __F16C__
#include <immintrin.h>
#endif

#include "kernels/dtype.h"

#define OT_INLINE static inline __attribute__((always_inline, unused))

#ifndef OT_LANES
#if defined(__AVX512F__)
#define OT_LANES 16
#elif defined(__AVX2__)
#define OT_LANES 8
#else
#define OT_LANES 4
#endif
#endif

#define OT_SUM_LANES 16
#define OT_SUM_PARTS (OT_SUM_LANES / OT_LANES)

typedef float ot_vf __attribute__((vector_size(OT_LANES * 4)));
typedef int32_t ot_vi __attribute__((vector_size(OT_LANES * 4)));
typedef uint32_t ot_vu __attribute__((vector_size(OT_LANES * 4)));
typedef uint16_t ot_vh __attribute__((vector_size(OT_LANES * 2)));
typedef double ot_vd __attribute__((vector_size(OT_LANES * 4))); /* half as many lanes */
typedef float ot_vf_half __attribute__((vector_size(OT_LANES * 2)));

/* Calls function(dtype, ...) with a constant dtype, so that each type gets loops of its own. */
#define OT_WITH_DTYPE(dtype, function, ...)                                                                  \
    do {                                                                                                     \
        if ((dtype) == OT_BF16)                                                                              \
            function(OT_BF16, __VA_ARGS__);                                                                  \
        else if ((dtype) == OT_FP16)                                                                         \
            function(OT_FP16, __VA_ARGS__);                                                                  \
        else                                                                                                 \
            function(OT_FP32, __VA_ARGS__);                                                                  \
    } while (0)

OT_INLINE ot_vf ot_splat(float x)
{
    return (ot_vf){0} + x;
}

/* Where the mask is -1, a; where it is 0, b. Comparisons of vectors give such masks. */
OT_INLINE ot_vf ot_select(ot_vi mask, ot_vf a, ot_vf b)
{
    return (ot_vf)((mask & (ot_vi)a) | (~mask & (ot_vi)b));
}

OT_INLINE ot_vu ot_select_bits(ot_vi mask, ot_vu a, ot_vu b)
{
    return ((ot_vu)mask & a) | (~(ot_vu)mask & b);
}

OT_INLINE ot_vi ot_lane_numbers(void)
{
    static const int32_t numbers[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    ot_vi lanes;
    memcpy(&lanes, numbers, sizeof lanes);
    return lanes;
}

/* -1 in the lanes of the elements from i on that are below n. */
OT_INLINE ot_vi ot_lanes_below(size_t i, size_t n)
{
    size_t left = i < n ? n - i : 0;
    return ot_lane_numbers() < (int32_t)(left < OT_LANES ? left : OT_LANES);
}

/* ---- Sums ---- */

/* A sum in OT_SUM_LANES lanes: element i belongs to lane i mod OT_SUM_LANES. A loop takes OT_SUM_LANES
 * elements a turn, part after part; ot_load gives zeros beyond the end. */
typedef struct ot_sum16 {
    ot_vf part[OT_SUM_PARTS];
} ot_sum16;

/* The lanes added up: j and j+8, then j and j+4, and so on. */
OT_INLINE float ot_sum_lanes(const ot_sum16 *sum)
{
    float lane[OT_SUM_LANES];
    memcpy(lane, sum, sizeof lane);
    for (int width = OT_SUM_LANES / 2; width > 0; width /= 2)
        for (int j = 0; j < width; j++)
            lane[j] += lane[j + width];
    return lane[0];
}

OT_INLINE float ot_max_lanes(ot_vf x)
{
    float lane[OT_LANES];
    memcpy(lane, &x, sizeof lane);
    for (int width = OT_LANES / 2; width > 0; width /= 2)
        for (int j = 0; j < width; j++)
            lane[j] = lane[j] > lane[j + width] ? lane[j] : lane[j + width];
    return lane[0];
}

/* The same in FP64, for sums over a plane. */
typedef struct ot_double_sum16 {
    ot_vd part[2 * OT_SUM_PARTS];
} ot_double_sum16;

OT_INLINE void ot_add_squares(ot_double_sum16 *sum, int part, ot_vf x)
{
    ot_vf_half half[2];
    memcpy(half, &x, sizeof half);
    ot_vd low = __builtin_convertvector(half[0], ot_vd), high = __builtin_convertvector(half[1], ot_vd);
    sum->part[2 * part] += low * low;
    sum->part[2 * part + 1] += high * high;
}

OT_INLINE double ot_sum_double_lanes(const ot_double_sum16 *sum)
{
    double lane[OT_SUM_LANES];
    memcpy(lane, sum, sizeof lane);
    for (int width = OT_SUM_LANES / 2; width > 0; width /= 2)
        for (int j = 0; j < width; j++)
            lane[j] += lane[j + width];
    return lane[0];
}

/* ---- Conversions ---- */

OT_INLINE ot_vf ot_from_bf16(ot_vh h)
{
    return (ot_vf)(__builtin_convertvector(h, ot_vu) << 16);
}

/* To nearest even; NaN stays NaN, made quiet. */
OT_INLINE ot_vh ot_to_bf16(ot_vf x)
{
    ot_vu u = (ot_vu)x;
    ot_vu rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    return __builtin_convertvector(ot_select_bits(x != x, (u >> 16) | 0x40, rounded), ot_vh);
}

OT_INLINE ot_vf ot_from_fp16(ot_vh h)
{
#if defined(__AVX512F__) && OT_LANES == 16
    return (ot_vf)_mm512_cvtph_ps((__m256i)h);
#elif defined(__F16C__) && OT_LANES == 8
    return (ot_vf)_mm256_cvtph_ps((__m128i)h);
#else
    const uint32_t shift = 112u << 23; /* between the exponents' biases */
    ot_vu u = __builtin_convertvector(h, ot_vu);
    ot_vu sign = (u & 0x8000) << 16, bits = (u & 0x7fff) << 13, exponent = u & 0x7c00;
    ot_vu normal = bits + shift;
    ot_vu special = (bits + shift + shift) | (((u & 0x3ff) != 0) & 0x400000u);
    ot_vf subnormal = (ot_vf)(bits + shift + (1u << 23)) - (ot_vf)((ot_vu){0} + (113u << 23));
    ot_vu value = ot_select_bits(exponent == 0x7c00, special, normal);
    return (ot_vf)(ot_select_bits(exponent == 0, (ot_vu)subnormal, value) | sign);
#endif
}

/* To nearest even; above the range to inf; NaN stays NaN, made quiet. Subnormals round in the addition of
 * 1/2, whose last place is theirs. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-conversion" /* in gcc's own macros, without optimisation */
OT_INLINE ot_vh ot_to_fp16(ot_vf x)
{
#if defined(__AVX512F__) && OT_LANES == 16
    return (ot_vh)_mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__F16C__) && OT_LANES == 8
    return (ot_vh)_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    ot_vu u = (ot_vu)x, sign = (u >> 16) & 0x8000, size = u & 0x7fffffff;
    ot_vu normal = (size + 0xfff + ((size >> 13) & 1) - (112u << 23)) >> 13;
    ot_vu subnormal = (ot_vu)((ot_vf)size + 0.5f) - 0x3f000000u;
    ot_vu value = ot_select_bits(size < 0x38800000u, subnormal, normal);
    value = ot_select_bits(size >= 0x47800000u, (ot_vu){0} + 0x7c00, value);
    value = ot_select_bits(x != x, 0x7e00 | ((u >> 13) & 0x3ff), value);
    return __builtin_convertvector(value | sign, ot_vh);
#endif
}
#pragma GCC diagnostic pop

OT_INLINE ot_vf ot_load_full(ot_dtype dtype, const void *p)
{
    ot_vf x;
    ot_vh h;
    if (dtype == OT_FP32) {
        memcpy(&x, p, sizeof x);
        return x;
    }
    memcpy(&h, p, sizeof h);
    return dtype == OT_BF16 ? ot_from_bf16(h) : ot_from_fp16(h);
}

OT_INLINE void ot_store_full(ot_dtype dtype, void *p, ot_vf x)
{
    if (dtype == OT_FP32) {
        memcpy(p, &x, sizeof x);
        return;
    }
    ot_vh h = dtype == OT_BF16 ? ot_to_bf16(x) : ot_to_fp16(x);
    memcpy(p, &h, sizeof h);
}

/* The elements from i on of an array of n, as FP32; zeros beyond its end. */
OT_INLINE ot_vf ot_load(ot_dtype dtype, const void *array, size_t i, size_t n)
{
    size_t size = ot_dtype_bytes(dtype);
    if (i + OT_LANES <= n)
        return ot_load_full(dtype, (const unsigned char *)array + i * size);
    unsigned char part[OT_LANES * 4] = {0};
    if (i < n)
        memcpy(part, (const unsigned char *)array + i * size, (n - i) * size);
    return ot_load_full(dtype, part);
}

/* The lanes of the elements from i < n on that are below n, rounded to nearest even. */
OT_INLINE void ot_store(ot_dtype dtype, void *array, size_t i, size_t n, ot_vf x)
{
    size_t size = ot_dtype_bytes(dtype);
    unsigned char *p = (unsigned char *)array + i * size;
    if (i + OT_LANES <= n) {
        ot_store_full(dtype, p, x);
        return;
    }
    unsigned char part[OT_LANES * 4];
    ot_store_full(dtype, part, x);
    memcpy(p, part, (n - i) * size);
}

/* Address of element i. */
OT_INLINE const void *ot_at(ot_dtype dtype, const void *array, size_t i)
{
    return (const unsigned char *)array + i * ot_dtype_bytes(dtype);
}

OT_INLINE void *ot_at_mutable(ot_dtype dtype, void *array, size_t i)
{
    return (unsigned char *)array + i * ot_dtype_bytes(dtype);
}

/* ---- Elementary functions ---- */

/* exp(x) to 1 ulp, subnormal results included: x = n ln2 + r, the first part of ln2 short enough for an exact
 * n ln2; 2^n in two factors, since n reaches from -150 to 128. The polynomial is that of Cephes' expf. */
OT_INLINE ot_vf ot_exp(ot_vf x)
{
    x = ot_select(x > 89.0f, ot_splat(89.0f), x);
    x = ot_select(x < -104.0f, ot_splat(-104.0f), x);
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    ot_vf shifted = x * 1.44269504088896341f + magic;
    ot_vf n = shifted - magic;
    ot_vi k = (ot_vi)shifted - 0x4b400000;
    ot_vf r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    ot_vf p = ot_splat(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    ot_vi half = k >> 1;
    return p * (ot_vf)((half + 127) << 23) * (ot_vf)((k - half + 127) << 23);
}

OT_INLINE ot_vf ot_sigmoid(ot_vf x)
{
    return 1.0f / (1.0f + ot_exp(-x));
}

/* The normal distribution function, (1 + erf(x/sqrt(2)))/2, with a small relative error in its lower tail,
 * too. With z = |x|/sqrt(2) and t = 1/(1 + z/2), erfc(z) = t exp(P(t) - z^2); P of degree 9 interpolates at
 * Chebyshev's points of 0 <= z <= 10.5, to 6e-8. */
OT_INLINE ot_vf ot_normal_cdf(ot_vf x)
{
    ot_vf z = ot_select(x < 0.0f, -x, x) * 0.707106781f;
    ot_vf t = 1.0f / (1.0f + 0.5f * z);
    ot_vf p = ot_splat(0.152279483848f);
    p = p * t - 0.720417711407f;
    p = p * t + 1.24870898697f;
    p = p * t - 0.81681912844f;
    p = p * t + 0.0176640586061f;
    p = p * t - 0.0496802676887f;
    p = p * t + 0.0515081469734f;
    p = p * t + 0.383202547783f;
    p = p * t + 0.999020345926f;
    p = p * t - 1.2654664097f;
    ot_vf tail = 0.5f * t * ot_exp(p - z * z);
    return ot_select(x < 0.0f, tail, 1.0f - tail);
}

/* Natural logarithm of a positive, finite, normal x, in FP64 to 1e-12: x = 2^k m, m around 1, and the series
 * of atanh. */
OT_INLINE double ot_log(double x)
{
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    int64_t k = (int64_t)((u - 0x3fe6a09e667f3bcd) >> 52); /* sqrt(1/2) */
    k = k >= 2048 ? k - 4096 : k;
    uint64_t bits = u - ((uint64_t)k << 52);
    double m;
    memcpy(&m, &bits, sizeof m);
    double s = (m - 1) / (m + 1), z = s * s;
    double series = 1.0 / 17;
    for (int n = 15; n >= 1; n -= 2)
        series = series * z + 1.0 / n;
    return (double)k * 0.69314718055994530942 + 2 * s * series;
}

#endif
