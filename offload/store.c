/* The NVMe store: layout and moves. Files are in swapfile.c, transfers in io/block.c. */
#include "offload/store.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "io/text.h"
#include "offload/swapfile.h"

enum {
    PART_BYTES_MIN = 256 << 10,    /* chunks with less than this for each file are not striped */
    CHECKSUM_BYTES_MIN = 64 << 10, /* the smallest block the checksum table is sized for */
};

typedef struct store_extent {
    uint64_t offset, bytes; /* 0 bytes: this file holds nothing of the chunk */
    size_t checksum;        /* index of its first one */
} store_extent;

/* EMPTY ──submit write──▶ TORN ──write ends well──▶ WHOLE ──submit write──▶ TORN
 * Only WHOLE can be read. A write that fails leaves the chunk TORN; a new block size makes it EMPTY. */
typedef enum chunk_state { CHUNK_EMPTY, CHUNK_TORN, CHUNK_WHOLE } chunk_state;

typedef struct store_chunk {
    uint64_t bytes; /* padded */
    const char *name;
    uint64_t generation;
    chunk_state state;
    int moving;
} store_chunk;

struct ot_store {
    size_t file_count, chunk_count, pending;
    ot_swap_file *files;
    store_chunk *chunks;
    store_extent *extents; /* [chunk][file] */
    uint64_t *checksums;
    uint64_t *file_bytes;          /* [file], header included */
    uint64_t checksum_block_bytes; /* the smallest block the table holds checksums for */
    int unchecked;
    ot_block_queue *queue;
    ot_store_move *done_first, *done_last;
};

/* ---- layout ---- */

static store_extent *extent_of(const ot_store *store, size_t chunk, size_t file)
{
    return &store->extents[chunk * store->file_count + file];
}

/* Bytes file `f` can hold: directories on one file system share its free space. */
static uint64_t capacity_of(const ot_store *store, size_t f)
{
    uint64_t sharing = 0;
    for (size_t g = 0; g < store->file_count; g++)
        sharing += store->files[g].directory.device == store->files[f].directory.device;
    return store->files[f].capacity_bytes / sharing;
}

/* Splits `total` bytes by weight. A file that cannot hold its part gets what it can, the others the rest. The
 * room kept back is for the header and for rounding each chunk's part to a page. */
static void split_by_weight(const ot_store *store, const double weights[], uint64_t total, double parts[])
{
    double left = (double)total;
    int full[OT_STORE_DIRECTORIES_MAX] = {0};
    for (int changed = 1; changed;) {
        changed = 0;
        double open_weight = 0;
        for (size_t f = 0; f < store->file_count; f++)
            open_weight += full[f] ? 0 : weights[f];
        for (size_t f = 0; f < store->file_count; f++) {
            if (full[f])
                continue;
            double kept_back = (double)(store->chunk_count + 1) * OT_PAGE_BYTES;
            double room = (double)capacity_of(store, f) - kept_back;
            parts[f] = left * weights[f] / open_weight;
            if (parts[f] > room && store->file_count > 1) {
                parts[f] = room > 0 ? room : 0;
                full[f] = changed = 1;
            }
        }
        if (changed) {
            left = (double)total;
            for (size_t f = 0; f < store->file_count; f++)
                left -= full[f] ? parts[f] : 0;
            left = left > 0 ? left : 0;
        }
    }
}

static void append_extent(ot_store *store, size_t chunk, size_t file, uint64_t bytes)
{
    store_extent *extent = extent_of(store, chunk, file);
    extent->offset = store->file_bytes[file];
    extent->bytes = bytes;
    store->file_bytes[file] += bytes;
}

static void place_whole(ot_store *store, size_t chunk, const double parts[])
{
    size_t emptiest = 0;
    double least = 0;
    for (size_t f = 0; f < store->file_count; f++) {
        double filled = parts[f] > 0 ? (double)store->file_bytes[f] / parts[f] : HUGE_VAL;
        if (f == 0 || filled < least) {
            emptiest = f;
            least = filled;
        }
    }
    append_extent(store, chunk, emptiest, store->chunks[chunk].bytes);
}

static void place_striped(ot_store *store, size_t chunk, const double parts[], double total)
{
    uint64_t pages = store->chunks[chunk].bytes / OT_PAGE_BYTES, placed = 0;
    double end = 0;
    for (size_t f = 0; f < store->file_count; f++) {
        end += parts[f];
        uint64_t until = f + 1 == store->file_count ? pages : (uint64_t)((double)pages * (end / total));
        if (until > placed)
            append_extent(store, chunk, f, (until - placed) * OT_PAGE_BYTES);
        placed = until > placed ? until : placed;
    }
}

static ot_status check_space(const ot_store *store, uint64_t total)
{
    uint64_t capacity = 0;
    int fits = 1;
    for (size_t f = 0; f < store->file_count; f++) {
        capacity += capacity_of(store, f);
        fits = fits && store->file_bytes[f] <= capacity_of(store, f);
    }
    if (fits)
        return OT_OK;
    char need[OT_SIZE_TEXT_BYTES], have[OT_SIZE_TEXT_BYTES];
    return ot_fail(
        OT_ERR_IO,
        "the store needs %s; %s are free for %s%s; free some, or give a further directory on another drive",
        ot_format_size(total, need), ot_format_size(capacity, have), store->files[0].path,
        store->file_count > 1 ? " and the other directories" : "");
}

static ot_status place_chunks(ot_store *store, const double *weights)
{
    double equal[OT_STORE_DIRECTORIES_MAX], parts[OT_STORE_DIRECTORIES_MAX];
    for (size_t f = 0; f < OT_STORE_DIRECTORIES_MAX; f++)
        equal[f] = 1;
    uint64_t total = 0;
    for (size_t c = 0; c < store->chunk_count; c++)
        total += store->chunks[c].bytes;
    split_by_weight(store, weights != NULL ? weights : equal, total, parts);

    for (size_t f = 0; f < store->file_count; f++)
        store->file_bytes[f] = OT_SWAP_HEADER_BYTES;
    for (size_t c = 0; c < store->chunk_count; c++)
        if (store->chunks[c].bytes < store->file_count * (uint64_t)PART_BYTES_MIN)
            place_whole(store, c, parts);
        else
            place_striped(store, c, parts, (double)total);
    return check_space(store, total + store->file_count * OT_SWAP_HEADER_BYTES);
}

static uint64_t layout_hash(const ot_store *store)
{
    uint64_t hash = store->file_count;
    for (size_t i = 0; i < store->chunk_count * store->file_count; i++) {
        uint64_t place[3] = {store->extents[i].offset, store->extents[i].bytes, hash};
        hash = XXH3_64bits(place, sizeof place);
    }
    return hash;
}

/* ---- opening and closing ---- */

static ot_status check_options(const ot_store_options *options)
{
    if (options->directory_count == 0 || options->directory_count > OT_STORE_DIRECTORIES_MAX)
        return ot_fail(OT_ERR_USAGE, "%zu directories for the NVMe store; 1 to %d work",
                       options->directory_count, OT_STORE_DIRECTORIES_MAX);
    for (size_t f = 0; options->weights != NULL && f < options->directory_count; f++)
        if (!(options->weights[f] > 0) || !isfinite(options->weights[f]))
            return ot_fail(OT_ERR_USAGE, "%s: a weight of %g; it must be above 0", options->directories[f],
                           options->weights[f]);
    uint64_t total = 0;
    for (size_t c = 0; c < options->chunk_count; c++) {
        OT_ASSERT(options->chunks[c].bytes > 0);
        if (options->chunks[c].bytes > (UINT64_MAX >> 2) - total)
            return ot_fail(OT_ERR_USAGE, "the chunks of the NVMe store add up to more than 2^62 bytes");
        total += options->chunks[c].bytes;
    }
    return OT_OK;
}

static ot_status allocate(ot_store *store, const ot_store_options *options)
{
    store->file_count = options->directory_count;
    store->chunk_count = options->chunk_count;
    store->unchecked = options->unchecked;
    store->files = calloc(store->file_count, sizeof *store->files);
    store->file_bytes = calloc(store->file_count, sizeof *store->file_bytes);
    store->chunks = calloc(store->chunk_count + 1, sizeof *store->chunks);
    store->extents = calloc((store->chunk_count + 1) * store->file_count, sizeof *store->extents);
    if (store->files == NULL || store->file_bytes == NULL || store->chunks == NULL || store->extents == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for a store of %zu chunks", store->chunk_count);
    for (size_t f = 0; f < store->file_count; f++)
        store->files[f].fd = -1;
    for (size_t c = 0; c < store->chunk_count; c++)
        store->chunks[c] = (store_chunk){ot_store_padded(options->chunks[c].bytes), options->chunks[c].name,
                                         0, CHUNK_EMPTY, 0};
    return OT_OK;
}

static ot_status allocate_checksums(ot_store *store)
{
    if (store->unchecked)
        return OT_OK;
    uint64_t block = ot_block_piece_bytes(store->queue);
    store->checksum_block_bytes = block < CHECKSUM_BYTES_MIN ? block : CHECKSUM_BYTES_MIN;
    size_t count = 0;
    for (size_t i = 0; i < store->chunk_count * store->file_count; i++) {
        store->extents[i].checksum = count;
        count += (size_t)((store->extents[i].bytes + store->checksum_block_bytes - 1) /
                          store->checksum_block_bytes);
    }
    store->checksums = calloc(count + 1, sizeof *store->checksums);
    if (store->checksums == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for %zu checksums", count);
    return OT_OK;
}

/* A second file of ours in one directory would wait for a lock that this very process holds. */
static ot_status refuse_twice(const char *const directories[], size_t f)
{
    for (size_t g = 0; g < f; g++)
        if (ot_dir_same(directories[g], directories[f]))
            return ot_fail(OT_ERR_USAGE, "%s is given twice; give each directory once", directories[f]);
    return OT_OK;
}

static ot_status open_files(ot_store *store, const ot_store_options *options)
{
    ot_swap_identity identity = {.count = (uint32_t)store->file_count};
    if (getrandom(identity.uuid, sizeof identity.uuid, 0) != (ssize_t)sizeof identity.uuid)
        return ot_fail(OT_ERR_INTERNAL, "no random bytes for the store's uuid: %s", strerror(errno));
    for (size_t f = 0; f < store->file_count; f++) {
        OT_TRY(refuse_twice(options->directories, f));
        OT_TRY(ot_swap_open(options->directories[f], &store->files[f]));
    }
    OT_TRY(place_chunks(store, options->weights));
    identity.layout_hash = layout_hash(store);
    for (size_t f = 0; f < store->file_count; f++) {
        identity.index = (uint32_t)f;
        OT_TRY(ot_swap_allocate(&store->files[f], &identity, store->file_bytes[f]));
    }
    return OT_OK;
}

static ot_status open_queue(ot_store *store, const ot_store_options *options)
{
    int descriptors[OT_STORE_DIRECTORIES_MAX];
    for (size_t f = 0; f < store->file_count; f++)
        descriptors[f] = store->files[f].fd;
    return ot_block_open(&options->io, descriptors, store->file_count, options->buffers,
                         options->buffer_count, &store->queue);
}

ot_status ot_store_open(const ot_store_options *options, ot_store **out)
{
    OT_TRY(check_options(options));
    ot_store *store = calloc(1, sizeof *store);
    if (store == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for a store");
    ot_status status;
    OT_TRY_GOTO(allocate(store, options), out);
    OT_TRY_GOTO(open_files(store, options), out);
    OT_TRY_GOTO(open_queue(store, options), out);
    OT_TRY_GOTO(allocate_checksums(store), out);
    *out = store;
    return OT_OK;
out:
    ot_store_close(store);
    return status;
}

void ot_store_close(ot_store *store)
{
    if (store == NULL)
        return;
    ot_block_close(store->queue);
    for (size_t f = 0; store->files != NULL && f < store->file_count; f++)
        ot_swap_close(&store->files[f]);
    free(store->checksums);
    free(store->extents);
    free(store->chunks);
    free(store->file_bytes);
    free(store->files);
    free(store);
}

/* ---- moves ---- */

static void set_done(ot_store *store, ot_store_move *move)
{
    move->next = NULL;
    if (store->done_first == NULL)
        store->done_first = move;
    else
        store->done_last->next = move;
    store->done_last = move;
}

static ot_error refuse_read(const ot_store *store, size_t chunk)
{
    const store_chunk *what = &store->chunks[chunk];
    ot_status status = ot_fail(OT_ERR_IO, "chunk %zu (%s) cannot be read: %s", chunk, what->name,
                               what->state == CHUNK_EMPTY ? "it was never written" : "its last write failed");
    OT_ASSERT(status != OT_OK);
    return ot_error_take();
}

void ot_store_submit(ot_store *store, ot_store_move *move, ot_block_direction direction, size_t chunk,
                     void *data, void *context)
{
    OT_ASSERT(chunk < store->chunk_count && (uintptr_t)data % OT_PAGE_BYTES == 0);
    store_chunk *what = &store->chunks[chunk];
    OT_ASSERT(!what->moving);
    store->pending++;
    move->direction = direction;
    move->chunk = chunk;
    move->data = data;
    move->context = context;
    move->error.status = OT_OK;
    move->requests_pending = 0;
    if (direction == OT_BLOCK_READ && what->state != CHUNK_WHOLE) {
        move->error = refuse_read(store, chunk);
        set_done(store, move);
        return;
    }
    what->moving = 1;
    if (direction == OT_BLOCK_WRITE)
        what->state = CHUNK_TORN;
    char *at = data;
    for (size_t f = 0; f < store->file_count; f++) {
        const store_extent *extent = extent_of(store, chunk, f);
        if (extent->bytes == 0)
            continue;
        ot_block_request *request = &move->requests[move->requests_pending++];
        *request = (ot_block_request){
            .direction = direction,
            .file = (int)f,
            .offset = extent->offset,
            .bytes = extent->bytes,
            .data = at,
            .checksums = store->unchecked ? NULL : &store->checksums[extent->checksum],
            .context = move,
        };
        ot_block_submit(store->queue, request);
        at += extent->bytes;
    }
}

/* Says in words what became of a request of the move. */
static ot_error explain(const ot_store *store, const ot_store_move *move, const ot_block_request *request)
{
    const store_chunk *what = &store->chunks[move->chunk];
    const char *path = store->files[request->file].path;
    uint64_t at = request->offset + request->error_at;
    ot_status status;
    if (request->error == EBADMSG)
        status = ot_fail(OT_ERR_IO,
                         "chunk %zu (%s) came back changed from %s at byte %" PRIu64 ": checksum %016" PRIx64
                         " was written in generation %" PRIu64 ", %016" PRIx64
                         " was read; nothing was trained on it. Check the "
                         "drive (smartctl) and the memory, and resume from the last checkpoint",
                         move->chunk, what->name, path, at,
                         request->checksums[request->error_at / ot_block_piece_bytes(store->queue)],
                         what->generation, request->found_checksum);
    else if (request->error == ENODATA)
        status = ot_fail(OT_ERR_IO,
                         "chunk %zu (%s) cannot be read: %s ends at or before byte %" PRIu64
                         "; something has cut it. Resume "
                         "from the last checkpoint",
                         move->chunk, what->name, path, at + OT_PAGE_BYTES);
    else
        status = ot_fail(OT_ERR_IO,
                         "chunk %zu (%s) cannot be %s: %s at byte %" PRIu64
                         ": %s (%s). Check the drive (dmesg, smartctl) and "
                         "resume from the last checkpoint",
                         move->chunk, what->name, move->direction == OT_BLOCK_READ ? "read" : "written", path,
                         at, strerrorname_np(request->error), strerror(request->error));
    OT_ASSERT(status != OT_OK);
    return ot_error_take();
}

static void finish_request(ot_store *store, const ot_block_request *request)
{
    ot_store_move *move = request->context;
    if (request->error != 0 && move->error.status == OT_OK)
        move->error = explain(store, move, request);
    if (--move->requests_pending > 0)
        return;
    store_chunk *what = &store->chunks[move->chunk];
    what->moving = 0;
    if (move->direction == OT_BLOCK_WRITE && move->error.status == OT_OK) {
        what->state = CHUNK_WHOLE;
        what->generation++;
    }
    set_done(store, move);
}

ot_status ot_store_progress(ot_store *store)
{
    OT_TRY(ot_block_progress(store->queue, store->done_first == NULL));
    for (const ot_block_request *request; (request = ot_block_next_done(store->queue)) != NULL;)
        finish_request(store, request);
    return OT_OK;
}

ot_store_move *ot_store_next_done(ot_store *store)
{
    ot_store_move *move = store->done_first;
    if (move != NULL) {
        store->done_first = move->next;
        move->next = NULL;
        store->pending--;
    }
    return move;
}

size_t ot_store_pending(const ot_store *store)
{
    return store->pending;
}

void ot_store_tune(ot_store *store, uint32_t depth, uint64_t piece_bytes, uint64_t burst_bytes)
{
    OT_ASSERT(store->pending == 0);
    OT_ASSERT(store->unchecked || piece_bytes == 0 || piece_bytes >= store->checksum_block_bytes);
    uint64_t before = ot_block_piece_bytes(store->queue);
    ot_block_tune(store->queue, depth, piece_bytes, burst_bytes);
    if (ot_block_piece_bytes(store->queue) == before || store->unchecked)
        return;
    for (size_t c = 0; c < store->chunk_count; c++)
        store->chunks[c].state = CHUNK_EMPTY;
}

size_t ot_store_extents(const ot_store *store, size_t chunk, ot_store_extent extents[], size_t max)
{
    size_t count = 0;
    for (size_t f = 0; f < store->file_count; f++) {
        const store_extent *extent = extent_of(store, chunk, f);
        if (extent->bytes == 0)
            continue;
        if (count < max)
            extents[count] = (ot_store_extent){store->files[f].path, extent->offset, extent->bytes};
        count++;
    }
    return count;
}

uint64_t ot_store_generation(const ot_store *store, size_t chunk)
{
    return store->chunks[chunk].generation;
}

uint64_t ot_store_bytes(const ot_store *store)
{
    uint64_t bytes = 0;
    for (size_t f = 0; f < store->file_count; f++)
        bytes += store->file_bytes[f];
    return bytes;
}

ot_block_stats ot_store_statistics(const ot_store *store)
{
    return ot_block_statistics(store->queue);
}

const char *ot_store_backend_name(const ot_store *store)
{
    return ot_block_backend_name(store->queue);
}
