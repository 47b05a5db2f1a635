/* The element types of tensors and planes. Common subset of C and C++. */
#ifndef OT_KERNELS_DTYPE_H
#define OT_KERNELS_DTYPE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef enum ot_dtype {
    OT_FP32,
    OT_BF16, /* the high half of FP32's pattern */
    OT_FP16, /* IEEE 754 binary16, with subnormals */
    OT_INT8, /* moments only: blocks of OT_MOMENT_BLOCK elements, one FP32 scale each (kernels.h, ot_update)
              */
} ot_dtype;

enum { OT_DTYPES = 4 };

/* Bytes of one element; the scales of OT_INT8 are kept apart. */
static inline size_t ot_dtype_bytes(ot_dtype dtype)
{
    return dtype == OT_FP32 ? 4 : dtype == OT_INT8 ? 1 : 2;
}

/* "fp32", "bf16", "fp16", "int8". */
static inline const char *ot_dtype_name(ot_dtype dtype)
{
    return dtype == OT_FP32 ? "fp32" : dtype == OT_BF16 ? "bf16" : dtype == OT_FP16 ? "fp16" : "int8";
}

/* The dtype of that name; OT_DTYPES, which is none, where there is no such. */
static inline ot_dtype ot_dtype_find(const char *name)
{
    int dtype = 0;
    while (dtype < OT_DTYPES && strcmp(ot_dtype_name((ot_dtype)dtype), name) != 0)
        dtype++;
    return (ot_dtype)dtype;
}

#endif
