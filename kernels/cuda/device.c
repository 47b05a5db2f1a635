/* The CUDA device: which card, its context, and the table that the plugin exports. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/host.h"
#include "io/sysfile.h"
#include "io/text.h"
#include "kernels/cuda/state.h"

/* The context takes so much where nobody tells how much it is: measured on cards of 24 GiB, and rounded up. What it
 * loads later, on a kernel's first use, comes on top of what is measured. */
#define CONTEXT_BYTES (UINT64_C(512) << 20)
#define LATER_BYTES (UINT64_C(32) << 20)

/* COMMUNICATOR_BYTES: what NCCL takes with a few cards, rounded up; what it has taken is measured when it has
 * been opened. Of several ranks all should come to the same sum, whose plans are then alike. */
#define COMMUNICATOR_BYTES (UINT64_C(256) << 20)
#define LEVEL_BYTES (UINT64_C(64) << 20)

enum { CARDS_MAX = 64 };

/* NVIDIA's advice for cuBLAS. */
#define WORKSPACE_BYTES (UINT64_C(4) << 20)
#define WORKSPACE_BYTES_SM90 (UINT64_C(32) << 20)

void ot_cuda_enter(const cuda_device *device)
{
    static _Thread_local int current = -1;
    if (current == device->ordinal)
        return;
    if (cudaSetDevice(device->ordinal) == cudaSuccess)
        current = device->ordinal;
}

/* The kernel's number for the memory nearest to the card; -1 where it has none. */
static int numa_node(const cuda_device *device)
{
    char path[96];
    uint64_t node;
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/numa_node", device->bus_id);
    return ot_sysfile_number(OT_CUDA_ROOT, path, &node) ? (int)node : -1;
}

static void cuda_query(const ot_device *base, ot_device_info *out)
{
    const cuda_device *device = (const cuda_device *)base;
    const struct cudaDeviceProp *p = &device->properties;
    const uint32_t all = 1u << OT_FP32 | 1u << OT_BF16 | 1u << OT_FP16;
    *out = (ot_device_info){
        .memory_bytes = device->cap_bytes,
        .total_bytes = p->totalGlobalMem,
        .own_bytes = device->own_bytes,
        .dtypes = all,
        .native_dtypes = all,
        .units = p->multiProcessorCount,
        .copy_lanes = p->asyncEngineCount > 1 ? 2 : 1,
        .numa_node = numa_node(device),
    };
    snprintf(out->kind, sizeof out->kind, "cuda");
    snprintf(out->name, sizeof out->name, "%.127s", p->name);
    snprintf(out->isa, sizeof out->isa, "sm_%d%d", p->major, p->minor);
    snprintf(out->address, sizeof out->address, "%.31s", device->bus_id);
}

/* Also of a device that was opened in part. */
static void cuda_close(ot_device *base)
{
    cuda_device *device = (cuda_device *)base;
    if (device->streams != NULL || device->events != NULL)
        ot_cuda_enter(device);
    while (device->streams != NULL)
        ot_cuda_stream_close(&device->streams->base);
    while (device->events != NULL)
        ot_cuda_event_close(&device->events->base);
    ot_cuda_release_memory(device);
    pthread_mutex_destroy(&device->error_lock);
    pthread_mutex_destroy(&device->streams_lock);
    free(device);
}

/* ---- Opening ---- */

static ot_status find_card(cuda_device *device, int ordinal, int ranks)
{
    int count = 0;
    OT_TRY(ot_cuda_error(cudaGetDeviceCount(&count), "device cuda"));
    if (ranks > 1 && count == 1)
        ordinal =
            0; /* some launchers show each rank its own card alone; that two share one is seen when they join */
    if (ranks > 1 && ordinal >= count)
        return ot_fail(
            OT_ERR_USAGE,
            "%d ranks or more on this machine, of which %d GPUs are visible, one for each rank: use fewer "
            "--ranks, or make more visible (CUDA_VISIBLE_DEVICES)",
            ordinal + 1, count);
    if (ordinal < 0 || ordinal >= count)
        return ot_fail(OT_ERR_USAGE,
                       "device cuda:%d: %d GPU%s visible, numbered from 0 in the order of the bus", ordinal,
                       count, count == 1 ? " is" : "s are");
    device->ordinal = ordinal;
    struct cudaDeviceProp *p = &device->properties;
    OT_TRY(ot_cuda_error(cudaGetDeviceProperties(p, ordinal), "device cuda"));
    OT_TRY(
        ot_cuda_error(cudaDeviceGetPCIBusId(device->bus_id, (int)sizeof device->bus_id, ordinal), p->name));
    for (char *c = device->bus_id; *c != '\0'; c++) /* as the kernel writes it */
        *c = *c >= 'A' && *c <= 'F' ? (char)(*c - 'A' + 'a') : *c;
    if (p->major < 8)
        return ot_fail(
            OT_ERR_DEVICE,
            "%s (sm_%d%d): offtrain needs compute capability 8.0 or more, an Ampere card or a later one",
            p->name, p->major, p->minor);
    return OT_OK;
}

/* Contexts stay until the process ends, so only the first device on a card can tell what one takes. */
static _Atomic uint64_t context_bytes[CARDS_MAX];

/* What is in use now and was not before the context. */
static void measure_context(cuda_device *device, uint64_t before)
{
    _Atomic uint64_t *known = &context_bytes[device->ordinal % CARDS_MAX];
    uint64_t after = ot_cuda_used_bytes(device->bus_id);
    if (*known == 0)
        *known = before > 0 && after > before ? after - before + LATER_BYTES : CONTEXT_BYTES;
    device->own_bytes = *known + device->communicator_bytes;
    if (device->communicator_bytes > 0)
        device->own_bytes = ot_round_up(device->own_bytes, LEVEL_BYTES);
    device->peak_bytes = device->own_bytes;
}

static ot_status check_own_bytes(const cuda_device *device)
{
    if (ot_cuda_bytes(&device->base) <= device->cap_bytes)
        return OT_OK;
    char own[OT_SIZE_TEXT_BYTES], cap[OT_SIZE_TEXT_BYTES];
    return ot_fail(OT_ERR_FIT, "%s: the CUDA context%s alone takes %s, and --gpu-mem is %s",
                   device->properties.name, device->communicator_bytes > 0 ? " with NCCL" : "",
                   ot_format_size(device->own_bytes, own), ot_format_size(device->cap_bytes, cap));
}

ot_status ot_cuda_reserve(ot_device *base, uint64_t own_bytes)
{
    cuda_device *device = (cuda_device *)base;
    if (own_bytes > device->own_bytes)
        device->own_bytes = own_bytes;
    if (ot_cuda_bytes(base) > device->peak_bytes)
        device->peak_bytes = ot_cuda_bytes(base);
    return check_own_bytes(device);
}

/* Makes the context and finds out what it takes of the card, the library's part with it. */
static ot_status open_context(cuda_device *device)
{
    uint64_t before = ot_cuda_used_bytes(device->bus_id);
    OT_TRY(ot_cuda_error(
        cudaInitDevice(device->ordinal, cudaDeviceScheduleBlockingSync, cudaInitDeviceFlagsAreValid),
        device->properties.name));
    OT_TRY(ot_cuda_error(cudaSetDevice(device->ordinal), device->properties.name));
    OT_TRY(
        ot_cuda_error(cudaDeviceGetStreamPriorityRange(&device->lowest_priority, &device->highest_priority),
                      device->properties.name));
    OT_TRY(ot_cuda_stage_open(device, OT_STREAM_H2D, &device->stages[0]));
    OT_TRY(ot_cuda_stage_open(device, OT_STREAM_D2H, &device->stages[1]));
    ot_stream *stream;
    const ot_stream_options options = {.kind = OT_STREAM_COMPUTE, .name = "measurement"};
    OT_TRY(ot_cuda_stream_open(&device->base, &options, &stream));
    measure_context(device, before);
    ot_cuda_stream_close(stream);
    return check_own_bytes(device);
}

static ot_status cuda_open(const ot_device_options *options, ot_device **out);

static ot_error take_error(void)
{
    return ot_error_take();
}

static const ot_device_ops cuda_ops = {
    .version = OT_BACKEND_VERSION,
    .kind = "cuda",
    .error = take_error,
    .open = cuda_open,
    .close = cuda_close,
    .query = cuda_query,
    .arena_open = ot_cuda_arena_open,
    .arena_close = ot_cuda_arena_close,
    .bytes = ot_cuda_bytes,
    .peak_bytes = ot_cuda_peak_bytes,
    .pin = ot_cuda_pin,
    .unpin = ot_cuda_unpin,
    .stream_open = ot_cuda_stream_open,
    .stream_close = ot_cuda_stream_close,
    .stream_synchronize = ot_cuda_stream_synchronize,
    .synchronize = ot_cuda_synchronize,
    .status = ot_cuda_status,
    .copy_h2d = ot_cuda_copy_h2d,
    .copy_d2h = ot_cuda_copy_d2h,
    .copy_d2d = ot_cuda_copy_d2d,
    .copy_zero = ot_cuda_copy_zero,
    .stream_call = ot_cuda_stream_call,
    .event_open = ot_cuda_event_open,
    .event_close = ot_cuda_event_close,
    .event_record = ot_cuda_event_record,
    .stream_wait = ot_cuda_stream_wait,
    .event_reached = ot_cuda_event_reached,
    .event_synchronize = ot_cuda_event_synchronize,
    .event_elapsed_ns = ot_cuda_event_elapsed_ns,
    .communicator = &ot_cuda_communicator,
    .reserve = ot_cuda_reserve,
    .fail = ot_cuda_fail,
};

static ot_status cuda_open(const ot_device_options *options, ot_device **out)
{
    /* Cards are numbered as nvidia-smi does, unless the user wants otherwise. */
    setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID", 0);
    cuda_device *device = calloc(1, sizeof *device);
    if (device == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for the CUDA device");
    device->base = (ot_device){&cuda_ops, &ot_kernels_cuda};
    device->cap_bytes = options->memory_bytes;
    device->queue_length = options->queue_length;
    device->communicator_bytes = options->ranks > 1 ? COMMUNICATOR_BYTES : 0;
    pthread_mutex_init(&device->error_lock, NULL);
    pthread_mutex_init(&device->streams_lock, NULL);
    ot_status status = find_card(device, options->ordinal, options->ranks);
    if (status == OT_OK) {
        device->workspace_bytes = device->properties.major >= 9 ? WORKSPACE_BYTES_SM90 : WORKSPACE_BYTES;
        status = open_context(device);
    }
    if (status != OT_OK) {
        cuda_close(&device->base);
        return status;
    }
    *out = &device->base;
    return OT_OK;
}

/* The only symbol that the plugin exports. */
__attribute__((visibility("default"))) ot_backend_entry ot_backend;

ot_error (*_Atomic ot_program_error)(void); /* devices may be opened on several threads */

const ot_device_ops *ot_backend(uint32_t version, ot_error (*program_error)(void))
{
    atomic_store_explicit(&ot_program_error, program_error, memory_order_relaxed);
    return version == OT_BACKEND_VERSION ? &cuda_ops : NULL;
}
