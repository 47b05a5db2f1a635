/* Opens the emulated CUDA device for the tests in this folder. */
#ifndef OT_TESTS_CUDA_EMULATOR_H
#define OT_TESTS_CUDA_EMULATOR_H

#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"
#include "tests/fakecuda/fakecuda.h"
#include "tests/support/test.h"

#define MIB (UINT64_C(1) << 20)

/* What the emulated device pins for itself: both directions' rings (cuda.cmake, kernels/cuda/stage.c). */
#define RING_BYTES UINT64_C(262144)

/* Both ways to run, each with seeds of its own. ThreadSanitizer sees through threads only. */
enum { SEEDS = 8 };
#if defined(__SANITIZE_THREAD__)
enum { FIRST_MODE = 1 };
#else
enum { FIRST_MODE = 0 };
#endif

#define FOR_EVERY_RUN(options)                                                                               \
    for (int mode_ = FIRST_MODE; mode_ < 2; mode_++)                                                         \
        for (uint64_t seed_ = 1; seed_ <= SEEDS; seed_++)                                                    \
            if ((options).threads = mode_, (options).seed = seed_, fakecuda_configure(&(options)), 1)

static inline void says(const char *text)
{
    if (strstr(ot_error_text(), text) == NULL)
        fail_msg("\"%s\" is not in \"%s\"", text, ot_error_text());
}

static inline ot_device *open_device(uint64_t cap, int ordinal)
{
    ot_device *device;
    ot_device_options options = {.kind = "cuda", .memory_bytes = cap, .ordinal = ordinal};
    if (ot_device_open(&options, &device) != OT_OK)
        fail_msg("%s", ot_error_text());
    return device;
}

static inline ot_stream *open_stream(ot_device *device, ot_stream_kind kind, const char *name)
{
    ot_stream *stream;
    ot_stream_options options = {.kind = kind, .name = name};
    if (ot_stream_open(device, &options, &stream) != OT_OK)
        fail_msg("%s", ot_error_text());
    return stream;
}

static inline ot_event *open_event(ot_device *device)
{
    ot_event *event;
    assert_int_equal(ot_event_open(device, 1, &event), OT_OK);
    return event;
}

static inline void *open_arena(ot_device *device, uint64_t bytes)
{
    void *base;
    if (ot_device_arena_open(device, "test", bytes, &base) != OT_OK)
        fail_msg("%s", ot_error_text());
    return base;
}

/* Whole pages of host memory, pinned where there is a device. */
static inline void *open_host(ot_device *device, size_t bytes)
{
    size_t rounded = (bytes + 4095) / 4096 * 4096;
    void *base = aligned_alloc(4096, rounded);
    assert_non_null(base);
    memset(base, 0, rounded);
    if (device != NULL && ot_device_pin(device, base, rounded) != OT_OK)
        fail_msg("%s", ot_error_text());
    return base;
}

static inline void use_emulator(void)
{
    setenv("OFFTRAIN_CUDA_PLUGIN", OT_CUDA_PLUGIN, 1);
}

#endif
