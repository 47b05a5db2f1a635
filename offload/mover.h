/* The mover: executes the plan's lists, and is the only one that moves a chunk.
 *
 * One worker a lane walks the lane's operations in list order. Before each it waits for what the plan says: for
 * operations of the host's lanes by their completion, for those of the device's lanes by events, so that device work is
 * enqueued ahead and never waits for the host without need. The two NVMe lanes share one thread, which is the only user of
 * the store and keeps several chunks in flight. What an operation computes is the caller's: two functions, one for
 * compute and collective operations, which enqueue kernels on a stream, and one for the CPU lane.
 *
 * The first failure of any operation stops all lanes at their next one; the run returns it when nothing is in flight any
 * more, and so does every later run: a mover that has failed can only be closed. */
#ifndef OT_OFFLOAD_MOVER_H
#define OT_OFFLOAD_MOVER_H

#include "io/host.h"
#include "io/status.h"
#include "kernels/device.h"
#include "offload/plan.h"
#include "offload/store.h"

typedef struct ot_mover ot_mover;

typedef struct ot_mover_options {
    const ot_plan *plan;            /* outlives the mover */
    ot_device *device;              /* with room for the plan's device arena */
    ot_host *host;                  /* with room for its host arena */
    const char *const *directories; /* of the store; needed where the plan has NVMe chunks */
    size_t directory_count;
    const double *directory_weights; /* NULL: equal */
    ot_block_options io;
    /* For the store's messages; the text lives as long as the mover. Activations are named by the mover. */
    const char *(*chunk_name)(void *context, const ot_chunk *chunk, ot_plane plane);

    /* Enqueues a compute or collective operation on `stream` and returns at once, without synchronising. Called on the lane's
     * thread, ahead of the device: what it reads on the host must be there when the list starts. */
    ot_status (*compute)(void *context, const ot_operation *operation, ot_stream *stream);
    /* Runs an operation of the CPU lane, on the lane's thread. */
    ot_status (*cpu)(void *context, const ot_operation *operation);
    /* Host memory with the step's data for OT_OP_DATA: data_bytes of it, left alone until the run returns. Called on the
     * H2D lane's thread. */
    const void *(*data)(void *context);
    /* The first failure has stopped the run; for what else waits. Called once, on any thread. NULL: nobody asks. */
    void (*stopped)(void *context);
    void *context;
} ot_mover_options;

/* Allocates both arenas and the store, opens the streams, starts the workers. Nothing is allocated afterwards. Options are
 * copied. OT_ERR_FIT where an arena does not fit; failures of ot_store_open are passed on. On failure nothing is left. */
ot_status ot_mover_open(const ot_mover_options *options, ot_mover **out) OT_MUST_CHECK;
void ot_mover_close(ot_mover *mover); /* NULL is allowed */

/* Executes a list and returns when all of it has ended. One caller at a time. */
ot_status ot_mover_run(ot_mover *mover, ot_list_kind list) OT_MUST_CHECK;

/* Where a place lies: device memory for device places, host memory for host places. For the functions above. */
void *ot_mover_address(const ot_mover *mover, int32_t place);

/* When an operation of the last list that ran started and ended, in nanoseconds from the start of the list. Operations of
 * one lane do not overlap: while several are in flight at the drive, time is the oldest one's. Host and device have each
 * their own clock, which agree within about 0.1 ms. Valid until the next run; without meaning after a failure. */
typedef struct ot_span {
    int64_t start_ns, end_ns;
} ot_span;
const ot_span *ot_mover_spans(const ot_mover *mover);

/* Of the last list that ran, by lane. A lane's wait is the time it stood still for other lanes between its first and its
 * last operation. */
typedef struct ot_mover_stats {
    int64_t total_ns;
    int64_t busy_ns[OT_LANES], wait_ns[OT_LANES];
    uint64_t bytes[OT_LANES]; /* moved, without the padding of chunks to pages; cpu, compute: touched */
} ot_mover_stats;
ot_mover_stats ot_mover_statistics(const ot_mover *mover);

#endif
