/* Device memory, pinned host memory, and copies. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/fakecuda/state.h"

enum { BLOCKS_MAX = 256, PINS_MAX = 4096, GUARD_BYTES = 4096, BLOCK_UNIT = 4096 };

typedef struct range {
    char *base; /* NULL: free */
    size_t bytes;
} range;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static range blocks[BLOCKS_MAX], pins[PINS_MAX];
static int is_open;

/* ---- Device memory ---- */

int fake_take_bytes(uint64_t bytes)
{
    _Atomic uint64_t *card = &fake.card_bytes[fake_current_device()];
    if (atomic_fetch_add(card, bytes) + bytes > fake.options.memory_bytes - fake.options.other_bytes) {
        atomic_fetch_sub(card, bytes);
        return 0;
    }
    uint64_t taken = atomic_fetch_add(&fake.device_bytes, bytes) + bytes, peak = fake.device_peak_bytes;
    while (taken > peak && !atomic_compare_exchange_weak(&fake.device_peak_bytes, &peak, taken))
        ;
    return 1;
}

void fake_give_bytes_of(int card, uint64_t bytes)
{
    atomic_fetch_sub(&fake.card_bytes[card], bytes);
    atomic_fetch_sub(&fake.device_bytes, bytes);
}

void fake_give_bytes(uint64_t bytes)
{
    fake_give_bytes_of(fake_current_device(), bytes);
}

static void protect(const range *block, int open)
{
    int protection = open || fake.options.threads ? PROT_READ | PROT_WRITE : PROT_NONE;
    if (mprotect(block->base, block->bytes, protection) != 0) {
        perror("fakecuda: mprotect");
        abort();
    }
}

static void set_open(int open)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < BLOCKS_MAX && open != is_open; i++)
        if (blocks[i].base != NULL)
            protect(&blocks[i], open);
    is_open = open;
    pthread_mutex_unlock(&lock);
}

void fake_open_memory(void)
{
    set_open(1);
}

void fake_close_memory(void)
{
    set_open(0);
}

static range *find(range *ranges, int count, const void *base)
{
    for (int i = 0; i < count; i++)
        if (ranges[i].base == base)
            return &ranges[i];
    return NULL;
}

/* 1: all bytes in one range; 0: none; -1: some, or in several. */
static int inside(const range *ranges, int count, const void *pointer, size_t bytes)
{
    const char *begin = pointer, *end = begin + bytes;
    int result = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < count && result == 0; i++) {
        const range *r = &ranges[i];
        if (r->base == NULL)
            continue;
        if (begin >= r->base && end <= r->base + r->bytes)
            result = 1;
        else if (begin < r->base + r->bytes && end > r->base)
            result = -1;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

int fake_in_block(const void *pointer, size_t bytes)
{
    return inside(blocks, BLOCKS_MAX, pointer, bytes) == 1;
}

cudaError_t cudaMalloc(void **out, size_t bytes)
{
    FAKE_ENTER();
    size_t rounded = (bytes + BLOCK_UNIT - 1) / BLOCK_UNIT * BLOCK_UNIT;
    if (!fake_take_bytes(rounded))
        return fake_fail(cudaErrorMemoryAllocation);
    char *mapping =
        mmap(NULL, rounded + 2 * GUARD_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    pthread_mutex_lock(&lock);
    range *slot = find(blocks, BLOCKS_MAX, NULL);
    if (mapping == MAP_FAILED || slot == NULL) {
        fprintf(stderr, "fakecuda: no room for another block\n");
        abort();
    }
    *slot = (range){mapping + GUARD_BYTES, rounded};
    (void)!mprotect(slot->base, rounded, PROT_READ | PROT_WRITE);
    memset(slot->base, 0xff, rounded); /* NaN in every format */
    protect(slot, is_open);
    *out = slot->base;
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

cudaError_t cudaFree(void *pointer)
{
    FAKE_ENTER();
    if (pointer == NULL)
        return cudaSuccess;
    fake_add(&fake.host_syncs, 1);
    fake_wait_card();
    pthread_mutex_lock(&lock);
    range *slot = find(blocks, BLOCKS_MAX, pointer);
    size_t bytes = slot != NULL ? slot->bytes : 0;
    if (slot != NULL) {
        munmap(slot->base - GUARD_BYTES, bytes + 2 * GUARD_BYTES);
        slot->base = NULL;
    }
    pthread_mutex_unlock(&lock);
    fake_give_bytes(bytes);
    return fake_fail(slot != NULL ? cudaSuccess : cudaErrorInvalidValue);
}

/* ---- Pinned memory ---- */

cudaError_t cudaHostRegister(void *pointer, size_t bytes, unsigned int flags)
{
    FAKE_ENTER();
    (void)flags;
    if (bytes == 0)
        return fake_fail(cudaErrorInvalidValue);
    if (inside(pins, PINS_MAX, pointer, bytes) != 0)
        return fake_fail(cudaErrorHostMemoryAlreadyRegistered);
    if (fake.options.pin_bytes > 0 && fake.pinned_bytes + bytes > fake.options.pin_bytes)
        return fake_fail(cudaErrorMemoryAllocation);
    pthread_mutex_lock(&lock);
    range *slot = find(pins, PINS_MAX, NULL);
    if (slot != NULL) {
        *slot = (range){pointer, bytes};
        fake_add(&fake.pinned_bytes, bytes);
    }
    pthread_mutex_unlock(&lock);
    return fake_fail(slot != NULL ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaHostUnregister(void *pointer)
{
    FAKE_ENTER();
    pthread_mutex_lock(&lock);
    range *slot = pointer != NULL ? find(pins, PINS_MAX, pointer) : NULL;
    if (slot != NULL) {
        atomic_fetch_sub(&fake.pinned_bytes, slot->bytes);
        slot->base = NULL;
    }
    pthread_mutex_unlock(&lock);
    return fake_fail(slot != NULL ? cudaSuccess : cudaErrorHostMemoryNotRegistered);
}

void fake_forget_pins(void)
{
    pthread_mutex_lock(&lock);
    memset(pins, 0, sizeof pins);
    fake.pinned_bytes = 0;
    pthread_mutex_unlock(&lock);
}

/* ---- Copies ---- */

typedef struct copy_args {
    void *dst;
    const void *src; /* NULL: fill */
    size_t bytes;
    int value;
    int owned; /* src is ours */
} copy_args;

static cudaError_t run_copy(void *args)
{
    copy_args *copy = args;
    if (copy->src != NULL)
        memcpy(copy->dst, copy->src, copy->bytes);
    else
        memset(copy->dst, copy->value, copy->bytes);
    if (copy->owned)
        free((void *)(uintptr_t)copy->src);
    return cudaSuccess;
}

/* The driver takes memory that is not pinned at once, by a buffer of its own. */
static cudaError_t copy_pageable(cudaStream_t stream, copy_args copy, enum cudaMemcpyKind kind)
{
    fake_add(&fake.pageable_copies, 1);
    if (kind == cudaMemcpyHostToDevice) {
        void *staged = malloc(copy.bytes);
        if (staged == NULL)
            abort();
        copy.src = memcpy(staged, copy.src, copy.bytes);
        copy.owned = 1;
    }
    fake_enqueue(stream, run_copy, 1, &copy, sizeof copy);
    if (kind == cudaMemcpyDeviceToHost) {
        fake_add(&fake.host_syncs, 1);
        fake_wait_stream(stream);
    }
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    FAKE_ENTER();
    if (!fake_stream_usable(stream))
        return fake_fail(cudaErrorInvalidResourceHandle);
    int to_device = kind != cudaMemcpyDeviceToHost, from_device = kind != cudaMemcpyHostToDevice;
    if (fake_in_block(dst, bytes) != to_device || fake_in_block(src, bytes) != from_device)
        return fake_fail(cudaErrorInvalidValue);
    fake_add(!to_device ? &fake.d2h_bytes : from_device ? &fake.d2d_bytes : &fake.h2d_bytes, bytes);
    copy_args copy = {.dst = dst, .src = src, .bytes = bytes};
    int pinned = to_device && from_device ? 1 : inside(pins, PINS_MAX, to_device ? src : dst, bytes);
    if (pinned < 0)
        return fake_fail(cudaErrorInvalidValue);
    if (pinned == 0)
        return copy_pageable(stream, copy, kind);
    fake_enqueue(stream, run_copy, 1, &copy, sizeof copy);
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *dst, int value, size_t bytes, cudaStream_t stream)
{
    FAKE_ENTER();
    if (!fake_stream_usable(stream))
        return fake_fail(cudaErrorInvalidResourceHandle);
    if (!fake_in_block(dst, bytes))
        return fake_fail(cudaErrorInvalidValue);
    copy_args copy = {.dst = dst, .bytes = bytes, .value = value};
    fake_enqueue(stream, run_copy, 1, &copy, sizeof copy);
    return cudaSuccess;
}
