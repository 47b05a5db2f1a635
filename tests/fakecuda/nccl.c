/* NCCL's collective operations: between ranks of one machine, threads or processes, through a file in shared memory whose name is
 * the unique id.
 *
 * A collective is three operations of its stream, each of which waits for the peers as NCCL's kernel would: it arrives, it gives
 * what this rank has, and it takes what the others gave. The executor goes on with other streams meanwhile. What a rank gives is
 * read when it arrives or when all have, as the seed wants, and until all have given, what comes from others is NaN: so a wait
 * that is missing before or behind a collective changes values. Sums are taken in the order of the ranks. Ranks whose operations
 * differ end the process with both sides named.
 *
 * Calls are as little obliging as those of a communicator that does not block: an operation is enqueued only when somebody has
 * asked often enough whether it is. */
#include <fcntl.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/random.h"
#include "tests/fakecuda/state.h"

enum { RANKS_MAX = 16, BUSY_POLLS_MAX = 3, NAP_US = 100, NAME_BYTES = 64, COMMUNICATOR_BYTES = 24 << 20 };

#define AREA_BYTES                                                                                           \
    (UINT64_C(64) << 20) /* of what one rank gives; pages that are not written take no memory */

typedef struct description {
    int is_sum;
    uint64_t count; /* bytes or values of one rank's shard */
} description;

/* What a rank shows the others: how many collectives it has arrived at, given to, and taken from. */
typedef struct rank_state {
    _Atomic uint64_t arrived, given, taken;
    description next;
} rank_state;

typedef struct shared {
    _Atomic int joined;
    rank_state ranks[RANKS_MAX];
} shared;

enum { SHARED_BYTES = 1 << 16 };

/* Between a call and its place on the stream. */
typedef struct pending {
    int is_one, polls_left;
    description what;
    char *base;
    cudaStream_t stream;
} pending;

struct ncclComm {
    int rank, size, card;
    char name[NAME_BYTES];
    shared *shared;
    char *areas; /* [size][AREA_BYTES] */
    uint64_t enqueued, own_bytes;
    pending pending;
    _Atomic int broken;
    _Atomic uint64_t ended; /* collectives that have run, well or not */
};

typedef struct step_args {
    struct ncclComm *comm;
    uint64_t number; /* of collectives before */
    description what;
    char *base;
    int early; /* what is given is read on arrival */
} step_args;

/* ---- one collective ---- */

static char *area_of(const struct ncclComm *comm, int rank)
{
    return comm->areas + (size_t)rank * AREA_BYTES;
}

static size_t shard_bytes(const description *what)
{
    return what->count * (what->is_sum ? sizeof(float) : 1);
}

static int is_broken(const struct ncclComm *comm)
{
    return comm->broken || fake.lost;
}

/* Gathering gives the own shard, summing all of them. */
static void give(const step_args *s)
{
    struct ncclComm *comm = s->comm;
    size_t shard = shard_bytes(&s->what), bytes = s->what.is_sum ? shard * (size_t)comm->size : shard;
    char *area = area_of(comm, comm->rank);
    memcpy(area, s->what.is_sum ? s->base : s->base + (size_t)comm->rank * shard, bytes);
    if (fake.damaged == comm->rank + 1)
        area[bytes / 2] ^= 4;
}

/* What comes from others is not there yet. */
static void spoil(const step_args *s)
{
    size_t shard = shard_bytes(&s->what), own = (size_t)s->comm->rank * shard;
    if (s->what.is_sum) {
        if (s->early)
            memset(s->base + own, 0xff, shard);
        return;
    }
    memset(s->base, 0xff, own);
    memset(s->base + own + shard, 0xff, shard * (size_t)s->comm->size - own - shard);
}

static int all_reached(const struct ncclComm *comm, size_t which, uint64_t number)
{
    for (int rank = 0; rank < comm->size; rank++) {
        const char *state = (const char *)&comm->shared->ranks[rank];
        if (*(const _Atomic uint64_t *)(const void *)(state + which) < number)
            return 0;
    }
    return 1;
}

/* The areas are free again when all have taken. */
static int may_arrive(void *args)
{
    const step_args *s = args;
    return is_broken(s->comm) || all_reached(s->comm, offsetof(rank_state, taken), s->number);
}

static cudaError_t arrive(void *args)
{
    const step_args *s = args;
    rank_state *own = &s->comm->shared->ranks[s->comm->rank];
    if (is_broken(s->comm))
        return cudaSuccess;
    own->next = s->what;
    if (s->early)
        give(s);
    spoil(s);
    own->arrived = s->number + 1;
    return cudaSuccess;
}

static int may_give(void *args)
{
    const step_args *s = args;
    return is_broken(s->comm) || all_reached(s->comm, offsetof(rank_state, arrived), s->number + 1);
}

static const char *name_of(const description *what)
{
    return what->is_sum ? "a reduce-scatter" : "an all-gather";
}

static void compare(const step_args *s)
{
    const struct ncclComm *comm = s->comm;
    for (int rank = 0; rank < comm->size; rank++) {
        const description *other = &comm->shared->ranks[rank].next;
        if (other->is_sum == s->what.is_sum && other->count == s->what.count)
            continue;
        fprintf(stderr, "fakecuda: collective %llu: rank %d is at %s of %llu, rank %d at %s of %llu\n",
                (unsigned long long)s->number, comm->rank, name_of(&s->what),
                (unsigned long long)s->what.count, rank, name_of(other), (unsigned long long)other->count);
        abort();
    }
}

static cudaError_t run_give(void *args)
{
    const step_args *s = args;
    if (is_broken(s->comm))
        return cudaSuccess;
    compare(s);
    if (!s->early)
        give(s);
    s->comm->shared->ranks[s->comm->rank].given = s->number + 1;
    return cudaSuccess;
}

static int may_take(void *args)
{
    const step_args *s = args;
    return is_broken(s->comm) || all_reached(s->comm, offsetof(rank_state, given), s->number + 1);
}

static void take_sum(const step_args *s)
{
    const struct ncclComm *comm = s->comm;
    size_t first = (size_t)comm->rank * s->what.count;
    float *sum = (float *)(void *)s->base + first;
    for (size_t i = 0; i < s->what.count; i++) {
        float total = ((const float *)(const void *)area_of(comm, 0))[first + i];
        for (int rank = 1; rank < comm->size; rank++)
            total += ((const float *)(const void *)area_of(comm, rank))[first + i];
        sum[i] = total;
    }
}

static void take(const step_args *s)
{
    const struct ncclComm *comm = s->comm;
    size_t shard = shard_bytes(&s->what);
    if (s->what.is_sum)
        take_sum(s);
    for (int rank = 0; rank < comm->size && !s->what.is_sum; rank++)
        if (rank != comm->rank)
            memcpy(s->base + (size_t)rank * shard, area_of(comm, rank), shard);
    comm->shared->ranks[comm->rank].taken = s->number + 1;
}

static cudaError_t run_take(void *args)
{
    const step_args *s = args;
    if (!is_broken(s->comm))
        take(s);
    s->comm->ended++;
    return cudaSuccess;
}

/* ---- calls ---- */

static uint32_t random_below(const struct ncclComm *comm, uint32_t n, uint64_t sequence)
{
    uint32_t words[4];
    ot_philox(fake.options.seed, comm->enqueued * RANKS_MAX + (uint64_t)comm->rank, sequence, words);
    return words[0] % n;
}

static void launch(struct ncclComm *comm)
{
    const pending *p = &comm->pending;
    step_args args = {comm, comm->enqueued, p->what, p->base, (int)random_below(comm, 2, 2000)};
    fake_enqueue_polled(p->stream, may_arrive, arrive, &args, sizeof args);
    fake_enqueue_polled(p->stream, may_give, run_give, &args, sizeof args);
    fake_enqueue_polled(p->stream, may_take, run_take, &args, sizeof args);
    comm->enqueued++;
    comm->pending.is_one = 0;
}

static ncclResult_t call(const char *function, struct ncclComm *comm, description what, char *base,
                         cudaStream_t stream)
{
    size_t bytes = shard_bytes(&what) * (size_t)comm->size;
    if (fake_enter(function) != cudaSuccess)
        return ncclUnhandledCudaError;
    if (comm->pending.is_one || comm->shared->joined < comm->size || !fake_stream_usable(stream) ||
        stream->device != comm->card || !fake_in_block(base, bytes)) {
        fake_add(&fake.refused, 1);
        return ncclInvalidUsage;
    }
    if (bytes > AREA_BYTES) {
        fprintf(stderr, "fakecuda: a collective of %zu bytes; at most %llu\n", bytes,
                (unsigned long long)AREA_BYTES);
        abort();
    }
    comm->pending = (pending){1, (int)random_below(comm, BUSY_POLLS_MAX + 1, 2001), what, base, stream};
    if (comm->pending.polls_left > 0)
        return ncclInProgress;
    launch(comm);
    return ncclSuccess;
}

/* In place only. */
ncclResult_t ncclAllGather(const void *own, void *base, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream)
{
    if (type != ncclUint8 || own != (char *)base + (size_t)comm->rank * count)
        return ncclInvalidArgument;
    return call(__func__, comm, (description){0, count}, base, stream);
}

ncclResult_t ncclReduceScatter(const void *base, void *own, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream)
{
    if (type != ncclFloat32 || op != ncclSum ||
        own != (const char *)base + (size_t)comm->rank * count * sizeof(float))
        return ncclInvalidArgument;
    return call(__func__, comm, (description){1, count}, (char *)(uintptr_t)base, stream);
}

/* ---- communicators ---- */

ncclResult_t ncclGetUniqueId(ncclUniqueId *out)
{
    static _Atomic int made;
    if (fake_enter(__func__) != cudaSuccess)
        return ncclSystemError;
    memset(out, 0, sizeof *out);
    snprintf(out->internal, NAME_BYTES, "/fakenccl-%d-%d", (int)getpid(), made++);
    int file = shm_open(out->internal, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (file < 0 || ftruncate(file, (off_t)(SHARED_BYTES + RANKS_MAX * AREA_BYTES)) != 0) {
        perror("fakecuda: shared memory");
        abort();
    }
    close(file);
    return ncclSuccess;
}

static size_t mapping_bytes(int size)
{
    return SHARED_BYTES + (size_t)size * AREA_BYTES;
}

static int map(struct ncclComm *comm)
{
    int file = shm_open(comm->name, O_RDWR, 0600);
    void *base = file < 0 ? MAP_FAILED
                          : mmap(NULL, mapping_bytes(comm->size), PROT_READ | PROT_WRITE,
                                 MAP_SHARED | MAP_NORESERVE, file, 0);
    if (file >= 0)
        close(file);
    if (base == MAP_FAILED)
        return 0;
    comm->shared = base;
    comm->areas = (char *)base + SHARED_BYTES;
    return 1;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    if (fake_enter(__func__) != cudaSuccess)
        return ncclUnhandledCudaError;
    if (config->magic != 0xcafebeef || config->blocking != 0 || size > RANKS_MAX || rank < 0 || rank >= size)
        return ncclInvalidArgument;
    struct ncclComm *comm = calloc(1, sizeof *comm);
    uint64_t bytes =
        fake.options.nccl_bytes > 0 ? fake.options.nccl_bytes * ((uint64_t)rank + 1) : COMMUNICATOR_BYTES;
    if (comm == NULL || !fake_take_bytes(bytes)) {
        free(comm);
        return ncclUnhandledCudaError;
    }
    comm->own_bytes = bytes;
    comm->rank = rank;
    comm->size = size;
    comm->card = fake_current_device();
    memcpy(comm->name, id.internal, NAME_BYTES);
    if (!map(comm)) {
        fake_give_bytes(bytes);
        free(comm);
        return ncclSystemError;
    }
    if (comm->shared->joined++ == size - 1)
        shm_unlink(comm->name);
    *out = comm;
    return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *out)
{
    *out = ncclSuccess;
    if (fake_enter(__func__) != cudaSuccess)
        *out = ncclRemoteError;
    else if (comm->shared->joined < comm->size)
        *out = ncclInProgress;
    else if (comm->pending.is_one && comm->pending.polls_left-- > 0)
        *out = ncclInProgress;
    else if (comm->pending.is_one)
        launch(comm);
    return ncclSuccess;
}

static void free_comm(struct ncclComm *comm)
{
    while (comm->ended < comm->enqueued) /* what is idle runs by itself */
        usleep(NAP_US);
    if (comm->shared->joined < comm->size)
        shm_unlink(comm->name); /* nobody else comes */
    munmap(comm->shared, mapping_bytes(comm->size));
    fake_give_bytes_of(comm->card, comm->own_bytes);
    free(comm);
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    return comm->pending.is_one ? ncclInvalidUsage : ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    free_comm(comm);
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    comm->broken = 1;
    free_comm(comm);
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    return result == ncclRemoteError ? "remote process exited or there was a network error"
                                     : "a failure of the fake NCCL";
}

const char *ncclGetLastError(ncclComm_t comm)
{
    (void)comm;
    return "";
}
