/* Device memory under the hard cap, and pinned host memory.
 *
 * One cudaMalloc an arena; where within it each slot lies is for the caller. The cap also holds what context and
 * libraries take (own_bytes). Host memory is registered in pieces, so that a refusal comes early and leaves nothing
 * behind; copies are cut where the pieces meet. What is not pinned goes through a ring (stage.c). */
#include <string.h>

#include "io/host.h"
#include "io/sysfile.h"
#include "io/text.h"
#include "kernels/cuda/state.h"

static int overlap(uintptr_t begin, uintptr_t end, uintptr_t first, uintptr_t last)
{
    return begin < last && end > first;
}

/* ---- Arenas ---- */

uint64_t ot_cuda_bytes(const ot_device *base)
{
    const cuda_device *device = (const cuda_device *)base;
    return device->own_bytes + device->arena_bytes;
}

uint64_t ot_cuda_peak_bytes(const ot_device *base)
{
    return ((const cuda_device *)base)->peak_bytes;
}

static ot_status over_cap(const cuda_device *device, const char *name, uint64_t bytes)
{
    char need[OT_SIZE_TEXT_BYTES], taken[OT_SIZE_TEXT_BYTES], own[OT_SIZE_TEXT_BYTES],
        cap[OT_SIZE_TEXT_BYTES];
    return ot_fail(
        OT_ERR_FIT,
        "arena %s needs %s of device memory, but %s of %s are taken, %s of them by the CUDA context; raise "
        "--gpu-mem or place less on the device",
        name, ot_format_size(bytes, need), ot_format_size(ot_cuda_bytes(&device->base), taken),
        ot_format_size(device->cap_bytes, cap), ot_format_size(device->own_bytes, own));
}

/* The card is fuller than the cap lets expect. */
static ot_status card_full(const cuda_device *device, const char *name, uint64_t bytes)
{
    size_t free_bytes = 0, total_bytes = 0;
    (void)cudaGetLastError();
    (void)cudaMemGetInfo(&free_bytes, &total_bytes);
    uint64_t ours = ot_cuda_bytes(&device->base), used = total_bytes - free_bytes;
    char need[OT_SIZE_TEXT_BYTES], have[OT_SIZE_TEXT_BYTES], all[OT_SIZE_TEXT_BYTES],
        others[OT_SIZE_TEXT_BYTES];
    return ot_fail(
        OT_ERR_FIT,
        "arena %s needs %s, but %s has %s of %s free; other processes hold about %s of it (nvidia-smi lists "
        "them): end them or lower --gpu-mem%s",
        name, ot_format_size(bytes, need), device->properties.name, ot_format_size(free_bytes, have),
        ot_format_size(total_bytes, all), ot_format_size(used > ours ? used - ours : 0, others),
        ot_sysfile_wsl(OT_CUDA_ROOT) ? "; under WSL2 the Windows desktop takes its share" : "");
}

/* On a stream of its own, which is waited for: the NULL stream would order itself with all others. */
static ot_status zero(void *block, uint64_t bytes, const char *name)
{
    cudaStream_t stream;
    cudaError_t code = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (code != cudaSuccess)
        return ot_cuda_error(code, name);
    code = cudaMemsetAsync(block, 0, bytes, stream);
    cudaError_t end = cudaStreamSynchronize(stream);
    (void)cudaStreamDestroy(stream);
    return ot_cuda_error(code != cudaSuccess ? code : end, name);
}

/* A block aligned to a page, which the driver gives for whole large pages. */
static ot_status allocate(cuda_device *device, const char *name, uint64_t bytes, void **block)
{
    cudaError_t code = cudaMalloc(block, bytes);
    if (code == cudaErrorMemoryAllocation)
        return card_full(device, name, bytes);
    OT_TRY(ot_cuda_error(code, name));
    ot_status status = zero(*block, bytes, name);
    if (status == OT_OK && (uintptr_t)*block % OT_PAGE_BYTES != 0)
        status = ot_fail(OT_ERR_DEVICE, "arena %s: the driver gave %p, which is not aligned to 4096 bytes",
                         name, *block);
    if (status != OT_OK)
        (void)cudaFree(*block);
    return status;
}

ot_status ot_cuda_arena_open(ot_device *base, const char *name, uint64_t bytes, void **out)
{
    cuda_device *device = (cuda_device *)base;
    ot_cuda_enter(device);
    uint64_t taken = ot_cuda_bytes(base);
    if (bytes > device->cap_bytes || taken > device->cap_bytes ||
        ot_round_up(bytes, OT_HUGE_PAGE_BYTES) > device->cap_bytes - taken)
        return over_cap(device, name, bytes);
    bytes = ot_round_up(bytes > 0 ? bytes : 1, OT_HUGE_PAGE_BYTES);
    for (int i = 0; i < OT_CUDA_ARENAS_MAX; i++) {
        cuda_memory *slot = &device->memory[i];
        if (slot->block != NULL)
            continue;
        void *block;
        OT_TRY(allocate(device, name, bytes, &block));
        slot->block = *out = block;
        slot->bytes = bytes;
        device->arena_bytes += bytes;
        if (ot_cuda_bytes(base) > device->peak_bytes)
            device->peak_bytes = ot_cuda_bytes(base);
        atomic_store_explicit(&slot->begin, (uintptr_t)block, memory_order_relaxed);
        atomic_store_explicit(&slot->end, (uintptr_t)block + bytes, memory_order_relaxed);
        return OT_OK;
    }
    return ot_fail(OT_ERR_INTERNAL, "arena %s: %d arenas are open already", name, OT_CUDA_ARENAS_MAX);
}

static void close_memory(cuda_device *device, cuda_memory *slot)
{
    atomic_store_explicit(&slot->begin, 0, memory_order_relaxed);
    atomic_store_explicit(&slot->end, 0, memory_order_relaxed);
    (void)cudaFree(slot->block);
    device->arena_bytes -= slot->bytes;
    slot->block = NULL;
}

void ot_cuda_arena_close(ot_device *base, void *pointer)
{
    cuda_device *device = (cuda_device *)base;
    ot_cuda_enter(device);
    for (int i = 0; i < OT_CUDA_ARENAS_MAX; i++)
        if (device->memory[i].block == pointer)
            close_memory(device, &device->memory[i]);
}

int ot_cuda_in_device(cuda_device *device, const void *pointer, size_t bytes)
{
    uintptr_t begin = (uintptr_t)pointer, end = begin + bytes;
    for (int i = 0; i < OT_CUDA_ARENAS_MAX; i++) {
        uintptr_t first = atomic_load_explicit(&device->memory[i].begin, memory_order_relaxed);
        uintptr_t last = atomic_load_explicit(&device->memory[i].end, memory_order_relaxed);
        if (begin >= first && end <= last)
            return 1;
        if (overlap(begin, end, first, last))
            return -1;
    }
    return 0;
}

/* ---- Pinning ---- */

static void unregister(uintptr_t begin, uintptr_t end)
{
    for (; begin < end; begin += OT_CUDA_PIN_PIECE_BYTES)
        (void)cudaHostUnregister((void *)begin);
}

ot_status ot_cuda_pin_refused(uint64_t done, uint64_t bytes, cudaError_t code)
{
    char some[OT_SIZE_TEXT_BYTES], all[OT_SIZE_TEXT_BYTES];
    (void)cudaGetLastError();
    return ot_fail(OT_ERR_DEVICE, "pinning host memory stopped after %s of %s: %s (%d); %s",
                   ot_format_size(done, some), ot_format_size(bytes, all), cudaGetErrorName(code), (int)code,
                   ot_sysfile_wsl(OT_CUDA_ROOT)
                       ? "WSL2 pins only about half of the memory it has: raise `memory` in .wslconfig"
                       : "lower --host-mem, or raise the limit on locked memory (ulimit -l)");
}

ot_status ot_cuda_pin(ot_device *base, void *pointer, uint64_t bytes, ot_pin_progress *progress)
{
    cuda_device *device = (cuda_device *)base;
    ot_cuda_enter(device);
    uintptr_t begin = (uintptr_t)pointer, end = begin + bytes;
    cuda_pin *slot = NULL;
    for (int i = 0; i < OT_CUDA_PINS_MAX && slot == NULL; i++)
        if (atomic_load_explicit(&device->pins[i].end, memory_order_relaxed) == 0)
            slot = &device->pins[i];
    if (slot == NULL)
        return ot_fail(OT_ERR_INTERNAL, "%d pieces of host memory are pinned already", OT_CUDA_PINS_MAX);
    for (uintptr_t at = begin; at < end; at += OT_CUDA_PIN_PIECE_BYTES) {
        size_t piece = end - at < OT_CUDA_PIN_PIECE_BYTES ? end - at : OT_CUDA_PIN_PIECE_BYTES;
        cudaError_t code = cudaHostRegister((void *)at, piece, cudaHostRegisterDefault);
        if (code != cudaSuccess) {
            unregister(begin, at);
            return ot_cuda_pin_refused(at - begin, bytes, code);
        }
        if (progress != NULL)
            progress(at + piece - begin, bytes);
    }
    atomic_store_explicit(&slot->begin, begin, memory_order_relaxed);
    atomic_store_explicit(&slot->end, end, memory_order_relaxed);
    return OT_OK;
}

static void close_pin(cuda_pin *slot)
{
    unregister(atomic_load_explicit(&slot->begin, memory_order_relaxed),
               atomic_load_explicit(&slot->end, memory_order_relaxed));
    atomic_store_explicit(&slot->begin, 0, memory_order_relaxed);
    atomic_store_explicit(&slot->end, 0, memory_order_relaxed);
}

void ot_cuda_unpin(ot_device *base, void *pointer)
{
    cuda_device *device = (cuda_device *)base;
    ot_cuda_enter(device);
    for (int i = 0; i < OT_CUDA_PINS_MAX; i++)
        if (atomic_load_explicit(&device->pins[i].begin, memory_order_relaxed) == (uintptr_t)pointer &&
            atomic_load_explicit(&device->pins[i].end, memory_order_relaxed) != 0)
            close_pin(&device->pins[i]);
}

size_t ot_cuda_copy_piece(cuda_device *device, const void *pointer, size_t bytes, int *pinned)
{
    uintptr_t begin = (uintptr_t)pointer, end = begin + bytes;
    for (int i = 0; i < OT_CUDA_PINS_MAX; i++) {
        uintptr_t first = atomic_load_explicit(&device->pins[i].begin, memory_order_relaxed);
        uintptr_t last = atomic_load_explicit(&device->pins[i].end, memory_order_relaxed);
        if (!overlap(begin, end, first, last))
            continue;
        *pinned = begin >= first;
        uintptr_t edge =
            begin < first ? first
                          : first + ((begin - first) / OT_CUDA_PIN_PIECE_BYTES + 1) * OT_CUDA_PIN_PIECE_BYTES;
        if (edge > last)
            edge = last;
        return edge < end ? edge - begin : bytes;
    }
    *pinned = 0;
    return bytes;
}

void ot_cuda_release_memory(cuda_device *device)
{
    for (int i = 0; i < OT_CUDA_PINS_MAX; i++)
        if (atomic_load_explicit(&device->pins[i].end, memory_order_relaxed) != 0)
            close_pin(&device->pins[i]);
    for (int i = 0; i < OT_CUDA_ARENAS_MAX; i++)
        if (device->memory[i].block != NULL)
            close_memory(device, &device->memory[i]);
    for (int i = 0; i < 2; i++)
        ot_cuda_stage_close(&device->stages[i]);
}
