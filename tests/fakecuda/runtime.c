/* Cards, errors, planted failures and the counters. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fakecuda/state.h"

enum { CONTEXT_BYTES = 48 << 20 };

#define MEMORY_BYTES (UINT64_C(4) << 30)

fake_state fake;

static _Thread_local int current_device, in_host_function;
static _Thread_local cudaError_t last_error;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Atomic int contexts; /* bit d: card d has one */

static struct {
    _Atomic(const char *) function; /* NULL: none */
    _Atomic int64_t after;
    cudaError_t error;
} planted;

static void fill_defaults(void)
{
    if (fake.options.devices == 0)
        fake.options.devices = 1;
    if (fake.options.devices > FAKE_CARDS_MAX)
        abort();
    if (fake.options.major == 0)
        fake.options.major = 8, fake.options.minor = 9;
    if (fake.options.memory_bytes == 0)
        fake.options.memory_bytes = MEMORY_BYTES;
}

static void read_environment(void)
{
    const char *seed = getenv("FAKECUDA_SEED"), *threads = getenv("FAKECUDA_THREADS"),
               *devices = getenv("FAKECUDA_DEVICES");
    fake.options.devices = devices != NULL ? atoi(devices) : 0;
    fake.options.seed = seed != NULL ? strtoull(seed, NULL, 10) : 1;
    fake.options.threads = threads != NULL && strcmp(threads, "1") == 0;
    fill_defaults();
    fake_restart();
}

void fakecuda_configure(const fakecuda_options *options)
{
    pthread_once(&once, read_environment);
    fake.options = *options;
    fill_defaults();
    if (fake.lost != 0)
        fake_forget_pins();
    fake.lost = fake.damaged = 0;
    planted.function = NULL;
    for (; contexts != 0; contexts &= contexts - 1)
        fake_give_bytes_of(__builtin_ctz((unsigned)contexts), CONTEXT_BYTES);
    fake.calls = fake.kernels = fake.products = fake.host_syncs = fake.pageable_copies = fake.refused = 0;
    fake.h2d_bytes = fake.d2h_bytes = fake.d2d_bytes = 0;
    fake.device_peak_bytes = fake.device_bytes;
    fake_restart();
}

const char *fakecuda_root(void)
{
    return fake.options.root != NULL ? fake.options.root : "";
}

fakecuda_counters fakecuda_count(void)
{
    return (fakecuda_counters){
        .calls = fake.calls,
        .kernels = fake.kernels,
        .products = fake.products,
        .host_syncs = fake.host_syncs,
        .pageable_copies = fake.pageable_copies,
        .refused = fake.refused,
        .h2d_bytes = fake.h2d_bytes,
        .d2h_bytes = fake.d2h_bytes,
        .d2d_bytes = fake.d2d_bytes,
        .device_bytes = fake.device_bytes,
        .device_peak_bytes = fake.device_peak_bytes,
        .pinned_bytes = fake.pinned_bytes,
    };
}

uint64_t fakecuda_card_bytes(int card)
{
    return fake.card_bytes[card];
}

/* ---- Failures ---- */

void fakecuda_fail(const char *function, uint64_t after, cudaError_t error)
{
    planted.error = error;
    planted.after = (int64_t)after;
    planted.function = function;
}

void fakecuda_damage(int rank)
{
    fake.damaged = rank + 1;
}

static cudaError_t planted_for(const char *function)
{
    const char *wanted = planted.function;
    if (wanted == NULL || strcmp(wanted, function) != 0 || atomic_fetch_sub(&planted.after, 1) != 0)
        return cudaSuccess;
    return planted.error;
}

cudaError_t fake_execution_fault(void)
{
    return planted_for("");
}

cudaError_t fake_fail(cudaError_t error)
{
    if (error != cudaSuccess)
        last_error = error;
    return error;
}

cudaError_t fake_enter(const char *function)
{
    pthread_once(&once, read_environment);
    fake_add(&fake.calls, 1);
    if (in_host_function) {
        fake_add(&fake.refused, 1);
        fprintf(stderr, "fakecuda: %s is called from a host function\n", function);
        return fake_fail(cudaErrorNotPermitted);
    }
    cudaError_t error = planted_for(function);
    return fake_fail(error != cudaSuccess ? error : (cudaError_t)atomic_load(&fake.lost));
}

void fake_in_host_function(int inside)
{
    in_host_function = inside;
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last_error;
    last_error = (cudaError_t)atomic_load(&fake.lost);
    return error;
}

cudaError_t cudaPeekAtLastError(void)
{
    return last_error != cudaSuccess ? last_error : (cudaError_t)atomic_load(&fake.lost);
}

const char *cudaGetErrorName(cudaError_t error)
{
    static _Thread_local char name[32];
    snprintf(name, sizeof name, "cudaError%d", (int)error);
    return name;
}

const char *cudaGetErrorString(cudaError_t error)
{
    return error == cudaSuccess ? "no error" : "a planted failure";
}

/* ---- Cards ---- */

int fake_current_device(void)
{
    return current_device;
}

int fake_stream_usable(cudaStream_t stream)
{
    if (stream != NULL && stream != cudaStreamLegacy && stream != cudaStreamPerThread &&
        stream->device == current_device)
        return 1;
    fake_add(&fake.refused, 1);
    fprintf(stderr, "fakecuda: %s\n",
            stream == NULL ? "use of the NULL stream" : "use of a stream of another device, or of none");
    return 0;
}

static cudaError_t make_context(int device)
{
    int bit = (int)(1u << device), before = current_device;
    if (atomic_fetch_or(&contexts, bit) & bit)
        return cudaSuccess;
    current_device = device;
    int fits = fake_take_bytes(CONTEXT_BYTES);
    current_device = before;
    if (fits)
        return cudaSuccess;
    atomic_fetch_and(&contexts, ~bit);
    return cudaErrorMemoryAllocation;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    FAKE_ENTER();
    *count = fake.options.devices;
    return cudaSuccess;
}

static int exists(int device)
{
    return device >= 0 && device < fake.options.devices;
}

cudaError_t cudaSetDevice(int device)
{
    FAKE_ENTER();
    if (!exists(device))
        return fake_fail(cudaErrorInvalidDevice);
    current_device = device;
    return fake_fail(make_context(device));
}

cudaError_t cudaInitDevice(int device, unsigned int device_flags, unsigned int flags)
{
    FAKE_ENTER();
    (void)device_flags;
    (void)flags;
    return fake_fail(exists(device) ? make_context(device) : cudaErrorInvalidDevice);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int device)
{
    FAKE_ENTER();
    if (!exists(device))
        return fake_fail(cudaErrorInvalidDevice);
    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, "Emulated GPU %d", device);
    out->totalGlobalMem = fake.options.memory_bytes;
    out->major = fake.options.major;
    out->minor = fake.options.minor;
    out->multiProcessorCount = 4;
    out->asyncEngineCount = 2;
    out->pciBusID = device + 1;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *out, int bytes, int device)
{
    FAKE_ENTER();
    snprintf(out, (size_t)bytes, "0000:%02X:00.0", device + 1);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    FAKE_ENTER();
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    FAKE_ENTER();
    *total_bytes = fake.options.memory_bytes;
    *free_bytes = fake.options.memory_bytes - fake.options.other_bytes - fake.card_bytes[current_device];
    return cudaSuccess;
}
