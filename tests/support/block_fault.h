/* A block backend that wraps another and spoils one piece of the run. Pieces are counted in the order they
 * are submitted, repeats and continuations included. */
#ifndef OT_TESTS_SUPPORT_BLOCK_FAULT_H
#define OT_TESTS_SUPPORT_BLOCK_FAULT_H

#include <stdint.h>

#include "io/block.h"

typedef enum fault_kind {
    FAULT_NONE,
    FAULT_ERROR,   /* the piece fails with `error`, without reaching the drive */
    FAULT_SHORT,   /* about half of the piece is transferred, up to an odd 512-byte sector */
    FAULT_NOTHING, /* the piece transfers 0 bytes */
    FAULT_FLIP,    /* one bit changes on the way */
    FAULT_DELAY,   /* the piece finishes after all others in flight */
} fault_kind;

typedef struct fault_plan {
    const ot_block_backend *inner;
    fault_kind kind;
    uint64_t victim; /* the piece that is spoilt, counted from 0 */
    uint64_t times;  /* how many pieces from there on; 0: one */
    int error;
} fault_plan;

/* Arms the backend for the next queue that is opened with it. One such queue at a time. */
void block_fault_arm(fault_plan plan);

/* Pieces submitted since arming. */
uint64_t block_fault_count(void);

extern const ot_block_backend block_fault;

#endif
