/* The state of the CUDA device, shared by its host files: error.c turns the driver's codes into words, memory.c has
 * arenas and pinning, stream.c what runs, stage.c copies of memory that is not pinned, kernels.c and matmul.c the
 * table of operations, communicator.c what several ranks do together, event.c events, nvml.c the card's memory in
 * use, device.c the rest.
 *
 * Rules: no NULL stream, no managed memory, and nothing waits for the device but what device.h says waits. */
#ifndef OT_KERNELS_CUDA_STATE_H
#define OT_KERNELS_CUDA_STATE_H

#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdatomic.h>

#include "kernels/backend.h"
#include "kernels/cpu/counter.h"
#include "kernels/kernels.h"

enum { OT_CUDA_ARENAS_MAX = 64, OT_CUDA_PINS_MAX = 64 };

/* Below which /proc and /sys are; the emulated device's tests give another folder. */
#ifndef OT_CUDA_ROOT
#define OT_CUDA_ROOT ""
#endif

/* The driver takes long for one big registration and refuses some; tests set a smaller piece. */
#ifndef OT_CUDA_PIN_PIECE_BYTES
#define OT_CUDA_PIN_PIECE_BYTES (UINT64_C(1) << 30)
#endif

/* Of the ring that memory which is not pinned is copied through. */
#ifndef OT_CUDA_STAGE_BYTES
#define OT_CUDA_STAGE_BYTES ((size_t)2 << 20)
#endif
enum { OT_CUDA_STAGE_SLOTS = 2 };

typedef struct cuda_device cuda_device;
typedef struct cuda_stream cuda_stream;
typedef struct cuda_event cuda_event;

/* An open arena; the range is read by whoever enqueues a copy. */
typedef struct cuda_memory {
    void *block; /* as cudaMalloc gave it; NULL: free */
    uint64_t bytes;
    _Atomic uintptr_t begin, end;
} cuda_memory;

/* Pinned host memory, registered in pieces; as above. */
typedef struct cuda_pin {
    _Atomic uintptr_t begin, end; /* 0: free */
} cuda_pin;

/* A pinned ring of one direction, and the stream whose host functions fill and empty it. */
typedef struct cuda_stage {
    int is_open;
    unsigned taken; /* slots so far */
    unsigned char *ring;
    ot_event *full[OT_CUDA_STAGE_SLOTS], *empty[OT_CUDA_STAGE_SLOTS];
    ot_stream *side;
    pthread_mutex_t lock; /* orders those who enqueue */
} cuda_stage;

struct cuda_device {
    ot_device base;
    int ordinal;
    struct cudaDeviceProp properties;
    char bus_id[32];                  /* "0000:01:00.0" */
    uint64_t cap_bytes;               /* --gpu-mem */
    uint64_t own_bytes;               /* of context and libraries */
    uint64_t communicator_bytes;      /* of them set aside for several ranks */
    uint64_t workspace_bytes;         /* for each matrix product */
    uint64_t arena_bytes, peak_bytes; /* of open arenas; with own_bytes */
    cuda_memory memory[OT_CUDA_ARENAS_MAX];
    cuda_pin pins[OT_CUDA_PINS_MAX];
    cuda_stage stages[2]; /* to the device, to the host */
    int lowest_priority, highest_priority;
    size_t queue_length;
    pthread_mutex_t error_lock; /* orders the failures: the first one stays */
    atomic_int failed;          /* set once `error` is complete */
    atomic_int lost; /* the driver answers every call with an error: no host function is called by it */
    ot_error error;
    pthread_mutex_t streams_lock; /* the list is walked where the device is lost */
    cuda_stream *streams;
    cuda_event *events;
};

/* A host function on its way through a stream. */
typedef struct cuda_call {
    cuda_stream *stream;
    ot_host_function *function;
    void *context;
    void *dst; /* of a copy by the host */
    const void *src;
    size_t bytes;
    atomic_int taken; /* by who calls it: the driver's thread, or who finds that the device is lost */
} cuda_call;

struct cuda_stream {
    ot_stream base;
    cuda_stream *next;
    char name[32];
    cudaStream_t handle;
    cublasHandle_t cublas; /* NULL: matrix products are not for this kind of stream */
    ot_event *begin;       /* of its last copy of memory that is not pinned */
    cuda_call *calls;      /* a ring of `length` */
    uint32_t length;
    _Atomic uint32_t enqueued; /* calls */
    ot_counter called;
    pthread_mutex_t drain_lock;
};

struct cuda_event {
    ot_event base;
    cuda_event *next;
    cudaEvent_t handle;
};

static inline cuda_device *ot_cuda_device(const ot_stream *stream)
{
    return (cuda_device *)stream->device;
}

static inline cudaStream_t ot_cuda_handle(const ot_stream *stream)
{
    return ((const cuda_stream *)stream)->handle;
}

/* The program's text of a failure, which is not the plugin's (backend.h). */
extern ot_error (*_Atomic ot_program_error)(void);

/* Makes the device the calling thread's; every function that calls the driver begins with it. */
void ot_cuda_enter(const cuda_device *device);

/* ---- device.c ---- */

/* Counts at least so many bytes as the device's own. OT_ERR_FIT where the cap does not hold them. */
ot_status ot_cuda_reserve(ot_device *base, uint64_t own_bytes) OT_MUST_CHECK;

/* ---- error.c ---- */

/* Fails with what the code means and what to do; `what` names the object. cudaSuccess is OT_OK. */
ot_status ot_cuda_error(cudaError_t code, const char *what) OT_MUST_CHECK;
ot_status ot_cublas_error(cublasStatus_t code, const char *what) OT_MUST_CHECK;

/* Whether the code says that the context is beyond repair. */
int ot_cuda_is_fatal(cudaError_t code);

/* ---- nvml.c ---- */

/* Bytes of the card's memory in use, by everybody; needs no context. 0 where the driver's library that knows is not
 * there. */
uint64_t ot_cuda_used_bytes(const char *bus_id);

/* ---- memory.c ---- */

ot_status ot_cuda_arena_open(ot_device *base, const char *name, uint64_t bytes, void **out);
void ot_cuda_arena_close(ot_device *base, void *pointer);
uint64_t ot_cuda_bytes(const ot_device *device);
uint64_t ot_cuda_peak_bytes(const ot_device *device);
ot_status ot_cuda_pin(ot_device *base, void *pointer, uint64_t bytes, ot_pin_progress *progress);
void ot_cuda_unpin(ot_device *base, void *pointer);
void ot_cuda_release_memory(cuda_device *device);

/* Whether the bytes lie in device memory: 1 all of them, 0 none, -1 some. */
int ot_cuda_in_device(cuda_device *device, const void *pointer, size_t bytes);

/* How many of the bytes from `pointer` on the driver copies in one go, and whether they are pinned: it refuses what
 * crosses from one registered piece of host memory into another. */
size_t ot_cuda_copy_piece(cuda_device *device, const void *pointer, size_t bytes, int *pinned);

/* The failure of pinning `bytes`, of which `done` were. */
ot_status ot_cuda_pin_refused(uint64_t done, uint64_t bytes, cudaError_t code) OT_MUST_CHECK;

/* ---- stage.c ---- */

/* A stage that could not be opened is closed, too; its stream and events are closed with the device's. */
ot_status ot_cuda_stage_open(cuda_device *device, ot_stream_kind kind, cuda_stage *stage) OT_MUST_CHECK;
void ot_cuda_stage_close(cuda_stage *stage);

/* Enqueues a copy between the device and host memory that is not pinned. */
void ot_cuda_stage_copy(ot_stream *stream, void *dst, const void *src, size_t bytes,
                        enum cudaMemcpyKind kind);

/* ---- stream.c ---- */

/* Keeps the calling thread's failure as the device's, unless there was one before. */
void ot_cuda_reject(ot_stream *stream, ot_status status);

/* What a call of the driver returned; a failure sticks to the device. `what` names the operation. */
void ot_cuda_check(ot_stream *stream, cudaError_t code, const char *what);

/* Whether work may still be enqueued. */
int ot_cuda_is_sound(const ot_stream *stream);

ot_status ot_cuda_status(ot_device *base);
ot_status ot_cuda_synchronize(ot_device *base);
ot_status ot_cuda_stream_open(ot_device *base, const ot_stream_options *options, ot_stream **out);
void ot_cuda_stream_close(ot_stream *base);
ot_status ot_cuda_stream_synchronize(ot_stream *base);
void ot_cuda_copy_h2d(ot_stream *stream, void *dst, const void *src, size_t bytes);
void ot_cuda_copy_d2h(ot_stream *stream, void *dst, const void *src, size_t bytes);
void ot_cuda_copy_d2d(ot_stream *stream, void *dst, const void *src, size_t bytes);
void ot_cuda_copy_zero(ot_stream *stream, void *dst, size_t bytes);
void ot_cuda_stream_call(ot_stream *stream, ot_host_function *function, void *context);

/* Enqueues a copy of host memory, which the host does. */
void ot_cuda_stream_move(ot_stream *stream, void *dst, const void *src, size_t bytes);

/* The calling thread's failure in the program sticks to the device. */
void ot_cuda_fail(ot_device *base);

/* ---- communicator.c ---- */

extern const ot_communicator_ops ot_cuda_communicator;

/* ---- event.c ---- */

ot_status ot_cuda_event_open(ot_device *base, int timed, ot_event **out);
void ot_cuda_event_close(ot_event *base);
void ot_cuda_event_record(ot_event *base, ot_stream *stream);
void ot_cuda_stream_wait(ot_stream *stream, ot_event *base);
int ot_cuda_event_reached(const ot_event *base);
ot_status ot_cuda_event_synchronize(ot_event *base);
int64_t ot_cuda_event_elapsed_ns(const ot_event *from, const ot_event *to);

/* ---- matmul.c, kernels.c ---- */

void ot_cuda_matmul(ot_stream *stream, const ot_matmul *args);
uint64_t ot_cuda_matmul_workspace(const ot_device *device, const ot_matmul *args);
extern const ot_kernels ot_kernels_cuda;

#endif
