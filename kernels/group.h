/* The state of a group of ranks, shared by its files: collective.c has what the transport does, collective_stream.c the
 * operations on a stream of a device with host memory, collective_device.c those that a device does itself. */
#ifndef OT_KERNELS_GROUP_H
#define OT_KERNELS_GROUP_H

#include <pthread.h>
#include <stdatomic.h>

#include "kernels/backend.h"
#include "kernels/collective.h"

enum { OT_GROUP_CALLS_MAX = 64 }; /* enqueued and not yet run */

/* The transport's tags, too. */
typedef enum ot_group_verb {
    OT_VERB_GATHER,
    OT_VERB_SCATTER,
    OT_VERB_SUM,
    OT_VERB_BROADCAST,
    OT_VERB_PARCEL,
    OT_VERB_PATTERN,
    OT_VERB_JOIN,
} ot_group_verb;

/* An operation on a stream, until it has run. */
typedef struct ot_group_call {
    ot_group *group;
    ot_group_verb verb;
    const char *what;
    void *base;
    size_t shard; /* bytes, or elements of a sum */
} ot_group_call;

/* Who a rank is on its machine, so that others there see when it has died. */
typedef struct ot_identity {
    int64_t pid;
    uint64_t home; /* of machine, boot and process namespace */
} ot_identity;

typedef struct ot_attachment ot_attachment;

struct ot_group {
    ot_transport *transport;
    ot_identity identities[OT_RANKS_MAX];
    int rank, size;
    int64_t timeout_ns;
    uint64_t step;
    atomic_int cancelled, failed;
    char *pieces; /* what has come from each rank, to be summed */
    ot_parcel parcels[OT_PARCELS_MAX];
    size_t parcel_count;

    ot_attachment *attachment; /* NULL: to no device, or one that the transport serves */

    pthread_mutex_t lock; /* of the ring */
    pthread_cond_t ended;
    uint64_t enqueued, run;
    ot_group_call calls[OT_GROUP_CALLS_MAX];
};

/* ---- collective.c ---- */

/* Fails with this rank, the step, the operation and the reason. */
ot_status ot_group_fail(ot_group *group, uint64_t step, ot_group_verb verb, const char *what,
                        const char *reason) OT_MUST_CHECK;

/* Whether the process of a rank of this machine is gone. */
int ot_group_is_dead(const ot_group *group, int rank);

/* As ot_group_gather and ot_group_scatter, in host memory and at once. */
ot_status ot_group_gather_now(ot_group *group, const char *what, void *base,
                              size_t shard_bytes) OT_MUST_CHECK;
ot_status ot_group_scatter_now(ot_group *group, const char *what, float *base, size_t shard) OT_MUST_CHECK;

/* ---- collective_device.c ---- */

/* The same through the attached device, when the stream's turn comes. */
void ot_attachment_gather(ot_attachment *a, ot_stream *stream, const char *what, void *base,
                          size_t shard_bytes);
void ot_attachment_scatter(ot_attachment *a, ot_stream *stream, const char *what, float *base, size_t shard);

#endif
