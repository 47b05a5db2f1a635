/* The block queue over a backend of its own that keeps a record, and over the real ones on a file. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/block.h"
#include "io/host.h"
#include "tests/support/block_fault.h"
#include "tests/support/test.h"

/* ---- a backend that records what is asked and finishes pieces one at a time, the oldest first ---- */

enum { RECORD_MAX = 4096 };

static struct {
    struct {
        ot_block_direction direction;
        int file;
        uint64_t offset, bytes;
    } log[RECORD_MAX];
    size_t logged, first, last;
    ot_block_piece *queue[RECORD_MAX];
    size_t in_flight[4][2], most_in_flight[4][2], most_of_file[4];
} record;

static ot_status record_open(const ot_block_setup *setup, void **state)
{
    (void)setup;
    memset(&record, 0, sizeof record);
    *state = &record;
    return OT_OK;
}

static ot_status record_submit(void *state, ot_block_piece *const pieces[], size_t count)
{
    (void)state;
    for (size_t i = 0; i < count; i++) {
        const ot_block_piece *piece = pieces[i];
        size_t *now = &record.in_flight[piece->file][piece->direction];
        size_t *most = &record.most_in_flight[piece->file][piece->direction];
        *most = ++*now > *most ? *now : *most;
        size_t both = record.in_flight[piece->file][0] + record.in_flight[piece->file][1];
        if (both > record.most_of_file[piece->file])
            record.most_of_file[piece->file] = both;
        record.log[record.logged].direction = piece->direction;
        record.log[record.logged].file = piece->file;
        record.log[record.logged].offset = piece->offset;
        record.log[record.logged++].bytes = piece->bytes;
        record.queue[record.last++] = pieces[i];
    }
    return OT_OK;
}

static ot_status record_wait(void *state, ot_block_piece *done[], size_t max, size_t *count)
{
    (void)state;
    assert_true(max > 0 && record.first < record.last);
    done[0] = record.queue[record.first++];
    record.in_flight[done[0]->file][done[0]->direction]--;
    done[0]->result = (int64_t)done[0]->bytes;
    *count = 1;
    return OT_OK;
}

static void record_close(void *state)
{
    (void)state;
}

static const ot_block_backend recorder = {"recorder", record_open, record_submit, record_wait, record_close};

static void run_all(ot_block_queue *queue)
{
    while (ot_block_pending(queue) > 0) {
        assert_int_equal(ot_block_progress(queue, 1), OT_OK);
        for (ot_block_request *request; (request = ot_block_next_done(queue)) != NULL;)
            assert_int_equal(request->error, 0);
    }
}

static void pieces_cover_a_request_once(void **state)
{
    (void)state;
    ot_block_queue *queue;
    ot_block_options options = {.backend = &recorder, .depth = 3, .piece_bytes = 8192};
    int file = 0;
    assert_int_equal(ot_block_open(&options, &file, 1, NULL, 0, &queue), OT_OK);
    char memory[1];
    ot_block_request request = {
        .direction = OT_BLOCK_READ, .offset = 4096, .bytes = 8192 * 5 + 4096, .data = memory};
    ot_block_submit(queue, &request);
    run_all(queue);
    assert_int_equal(record.logged, 6);
    uint64_t next = 4096;
    for (size_t i = 0; i < record.logged; i++) {
        assert_int_equal(record.log[i].offset, next);
        next += record.log[i].bytes;
    }
    assert_int_equal(next, 4096 + request.bytes);
    assert_int_equal(record.most_in_flight[0][OT_BLOCK_READ], 3);
    ot_block_close(queue);
}

/* Two files, many requests both ways: while both directions of a file have work, each has half of its depth, and one that
 * is left alone gets all of it. */
static void both_directions_share_the_depth(void **state)
{
    (void)state;
    ot_block_queue *queue;
    ot_block_options options = {.backend = &recorder, .depth = 4, .piece_bytes = 4096};
    int files[2] = {0, 1};
    char memory[1];
    ot_block_request requests[12];
    assert_int_equal(ot_block_open(&options, files, 2, NULL, 0, &queue), OT_OK);
    for (size_t i = 0; i < 12; i++) {
        requests[i] = (ot_block_request){.direction = i % 2 ? OT_BLOCK_WRITE : OT_BLOCK_READ,
                                         .file = i / 2 % 2,
                                         .bytes = 4096 * (i + 3),
                                         .data = memory};
        ot_block_submit(queue, &requests[i]);
    }
    assert_int_equal(ot_block_progress(queue, 0), OT_OK);
    for (int file = 0; file < 2; file++)
        for (int direction = 0; direction < 2; direction++)
            assert_int_equal(record.most_in_flight[file][direction], 2);
    run_all(queue);
    ot_block_request alone = {.direction = OT_BLOCK_WRITE, .bytes = 4096 * 9, .data = memory};
    ot_block_submit(queue, &alone);
    run_all(queue);
    assert_int_equal(record.most_in_flight[0][OT_BLOCK_WRITE], 4);
    for (int file = 0; file < 2; file++)
        assert_int_equal(record.most_of_file[file], 4);
    ot_block_close(queue);
}

/* With bursts of 4 pieces the directions take turns, in runs of exactly 4 while both have work. */
static void bursts_take_turns(void **state)
{
    (void)state;
    ot_block_queue *queue;
    ot_block_options options = {
        .backend = &recorder, .depth = 2, .piece_bytes = 4096, .burst_bytes = 4 * 4096};
    int file = 0;
    char memory[1];
    assert_int_equal(ot_block_open(&options, &file, 1, NULL, 0, &queue), OT_OK);
    ot_block_request read = {.direction = OT_BLOCK_READ, .bytes = 16 * 4096, .data = memory};
    ot_block_request write = {.direction = OT_BLOCK_WRITE, .bytes = 12 * 4096, .data = memory};
    ot_block_submit(queue, &read);
    ot_block_submit(queue, &write);
    run_all(queue);
    assert_int_equal(record.logged, 28);
    for (size_t i = 0; i < 24; i++)
        assert_int_equal(record.log[i].direction, i / 4 % 2 ? OT_BLOCK_WRITE : OT_BLOCK_READ);
    for (size_t i = 24; i < 28; i++) /* the rest of the longer one */
        assert_int_equal(record.log[i].direction, OT_BLOCK_READ);
    ot_block_close(queue);
}

static void closing_with_work_left_ends(void **state)
{
    (void)state;
    ot_block_queue *queue;
    ot_block_options options = {.backend = &recorder, .depth = 2, .piece_bytes = 4096};
    int file = 0;
    char memory[1];
    assert_int_equal(ot_block_open(&options, &file, 1, NULL, 0, &queue), OT_OK);
    ot_block_request requests[2];
    for (size_t i = 0; i < 2; i++) {
        requests[i] = (ot_block_request){.bytes = 40960, .data = memory};
        ot_block_submit(queue, &requests[i]);
    }
    assert_int_equal(ot_block_progress(queue, 0), OT_OK);
    ot_block_close(queue);
    assert_int_equal(record.first, record.last); /* nothing is left in flight */
    assert_int_equal(record.logged, 2);
}

static void bad_options_are_named(void **state)
{
    (void)state;
    ot_block_queue *queue;
    int file = 0;
    ot_block_options options = {.backend = &recorder, .depth = OT_BLOCK_DEPTH_MAX + 1};
    assert_int_equal(ot_block_open(&options, &file, 1, NULL, 0, &queue), OT_ERR_USAGE);
    assert_non_null(strstr(ot_error_text(), "257"));
    options = (ot_block_options){.backend = &recorder, .piece_bytes = 5000};
    assert_int_equal(ot_block_open(&options, &file, 1, NULL, 0, &queue), OT_ERR_USAGE);
    assert_non_null(strstr(ot_error_text(), "5000"));
}

/* ---- the real backends, on a file ---- */

enum { FILE_BYTES = 1 << 20 };

static const ot_block_backend *const real[] = {&ot_block_uring, &ot_block_threads};

static int open_file(void)
{
    char name[] = "./offtrain-test-XXXXXX";
    int fd = mkostemp(name, O_CLOEXEC);
    assert_true(fd >= 0);
    unlink(name);
    return fd;
}

static void data_goes_out_and_comes_back(void **state)
{
    (void)state;
    for (size_t b = 0; b < 2; b++) {
        int fd = open_file();
        unsigned char *memory = aligned_alloc(4096, 2 * FILE_BYTES), *back = memory + FILE_BYTES;
        for (size_t i = 0; i < FILE_BYTES; i++)
            memory[i] = (unsigned char)(i * 2654435761u >> 13);
        ot_block_buffer buffer = {memory, 2 * FILE_BYTES};
        ot_block_queue *queue;
        ot_block_options options = {.backend = real[b], .depth = 5, .piece_bytes = 12288};
        assert_int_equal(ot_block_open(&options, &fd, 1, b == 0 ? &buffer : NULL, b == 0, &queue), OT_OK);
        ot_block_request write = {.direction = OT_BLOCK_WRITE, .bytes = FILE_BYTES, .data = memory};
        ot_block_submit(queue, &write);
        run_all(queue);
        ot_block_request read = {.direction = OT_BLOCK_READ, .bytes = FILE_BYTES, .data = back};
        ot_block_submit(queue, &read);
        run_all(queue);
        assert_memory_equal(memory, back, FILE_BYTES);
        assert_int_equal(ot_block_statistics(queue).bytes[OT_BLOCK_READ], FILE_BYTES);
        assert_int_equal(ot_block_statistics(queue).bytes[OT_BLOCK_WRITE], FILE_BYTES);
        unsigned char *seen = malloc(FILE_BYTES);
        assert_int_equal(pread(fd, seen, FILE_BYTES, 0), FILE_BYTES);
        assert_memory_equal(memory, seen, FILE_BYTES);
        free(seen);
        ot_block_close(queue);
        free(memory);
        close(fd);
    }
}

/* A file that is too short, and one that was not opened for writing. */
static void errors_name_the_piece(void **state)
{
    (void)state;
    for (size_t b = 0; b < 2; b++) {
        int fd = open_file();
        assert_int_equal(ftruncate(fd, 3 * 4096), 0);
        int read_only = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
        int files[2] = {fd, read_only};
        unsigned char *memory = aligned_alloc(4096, 8 * 4096);
        memset(memory, 1, 8 * 4096);
        ot_block_queue *queue;
        ot_block_options options = {.backend = real[b], .depth = 2, .piece_bytes = 4096};
        assert_int_equal(ot_block_open(&options, files, 2, NULL, 0, &queue), OT_OK);
        ot_block_request read = {.direction = OT_BLOCK_READ, .bytes = 8 * 4096, .data = memory};
        ot_block_request write = {.direction = OT_BLOCK_WRITE, .file = 1, .bytes = 8 * 4096, .data = memory};
        ot_block_submit(queue, &read);
        ot_block_submit(queue, &write);
        while (ot_block_pending(queue) > 0) {
            assert_int_equal(ot_block_progress(queue, 1), OT_OK);
            while (ot_block_next_done(queue) != NULL)
                continue;
        }
        assert_int_equal(read.error, ENODATA);
        assert_true(read.error_at >= 3 * 4096);
        assert_int_equal(write.error, EBADF);
        ot_block_close(queue);
        free(memory);
        close(fd);
        close(read_only);
    }
}

/* For ever interrupted: an error at last, not a hang; a few times: right data. */
static void passing_errors_are_repeated(void **state)
{
    (void)state;
    for (uint64_t times = 3; times < 1000; times *= 200) {
        int fd = open_file();
        unsigned char *memory = aligned_alloc(4096, 4096);
        memset(memory, 7, 4096);
        ot_block_queue *queue;
        ot_block_options options = {.backend = &block_fault, .depth = 2, .piece_bytes = 4096};
        block_fault_arm(
            (fault_plan){.inner = &ot_block_threads, .kind = FAULT_ERROR, .times = times, .error = EAGAIN});
        assert_int_equal(ot_block_open(&options, &fd, 1, NULL, 0, &queue), OT_OK);
        ot_block_request write = {.direction = OT_BLOCK_WRITE, .bytes = 4096, .data = memory};
        ot_block_submit(queue, &write);
        while (ot_block_next_done(queue) == NULL)
            assert_int_equal(ot_block_progress(queue, 1), OT_OK);
        assert_int_equal(write.error, times == 3 ? 0 : EAGAIN);
        if (times == 3) {
            assert_int_equal(ot_block_statistics(queue).repeated, 3);
            unsigned char byte;
            assert_int_equal(pread(fd, &byte, 1, 4095), 1);
            assert_int_equal(byte, 7);
        }
        ot_block_close(queue);
        free(memory);
        close(fd);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_cover_a_request_once), cmocka_unit_test(both_directions_share_the_depth),
        cmocka_unit_test(bursts_take_turns),           cmocka_unit_test(closing_with_work_left_ends),
        cmocka_unit_test(bad_options_are_named),       cmocka_unit_test(data_goes_out_and_comes_back),
        cmocka_unit_test(errors_name_the_piece),       cmocka_unit_test(passing_errors_are_repeated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
