/* Whole files in memory, read-only. */
#ifndef OT_IO_MAPPING_H
#define OT_IO_MAPPING_H

#include <stddef.h>

#include "io/status.h"

typedef struct ot_mapping {
    const char *data; /* NULL where the file is empty */
    size_t bytes;
} ot_mapping;

/* Maps a regular file; `path` is named in OT_ERR_DATA. */
ot_status ot_mapping_open(const char *path, ot_mapping *out) OT_MUST_CHECK;
void ot_mapping_close(ot_mapping *map); /* {0} is allowed */

#endif
