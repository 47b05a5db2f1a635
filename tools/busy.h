/* A drive that is kept busy in the background, as a streamed update keeps it: chunks are read and written all the time,
 * checksums included. */
#ifndef OT_TOOLS_BUSY_H
#define OT_TOOLS_BUSY_H

#include <stddef.h>

#include "io/status.h"

typedef struct ot_busy ot_busy;

/* Fills a store in the directories; the drive then rests. Fails as ot_store_open does. */
ot_status ot_busy_open(const char *const *directories, size_t count, ot_busy **out) OT_MUST_CHECK;
void ot_busy_close(ot_busy *busy); /* rests first; NULL is allowed */

/* Returns when the drive is at work, which goes on until ot_busy_rest. */
ot_status ot_busy_work(ot_busy *busy) OT_MUST_CHECK;

/* Returns when nothing is in flight any more, with the bytes a second that were moved meanwhile. */
ot_status ot_busy_rest(ot_busy *busy, double *bytes_per_s) OT_MUST_CHECK;

#endif
