/* JSON from a file. */
#ifndef OT_IO_JSON_FILE_H
#define OT_IO_JSON_FILE_H

#include <jansson.h>

#include "io/status.h"

/* Reads the file `path`, which holds one JSON object; `flags` are jansson's. The caller owns `*root`, which is NULL after a failure:
 * OT_ERR_FORMAT, with path and line, where it is missing, no regular file, or no object. Blocks. */
ot_status ot_json_read(const char *path, size_t flags, json_t **root) OT_MUST_CHECK;

#endif
