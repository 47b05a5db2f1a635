/* NCCL, which joins the cards of several ranks. It is opened by name when there are several, because a run of one rank needs
 * none of its hundreds of megabytes.
 *
 * Its calls do not block here: each begins something, and `poll` tells when that is done. So whoever watches
 * can abort at any time; `lock` keeps an abort and the other calls apart. */
#include <dlfcn.h>
#include <nccl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/cuda/state.h"

enum { CLOSE_TRIES = 5000, CLOSE_NAP_NS = 1000000 };

typedef struct nccl_library {
    __typeof__(&ncclGetUniqueId) name;
    __typeof__(&ncclCommInitRankConfig) join;
    __typeof__(&ncclCommGetAsyncError) look;
    __typeof__(&ncclCommFinalize) finish;
    __typeof__(&ncclCommDestroy) destroy;
    __typeof__(&ncclCommAbort) abort;
    __typeof__(&ncclAllGather) gather;
    __typeof__(&ncclReduceScatter) scatter;
    __typeof__(&ncclGetErrorString) text;
    __typeof__(&ncclGetLastError) detail;
} nccl_library;

struct ot_communicator {
    cuda_device *device;
    nccl_library nccl;
    int rank;
    uint64_t used_bytes; /* of the card, before */
    pthread_mutex_t lock;
    ncclComm_t handle; /* NULL: aborted */
};

/* ---- the library ---- */

/* POSIX gives functions as object pointers; C has no cast for that. */
static int load(void *library, const char *name, void *function)
{
    void *symbol = dlsym(library, name);
    memcpy(function, &symbol, sizeof symbol);
    return symbol != NULL;
}

/* It stays open until the process ends: it has threads of its own. */
static ot_status open_library(nccl_library *out)
{
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        return ot_fail(OT_ERR_DEVICE,
                       "several ranks on GPUs need NCCL: %s; install it (libnccl2), or use --ranks 1",
                       dlerror());
    if (load(library, "ncclGetUniqueId", &out->name) && load(library, "ncclCommInitRankConfig", &out->join) &&
        load(library, "ncclCommGetAsyncError", &out->look) &&
        load(library, "ncclCommFinalize", &out->finish) && load(library, "ncclCommDestroy", &out->destroy) &&
        load(library, "ncclCommAbort", &out->abort) && load(library, "ncclAllGather", &out->gather) &&
        load(library, "ncclReduceScatter", &out->scatter) &&
        load(library, "ncclGetErrorString", &out->text) && load(library, "ncclGetLastError", &out->detail))
        return OT_OK;
    return ot_fail(OT_ERR_DEVICE, "several ranks on GPUs need NCCL 2.14 or later, and libnccl.so.2 is older");
}

/* What a call has returned; that it is under way is no failure. */
static ot_status check(const nccl_library *nccl, ncclComm_t handle, ncclResult_t code)
{
    if (code == ncclSuccess || code == ncclInProgress)
        return OT_OK;
    const char *detail = nccl->detail(handle), *advice = "NCCL_DEBUG=WARN in the environment tells more";
    int told = detail != NULL && detail[0] != '\0';
    return ot_fail(OT_ERR_DEVICE, "NCCL: %s (%d); %s", nccl->text(code), (int)code, told ? detail : advice);
}

static ot_status is_aborted(void)
{
    return ot_fail(OT_ERR_DEVICE, "NCCL's communicator has been aborted");
}

/* ---- opening and closing ---- */

static ot_status communicator_name(ot_device *base, char id[OT_COMMUNICATOR_ID_BYTES])
{
    nccl_library nccl;
    ncclUniqueId made;
    OT_ASSERT(sizeof made == OT_COMMUNICATOR_ID_BYTES);
    OT_TRY(open_library(&nccl));
    ot_cuda_enter((cuda_device *)base);
    OT_TRY(check(&nccl, NULL, nccl.name(&made)));
    memcpy(id, &made, sizeof made);
    return OT_OK;
}

static ot_status join(ot_communicator *c, const char *id, int size)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId name;
    config.blocking = 0;
    memcpy(&name, id, sizeof name);
    OT_TRY(open_library(&c->nccl));
    ot_cuda_enter(c->device);
    return check(&c->nccl, NULL, c->nccl.join(&c->handle, size, name, c->rank, &config));
}

static ot_status communicator_open(ot_device *base, const char id[OT_COMMUNICATOR_ID_BYTES], int rank,
                                   int size, ot_communicator **out)
{
    ot_communicator *c = calloc(1, sizeof *c);
    if (c == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for a communicator");
    c->device = (cuda_device *)base;
    c->rank = rank;
    c->used_bytes = ot_cuda_used_bytes(c->device->bus_id);
    pthread_mutex_init(&c->lock, NULL);
    ot_status status = join(c, id, size);
    if (status != OT_OK) {
        pthread_mutex_destroy(&c->lock);
        free(c);
        return status;
    }
    *out = c;
    return OT_OK;
}

static ot_status communicator_poll(ot_communicator *c, int *busy)
{
    ncclResult_t state = ncclSuccess;
    *busy = 0;
    ot_cuda_enter(c->device);
    pthread_mutex_lock(&c->lock);
    ot_status status =
        c->handle == NULL ? is_aborted() : check(&c->nccl, c->handle, c->nccl.look(c->handle, &state));
    if (status == OT_OK)
        status = check(&c->nccl, c->handle, state);
    *busy = state == ncclInProgress;
    pthread_mutex_unlock(&c->lock);
    return status;
}

static ot_status communicator_measure(ot_communicator *c)
{
    uint64_t after = ot_cuda_used_bytes(c->device->bus_id);
    uint64_t taken = after > c->used_bytes ? after - c->used_bytes : 0;
    if (c->used_bytes == 0 || taken <= c->device->communicator_bytes)
        return OT_OK;
    return ot_cuda_reserve(&c->device->base, c->device->own_bytes - c->device->communicator_bytes + taken);
}

static void communicator_abort(ot_communicator *c)
{
    ot_cuda_enter(c->device);
    pthread_mutex_lock(&c->lock);
    if (c->handle != NULL)
        (void)c->nccl.abort(c->handle);
    c->handle = NULL;
    pthread_mutex_unlock(&c->lock);
}

/* Peers may have died meanwhile, for which nobody waits here. */
static void communicator_close(ot_communicator *c)
{
    int busy = 0;
    ot_status status = OT_ERR_DEVICE;
    ot_cuda_enter(c->device);
    if (c->handle != NULL)
        status = check(&c->nccl, c->handle, c->nccl.finish(c->handle));
    for (int tries = 0; status == OT_OK; tries++) {
        status = communicator_poll(c, &busy);
        if (!busy || tries == CLOSE_TRIES)
            break;
        nanosleep(&(struct timespec){.tv_nsec = CLOSE_NAP_NS}, NULL);
    }
    if (status == OT_OK && !busy)
        (void)c->nccl.destroy(c->handle);
    else
        communicator_abort(c);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

/* ---- operations ---- */

static ot_status check_place(const ot_communicator *c, const void *base, size_t bytes)
{
    if (ot_cuda_in_device(c->device, base, bytes) == 1)
        return OT_OK;
    return ot_fail(OT_ERR_INTERNAL, "%zu bytes at %p are not the device's", bytes, base);
}

static ot_status communicator_gather(ot_communicator *c, ot_stream *stream, void *base, size_t shard_bytes)
{
    const char *own = (const char *)base + (size_t)c->rank * shard_bytes;
    if (!ot_cuda_is_sound(stream))
        return OT_OK;
    OT_TRY(check_place(c, own, shard_bytes));
    ot_cuda_enter(c->device);
    pthread_mutex_lock(&c->lock);
    ot_status status =
        c->handle == NULL
            ? is_aborted()
            : check(&c->nccl, c->handle,
                    c->nccl.gather(own, base, shard_bytes, ncclUint8, c->handle, ot_cuda_handle(stream)));
    pthread_mutex_unlock(&c->lock);
    return status;
}

static ot_status communicator_scatter(ot_communicator *c, ot_stream *stream, float *base, size_t shard)
{
    float *own = base + (size_t)c->rank * shard;
    if (!ot_cuda_is_sound(stream))
        return OT_OK;
    OT_TRY(check_place(c, own, shard * sizeof *own));
    ot_cuda_enter(c->device);
    pthread_mutex_lock(&c->lock);
    ot_status status = c->handle == NULL ? is_aborted()
                                         : check(&c->nccl, c->handle,
                                                 c->nccl.scatter(base, own, shard, ncclFloat32, ncclSum,
                                                                 c->handle, ot_cuda_handle(stream)));
    pthread_mutex_unlock(&c->lock);
    return status;
}

const ot_communicator_ops ot_cuda_communicator = {
    .name = communicator_name,
    .open = communicator_open,
    .poll = communicator_poll,
    .measure = communicator_measure,
    .abort = communicator_abort,
    .close = communicator_close,
    .gather = communicator_gather,
    .scatter = communicator_scatter,
};
