/* A short measurement of one drive through a store of its own. */
#include "offload/drive.h"

#include <stdlib.h>

#include "io/clock.h"
#include "offload/store.h"

enum {
    CHUNK_BYTES = 16 << 20,
    CHUNKS = OT_DRIVE_SAMPLE_BYTES / CHUNK_BYTES,
    BUFFERS = OT_DRIVE_HOST_BYTES / CHUNK_BYTES,
};

/* Moves each chunk once: writes it in the first pass; in the second even ones are read and odd ones written,
 * so that both directions are busy. The buffers' content does not matter. */
static ot_status pass(ot_store *store, unsigned char *memory, int mixed)
{
    ot_store_move moves[BUFFERS], *idle[BUFFERS], *move;
    size_t idle_count = BUFFERS, submitted = 0;
    for (size_t i = 0; i < BUFFERS; i++)
        idle[i] = &moves[i];
    for (size_t ended = 0; ended < CHUNKS;) {
        for (; submitted < CHUNKS && idle_count > 0; submitted++) {
            move = idle[--idle_count];
            ot_store_submit(store, move, mixed && submitted % 2 == 0 ? OT_BLOCK_READ : OT_BLOCK_WRITE,
                            submitted, memory + (size_t)(move - moves) * CHUNK_BYTES, NULL);
        }
        OT_TRY(ot_store_progress(store));
        for (; (move = ot_store_next_done(store)) != NULL; ended++) {
            if (move->error.status != OT_OK)
                return ot_error_raise(&move->error);
            idle[idle_count++] = move;
        }
    }
    return OT_OK;
}

ot_status ot_drive_measure(const char *directory, const ot_block_options *io, ot_host *host,
                           double *bytes_per_s)
{
    ot_status status;
    ot_arena *arena = NULL;
    ot_store *store = NULL;
    void *memory;
    ot_store_chunk chunks[CHUNKS];
    for (size_t i = 0; i < CHUNKS; i++)
        chunks[i] = (ot_store_chunk){CHUNK_BYTES, "measurement"};
    OT_TRY_GOTO(ot_arena_open(host, "drive measurement", OT_DRIVE_HOST_BYTES, OT_PAGES_TRANSPARENT, &arena),
                out);
    OT_TRY_GOTO(ot_arena_take(arena, OT_DRIVE_HOST_BYTES, OT_PAGE_BYTES, &memory), out);
    ot_block_buffer buffer = {memory, OT_DRIVE_HOST_BYTES};
    ot_store_options options = {
        .directories = &directory,
        .directory_count = 1,
        .chunks = chunks,
        .chunk_count = CHUNKS,
        .buffers = &buffer,
        .buffer_count = 1,
        .io = *io,
        .unchecked = 1,
    };
    OT_TRY_GOTO(ot_store_open(&options, &store), out);
    OT_TRY_GOTO(pass(store, memory, 0), out);
    int64_t start = ot_clock_ns();
    OT_TRY_GOTO(pass(store, memory, 1), out);
    *bytes_per_s = (double)OT_DRIVE_SAMPLE_BYTES / ot_seconds(ot_clock_ns() - start);
out:
    ot_store_close(store);
    ot_arena_close(arena);
    return status;
}
