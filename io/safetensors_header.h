/* The header of one safetensors file. For io/safetensors*.c alone. */
#ifndef OT_IO_SAFETENSORS_HEADER_H
#define OT_IO_SAFETENSORS_HEADER_H

#include <jansson.h>

#include "io/safetensors.h"

/* Longer ones are refused by Hugging Face's reader, too. */
enum { OT_SAFETENSORS_HEADER_MAX = 100000000, OT_SAFETENSORS_LENGTH_BYTES = 8 };

typedef struct ot_safetensors_header {
    ot_file_tensor *tensors; /* ascending by offset; the names are their own */
    size_t count;
    json_t *metadata; /* NULL: none */
} ot_safetensors_header;

/* Reads and checks the header of an open file. `out` starts as zeros and is for ot_safetensors_header_free, after a
 * failure too. */
ot_status ot_safetensors_header_read(int fd, const char *path, ot_safetensors_header *out) OT_MUST_CHECK;
void ot_safetensors_header_free(ot_safetensors_header *header);

/* The product of shape and element size. OT_ERR_FORMAT where it exceeds 2^63-1 bytes. */
ot_status ot_tensor_spec_bytes(const ot_tensor_spec *spec, const char *path, uint64_t *bytes) OT_MUST_CHECK;

#endif
