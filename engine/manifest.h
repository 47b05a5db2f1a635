/* The manifest of a checkpoint: every file with its size and XXH3, written last. A folder without one, or whose files do not
 * agree with it, is no checkpoint. */
#ifndef OT_ENGINE_MANIFEST_H
#define OT_ENGINE_MANIFEST_H

#include <stddef.h>
#include <stdint.h>

#include "io/status.h"

#define OT_MANIFEST_NAME "manifest.json"

enum { OT_RUN_ID_BYTES = 37 }; /* a uuid as text */

/* Who wrote a checkpoint, and after which step. */
typedef struct ot_manifest {
    char run[OT_RUN_ID_BYTES];
    uint64_t step;
} ot_manifest;

/* A file as its writer means it to be. */
typedef struct ot_file_hash {
    const char *path; /* below the checkpoint's folder: "state/master.safetensors" */
    uint64_t bytes, hash;
} ot_file_hash;

/* Writes the manifest of all regular files below `folder`, with fsync. Files that are not among the `count` known ones are
 * hashed as they are. `*bytes`: of all files. OT_ERR_IO. */
ot_status ot_manifest_write(const char *folder, const ot_manifest *manifest, const ot_file_hash known[],
                            size_t count, uint64_t *bytes) OT_MUST_CHECK;

/* Reads who and when, nothing else. OT_ERR_FORMAT where there is no manifest, or none that can be read. */
ot_status ot_manifest_read(const char *folder, ot_manifest *out) OT_MUST_CHECK;

/* Compares every file with the manifest, from the drive where the page cache lets go of it. OT_ERR_FORMAT names the first file
 * that is missing, has another size or other contents; OT_ERR_IO one that cannot be read. */
ot_status ot_manifest_verify(const char *folder, ot_manifest *out) OT_MUST_CHECK;

#endif
