/* Collective operations by the device itself: the ranks' devices are joined, an operation is work on a stream like any other, and
 * a watcher sees to it that none waits for ever.
 *
 * Invariants
 *  1. Calls run in the order in which they were enqueued; entry k of the ring is free again once `ended` has passed k.
 *  2. A call's `begin` is recorded before it can be seen by the watcher, its `end` before `complete` is set.
 *  3. The first failure of a call, whoever finds it, sticks to the device before the communicator is aborted: what
 *     waited for the call then runs, and nobody takes its results for good. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "io/clock.h"
#include "kernels/group.h"

enum {
    NAP_NS = 2000000,     /* of the watcher, while operations are under way */
    SETTLE_NS = 20000,    /* of who enqueues, while one is set up */
    TEST_S = 120,         /* the most that joining and the first operation may take */
    TEST_BYTES = 64 << 10 /* of each rank */
};

typedef struct device_call {
    ot_group_verb verb;
    const char *what;
    uint64_t step;
    ot_event *begin, *end;
    int64_t begun_ns; /* when its turn had come; 0: it has not */
    atomic_int complete;
} device_call;

struct ot_attachment {
    ot_group *group;
    ot_device *device;
    const ot_communicator_ops *ops;
    ot_communicator *communicator;
    _Atomic int64_t timeout_ns;
    atomic_int failed;

    pthread_t watcher;
    int is_watched;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t changed;
    uint64_t enqueued, ended;
    int closing;
    device_call calls[OT_GROUP_CALLS_MAX];
};

/* ---- failures ---- */

static void give_up(ot_attachment *a, const device_call *call, const char *reason)
{
    if (atomic_exchange(&a->failed, 1))
        return;
    if (ot_group_fail(a->group, call->step, call->verb, call->what, reason) != OT_OK)
        a->device->ops->fail(a->device);
    a->ops->abort(a->communicator);
    pthread_mutex_lock(&a->lock);
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

static int is_cancelled(const ot_attachment *a)
{
    return atomic_load_explicit(&a->group->cancelled, memory_order_relaxed);
}

/* Whether there is a reason not to wait any longer, but for the time. */
static int has_reason(ot_attachment *a, int *busy, char *reason, size_t size)
{
    if (is_cancelled(a)) {
        snprintf(reason, size, "this rank has failed");
        return 1;
    }
    for (int rank = 0; rank < a->group->size; rank++)
        if (ot_group_is_dead(a->group, rank)) {
            snprintf(reason, size, "rank %d has died (process %lld)", rank,
                     (long long)a->group->identities[rank].pid);
            return 1;
        }
    if (ot_backend_result(a->device->ops, a->ops->poll(a->communicator, busy)) == OT_OK)
        return 0;
    snprintf(reason, size, "%s", ot_error_text());
    return 1;
}

static int is_late(const ot_attachment *a, int64_t since, char *reason, size_t size)
{
    int64_t timeout = atomic_load_explicit(&a->timeout_ns, memory_order_relaxed);
    if (ot_clock_ns() - since <= timeout)
        return 0;
    snprintf(
        reason, size,
        "waited %.3g s for the other ranks; one has died, hangs, or is slower than --rank-timeout allows",
        ot_seconds(timeout));
    return 1;
}

/* ---- the watcher ---- */

/* Whether the call has ended, well or not. */
static int look(ot_attachment *a, device_call *call)
{
    char reason[512];
    int busy;
    if (atomic_load_explicit(&call->complete, memory_order_acquire) && ot_event_reached(call->end))
        return 1;
    if (call->begun_ns == 0 && ot_event_reached(call->begin))
        call->begun_ns = ot_clock_ns();
    if (has_reason(a, &busy, reason, sizeof reason) ||
        (call->begun_ns != 0 && is_late(a, call->begun_ns, reason, sizeof reason))) {
        give_up(a, call, reason);
        return 1;
    }
    return 0;
}

static void *watch(void *argument)
{
    ot_attachment *a = argument;
    pthread_mutex_lock(&a->lock);
    while (!atomic_load(&a->failed)) {
        if (a->ended == a->enqueued) {
            if (a->closing)
                break;
            pthread_cond_wait(&a->changed, &a->lock);
            continue;
        }
        device_call *call = &a->calls[a->ended % OT_GROUP_CALLS_MAX];
        pthread_mutex_unlock(&a->lock);
        int over = look(a, call);
        if (!over)
            nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
        pthread_mutex_lock(&a->lock);
        if (over) {
            a->ended++;
            pthread_cond_broadcast(&a->changed);
        }
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

/* ---- calls ---- */

/* The next entry of the ring, which the watcher does not see yet; NULL after a failure. */
static device_call *take_call(ot_attachment *a)
{
    pthread_mutex_lock(&a->lock);
    while (a->enqueued - a->ended == OT_GROUP_CALLS_MAX && !atomic_load(&a->failed))
        pthread_cond_wait(&a->changed, &a->lock);
    device_call *call = &a->calls[a->enqueued % OT_GROUP_CALLS_MAX];
    pthread_mutex_unlock(&a->lock);
    return atomic_load(&a->failed) ? NULL : call;
}

static void publish(ot_attachment *a)
{
    pthread_mutex_lock(&a->lock);
    a->enqueued++;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

static device_call *begin(ot_attachment *a, ot_stream *stream, ot_group_verb verb, const char *what)
{
    device_call *call = take_call(a);
    if (call == NULL)
        return NULL;
    call->verb = verb;
    call->what = what;
    call->step = a->group->step;
    call->begun_ns = 0;
    atomic_store_explicit(&call->complete, 0, memory_order_relaxed);
    ot_event_record(call->begin, stream);
    publish(a);
    return call;
}

/* The watcher looks for what may keep it busy for ever. */
static ot_status settle(ot_attachment *a)
{
    for (int busy = 1; !atomic_load(&a->failed);) {
        OT_TRY(ot_backend_result(a->device->ops, a->ops->poll(a->communicator, &busy)));
        if (!busy)
            break;
        nanosleep(&(struct timespec){.tv_nsec = SETTLE_NS}, NULL);
    }
    return OT_OK;
}

static void end(ot_attachment *a, ot_stream *stream, device_call *call, ot_status status)
{
    status = ot_backend_result(a->device->ops, status);
    if (status == OT_OK)
        status = settle(a);
    if (status != OT_OK)
        give_up(a, call, ot_error_text());
    ot_event_record(call->end, stream);
    atomic_store_explicit(&call->complete, 1, memory_order_release);
}

static void gather(ot_attachment *a, ot_stream *stream, ot_group_verb verb, const char *what, void *base,
                   size_t shard_bytes)
{
    device_call *call = begin(a, stream, verb, what);
    if (call != NULL)
        end(a, stream, call, a->ops->gather(a->communicator, stream, base, shard_bytes));
}

void ot_attachment_gather(ot_attachment *a, ot_stream *stream, const char *what, void *base,
                          size_t shard_bytes)
{
    OT_ASSERT(a != NULL && stream->device == a->device);
    gather(a, stream, OT_VERB_GATHER, what, base, shard_bytes);
}

void ot_attachment_scatter(ot_attachment *a, ot_stream *stream, const char *what, float *base, size_t shard)
{
    OT_ASSERT(a != NULL && stream->device == a->device);
    device_call *call = begin(a, stream, OT_VERB_SCATTER, what);
    if (call != NULL)
        end(a, stream, call, a->ops->scatter(a->communicator, stream, base, shard));
}

/* ---- joining ---- */

typedef struct place {
    char kind[16], address[32];
} place;

static ot_status compare(const ot_group *group, const place all[], int other, int rank)
{
    if (strcmp(all[rank].kind, all[other].kind) != 0)
        return ot_fail(OT_ERR_USAGE,
                       "rank %d computes on device %s, and rank %d on %s: give one --device for all", other,
                       all[other].kind, rank, all[rank].kind);
    if (all[rank].address[0] != '\0' && strcmp(all[rank].address, all[other].address) == 0 &&
        group->identities[rank].home == group->identities[other].home)
        return ot_fail(
            OT_ERR_USAGE,
            "ranks %d and %d have one GPU, at %s, and each needs its own: use fewer --ranks, or make "
            "more of the machine's GPUs visible",
            other, rank, all[rank].address);
    return OT_OK;
}

/* A library that joins devices would only say that it cannot. */
static ot_status compare_places(ot_group *group, const ot_device *device)
{
    place all[OT_RANKS_MAX] = {{"", ""}};
    ot_device_info info;
    ot_device_query(device, &info);
    memcpy(all[group->rank].kind, info.kind, sizeof info.kind);
    memcpy(all[group->rank].address, info.address, sizeof info.address);
    OT_TRY(ot_group_gather_now(group, "the devices' addresses", all, sizeof *all));
    for (int rank = 1; rank < group->size; rank++)
        for (int other = 0; other < rank; other++)
            OT_TRY(compare(group, all, other, rank));
    return OT_OK;
}

/* All open what the first has named. */
static ot_status open_communicator(ot_attachment *a)
{
    ot_group *group = a->group;
    struct {
        ot_status status;
        char id[OT_COMMUNICATOR_ID_BYTES];
    } made = {.status = OT_OK};
    if (group->rank == 0)
        made.status = ot_backend_result(a->device->ops, a->ops->name(a->device, made.id));
    ot_error failure = ot_error_take();
    OT_TRY(ot_group_broadcast(group, "the communicator's name", 0, &made, sizeof made));
    if (made.status != OT_OK)
        return group->rank == 0 ? ot_error_raise(&failure)
                                : ot_fail(made.status, "rank 0 cannot join the ranks' devices, and says why");
    return ot_backend_result(a->device->ops,
                             a->ops->open(a->device, made.id, group->rank, group->size, &a->communicator));
}

static ot_status wait_for_all(ot_attachment *a)
{
    char reason[512];
    int64_t start = ot_clock_ns();
    for (int busy = 1;;) {
        if (has_reason(a, &busy, reason, sizeof reason) ||
            (busy && is_late(a, start, reason, sizeof reason))) {
            a->ops->abort(a->communicator);
            return ot_group_fail(a->group, a->group->step, OT_VERB_JOIN, "the ranks' devices", reason);
        }
        if (!busy)
            return OT_OK;
        nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
    }
}

static ot_status start_watcher(ot_attachment *a)
{
    for (int i = 0; i < OT_GROUP_CALLS_MAX; i++) {
        OT_TRY(ot_event_open(a->device, 0, &a->calls[i].begin));
        OT_TRY(ot_event_open(a->device, 0, &a->calls[i].end));
    }
    if (pthread_create(&a->watcher, NULL, watch, a) != 0)
        return ot_fail(OT_ERR_INTERNAL, "no thread can be started to watch the ranks");
    a->is_watched = 1;
    return OT_OK;
}

/* ---- the way between the devices ---- */

static unsigned char pattern(int rank, size_t i)
{
    return (unsigned char)(rank * 37 + (int)(i % 253) * 5 + (int)(i >> 11));
}

static ot_status check_pattern(const ot_group *group, const unsigned char *found)
{
    for (size_t i = 0; i < TEST_BYTES * (size_t)group->size; i++) {
        int from = (int)(i / TEST_BYTES);
        unsigned char expected = pattern(from, i % TEST_BYTES);
        if (found[i] != expected)
            return ot_fail(
                OT_ERR_DEVICE,
                "what rank %d's GPU sends arrives damaged at rank %d's: byte %zu is %u, expected %u; the way from card "
                "to card cannot be relied on: set NCCL_P2P_DISABLE=1, or switch the IOMMU off in the firmware",
                from, group->rank, i % TEST_BYTES, found[i], expected);
    }
    return OT_OK;
}

static ot_status send_pattern(ot_attachment *a, ot_stream *stream, unsigned char *device, unsigned char *host)
{
    size_t bytes = TEST_BYTES * (size_t)a->group->size;
    unsigned char *own = host + TEST_BYTES * (size_t)a->group->rank;
    memset(host, 0, bytes);
    for (size_t i = 0; i < TEST_BYTES; i++)
        own[i] = pattern(a->group->rank, i);
    ot_copy_h2d(stream, device, host, bytes);
    gather(a, stream, OT_VERB_PATTERN, "the ways between the ranks' devices", device, TEST_BYTES);
    ot_copy_d2h(stream, host, device, bytes);
    OT_TRY(ot_stream_synchronize(stream));
    return check_pattern(a->group, host);
}

static ot_status test_ways(ot_attachment *a)
{
    const ot_stream_options options = {.kind = OT_STREAM_COLLECTIVE, .name = "pattern test"};
    size_t bytes = TEST_BYTES * (size_t)a->group->size;
    unsigned char *host = aligned_alloc(TEST_BYTES, bytes);
    ot_stream *stream = NULL;
    void *device = NULL;
    if (host == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for a pattern");
    int pinned = ot_device_pin(a->device, host, bytes) == OT_OK;
    ot_status status;
    OT_TRY_GOTO(ot_device_arena_open(a->device, "pattern test", bytes, &device), out);
    OT_TRY_GOTO(ot_stream_open(a->device, &options, &stream), out);
    status = send_pattern(a, stream, device, host);
out:
    ot_stream_close(stream);
    ot_device_arena_close(a->device, device);
    if (pinned)
        ot_device_unpin(a->device, host);
    free(host);
    return status;
}

typedef struct verdict {
    int is_good;
    uint64_t own_bytes;
} verdict;

/* What the devices take for themselves differs by little; plans must not differ at all. */
static ot_status agree(ot_attachment *a, ot_status own)
{
    verdict all[OT_RANKS_MAX];
    uint64_t most = 0;
    ot_device_info info;
    ot_error failure = ot_error_take();
    ot_device_query(a->device, &info);
    all[a->group->rank] = (verdict){own == OT_OK, info.own_bytes};
    OT_TRY(ot_group_gather_now(a->group, "what the devices say", all, sizeof *all));
    if (own != OT_OK)
        return ot_error_raise(&failure);
    for (int rank = 0; rank < a->group->size; rank++) {
        if (!all[rank].is_good)
            return ot_fail(OT_ERR_DEVICE, "the ranks' devices do not join: rank %d says why", rank);
        most = all[rank].own_bytes > most ? all[rank].own_bytes : most;
    }
    return ot_backend_result(a->device->ops, a->device->ops->reserve(a->device, most));
}

static ot_status attach(ot_attachment *a)
{
    const int64_t most = TEST_S * INT64_C(1000000000), timeout = a->group->timeout_ns;
    a->timeout_ns = timeout < most ? timeout : most;
    OT_TRY(open_communicator(a));
    OT_TRY(wait_for_all(a));
    OT_TRY(start_watcher(a));
    ot_status status = test_ways(a);
    if (status == OT_OK)
        status = ot_backend_result(a->device->ops, a->ops->measure(a->communicator));
    atomic_store_explicit(&a->timeout_ns, timeout, memory_order_relaxed);
    return agree(a, status);
}

ot_status ot_group_attach(ot_group *group, ot_device *device)
{
    if (group == NULL)
        return OT_OK;
    OT_ASSERT(group->attachment == NULL);
    OT_TRY(compare_places(group, device));
    if (device->ops->communicator == NULL)
        return OT_OK;
    ot_attachment *a = calloc(1, sizeof *a);
    if (a == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for a group of ranks");
    a->group = group;
    a->device = device;
    a->ops = device->ops->communicator;
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->changed, NULL);
    group->attachment = a;
    ot_status status = attach(a);
    if (status != OT_OK)
        ot_group_detach(group);
    return status;
}

void ot_group_detach(ot_group *group)
{
    ot_attachment *a = group != NULL ? group->attachment : NULL;
    if (a == NULL)
        return;
    group->attachment = NULL;
    pthread_mutex_lock(&a->lock);
    a->closing = 1;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
    if (a->is_watched)
        pthread_join(a->watcher, NULL);
    if (a->communicator != NULL)
        a->ops->close(a->communicator);
    for (int i = 0; i < OT_GROUP_CALLS_MAX; i++) {
        ot_event_close(a->calls[i].begin);
        ot_event_close(a->calls[i].end);
    }
    pthread_cond_destroy(&a->changed);
    pthread_mutex_destroy(&a->lock);
    free(a);
}
