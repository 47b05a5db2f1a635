/* Asynchronous block I/O: a queue that moves requests of any length in pieces, over an exchangeable backend.
 *
 * A request is one run of bytes of one file. The queue cuts it into pieces of a fixed size and keeps up to
 * `depth` pieces of each file in flight, half of them each way while both directions have work, so that
 * several drives, and reading and writing on one, never wait for each other. It continues short transfers, repeats pieces that failed for a passing
 * reason, and hashes each piece before it is written and after it is read. A backend only transfers pieces.
 *
 * Invariants:
 * 1. A piece is smaller than the kernel's limit of 2,147,479,552 bytes a call.
 * 2. A request is done only when none of its pieces is in flight: from then on its memory is the caller's
 * again.
 * 3. A read with checksums that is done without error holds the bytes that were hashed when they were
 * written.
 * 4. Nothing is allocated after ot_block_open.
 *
 * One thread at a time uses a queue. Which one may change between calls. */
#ifndef OT_IO_BLOCK_H
#define OT_IO_BLOCK_H

#include <stddef.h>
#include <stdint.h>

#include "io/status.h"

typedef struct ot_block_queue ot_block_queue;

typedef enum ot_block_direction { OT_BLOCK_READ, OT_BLOCK_WRITE } ot_block_direction;

enum {
    OT_BLOCK_DEPTH_MAX = 256,           /* pieces in flight a file */
    OT_BLOCK_PIECE_BYTES_MIN = 4 << 10, /* and a multiple of it */
    OT_BLOCK_PIECE_BYTES_MAX = 64 << 20,
};

typedef struct ot_block_request {
    /* Set by the caller and left alone until the request is done. */
    ot_block_direction direction;
    int file;               /* index into the files of the queue */
    uint64_t offset, bytes; /* multiples of the file's alignment where it is open with O_DIRECT; bytes > 0 */
    void *data;             /* aligned likewise */
    uint64_t *checksums;    /* XXH3 of each piece, set by a write, compared by a read; NULL: not checked */
    void *context;          /* not looked at */

    /* The outcome, valid once the request is done. */
    int error;         /* 0; EBADMSG where a checksum differs; or the errno of the first piece that failed */
    uint64_t error_at; /* first byte of that piece, counted from the start of the request */
    uint64_t found_checksum; /* what that piece hashes to, with EBADMSG */

    /* The queue's own. */
    struct ot_block_request *next;
    uint64_t issued_bytes;
    uint32_t pieces_in_flight;
} ot_block_request;

/* Memory that requests will use; a backend may register it with the kernel once. */
typedef struct ot_block_buffer {
    void *base;
    uint64_t bytes;
} ot_block_buffer;

/* What a backend is asked to transfer; for files behind ot_block_backend only. */
typedef struct ot_block_piece {
    ot_block_direction direction;
    int file;
    uint64_t offset;
    void *data;
    uint64_t bytes; /* what is left to transfer */
    int64_t result; /* set by the backend: bytes transferred, or -errno */

    /* The queue's own. */
    ot_block_request *request;
    struct ot_block_piece *next;
    uint64_t at, whole_bytes; /* of the piece in its request; its full length */
    int repeats;
} ot_block_piece;

typedef struct ot_block_setup {
    const int *files; /* open descriptors, which stay the caller's */
    size_t file_count;
    const ot_block_buffer *buffers;
    size_t buffer_count;
    uint32_t capacity; /* pieces in flight at most */
} ot_block_setup;

typedef struct ot_block_backend {
    const char *name;
    /* Everything a backend allocates, it allocates here. A failure means that this backend cannot work here.
     */
    ot_status (*open)(const ot_block_setup *setup, void **state);
    /* Starts `count` pieces; never more in flight than the capacity. Does not block on the drive. */
    ot_status (*submit)(void *state, ot_block_piece *const pieces[], size_t count);
    /* Takes up to `max` finished pieces, at least one: blocks until there is one. Some must be in flight. */
    ot_status (*wait)(void *state, ot_block_piece *done[], size_t max, size_t *count);
    /* Nothing is in flight when it is called. */
    void (*close)(void *state);
} ot_block_backend;

extern const ot_block_backend ot_block_uring;   /* io_uring with registered files and buffers */
extern const ot_block_backend ot_block_threads; /* pread and pwrite on threads of its own */

typedef struct ot_block_options {
    const ot_block_backend *backend; /* NULL: io_uring */
    uint32_t depth;                  /* pieces in flight for each file, both directions together; 0: 16 */
    uint64_t piece_bytes;            /* 0: 1 MiB */
    /* For drives on which reads and writes take turns: a direction keeps the file for this many bytes while
     * the other waits. 0: both at once. */
    uint64_t burst_bytes;
} ot_block_options;

typedef struct ot_block_stats {
    uint64_t bytes[2];  /* transferred, by direction */
    uint64_t pieces[2]; /* completed, by direction */
    uint64_t continued; /* short transfers that were continued */
    uint64_t repeated;  /* pieces that failed for a passing reason and were sent again */
} ot_block_stats;

/* Opens a queue over open files and the memory its requests will use. Where io_uring cannot be set up it
 * falls back to threads with one log line that names the errno and the likely setting. Descriptors and
 * buffers must outlive it. */
ot_status ot_block_open(const ot_block_options *options, const int files[], size_t file_count,
                        const ot_block_buffer buffers[], size_t buffer_count,
                        ot_block_queue **out) OT_MUST_CHECK;

/* Waits for what is in flight, drops what is not, and frees the queue. NULL is allowed. */
void ot_block_close(ot_block_queue *queue);

/* Accepts a request, which the queue then holds until it is done. Does not block. */
void ot_block_submit(ot_block_queue *queue, ot_block_request *request);

/* Starts what can be started. With `wait`, unless a request is done already or nothing is in flight, it then
 * blocks until at least one piece has finished. A failure is the backend's own, not a request's: the queue
 * can only be closed then. */
ot_status ot_block_progress(ot_block_queue *queue, int wait) OT_MUST_CHECK;

/* The next request that is done, in order of completion, or NULL. Does not block. */
ot_block_request *ot_block_next_done(ot_block_queue *queue);

/* Requests that were submitted and not yet returned by ot_block_next_done. */
size_t ot_block_pending(const ot_block_queue *queue);

/* Changes depth and piece size of a queue that has nothing pending; 0 leaves the value. The capacity of the
 * open stays: a larger depth is cut to it. */
void ot_block_tune(ot_block_queue *queue, uint32_t depth, uint64_t piece_bytes, uint64_t burst_bytes);

const char *ot_block_backend_name(const ot_block_queue *queue);
uint64_t ot_block_piece_bytes(const ot_block_queue *queue);
ot_block_stats ot_block_statistics(const ot_block_queue *queue);

#endif
