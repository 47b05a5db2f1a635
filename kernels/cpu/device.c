/* The CPU device: memory under a cap of its own, and the team of threads that its streams share. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/text.h"
#include "kernels/cpu/state.h"

enum { QUEUE_LENGTH = 1024 };

/* ---- Memory ---- */

static ot_status over_cap(const cpu_device *device, const char *name, uint64_t bytes)
{
    char need[OT_SIZE_TEXT_BYTES], taken[OT_SIZE_TEXT_BYTES], cap[OT_SIZE_TEXT_BYTES];
    return ot_fail(
        OT_ERR_FIT,
        "arena %s needs %s of device memory, but %s of %s are taken; raise --gpu-mem or place less on the device",
        name, ot_format_size(bytes, need), ot_format_size(ot_host_bytes(device->host), taken),
        ot_format_size(ot_host_budget_bytes(device->host), cap));
}

static ot_status cpu_arena_open(ot_device *base, const char *name, uint64_t bytes, void **out)
{
    cpu_device *device = (cpu_device *)base;
    uint64_t cap = ot_host_budget_bytes(device->host), taken = ot_host_bytes(device->host);
    if (bytes > cap || taken > cap || ot_round_up(bytes, OT_HUGE_PAGE_BYTES) > cap - taken)
        return over_cap(device, name, bytes);
    for (int i = 0; i < OT_CPU_ARENAS_MAX; i++) {
        memory *slot = &device->memory[i];
        if (slot->arena != NULL)
            continue;
        OT_TRY(ot_arena_open(device->host, name, bytes, OT_PAGES_TRANSPARENT, &slot->arena));
        *out = ot_arena_base(slot->arena);
        atomic_store_explicit(&slot->begin, (uintptr_t)*out, memory_order_relaxed);
        atomic_store_explicit(&slot->end, (uintptr_t)*out + ot_arena_bytes(slot->arena),
                              memory_order_relaxed);
        return OT_OK;
    }
    return ot_fail(OT_ERR_INTERNAL, "arena %s: %d arenas are open already", name, OT_CPU_ARENAS_MAX);
}

static void close_memory(memory *slot)
{
    atomic_store_explicit(&slot->begin, 0, memory_order_relaxed);
    atomic_store_explicit(&slot->end, 0, memory_order_relaxed);
    ot_arena_close(slot->arena);
    slot->arena = NULL;
}

static void cpu_arena_close(ot_device *base, void *pointer)
{
    cpu_device *device = (cpu_device *)base;
    for (int i = 0; i < OT_CPU_ARENAS_MAX; i++)
        if (device->memory[i].arena != NULL && ot_arena_base(device->memory[i].arena) == pointer)
            close_memory(&device->memory[i]);
}

static uint64_t cpu_bytes(const ot_device *device)
{
    return ot_host_bytes(((const cpu_device *)device)->host);
}

static uint64_t cpu_peak_bytes(const ot_device *device)
{
    return ot_host_peak_bytes(((const cpu_device *)device)->host);
}

/* Copies are the workers' memcpy: any host memory is as good as pinned. */
static ot_status cpu_pin(ot_device *device, void *base, uint64_t bytes, ot_pin_progress *progress)
{
    (void)progress;
    (void)device;
    (void)base;
    (void)bytes;
    return OT_OK;
}

static void cpu_unpin(ot_device *device, void *base)
{
    (void)device;
    (void)base;
}

/* ---- The device ---- */

static void read_processor_name(char *out, size_t bytes)
{
    snprintf(out, bytes, "CPU");
    FILE *file = fopen("/proc/cpuinfo", "re");
    if (file == NULL)
        return;
    char line[256];
    while (fgets(line, sizeof line, file) != NULL) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) == 0 && colon != NULL) {
            snprintf(out, bytes, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
            break;
        }
    }
    fclose(file);
}

static void cpu_query(const ot_device *base, ot_device_info *out)
{
    const cpu_device *device = (const cpu_device *)base;
    *out = (ot_device_info){
        .memory_bytes = ot_host_budget_bytes(device->host),
        .total_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE),
        .dtypes = 1u << OT_FP32 | 1u << OT_BF16 | 1u << OT_FP16,
        .native_dtypes = 1u << OT_FP32,
        .units = ot_team_count(device->team),
        .copy_lanes = 2,
        .host_memory = 1,
        .numa_node = -1,
    };
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512bf16"))
        out->native_dtypes |= 1u << OT_BF16;
#endif
    snprintf(out->kind, sizeof out->kind, "cpu");
    snprintf(out->isa, sizeof out->isa, "%s", device->variant->name);
    read_processor_name(out->name, sizeof out->name);
}

int ot_cpu_device_threads(const ot_device *device)
{
    return ot_team_count(((const cpu_device *)device)->team);
}

static void cpu_close(ot_device *base)
{
    cpu_device *device = (cpu_device *)base;
    while (device->streams != NULL)
        ot_cpu_stream_close(&device->streams->base);
    while (device->events != NULL)
        ot_cpu_event_close(&device->events->base);
    ot_team_close(device->team);
    ot_onednn_close(device->onednn);
    ot_host_close(device->host);
    pthread_mutex_destroy(&device->team_lock);
    pthread_mutex_destroy(&device->error_lock);
    free(device);
}

static ot_status cpu_open(const ot_device_options *options, ot_device **out);

static const ot_device_ops cpu_ops = {
    .version = OT_BACKEND_VERSION,
    .kind = "cpu",
    .open = cpu_open,
    .close = cpu_close,
    .query = cpu_query,
    .arena_open = cpu_arena_open,
    .arena_close = cpu_arena_close,
    .bytes = cpu_bytes,
    .peak_bytes = cpu_peak_bytes,
    .pin = cpu_pin,
    .unpin = cpu_unpin,
    .stream_open = ot_cpu_stream_open,
    .stream_close = ot_cpu_stream_close,
    .stream_synchronize = ot_cpu_stream_synchronize,
    .synchronize = ot_cpu_synchronize,
    .status = ot_cpu_status,
    .copy_h2d = ot_cpu_copy_h2d,
    .copy_d2h = ot_cpu_copy_d2h,
    .copy_d2d = ot_cpu_copy_d2d,
    .copy_zero = ot_cpu_copy_zero,
    .stream_call = ot_cpu_stream_call,
    .event_open = ot_cpu_event_open,
    .event_close = ot_cpu_event_close,
    .event_record = ot_cpu_event_record,
    .stream_wait = ot_cpu_stream_wait,
    .event_reached = ot_cpu_event_reached,
    .event_synchronize = ot_cpu_event_synchronize,
    .event_elapsed_ns = ot_cpu_event_elapsed_ns,
};

const ot_device_ops *ot_cpu_backend(void)
{
    return &cpu_ops;
}

static uint32_t power_of_two(size_t n)
{
    uint32_t power = 2;
    while (power < n && power < 1u << 20)
        power *= 2;
    return power;
}

static ot_status cpu_open(const ot_device_options *options, ot_device **out)
{
    ot_status status = OT_OK;
    const ot_variant *variant = ot_variant_find(options->isa);
    if (variant == NULL)
        return ot_fail(
            OT_ERR_USAGE,
            "instruction set %s: unknown, or this processor does not have it; use baseline, avx2 or avx512",
            options->isa);
    cpu_device *device = calloc(1, sizeof *device);
    if (device == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for the CPU device");
    device->base = (ot_device){&cpu_ops, &ot_kernels_cpu};
    device->variant = variant;
    device->queue_length = power_of_two(options->queue_length > 0 ? options->queue_length : QUEUE_LENGTH);
    device->jitter_seed = options->jitter_seed;
    device->jitter_ns = options->jitter_ns;
    pthread_mutex_init(&device->team_lock, NULL);
    pthread_mutex_init(&device->error_lock, NULL);
    OT_TRY_GOTO(ot_host_open(options->memory_bytes, &device->host), out);
    OT_TRY_GOTO(
        ot_team_open_near(options->threads, options->is_near ? options->numa_node : -1, &device->team), out);
    OT_TRY_GOTO(ot_onednn_open(&device->onednn), out);
    *out = &device->base;
    return OT_OK;
out:
    cpu_close(&device->base);
    return status;
}
