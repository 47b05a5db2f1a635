#include "tools/busy.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "io/clock.h"
#include "io/host.h"
#include "offload/store.h"

enum { CHUNK_BYTES = 8 << 20, CHUNKS = 64, MOVES = 16 };

struct ot_busy {
    ot_host *host;
    ot_arena *arena;
    ot_store *store;
    ot_store_move moves[MOVES];
    size_t submitted;
    pthread_t thread;
    int running;
    atomic_int stop;
    atomic_ullong moved_bytes;
    int64_t start_ns;
    ot_error error; /* of the thread */
};

/* Even moves read and odd ones write, once everything has been written. */
static void submit(ot_busy *busy, ot_store_move *move)
{
    size_t i = busy->submitted++, slot = (size_t)(move - busy->moves);
    ot_block_direction direction = i < CHUNKS || slot % 2 == 1 ? OT_BLOCK_WRITE : OT_BLOCK_READ;
    unsigned char *data = (unsigned char *)ot_arena_base(busy->arena) + slot * CHUNK_BYTES;
    ot_store_submit(busy->store, move, direction, i % CHUNKS, data, NULL);
}

/* Moves chunks until `most` were submitted or it is told to stop, and waits for what is in flight. */
static ot_status move_chunks(ot_busy *busy, size_t most)
{
    ot_store_move *move;
    for (size_t m = 0; m < MOVES; m++)
        submit(busy, &busy->moves[m]);
    while (ot_store_pending(busy->store) > 0) {
        OT_TRY(ot_store_progress(busy->store));
        while ((move = ot_store_next_done(busy->store)) != NULL) {
            if (move->error.status != OT_OK)
                return ot_error_raise(&move->error);
            atomic_fetch_add(&busy->moved_bytes, CHUNK_BYTES);
            if (busy->submitted < most && !atomic_load(&busy->stop))
                submit(busy, move);
        }
    }
    return OT_OK;
}

static void *work(void *argument)
{
    ot_busy *busy = argument;
    if (move_chunks(busy, SIZE_MAX) != OT_OK)
        busy->error = ot_error_take();
    return NULL;
}

ot_status ot_busy_open(const char *const *directories, size_t count, ot_busy **out)
{
    ot_store_chunk chunks[CHUNKS];
    ot_status status;
    *out = NULL;
    ot_busy *busy = calloc(1, sizeof *busy);
    if (busy == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for a busy drive");
    for (size_t i = 0; i < CHUNKS; i++)
        chunks[i] = (ot_store_chunk){CHUNK_BYTES, "measurement"};
    const uint64_t bytes = (uint64_t)MOVES * CHUNK_BYTES;
    OT_TRY_GOTO(ot_host_open(bytes, &busy->host), out);
    OT_TRY_GOTO(ot_arena_open(busy->host, "busy drive", bytes, OT_PAGES_BEST, &busy->arena), out);
    ot_block_buffer buffer = {ot_arena_base(busy->arena), bytes};
    ot_store_options options = {
        .directories = directories,
        .directory_count = count,
        .chunks = chunks,
        .chunk_count = CHUNKS,
        .buffers = &buffer,
        .buffer_count = 1,
    };
    OT_TRY_GOTO(ot_store_open(&options, &busy->store), out);
    OT_TRY_GOTO(move_chunks(busy, CHUNKS), out);
    *out = busy;
    return OT_OK;
out:
    ot_busy_close(busy);
    return status;
}

void ot_busy_close(ot_busy *busy)
{
    double rate;
    if (busy == NULL)
        return;
    if (busy->running && ot_busy_rest(busy, &rate) != OT_OK)
        ot_error_take(); /* it is only closed */
    ot_store_close(busy->store);
    ot_host_close(busy->host);
    free(busy);
}

ot_status ot_busy_work(ot_busy *busy)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    atomic_store(&busy->stop, 0);
    atomic_store(&busy->moved_bytes, 0);
    busy->error = (ot_error){.status = OT_OK};
    busy->start_ns = ot_clock_ns();
    int code = pthread_create(&busy->thread, NULL, work, busy);
    if (code != 0)
        return ot_fail(OT_ERR_INTERNAL, "cannot start a thread: %s; raise the limit on processes",
                       strerror(code));
    busy->running = 1;
    for (int tries = 0; tries < 1000 && atomic_load(&busy->moved_bytes) == 0; tries++)
        nanosleep(&pause, NULL);
    return OT_OK;
}

ot_status ot_busy_rest(ot_busy *busy, double *bytes_per_s)
{
    atomic_store(&busy->stop, 1);
    pthread_join(busy->thread, NULL);
    busy->running = 0;
    *bytes_per_s = (double)atomic_load(&busy->moved_bytes) / ot_seconds(ot_clock_ns() - busy->start_ns);
    return busy->error.status == OT_OK ? OT_OK : ot_error_raise(&busy->error);
}
