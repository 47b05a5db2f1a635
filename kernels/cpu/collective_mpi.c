/* Carries parcels by MPI: a library of its own that nothing links, so that a run of one rank neither needs nor starts MPI. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>

#include "kernels/transport.h"

typedef struct mpi_transport {
    ot_transport base;
    MPI_Comm world;
    ot_parcel *parcels;
    size_t count;
    MPI_Request requests[OT_PARCELS_MAX];
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

static void mpi_abort(ot_transport *base, int code)
{
    MPI_Abort(((mpi_transport *)base)->world, code);
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
    t->base = (ot_transport){.start = mpi_start, .test = mpi_test, .close = mpi_close, .abort = mpi_abort};
    if (join(t) != 0) {
        snprintf(error, OT_TRANSPORT_TEXT_BYTES, "%s", t->base.error);
        free(t);
        return NULL;
    }
    return &t->base;
}
