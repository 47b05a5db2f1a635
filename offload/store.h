/* The NVMe store: chunks of any length on one preallocated file in each directory.
 *
 * Each directory holds one file, "offtrain.swap": a header page, then extents. A chunk is striped: every file
 * holds a contiguous extent of it, as long as the file's share, so that all drives work on each chunk at
 * once; a chunk too small to be worth that lies on one file whole. Chunks, lengths and places are fixed when
 * the store is opened. What a chunk's extents hash to is kept in memory: a store outlives neither its process
 * nor ot_store_close, checkpoints do.
 *
 * Invariants:
 * 1. One process owns a directory's file, by its kernel lock; an owner that died leaves a file that the next
 * takes over. A file that is not ours is never written to.
 * 2. All space is allocated by ot_store_open; afterwards a write cannot run out of it.
 * 3. Addresses, offsets and lengths are multiples of 4096: every extent is padded, and so must be the
 * caller's buffers.
 * 4. A read that ends without an error gives the bytes of the last write; anything else is an error that
 * names file, offset and chunk. A chunk whose write failed cannot be read.
 *
 * One thread at a time uses a store. */
#ifndef OT_OFFLOAD_STORE_H
#define OT_OFFLOAD_STORE_H

#include <stddef.h>
#include <stdint.h>

#include "io/block.h"
#include "io/host.h"
#include "io/status.h"

typedef struct ot_store ot_store;

#define OT_STORE_FILE_NAME "offtrain.swap"
enum { OT_STORE_DIRECTORIES_MAX = 16 };

/* What one chunk is; `name` says what it holds, for messages: "model.layers.3.mlp.up_proj.weight moment1". */
typedef struct ot_store_chunk {
    uint64_t bytes;   /* any length above 0 */
    const char *name; /* must outlive the store */
} ot_store_chunk;

typedef struct ot_store_options {
    const char *const *directories;
    size_t directory_count;
    const double *weights; /* relative bandwidth of each directory's drive; NULL: all equal */
    const ot_store_chunk *chunks;
    size_t chunk_count;
    const ot_block_buffer *buffers; /* the memory chunks will move from and to, registered with the kernel */
    size_t buffer_count;
    ot_block_options io;
    int unchecked; /* 1: no checksums, to measure a drive alone */
} ot_store_options;

/* The room a chunk of `bytes` takes in a buffer and on a drive. */
static inline uint64_t ot_store_padded(uint64_t bytes)
{
    return ot_round_up(bytes, OT_PAGE_BYTES);
}

/* Locks the directories, takes over what dead owners left, allocates all space, opens the queue. Copies
 * chunks and directories. OT_ERR_USAGE: a directory is named twice or lies in memory (tmpfs). OT_ERR_IO: a
 * directory is in use (the message names the owner's pid), holds a foreign file of that name, or lacks space.
 * On failure nothing is left behind. */
ot_status ot_store_open(const ot_store_options *options, ot_store **out) OT_MUST_CHECK;

/* Waits for what is in flight, then removes the files. NULL is allowed. */
void ot_store_close(ot_store *store);

/* One move of one chunk, in memory of the caller's that stays put until the move is returned by
 * ot_store_next_done. */
typedef struct ot_store_move {
    /* Set by ot_store_submit. */
    ot_block_direction direction;
    size_t chunk;
    void *data;
    void *context;
    /* The outcome: OT_OK or a failure of this move, to be raised by the caller. */
    ot_error error;
    /* The store's own. */
    struct ot_store_move *next;
    size_t requests_pending;
    ot_block_request requests[OT_STORE_DIRECTORIES_MAX];
} ot_store_move;

/* Starts moving a whole chunk to or from `data`, which holds ot_store_padded bytes at a multiple of 4096 and
 * belongs to the store until the move is done. At most one move of a chunk at a time. Does not block. A chunk
 * that was never written, or whose last write failed, cannot be read: the move is done at once, with an
 * error. */
void ot_store_submit(ot_store *store, ot_store_move *move, ot_block_direction direction, size_t chunk,
                     void *data, void *context);

/* Blocks until something has progressed, if nothing is done and something in flight. A failure leaves the
 * store unusable. */
ot_status ot_store_progress(ot_store *store) OT_MUST_CHECK;

/* The next finished move, or NULL. Does not block. */
ot_store_move *ot_store_next_done(ot_store *store);

/* Moves that were submitted and not yet returned. */
size_t ot_store_pending(const ot_store *store);

/* Changes the I/O depth, block size and bursts (see ot_block_tune) of a store with nothing pending. Checksums
 * are one a block, so a new block size makes every chunk unwritten. Not below the 64 KiB that the checksum
 * table is sized for. */
void ot_store_tune(ot_store *store, uint32_t depth, uint64_t piece_bytes, uint64_t burst_bytes);

/* Where the parts of a chunk lie. Fills up to `max` extents and returns their number. */
typedef struct ot_store_extent {
    const char *path; /* valid while the store is open */
    uint64_t offset, bytes;
} ot_store_extent;
size_t ot_store_extents(const ot_store *store, size_t chunk, ot_store_extent extents[], size_t max);

/* How often the chunk was written completely; 0: it holds nothing. */
uint64_t ot_store_generation(const ot_store *store, size_t chunk);

uint64_t ot_store_bytes(const ot_store *store); /* on all drives, headers included */
ot_block_stats ot_store_statistics(const ot_store *store);
const char *ot_store_backend_name(const ot_store *store);

#endif
