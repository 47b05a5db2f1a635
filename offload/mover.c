/* The mover: opening, closing, and a run from its start to its outcome. What the lanes do is in mover_lane.c
 * and mover_nvme.c; how they wait for one another is in mover_state.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/clock.h"
#include "io/log.h"
#include "offload/mover_state.h"

/* ---- What the lanes share ---- */

void ot_mover_stop(ot_mover *mover)
{
    if (atomic_exchange_explicit(&mover->stopped, 1, memory_order_relaxed))
        return;
    for (size_t i = 0; i < mover->operation_count; i++)
        ot_signal_raise(&mover->operations[i].signal, OT_STOPPED);
    ot_signal_raise(&mover->nvme_signal, OT_STOPPED);
    if (mover->options.stopped != NULL)
        mover->options.stopped(mover->options.context);
}

void ot_mover_fail(ot_mover *mover, ot_status status)
{
    pthread_mutex_lock(&mover->error_lock);
    if (mover->error.status == OT_OK) {
        mover->error = ot_error_take();
        mover->error.status = status;
    }
    pthread_mutex_unlock(&mover->error_lock);
    ot_mover_stop(mover);
}

void ot_mover_done(ot_mover *mover, size_t operation)
{
    ot_signal_raise(&mover->operations[operation].signal, OT_DONE);
    if (mover->links[mover->list][operation].wakes & OT_WAKES_NVME)
        ot_signal_raise(&mover->nvme_signal, OT_DONE);
}

int ot_mover_is_ready(const ot_mover *mover, const ot_list *list, const ot_operation *operation)
{
    for (uint32_t w = 0; w < operation->wait_count; w++)
        if (!(ot_signal_flags(&mover->operations[list->waits[operation->wait_first + w]].signal) & OT_DONE))
            return 0;
    return 1;
}

void *ot_mover_address(const ot_mover *mover, int32_t place)
{
    OT_ASSERT(place >= 0 && (size_t)place < mover->plan->place_count);
    const ot_place *p = &mover->plan->places[place];
    OT_ASSERT(p->tier != OT_TIER_NVME);
    return mover->base[p->tier] + p->offset;
}

/* ---- Opening ---- */

static ot_status out_of_memory(void)
{
    return ot_fail(OT_ERR_INTERNAL, "out of memory for the mover's tables");
}

/* Numbers the events of a list and says who waits for each operation. */
static void link_operations(const ot_list *list, mover_link *links, size_t *event_count)
{
    uint32_t events = 0;
    for (size_t i = 0; i < list->count; i++) {
        const ot_operation *operation = &list->operations[i];
        links[i] = (mover_link){.event = events};
        events += ot_lane_of_device(operation->lane) ? 1u : 0;
        for (uint32_t w = 0; w < operation->wait_count; w++) {
            uint32_t earlier = list->waits[operation->wait_first + w];
            ot_lane lane = list->operations[earlier].lane;
            if (ot_lane_of_device(lane) && lane != operation->lane)
                links[earlier].wakes |= ot_lane_of_device(operation->lane) ? OT_WAKES_STREAM : OT_WAKES_HOST;
            if (ot_lane_of_nvme(operation->lane) && !ot_lane_of_nvme(lane))
                links[earlier].wakes |= OT_WAKES_NVME;
        }
    }
    *event_count = events > *event_count ? events : *event_count;
}

static ot_status open_tables(ot_mover *mover)
{
    for (int l = 0; l < OT_LISTS; l++) {
        const ot_list *list = &mover->plan->lists[l];
        mover->links[l] = calloc(list->count + 1, sizeof *mover->links[l]);
        if (mover->links[l] == NULL)
            return out_of_memory();
        link_operations(list, mover->links[l], &mover->event_count);
        if (list->count > mover->operation_count)
            mover->operation_count = list->count;
        for (size_t i = 0; i < list->count; i++)
            mover->workers[list->operations[i].lane].used = 1;
    }
    mover->operations = calloc(mover->operation_count + 1, sizeof *mover->operations);
    mover->spans = calloc(mover->operation_count + 1, sizeof *mover->spans);
    mover->events = calloc(mover->event_count + 1, sizeof *mover->events);
    if (mover->operations == NULL || mover->spans == NULL || mover->events == NULL)
        return out_of_memory();
    for (size_t i = 0; i < mover->operation_count; i++)
        mover->operations[i].mover = mover;
    return OT_OK;
}

static ot_status open_arenas(ot_mover *mover)
{
    const uint64_t *bytes = mover->plan->arena_bytes;
    void *device_base;
    if (bytes[OT_TIER_HOST] > 0) {
        OT_TRY(ot_arena_open(mover->options.host, "places", bytes[OT_TIER_HOST], OT_PAGES_BEST,
                             &mover->host_arena));
        mover->base[OT_TIER_HOST] = ot_arena_base(mover->host_arena);
    }
    if (bytes[OT_TIER_DEVICE] > 0) {
        OT_TRY(ot_device_arena_open(mover->options.device, "places", bytes[OT_TIER_DEVICE], &device_base));
        mover->base[OT_TIER_DEVICE] = device_base;
    }
    if (mover->host_arena == NULL)
        return OT_OK;
    mover->pinned = ot_device_pin(mover->options.device, ot_arena_base(mover->host_arena),
                                  ot_arena_bytes(mover->host_arena)) == OT_OK;
    if (!mover->pinned)
        ot_log(OT_LOG_WARNING,
               "host memory is not pinned (%s): copies go through a small pinned ring and are slower",
               ot_error_text());
    return OT_OK;
}

/* A place that is nobody's home holds activations: it is named after the operation that fills it. */
static void name_activation(const ot_plan *plan, int32_t place, char name[64])
{
    snprintf(name, 64, "activation");
    for (int l = 0; l < OT_LISTS; l++)
        for (size_t i = 0; i < plan->lists[l].count; i++) {
            const ot_operation *operation = &plan->lists[l].operations[i];
            if (operation->kind != OT_OP_WRITE || operation->places[1] != place)
                continue;
            snprintf(name, 64, "activation of stage %d, micro-batch %d", (int)operation->stage,
                     (int)operation->micro_batch);
            return;
        }
}

static ot_status list_chunks(ot_mover *mover, ot_store_chunk *chunks)
{
    const ot_plan *plan = mover->plan;
    mover->names = calloc(plan->nvme_chunk_count, sizeof *mover->names);
    if (mover->names == NULL)
        return out_of_memory();
    for (size_t p = 0; p < plan->place_count; p++) {
        const ot_place *place = &plan->places[p];
        if (place->tier != OT_TIER_NVME)
            continue;
        ot_store_chunk *chunk = &chunks[place->offset];
        OT_ASSERT(chunk->bytes == 0);
        chunk->bytes = place->bytes;
        if (place->chunk >= 0)
            chunk->name =
                mover->options.chunk_name(mover->options.context, &plan->chunks[place->chunk], place->plane);
        else {
            name_activation(plan, (int32_t)p, mover->names[place->offset]);
            chunk->name = mover->names[place->offset];
        }
    }
    return OT_OK;
}

static ot_status open_store(ot_mover *mover)
{
    size_t count = mover->plan->nvme_chunk_count;
    if (count == 0)
        return OT_OK;
    ot_status status = OT_OK;
    ot_store_chunk *chunks = calloc(count, sizeof *chunks);
    mover->nvme = calloc(2, sizeof *mover->nvme);
    if (chunks == NULL || mover->nvme == NULL)
        OT_TRY_GOTO(out_of_memory(), out);
    mover->nvme[OT_BLOCK_READ].lane = OT_LANE_NVME_READ;
    mover->nvme[OT_BLOCK_WRITE].lane = OT_LANE_NVME_WRITE;
    OT_TRY_GOTO(list_chunks(mover, chunks), out);
    ot_block_buffer buffer = {mover->base[OT_TIER_HOST],
                              mover->host_arena != NULL ? ot_arena_bytes(mover->host_arena) : 0};
    ot_store_options options = {
        .directories = mover->options.directories,
        .directory_count = mover->options.directory_count,
        .weights = mover->options.directory_weights,
        .chunks = chunks,
        .chunk_count = count,
        .buffers = &buffer,
        .buffer_count = buffer.bytes > 0,
        .io = mover->options.io,
    };
    OT_TRY_GOTO(ot_store_open(&options, &mover->store), out);
out:
    free(chunks);
    return status;
}

static ot_status open_streams(ot_mover *mover)
{
    static const ot_stream_kind kinds[OT_LANES] = {
        [OT_LANE_H2D] = OT_STREAM_H2D,
        [OT_LANE_D2H] = OT_STREAM_D2H,
        [OT_LANE_COMPUTE] = OT_STREAM_COMPUTE,
        [OT_LANE_COLLECTIVE] = OT_STREAM_COLLECTIVE,
    };
    ot_device *device = mover->options.device;
    for (int lane = 0; lane < OT_LANES; lane++) {
        if (!mover->workers[lane].used || !ot_lane_of_device((ot_lane)lane))
            continue;
        ot_stream_options options = {.kind = kinds[lane], .name = ot_lane_name((ot_lane)lane)};
        OT_TRY(ot_stream_open(device, &options, &mover->workers[lane].stream));
    }
    if (mover->event_count > 0)
        OT_TRY(ot_event_open(device, 1, &mover->origin));
    for (size_t e = 0; e < mover->event_count; e++) {
        OT_TRY(ot_event_open(device, 1, &mover->events[e].start));
        OT_TRY(ot_event_open(device, 1, &mover->events[e].end));
    }
    return OT_OK;
}

/* A worker waits for the next run, works through its lane, and says that it has ended. */
static void *worker_main(void *argument)
{
    mover_worker *worker = argument;
    ot_mover *mover = worker->mover;
    uint64_t seen = 0;
    pthread_mutex_lock(&mover->gate_lock);
    for (;;) {
        while (mover->generation == seen && !mover->quit)
            pthread_cond_wait(&mover->start, &mover->gate_lock);
        if (mover->quit)
            break;
        seen = mover->generation;
        pthread_mutex_unlock(&mover->gate_lock);
        worker->run(worker, &mover->plan->lists[mover->list]);
        pthread_mutex_lock(&mover->gate_lock);
        if (--mover->running == 0)
            pthread_cond_signal(&mover->finish);
    }
    pthread_mutex_unlock(&mover->gate_lock);
    return NULL;
}

static ot_status start_workers(ot_mover *mover)
{
    mover_worker *workers = mover->workers;
    workers[OT_LANE_NVME_READ].used |= workers[OT_LANE_NVME_WRITE].used; /* one thread has both */
    workers[OT_LANE_NVME_WRITE].used = 0;
    for (int lane = 0; lane < OT_LANES; lane++) {
        mover_worker *worker = &workers[lane];
        if (!worker->used)
            continue;
        worker->run = lane == OT_LANE_CPU                ? ot_mover_run_cpu
                      : ot_lane_of_device((ot_lane)lane) ? ot_mover_run_device
                                                         : ot_mover_run_nvme;
        int code = pthread_create(&worker->thread, NULL, worker_main, worker);
        if (code != 0)
            return ot_fail(OT_ERR_INTERNAL,
                           "cannot start the thread of lane %s: %s; raise the limit on processes",
                           ot_lane_name((ot_lane)lane), strerror(code));
        worker->started = 1;
        pthread_setname_np(worker->thread, ot_lane_name((ot_lane)lane));
    }
    return OT_OK;
}

ot_status ot_mover_open(const ot_mover_options *options, ot_mover **out)
{
    ot_mover_check(options->plan);
    ot_mover *mover = calloc(1, sizeof *mover);
    if (mover == NULL)
        return out_of_memory();
    ot_status status = OT_OK;
    mover->options = *options;
    mover->plan = options->plan;
    for (int lane = 0; lane < OT_LANES; lane++) {
        mover->workers[lane].mover = mover;
        mover->workers[lane].lane = (ot_lane)lane;
    }
    pthread_mutex_init(&mover->error_lock, NULL);
    pthread_mutex_init(&mover->gate_lock, NULL);
    pthread_cond_init(&mover->start, NULL);
    pthread_cond_init(&mover->finish, NULL);
    OT_TRY_GOTO(open_tables(mover), out);
    OT_TRY_GOTO(open_arenas(mover), out);
    OT_TRY_GOTO(open_store(mover), out);
    OT_TRY_GOTO(open_streams(mover), out);
    OT_TRY_GOTO(start_workers(mover), out);
    *out = mover;
    return OT_OK;
out:
    ot_mover_close(mover);
    return status;
}

/* ---- Closing ---- */

static void stop_workers(ot_mover *mover)
{
    pthread_mutex_lock(&mover->gate_lock);
    mover->quit = 1;
    pthread_cond_broadcast(&mover->start);
    pthread_mutex_unlock(&mover->gate_lock);
    for (int lane = 0; lane < OT_LANES; lane++)
        if (mover->workers[lane].started)
            pthread_join(mover->workers[lane].thread, NULL);
}

void ot_mover_close(ot_mover *mover)
{
    if (mover == NULL)
        return;
    stop_workers(mover);
    for (int lane = 0; lane < OT_LANES; lane++)
        ot_stream_close(mover->workers[lane].stream);
    for (size_t e = mover->events != NULL ? mover->event_count : 0; e-- > 0;) {
        ot_event_close(mover->events[e].end);
        ot_event_close(mover->events[e].start);
    }
    ot_event_close(mover->origin);
    ot_store_close(mover->store);
    if (mover->pinned)
        ot_device_unpin(mover->options.device, mover->base[OT_TIER_HOST]);
    ot_device_arena_close(mover->options.device, mover->base[OT_TIER_DEVICE]);
    ot_arena_close(mover->host_arena);
    for (int list = 0; list < OT_LISTS; list++)
        free(mover->links[list]);
    pthread_cond_destroy(&mover->finish);
    pthread_cond_destroy(&mover->start);
    pthread_mutex_destroy(&mover->gate_lock);
    pthread_mutex_destroy(&mover->error_lock);
    free(mover->names);
    free(mover->nvme);
    free(mover->events);
    free(mover->spans);
    free(mover->operations);
    free(mover);
}

/* ---- A run ---- */

/* Sets the start of the list's time, on the host's clock and on the streams'. The two are as far apart as the
 * event takes; where that is long, as when the host was interrupted, another try may be better. */
static ot_status start_clock(ot_mover *mover)
{
    const int64_t close_ns = 100000;
    mover->origin_ns = ot_clock_ns();
    if (mover->origin == NULL)
        return OT_OK;
    int lane = 0;
    while (mover->workers[lane].stream == NULL)
        lane++;
    for (int attempt = 0; attempt < 3; attempt++) {
        mover->origin_ns = ot_clock_ns();
        ot_event_record(mover->origin, mover->workers[lane].stream);
        OT_TRY(ot_event_synchronize(mover->origin));
        if (ot_clock_ns() - mover->origin_ns < close_ns)
            break;
    }
    return OT_OK;
}

static void run_workers(ot_mover *mover)
{
    pthread_mutex_lock(&mover->gate_lock);
    for (int lane = 0; lane < OT_LANES; lane++)
        mover->running += mover->workers[lane].started;
    mover->generation++;
    pthread_cond_broadcast(&mover->start);
    while (mover->running > 0)
        pthread_cond_wait(&mover->finish, &mover->gate_lock);
    pthread_mutex_unlock(&mover->gate_lock);
}

/* The first failure of this run or an earlier one. */
static ot_status outcome(ot_mover *mover)
{
    if (!ot_mover_is_stopped(mover))
        return OT_OK;
    if (mover->error.status == OT_OK) {
        ot_status status = ot_device_status(mover->options.device);
        OT_ASSERT(status != OT_OK);
        mover->error = ot_error_take();
    }
    return ot_error_raise(&mover->error);
}

static int64_t since_origin(const ot_mover *mover, const ot_event *event)
{
    int64_t ns = ot_event_elapsed_ns(mover->origin, event);
    return ns > 0 ? ns : 0;
}

/* Reads the times of the device's operations and adds up the lanes'. */
static void measure(ot_mover *mover, const ot_list *list)
{
    int64_t first[OT_LANES] = {0}, last[OT_LANES] = {0};
    for (size_t i = 0; i < list->count; i++) {
        ot_lane lane = list->operations[i].lane;
        ot_span *span = &mover->spans[i];
        if (ot_lane_of_device(lane)) {
            const mover_event *event = &mover->events[mover->links[mover->list][i].event];
            *span = (ot_span){since_origin(mover, event->start), since_origin(mover, event->end)};
        }
        if (last[lane] == 0)
            first[lane] = span->start_ns;
        last[lane] = span->end_ns;
        mover->stats.busy_ns[lane] += span->end_ns - span->start_ns;
    }
    for (int lane = 0; lane < OT_LANES; lane++)
        if (last[lane] > 0)
            mover->stats.wait_ns[lane] = last[lane] - first[lane] - mover->stats.busy_ns[lane];
}

ot_status ot_mover_run(ot_mover *mover, ot_list_kind kind)
{
    const ot_list *list = &mover->plan->lists[kind];
    OT_TRY(outcome(mover));
    mover->list = kind;
    mover->stats = (ot_mover_stats){0};
    memset(mover->spans, 0, mover->operation_count * sizeof *mover->spans);
    for (size_t i = 0; i < list->count; i++)
        ot_signal_reset(&mover->operations[i].signal);
    ot_status status = start_clock(mover);
    if (status != OT_OK) {
        ot_mover_fail(mover, status);
        return outcome(mover);
    }
    run_workers(mover);
    OT_TRY(outcome(mover));
    mover->stats.total_ns = ot_clock_ns() - mover->origin_ns;
    measure(mover, list);
    return OT_OK;
}

const ot_span *ot_mover_spans(const ot_mover *mover)
{
    return mover->spans;
}

ot_mover_stats ot_mover_statistics(const ot_mover *mover)
{
    return mover->stats;
}
