/* Conversions of one element, as kernels.h defines them for planes: to nearest, ties to even; inf and NaN stay what they are,
 * NaN quiet. The same in every instruction set. */
#ifndef OT_KERNELS_ELEMENT_H
#define OT_KERNELS_ELEMENT_H

#include <stdint.h>
#include <string.h>

#define OT_LOOP static inline __attribute__((always_inline, unused))

OT_LOOP uint32_t ot_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

OT_LOOP float ot_float(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

OT_LOOP float ot_widen_bf16(uint16_t h)
{
    return ot_float((uint32_t)h << 16);
}

OT_LOOP uint16_t ot_narrow_bf16(float x)
{
    uint32_t u = ot_bits(x), rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    return (uint16_t)(x == x ? rounded : (u >> 16) | 0x40);
}

/* The high half of the split master (ot_split): half up on the raw pattern. */
OT_LOOP uint16_t ot_split_high(float x)
{
    return (uint16_t)((ot_bits(x) + 0x8000) >> 16);
}

OT_LOOP float ot_widen_fp16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, size = (uint32_t)(h & 0x7fff) << 13;
    uint32_t normal = size + (112u << 23), special = size + (224u << 23);
    special = size > 0x0f800000u ? special | 0x400000u : special; /* NaN, made quiet */
    uint32_t subnormal = ot_bits(ot_float(size + (113u << 23)) - ot_float(113u << 23));
    uint32_t value = size < 0x00800000u ? subnormal : size < 0x0f800000u ? normal : special;
    return ot_float(value | sign);
}

OT_LOOP uint16_t ot_narrow_fp16(float x)
{
    uint32_t u = ot_bits(x), sign = (u >> 16) & 0x8000, size = u & 0x7fffffff;
    uint32_t normal = (size + 0xfff + ((size >> 13) & 1) - (112u << 23)) >> 13;
    uint32_t subnormal = ot_bits(ot_float(size) + 0.5f) - 0x3f000000u;
    uint32_t large = size > 0x7f800000u ? 0x7e00 | ((u >> 13) & 0x3ff) : 0x7c00;
    uint32_t value = size < 0x38800000u ? subnormal : size < 0x47800000u ? normal : large;
    return (uint16_t)(value | sign);
}

#endif
