/* Carries parcels by MPI: a library of its own that nothing links, so that a run of one rank neither needs nor starts MPI. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "io/clock.h"
#include "kernels/transport.h"

enum { FAREWELL_TAG = 1000, FAREWELL_NS = 500000000 };

typedef struct mpi_transport {
    ot_transport base;
    MPI_Comm world;
    ot_parcel *parcels;
    size_t count;
    MPI_Request requests[OT_PARCELS_MAX];
    int farewell;
    MPI_Request farewells[OT_RANKS_MAX];
} mpi_transport;

static int check(mpi_transport *t, int code)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    if (code == MPI_SUCCESS)
        return 0;
    MPI_Error_string(code, text, &length);
    snprintf(t->base.error, sizeof t->base.error, "%.*s", OT_TRANSPORT_TEXT_BYTES - 1, text);
    return -1;
}

static int mpi_start(ot_transport *base, int tag, ot_parcel *parcels, size_t count)
{
    mpi_transport *t = (mpi_transport *)base;
    t->parcels = parcels;
    t->count = count;
    for (size_t p = 0; p < count; p++) {
        const ot_parcel *parcel = &parcels[p];
        int bytes = (int)parcel->bytes;
        int code =
            parcel->incoming
                ? MPI_Irecv(parcel->data, bytes, MPI_BYTE, parcel->peer, tag, t->world, &t->requests[p])
                : MPI_Isend(parcel->data, bytes, MPI_BYTE, parcel->peer, tag, t->world, &t->requests[p]);
        if (check(t, code) != 0)
            return -1;
    }
    return 0;
}

static int mpi_test(ot_transport *base)
{
    mpi_transport *t = (mpi_transport *)base;
    int all = 1;
    for (size_t p = 0; p < t->count; p++) {
        ot_parcel *parcel = &t->parcels[p];
        if (!parcel->ended && check(t, MPI_Test(&t->requests[p], &parcel->ended, MPI_STATUS_IGNORE)) != 0)
            return -1;
        all &= parcel->ended;
    }
    return all;
}

static void mpi_close(ot_transport *base)
{
    mpi_transport *t = (mpi_transport *)base;
    MPI_Comm_free(&t->world);
    MPI_Finalize();
    free(t);
}

/* Few bytes are on their way at once, whether they are received or not; a peer that hangs may have no room for them. */
static void mpi_leave(ot_transport *base, int code)
{
    mpi_transport *t = (mpi_transport *)base;
    int count = 0, sent = 0;
    int64_t deadline = ot_clock_ns() + FAREWELL_NS;
    t->farewell = code;
    for (int peer = 0; peer < base->size; peer++)
        if (peer != base->rank && MPI_Isend(&t->farewell, 1, MPI_INT, peer, FAREWELL_TAG, t->world,
                                            &t->farewells[count]) == MPI_SUCCESS)
            count++;
    while (MPI_Testall(count, t->farewells, &sent, MPI_STATUSES_IGNORE) == MPI_SUCCESS && !sent &&
           ot_clock_ns() < deadline)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

static int mpi_left(ot_transport *base, int peer)
{
    mpi_transport *t = (mpi_transport *)base;
    int there = 0, code = 0;
    if (MPI_Iprobe(peer, FAREWELL_TAG, t->world, &there, MPI_STATUS_IGNORE) != MPI_SUCCESS || !there ||
        MPI_Recv(&code, 1, MPI_INT, peer, FAREWELL_TAG, t->world, MPI_STATUS_IGNORE) != MPI_SUCCESS)
        return 0;
    return code;
}

/* Containers may forbid processes to read each other's memory. OpenMPI finds that out with every message anew, and says so. */
static void spare_single_copies(void)
{
    char from = 1, to = 0;
    const struct iovec own = {&to, 1}, other = {&from, 1};
    if (process_vm_readv(getpid(), &own, 1, &other, 1, 0) == 1)
        return;
    setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 0);
    setenv("OMPI_MCA_btl_sm_single_copy_mechanism", "none", 0); /* its name from version 5 on */
}

static int join(mpi_transport *t)
{
    spare_single_copies();
    int provided = MPI_THREAD_SINGLE;
    if (check(t, MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided)) != 0)
        return -1;
    if (provided < MPI_THREAD_SERIALIZED) {
        snprintf(t->base.error, sizeof t->base.error, "this MPI is not for programs with threads");
        return -1;
    }
    if (check(t, MPI_Comm_dup(MPI_COMM_WORLD, &t->world)) != 0)
        return -1;
    MPI_Comm_set_errhandler(t->world, MPI_ERRORS_RETURN);
    MPI_Comm_rank(t->world, &t->base.rank);
    MPI_Comm_size(t->world, &t->base.size);
    return 0;
}

__attribute__((visibility("default"))) ot_transport_entry ot_transport_open;

ot_transport *ot_transport_open(uint32_t version, char error[OT_TRANSPORT_TEXT_BYTES])
{
    if (version != OT_TRANSPORT_VERSION)
        return NULL;
    mpi_transport *t = calloc(1, sizeof *t);
    if (t == NULL) {
        snprintf(error, OT_TRANSPORT_TEXT_BYTES, "out of memory");
        return NULL;
    }
    t->base = (ot_transport){
        .start = mpi_start, .test = mpi_test, .close = mpi_close, .leave = mpi_leave, .left = mpi_left};
    if (join(t) != 0) {
        snprintf(error, OT_TRANSPORT_TEXT_BYTES, "%s", t->base.error);
        free(t);
        return NULL;
    }
    return &t->base;
}
