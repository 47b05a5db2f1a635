/* The host side of the CUDA device against the fake runtime: memory under its cap, pinning, failures and their words. */
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/backend.h"
#include "tests/cuda/emulator.h"
#include "tests/support/tree.h"

static void configure(fakecuda_options options)
{
    options.seed = 1;
    options.threads = FIRST_MODE;
    fakecuda_configure(&options);
}

/* ---- What the device says of itself ---- */

static void a_device_describes_itself(void **state)
{
    (void)state;
    configure((fakecuda_options){.memory_bytes = 300 * MIB});
    ot_device *device = open_device(200 * MIB, 0);
    ot_device_info info;
    ot_device_query(device, &info);
    assert_string_equal(info.kind, "cuda");
    assert_string_equal(info.name, "Emulated GPU 0");
    assert_string_equal(info.address, "0000:01:00.0");
    assert_string_equal(info.isa, "sm_89");
    assert_int_equal(info.memory_bytes, 200 * MIB);
    assert_int_equal(info.total_bytes, 300 * MIB);
    assert_int_equal(info.dtypes, 7);
    assert_int_equal(info.copy_lanes, 2);
    assert_int_equal(info.host_memory, 0);
    /* The context of 48 MiB, a cuBLAS handle of 8 and what may be loaded later. */
    assert_int_equal(info.own_bytes, (48 + 8 + 32) * MIB);
    assert_int_equal(ot_device_bytes(device), info.own_bytes);
    ot_device_close(device);
    assert_int_equal(fakecuda_count().refused, 0);
}

/* ---- Memory ---- */

static void memory_is_capped_and_zero(void **state)
{
    (void)state;
    configure((fakecuda_options){.memory_bytes = 300 * MIB});
    ot_device *device = open_device(100 * MIB, 0); /* 12 MiB beside the context */
    ot_stream *stream = open_stream(device, OT_STREAM_D2H, "d2h");
    unsigned char *first = open_arena(device, 4 * MIB), *copy = open_host(device, 4 * MIB);
    assert_int_equal((uintptr_t)first % 4096, 0);
    memset(copy, 1, 4 * MIB);
    ot_copy_d2h(stream, copy, first, 4 * MIB);
    assert_int_equal(ot_stream_synchronize(stream), OT_OK);
    for (size_t i = 0; i < 4 * MIB; i++)
        assert_int_equal(copy[i], 0);
    void *second, *third;
    assert_int_equal(ot_device_arena_open(device, "second", 8 * MIB + 1, &second), OT_ERR_FIT);
    says("second needs 8");
    says("92 MiB of 100 MiB are taken, 88 MiB of them by the CUDA context");
    assert_int_equal(ot_device_arena_open(device, "huge", UINT64_MAX, &second), OT_ERR_FIT);
    assert_int_equal(ot_device_arena_open(device, "second", 7 * MIB, &second), OT_OK); /* whole large pages */
    assert_int_equal(ot_device_bytes(device), 100 * MIB);
    assert_int_equal(ot_device_arena_open(device, "third", 1, &third), OT_ERR_FIT);
    ot_device_arena_close(device, second);
    assert_int_equal(ot_device_bytes(device), 92 * MIB);
    assert_int_equal(ot_device_peak_bytes(device), 100 * MIB);
    assert_true(fakecuda_count().device_peak_bytes <= 100 * MIB);
    ot_device_close(device);
    free(copy);
}

static void other_processes_are_named(void **state)
{
    (void)state;
    configure((fakecuda_options){.memory_bytes = 300 * MIB, .other_bytes = 200 * MIB});
    ot_device *device = open_device(200 * MIB, 0);
    void *arena;
    assert_int_equal(ot_device_arena_open(device, "weights", 64 * MIB, &arena), OT_ERR_FIT);
    says("arena weights needs 64 MiB, but Emulated GPU 0 has 52 MiB of 300 MiB free");
    says("other processes hold about 160 MiB"); /* 200, less what the cap keeps for later */
    assert_int_equal(ot_device_arena_open(device, "weights", 16 * MIB, &arena), OT_OK);
    ot_device_close(device);
}

static void a_cap_below_the_context_is_refused(void **state)
{
    (void)state;
    configure((fakecuda_options){0});
    ot_device *device;
    ot_device_options options = {.kind = "cuda", .memory_bytes = 64 * MIB};
    assert_int_equal(ot_device_open(&options, &device), OT_ERR_FIT);
    says("the CUDA context alone takes 88 MiB, and --gpu-mem is 64 MiB");
}

/* A load or a store of the host faults, and so does one past the end. */
static void device_memory_is_closed_to_the_host(void **state)
{
    (void)state;
#if defined(__SANITIZE_THREAD__)
    skip(); /* memory is open with a thread for each stream */
#endif
    configure((fakecuda_options){0});
    ot_device *device = open_device(256 * MIB, 0);
    volatile char *arena = open_arena(device, 4 * MIB);
    pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        (void)arena[100];
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_false(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    ot_device_close(device);
}

/* ---- Pinning ---- */

/* Of pieces of 1 MiB, across which the driver copies nothing. */
static void copies_cross_pinned_pieces(void **state)
{
    (void)state;
    configure((fakecuda_options){0});
    ot_device *device = open_device(256 * MIB, 0);
    ot_stream *stream = open_stream(device, OT_STREAM_H2D, "h2d");
    enum { BYTES = 3 << 20 | 12288, OFFSET = 1048000, PART = 2100000 };
    unsigned char *host = open_host(device, BYTES), *back = open_host(device, BYTES);
    unsigned char *arena = open_arena(device, 4 * MIB);
    assert_int_equal(fakecuda_count().pinned_bytes, 2 * BYTES + RING_BYTES);
    for (size_t i = 0; i < BYTES; i++)
        host[i] = (unsigned char)(i * 7 + i / 4096);
    ot_copy_h2d(stream, arena, host + OFFSET, PART);
    ot_copy_d2h(stream, back + 17, arena, PART);
    if (ot_stream_synchronize(stream) != OT_OK)
        fail_msg("%s", ot_error_text());
    assert_memory_equal(back + 17, host + OFFSET, PART);
    fakecuda_counters counted = fakecuda_count();
    assert_int_equal(counted.pageable_copies, 0);
    assert_int_equal(counted.h2d_bytes, PART);
    assert_int_equal(counted.d2h_bytes, PART);
    ot_device_unpin(device, host);
    ot_device_unpin(device, back);
    assert_int_equal(fakecuda_count().pinned_bytes, RING_BYTES);
    ot_device_close(device);
    free(host);
    free(back);
}

/* The host's buffer begins before pinned memory and ends behind it. */
static void a_copy_may_be_pinned_in_part(void **state)
{
    (void)state;
    configure((fakecuda_options){0});
    ot_device *device = open_device(256 * MIB, 0);
    ot_stream *stream = open_stream(device, OT_STREAM_H2D, "h2d");
    enum { BYTES = 6 << 12 };
    unsigned char *host = open_host(NULL, BYTES), *back = open_host(device, BYTES),
                  *arena = open_arena(device, BYTES);
    assert_int_equal(ot_device_pin(device, host + 8192, 4096), OT_OK);
    for (size_t i = 0; i < BYTES; i++)
        host[i] = (unsigned char)(i * 13);
    ot_copy_h2d(stream, arena, host, BYTES);
    ot_copy_d2h(stream, back, arena, BYTES);
    if (ot_stream_synchronize(stream) != OT_OK)
        fail_msg("%s", ot_error_text());
    assert_memory_equal(back, host, BYTES);
    assert_int_equal(fakecuda_count().pageable_copies, 0);
    ot_device_unpin(device, host + 8192);
    ot_device_close(device);
    free(host);
    free(back);
}

static void a_refused_pin_leaves_nothing(void **state)
{
    (void)state;
    configure((fakecuda_options){.pin_bytes = 3 * MIB});
    ot_device *device = open_device(256 * MIB, 0);
    ot_stream *stream = open_stream(device, OT_STREAM_H2D, "h2d");
    unsigned char *host = open_host(NULL, 5 * MIB), *arena = open_arena(device, 5 * MIB);
    assert_int_equal(ot_device_pin(device, host, 5 * MIB), OT_ERR_DEVICE);
    says("stopped after 2 MiB of 5 MiB");
    says("ulimit -l");
    assert_int_equal(fakecuda_count().pinned_bytes, RING_BYTES);
    ot_copy_h2d(stream, arena, host, 5 * MIB); /* goes on through the ring */
    assert_int_equal(ot_stream_synchronize(stream), OT_OK);
    assert_int_equal(fakecuda_count().pageable_copies, 0);
    ot_device_close(device);
    assert_int_equal(fakecuda_count().pinned_bytes, 0);
    free(host);
}

/* Under WSL2 the same two failures have other causes. */
static void windows_takes_its_share(void **state)
{
    (void)state;
    char *root = tree_open();
    tree_write(root, "/proc/version",
               "Linux version 5.15.153.1-microsoft-standard-WSL2 (root@941d701f84f1)\n");
    configure((fakecuda_options){
        .root = root, .pin_bytes = 3 * MIB, .memory_bytes = 400 * MIB, .other_bytes = 200 * MIB});
    ot_device *device = open_device(300 * MIB, 0);
    unsigned char *host = open_host(NULL, 5 * MIB);
    assert_int_equal(ot_device_pin(device, host, 5 * MIB), OT_ERR_DEVICE);
    says("stopped after 2 MiB of 5 MiB");
    says("raise `memory` in .wslconfig");
    void *base;
    assert_int_equal(ot_device_arena_open(device, "places", 180 * MIB, &base), OT_ERR_FIT);
    says("the Windows desktop takes its share");
    ot_device_close(device);
    free(host);
    tree_close(root);
}

/* As the kernel says of the card's place on the bus; a machine of one node says -1, and one without NUMA nothing. */
static void a_device_knows_the_nearest_memory(void **state)
{
    (void)state;
    static const char *const texts[] = {"1\n", "-1\n", NULL};
    static const int nodes[] = {1, -1, -1};
    for (int i = 0; i < 3; i++) {
        char *root = tree_open();
        if (texts[i] != NULL)
            tree_write(root, "/sys/bus/pci/devices/0000:01:00.0/numa_node", texts[i]);
        configure((fakecuda_options){.root = root});
        ot_device *device = open_device(256 * MIB, 0);
        ot_device_info info;
        ot_device_query(device, &info);
        assert_int_equal(info.numa_node, nodes[i]);
        ot_device_close(device);
        tree_close(root);
    }
}

enum { N = 150000, BYTES = 4 * N, PAIRS = 8 };

/* Many slots, or a part of one, where the host's last part has nothing to hide behind. */
static size_t size_of_pair(int p)
{
    return p == 0 ? BYTES : 4000;
}

/* Both ways at the same time, on streams that share the two rings, behind work of other streams. */
static void memory_that_is_not_pinned_goes_through_a_ring(void **state)
{
    (void)state;
    fakecuda_options options = {0};
    float *host = open_host(NULL, BYTES), *back[PAIRS], *last[PAIRS];
    for (int p = 0; p < PAIRS; p++) {
        back[p] = open_host(NULL, BYTES);
        last[p] = open_host(NULL, BYTES);
    }
    FOR_EVERY_RUN(options)
    {
        ot_device *device = open_device(256 * MIB, 0);
        uint64_t before = fakecuda_count().host_syncs;
        for (int i = 0; i < N; i++)
            host[i] = (float)(i % 977 + (int)options.seed);
        for (int p = 0; p < PAIRS; p++) {
            ot_stream *in = open_stream(device, OT_STREAM_H2D, "in"),
                      *out = open_stream(device, OT_STREAM_D2H, "out");
            float *arena = open_arena(device, BYTES), *again = open_arena(device, BYTES);
            ot_event *event = open_event(device), *there = open_event(device);
            size_t bytes = size_of_pair(p);
            before = fakecuda_count().host_syncs;
            ot_copy_h2d(in, arena, host, bytes);
            ot_event_record(event, in);
            ot_stream_wait(out, event);
            ot_copy_d2h(out, back[p], arena, bytes);
            ot_event_record(there, out);
            ot_stream_wait(in, there); /* what follows on either side waits for the host's part, too */
            ot_copy_h2d(in, again, back[p], bytes);
            ot_copy_d2h(in, last[p], again, bytes);
            assert_int_equal(fakecuda_count().host_syncs, before);
        }
        if (ot_device_synchronize(device) != OT_OK)
            fail_msg("%s", ot_error_text());
        for (int p = 0; p < PAIRS; p++) {
            assert_memory_equal(back[p], host, size_of_pair(p));
            assert_memory_equal(last[p], host, size_of_pair(p));
        }
        assert_int_equal(fakecuda_count().pageable_copies, 0);
        ot_device_close(device);
    }
    for (int p = 0; p < PAIRS; p++) {
        free(back[p]);
        free(last[p]);
    }
    free(host);
}

static uint64_t told[8];
static int tellings;

static void tell(uint64_t done_bytes, uint64_t bytes)
{
    assert_int_equal(bytes, 5 * MIB / 2);
    told[tellings++ % 8] = done_bytes;
}

static void pinning_tells_of_each_piece(void **state)
{
    (void)state;
    configure((fakecuda_options){0});
    ot_device *device = open_device(256 * MIB, 0);
    unsigned char *host = open_host(NULL, 5 * MIB / 2);
    assert_int_equal(device->ops->pin(device, host, 5 * MIB / 2, tell), OT_OK);
    assert_int_equal(tellings, 3);
    assert_int_equal(told[0], MIB);
    assert_int_equal(told[2], 5 * MIB / 2);
    ot_device_unpin(device, host);
    ot_device_close(device);
    free(host);
}

/* ---- Failures ---- */

static ot_status break_down(void *context, ot_status before)
{
    (void)before;
    return ot_fail(OT_ERR_IO, "%s broke", (const char *)context);
}

typedef struct note {
    int calls;
    ot_status before;
} note;

static ot_status take_note(void *context, ot_status before)
{
    note *n = context;
    n->calls++;
    n->before = before;
    return OT_OK;
}

static void the_first_failure_sticks(void **state)
{
    (void)state;
    configure((fakecuda_options){0});
    ot_device *device = open_device(256 * MIB, 0);
    ot_stream *a = open_stream(device, OT_STREAM_H2D, "a"), *b = open_stream(device, OT_STREAM_D2H, "b");
    ot_event *event = open_event(device);
    note noted = {0};
    unsigned char *arena = open_arena(device, 4096), *host = open_host(device, 8192);
    memset(host, 1, 4096);
    ot_copy_h2d(a, arena, host, 4096);
    ot_stream_call(a, break_down, "drive 1");
    ot_stream_call(a, break_down, "drive 2");
    assert_int_equal(ot_stream_synchronize(a), OT_ERR_IO);
    says("stream a: drive 1 broke");
    ot_copy_zero(a, arena, 4096); /* skipped, like all that follows */
    ot_event_record(event, a);
    ot_stream_wait(b, event);
    ot_copy_d2h(b, host + 4096, arena, 4096);
    ot_stream_call(b, take_note, &noted);
    assert_int_equal(ot_stream_synchronize(b), OT_ERR_IO);
    assert_int_equal(noted.calls, 1);
    assert_int_equal(noted.before, OT_ERR_IO);
    assert_int_equal(host[4096], 0);
    assert_true(ot_event_reached(event));
    assert_int_equal(ot_device_status(device), OT_ERR_IO);
    assert_int_equal(ot_event_synchronize(event), OT_ERR_IO);
    assert_int_equal(ot_device_synchronize(device), OT_ERR_IO);
    ot_device_close(device);
    free(host);
}

/* The card dies in the middle: nobody waits for ever, each host function is called once, in order, with the failure. */
static void a_lost_card_leaves_nobody_waiting(void **state)
{
    (void)state;
    fakecuda_options options = {0};
    FOR_EVERY_RUN(options)
    {
        enum { CALLS = 40 };
        ot_device *device = open_device(256 * MIB, 0);
        ot_stream *a = open_stream(device, OT_STREAM_COMPUTE, "a"),
                  *b = open_stream(device, OT_STREAM_D2H, "b");
        ot_event *event = open_event(device);
        note notes[CALLS] = {{0}};
        float *arena = open_arena(device, 4096);
        fakecuda_fail("", 5, cudaErrorIllegalAddress);
        for (int i = 0; i < CALLS; i++) {
            ot_scale twice = {OT_FP32, 100, arena, 2};
            ot_device_kernels(device)->scale(a, &twice);
            ot_event_record(event, a);
            ot_stream_wait(b, event);
            ot_stream_call(i % 2 ? a : b, take_note, &notes[i]);
        }
        assert_int_equal(ot_device_synchronize(device), OT_ERR_DEVICE);
        says("touched memory that is not the device's");
        int failed = 0;
        for (int i = 0; i < CALLS; i++) {
            assert_int_equal(notes[i].calls, 1);
            failed += notes[i].before != OT_OK;
        }
        assert_true(failed >= CALLS / 2);
        assert_true(ot_event_reached(event));
        assert_int_equal(ot_event_synchronize(event), OT_ERR_DEVICE);
        note after = {0};
        ot_stream_call(a, take_note, &after);
        assert_int_equal(after.calls, 1);
        assert_int_equal(after.before, OT_ERR_DEVICE);
        ot_device_close(device);
    }
}

static void a_copy_to_the_wrong_memory_fails(void **state)
{
    (void)state;
    for (int which = 0; which < 3; which++) {
        configure((fakecuda_options){0});
        ot_device *device = open_device(256 * MIB, 0);
        ot_stream *stream = open_stream(device, OT_STREAM_H2D, "h2d");
        char *arena = open_arena(device, 2 * MIB), host[16] = "";
        if (which == 0)
            ot_copy_h2d(stream, host, host, sizeof host);
        else if (which == 1)
            ot_copy_d2h(stream, host, arena + 2 * MIB - 8, sizeof host);
        else
            ot_copy_d2d(stream, arena, host, sizeof host);
        assert_int_equal(ot_stream_synchronize(stream), OT_ERR_INTERNAL);
        says("not the memory it is for");
        ot_device_close(device);
    }
}

typedef struct again {
    ot_stream *stream;
    void *arena;
} again;

static ot_status enqueue_from_a_host_function(void *context, ot_status before)
{
    const again *a = context;
    ot_copy_zero(a->stream, a->arena, 16);
    return before;
}

static void a_host_function_must_not_enqueue(void **state)
{
    (void)state;
    configure((fakecuda_options){0});
    ot_device *device = open_device(256 * MIB, 0);
    again a = {open_stream(device, OT_STREAM_H2D, "h2d"), open_arena(device, 4096)};
    ot_stream_call(a.stream, enqueue_from_a_host_function, &a);
    assert_int_equal(ot_device_synchronize(device), OT_ERR_DEVICE);
    assert_true(fakecuda_count().refused > 0);
    ot_device_close(device);
}

static void arguments_that_make_no_sense_stick(void **state)
{
    (void)state;
    configure((fakecuda_options){0});
    ot_device *device = open_device(256 * MIB, 0);
    ot_stream *stream = open_stream(device, OT_STREAM_COMPUTE, "compute");
    ot_scale scale = {OT_INT8, 10, NULL, 2};
    ot_device_kernels(device)->scale(stream, &scale);
    assert_int_equal(ot_stream_synchronize(stream), OT_ERR_INTERNAL);
    says("scale: expected a dtype");
    ot_device_close(device);
}

/* ---- Words for what the driver says at the start ---- */

static void expect_refusal(const char *function, cudaError_t error, const char *text)
{
    ot_device *device;
    ot_device_options options = {.kind = "cuda", .memory_bytes = 256 * MIB};
    configure((fakecuda_options){0});
    fakecuda_fail(function, 0, error);
    assert_int_equal(ot_device_open(&options, &device), OT_ERR_DEVICE);
    says(text);
    options.kind = "auto"; /* falls back */
    configure((fakecuda_options){0});
    fakecuda_fail(function, 0, error);
    assert_int_equal(ot_device_open(&options, &device), OT_OK);
    ot_device_info info;
    ot_device_query(device, &info);
    assert_string_equal(info.kind, "cpu");
    ot_device_close(device);
}

static void the_drivers_refusals_have_words(void **state)
{
    (void)state;
    expect_refusal("cudaGetDeviceCount", cudaErrorInsufficientDriver, "this build needs 1");
    expect_refusal("cudaGetDeviceCount", cudaErrorNoDevice, "CUDA_VISIBLE_DEVICES");
    expect_refusal("cudaInitDevice", cudaErrorDevicesUnavailable, "exclusive mode");
    expect_refusal("cudaInitDevice", cudaErrorNoKernelImageForDevice, "no kernels for the GPU");
    expect_refusal("cudaInitDevice", cudaErrorMemoryAllocation, "out of GPU memory");
    expect_refusal("cublasCreate_v2", cudaErrorUnknown, "cuBLAS");
}

static void old_cards_and_missing_ones_are_refused(void **state)
{
    (void)state;
    ot_device *device;
    ot_device_options options = {.kind = "cuda", .memory_bytes = 256 * MIB};
    configure((fakecuda_options){.major = 7, .minor = 5});
    assert_int_equal(ot_device_open(&options, &device), OT_ERR_DEVICE);
    says("sm_75");
    options.ordinal = 2;
    configure((fakecuda_options){.devices = 2});
    assert_int_equal(ot_device_open(&options, &device), OT_ERR_USAGE);
    says("cuda:2: 2 GPUs are visible");
}

/* Every call of the driver fails once, at every time that it is made: a failure, never a crash or a wait. */
static void every_call_may_fail(void **state)
{
    (void)state;
    static const char *const functions[] = {"cudaGetDeviceCount",
                                            "cudaGetDeviceProperties",
                                            "cudaDeviceGetPCIBusId",
                                            "cudaInitDevice",
                                            "cudaSetDevice",
                                            "cudaDeviceGetStreamPriorityRange",
                                            "cudaStreamCreateWithPriority",
                                            "cublasCreate_v2",
                                            "cudaMalloc",
                                            "cudaMemsetAsync",
                                            "cudaStreamSynchronize",
                                            "cudaEventCreateWithFlags",
                                            "cudaMemcpyAsync",
                                            "cudaLaunchKernel",
                                            "cudaEventRecord",
                                            "cudaStreamWaitEvent",
                                            "cudaLaunchHostFunc",
                                            ""};
    for (size_t f = 0; f < sizeof functions / sizeof functions[0]; f++)
        for (uint64_t after = 0; after < 3; after++) {
            configure((fakecuda_options){0});
            fakecuda_fail(functions[f], after, cudaErrorLaunchFailure);
            ot_device *device = NULL;
            ot_device_options options = {.kind = "cuda", .memory_bytes = 256 * MIB};
            ot_stream_options stream_options = {.name = "test"};
            ot_stream *stream;
            ot_event *event;
            void *arena;
            note noted = {0};
            static char host[64];
            ot_status status = ot_device_open(&options, &device);
            if (status == OT_OK)
                status = ot_stream_open(device, &stream_options, &stream);
            if (status == OT_OK)
                status = ot_event_open(device, 0, &event);
            if (status == OT_OK)
                status = ot_device_arena_open(device, "test", 4096, &arena);
            if (status == OT_OK) {
                for (int i = 0; i < 3; i++) {
                    ot_scale twice = {OT_FP32, 16, arena, 2};
                    ot_copy_h2d(stream, arena, host, sizeof host);
                    ot_device_kernels(device)->scale(stream, &twice);
                    ot_event_record(event, stream);
                    ot_stream_wait(stream, event);
                    ot_stream_call(stream, take_note, &noted);
                }
                status = ot_device_synchronize(device);
                assert_int_equal(noted.calls, 3);
            }
            if (status != OT_OK && status != OT_ERR_DEVICE)
                fail_msg("%s, call %d: status %d, %s", functions[f], (int)after, status, ot_error_text());
            ot_device_close(device);
        }
}

int main(void)
{
    use_emulator();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_device_describes_itself),
        cmocka_unit_test(memory_is_capped_and_zero),
        cmocka_unit_test(other_processes_are_named),
        cmocka_unit_test(a_cap_below_the_context_is_refused),
        cmocka_unit_test(device_memory_is_closed_to_the_host),
        cmocka_unit_test(a_device_knows_the_nearest_memory),
        cmocka_unit_test(windows_takes_its_share),
        cmocka_unit_test(copies_cross_pinned_pieces),
        cmocka_unit_test(a_copy_may_be_pinned_in_part),
        cmocka_unit_test(a_refused_pin_leaves_nothing),
        cmocka_unit_test(memory_that_is_not_pinned_goes_through_a_ring),
        cmocka_unit_test(pinning_tells_of_each_piece),
        cmocka_unit_test(the_first_failure_sticks),
        cmocka_unit_test(a_lost_card_leaves_nobody_waiting),
        cmocka_unit_test(a_copy_to_the_wrong_memory_fails),
        cmocka_unit_test(a_host_function_must_not_enqueue),
        cmocka_unit_test(arguments_that_make_no_sense_stick),
        cmocka_unit_test(the_drivers_refusals_have_words),
        cmocka_unit_test(old_cards_and_missing_ones_are_refused),
        cmocka_unit_test(every_call_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
