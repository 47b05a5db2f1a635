/* The CPU device: order within and between streams, memory under its cap, failures that stick. */
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "kernels/kernels.h"
#include "tests/support/test.h"

#define MIB (UINT64_C(1) << 20)

typedef struct fixture {
    ot_device *device;
    ot_stream *a, *b;
    unsigned char *memory; /* 2 MiB on the device */
} fixture;

static ot_stream *open_stream(ot_device *device, const char *name, int threads)
{
    ot_stream *stream;
    ot_stream_options options = {.name = name, .threads = threads};
    assert_int_equal(ot_stream_open(device, &options, &stream), OT_OK);
    return stream;
}

static int open_fixture(void **state)
{
    static fixture f;
    ot_device_options options = {.kind = "cpu",
                                 .memory_bytes = 8 * MIB,
                                 .threads = 2,
                                 .jitter_seed = 1,
                                 .jitter_ns = 300000,
                                 .queue_length = 8};
    assert_int_equal(ot_device_open(&options, &f.device), OT_OK);
    f.a = open_stream(f.device, "a", 0);
    f.b = open_stream(f.device, "b", 0);
    void *base;
    assert_int_equal(ot_device_arena_open(f.device, "test", 2 * MIB, &base), OT_OK);
    f.memory = base;
    *state = &f;
    return 0;
}

static int close_fixture(void **state)
{
    ot_device_close(((fixture *)*state)->device);
    return 0;
}

static ot_event *open_event(ot_device *device)
{
    ot_event *event;
    assert_int_equal(ot_event_open(device, 1, &event), OT_OK);
    return event;
}

static void says(const char *text)
{
    if (strstr(ot_error_text(), text) == NULL)
        fail_msg("\"%s\" is not in \"%s\"", text, ot_error_text());
}

static void a_stream_runs_in_order(void **state)
{
    fixture *f = *state;
    enum { MOST = 500002 };
    static unsigned char in[MOST], out[MOST];
    const size_t sizes[] = {1000, MOST}; /* by one thread, and by the team */
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        size_t n = sizes[k];
        for (size_t i = 0; i < n; i++)
            in[i] = (unsigned char)(i % 251);
        memset(out, 0, n);
        ot_copy_h2d(f->a, f->memory, in, n);
        ot_copy_d2d(f->a, f->memory + MIB, f->memory, n);
        ot_copy_zero(f->a, f->memory, n);
        ot_copy_d2d(f->a, f->memory, f->memory + MIB, n / 2);
        ot_copy_d2h(f->a, out, f->memory, n);
        assert_int_equal(ot_stream_synchronize(f->a), OT_OK);
        memset(in + n / 2, 0, n / 2);
        assert_memory_equal(out, in, n);
    }
}

static void nothing_is_no_work(void **state)
{
    fixture *f = *state;
    ot_copy_h2d(f->a, NULL, NULL, 0);
    ot_copy_zero(f->a, NULL, 0);
    ot_event *event = open_event(f->device);
    ot_stream_wait(f->a, event); /* never recorded: no wait */
    assert_int_equal(ot_event_synchronize(event), OT_OK);
    assert_int_equal(ot_device_synchronize(f->device), OT_OK);
}

/* A number handed back and forth between two streams, each adding one, through one event each way. */
static ot_status add_one(void *context, ot_status before)
{
    int *number = context;
    ++*number; /* not atomic: the events order it */
    return before;
}

static void events_order_streams(void **state)
{
    fixture *f = *state;
    int number = 0;
    ot_event *there = open_event(f->device), *back = open_event(f->device);
    for (int i = 0; i < 40; i++) {
        ot_stream_wait(f->a, back);
        ot_stream_call(f->a, add_one, &number);
        ot_event_record(there, f->a);
        ot_stream_wait(f->b, there);
        ot_stream_call(f->b, add_one, &number);
        ot_event_record(back, f->b);
    }
    assert_int_equal(ot_event_synchronize(back), OT_OK);
    assert_int_equal(number, 80);
    assert_true(ot_event_reached(there) && ot_event_reached(back));
    assert_true(ot_event_elapsed_ns(there, back) >= 0);
}

/* Eight streams in a ring, each waiting for its neighbour; queues of 8 operations are full most of the time.
 */
static void many_streams_with_full_queues(void **state)
{
    fixture *f = *state;
    enum { STREAMS = 8, ROUNDS = 12 };
    ot_stream *streams[STREAMS];
    ot_event *events[STREAMS];
    int number = 0;
    for (int i = 0; i < STREAMS; i++) {
        streams[i] = open_stream(f->device, "ring", i % 3);
        events[i] = open_event(f->device);
    }
    for (int k = 0; k < ROUNDS * STREAMS; k++) {
        ot_stream *stream = streams[k % STREAMS];
        ot_stream_wait(stream, events[(k + STREAMS - 1) % STREAMS]);
        ot_stream_call(stream, add_one, &number);
        ot_event_record(events[k % STREAMS], stream);
    }
    assert_int_equal(ot_device_synchronize(f->device), OT_OK);
    assert_int_equal(number, ROUNDS * STREAMS);
    for (int i = 0; i < STREAMS; i++) {
        ot_stream_close(streams[i]);
        ot_event_close(events[i]);
    }
}

static ot_status hold(void *context, ot_status before)
{
    atomic_int *open = context;
    while (!atomic_load(open))
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    return before;
}

static void enqueueing_does_not_wait_for_the_work(void **state)
{
    fixture *f = *state;
    atomic_int open = 0;
    ot_event *event = open_event(f->device);
    ot_stream_call(f->a, hold, &open);
    ot_event_record(event, f->a);
    ot_stream_wait(f->b, event);
    assert_false(ot_event_reached(event));
    assert_int_equal(ot_device_status(f->device), OT_OK);
    atomic_store(&open, 1);
    assert_int_equal(ot_stream_synchronize(f->b), OT_OK);
    assert_true(ot_event_reached(event));
}

static void kernels_and_copies_share_a_stream(void **state)
{
    fixture *f = *state;
    enum { N = 20000 };
    static float x[N], y[N];
    for (int i = 0; i < N; i++)
        x[i] = (float)i;
    const ot_kernels *kernels = ot_device_kernels(f->device);
    ot_copy_h2d(f->a, f->memory, x, sizeof x);
    ot_scale twice = {OT_FP32, N, f->memory, 2};
    kernels->scale(f->a, &twice);
    ot_copy_d2h(f->a, y, f->memory, sizeof y);
    memset(&twice, 0, sizeof twice); /* the arguments were copied */
    assert_int_equal(ot_stream_synchronize(f->a), OT_OK);
    for (int i = 0; i < N; i++)
        assert_true(y[i] == 2 * x[i]);
}

static void memory_is_capped(void **state)
{
    fixture *f = *state;
    void *second, *third;
    assert_int_equal(ot_device_bytes(f->device), 2 * MIB);
    assert_int_equal(ot_device_arena_open(f->device, "second", 4 * MIB, &second), OT_OK);
    for (size_t i = 0; i < 4 * MIB; i += 999)
        assert_int_equal(((unsigned char *)second)[i], 0);
    assert_int_equal(ot_device_arena_open(f->device, "third", 3 * MIB, &third), OT_ERR_FIT);
    says("third");
    says("3 MiB");
    says("6 MiB of 8 MiB");
    assert_int_equal(ot_device_arena_open(f->device, "huge", UINT64_MAX, &third), OT_ERR_FIT);
    ot_device_arena_close(f->device, second);
    assert_int_equal(ot_device_arena_open(f->device, "third", 5 * MIB, &third), OT_OK);
    assert_int_equal(ot_device_bytes(f->device), 8 * MIB);
    assert_int_equal(ot_device_peak_bytes(f->device), 8 * MIB);
    ot_device_arena_close(f->device, third);
    assert_int_equal(ot_device_bytes(f->device), 2 * MIB);
    assert_int_equal(ot_device_peak_bytes(f->device), 8 * MIB);
}

static ot_status break_down(void *context, ot_status before)
{
    (void)before;
    return ot_fail(OT_ERR_IO, "%s broke", (const char *)context);
}

static ot_status note_status(void *context, ot_status before)
{
    *(ot_status *)context = before;
    return OT_OK;
}

static void the_first_failure_sticks(void **state)
{
    fixture *f = *state;
    char before[] = "unchanged", after[] = "overwrite";
    ot_status noted = OT_OK;
    ot_event *event = open_event(f->device);
    ot_copy_h2d(f->a, f->memory, before, sizeof before);
    ot_stream_call(f->a, break_down, "drive 1");
    ot_copy_h2d(f->a, f->memory, after, sizeof after);
    ot_stream_call(f->a, break_down, "drive 2");
    ot_event_record(event, f->a);
    ot_stream_wait(f->b, event);
    ot_copy_h2d(f->b, f->memory, after, sizeof after);
    ot_stream_call(f->b, note_status, &noted);
    assert_int_equal(ot_stream_synchronize(f->b), OT_ERR_IO);
    says("stream a: drive 1 broke");
    assert_int_equal(noted, OT_ERR_IO);
    assert_true(ot_event_reached(event));
    assert_memory_equal(f->memory, before, sizeof before);
    assert_int_equal(ot_device_status(f->device), OT_ERR_IO);
    assert_int_equal(ot_event_synchronize(event), OT_ERR_IO);
    assert_int_equal(ot_device_synchronize(f->device), OT_ERR_IO);
}

static void a_copy_to_the_wrong_memory_fails(void **state)
{
    fixture *f = *state;
    char host[16], other[16] = "";
    ot_copy_h2d(f->a, host, other, sizeof host);
    assert_int_equal(ot_stream_synchronize(f->a), OT_ERR_INTERNAL);
    says("not the memory it is for");
}

static void a_copy_past_the_end_fails(void **state)
{
    fixture *f = *state;
    char host[16];
    ot_copy_d2h(f->a, host, f->memory + 2 * MIB - 8, sizeof host);
    assert_int_equal(ot_stream_synchronize(f->a), OT_ERR_INTERNAL);
}

static void a_copy_from_partly_device_memory_fails(void **state)
{
    fixture *f = *state;
    ot_copy_h2d(f->a, f->memory, f->memory + 2 * MIB - 8, 16);
    assert_int_equal(ot_stream_synchronize(f->a), OT_ERR_INTERNAL);
}

static void a_token_outside_the_table_fails(void **state)
{
    fixture *f = *state;
    static float table[4], out[4];
    int32_t tokens[] = {0, 2};
    ot_embedding args = {
        .dtype = OT_FP32, .N = 2, .C = 2, .V = 2, .tokens = tokens, .table = table, .out = out};
    ot_device_kernels(f->device)->embedding_forward(f->a, &args);
    assert_int_equal(ot_stream_synchronize(f->a), OT_ERR_INTERNAL);
    says("token 2 at position 1");
}

static void an_event_out_of_order_fails(void **state)
{
    fixture *f = *state;
    atomic_int open = 0;
    ot_event *event = open_event(f->device);
    ot_stream_call(f->a, hold, &open);
    ot_event_record(event, f->a);
    ot_event_record(event, f->b);
    assert_int_equal(ot_stream_synchronize(f->b), OT_ERR_INTERNAL);
    says("before its last point");
    atomic_store(&open, 1);
}

static void a_device_is_found_by_name(void **state)
{
    (void)state;
    ot_device *device;
    ot_device_options unknown = {.kind = "tpu", .memory_bytes = 2 * MIB};
    assert_int_equal(ot_device_open(&unknown, &device), OT_ERR_USAGE);
    says("tpu");
    ot_device_options isa = {.kind = "cpu", .memory_bytes = 2 * MIB, .isa = "mmx"};
    assert_int_equal(ot_device_open(&isa, &device), OT_ERR_USAGE);
    says("mmx");
    ot_device_options any = {.memory_bytes = 2 * MIB, .isa = "baseline", .threads = 3};
    assert_int_equal(ot_device_open(&any, &device), OT_OK);
    ot_device_info info;
    ot_device_query(device, &info);
    assert_string_equal(info.isa, "baseline");
    assert_int_equal(info.memory_bytes, 2 * MIB);
    assert_int_equal(info.units, 3);
    assert_true(info.name[0] != '\0' && info.total_bytes > info.memory_bytes && info.dtypes == 7);
    ot_device_close(device);
    ot_device_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_stream_runs_in_order, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(nothing_is_no_work, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(events_order_streams, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(many_streams_with_full_queues, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(enqueueing_does_not_wait_for_the_work, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(kernels_and_copies_share_a_stream, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(memory_is_capped, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(the_first_failure_sticks, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(a_copy_to_the_wrong_memory_fails, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(a_copy_past_the_end_fails, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(a_copy_from_partly_device_memory_fails, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(a_token_outside_the_table_fails, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(an_event_out_of_order_fails, open_fixture, close_fixture),
        cmocka_unit_test(a_device_is_found_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
