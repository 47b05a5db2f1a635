/* Shared pieces of the store's tests. */
#include "tests/support/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/log.h"
#include "tests/support/test.h"

char last_line[2048];

static void keep_line(ot_log_level level, const char *line)
{
    (void)level;
    snprintf(last_line, sizeof last_line, "%s", line);
}

int open_folders(void **state)
{
    folders *f = calloc(1, sizeof *f);
    strcpy(f->root, "./offtrain-test-XXXXXX");
    assert_non_null(mkdtemp(f->root));
    for (size_t i = 0; i < 3; i++) {
        snprintf(f->paths[i], sizeof f->paths[i], "%s/%zu", f->root, i);
        assert_int_equal(mkdir(f->paths[i], 0700), 0);
        f->list[i] = f->paths[i];
    }
    last_line[0] = '\0';
    ot_log_open(OT_LOG_INFO, keep_line);
    *state = f;
    return 0;
}

int close_folders(void **state)
{
    folders *f = *state;
    int left = 0;
    for (size_t i = 0; i < 3; i++)
        left |= rmdir(f->paths[i]);
    left |= rmdir(f->root);
    free(f);
    return left;
}

void swap_path(const folders *f, size_t i, char out[128])
{
    snprintf(out, 128, "%s/" OT_STORE_FILE_NAME, f->paths[i]);
}

static uint64_t pattern(size_t chunk, int version, size_t word)
{
    return (word + 1) * 0x9E3779B97F4A7C15u ^ (chunk + 1) * 0xD1B54A32D192ED03u ^ (uint64_t)version << 57;
}

void fill(unsigned char *data, uint64_t bytes, size_t chunk, int version)
{
    for (size_t i = 0; i < bytes / 8; i++)
        ((uint64_t *)(void *)data)[i] = pattern(chunk, version, i);
}

int holds(const unsigned char *data, uint64_t bytes, size_t chunk, int version)
{
    for (size_t i = 0; i < bytes / 8; i++)
        if (((const uint64_t *)(const void *)data)[i] != pattern(chunk, version, i))
            return 0;
    return 1;
}

ot_status move_chunk(ot_store *store, ot_block_direction direction, size_t chunk, void *data)
{
    ot_store_move move, *done;
    ot_store_submit(store, &move, direction, chunk, data, NULL);
    while ((done = ot_store_next_done(store)) == NULL)
        OT_TRY(ot_store_progress(store));
    assert_ptr_equal(done, &move);
    assert_int_equal(ot_store_pending(store), 0);
    return move.error.status == OT_OK ? OT_OK : ot_error_raise(&move.error);
}

ot_store_options options_for(const folders *f, size_t directories, const ot_store_chunk chunks[],
                             size_t count)
{
    return (ot_store_options){
        .directories = f->list,
        .directory_count = directories,
        .chunks = chunks,
        .chunk_count = count,
        .io = {.depth = 4, .piece_bytes = 64 << 10},
    };
}

const ot_store_chunk sizes[SIZES] = {
    {1, "one.byte master"},
    {4096, "one.page master"},
    {70001, "odd moment1"},
    {(1 << 20) + 5, "striped moment2"},
};

ot_status round_trip(ot_store *store, unsigned char *memory)
{
    for (int version = 1; version <= 2; version++) {
        for (size_t c = 0; c < SIZES; c++) {
            fill(memory, ot_store_padded(sizes[c].bytes), c, version);
            OT_TRY(move_chunk(store, OT_BLOCK_WRITE, c, memory));
            assert_int_equal(ot_store_generation(store, c), version);
        }
        for (size_t c = 0; c < SIZES; c++) {
            memset(memory, 0xEE, ot_store_padded(sizes[c].bytes));
            OT_TRY(move_chunk(store, OT_BLOCK_READ, c, memory));
            assert_true(
                holds(memory, ot_store_padded(sizes[c].bytes), c, version)); /* an OK read is right, always */
        }
    }
    return OT_OK;
}
