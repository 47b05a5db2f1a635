/* The group of ranks that train one model together, and their collective operations.
 *
 * Every rank calls the same operations in the same order with the same sizes. At most one operation of a group is under
 * way at a time: those on a stream are ordered by it, and the caller sees to it that nothing of a stream is left when it
 * calls one of the host's. Sums are taken in the order of the ranks, so they are the same bytes in every run
 * and on every rank; what a device sums itself has its library's order, which is the same in every run too.
 *
 * `what` names the object in messages ("model.layers.3"); it lives until the operation has run. An operation
 * that has waited for longer than the group's timeout, or for a rank of this machine that has died, fails
 * with OT_ERR_DEVICE; the text names this rank, the step, the operation and, unless it was a device's own,
 * the ranks that did not come. After a failure a group is good for ot_group_detach, ot_group_left and ot_group_leave alone.
 *
 * NULL is a group of one, for which every operation is nothing. */
#ifndef OT_KERNELS_COLLECTIVE_H
#define OT_KERNELS_COLLECTIVE_H

#include <stddef.h>
#include <stdint.h>

#include "io/status.h"
#include "kernels/device.h"
#include "kernels/transport.h"

typedef struct ot_group ot_group;

typedef struct ot_group_options {
    ot_transport *transport; /* NULL: the launcher's, MPI or TCP */
    double timeout_s;        /* of one operation; 0: half an hour */
} ot_group_options;

/* OT_ERR_USAGE where the environment names several ranks and not all that they need to meet: each would train
 * alone. */
ot_status ot_group_check_launch(void) OT_MUST_CHECK;

/* As one of how many ranks a launcher (mpirun, srun, torchrun or whatever sets MASTER_ADDR, MASTER_PORT, RANK
 * and WORLD_SIZE) has started this process, how many of them on this machine (0: none has), and which of
 * these this one is, from 0 (0, too, without a launcher). */
int ot_group_launched(void);
const char *ot_group_launched_by(void); /* the variable that says how many; NULL: none */
int ot_group_launched_here(void);
int ot_group_launched_local(void);

/* Joins the group and tests the way between each two ranks in both directions with a pattern. `*out` is NULL
 * where this is the only rank. OT_ERR_DEVICE where not all come, MPI does not work, or a pattern arrives
 * damaged: the text names both ranks. */
ot_status ot_group_open(const ot_group_options *options, ot_group **out) OT_MUST_CHECK;

/* Leaves the group when all ranks do; nothing is under way. NULL is allowed. */
void ot_group_close(ot_group *group);

/* In place of ot_group_close after a failure: tells the others that this rank goes with this exit code and says why
 * itself. They find out when they wait for it, once its process has ended. Blocks for a second at most. */
void ot_group_leave(ot_group *group, int code);

/* After a failure: whether another rank has gone so, and so is the reason. Returns its code, and which one in `rank`; 0: none
 * has. */
int ot_group_left(ot_group *group, int *rank);

/* Whether one of the operations has failed for another rank's sake or the transport's: their texts name this rank. */
int ot_group_has_failed(const ot_group *group);

/* Makes the operation under way and all later ones fail soon: this rank will not go on. Any thread. */
void ot_group_cancel(ot_group *group);

int ot_group_rank(const ot_group *group); /* from 0 */
int ot_group_size(const ot_group *group);

/* Which step messages name from now on. Nothing is under way. */
void ot_group_set_step(ot_group *group, uint64_t step);

/* ---- Devices ---- */

/* Joins the ranks' devices, one each, so that operations on their streams go from device to device, and tests
 * the ways between them with a pattern. All ranks call it. A device with host memory is only compared with the
 * others: the transport serves it. OT_ERR_USAGE where two ranks have one card or unlike devices; OT_ERR_DEVICE
 * where the library that joins devices is missing, fails, or brings damaged bytes. */
ot_status ot_group_attach(ot_group *group, ot_device *device) OT_MUST_CHECK;

/* When nothing is under way on its streams; all ranks do it, but after a failure. Before the device is closed. */
void ot_group_detach(ot_group *group);

/* ---- On a stream of a device with host memory, or of the attached one; failures stick to the device ---- */

/* All-gather in place: `base` holds `size` shards of shard_bytes each, in the order of the ranks; each rank's own becomes
 * everybody's. */
void ot_group_gather(ot_group *group, ot_stream *stream, const char *what, void *base, size_t shard_bytes);

/* Reduce-scatter in place: `base` holds `size` shards of `shard` elements each; the own one becomes the sum of all
 * ranks' in FP32, the others are left as they were. */
void ot_group_scatter(ot_group *group, ot_stream *stream, const char *what, float *base, size_t shard);

/* ---- On the host; they block ---- */

/* All-reduce: each of the values becomes the sum over all ranks. */
ot_status ot_group_sum(ot_group *group, const char *what, double *values, size_t count) OT_MUST_CHECK;

/* The root's bytes become everybody's. */
ot_status ot_group_broadcast(ot_group *group, const char *what, int root, void *data,
                             size_t bytes) OT_MUST_CHECK;

/* From one rank to another, which receives as many bytes, in order. */
ot_status ot_group_send(ot_group *group, const char *what, int to, const void *data,
                        size_t bytes) OT_MUST_CHECK;
ot_status ot_group_receive(ot_group *group, const char *what, int from, void *data,
                           size_t bytes) OT_MUST_CHECK;

#endif
