/* The lanes of the device, whose threads enqueue, and the lane of the CPU. */
#include "io/clock.h"
#include "offload/mover_state.h"

/* Blocks until an operation has come so far. Returns 0 where the run stops. */
static int wait_for(ot_mover *mover, size_t operation, uint32_t flag)
{
    return !(ot_signal_wait(&mover->operations[operation].signal, flag | OT_STOPPED) & OT_STOPPED);
}

/* ---- The device ---- */

/* Operations of the lane itself are ordered by the stream; those of another stream by their event, behind
 * which the device waits; those of the host are waited for here. */
static int wait_for_earlier(mover_worker *worker, const ot_list *list, const ot_operation *operation)
{
    ot_mover *mover = worker->mover;
    for (uint32_t w = 0; w < operation->wait_count; w++) {
        uint32_t earlier = list->waits[operation->wait_first + w];
        ot_lane lane = list->operations[earlier].lane;
        if (lane == worker->lane)
            continue;
        if (!wait_for(mover, earlier, ot_lane_of_device(lane) ? OT_ENQUEUED : OT_DONE))
            return 0;
        if (ot_lane_of_device(lane))
            ot_stream_wait(worker->stream, mover->events[mover->links[mover->list][earlier].event].end);
    }
    return 1;
}

static ot_status enqueue(mover_worker *worker, const ot_operation *operation)
{
    const ot_mover_options *options = &worker->mover->options;
    const int32_t *places = operation->places;
    const void *source;
    switch (operation->kind) {
    case OT_OP_H2D:
    case OT_OP_DATA:
        source = operation->kind == OT_OP_DATA ? options->data(options->context)
                                               : ot_mover_address(worker->mover, places[0]);
        ot_copy_h2d(worker->stream, (char *)ot_mover_address(worker->mover, places[1]) + operation->offset,
                    source, operation->bytes);
        return OT_OK;
    case OT_OP_D2H:
        ot_copy_d2h(worker->stream, ot_mover_address(worker->mover, places[1]),
                    (char *)ot_mover_address(worker->mover, places[0]) + operation->offset, operation->bytes);
        return OT_OK;
    default:
        return options->compute(options->context, operation, worker->stream);
    }
}

/* A host function. After a failure of the device the operation has not run: the device has the text. */
static ot_status report(void *context, ot_status before)
{
    mover_operation *operation = context;
    ot_mover *mover = operation->mover;
    if (before != OT_OK)
        ot_mover_stop(mover);
    else
        ot_mover_done(mover, (size_t)(operation - mover->operations));
    return OT_OK;
}

static ot_status enqueue_between_events(mover_worker *worker, const ot_list *list, size_t i)
{
    ot_mover *mover = worker->mover;
    const mover_link *link = &mover->links[mover->list][i];
    const mover_event *event = &mover->events[link->event];
    ot_event_record(event->start, worker->stream);
    OT_TRY(enqueue(worker, &list->operations[i]));
    ot_event_record(event->end, worker->stream);
    if (link->wakes & OT_WAKES_STREAM)
        ot_signal_raise(&mover->operations[i].signal, OT_ENQUEUED);
    if (link->wakes & OT_WAKES_HOST)
        ot_stream_call(worker->stream, report, &mover->operations[i]);
    mover->stats.bytes[worker->lane] += list->operations[i].bytes;
    return OT_OK;
}

void ot_mover_run_device(mover_worker *worker, const ot_list *list)
{
    ot_mover *mover = worker->mover;
    ot_status status = OT_OK;
    for (size_t i = 0; i < list->count && status == OT_OK && !ot_mover_is_stopped(mover); i++) {
        if (list->operations[i].lane != worker->lane)
            continue;
        if (!wait_for_earlier(worker, list, &list->operations[i]))
            break;
        status = ot_device_status(mover->options.device);
        if (status == OT_OK)
            status = enqueue_between_events(worker, list, i);
    }
    if (status != OT_OK)
        ot_mover_fail(mover, status);
    status = ot_stream_synchronize(worker->stream);
    if (status != OT_OK)
        ot_mover_fail(mover, status);
}

/* ---- The CPU ---- */

static int wait_until_ready(ot_mover *mover, const ot_list *list, const ot_operation *operation)
{
    for (uint32_t w = 0; w < operation->wait_count; w++)
        if (!wait_for(mover, list->waits[operation->wait_first + w], OT_DONE))
            return 0;
    return 1;
}

void ot_mover_run_cpu(mover_worker *worker, const ot_list *list)
{
    ot_mover *mover = worker->mover;
    for (size_t i = 0; i < list->count && !ot_mover_is_stopped(mover); i++) {
        const ot_operation *operation = &list->operations[i];
        if (operation->lane != worker->lane)
            continue;
        if (!wait_until_ready(mover, list, operation))
            return;
        mover->spans[i].start_ns = ot_clock_ns() - mover->origin_ns;
        ot_status status = mover->options.cpu(mover->options.context, operation);
        if (status != OT_OK) {
            ot_mover_fail(mover, status);
            return;
        }
        mover->spans[i].end_ns = ot_clock_ns() - mover->origin_ns;
        mover->stats.bytes[worker->lane] += operation->bytes;
        ot_mover_done(mover, i);
    }
}
