/* Random words for runs of elements, and stochastic rounding.
 *
 * For files that are compiled per instruction set. */
#ifndef OT_KERNELS_CPU_ROUNDING_H
#define OT_KERNELS_CPU_ROUNDING_H

#include <string.h>

#include "kernels/cpu/plane.h"
#include "kernels/random.h"

#if defined(__SSE2__) && !defined(__clang__)
#include <immintrin.h>
#endif

/* Eight 32-bit words, each in the low half of its lane; what is above is ignored. */
typedef uint64_t ot_words __attribute__((vector_size(64)));

/* The 64-bit products of the words and `factor`, for which every instruction set has an instruction. GCC does
 * not find it, which makes Philox 1.3 to 4 times slower. */
OT_LOOP ot_words ot_multiply_words(ot_words a, uint32_t factor)
{
#if defined(__AVX512F__) && !defined(__clang__)
    return (ot_words)_mm512_mul_epu32((__m512i)a, _mm512_set1_epi64(factor));
#elif defined(__AVX2__) && !defined(__clang__)
    __m256i part[2];
    memcpy(part, &a, sizeof part);
    for (int j = 0; j < 2; j++)
        part[j] = _mm256_mul_epu32(part[j], _mm256_set1_epi64x(factor));
    memcpy(&a, part, sizeof a);
    return a;
#elif defined(__SSE2__) && !defined(__clang__)
    __m128i part[4];
    memcpy(part, &a, sizeof part);
    for (int j = 0; j < 4; j++)
        part[j] = _mm_mul_epu32(part[j], _mm_set1_epi64x(factor));
    memcpy(&a, part, sizeof a);
    return a;
#else
    return (a & 0xffffffffu) * factor;
#endif
}

/* Words 0 and 1 of ot_philox(seed, index .. index+7, sequence): random.h, in lanes. */
OT_LOOP void ot_random_words(uint64_t seed, uint64_t index, uint64_t sequence, uint32_t word0[8],
                             uint32_t word1[8])
{
    typedef uint32_t half __attribute__((vector_size(32)));
    ot_words a = (ot_words){0, 1, 2, 3, 4, 5, 6, 7} + index, b = a >> 32;
    ot_words c = (ot_words){0} + sequence, d = c >> 32;
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < OT_PHILOX_ROUNDS; round++) {
        ot_words p = ot_multiply_words(a, 0xD2511F53u), q = ot_multiply_words(c, 0xCD9E8D57u);
        a = (q >> 32) ^ b ^ k0;
        b = q;
        c = (p >> 32) ^ d ^ k1;
        d = p;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    half first = __builtin_convertvector(a, half), second = __builtin_convertvector(b, half);
    memcpy(word0, &first, sizeof first);
    memcpy(word1, &second, sizeof second);
}

/* The words of elements index .. index+n-1; both arrays have room for n rounded up to 8. */
OT_LOOP void ot_random_run(uint64_t seed, uint64_t index, uint64_t sequence, size_t n, uint32_t *word0,
                           uint32_t *word1)
{
    for (size_t i = 0; i < n; i += 8)
        ot_random_words(seed, index + i, sequence, word0 + i, word1 + i);
}

/* Sixteen random bits below the last place that bf16 keeps, then cut; inf and NaN stay, NaN made quiet. */
OT_LOOP uint16_t ot_round_randomly_bf16(float x, uint32_t word)
{
    uint32_t u = ot_bits(x), size = u & 0x7fffffff;
    uint32_t finite = (u + (word & 0xffff)) >> 16, special = size > 0x7f800000u ? (u >> 16) | 0x40 : u >> 16;
    return (uint16_t)(size < 0x7f800000u ? finite : special);
}

#endif
