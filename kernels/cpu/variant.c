/* The ranges of one instruction set; compiled once for each. */
#include "kernels/cpu/cpu.h"

#define OT_TEXT2(x) #x
#define OT_TEXT(x) OT_TEXT2(x)
#define OT_VARIANT_ENTRY(NAME, function) [OT_RANGE_##NAME] = OT_VARIANT(function),

extern const ot_variant OT_VARIANT(ot_variant_table);

const ot_variant OT_VARIANT(ot_variant_table) = {
    .name = OT_TEXT(OT_VARIANT_SUFFIX),
    .ranges = {OT_VARIANT_RANGES(OT_VARIANT_ENTRY)},
};
