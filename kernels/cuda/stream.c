/* The streams of the CUDA device: copies, host functions, and failures that stick.
 *
 * Invariants
 *  1. Of a stream's host functions each is called once, in order: by the driver's thread, or, where the device is
 *     lost and the driver calls none any more, by whoever finds that out (drain). Who calls has set `taken`.
 *  2. Entry k of the ring is written before `enqueued` becomes k+1, and again only once `called` has passed k.
 *  3. After the first failure no kernel and no copy is enqueued; what is on its way already runs, since nothing
 *     takes it back. Events are still recorded and host functions still called, with the failure.
 *
 * No CUDA graphs: a block of a 7B model (0.4 GFLOP a token forward, four times that backward with what is computed again)
 * takes 5 ms forward and 20 ms backward for 2048 tokens at 160 TFLOP/s, in about 15 and 45 launches. A launch costs a lane's
 * own thread about 4 us and nobody waits for it: the host is a hundred times ahead. Between two kernels of a stream the
 * card loses about 1 us, of which a graph saves a half: 0.1 % of a block. It would pay for blocks of some 100 us, which are
 * models that need no offloading.
 * No epilogues of cublasLt: none computes SwiGLU, the sum into FP32 gradients is the product's beta, and the biases of q, k
 * and v, where a model has them, are 40 MB to read and write, 0.04 ms of the 25. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/state.h"

enum { QUEUE_LENGTH = 1024 };

static cuda_stream *stream_of(ot_stream *base)
{
    return (cuda_stream *)base;
}

/* ---- Failures ---- */

static void keep_failure(cuda_device *device)
{
    pthread_mutex_lock(&device->error_lock);
    if (!atomic_load_explicit(&device->failed, memory_order_relaxed)) {
        device->error = ot_error_take();
        atomic_store_explicit(&device->failed, 1, memory_order_release);
    }
    pthread_mutex_unlock(&device->error_lock);
}

ot_status ot_cuda_status(ot_device *base)
{
    cuda_device *device = (cuda_device *)base;
    if (!atomic_load_explicit(&device->failed, memory_order_acquire))
        return OT_OK;
    return ot_error_raise(&device->error);
}

/* The code of the first failure, which does not replace the calling thread's error text. */
static ot_status status_code(cuda_device *device)
{
    return atomic_load_explicit(&device->failed, memory_order_acquire) ? device->error.status : OT_OK;
}

int ot_cuda_is_sound(const ot_stream *stream)
{
    return !atomic_load_explicit(&ot_cuda_device(stream)->failed, memory_order_acquire);
}

void ot_cuda_reject(ot_stream *stream, ot_status status)
{
    if (status != OT_OK)
        keep_failure(ot_cuda_device(stream));
}

void ot_cuda_fail(ot_device *base)
{
    ot_error failure = ot_program_error();
    if (ot_error_raise(&failure) != OT_OK)
        keep_failure((cuda_device *)base);
}

/* ---- Host functions ---- */

static void call(cuda_call *entry)
{
    cuda_stream *stream = entry->stream;
    cuda_device *device = ot_cuda_device(&stream->base);
    ot_status status = entry->function(entry->context, status_code(device));
    if (status != OT_OK && status_code(device) == OT_OK) {
        ot_error error = ot_program_error();
        ot_cuda_reject(&stream->base, ot_fail(status, "stream %s: %s", stream->name, error.text));
    }
    ot_counter_add(&stream->called);
}

static void CUDART_CB on_turn(void *context)
{
    cuda_call *entry = context;
    if (!atomic_exchange(&entry->taken, 1))
        call(entry);
}

/* Calls what the driver will not call any more; one that it has begun is waited for. */
static void drain(cuda_stream *stream)
{
    pthread_mutex_lock(&stream->drain_lock);
    uint32_t end = atomic_load(&stream->enqueued);
    for (uint32_t k = end < stream->length ? 0 : end - stream->length; k != end; k++) {
        cuda_call *entry = &stream->calls[k & (stream->length - 1)];
        if (ot_counter_reached(&stream->called, k + 1))
            continue;
        if (!atomic_exchange(&entry->taken, 1))
            call(entry);
        else
            ot_counter_wait(&stream->called, k + 1);
    }
    pthread_mutex_unlock(&stream->drain_lock);
}

static void drain_all(cuda_device *device)
{
    pthread_mutex_lock(&device->streams_lock);
    for (cuda_stream *stream = device->streams; stream != NULL; stream = stream->next)
        drain(stream);
    pthread_mutex_unlock(&device->streams_lock);
}

/* The next entry of the ring, when it is free. */
static cuda_call *next_call(cuda_stream *stream)
{
    uint32_t k = atomic_load_explicit(&stream->enqueued, memory_order_relaxed);
    if (k >= stream->length)
        ot_counter_wait(&stream->called, k - stream->length + 1);
    return &stream->calls[k & (stream->length - 1)];
}

static void enqueue_call(ot_stream *base, cuda_call *entry)
{
    cuda_stream *stream = stream_of(base);
    cuda_device *device = ot_cuda_device(base);
    atomic_store(&entry->taken, 0);
    atomic_fetch_add(&stream->enqueued, 1);
    ot_cuda_enter(device);
    if (!atomic_load(&device->lost))
        ot_cuda_check(base, cudaLaunchHostFunc(stream->handle, on_turn, entry), "a host function");
    if (atomic_load(&device->lost))
        drain(stream);
}

void ot_cuda_stream_call(ot_stream *base, ot_host_function *function, void *context)
{
    cuda_call *entry = next_call(stream_of(base));
    entry->function = function;
    entry->context = context;
    enqueue_call(base, entry);
}

static ot_status move(void *context, ot_status before)
{
    const cuda_call *entry = context;
    if (before == OT_OK)
        memcpy(entry->dst, entry->src, entry->bytes);
    return OT_OK;
}

void ot_cuda_stream_move(ot_stream *base, void *dst, const void *src, size_t bytes)
{
    cuda_call *entry = next_call(stream_of(base));
    entry->function = move;
    entry->context = entry;
    entry->dst = dst;
    entry->src = src;
    entry->bytes = bytes;
    enqueue_call(base, entry);
}

void ot_cuda_check(ot_stream *base, cudaError_t code, const char *what)
{
    if (code == cudaSuccess)
        return;
    cuda_stream *stream = stream_of(base);
    cuda_device *device = ot_cuda_device(base);
    char text[96];
    snprintf(text, sizeof text, "stream %s: %s", stream->name, what);
    ot_cuda_reject(base, ot_cuda_error(code, text));
    if (ot_cuda_is_fatal(code) || ot_cuda_is_fatal(cudaPeekAtLastError())) {
        atomic_store(&device->lost, 1);
        drain_all(device);
    }
}

/* ---- Copies ---- */

/* What is wrong shows here, with names, rather than as an illegal address of some later call. */
static int has_right_ends(ot_stream *base, const char *what, const void *dst, int dst_device, const void *src,
                          int src_device, size_t bytes)
{
    cuda_device *device = ot_cuda_device(base);
    if (ot_cuda_in_device(device, dst, bytes) == dst_device &&
        ot_cuda_in_device(device, src, bytes) == src_device)
        return 1;
    ot_cuda_reject(base, ot_fail(OT_ERR_INTERNAL,
                                 "stream %s: %s of %zu bytes from %p to %p: not the memory it is for",
                                 stream_of(base)->name, what, bytes, src, dst));
    return 0;
}

static void copy(ot_stream *base, const char *what, void *dst, int dst_device, const void *src,
                 int src_device, size_t bytes, enum cudaMemcpyKind kind)
{
    cuda_device *device = ot_cuda_device(base);
    if (!ot_cuda_is_sound(base) || !has_right_ends(base, what, dst, dst_device, src, src_device, bytes))
        return;
    ot_cuda_enter(device);
    for (size_t done = 0, piece; done < bytes && ot_cuda_is_sound(base); done += piece) {
        const char *host = (dst_device ? (const char *)src : (const char *)dst) + done;
        char *to = (char *)dst + done;
        int pinned = 1;
        piece = dst_device && src_device ? bytes : ot_cuda_copy_piece(device, host, bytes - done, &pinned);
        if (pinned)
            ot_cuda_check(
                base, cudaMemcpyAsync(to, (const char *)src + done, piece, kind, ot_cuda_handle(base)), what);
        else
            ot_cuda_stage_copy(base, to, (const char *)src + done, piece, kind);
    }
}

void ot_cuda_copy_h2d(ot_stream *stream, void *dst, const void *src, size_t bytes)
{
    copy(stream, "copy to the device", dst, 1, src, 0, bytes, cudaMemcpyHostToDevice);
}

void ot_cuda_copy_d2h(ot_stream *stream, void *dst, const void *src, size_t bytes)
{
    copy(stream, "copy to the host", dst, 0, src, 1, bytes, cudaMemcpyDeviceToHost);
}

void ot_cuda_copy_d2d(ot_stream *stream, void *dst, const void *src, size_t bytes)
{
    copy(stream, "copy within the device", dst, 1, src, 1, bytes, cudaMemcpyDeviceToDevice);
}

void ot_cuda_copy_zero(ot_stream *stream, void *dst, size_t bytes)
{
    if (!ot_cuda_is_sound(stream) || !has_right_ends(stream, "zeroing", dst, 1, dst, 1, bytes))
        return;
    ot_cuda_enter(ot_cuda_device(stream));
    ot_cuda_check(stream, cudaMemsetAsync(dst, 0, bytes, ot_cuda_handle(stream)), "zeroing");
}

/* ---- Streams ---- */

ot_status ot_cuda_stream_synchronize(ot_stream *stream)
{
    ot_cuda_enter(ot_cuda_device(stream));
    ot_cuda_check(stream, cudaStreamSynchronize(ot_cuda_handle(stream)), "waiting for its end");
    return ot_cuda_status(stream->device);
}

ot_status ot_cuda_synchronize(ot_device *base)
{
    for (cuda_stream *stream = ((cuda_device *)base)->streams; stream != NULL; stream = stream->next)
        (void)!ot_cuda_stream_synchronize(&stream->base);
    return ot_cuda_status(base);
}

static uint32_t power_of_two(size_t n)
{
    uint32_t power = 2;
    while (power < n && power < 1u << 20)
        power *= 2;
    return power;
}

static int priority(const cuda_device *device, ot_stream_kind kind)
{
    return kind == OT_STREAM_COMPUTE || kind == OT_STREAM_UPDATE ? device->lowest_priority
                                                                 : device->highest_priority;
}

/* The library's workspace is each product's own, so that it is counted and no product waits for another's. */
static ot_status open_cublas(cuda_stream *stream)
{
    OT_TRY(ot_cublas_error(cublasCreate(&stream->cublas), stream->name));
    OT_TRY(ot_cublas_error(cublasSetStream(stream->cublas, stream->handle), stream->name));
    return ot_cublas_error(
        cublasSetMathMode(stream->cublas,
                          CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION),
        stream->name);
}

static void free_stream(cuda_stream *stream)
{
    if (stream->cublas != NULL)
        (void)cublasDestroy(stream->cublas);
    if (stream->handle != NULL)
        (void)cudaStreamDestroy(stream->handle);
    if (stream->begin != NULL)
        ot_cuda_event_close(stream->begin);
    pthread_mutex_destroy(&stream->drain_lock);
    free(stream->calls);
    free(stream);
}

static ot_status fill_stream(cuda_device *device, const ot_stream_options *options, cuda_stream *stream)
{
    stream->base.device = &device->base;
    snprintf(stream->name, sizeof stream->name, "%s", options->name);
    stream->length = power_of_two(device->queue_length > 0 ? device->queue_length : QUEUE_LENGTH);
    stream->calls = calloc(stream->length, sizeof *stream->calls);
    if (stream->calls == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for stream %s", options->name);
    for (uint32_t i = 0; i < stream->length; i++)
        stream->calls[i].stream = stream;
    OT_TRY(ot_cuda_error(
        cudaStreamCreateWithPriority(&stream->handle, cudaStreamNonBlocking, priority(device, options->kind)),
        options->name));
    OT_TRY(ot_cuda_event_open(&device->base, 0, &stream->begin));
    return options->kind == OT_STREAM_COMPUTE ? open_cublas(stream) : OT_OK;
}

ot_status ot_cuda_stream_open(ot_device *base, const ot_stream_options *options, ot_stream **out)
{
    cuda_device *device = (cuda_device *)base;
    ot_cuda_enter(device);
    cuda_stream *stream = calloc(1, sizeof *stream);
    if (stream == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for stream %s", options->name);
    pthread_mutex_init(&stream->drain_lock, NULL);
    ot_status status = fill_stream(device, options, stream);
    if (status != OT_OK) {
        free_stream(stream);
        return status;
    }
    pthread_mutex_lock(&device->streams_lock);
    stream->next = device->streams;
    device->streams = stream;
    pthread_mutex_unlock(&device->streams_lock);
    *out = &stream->base;
    return OT_OK;
}

void ot_cuda_stream_close(ot_stream *base)
{
    cuda_stream *stream = stream_of(base);
    cuda_device *device = ot_cuda_device(base);
    (void)!ot_cuda_stream_synchronize(base);
    pthread_mutex_lock(&device->streams_lock);
    cuda_stream **link = &device->streams;
    while (*link != stream)
        link = &(*link)->next;
    *link = stream->next;
    pthread_mutex_unlock(&device->streams_lock);
    free_stream(stream);
}
