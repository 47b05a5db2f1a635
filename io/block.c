/* The queue of asynchronous block I/O. The way of a piece:
 *
 *   FREE ──next_piece──▶ STARTED ──finish_piece──▶ FREE      whole, or failed for good
 *                           ▲           │
 *                           └──repeat───┘                    short, or failed for a passing reason
 *
 * Each file has two lanes, one a direction: a first-in first-out list of requests and a count of pieces in
 * flight. */
#include "io/block.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#ifdef OT_HAVE_XXH_DISPATCH
#include <xxh_x86dispatch.h> /* takes the widest instructions there are: the same sums at three times the speed */
#else
#define XXH_INLINE_ALL
#include <xxhash.h>
#endif

#include "io/host.h"
#include "io/log.h"

enum {
    DEPTH_DEFAULT = 16,
    PIECE_BYTES_DEFAULT = 1 << 20,
    REPEATS_AT_ONCE = 8, /* afterwards with a pause of 1 ms before each */
    REPEATS_MAX = 200,
};

typedef struct file_lane {
    ot_block_request *first, *last; /* with pieces still to start */
    uint32_t in_flight;
} file_lane;

typedef struct file_turn {
    ot_block_direction direction; /* whose turn it is, with bursts */
    uint64_t bytes;               /* started in this turn */
} file_turn;

struct ot_block_queue {
    const ot_block_backend *backend;
    void *state;
    uint32_t depth, depth_max;
    uint64_t piece_bytes, burst_bytes;
    size_t file_count, in_flight, pending;
    file_lane (*lanes)[2];         /* [file][direction] */
    file_turn *turns;              /* [file] */
    ot_block_piece *pieces, *free; /* all of them, and the list of free ones */
    ot_block_piece *repeats;       /* to be started again; they still count as in flight */
    ot_block_piece **batch;        /* room for all pieces */
    ot_block_request *done_first, *done_last;
    ot_block_stats stats;
};

static ot_status allocate(ot_block_queue *queue, uint32_t capacity)
{
    queue->lanes = calloc(queue->file_count, sizeof *queue->lanes);
    queue->turns = calloc(queue->file_count, sizeof *queue->turns);
    queue->pieces = calloc(capacity, sizeof *queue->pieces);
    queue->batch = calloc(capacity, sizeof *queue->batch);
    if (queue->lanes == NULL || queue->turns == NULL || queue->pieces == NULL || queue->batch == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for a block queue of %u pieces", capacity);
    for (uint32_t i = 0; i < capacity; i++) {
        queue->pieces[i].next = queue->free;
        queue->free = &queue->pieces[i];
    }
    return OT_OK;
}

static ot_status open_backend(ot_block_queue *queue, const ot_block_setup *setup)
{
    if (queue->backend == &ot_block_uring) {
        if (ot_block_uring.open(setup, &queue->state) == OT_OK)
            return OT_OK;
        ot_log(OT_LOG_WARNING, "%s: using threads with pread and pwrite", ot_error_text());
        queue->backend = &ot_block_threads;
    }
    return queue->backend->open(setup, &queue->state);
}

static ot_status check_options(const ot_block_options *options, size_t file_count)
{
    if (options->depth > OT_BLOCK_DEPTH_MAX)
        return ot_fail(OT_ERR_USAGE, "an I/O depth of %u; at most %d", options->depth, OT_BLOCK_DEPTH_MAX);
    if (options->piece_bytes != 0 && (options->piece_bytes % OT_BLOCK_PIECE_BYTES_MIN != 0 ||
                                      options->piece_bytes > OT_BLOCK_PIECE_BYTES_MAX))
        return ot_fail(OT_ERR_USAGE, "an I/O block of %llu bytes; multiples of 4K up to 64M work",
                       (unsigned long long)options->piece_bytes);
    OT_ASSERT(file_count > 0 && file_count <= 64);
    return OT_OK;
}

ot_status ot_block_open(const ot_block_options *options, const int files[], size_t file_count,
                        const ot_block_buffer buffers[], size_t buffer_count, ot_block_queue **out)
{
    OT_TRY(check_options(options, file_count));
    ot_block_queue *queue = calloc(1, sizeof *queue);
    if (queue == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for a block queue");
    queue->backend = options->backend != NULL ? options->backend : &ot_block_uring;
    queue->depth = queue->depth_max = options->depth != 0 ? options->depth : DEPTH_DEFAULT;
    queue->piece_bytes = options->piece_bytes != 0 ? options->piece_bytes : PIECE_BYTES_DEFAULT;
    queue->burst_bytes = options->burst_bytes;
    queue->file_count = file_count;
    uint32_t capacity = (uint32_t)file_count * (queue->depth + 1); /* see may_start */
    ot_block_setup setup = {files, file_count, buffers, buffer_count, capacity};
    ot_status status;
    OT_TRY_GOTO(allocate(queue, capacity), out);
    OT_TRY_GOTO(open_backend(queue, &setup), out);
    *out = queue;
    return OT_OK;
out:
    ot_block_close(queue);
    return status;
}

void ot_block_submit(ot_block_queue *queue, ot_block_request *request)
{
    OT_ASSERT(request->bytes > 0 && request->file >= 0 && (size_t)request->file < queue->file_count);
    request->error = 0;
    request->error_at = request->found_checksum = request->issued_bytes = 0;
    request->pieces_in_flight = 0;
    request->next = NULL;
    file_lane *lane = &queue->lanes[request->file][request->direction];
    if (lane->first == NULL)
        lane->first = request;
    else
        lane->last->next = request;
    lane->last = request;
    queue->pending++;
}

static void leave_lane(ot_block_queue *queue, ot_block_request *request)
{
    file_lane *lane = &queue->lanes[request->file][request->direction];
    OT_ASSERT(lane->first == request);
    lane->first = request->next;
    request->next = NULL;
}

static void set_done(ot_block_queue *queue, ot_block_request *request)
{
    if (queue->done_first == NULL)
        queue->done_first = request;
    else
        queue->done_last->next = request;
    queue->done_last = request;
}

/* Whether file's lane of `direction` may start a piece now. The file's depth is for both directions together: one alone may
 * use all of it, of two each has half, and each may always have one piece in flight. */
static int may_start(const ot_block_queue *queue, size_t file, ot_block_direction direction)
{
    const file_lane *own = &queue->lanes[file][direction], *other = &queue->lanes[file][!direction];
    if (own->first == NULL)
        return 0;
    int alone = other->first == NULL;
    if (queue->burst_bytes != 0 && !alone && queue->turns[file].direction != direction)
        return 0;
    if (own->in_flight == 0)
        return 1;
    int shared = queue->burst_bytes == 0 && !alone;
    return own->in_flight + other->in_flight < queue->depth && (!shared || own->in_flight < queue->depth / 2);
}

static void count_turn(ot_block_queue *queue, size_t file, ot_block_direction direction, uint64_t bytes)
{
    file_turn *turn = &queue->turns[file];
    if (turn->direction != direction) /* the other had nothing to start */
        turn->bytes = 0;
    turn->direction = direction;
    turn->bytes += bytes;
    if (turn->bytes >= queue->burst_bytes) {
        turn->direction = !direction;
        turn->bytes = 0;
    }
}

/* Cuts the next piece off the first request of a lane. */
static ot_block_piece *next_piece(ot_block_queue *queue, size_t file, ot_block_direction direction)
{
    file_lane *lane = &queue->lanes[file][direction];
    ot_block_request *request = lane->first;
    ot_block_piece *piece = queue->free;
    queue->free = piece->next;

    uint64_t left = request->bytes - request->issued_bytes;
    uint64_t bytes = left < queue->piece_bytes ? left : queue->piece_bytes;
    uint64_t at = request->issued_bytes;
    *piece = (ot_block_piece){
        .direction = direction,
        .file = request->file,
        .offset = request->offset + at,
        .data = (char *)request->data + at,
        .bytes = bytes,
        .request = request,
        .at = at,
        .whole_bytes = bytes,
    };
    if (direction == OT_BLOCK_WRITE && request->checksums != NULL)
        request->checksums[at / queue->piece_bytes] = XXH3_64bits(piece->data, bytes);
    request->issued_bytes += bytes;
    request->pieces_in_flight++;
    lane->in_flight++;
    queue->in_flight++;
    if (request->issued_bytes == request->bytes)
        leave_lane(queue, request);
    count_turn(queue, file, direction, bytes);
    return piece;
}

static ot_status start_pieces(ot_block_queue *queue)
{
    size_t count = 0;
    for (; queue->repeats != NULL; queue->repeats = queue->repeats->next)
        queue->batch[count++] = queue->repeats;
    for (int started = 1; started;) {
        started = 0;
        for (size_t file = 0; file < queue->file_count; file++)
            for (int direction = OT_BLOCK_READ; direction <= OT_BLOCK_WRITE; direction++)
                if (may_start(queue, file, (ot_block_direction)direction)) {
                    queue->batch[count++] = next_piece(queue, file, (ot_block_direction)direction);
                    started = 1;
                }
    }
    return count > 0 ? queue->backend->submit(queue->state, queue->batch, count) : OT_OK;
}

static void repeat(ot_block_queue *queue, ot_block_piece *piece)
{
    piece->next = queue->repeats;
    queue->repeats = piece;
}

static void fail_request(ot_block_queue *queue, ot_block_piece *piece, int error)
{
    ot_block_request *request = piece->request;
    if (request->error == 0) {
        request->error = error;
        request->error_at = piece->at;
    }
    if (request->issued_bytes < request->bytes) { /* start no more of it */
        request->issued_bytes = request->bytes;
        leave_lane(queue, request);
    }
}

static void check_piece(ot_block_queue *queue, ot_block_piece *piece)
{
    ot_block_request *request = piece->request;
    if (piece->direction == OT_BLOCK_WRITE || request->checksums == NULL)
        return;
    uint64_t found = XXH3_64bits((char *)request->data + piece->at, piece->whole_bytes);
    if (found != request->checksums[piece->at / queue->piece_bytes]) {
        if (request->error == 0)
            request->found_checksum = found;
        fail_request(queue, piece, EBADMSG);
    }
}

static void release_piece(ot_block_queue *queue, ot_block_piece *piece)
{
    ot_block_request *request = piece->request;
    queue->lanes[piece->file][piece->direction].in_flight--;
    queue->in_flight--;
    queue->stats.pieces[piece->direction]++;
    piece->next = queue->free;
    queue->free = piece;
    if (--request->pieces_in_flight == 0 && request->issued_bytes == request->bytes)
        set_done(queue, request);
}

/* Counts what was transferred. A direct transfer can only be continued at a page: a rest below that is done
 * again. */
static void advance(ot_block_queue *queue, ot_block_piece *piece)
{
    uint64_t bytes = (uint64_t)piece->result;
    if (bytes < piece->bytes) {
        bytes -= bytes % OT_PAGE_BYTES;
        queue->stats.continued++;
    }
    queue->stats.bytes[piece->direction] += bytes;
    piece->offset += bytes;
    piece->data = (char *)piece->data + bytes;
    piece->bytes -= bytes;
    piece->repeats = bytes > 0 ? 0 : piece->repeats + 1;
}

static void finish_piece(ot_block_queue *queue, ot_block_piece *piece)
{
    int error = 0;
    if (piece->result > 0) {
        OT_ASSERT((uint64_t)piece->result <= piece->bytes);
        advance(queue, piece);
    } else if (piece->result == -EAGAIN || piece->result == -EINTR) {
        queue->stats.repeated++;
        piece->repeats++;
    } else {
        /* Nothing transferred: a read has met the end of the file, a write makes no progress. */
        error = piece->result < 0 ? (int)-piece->result : piece->direction == OT_BLOCK_READ ? ENODATA : EIO;
    }
    if (error == 0 && piece->repeats > REPEATS_MAX)
        error = piece->result < 0 ? (int)-piece->result : EIO;
    if (error == 0 && piece->bytes > 0) {
        if (piece->repeats > REPEATS_AT_ONCE)
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        repeat(queue, piece);
        return;
    }
    if (error != 0)
        fail_request(queue, piece, error);
    else
        check_piece(queue, piece);
    release_piece(queue, piece);
}

static ot_status reap(ot_block_queue *queue)
{
    size_t count;
    OT_TRY(queue->backend->wait(queue->state, queue->batch, queue->in_flight, &count));
    /* The batch is reused by start_pieces, so all of it is finished first. */
    for (size_t i = 0; i < count; i++)
        finish_piece(queue, queue->batch[i]);
    return OT_OK;
}

ot_status ot_block_progress(ot_block_queue *queue, int wait)
{
    OT_TRY(start_pieces(queue));
    if (!wait || queue->in_flight == 0 || queue->done_first != NULL)
        return OT_OK;
    OT_TRY(reap(queue));
    return start_pieces(queue);
}

ot_block_request *ot_block_next_done(ot_block_queue *queue)
{
    ot_block_request *request = queue->done_first;
    if (request != NULL) {
        queue->done_first = request->next;
        request->next = NULL;
        queue->pending--;
    }
    return request;
}

size_t ot_block_pending(const ot_block_queue *queue)
{
    return queue->pending;
}

void ot_block_tune(ot_block_queue *queue, uint32_t depth, uint64_t piece_bytes, uint64_t burst_bytes)
{
    OT_ASSERT(queue->pending == 0);
    OT_ASSERT(piece_bytes % OT_BLOCK_PIECE_BYTES_MIN == 0 && piece_bytes <= OT_BLOCK_PIECE_BYTES_MAX);
    if (depth != 0)
        queue->depth = depth < queue->depth_max ? depth : queue->depth_max;
    if (piece_bytes != 0)
        queue->piece_bytes = piece_bytes;
    queue->burst_bytes = burst_bytes;
}

/* Takes every request off its lane; the pieces of it that are in flight still come back. */
static void drop_requests(ot_block_queue *queue)
{
    for (size_t file = 0; file < queue->file_count; file++)
        for (int direction = OT_BLOCK_READ; direction <= OT_BLOCK_WRITE; direction++)
            for (ot_block_request *request; (request = queue->lanes[file][direction].first) != NULL;) {
                request->issued_bytes = request->bytes;
                leave_lane(queue, request);
            }
}

void ot_block_close(ot_block_queue *queue)
{
    if (queue == NULL)
        return;
    if (queue->state != NULL) {
        drop_requests(queue);
        while (queue->in_flight > 0)
            if (start_pieces(queue) != OT_OK || reap(queue) != OT_OK)
                break;
        queue->backend->close(queue->state);
    }
    free(queue->batch);
    free(queue->pieces);
    free(queue->turns);
    free(queue->lanes);
    free(queue);
}

const char *ot_block_backend_name(const ot_block_queue *queue)
{
    return queue->backend->name;
}

uint64_t ot_block_piece_bytes(const ot_block_queue *queue)
{
    return queue->piece_bytes;
}

ot_block_stats ot_block_statistics(const ot_block_queue *queue)
{
    return queue->stats;
}
