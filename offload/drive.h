/* How fast a drive is, for weighing it against the others before a store is striped over them. */
#ifndef OT_OFFLOAD_DRIVE_H
#define OT_OFFLOAD_DRIVE_H

#include "io/block.h"
#include "io/host.h"
#include "io/status.h"

/* Writes and reads `OT_DRIVE_SAMPLE_BYTES` at once in a store of that size in `directory`, which is gone
 * afterwards, and gives bytes a second, both directions together. Takes a second or less on an NVMe drive.
 * `host` needs room for OT_DRIVE_HOST_BYTES while it runs. Fails as ot_store_open does. */
enum { OT_DRIVE_SAMPLE_BYTES = 512 << 20, OT_DRIVE_HOST_BYTES = 64 << 20 };
ot_status ot_drive_measure(const char *directory, const ot_block_options *io, ot_host *host,
                           double *bytes_per_s) OT_MUST_CHECK;

#endif
