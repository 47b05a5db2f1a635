/* What carries bytes between the ranks of a group: the table behind collective.h. For implementations and tests only.
 *
 * One exchange at a time: a number of parcels, each from or to one peer, started together and tested until all have ended.
 * Parcels between two ranks with one tag arrive in the order in which they were sent, and sender and receiver agree on
 * their sizes. A loaded implementation exports one function, OT_TRANSPORT_SYMBOL of type ot_transport_entry. */
#ifndef OT_KERNELS_TRANSPORT_H
#define OT_KERNELS_TRANSPORT_H

#include <stddef.h>
#include <stdint.h>

#include "io/status.h"

enum {
    OT_TRANSPORT_VERSION = 2, /* one more for every change of this file */
    OT_RANKS_MAX = 64,
    OT_PARCELS_MAX = 2 * OT_RANKS_MAX,
    OT_PARCEL_BYTES_MAX = 1 << 30,
    OT_TRANSPORT_TEXT_BYTES = 256,
};

typedef struct ot_parcel {
    int peer, incoming; /* from which rank it comes, or to which it goes */
    int ended;          /* set by `test` */
    void *data;         /* only read where it goes out */
    size_t bytes;       /* up to OT_PARCEL_BYTES_MAX */
} ot_parcel;

typedef struct ot_transport ot_transport;
struct ot_transport {
    int rank, size;
    char error[OT_TRANSPORT_TEXT_BYTES]; /* of the last call that failed */

    /* Starts the parcels, which the caller leaves alone until they have ended. 0, or -1 for a failure. */
    int (*start)(ot_transport *transport, int tag, ot_parcel *parcels, size_t count);
    /* 1: all parcels have ended; 0: some have not, which is no reason to wait; -1: a failure. */
    int (*test)(ot_transport *transport);
    /* Leaves the group, and returns when all ranks do. */
    void (*close)(ot_transport *transport);
    /* Tells the others that this rank goes, after a failure that it tells itself, and with which exit code. Blocks for a second
     * at most; nothing but `left` works afterwards. */
    void (*leave)(ot_transport *transport, int code);
    /* The code with which a peer has gone so; 0: it has not, or the word has not come. */
    int (*left)(ot_transport *transport, int peer);
};

/* The transport of this process, or NULL with the reason in `error`. */
typedef ot_transport *ot_transport_entry(uint32_t version, char error[OT_TRANSPORT_TEXT_BYTES]);
#define OT_TRANSPORT_SYMBOL "ot_transport_open"

/* The ranks that a launcher has started, by its variables in the environment. */
typedef struct ot_world {
    int size;             /* 0: none has */
    const char *named_by; /* the variable that says so; NULL: none */
    int here;             /* of them on this machine; all, where the launcher does not say */
    /* Where they are to meet by TCP; NULL: MPI knows, and the rank, too. */
    const char *host;
    uint32_t port;
    int rank;
} ot_world;

void ot_world_find(ot_world *world);

/* Joins the world: over TCP, waiting for so long for all to come, or by MPI's library, which is loaded from beside the program
 * or from where OFFTRAIN_MPI_PLUGIN says. OT_ERR_DEVICE. */
ot_status ot_transport_join(double timeout_s, ot_transport **out) OT_MUST_CHECK;
ot_status ot_transport_open_tcp(const ot_world *world, double timeout_s, ot_transport **out) OT_MUST_CHECK;

#endif
