/* The NVMe store: what goes out comes back, where it lies, and who owns it. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "io/file.h"
#include "tests/support/store.h"
#include "tests/support/test.h"

static void every_size_comes_back(void **state)
{
    unsigned char *memory = aligned_alloc(4096, LARGEST);
    for (size_t directories = 1; directories <= 3; directories++)
        for (int threads = 0; threads < 2; threads++) {
            ot_store_options options = options_for(*state, directories, sizes, SIZES);
            ot_block_buffer buffer = {memory, LARGEST};
            options.buffers = &buffer;
            options.buffer_count = 1;
            options.io.backend = threads ? &ot_block_threads : &ot_block_uring;
            ot_store *store;
            assert_int_equal(ot_store_open(&options, &store), OT_OK);
            assert_int_equal(round_trip(store, memory), OT_OK);
            ot_store_close(store);
        }
    free(memory);
}

/* Many moves at once, in and out, finish in any order with the right data. */
static void moves_overlap(void **state)
{
    enum { CHUNKS = 24, BYTES = 300 << 10 };
    ot_store_chunk chunks[CHUNKS];
    for (size_t c = 0; c < CHUNKS; c++)
        chunks[c] = (ot_store_chunk){BYTES, "chunk"};
    ot_store_options options = options_for(*state, 2, chunks, CHUNKS);
    ot_store *store;
    assert_int_equal(ot_store_open(&options, &store), OT_OK);
    unsigned char *memory = aligned_alloc(4096, (size_t)CHUNKS * BYTES);
    ot_store_move *moves = calloc(CHUNKS, sizeof *moves), *move;
    for (int direction = OT_BLOCK_WRITE; direction >= OT_BLOCK_READ; direction--) {
        for (size_t c = 0; c < CHUNKS; c++) {
            if (direction == OT_BLOCK_WRITE)
                fill(memory + c * BYTES, BYTES, c, 1);
            else
                memset(memory + c * BYTES, 0, BYTES);
            ot_store_submit(store, &moves[c], (ot_block_direction)direction, c, memory + c * BYTES,
                            &moves[c]);
        }
        for (size_t ended = 0; ended < CHUNKS;) {
            assert_int_equal(ot_store_progress(store), OT_OK);
            for (; (move = ot_store_next_done(store)) != NULL; ended++) {
                assert_ptr_equal(move->context, move);
                assert_int_equal(move->error.status, OT_OK);
            }
        }
        assert_int_equal(ot_store_pending(store), 0);
    }
    for (size_t c = 0; c < CHUNKS; c++)
        assert_true(holds(memory + c * BYTES, BYTES, c, 1));
    ot_store_close(store);
    free(moves);
    free(memory);
}

/* ---- layout ---- */

static void stripes_follow_the_weights(void **state)
{
    enum { CHUNKS = 10, BYTES = 16 << 20 };
    ot_store_chunk chunks[CHUNKS];
    for (size_t c = 0; c < CHUNKS; c++)
        chunks[c] = (ot_store_chunk){BYTES, "chunk"};
    ot_store_options options = options_for(*state, 2, chunks, CHUNKS);
    options.weights = (const double[]){3, 1};
    ot_store *store;
    assert_int_equal(ot_store_open(&options, &store), OT_OK);
    uint64_t next[2] = {4096, 4096};
    for (size_t c = 0; c < CHUNKS; c++) {
        ot_store_extent extents[2];
        assert_int_equal(ot_store_extents(store, c, extents, 2), 2);
        assert_int_equal(extents[0].bytes, BYTES / 4 * 3);
        assert_int_equal(extents[1].bytes, BYTES / 4);
        for (size_t f = 0; f < 2; f++) { /* side by side, nothing overlaps */
            assert_int_equal(extents[f].offset, next[f]);
            next[f] += extents[f].bytes;
        }
    }
    for (size_t f = 0; f < 2; f++) {
        char path[128];
        struct stat facts;
        swap_path(*state, f, path);
        assert_int_equal(stat(path, &facts), 0);
        assert_int_equal(facts.st_size, next[f]);
        assert_true((uint64_t)facts.st_blocks * 512 >= next[f]); /* real space, not a hole */
    }
    assert_int_equal(ot_store_bytes(store), 2 * 4096 + (uint64_t)CHUNKS * BYTES);
    ot_store_close(store);
}

/* Chunks too small to stripe stay whole and are dealt out by weight. */
static void small_chunks_are_dealt_out(void **state)
{
    enum { CHUNKS = 400, BYTES = 8192 };
    ot_store_chunk chunks[CHUNKS];
    for (size_t c = 0; c < CHUNKS; c++)
        chunks[c] = (ot_store_chunk){BYTES, "chunk"};
    ot_store_options options = options_for(*state, 3, chunks, CHUNKS);
    options.weights = (const double[]){2, 1, 1};
    ot_store *store;
    assert_int_equal(ot_store_open(&options, &store), OT_OK);
    size_t on_first = 0;
    for (size_t c = 0; c < CHUNKS; c++) {
        ot_store_extent extent;
        assert_int_equal(ot_store_extents(store, c, &extent, 1), 1);
        assert_int_equal(extent.bytes, BYTES);
        on_first +=
            strncmp(extent.path, ((folders *)*state)->paths[0], strlen(((folders *)*state)->paths[0])) == 0;
    }
    assert_in_range(on_first, CHUNKS / 2 - 2, CHUNKS / 2 + 2);
    ot_store_close(store);
}

static void more_than_the_drive_has_is_refused(void **state)
{
    ot_store_chunk chunk = {UINT64_C(1) << 58, "a planet"};
    ot_store_options options = options_for(*state, 2, &chunk, 1);
    ot_store *store;
    assert_int_equal(ot_store_open(&options, &store), OT_ERR_IO);
    assert_non_null(strstr(ot_error_text(), "256.00 PiB"));
    assert_non_null(strstr(ot_error_text(), "free"));
}

/* Larger than 2^31-1 bytes and than one call may transfer, out of a sparse mapping. */
static void a_huge_embedding_comes_back(void **state)
{
    const uint64_t bytes = UINT64_C(152064) * 3584 * 4;
    ot_store_chunk chunk = {bytes, "embed_tokens.weight master"};
    ot_store_options options = options_for(*state, 1, &chunk, 1);
    options.io = (ot_block_options){.depth = 8, .piece_bytes = 4 << 20};
    ot_store *store;
    ot_status status = ot_store_open(&options, &store);
    if (status != OT_OK && strstr(ot_error_text(), "free") != NULL)
        skip();
    assert_int_equal(status, OT_OK);
    unsigned char *memory =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_ptr_not_equal(memory, MAP_FAILED);
    static const uint64_t marks[] = {
        0, 12345, (UINT64_C(1) << 31) - 1, UINT64_C(1) << 31, 2147479552, UINT64_C(152064) * 3584 * 4 - 1};
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
        memory[marks[i]] = (unsigned char)(i + 1);
    assert_int_equal(move_chunk(store, OT_BLOCK_WRITE, 0, memory), OT_OK);
    assert_int_equal(madvise(memory, bytes, MADV_DONTNEED), 0); /* all zeros again */
    assert_int_equal(memory[12345], 0);
    assert_int_equal(move_chunk(store, OT_BLOCK_READ, 0, memory), OT_OK); /* its checksums hold */
    uint64_t sum = 0;
    for (uint64_t i = 0; i < bytes; i++)
        sum += memory[i];
    assert_int_equal(sum, 1 + 2 + 3 + 4 + 5 + 6);
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
        assert_int_equal(memory[marks[i]], i + 1);
    munmap(memory, bytes);
    ot_store_close(store);
}

/* ---- owners ---- */

/* A child that opens the store, says so, and then sleeps until it is killed. */
static pid_t start_owner(const ot_store_options *options)
{
    int pipes[2];
    assert_int_equal(pipe(pipes), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        ot_store *store;
        if (ot_store_open(options, &store) == OT_OK && write(pipes[1], "!", 1) == 1)
            for (;;)
                pause();
        _exit(1);
    }
    char ready;
    close(pipes[1]);
    assert_int_equal(read(pipes[0], &ready, 1), 1);
    close(pipes[0]);
    return child;
}

static void kill_owner(pid_t child)
{
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
}

static void a_second_process_is_refused(void **state)
{
    ot_store_options options = options_for(*state, 2, sizes, SIZES);
    options.io.backend = &ot_block_threads;
    pid_t owner = start_owner(&options);
    ot_store *store;
    assert_int_equal(ot_store_open(&options, &store), OT_ERR_IO);
    char pid[32];
    snprintf(pid, sizeof pid, "process %ld ", (long)owner);
    assert_non_null(strstr(ot_error_text(), pid));
    char path[128];
    swap_path(*state, 0, path);
    assert_int_equal(access(path, F_OK), 0); /* the owner's file is still there */

    kill_owner(owner);
    assert_int_equal(access(path, F_OK), 0);
    struct stat before, after;
    assert_int_equal(stat(path, &before), 0);
    assert_int_equal(ot_store_open(&options, &store), OT_OK);
    assert_non_null(strstr(last_line, "took over"));
    snprintf(pid, sizeof pid, "process %ld,", (long)owner);
    assert_non_null(strstr(last_line, pid));
    assert_int_equal(stat(path, &after), 0);
    assert_int_equal(before.st_ino, after.st_ino);
    unsigned char *memory = aligned_alloc(4096, LARGEST);
    assert_int_equal(move_chunk(store, OT_BLOCK_READ, 0, memory),
                     OT_ERR_IO); /* the dead owner's bytes are not ours */
    assert_int_equal(round_trip(store, memory), OT_OK);
    free(memory);
    ot_store_close(store);
}

/* A dead owner's file of another layout, larger or smaller, is taken over too and gets its new size. */
static void an_orphan_of_another_size_is_taken_over(void **state)
{
    for (size_t count = 1; count < SIZES; count++) {
        ot_store_options left = options_for(*state, 1, sizes, count),
                         options = options_for(*state, 1, &sizes[count], SIZES - count);
        left.io.backend = options.io.backend = &ot_block_threads;
        kill_owner(start_owner(&left));
        ot_store *store;
        assert_int_equal(ot_store_open(&options, &store), OT_OK);
        char path[128];
        struct stat facts;
        swap_path(*state, 0, path);
        assert_int_equal(stat(path, &facts), 0);
        assert_int_equal(facts.st_size, ot_store_bytes(store));
        ot_store_close(store);
    }
}

static void foreign_files_are_left_alone(void **state)
{
    static const char *const contents[] = {"x", "somebody's thesis"};
    char path[128];
    swap_path(*state, 1, path);
    char long_text[10000];
    memset(long_text, 'a', sizeof long_text);
    for (size_t i = 0; i < 3; i++) {
        const char *text = i < 2 ? contents[i] : long_text;
        size_t length = i < 2 ? strlen(text) : sizeof long_text;
        int fd = open(path, O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0600);
        assert_int_equal(write(fd, text, length), length);
        ot_store_options options = options_for(*state, 2, sizes, SIZES);
        ot_store *store;
        assert_int_equal(ot_store_open(&options, &store), OT_ERR_IO);
        assert_non_null(strstr(ot_error_text(), "left alone"));
        char back[sizeof long_text + 1];
        assert_int_equal(pread(fd, back, sizeof back, 0), length);
        assert_memory_equal(back, text, length);
        close(fd);
    }
    unlink(path);
}

static void unusable_directories_are_named(void **state)
{
    ot_store *store;
    ot_store_options options = options_for(*state, 1, sizes, SIZES);
    options.directories = (const char *const[]){"/nonexistent/drive"};
    assert_int_equal(ot_store_open(&options, &store), OT_ERR_IO);
    assert_non_null(strstr(ot_error_text(), "/nonexistent/drive"));

    char again[64];
    snprintf(again, sizeof again, "%s/../0", ((folders *)*state)->paths[0]);
    options = options_for(*state, 2, sizes, SIZES);
    options.directories = (const char *const[]){((folders *)*state)->paths[0], again};
    assert_int_equal(ot_store_open(&options, &store), OT_ERR_USAGE);
    assert_non_null(strstr(ot_error_text(), "twice"));

    options = options_for(*state, 2, sizes, SIZES);
    options.weights = (const double[]){1, 0};
    assert_int_equal(ot_store_open(&options, &store), OT_ERR_USAGE);

    ot_dir_info shm;
    if (ot_dir_probe("/dev/shm", &shm) != OT_OK || !shm.is_ram)
        skip();
    options = options_for(*state, 1, sizes, SIZES);
    options.directories = (const char *const[]){"/dev/shm"};
    assert_int_equal(ot_store_open(&options, &store), OT_ERR_USAGE);
    assert_non_null(strstr(ot_error_text(), "memory"));
}

static void a_new_block_size_forgets_the_chunks(void **state)
{
    unsigned char *memory = aligned_alloc(4096, LARGEST);
    ot_store_options options = options_for(*state, 1, sizes, SIZES);
    ot_store *store;
    assert_int_equal(ot_store_open(&options, &store), OT_OK);
    assert_int_equal(round_trip(store, memory), OT_OK);
    ot_store_tune(store, 2, 0, 0);
    assert_int_equal(move_chunk(store, OT_BLOCK_READ, 3, memory), OT_OK);
    ot_store_tune(store, 2, 128 << 10, 0);
    assert_int_equal(move_chunk(store, OT_BLOCK_READ, 3, memory), OT_ERR_IO);
    fill(memory, LARGEST, 3, 9);
    assert_int_equal(move_chunk(store, OT_BLOCK_WRITE, 3, memory), OT_OK);
    memset(memory, 0, LARGEST);
    assert_int_equal(move_chunk(store, OT_BLOCK_READ, 3, memory), OT_OK);
    assert_true(holds(memory, LARGEST, 3, 9));
    ot_store_close(store);
    free(memory);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        IN_FOLDERS(every_size_comes_back),
        IN_FOLDERS(moves_overlap),
        IN_FOLDERS(stripes_follow_the_weights),
        IN_FOLDERS(small_chunks_are_dealt_out),
        IN_FOLDERS(more_than_the_drive_has_is_refused),
        IN_FOLDERS(a_second_process_is_refused),
        IN_FOLDERS(an_orphan_of_another_size_is_taken_over),
        IN_FOLDERS(foreign_files_are_left_alone),
        IN_FOLDERS(unusable_directories_are_named),
        IN_FOLDERS(a_new_block_size_forgets_the_chunks),
    };
    const struct CMUnitTest huge[] = {IN_FOLDERS(a_huge_embedding_comes_back)};
    if (argc > 1 && strcmp(argv[1], "huge") == 0)
        return cmocka_run_group_tests(huge, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
