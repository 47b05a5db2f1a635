/* Pieces of documents into windows of equal length. */
#ifndef OT_ENGINE_PACKING_H
#define OT_ENGINE_PACKING_H

#include <stddef.h>
#include <stdint.h>

#include "io/status.h"

/* Part of a document: `length` inputs from token `start` of a token file; the token behind each is its target. */
typedef struct ot_piece {
    uint64_t start;
    uint32_t length;
    uint32_t file;
} ot_piece;

typedef struct ot_windows {
    ot_piece *pieces; /* window by window */
    uint64_t *first;  /* count + 1: a window's first piece */
    uint64_t count;
} ot_windows;

/* Puts `n` pieces of 1 to T inputs into windows of T: one each, or with `packing` by best fit, the longest first, which is within
 * 11/9 of the fewest. The same for the same lengths; windows come in the order of their first piece, pieces in their own order.
 * Takes `pieces`, which came from malloc, in any case; ot_windows_free gives them back. */
ot_status ot_windows_pack(ot_piece *pieces, uint64_t n, size_t T, int packing, ot_windows *out) OT_MUST_CHECK;
void ot_windows_free(ot_windows *windows);

#endif
