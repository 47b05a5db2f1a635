/* Other programs' token files: llm.c's (magic 20240520, 16-bit; 20240801, 32-bit) and nanoGPT's, which are 16-bit tokens and
 * nothing else. */
#ifndef OT_IO_TOKENBIN_H
#define OT_IO_TOKENBIN_H

#include <stddef.h>
#include <stdint.h>

#include "io/mapping.h"
#include "io/status.h"

typedef struct ot_tokenbin {
    const unsigned char *tokens; /* in the map */
    uint64_t count;
    int width;        /* bytes: 2 or 4 */
    const char *kind; /* "llm.c" or "nanoGPT" */
    uint64_t V;       /* of nanoGPT's meta.pkl beside the file, whose characters have no EOS; 0: unknown */
} ot_tokenbin;

/* Finds out which kind `map` is. OT_ERR_DATA where the length does not agree with the header, or is odd. */
ot_status ot_tokenbin_read(const char *path, const ot_mapping *map, ot_tokenbin *out) OT_MUST_CHECK;

/* Token `index` < count; UINT32_MAX at most. */
uint32_t ot_tokenbin_id(const ot_tokenbin *bin, uint64_t index);

#endif
