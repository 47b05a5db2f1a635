/* Queues, the two ways to run them, events and host functions.
 *
 * A stream's ring is written by who enqueues and read by who runs it; `published` and `done` order the two. With
 * threads nothing else orders anything. With one executor, `lock` guards its choice: whether it may run at all, and
 * which stream is next. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "io/clock.h"
#include "kernels/random.h"
#include "tests/fakecuda/state.h"

enum {
    STREAMS_MAX = 64,
    POLL_NS = 100000,
    IDLE_NS = 200000,
    JITTER_NS = 60000,
    STARVE_ONE_IN = 6,
    STARVE_CHOICES = 40
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work, progress;
static struct CUstream_st *streams[STREAMS_MAX];
static int stream_count, waiters, credits, executor_runs, is_threaded;
static int64_t last_call_ns;
static uint64_t choices;

static uint32_t random_below(uint32_t n, uint64_t counter, uint64_t sequence)
{
    uint32_t words[4];
    ot_philox(fake.options.seed, counter, sequence, words);
    return words[0] % n;
}

/* ---- Running ---- */

typedef struct event_args {
    struct CUevent_st *event;
    uint32_t target;
} event_args;

static cudaError_t run_wait(void *args)
{
    event_args *wait = args;
    ot_counter_wait(&wait->event->reached, wait->target); /* with one executor it has been reached */
    return cudaSuccess;
}

static cudaError_t run_record(void *args)
{
    event_args *record = args;
    if (!ot_counter_reached(&record->event->reached, record->target - 1)) {
        fprintf(stderr, "fakecuda: an event is recorded before its last point has been reached\n");
        abort();
    }
    record->event->time_ns = ot_clock_ns();
    ot_counter_add(&record->event->reached);
    return cudaSuccess;
}

typedef struct call_args {
    cudaHostFn_t function;
    void *context;
} call_args;

static cudaError_t run_call(void *args)
{
    call_args *call = args;
    fake_in_host_function(1);
    call->function(call->context);
    fake_in_host_function(0);
    return cudaSuccess;
}

/* On a lost device no host function is called, as on a card; the rest runs to give back what it owns, and nobody looks at
 * what it writes. */
static void run_operation(fake_operation *operation)
{
    cudaError_t error = operation->is_kernel_or_copy ? fake_execution_fault() : cudaSuccess,
                own = cudaSuccess;
    if (fake.lost == 0 || operation->run != run_call)
        own = operation->run(operation->args);
    if (error == cudaSuccess)
        error = own;
    if (error != cudaSuccess && fake.lost == 0)
        fake.lost = (int)error;
}

static fake_operation *head(struct CUstream_st *stream, uint32_t done)
{
    return &stream->ring[done % FAKE_QUEUE];
}

/* ---- A thread for each stream ---- */

static void *run_stream(void *argument)
{
    struct CUstream_st *stream = argument;
    for (uint32_t k = 0;; k++) {
        ot_counter_wait(&stream->published, k + 1);
        fake_operation *operation = head(stream, k);
        if (operation->run == NULL)
            return NULL;
        uint32_t ns = random_below(JITTER_NS, k, (uint64_t)stream->number + 1);
        nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
        while (operation->ready != NULL && !operation->ready(operation->args))
            nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
        run_operation(operation);
        ot_counter_add(&stream->done);
    }
}

/* ---- One executor ---- */

static uint32_t done_of(struct CUstream_st *stream)
{
    return stream->done.word >> 1;
}

static int is_pending(struct CUstream_st *stream)
{
    return ot_counter_reached(&stream->published, done_of(stream) + 1);
}

static int is_runnable(struct CUstream_st *stream)
{
    if (!is_pending(stream))
        return 0;
    fake_operation *operation = head(stream, done_of(stream));
    if (operation->ready != NULL)
        return operation->ready(operation->args);
    const event_args *wait = (const event_args *)(const void *)operation->args;
    return operation->run != run_wait || ot_counter_reached(&wait->event->reached, wait->target);
}

/* One of the streams that can run, those that starve only where there is no other. */
static struct CUstream_st *choose(void)
{
    struct CUstream_st *fed[STREAMS_MAX], *all[STREAMS_MAX];
    uint32_t fed_count = 0, all_count = 0;
    for (int i = 0; i < stream_count && !is_threaded; i++) {
        if (!is_runnable(streams[i]))
            continue;
        all[all_count++] = streams[i];
        if (streams[i]->starved > 0)
            streams[i]->starved--;
        else
            fed[fed_count++] = streams[i];
    }
    if (all_count == 0)
        return NULL;
    choices++;
    if (random_below(STARVE_ONE_IN, choices, 1000) == 0)
        streams[random_below((uint32_t)stream_count, choices, 1001)]->starved =
            (int)random_below(STARVE_CHOICES, choices, 1002);
    return fed_count > 0 ? fed[random_below(fed_count, choices, 1003)]
                         : all[random_below(all_count, choices, 1003)];
}

static int any_pending(void)
{
    for (int i = 0; i < stream_count && !is_threaded; i++)
        if (is_pending(streams[i]))
            return 1;
    return 0;
}

static int any_polled(void)
{
    for (int i = 0; i < stream_count && !is_threaded; i++)
        if (is_pending(streams[i]) && head(streams[i], done_of(streams[i]))->ready != NULL)
            return 1;
    return 0;
}

static void wait_until(int64_t ns)
{
    struct timespec time = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    pthread_cond_timedwait(&work, &lock, &time);
}

/* Waits until it may run: not while a thread is enqueuing and nobody waits. The device's memory is closed meanwhile. */
static void wait_for_leave(void)
{
    while (waiters == 0 && credits == 0) {
        int64_t until = last_call_ns + IDLE_NS;
        fake_close_memory();
        if (!any_pending()) {
            pthread_cond_wait(&work, &lock);
        } else if (ot_clock_ns() >= until) {
            return;
        } else {
            wait_until(until);
        }
    }
    if (credits > 0)
        credits--;
}

static void *run_executor(void *argument)
{
    (void)argument;
    pthread_mutex_lock(&lock);
    for (;;) {
        wait_for_leave();
        struct CUstream_st *stream = choose();
        if (stream == NULL) {
            fake_close_memory();
            pthread_cond_broadcast(&progress);
            if (any_polled())
                wait_until(ot_clock_ns() + POLL_NS);
            else
                pthread_cond_wait(&work, &lock);
            continue;
        }
        pthread_mutex_unlock(&lock);
        fake_open_memory();
        run_operation(head(stream, done_of(stream)));
        pthread_mutex_lock(&lock);
        ot_counter_add(&stream->done);
        pthread_cond_broadcast(&progress);
    }
    return NULL;
}

static void start_executor(void)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&work, &monotonic);
    pthread_cond_init(&progress, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_t thread;
    if (pthread_create(&thread, NULL, run_executor, NULL) != 0)
        abort();
    pthread_detach(thread);
    executor_runs = 1;
}

void fake_restart(void)
{
    pthread_mutex_lock(&lock);
    is_threaded = fake.options.threads;
    if (!is_threaded && !executor_runs)
        start_executor();
    choices = 0;
    credits = 0;
    pthread_mutex_unlock(&lock);
}

/* ---- Enqueueing and waiting ---- */

static void wait_for(ot_counter *counter, uint32_t target)
{
    if (fake.options.threads) {
        ot_counter_wait(counter, target);
        return;
    }
    pthread_mutex_lock(&lock);
    waiters++;
    pthread_cond_signal(&work);
    while (!ot_counter_reached(counter, target))
        pthread_cond_wait(&progress, &lock);
    waiters--;
    pthread_mutex_unlock(&lock);
}

/* Somebody asked: one operation may run. */
static void nudge(void)
{
    if (fake.options.threads)
        return;
    pthread_mutex_lock(&lock);
    credits++;
    pthread_cond_signal(&work);
    pthread_mutex_unlock(&lock);
}

static void enqueue(cudaStream_t stream, fake_operation given, const void *args, size_t bytes)
{
    if (bytes > FAKE_ARGS_BYTES)
        abort();
    if (stream->enqueued >= FAKE_QUEUE)
        wait_for(&stream->done, stream->enqueued - FAKE_QUEUE + 1);
    fake_operation *operation = &stream->ring[stream->enqueued % FAKE_QUEUE];
    operation->run = given.run;
    operation->ready = given.ready;
    operation->is_kernel_or_copy = given.is_kernel_or_copy;
    if (bytes > 0)
        memcpy(operation->args, args, bytes);
    stream->enqueued++;
    ot_counter_add(&stream->published);
    if (fake.options.threads)
        return;
    pthread_mutex_lock(&lock);
    last_call_ns = ot_clock_ns();
    pthread_cond_signal(&work);
    pthread_mutex_unlock(&lock);
}

void fake_enqueue(cudaStream_t stream, fake_run *run, int is_kernel_or_copy, const void *args, size_t bytes)
{
    enqueue(stream, (fake_operation){.run = run, .is_kernel_or_copy = is_kernel_or_copy}, args, bytes);
}

void fake_enqueue_polled(cudaStream_t stream, fake_ready *ready, fake_run *run, const void *args,
                         size_t bytes)
{
    enqueue(stream, (fake_operation){.run = run, .ready = ready, .is_kernel_or_copy = 1}, args, bytes);
}

void fake_wait_stream(cudaStream_t stream)
{
    wait_for(&stream->done, stream->enqueued);
}

void fake_wait_card(void)
{
    struct CUstream_st *open[STREAMS_MAX];
    int count = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < stream_count; i++)
        if (streams[i]->device == fake_current_device())
            open[count++] = streams[i];
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < count; i++)
        fake_wait_stream(open[i]);
}

typedef struct kernel_args {
    cudaError_t (*run)(void *context);
    void *context;
} kernel_args;

static cudaError_t run_kernel(void *args)
{
    const kernel_args *kernel = args;
    return kernel->run(kernel->context);
}

cudaError_t fakecuda_launch(cudaStream_t stream, cudaError_t (*run)(void *context), void *context)
{
    cudaError_t error = fake_enter("cudaLaunchKernel");
    if (error != cudaSuccess)
        return error;
    if (!fake_stream_usable(stream))
        return fake_fail(cudaErrorInvalidResourceHandle);
    fake_add(&fake.kernels, 1);
    kernel_args args = {run, context};
    fake_enqueue(stream, run_kernel, 1, &args, sizeof args);
    return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *context)
{
    FAKE_ENTER();
    if (!fake_stream_usable(stream))
        return fake_fail(cudaErrorInvalidResourceHandle);
    call_args args = {function, context};
    fake_enqueue(stream, run_call, 0, &args, sizeof args);
    return cudaSuccess;
}

/* ---- Streams ---- */

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned int flags, int priority)
{
    FAKE_ENTER();
    if (flags != cudaStreamNonBlocking || priority > 0 || priority < -5)
        return fake_fail(cudaErrorInvalidValue);
    struct CUstream_st *stream = calloc(1, sizeof *stream);
    pthread_mutex_lock(&lock);
    if (stream == NULL || stream_count == STREAMS_MAX)
        abort();
    stream->device = fake_current_device();
    stream->number = stream_count;
    streams[stream_count++] = stream;
    pthread_mutex_unlock(&lock);
    if (fake.options.threads && pthread_create(&stream->thread, NULL, run_stream, stream) != 0)
        abort();
    *out = stream;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned int flags)
{
    return cudaStreamCreateWithPriority(out, flags, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    fake_wait_stream(stream);
    if (fake.options.threads) {
        fake_enqueue(stream, NULL, 0, NULL, 0);
        pthread_join(stream->thread, NULL);
    }
    pthread_mutex_lock(&lock);
    for (int i = 0; i < stream_count; i++)
        if (streams[i] == stream)
            streams[i] = streams[--stream_count];
    pthread_mutex_unlock(&lock);
    free(stream);
    return (cudaError_t)fake.lost;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    FAKE_ENTER();
    if (!fake_stream_usable(stream))
        return fake_fail(cudaErrorInvalidResourceHandle);
    fake_add(&fake.host_syncs, 1);
    fake_wait_stream(stream);
    return fake_fail((cudaError_t)fake.lost);
}

/* ---- Events ---- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned int flags)
{
    FAKE_ENTER();
    struct CUevent_st *event = calloc(1, sizeof *event);
    if (event == NULL)
        abort();
    event->device = fake_current_device();
    event->timed = !(flags & cudaEventDisableTiming);
    *out = event;
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    free(event);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    FAKE_ENTER();
    if (!fake_stream_usable(stream) || event->device != stream->device)
        return fake_fail(cudaErrorInvalidResourceHandle);
    event_args args = {event, ++event->recorded};
    fake_enqueue(stream, run_record, 0, &args, sizeof args);
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags)
{
    FAKE_ENTER();
    if (!fake_stream_usable(stream) || flags != 0)
        return fake_fail(cudaErrorInvalidResourceHandle);
    event_args args = {event, event->recorded};
    fake_enqueue(stream, run_wait, 0, &args, sizeof args);
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    FAKE_ENTER();
    if (ot_counter_reached(&event->reached, event->recorded))
        return cudaSuccess;
    nudge();
    return cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    FAKE_ENTER();
    fake_add(&fake.host_syncs, 1);
    wait_for(&event->reached, event->recorded);
    return fake_fail((cudaError_t)fake.lost);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    FAKE_ENTER();
    if (!from->timed || !to->timed)
        return fake_fail(cudaErrorInvalidResourceHandle);
    if (!ot_counter_reached(&from->reached, from->recorded) ||
        !ot_counter_reached(&to->reached, to->recorded))
        return fake_fail(cudaErrorNotReady);
    *ms = (float)((double)(to->time_ns - from->time_ns) * 1e-6);
    return cudaSuccess;
}
