/* The state of the CPU device, shared by its two files: stream.c has what runs, device.c what is opened and
 * closed. */
#ifndef OT_KERNELS_CPU_STATE_H
#define OT_KERNELS_CPU_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "io/host.h"
#include "kernels/backend.h"
#include "kernels/cpu/counter.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/onednn.h"

enum { OT_CPU_ARENAS_MAX = 64 };

typedef struct cpu_device cpu_device;
typedef struct cpu_stream cpu_stream;
typedef struct cpu_event cpu_event;

/* An open arena; the range is read by whoever enqueues a copy. */
typedef struct memory {
    ot_arena *arena; /* NULL: free */
    _Atomic uintptr_t begin, end;
} memory;

struct cpu_device {
    ot_device base;
    ot_host *host; /* the cap */
    memory memory[OT_CPU_ARENAS_MAX];
    const ot_variant *variant;
    ot_onednn *onednn;
    ot_team *team;
    pthread_mutex_t team_lock;  /* held while a kernel runs on `team` */
    pthread_mutex_t error_lock; /* orders the failures: the first one stays */
    atomic_int failed;          /* set once `error` is complete */
    ot_error error;
    uint32_t queue_length;
    uint64_t jitter_seed;
    int64_t jitter_ns;
    int stream_count; /* opened so far: numbers the jitter's sequences */
    cpu_stream *streams;
    cpu_event *events;
};

typedef struct operation operation;

struct cpu_stream {
    ot_stream base;
    cpu_stream *next;
    char name[32];
    pthread_t thread;
    int number;
    ot_team *team; /* its own; NULL: the device's */
    operation *ring;
    uint32_t length;   /* of the ring, a power of two */
    uint32_t enqueued; /* by the thread that enqueues; so many are known to be done: */
    uint32_t known_done;
    ot_counter published, done;
};

struct cpu_event {
    ot_event base;
    cpu_event *next;
    int timed;
    uint32_t recorded; /* points enqueued so far */
    ot_counter reached;
    int64_t time_ns; /* of the last point reached */
};

/* The functions of ot_device_ops that stream.c implements. */
ot_status ot_cpu_status(ot_device *base);
ot_status ot_cpu_synchronize(ot_device *base);
ot_status ot_cpu_stream_open(ot_device *base, const ot_stream_options *options, ot_stream **out);
void ot_cpu_stream_close(ot_stream *base);
ot_status ot_cpu_stream_synchronize(ot_stream *base);
void ot_cpu_copy_h2d(ot_stream *stream, void *dst, const void *src, size_t bytes);
void ot_cpu_copy_d2h(ot_stream *stream, void *dst, const void *src, size_t bytes);
void ot_cpu_copy_d2d(ot_stream *stream, void *dst, const void *src, size_t bytes);
void ot_cpu_copy_zero(ot_stream *stream, void *dst, size_t bytes);
void ot_cpu_stream_call(ot_stream *stream, ot_host_function *function, void *context);
ot_status ot_cpu_event_open(ot_device *base, int timed, ot_event **out);
void ot_cpu_event_close(ot_event *base);
void ot_cpu_event_record(ot_event *base, ot_stream *stream);
void ot_cpu_stream_wait(ot_stream *stream, ot_event *event);
int ot_cpu_event_reached(const ot_event *base);
ot_status ot_cpu_event_synchronize(ot_event *base);
int64_t ot_cpu_event_elapsed_ns(const ot_event *from, const ot_event *to);

#endif
