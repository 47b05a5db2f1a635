/* What the mover's tests share: small plans written by hand, an engine whose operations do arithmetic that no
 * two orders of execution give alike, and a serial execution of the same lists to compare with. */
#ifndef OT_TESTS_SUPPORT_MOVER_H
#define OT_TESTS_SUPPORT_MOVER_H

#include <stdatomic.h>

#include "offload/mover.h"

enum { RIG_PLACES_MAX = 64, RIG_DATA_BYTES = 1000 };

/* How waits are written into a list. */
typedef enum rig_waits {
    RIG_WAITS_ALL,    /* for everything an operation conflicts with */
    RIG_WAITS_PRUNED, /* for the last of each other lane alone: the order of the lanes does the rest */
    RIG_WAITS_SERIAL, /* for the operation before */
} rig_waits;

typedef struct rig rig;
typedef struct rig_call {
    rig *rig;
    const ot_operation *operation;
} rig_call;

/* Where the arithmetic happens: the mover's memory, or the copy of the serial execution. */
typedef struct rig_memory {
    unsigned char *base[OT_TIERS]; /* nvme: of the serial execution alone */
    uint64_t *digests[OT_LISTS];   /* [operation]: of what OT_OP_SAVE saw */
} rig_memory;

/* How the mover is opened. */
typedef struct rig_setup {
    const char *const *directories;
    size_t directory_count;
    const ot_block_backend *backend;
    uint64_t jitter_seed;
    int64_t jitter_ns;
    size_t queue_length;
} rig_setup;

struct rig {
    const ot_plan *plan; /* `own`, or one that somebody else has made */
    ot_plan own;
    rig_waits waits;

    ot_device *device;
    ot_host *host;
    ot_mover *mover;
    ot_list_kind running;
    rig_call *calls[OT_LISTS];
    unsigned char *data; /* of OT_OP_DATA */
    rig_memory real, serial;

    /* What goes wrong: the how manyth compute or cpu operation since rig_start fails; -1: none. */
    int fail_compute, fail_device, fail_cpu;
    int compute_count, cpu_count;
    atomic_int device_count;
    int64_t compute_ns, cpu_ns; /* how long each operation sleeps first */
};

/* An empty plan. */
rig *rig_open(rig_waits waits);
void rig_close(rig *r);

int32_t rig_place(rig *r, ot_tier tier, ot_plane plane, uint64_t bytes);
/* A chunk of the plan with one home, an NVMe place. */
int32_t rig_home(rig *r, ot_plane plane, uint64_t bytes);

/* Appends an operation, with its lane, its bytes and its waits; returns its number. */
size_t rig_add(rig *r, ot_list_kind list, ot_operation operation);
size_t rig_move(rig *r, ot_list_kind list, ot_operation_kind kind, int32_t from, int32_t to, uint64_t offset);

/* Removes what operation `later` waits for `earlier`. Fails the test where it does not. */
void rig_remove_wait(rig *r, ot_list_kind list, size_t later, size_t earlier);

/* Opens device, host memory and mover for the plan, and the serial execution's memory. The text of a failure
 * is the thread's. */
ot_status rig_start(rig *r, const rig_setup *setup);
void rig_stop(rig *r);

/* Runs a list with the mover, and serially. */
ot_status rig_run(rig *r, ot_list_kind list);
void rig_run_serially(rig *r, ot_list_kind list);

/* Whether both have the same bytes in device and host memory, and the list's saves saw the same. */
int rig_is_equal(const rig *r, ot_list_kind saved);

/* A step in small: LOAD; STEADY, with an update of every layer, forward, and backward, all planes and
 * activations on NVMe; SAVE. */
rig *rig_pipeline(rig_waits waits, int layers, uint64_t bytes);

#endif
