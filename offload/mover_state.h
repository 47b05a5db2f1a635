/* The state of the mover, shared by its files: mover.c opens, closes and runs; mover_lane.c has the lanes of
 * the device and the CPU, mover_nvme.c the two NVMe lanes.
 *
 * An operation in a run:
 *
 *     IDLE ──▶ ENQUEUED ──▶ DONE      lanes of the device
 *     IDLE ───────────────▶ DONE      lanes of the host
 *     any  ──▶ STOPPED                the run has failed
 *
 * | flag     | raised by                                                        | waited for by |
 * |----------|------------------------------------------------------------------|------------------------------------|
 * | ENQUEUED | the lane's thread, once the operation's end event is recorded    | threads of other device
 * lanes      | | DONE     | lanes of the host when it has ended; lanes of the device by a    | threads of all
 * lanes but those     | |          | host function, where an operation of the host waits for it       | that
 * get by with ENQUEUED          | | STOPPED  | ot_mover_stop, on all operations | whoever waits |
 *
 * Invariants:
 * 1. An operation starts only after the operations it waits for and, as far as it can tell, after the one
 * before it on its lane. The NVMe lanes keep several in flight, but none that share a place, and report their
 * ends in list order.
 * 2. STOPPED wakes every sleeper, and no thread sleeps on anything that STOPPED does not wake except the
 * drive and the device, whose work always ends. So nothing hangs.
 * 3. A device operation's event is recorded before ENQUEUED is raised, and no event is waited for before: a
 * full queue of a stream drains by itself.
 * 4. Nothing is allocated between open and close. */
#ifndef OT_OFFLOAD_MOVER_STATE_H
#define OT_OFFLOAD_MOVER_STATE_H

#include <pthread.h>

#include "offload/mover.h"
#include "offload/signal.h"

enum { OT_ENQUEUED = 2, OT_DONE = 4, OT_STOPPED = 8 }; /* of an operation's signal; 1 is OT_SIGNAL_SLEEPER */

/* Who waits for an operation, besides lanes of the host for one of the host. */
enum { OT_WAKES_STREAM = 1, OT_WAKES_HOST = 2, OT_WAKES_NVME = 4 };

/* What is known of an operation before the run. */
typedef struct mover_link {
    uint32_t event; /* lanes of the device: number among them in the list */
    uint32_t wakes;
} mover_link;

typedef struct mover_operation {
    ot_signal signal;
    ot_mover *mover; /* for the host function that reports it */
} mover_operation;

typedef struct mover_event {
    ot_event *start, *end; /* timed */
} mover_event;

/* A thread: of one lane, or of both NVMe lanes. */
typedef struct mover_worker {
    ot_mover *mover;
    ot_lane lane;
    int used, started;
    void (*run)(struct mover_worker *worker, const ot_list *list);
    ot_stream *stream;
    pthread_t thread;
} mover_worker;

enum { OT_MOVES_MAX = 16 }; /* chunks in flight on an NVMe lane; the drive's depth is in ot_block_options */

typedef struct mover_move {
    ot_store_move move;
    uint32_t operation;
    int64_t start_ns;
    int ended;
} mover_move;

/* One direction of the store: a ring of the moves in flight, oldest first. */
typedef struct mover_nvme {
    ot_lane lane;
    size_t next; /* operation of the list that is looked at next */
    size_t first, count;
    int64_t end_ns; /* of the last one that was reported */
    mover_move moves[OT_MOVES_MAX];
} mover_nvme;

struct ot_mover {
    ot_mover_options options;
    const ot_plan *plan;
    char *base[OT_TIERS]; /* of the arenas */
    ot_arena *host_arena;
    int pinned;
    ot_store *store;       /* NULL: the plan has no NVMe chunks */
    mover_nvme *nvme;      /* [2], by ot_block_direction */
    ot_signal nvme_signal; /* OT_DONE: something that an NVMe lane may wait for has changed */
    mover_link *links[OT_LISTS];
    size_t operation_count, event_count; /* of the longest list */
    mover_operation *operations;
    mover_event *events;
    ot_event *origin;  /* the start of the list, on the streams' clock */
    char (*names)[64]; /* of NVMe chunks that are nobody's home: activations */

    /* The run. */
    ot_list_kind list;
    int64_t origin_ns;
    ot_span *spans;
    ot_mover_stats stats;
    atomic_int stopped;
    pthread_mutex_t error_lock;
    ot_error error; /* the first failure, which stays; its status is OT_OK where the device holds the text */

    /* Start and end of runs. */
    pthread_mutex_t gate_lock;
    pthread_cond_t start, finish;
    uint64_t generation;
    int running, quit;
    mover_worker workers[OT_LANES];
};

static inline int ot_lane_of_device(ot_lane lane)
{
    return lane == OT_LANE_H2D || lane == OT_LANE_D2H || lane == OT_LANE_COMPUTE ||
           lane == OT_LANE_COLLECTIVE;
}

static inline int ot_lane_of_nvme(ot_lane lane)
{
    return lane == OT_LANE_NVME_READ || lane == OT_LANE_NVME_WRITE;
}

static inline int ot_mover_is_stopped(const ot_mover *mover)
{
    return atomic_load_explicit(&((ot_mover *)mover)->stopped, memory_order_relaxed);
}

/* Stops all lanes at their next operation. Any thread, the device's included. */
void ot_mover_stop(ot_mover *mover);

/* Keeps the calling thread's last failure, unless there was one before, and stops. */
void ot_mover_fail(ot_mover *mover, ot_status status);

/* Reports the end of an operation of a lane of the host. */
void ot_mover_done(ot_mover *mover, size_t operation);

/* Whether what an operation of a lane of the host waits for has ended. */
int ot_mover_is_ready(const ot_mover *mover, const ot_list *list, const ot_operation *operation);

/* The lanes: each works through its operations of the list, and returns when they have ended or, after a
 * failure, when none of them is in flight. */
void ot_mover_run_device(mover_worker *worker, const ot_list *list);
void ot_mover_run_cpu(mover_worker *worker, const ot_list *list);
void ot_mover_run_nvme(mover_worker *worker, const ot_list *list);

/* Asserts that places lie within their arenas, that NVMe places are the store's chunks, and that each
 * operation has the lane, the tiers and the bytes of its kind and waits for earlier ones only. */
void ot_mover_check(const ot_plan *plan);

#endif
