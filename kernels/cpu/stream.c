/* The streams and events of the CPU device: a worker thread for each stream, counters for events.
 *
 * Invariants
 *  1. A stream's ring is written by the thread that enqueues and read by its worker. Entry k is written
 *     before the count `published` becomes k+1, and read after; it is written again only once `done` has
 *     passed k.
 *  2. `done` grows by one for every operation, whether it ran, failed or was skipped: nobody waits for ever.
 *  3. Workers are ordered by events and by the end of a run of the shared team, by nothing else (counter.h).
 *  4. Nothing is allocated between opening and closing a stream or an event.
 *
 * After the first failure of the device kernels and copies are skipped; events and host functions still
 * run. */
#include <stdalign.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "io/clock.h"
#include "kernels/cpu/state.h"
#include "kernels/random.h"

typedef ot_status operation_run(cpu_stream *stream, const operation *op);

struct operation {
    operation_run *run; /* NULL: the worker ends */
    int always;         /* after a failure of the device, too */
    ot_cpu_task *task;
    ot_range_id range;
    size_t total, grain;
    alignas(64) unsigned char args[OT_TASK_ARGS_BYTES];
};

static cpu_device *device_of(const ot_stream *stream)
{
    return (cpu_device *)stream->device;
}

/* ---- Failures ---- */

/* Keeps the calling thread's last failure, unless there was one before. */
static void keep_failure(cpu_device *device)
{
    pthread_mutex_lock(&device->error_lock);
    if (!atomic_load_explicit(&device->failed, memory_order_relaxed)) {
        device->error = ot_error_take();
        atomic_store_explicit(&device->failed, 1, memory_order_release);
    }
    pthread_mutex_unlock(&device->error_lock);
}

ot_status ot_cpu_status(ot_device *base)
{
    cpu_device *device = (cpu_device *)base;
    if (!atomic_load_explicit(&device->failed, memory_order_acquire))
        return OT_OK;
    return ot_error_raise(&device->error);
}

/* The code of the first failure, which does not replace the calling thread's error text. */
static ot_status status_code(cpu_device *device)
{
    return atomic_load_explicit(&device->failed, memory_order_acquire) ? device->error.status : OT_OK;
}

void ot_cpu_reject(ot_stream *stream, ot_status status)
{
    if (status != OT_OK)
        keep_failure(device_of(stream));
}

/* ---- The worker of a stream ---- */

static void jitter(const cpu_device *device, const cpu_stream *stream, uint32_t k)
{
    uint32_t random[4];
    ot_philox(device->jitter_seed, k, (uint64_t)stream->number, random);
    int64_t ns = (int64_t)(random[0] % (uint64_t)device->jitter_ns);
    struct timespec time = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    nanosleep(&time, NULL);
}

static void execute(cpu_stream *stream, const operation *op)
{
    cpu_device *device = device_of(&stream->base);
    if (!op->always && status_code(device) != OT_OK)
        return;
    ot_status status = op->run(stream, op);
    if (status != OT_OK) {
        status = ot_fail(status, "stream %s: %s", stream->name, ot_error_text());
        ot_cpu_reject(&stream->base, status);
    }
}

static void *worker_main(void *argument)
{
    cpu_stream *stream = argument;
    const cpu_device *device = device_of(&stream->base);
    for (uint32_t k = 0;; k++) {
        ot_counter_wait(&stream->published, k + 1);
        const operation *op = &stream->ring[k & (stream->length - 1)];
        if (op->run == NULL)
            return NULL;
        if (device->jitter_ns > 0)
            jitter(device, stream, k);
        execute(stream, op);
        ot_counter_add(&stream->done);
    }
}

/* ---- Enqueueing ---- */

/* The next free entry of the ring. A full ring is waited for until it is half empty, which also keeps the
 * enqueuing thread from being ordered behind every single operation. */
static operation *next_operation(ot_stream *base)
{
    cpu_stream *stream = (cpu_stream *)base;
    if (stream->enqueued - stream->known_done >= stream->length) {
        stream->known_done = stream->enqueued - stream->length / 2;
        ot_counter_wait(&stream->done, stream->known_done);
    }
    operation *op = &stream->ring[stream->enqueued & (stream->length - 1)];
    op->always = 0;
    return op;
}

static void publish(ot_stream *base, operation *op, operation_run *run)
{
    cpu_stream *stream = (cpu_stream *)base;
    op->run = run;
    stream->enqueued++;
    ot_counter_add(&stream->published);
}

static ot_team *acquire_team(cpu_stream *stream)
{
    if (stream->team != NULL)
        return stream->team;
    pthread_mutex_lock(&device_of(&stream->base)->team_lock);
    return device_of(&stream->base)->team;
}

static void release_team(cpu_stream *stream)
{
    if (stream->team == NULL)
        pthread_mutex_unlock(&device_of(&stream->base)->team_lock);
}

static ot_status run_task(cpu_stream *stream, const operation *op)
{
    ot_team *team = acquire_team(stream);
    ot_status status = op->task(team, device_of(&stream->base)->variant, op->args);
    release_team(stream);
    return status;
}

void ot_cpu_enqueue(ot_stream *stream, ot_cpu_task *task, const void *args, size_t bytes)
{
    OT_ASSERT(bytes <= OT_TASK_ARGS_BYTES);
    operation *op = next_operation(stream);
    op->task = task;
    memcpy(op->args, args, bytes);
    publish(stream, op, run_task);
}

static ot_status run_range(cpu_stream *stream, const operation *op)
{
    ot_cpu_range *range = device_of(&stream->base)->variant->ranges[op->range];
    if (op->total <= op->grain) {
        range(op->args, 0, op->total);
        return OT_OK;
    }
    ot_cpu_parallel(acquire_team(stream), range, op->args, op->total, op->grain);
    release_team(stream);
    return OT_OK;
}

void ot_cpu_enqueue_range(ot_stream *stream, ot_range_id id, const void *args, size_t bytes, size_t total,
                          size_t grain)
{
    OT_ASSERT(bytes <= OT_TASK_ARGS_BYTES && grain > 0);
    if (total == 0)
        return;
    operation *op = next_operation(stream);
    op->range = id;
    op->total = total;
    op->grain = grain;
    memcpy(op->args, args, bytes);
    publish(stream, op, run_range);
}

typedef struct parallel {
    ot_cpu_range *range;
    const void *args;
    size_t total, grain;
} parallel;

static void run_share(void *context, int index, int count)
{
    const parallel *p = context;
    size_t begin, end;
    ot_team_share(p->total, p->grain, index, count, &begin, &end);
    if (begin < end)
        p->range(p->args, begin, end);
}

void ot_cpu_parallel(ot_team *team, ot_cpu_range *range, const void *args, size_t total, size_t grain)
{
    parallel p = {range, args, total, grain};
    if (total <= grain)
        range(args, 0, total);
    else
        ot_team_run(team, run_share, &p);
}

/* ---- Copies and host functions ---- */

typedef struct copy_args {
    void *dst;
    const void *src; /* NULL: zeros */
    size_t bytes;
    int shared; /* by the team, like a kernel */
} copy_args;

/* Elements: bytes. */
static void copy_range(const void *args, size_t begin, size_t end)
{
    const copy_args *copy = args;
    if (copy->src != NULL)
        memcpy((char *)copy->dst + begin, (const char *)copy->src + begin, end - begin);
    else
        memset((char *)copy->dst + begin, 0, end - begin);
}

/* A copy to or from the host runs beside the computation, on the stream's own thread; one within the device stands
 * between its kernels, and the team would only wait for it. */
static ot_status run_copy(cpu_stream *stream, const operation *op)
{
    enum { GRAIN = 64 << 10 };
    copy_args copy;
    memcpy(&copy, op->args, sizeof copy);
    if (!copy.shared || copy.bytes <= GRAIN) {
        copy_range(&copy, 0, copy.bytes);
        return OT_OK;
    }
    ot_cpu_parallel(acquire_team(stream), copy_range, &copy, copy.bytes, GRAIN);
    release_team(stream);
    return OT_OK;
}

/* Whether the bytes lie in device memory: 1 all of them, 0 none, -1 some. */
static int in_device(cpu_device *device, const void *pointer, size_t bytes)
{
    uintptr_t begin = (uintptr_t)pointer, end = begin + bytes;
    for (int i = 0; i < OT_CPU_ARENAS_MAX; i++) {
        uintptr_t first = atomic_load_explicit(&device->memory[i].begin, memory_order_relaxed);
        uintptr_t last = atomic_load_explicit(&device->memory[i].end, memory_order_relaxed);
        if (begin >= first && end <= last)
            return 1;
        if (begin < last && end > first)
            return -1;
    }
    return 0;
}

/* A copy whose ends lie in the wrong kind of memory would pass here and crash on a GPU, so it fails here,
 * too. */
static void enqueue_copy(ot_stream *stream, const char *what, copy_args copy, int dst_device, int src_device)
{
    cpu_device *device = device_of(stream);
    if (in_device(device, copy.dst, copy.bytes) != dst_device ||
        (copy.src != NULL && in_device(device, copy.src, copy.bytes) != src_device)) {
        ot_cpu_reject(stream, ot_fail(OT_ERR_INTERNAL,
                                      "stream %s: %s of %zu bytes from %p to %p: not the memory it is for",
                                      ((cpu_stream *)stream)->name, what, copy.bytes, copy.src, copy.dst));
        return;
    }
    operation *op = next_operation(stream);
    memcpy(op->args, &copy, sizeof copy);
    publish(stream, op, run_copy);
}

void ot_cpu_copy_h2d(ot_stream *stream, void *dst, const void *src, size_t bytes)
{
    enqueue_copy(stream, "copy to the device", (copy_args){dst, src, bytes, 0}, 1, 0);
}

void ot_cpu_copy_d2h(ot_stream *stream, void *dst, const void *src, size_t bytes)
{
    enqueue_copy(stream, "copy to the host", (copy_args){dst, src, bytes, 0}, 0, 1);
}

void ot_cpu_copy_d2d(ot_stream *stream, void *dst, const void *src, size_t bytes)
{
    enqueue_copy(stream, "copy within the device", (copy_args){dst, src, bytes, 1}, 1, 1);
}

void ot_cpu_copy_zero(ot_stream *stream, void *dst, size_t bytes)
{
    enqueue_copy(stream, "zeroing", (copy_args){dst, NULL, bytes, 1}, 1, 1);
}

typedef struct call_args {
    ot_host_function *function;
    void *context;
} call_args;

static ot_status run_call(cpu_stream *stream, const operation *op)
{
    call_args call;
    memcpy(&call, op->args, sizeof call);
    return call.function(call.context, status_code(device_of(&stream->base)));
}

void ot_cpu_stream_call(ot_stream *stream, ot_host_function *function, void *context)
{
    call_args call = {function, context};
    operation *op = next_operation(stream);
    op->always = 1;
    memcpy(op->args, &call, sizeof call);
    publish(stream, op, run_call);
}

/* ---- Events ---- */

typedef struct event_args {
    cpu_event *event;
    uint32_t target;
} event_args;

static ot_status run_record(cpu_stream *stream, const operation *op)
{
    (void)stream;
    event_args args;
    memcpy(&args, op->args, sizeof args);
    int ordered = ot_counter_reached(&args.event->reached, args.target - 1);
    if (args.event->timed)
        args.event->time_ns = ot_clock_ns();
    ot_counter_add(&args.event->reached);
    return ordered ? OT_OK
                   : ot_fail(OT_ERR_INTERNAL, "an event was recorded before its last point had been reached");
}

static ot_status run_wait(cpu_stream *stream, const operation *op)
{
    (void)stream;
    event_args args;
    memcpy(&args, op->args, sizeof args);
    ot_counter_wait(&args.event->reached, args.target);
    return OT_OK;
}

static void enqueue_event(ot_stream *stream, cpu_event *event, operation_run *run)
{
    event_args args = {event, event->recorded};
    operation *op = next_operation(stream);
    op->always = 1;
    memcpy(op->args, &args, sizeof args);
    publish(stream, op, run);
}

void ot_cpu_event_record(ot_event *base, ot_stream *stream)
{
    cpu_event *event = (cpu_event *)base;
    event->recorded++;
    enqueue_event(stream, event, run_record);
}

void ot_cpu_stream_wait(ot_stream *stream, ot_event *event)
{
    enqueue_event(stream, (cpu_event *)event, run_wait);
}

int ot_cpu_event_reached(const ot_event *base)
{
    const cpu_event *event = (const cpu_event *)base;
    return ot_counter_reached(&event->reached, event->recorded);
}

ot_status ot_cpu_event_synchronize(ot_event *base)
{
    cpu_event *event = (cpu_event *)base;
    ot_counter_wait(&event->reached, event->recorded);
    return ot_cpu_status(base->device);
}

int64_t ot_cpu_event_elapsed_ns(const ot_event *from, const ot_event *to)
{
    OT_ASSERT(ot_cpu_event_reached(from) && ot_cpu_event_reached(to));
    return ((const cpu_event *)to)->time_ns - ((const cpu_event *)from)->time_ns;
}

ot_status ot_cpu_event_open(ot_device *base, int timed, ot_event **out)
{
    cpu_device *device = (cpu_device *)base;
    cpu_event *event = calloc(1, sizeof *event);
    if (event == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for an event");
    *event = (cpu_event){.base = {base}, .next = device->events, .timed = timed};
    device->events = event;
    *out = &event->base;
    return OT_OK;
}

void ot_cpu_event_close(ot_event *base)
{
    cpu_event **link = &((cpu_device *)base->device)->events;
    while (*link != (cpu_event *)base)
        link = &(*link)->next;
    *link = (*link)->next;
    free(base);
}

/* ---- Streams ---- */

ot_status ot_cpu_stream_synchronize(ot_stream *base)
{
    cpu_stream *stream = (cpu_stream *)base;
    ot_counter_wait(&stream->done, stream->enqueued);
    return ot_cpu_status(base->device);
}

ot_status ot_cpu_synchronize(ot_device *base)
{
    for (cpu_stream *stream = ((cpu_device *)base)->streams; stream != NULL; stream = stream->next)
        ot_counter_wait(&stream->done, stream->enqueued);
    return ot_cpu_status(base);
}

static ot_status start_worker(cpu_stream *stream)
{
    int code = pthread_create(&stream->thread, NULL, worker_main, stream);
    if (code != 0)
        return ot_fail(OT_ERR_DEVICE,
                       "cannot start the thread of stream %s: %s; raise the limit on processes", stream->name,
                       strerror(code));
    return OT_OK;
}

ot_status ot_cpu_stream_open(ot_device *base, const ot_stream_options *options, ot_stream **out)
{
    ot_status status = OT_OK;
    cpu_device *device = (cpu_device *)base;
    if (options->threads < 0 || options->threads > ot_team_count(device->team))
        return ot_fail(OT_ERR_USAGE, "stream %s: %d threads, but the device has %d", options->name,
                       options->threads, ot_team_count(device->team));
    cpu_stream *stream = calloc(1, sizeof *stream);
    operation *ring = aligned_alloc(alignof(operation), device->queue_length * sizeof *ring);
    if (stream == NULL || ring == NULL) {
        status = ot_fail(OT_ERR_INTERNAL, "out of memory for stream %s", options->name);
        goto out;
    }
    memset(ring, 0, device->queue_length * sizeof *ring); /* its pages are there before the first step */
    *stream = (cpu_stream){
        .base = {base}, .ring = ring, .length = device->queue_length, .number = device->stream_count++};
    snprintf(stream->name, sizeof stream->name, "%s", options->name);
    if (options->threads > 0)
        OT_TRY_GOTO(ot_team_open(options->threads, &stream->team), out);
    OT_TRY_GOTO(start_worker(stream), out);
    stream->next = device->streams;
    device->streams = stream;
    *out = &stream->base;
    return OT_OK;
out:
    if (stream != NULL)
        ot_team_close(stream->team);
    free(ring);
    free(stream);
    return status;
}

void ot_cpu_stream_close(ot_stream *base)
{
    cpu_stream *stream = (cpu_stream *)base, **link = &device_of(base)->streams;
    publish(base, next_operation(base), NULL);
    pthread_join(stream->thread, NULL);
    while (*link != stream)
        link = &(*link)->next;
    *link = stream->next;
    ot_team_close(stream->team);
    free(stream->ring);
    free(stream);
}
