/* What the fakes share: memory.c has device and pinned memory and copies, stream.c queues, executors and events,
 * runtime.c the rest of the runtime, cublas.c matrix products, nccl.c collective operations. */
#ifndef OT_TESTS_FAKECUDA_STATE_H
#define OT_TESTS_FAKECUDA_STATE_H

#include <pthread.h>
#include <stdalign.h>
#include <stdatomic.h>

#include "kernels/cpu/counter.h"
#include "tests/fakecuda/fakecuda.h"

enum { FAKE_QUEUE = 1024, FAKE_ARGS_BYTES = 192, FAKE_CARDS_MAX = 32 };

/* What runs when its turn comes; memory of the device is open to it. */
typedef cudaError_t fake_run(void *args);

/* Whether it can run: asked again and again, since what it waits for is of another process. */
typedef int fake_ready(void *args);

typedef struct fake_operation {
    fake_run *run;
    fake_ready *ready;     /* NULL: when its turn comes */
    int is_kernel_or_copy; /* where the planted failures strike */
    alignas(16) unsigned char args[FAKE_ARGS_BYTES];
} fake_operation;

struct CUstream_st {
    int device, number;
    int starved;       /* choices left during which it is passed over */
    uint32_t enqueued; /* by the thread that enqueues */
    ot_counter published, done;
    pthread_t thread; /* with threads */
    fake_operation ring[FAKE_QUEUE];
};

struct CUevent_st {
    int device, timed;
    uint32_t recorded; /* points enqueued so far */
    ot_counter reached;
    int64_t time_ns;
};

typedef struct fake_state {
    fakecuda_options options;
    _Atomic int damaged; /* what this rank less 1 gives in a collective has a bit flipped; 0: none */
    _Atomic int lost;    /* cudaError_t: the context is beyond repair */
    _Atomic uint64_t calls, kernels, products, host_syncs, pageable_copies, refused, h2d_bytes, d2h_bytes,
        d2d_bytes, device_bytes, device_peak_bytes, pinned_bytes;
    _Atomic uint64_t card_bytes[FAKE_CARDS_MAX];
} fake_state;

extern fake_state fake;

/* ---- runtime.c ---- */

/* The calling thread's card. */
int fake_current_device(void);

/* What a call answers before it does anything: the planted failure, a lost device, a host function's call. */
cudaError_t fake_enter(const char *function);

/* Keeps the failure as the thread's last error and returns it. */
cudaError_t fake_fail(cudaError_t error);

/* The failure planted for the execution of an operation, or cudaSuccess. */
cudaError_t fake_execution_fault(void);
void fake_in_host_function(int inside);

/* Whether a stream may be used by this thread. */
int fake_stream_usable(cudaStream_t stream);

#define FAKE_ENTER()                                                                                         \
    do {                                                                                                     \
        cudaError_t entered_ = fake_enter(__func__);                                                         \
        if (entered_ != cudaSuccess)                                                                         \
            return entered_;                                                                                 \
    } while (0)

static inline void fake_add(_Atomic uint64_t *counter, uint64_t n)
{
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

/* ---- memory.c ---- */

/* Takes bytes of the calling thread's card for what is no block: contexts, libraries. 0 where they are not there. */
int fake_take_bytes(uint64_t bytes);
void fake_give_bytes(uint64_t bytes);
void fake_give_bytes_of(int card, uint64_t bytes);
int fake_in_block(const void *pointer, size_t bytes);
void fake_forget_pins(void); /* with the context of a lost card, which gives nothing back */

/* Opens the device's memory to the process, and closes it again; with threads it stays open. */
void fake_open_memory(void);
void fake_close_memory(void);

/* ---- stream.c ---- */

/* Copies the arguments; waits where the queue is full. */
void fake_enqueue(cudaStream_t stream, fake_run *run, int is_kernel_or_copy, const void *args, size_t bytes);
void fake_enqueue_polled(cudaStream_t stream, fake_ready *ready, fake_run *run, const void *args,
                         size_t bytes);
void fake_wait_stream(cudaStream_t stream);
void fake_wait_card(void); /* for the streams of the calling thread's */
void fake_restart(void);   /* after a change of the options; there are no streams */

#endif
