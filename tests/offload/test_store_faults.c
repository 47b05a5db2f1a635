/* The NVMe store under faults: each request of a round trip is spoilt in turn, and files are damaged from
 * outside. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/block_fault.h"
#include "tests/support/store.h"
#include "tests/support/test.h"

/* How many requests a round trip makes: the victims are counted from 0 up to it. */
static uint64_t requests_of_a_round_trip(const folders *f, unsigned char *memory)
{
    ot_store_options options = options_for(f, 2, sizes, SIZES);
    options.io.backend = &block_fault;
    ot_store *store;
    block_fault_arm((fault_plan){.inner = &ot_block_threads});
    assert_int_equal(ot_store_open(&options, &store), OT_OK);
    assert_int_equal(round_trip(store, memory), OT_OK);
    ot_store_close(store);
    return block_fault_count();
}

/* Spoils request k, for every k, through the two backends in turn: the fault is in front of them. A fault that passes is survived with right data (round_trip checks each
 * byte); any other ends in an error that names the chunk and the file, and leaves nothing pending. */
static void spoil_each_request(void **state, fault_kind kind, int error, int survives)
{
    static const ot_block_backend *const inner[] = {&ot_block_uring, &ot_block_threads};
    unsigned char *memory = aligned_alloc(4096, LARGEST);
    uint64_t requests = requests_of_a_round_trip(*state, memory);
    assert_true(requests > 60);
    for (uint64_t i = 0; i < requests; i++) {
        ot_store_options options = options_for(*state, 2, sizes, SIZES);
        options.io.backend = &block_fault;
        ot_store *store;
        block_fault_arm((fault_plan){.inner = inner[i % 2], .kind = kind, .victim = i, .error = error});
        assert_int_equal(ot_store_open(&options, &store), OT_OK);
        ot_status status = round_trip(store, memory);
        assert_true(block_fault_count() > i); /* it did happen */
        if (survives)
            assert_int_equal(status, OT_OK);
        else {
            assert_int_equal(status, OT_ERR_IO);
            assert_non_null(strstr(ot_error_text(), "chunk "));
            assert_non_null(strstr(ot_error_text(), OT_STORE_FILE_NAME));
            if (kind == FAULT_ERROR)
                assert_non_null(strstr(ot_error_text(), strerrorname_np(error)));
        }
        assert_int_equal(ot_store_pending(store), 0);
        ot_store_close(store);
    }
    free(memory);
}

static void an_io_error_is_named(void **state)
{
    spoil_each_request(state, FAULT_ERROR, EIO, 0);
}

static void no_space_is_named(void **state)
{
    spoil_each_request(state, FAULT_ERROR, ENOSPC, 0);
}

static void try_again_is_survived(void **state)
{
    spoil_each_request(state, FAULT_ERROR, EAGAIN, 1);
}

static void an_interruption_is_survived(void **state)
{
    spoil_each_request(state, FAULT_ERROR, EINTR, 1);
}

static void a_short_transfer_is_continued(void **state)
{
    spoil_each_request(state, FAULT_SHORT, 0, 1);
}

static void a_transfer_of_nothing_is_named(void **state)
{
    spoil_each_request(state, FAULT_NOTHING, 0, 0);
}

static void a_flipped_bit_is_found(void **state)
{
    spoil_each_request(state, FAULT_FLIP, 0, 0);
}

static void a_late_completion_is_waited_for(void **state)
{
    spoil_each_request(state, FAULT_DELAY, 0, 1);
}

/* After a failed write the old version is gone and the new one not there: the chunk cannot be read, its
 * neighbour can, and a further write makes it whole. */
static void a_torn_chunk_is_not_read(void **state)
{
    unsigned char *memory = aligned_alloc(4096, LARGEST);
    ot_store_options options = options_for(*state, 1, sizes, SIZES);
    options.io.backend = &block_fault;
    ot_store *store;
    block_fault_arm((fault_plan){.inner = &ot_block_threads, .kind = FAULT_ERROR, .victim = 4, .error = EIO});
    assert_int_equal(ot_store_open(&options, &store), OT_OK);
    assert_int_equal(move_chunk(store, OT_BLOCK_READ, 0, memory), OT_ERR_IO);
    assert_non_null(strstr(ot_error_text(), "never written"));
    fill(memory, 4096, 0, 1);
    assert_int_equal(move_chunk(store, OT_BLOCK_WRITE, 0, memory), OT_OK); /* piece 0 */
    fill(memory, 73728, 2, 1);
    assert_int_equal(move_chunk(store, OT_BLOCK_WRITE, 2, memory), OT_OK); /* pieces 1 and 2 */
    fill(memory, 73728, 2, 2);
    assert_int_equal(move_chunk(store, OT_BLOCK_WRITE, 2, memory), OT_ERR_IO); /* 3 and 4 */
    assert_non_null(strstr(ot_error_text(), "odd moment1"));
    assert_int_equal(move_chunk(store, OT_BLOCK_READ, 2, memory), OT_ERR_IO);
    assert_non_null(strstr(ot_error_text(), "last write failed"));
    assert_int_equal(ot_store_generation(store, 2), 1);
    assert_int_equal(move_chunk(store, OT_BLOCK_READ, 0, memory), OT_OK);
    assert_true(holds(memory, 4096, 0, 1));
    fill(memory, 73728, 2, 3);
    assert_int_equal(move_chunk(store, OT_BLOCK_WRITE, 2, memory), OT_OK);
    memset(memory, 0, LARGEST);
    assert_int_equal(move_chunk(store, OT_BLOCK_READ, 2, memory), OT_OK);
    assert_true(holds(memory, 73728, 2, 3));
    ot_store_close(store);
    free(memory);
}

/* Somebody else changes the file behind the store's back. */
static void damage_to_the_file_is_found(void **state)
{
    char path[128];
    swap_path(*state, 0, path);
    unsigned char *memory = aligned_alloc(4096, LARGEST);
    ot_store_options options = options_for(*state, 1, sizes, SIZES);
    ot_store *store;
    assert_int_equal(ot_store_open(&options, &store), OT_OK);
    fill(memory, LARGEST, 3, 1);
    assert_int_equal(move_chunk(store, OT_BLOCK_WRITE, 3, memory), OT_OK);
    ot_store_extent extent;
    assert_int_equal(ot_store_extents(store, 3, &extent, 1), 1);
    assert_string_equal(extent.path, path);

    int fd = open(path, O_RDWR | O_CLOEXEC);
    unsigned char byte;
    off_t at = (off_t)extent.offset + 777777;
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    assert_int_equal(fdatasync(fd), 0);
    assert_int_equal(move_chunk(store, OT_BLOCK_READ, 3, memory), OT_ERR_IO);
    assert_non_null(strstr(ot_error_text(), "striped moment2"));
    assert_non_null(strstr(ot_error_text(), path));
    char offset[32]; /* of the block of 64 KiB that holds the byte */
    snprintf(offset, sizeof offset, "byte %" PRIu64, extent.offset + 777777 / 65536 * 65536);
    assert_non_null(strstr(ot_error_text(), offset));

    assert_int_equal(ftruncate(fd, 4096), 0);
    assert_int_equal(move_chunk(store, OT_BLOCK_READ, 3, memory), OT_ERR_IO);
    assert_non_null(strstr(ot_error_text(), "has cut it"));
    close(fd);
    ot_store_close(store);
    free(memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_FOLDERS(a_torn_chunk_is_not_read),      IN_FOLDERS(damage_to_the_file_is_found),
        IN_FOLDERS(an_io_error_is_named),          IN_FOLDERS(no_space_is_named),
        IN_FOLDERS(try_again_is_survived),         IN_FOLDERS(an_interruption_is_survived),
        IN_FOLDERS(a_short_transfer_is_continued), IN_FOLDERS(a_transfer_of_nothing_is_named),
        IN_FOLDERS(a_flipped_bit_is_found),        IN_FOLDERS(a_late_completion_is_waited_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
