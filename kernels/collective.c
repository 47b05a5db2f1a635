/* Collective operations as exchanges of parcels, whatever carries them. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "io/clock.h"
#include "kernels/group.h"

enum {
    TIMEOUT_S = 1800,
    MEETING_S = 300,
    PIECE_BYTES = 1 << 20,    /* of a sum: what comes from one rank at a time */
    MESSAGE_BYTES = 16 << 20, /* of what is only moved */
    PATTERN_BYTES = (64 << 10) + 13,
    EAGER_TESTS = 1000, /* before the processor is given up */
    LOOK_TESTS = 256,   /* between two looks at whether all are alive */
    NAP_NS = 50000,
    NAP_MOST_NS = 1000000,
};

static const char *const verb_names[] = {"all-gather", "reduce-scatter", "all-reduce", "broadcast",
                                         "transfer",   "pattern test",   "joining"};

int ot_group_rank(const ot_group *group)
{
    return group != NULL ? group->rank : 0;
}

int ot_group_size(const ot_group *group)
{
    return group != NULL ? group->size : 1;
}

void ot_group_set_step(ot_group *group, uint64_t step)
{
    if (group != NULL)
        group->step = step;
}

void ot_group_cancel(ot_group *group)
{
    if (group != NULL)
        atomic_store_explicit(&group->cancelled, 1, memory_order_relaxed);
}

/* ---- one exchange ---- */

static void add_parcel(ot_group *group, int peer, int incoming, const void *data, size_t bytes)
{
    if (bytes > 0)
        group->parcels[group->parcel_count++] =
            (ot_parcel){peer, incoming, 0, (void *)(uintptr_t)data, bytes};
}

/* "1, 3": the peers of parcels that have not ended, each once. */
static void list_missing(const ot_group *group, char *out, size_t size)
{
    size_t length = 0;
    out[0] = '\0';
    for (int peer = 0; peer < group->size; peer++) {
        int missing = 0;
        for (size_t p = 0; p < group->parcel_count; p++)
            missing |= group->parcels[p].peer == peer && !group->parcels[p].ended;
        if (missing && length < size)
            length += (size_t)snprintf(out + length, size - length, length > 0 ? ", %d" : "%d", peer);
    }
}

ot_status ot_group_fail(ot_group *group, uint64_t step, ot_group_verb verb, const char *what,
                        const char *reason)
{
    if (!atomic_load_explicit(&group->cancelled, memory_order_relaxed))
        atomic_store_explicit(&group->failed, 1, memory_order_relaxed);
    return ot_fail(OT_ERR_DEVICE, "rank %d of %d, step %llu, %s of %s: %s", group->rank, group->size,
                   (unsigned long long)step, verb_names[verb], what, reason);
}

static ot_status fail(ot_group *group, ot_group_verb verb, const char *what, const char *reason)
{
    return ot_group_fail(group, group->step, verb, what, reason);
}

static ot_status time_out(ot_group *group, ot_group_verb verb, const char *what)
{
    char missing[128], reason[256];
    list_missing(group, missing, sizeof missing);
    snprintf(reason, sizeof reason,
             "waited %.3g s for rank %s; it has died, hangs, or is slower than --rank-timeout allows",
             ot_seconds(group->timeout_ns), missing);
    return fail(group, verb, what, reason);
}

/* Gives the processor to others while nothing comes: ranks may be more than cores. */
static void rest(unsigned tests)
{
    if (tests < EAGER_TESTS) {
        sched_yield();
        return;
    }
    unsigned doublings = (tests - EAGER_TESTS) / 100;
    long nap = doublings < 5 ? (long)NAP_NS << doublings : NAP_MOST_NS;
    nanosleep(&(struct timespec){.tv_nsec = nap < NAP_MOST_NS ? nap : NAP_MOST_NS}, NULL);
}

int ot_group_is_dead(const ot_group *group, int rank)
{
    const ot_identity *own = &group->identities[group->rank], *peer = &group->identities[rank];
    return peer->pid > 0 && peer->home == own->home && kill((pid_t)peer->pid, 0) != 0 && errno == ESRCH;
}

/* The first rank of this machine that is waited for and whose process is gone, or -1. */
static int find_dead(const ot_group *group)
{
    for (size_t p = 0; p < group->parcel_count; p++)
        if (!group->parcels[p].ended && ot_group_is_dead(group, group->parcels[p].peer))
            return group->parcels[p].peer;
    return -1;
}

/* What a rank has sent before it died still comes. */
static ot_status check_alive(ot_group *group, ot_group_verb verb, const char *what)
{
    char reason[128];
    int dead = find_dead(group);
    if (dead < 0 || group->transport->test(group->transport) != 0 || find_dead(group) != dead)
        return OT_OK;
    snprintf(reason, sizeof reason, "rank %d has died (process %lld)", dead,
             (long long)group->identities[dead].pid);
    return fail(group, verb, what, reason);
}

/* Moves the parcels that were added. */
static ot_status exchange(ot_group *group, ot_group_verb verb, const char *what)
{
    ot_transport *transport = group->transport;
    int64_t deadline = ot_clock_ns() + group->timeout_ns;
    int ended = 0;
    if (atomic_load_explicit(&group->cancelled, memory_order_relaxed))
        return fail(group, verb, what, "this rank has failed");
    if (group->parcel_count > 0 &&
        transport->start(transport, (int)verb, group->parcels, group->parcel_count) != 0)
        return fail(group, verb, what, transport->error);
    for (unsigned tests = 0; group->parcel_count > 0; tests++) {
        ended = transport->test(transport);
        if (ended != 0)
            break;
        if (atomic_load_explicit(&group->cancelled, memory_order_relaxed))
            return fail(group, verb, what, "this rank has failed");
        if (tests % 64 == 0 && ot_clock_ns() > deadline)
            return time_out(group, verb, what);
        if (tests % LOOK_TESTS == LOOK_TESTS - 1)
            OT_TRY(check_alive(group, verb, what));
        rest(tests);
    }
    group->parcel_count = 0;
    return ended < 0 ? fail(group, verb, what, transport->error) : OT_OK;
}

/* ---- the operations ---- */

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

ot_status ot_group_gather_now(ot_group *group, const char *what, void *memory, size_t shard)
{
    char *base = memory;
    const char *own = base + (size_t)group->rank * shard;
    for (size_t at = 0; at < shard; at += MESSAGE_BYTES) {
        size_t bytes = least(shard - at, MESSAGE_BYTES);
        for (int p = 0; p < group->size; p++)
            if (p != group->rank) {
                add_parcel(group, p, 0, own + at, bytes);
                add_parcel(group, p, 1, base + (size_t)p * shard + at, bytes);
            }
        OT_TRY(exchange(group, OT_VERB_GATHER, what));
    }
    return OT_OK;
}

static void *piece_of(const ot_group *group, int rank)
{
    return group->pieces + (size_t)rank * PIECE_BYTES;
}

/* own = the sum of rank 0's, 1's, … values, of which all but the own lie in the pieces. */
static void sum_floats(const ot_group *group, float *own, size_t count)
{
    float *sum = group->rank == 0 ? own : piece_of(group, 0);
    for (int r = 1; r < group->size; r++) {
        const float *more = r == group->rank ? own : piece_of(group, r);
        for (size_t i = 0; i < count; i++)
            sum[i] += more[i];
    }
    if (sum != own)
        memcpy(own, sum, count * sizeof *own);
}

ot_status ot_group_scatter_now(ot_group *group, const char *what, float *base, size_t shard)
{
    const size_t most = PIECE_BYTES / sizeof *base;
    for (size_t at = 0; at < shard; at += most) {
        size_t count = least(shard - at, most);
        for (int p = 0; p < group->size; p++)
            if (p != group->rank) {
                add_parcel(group, p, 0, base + (size_t)p * shard + at, count * sizeof *base);
                add_parcel(group, p, 1, piece_of(group, p), count * sizeof *base);
            }
        OT_TRY(exchange(group, OT_VERB_SCATTER, what));
        sum_floats(group, base + (size_t)group->rank * shard + at, count);
    }
    return OT_OK;
}

static void sum_doubles(const ot_group *group, double *own, size_t count)
{
    double *sum = group->rank == 0 ? own : piece_of(group, 0);
    for (int r = 1; r < group->size; r++) {
        const double *more = r == group->rank ? own : piece_of(group, r);
        for (size_t i = 0; i < count; i++)
            sum[i] += more[i];
    }
    if (sum != own)
        memcpy(own, sum, count * sizeof *own);
}

ot_status ot_group_sum(ot_group *group, const char *what, double *values, size_t count)
{
    const size_t most = PIECE_BYTES / sizeof *values;
    for (size_t at = 0; group != NULL && at < count; at += most) {
        size_t n = least(count - at, most);
        for (int p = 0; p < group->size; p++)
            if (p != group->rank) {
                add_parcel(group, p, 0, values + at, n * sizeof *values);
                add_parcel(group, p, 1, piece_of(group, p), n * sizeof *values);
            }
        OT_TRY(exchange(group, OT_VERB_SUM, what));
        sum_doubles(group, values + at, n);
    }
    return OT_OK;
}

ot_status ot_group_broadcast(ot_group *group, const char *what, int root, void *data, size_t bytes)
{
    char *base = data;
    for (size_t at = 0; group != NULL && at < bytes; at += MESSAGE_BYTES) {
        size_t n = least(bytes - at, MESSAGE_BYTES);
        for (int p = 0; p < group->size; p++)
            if (p != group->rank && (p == root || group->rank == root))
                add_parcel(group, p, p == root, base + at, n);
        OT_TRY(exchange(group, OT_VERB_BROADCAST, what));
    }
    return OT_OK;
}

static ot_status transfer(ot_group *group, const char *what, int peer, int incoming, const char *data,
                          size_t bytes)
{
    OT_ASSERT(group != NULL && peer != group->rank && peer >= 0 && peer < group->size);
    for (size_t at = 0; at < bytes; at += MESSAGE_BYTES) {
        add_parcel(group, peer, incoming, data + at, least(bytes - at, MESSAGE_BYTES));
        OT_TRY(exchange(group, OT_VERB_PARCEL, what));
    }
    return OT_OK;
}

ot_status ot_group_send(ot_group *group, const char *what, int to, const void *data, size_t bytes)
{
    return transfer(group, what, to, 0, data, bytes);
}

ot_status ot_group_receive(ot_group *group, const char *what, int from, void *data, size_t bytes)
{
    return transfer(group, what, from, 1, data, bytes);
}

/* ---- opening ---- */

static unsigned char pattern(int from, int to, size_t i)
{
    return (unsigned char)(from * 31 + to * 17 + (int)(i % 251) * 7);
}

static ot_status check_pattern(const ot_group *group, int from, const unsigned char *found)
{
    for (size_t i = 0; i < PATTERN_BYTES; i++) {
        unsigned char expected = pattern(from, group->rank, i);
        if (found[i] != expected)
            return ot_fail(OT_ERR_DEVICE,
                           "what rank %d sends arrives damaged at rank %d: byte %zu is %u, expected %u; this "
                           "machine's shared memory or network cannot be relied on",
                           from, group->rank, i, found[i], expected);
    }
    return OT_OK;
}

static ot_status test_ways(ot_group *group)
{
    size_t peers = (size_t)group->size;
    unsigned char *out = malloc(2 * peers * PATTERN_BYTES), *in = out + peers * PATTERN_BYTES;
    if (out == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for a group of %d ranks", group->size);
    memset(in, 0, peers * PATTERN_BYTES);
    for (int p = 0; p < group->size; p++) {
        size_t at = (size_t)p * PATTERN_BYTES;
        for (size_t i = 0; i < PATTERN_BYTES; i++)
            out[at + i] = pattern(group->rank, p, i);
        if (p == group->rank)
            continue;
        add_parcel(group, p, 0, out + at, PATTERN_BYTES);
        add_parcel(group, p, 1, in + at, PATTERN_BYTES);
    }
    ot_status status = exchange(group, OT_VERB_PATTERN, "the ways between ranks");
    for (int p = 0; p < group->size && status == OT_OK; p++)
        if (p != group->rank)
            status = check_pattern(group, p, in + (size_t)p * PATTERN_BYTES);
    free(out);
    return status;
}

static uint64_t mix_text(uint64_t hash, const char *text)
{
    for (; *text != '\0'; text++)
        hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
    return hash;
}

static ot_identity find_identity(void)
{
    char host[256] = "", boot[64] = "", space[64] = "";
    gethostname(host, sizeof host - 1);
    ssize_t length = readlink("/proc/self/ns/pid", space, sizeof space - 1);
    space[length > 0 ? length : 0] = '\0';
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    length = fd >= 0 ? read(fd, boot, sizeof boot - 1) : 0;
    boot[length > 0 ? length : 0] = '\0';
    if (fd >= 0)
        close(fd);
    return (ot_identity){getpid(), mix_text(mix_text(mix_text(0xcbf29ce484222325u, host), boot), space)};
}

static ot_status exchange_identities(ot_group *group)
{
    ot_identity all[OT_RANKS_MAX];
    all[group->rank] = find_identity();
    OT_TRY(ot_group_gather_now(group, "the processes", all, sizeof *all));
    memcpy(group->identities, all, sizeof *all * (size_t)group->size);
    return OT_OK;
}

static ot_status open_group(const ot_group_options *options, ot_group *group)
{
    ot_transport *transport = group->transport;
    group->rank = transport->rank;
    group->size = transport->size;
    group->timeout_ns = (int64_t)((options->timeout_s > 0 ? options->timeout_s : TIMEOUT_S) * 1e9);
    if (group->size > OT_RANKS_MAX)
        return ot_fail(OT_ERR_USAGE, "%d ranks; at most %d", group->size, OT_RANKS_MAX);
    group->pieces = aligned_alloc(64, (size_t)group->size * PIECE_BYTES);
    if (group->pieces == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for a group of %d ranks", group->size);
    OT_TRY(test_ways(group));
    return exchange_identities(group);
}

static void free_group(ot_group *group)
{
    pthread_cond_destroy(&group->ended);
    pthread_mutex_destroy(&group->lock);
    free(group->pieces);
    free(group);
}

ot_status ot_group_open(const ot_group_options *options, ot_group **out)
{
    ot_transport *transport = options->transport;
    double given = options->timeout_s, meeting_s = given > 0 && given < MEETING_S ? given : MEETING_S;
    *out = NULL;
    if (transport == NULL)
        OT_TRY(ot_transport_join(meeting_s, &transport));
    if (transport->size == 1) {
        transport->close(transport);
        return OT_OK;
    }
    ot_group *group = calloc(1, sizeof *group);
    if (group == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for a group of ranks");
    pthread_mutex_init(&group->lock, NULL);
    pthread_cond_init(&group->ended, NULL);
    group->transport = transport;
    ot_status status = open_group(options, group);
    if (status != OT_OK) {
        free_group(group); /* the transport stays: its peers wait for nobody who leaves it so */
        return status;
    }
    *out = group;
    return OT_OK;
}

void ot_group_close(ot_group *group)
{
    if (group == NULL)
        return;
    group->transport->close(group->transport);
    free_group(group);
}

void ot_group_leave(ot_group *group, int code)
{
    if (group != NULL)
        group->transport->leave(group->transport, code);
}

int ot_group_left(ot_group *group, int *rank)
{
    int code = 0;
    *rank = 0;
    for (int peer = 0; group != NULL && peer < group->size && code == 0; peer++)
        if (peer != group->rank) {
            code = group->transport->left(group->transport, peer);
            *rank = peer;
        }
    return code;
}

int ot_group_has_failed(const ot_group *group)
{
    return group != NULL && atomic_load_explicit(&group->failed, memory_order_relaxed);
}
