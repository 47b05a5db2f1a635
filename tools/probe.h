/* The machine's memory bandwidth for a given set of streams: what a kernel that moves the same bytes can
 * reach. */
#ifndef OT_TOOLS_PROBE_H
#define OT_TOOLS_PROBE_H

#include <stddef.h>
#include <stdint.h>

#include "io/team.h"

enum { OT_PROBE_STREAMS_MAX = 8 };

typedef enum ot_probe_access {
    OT_PROBE_READ,
    OT_PROBE_WRITE,
    OT_PROBE_CHANGE, /* read, then written in place */
} ot_probe_access;

/* `width` bytes for every element, from `base`, which is aligned to 64 bytes. */
typedef struct ot_probe_stream {
    ot_probe_access access;
    void *base;
    size_t width;
} ot_probe_stream;

/* Passes once over `n` elements of all streams, side by side, with one addition for what is read and no other
 * arithmetic; a part that is no multiple of 64 elements is left out. What it leaves in memory means nothing.
 * Blocks. */
void ot_probe_run(ot_team *team, const ot_probe_stream *streams, size_t count, size_t n);

/* Bytes that this moves. */
uint64_t ot_probe_bytes(const ot_probe_stream *streams, size_t count, size_t n);

#endif
