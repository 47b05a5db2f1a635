/* One directory's file of the NVMe store: owned by a lock, marked by a header page, allocated for real. */
#ifndef OT_OFFLOAD_SWAPFILE_H
#define OT_OFFLOAD_SWAPFILE_H

#include <limits.h>
#include <stdint.h>

#include "io/file.h"
#include "io/status.h"

enum { OT_SWAP_HEADER_BYTES = 4096, OT_SWAP_UUID_BYTES = 16 };

/* Which store the file is a part of, as its header says it. */
typedef struct ot_swap_identity {
    unsigned char uuid[OT_SWAP_UUID_BYTES]; /* the same in all files of a store */
    uint64_t layout_hash;                   /* of all chunks and their places */
    uint32_t index, count;                  /* this file among them */
} ot_swap_identity;

typedef struct ot_swap_file {
    int fd; /* -1: not open */
    char path[PATH_MAX];
    ot_dir_info directory;
    uint64_t capacity_bytes; /* free space and what an orphan gave back, this file's header included */
    uint64_t orphan_bytes;   /* of a file taken over from a dead owner, its blocks still allocated; 0: none */
    uint64_t orphan_layout;
} ot_swap_file;

/* Takes the directory: creates its file and locks it, or takes over the file of an owner that is gone.
 * Refuses a directory in memory (OT_ERR_USAGE), one in use, naming the owner's pid, and a foreign file of
 * that name (OT_ERR_IO). */
ot_status ot_swap_open(const char *directory, ot_swap_file *out) OT_MUST_CHECK;

/* Writes the header and allocates `bytes` in all. An orphan of the same layout keeps its blocks, any other
 * gives them back first. */
ot_status ot_swap_allocate(ot_swap_file *file, const ot_swap_identity *identity,
                           uint64_t bytes) OT_MUST_CHECK;

/* Removes the file and lets the directory go. Does nothing where `fd` is -1. */
void ot_swap_close(ot_swap_file *file);

#endif
