/* The two NVMe lanes, on one thread, which is the only user of the store.
 *
 * An operation is submitted in its lane's order, as soon as what it waits for has ended; several are in
 * flight on each lane. Their ends are reported in the lane's order, too, whichever the drive finishes first:
 * the plan may wait for the last of several alone. What shares a place with one in flight on its own lane is
 * held back until that one has ended.
 *
 * While something is in flight the thread sleeps at the drive, so an operation that becomes ready meanwhile
 * is submitted when the next piece has ended. */
#include "io/clock.h"
#include "offload/mover_state.h"

static mover_move *oldest(mover_nvme *lane, size_t k)
{
    return &lane->moves[(lane->first + k) % OT_MOVES_MAX];
}

static int share_a_place(const ot_operation *a, const ot_operation *b)
{
    for (int i = 0; i < 2; i++)
        if (a->places[i] == b->places[0] || a->places[i] == b->places[1])
            return 1;
    return 0;
}

/* Whether an operation in flight on the lane shares a place with this one. */
static int is_in_use(mover_nvme *lane, const ot_list *list, const ot_operation *operation)
{
    for (size_t k = 0; k < lane->count; k++)
        if (share_a_place(&list->operations[oldest(lane, k)->operation], operation))
            return 1;
    return 0;
}

static void submit(ot_mover *mover, ot_block_direction direction, const ot_operation *operation, size_t i)
{
    mover_nvme *lane = &mover->nvme[direction];
    mover_move *move = oldest(lane, lane->count++);
    move->operation = (uint32_t)i;
    move->ended = 0;
    move->start_ns = ot_clock_ns() - mover->origin_ns;
    int nvme = direction == OT_BLOCK_READ ? 0 : 1;
    ot_store_submit(mover->store, &move->move, direction,
                    (size_t)mover->plan->places[operation->places[nvme]].offset,
                    ot_mover_address(mover, operation->places[1 - nvme]), move);
}

/* The lane's next operation, or NULL at the end of the list. */
static const ot_operation *next_operation(mover_nvme *lane, const ot_list *list)
{
    while (lane->next < list->count && list->operations[lane->next].lane != lane->lane)
        lane->next++;
    return lane->next < list->count ? &list->operations[lane->next] : NULL;
}

/* Submits what can be. Returns whether the lane has more to submit later. */
static int submit_ready(ot_mover *mover, const ot_list *list, ot_block_direction direction)
{
    mover_nvme *lane = &mover->nvme[direction];
    const ot_operation *operation;
    while ((operation = next_operation(lane, list)) != NULL) {
        if (lane->count == OT_MOVES_MAX || is_in_use(lane, list, operation) ||
            !ot_mover_is_ready(mover, list, operation))
            return 1;
        if (is_in_use(&mover->nvme[!direction], list, operation)) {
            ot_mover_fail(mover,
                          ot_fail(OT_ERR_INTERNAL,
                                  "operation %zu of the list moves a place that the other NVMe lane still "
                                  "moves: a wait is missing in the plan",
                                  lane->next));
            return 0;
        }
        submit(mover, direction, operation, lane->next++);
    }
    return 0;
}

/* A lane's time is the oldest move's, so that spans of a lane do not overlap. */
static void report_oldest(ot_mover *mover, mover_nvme *lane)
{
    int64_t now = ot_clock_ns() - mover->origin_ns;
    for (; lane->count > 0 && oldest(lane, 0)->ended; lane->count--) {
        mover_move *move = oldest(lane, 0);
        lane->first = (lane->first + 1) % OT_MOVES_MAX;
        ot_span *span = &mover->spans[move->operation];
        span->start_ns = move->start_ns > lane->end_ns ? move->start_ns : lane->end_ns;
        span->end_ns = lane->end_ns = now;
        if (!ot_mover_is_stopped(mover))
            ot_mover_done(mover, move->operation);
    }
}

static void take_ended(ot_mover *mover)
{
    for (ot_store_move *done; (done = ot_store_next_done(mover->store)) != NULL;) {
        mover_move *move = done->context;
        move->ended = 1;
        mover->stats.bytes[done->direction == OT_BLOCK_READ ? OT_LANE_NVME_READ : OT_LANE_NVME_WRITE] +=
            mover->plan->lists[mover->list].operations[move->operation].bytes;
        if (done->error.status != OT_OK)
            ot_mover_fail(mover, ot_error_raise(&done->error));
    }
    for (int direction = OT_BLOCK_READ; direction <= OT_BLOCK_WRITE; direction++)
        report_oldest(mover, &mover->nvme[direction]);
}

void ot_mover_run_nvme(mover_worker *worker, const ot_list *list)
{
    ot_mover *mover = worker->mover;
    for (int direction = OT_BLOCK_READ; direction <= OT_BLOCK_WRITE; direction++) {
        mover->nvme[direction].next = 0;
        mover->nvme[direction].end_ns = 0;
    }
    for (;;) {
        int more = 0;
        ot_signal_clear(&mover->nvme_signal, OT_DONE); /* before looking: what comes after is not missed */
        for (int direction = OT_BLOCK_READ; direction <= OT_BLOCK_WRITE; direction++)
            if (!ot_mover_is_stopped(mover))
                more |= submit_ready(mover, list, (ot_block_direction)direction);
        if (ot_store_pending(mover->store) > 0) {
            ot_status status = ot_store_progress(mover->store);
            if (status != OT_OK) { /* the store is unusable: closing it waits for what is in flight */
                ot_mover_fail(mover, status);
                return;
            }
            take_ended(mover);
        } else if (!more || ot_mover_is_stopped(mover))
            return;
        else
            ot_signal_wait(&mover->nvme_signal, OT_DONE | OT_STOPPED);
    }
}
