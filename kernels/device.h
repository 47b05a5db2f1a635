/* A device: its memory, its streams and its events.
 *
 * Two implementations stand behind this header, chosen by name at run time. On the CPU device, device memory
 * is a capped arena of its own, a stream is a worker thread with a queue, an event is a counter: every copy
 * and every wait happens for real. Pointers to device memory are plain pointers that only the device may
 * follow; the host reads and writes them through copies alone, on the CPU device too.
 *
 * Streams. Work on one stream runs in the order in which it was enqueued; streams run at the same time and
 * are ordered by events alone. Enqueueing allocates nothing and does not wait for the work; it waits only
 * where the stream's queue is full. One thread at a time enqueues on a stream.
 *
 * Failures. A call that enqueues returns nothing. The first failure of any work sticks to the device: what is
 * enqueued or waiting on any of its streams is then skipped (on a GPU what waits still runs; events are still
 * recorded and host functions still called, so that nothing waits for ever), and every synchronisation returns
 * that failure until the device is closed.
 *
 * Common subset of C and C++. */
#ifndef OT_KERNELS_DEVICE_H
#define OT_KERNELS_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#include "io/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ot_device ot_device;
typedef struct ot_stream ot_stream;
typedef struct ot_event ot_event;
typedef struct ot_kernels ot_kernels; /* kernels.h */

/* What --device may say. */
#define OT_DEVICE_KINDS "auto|cpu|cuda"

/* The device for GPUs, which a build may be without. */
typedef struct ot_gpu_device {
    const char *kind, *name; /* "cuda", "CUDA" */
    const char *missing;     /* why this build does not have it, and what to do; NULL: it does */
} ot_gpu_device;
extern const ot_gpu_device ot_gpu_build;

typedef struct ot_device_options {
    const char *kind; /* "cpu", "cuda", or "auto" or NULL: the first that this machine has, of cuda, cpu */
    int ordinal;      /* which of several; with several ranks this one's number among those of its machine */
    int ranks;        /* of the group that the device will be attached to (collective.h); 0: 1 */
    uint64_t memory_bytes; /* hard cap on device memory, with everything that the device itself needs in it */
    size_t queue_length;   /* operations a stream holds; 0: 1024 */
    /* CPU device only. */
    int threads;            /* of the team that the streams share; 0: one per physical core allowed */
    int is_near, numa_node; /* is_near 1: on the processors of this memory node before others */
    const char *isa;        /* "baseline", "avx2", "avx512"; NULL: the best that this processor has */
    uint64_t jitter_seed;
    int64_t jitter_ns; /* above 0, every operation first sleeps a random time of up to this: a missing wait
                          shows */
} ot_device_options;

/* Opens a device. `options` and its texts are read during the call only. OT_ERR_USAGE for an unknown kind or
 * isa, OT_ERR_DEVICE where this machine does not have it. "auto" falls back to the CPU device with a line in the
 * log where there is a GPU that cannot be used.
 *
 * The CUDA device is a library of its own, libofftrain_cuda.so beside the program or in ../lib, which is opened
 * where the driver's libcuda.so.1 is; OFFTRAIN_CUDA_PLUGIN names another one, which is opened without asking for the
 * driver. */
ot_status ot_device_open(const ot_device_options *options, ot_device **out) OT_MUST_CHECK;

/* Waits for all streams, then frees everything that is still open on the device. NULL is allowed. */
void ot_device_close(ot_device *device);

typedef struct ot_device_info {
    char kind[16];          /* "cpu", "cuda" */
    char name[128];         /* the product's name */
    char isa[32];           /* "avx512", "sm_89" */
    uint64_t memory_bytes;  /* the cap */
    uint64_t total_bytes;   /* what the device has */
    uint64_t own_bytes;     /* of the cap, what the device itself takes: context and libraries */
    uint32_t dtypes;        /* bit 1 << ot_dtype: the kernels take it */
    uint32_t native_dtypes; /* as above: its matrix products run faster in it than in FP32 */
    int units;              /* threads of the team, or multiprocessors */
    int copy_lanes;         /* copies that run at the same time as compute: 1 or 2 */
    int host_memory;        /* 1: kernels of this device may be given host memory too */
    char address[32];       /* on the bus: "0000:01:00.0"; "" where it is no card */
    int numa_node; /* the kernel's number of the memory nearest to the device; -1: none, or unknown */
} ot_device_info;

void ot_device_query(const ot_device *device, ot_device_info *out);

/* The operations of the device; valid while it is open. */
const ot_kernels *ot_device_kernels(const ot_device *device);

/* ---- Memory. For one thread at a time; blocks. ---- */

/* Takes `bytes` of device memory, zeroed and aligned to 4096 bytes or more, under the cap; where within it
 * each slot lies is for the caller. `name` stands in messages. OT_ERR_FIT where the cap does not hold it
 * (with need and have). */
ot_status ot_device_arena_open(ot_device *device, const char *name, uint64_t bytes,
                               void **base) OT_MUST_CHECK;

/* Gives back an arena by its base; the caller has seen to it that no work uses it any more. NULL is
 * allowed. */
void ot_device_arena_close(ot_device *device, void *base);

/* Bytes of all open arenas with what the device itself takes, and the most they have been together. */
uint64_t ot_device_bytes(const ot_device *device);
uint64_t ot_device_peak_bytes(const ot_device *device);

/* Pins host memory, such as an io/host.h arena, so that copies from and to it are asynchronous and fast;
 * copies work without, slower. OT_ERR_DEVICE where it is refused: the caller can go on. The memory is
 * unpinned before it is freed. */
ot_status ot_device_pin(ot_device *device, void *base, uint64_t bytes) OT_MUST_CHECK;
void ot_device_unpin(ot_device *device, void *base);

/* ---- Streams. ---- */

/* What a stream is for: it sets the priority on a GPU (copies and collectives before compute). */
typedef enum ot_stream_kind {
    OT_STREAM_COMPUTE,
    OT_STREAM_H2D,
    OT_STREAM_D2H,
    OT_STREAM_COLLECTIVE,
    OT_STREAM_UPDATE, /* the optimizer */
} ot_stream_kind;

typedef struct ot_stream_options {
    ot_stream_kind kind;
    const char *name; /* in messages; copied */
    int threads; /* CPU device: a team of its own with so many threads; 0: shares the device's team, on which
                  * one kernel runs at a time */
} ot_stream_options;

ot_status ot_stream_open(ot_device *device, const ot_stream_options *options, ot_stream **out) OT_MUST_CHECK;

/* Waits for the stream's work first. NULL is allowed. */
void ot_stream_close(ot_stream *stream);

ot_device *ot_stream_device(const ot_stream *stream);

/* Waits until everything enqueued so far has run. Returns the device's first failure, if there was one. */
ot_status ot_stream_synchronize(ot_stream *stream) OT_MUST_CHECK;
ot_status ot_device_synchronize(ot_device *device) OT_MUST_CHECK;

/* The device's first failure so far, without waiting. */
ot_status ot_device_status(ot_device *device) OT_MUST_CHECK;

/* ---- Work on a stream. Nothing here waits for it. ---- */

/* Copies of `bytes` between host and device memory and within device memory; source and destination do not
 * overlap and stay valid until the copy has run. */
void ot_copy_h2d(ot_stream *stream, void *device_dst, const void *host_src, size_t bytes);
void ot_copy_d2h(ot_stream *stream, void *host_dst, const void *device_src, size_t bytes);
void ot_copy_d2d(ot_stream *stream, void *dst, const void *src, size_t bytes);

/* Sets `bytes` of device memory to zero. */
void ot_copy_zero(ot_stream *stream, void *dst, size_t bytes);

/* A function of the host, called when its turn comes, on a thread of the device. It makes no call that
 * enqueues or waits on this device. `before` is the device's status at this moment; the function is called
 * after a failure as well. What it returns other than OT_OK, with ot_fail, sticks to the device. */
typedef ot_status ot_host_function(void *context, ot_status before);
void ot_stream_call(ot_stream *stream, ot_host_function *function, void *context);

/* ---- Events. ---- */

/* `timed`: keeps the time at which it was recorded. */
ot_status ot_event_open(ot_device *device, int timed, ot_event **out) OT_MUST_CHECK;

/* Nothing records it or waits for it any more. NULL is allowed. */
void ot_event_close(ot_event *event);

/* Marks a point on a stream. An event is used again and again; a new point is ordered after the one before,
 * by being on the same stream or behind a wait for it. */
void ot_event_record(ot_event *event, ot_stream *stream);

/* What is enqueued on `stream` after this runs only when the point that was recorded last, in the order of
 * the calls, has been reached. An event never recorded is no wait. Both belong to one device; the recording
 * and this call are ordered by the caller. */
void ot_stream_wait(ot_stream *stream, ot_event *event);

/* Whether the point recorded last has been reached; and waits for it, then returns the device's status. */
int ot_event_reached(const ot_event *event);
ot_status ot_event_synchronize(ot_event *event) OT_MUST_CHECK;

/* Nanoseconds from one recorded point to another, both timed and reached. */
int64_t ot_event_elapsed_ns(const ot_event *from, const ot_event *to);

#ifdef __cplusplus
}
#endif
#endif
