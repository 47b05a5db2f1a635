/* The spoiling backend. A spoilt piece is remembered until it is handed back, so that what was changed for
 * the inner backend (length, a bit of the data) is put right first. */
#include "tests/support/block_fault.h"

#include <stdlib.h>
#include <string.h>

enum { HELD_MAX = 1024 };

static struct {
    fault_plan plan;
    uint64_t submitted;
    void *inner;
    size_t inside;                  /* pieces the inner backend has */
    ot_block_piece *held[HELD_MAX]; /* finished, not yet handed back */
    size_t held_count;
    ot_block_piece *spoilt; /* at the inner backend */
    uint64_t spoilt_bytes;  /* its length before it was cut */
    void *spoilt_data;      /* its memory before a write was flipped in a copy; NULL: as it is */
} fault;

void block_fault_arm(fault_plan plan)
{
    fault.plan = plan;
    fault.submitted = 0;
    fault.held_count = fault.inside = 0;
    fault.spoilt = NULL;
    fault.spoilt_data = NULL;
}

uint64_t block_fault_count(void)
{
    return fault.submitted;
}

static ot_status fault_open(const ot_block_setup *setup, void **state)
{
    *state = &fault;
    return fault.plan.inner->open(setup, &fault.inner);
}

static void fault_close(void *state)
{
    (void)state;
    fault.plan.inner->close(fault.inner);
}

static void flip(const ot_block_piece *piece)
{
    ((unsigned char *)piece->data)[piece->bytes / 3] ^= 0x10;
}

/* Flips a bit on the way to the drive: in a copy, since others may read the memory meanwhile. */
static void flip_copy(ot_block_piece *piece)
{
    void *copy = aligned_alloc(4096, (piece->bytes + 4095) / 4096 * 4096);
    if (copy == NULL)
        abort();
    memcpy(copy, piece->data, piece->bytes);
    fault.spoilt_data = piece->data;
    piece->data = copy;
    flip(piece);
}

static int is_victim(uint64_t index)
{
    uint64_t times = fault.plan.times > 0 ? fault.plan.times : 1;
    return fault.plan.kind != FAULT_NONE && index >= fault.plan.victim && index - fault.plan.victim < times;
}

/* Finishes the piece here, or changes it for the way to the inner backend. Returns 1 where it must not go
 * there. */
static int spoil(ot_block_piece *piece)
{
    switch (fault.plan.kind) {
    case FAULT_ERROR:
    case FAULT_NOTHING:
        piece->result = fault.plan.kind == FAULT_ERROR ? -fault.plan.error : 0;
        fault.held[fault.held_count++] = piece;
        return 1;
    case FAULT_SHORT:
        fault.spoilt = piece;
        fault.spoilt_bytes = piece->bytes;
        piece->bytes = piece->bytes / 2 / 512 * 512 + 512;
        if (piece->bytes > fault.spoilt_bytes)
            piece->bytes = fault.spoilt_bytes;
        return 0;
    case FAULT_FLIP:
        fault.spoilt = piece;
        fault.spoilt_bytes = piece->bytes;
        if (piece->direction == OT_BLOCK_WRITE)
            flip_copy(piece);
        return 0;
    default:
        fault.spoilt = piece;
        fault.spoilt_bytes = piece->bytes;
        return 0;
    }
}

static ot_status fault_submit(void *state, ot_block_piece *const pieces[], size_t count)
{
    (void)state;
    for (size_t i = 0; i < count; i++) {
        if (is_victim(fault.submitted++) && spoil(pieces[i]))
            continue;
        fault.inside++;
        ot_status status = fault.plan.inner->submit(fault.inner, &pieces[i], 1);
        if (status != OT_OK)
            return status;
    }
    return OT_OK;
}

/* A flipped write gets its own memory back; a flipped read is flipped now. */
static void restore(ot_block_piece *piece)
{
    piece->bytes = fault.spoilt_bytes;
    if (fault.spoilt_data != NULL) {
        free(piece->data);
        piece->data = fault.spoilt_data;
        fault.spoilt_data = NULL;
    } else if (fault.plan.kind == FAULT_FLIP && piece->result > 0)
        flip(piece);
    fault.spoilt = NULL;
}

static ot_status take_from_inner(size_t max)
{
    size_t count;
    ot_block_piece *done[HELD_MAX];
    OT_TRY(fault.plan.inner->wait(fault.inner, done, max < HELD_MAX ? max : HELD_MAX, &count));
    for (size_t i = 0; i < count; i++) {
        if (done[i] == fault.spoilt) {
            restore(done[i]);
            if (fault.plan.kind == FAULT_DELAY) /* to the end: it is handed back last */
                fault.spoilt = done[i];
        }
        fault.held[fault.held_count++] = done[i];
    }
    fault.inside -= count;
    return OT_OK;
}

static ot_status fault_wait(void *state, ot_block_piece *done[], size_t max, size_t *count)
{
    (void)state;
    *count = 0;
    while (*count == 0) {
        if (fault.inside > 0)
            OT_TRY(take_from_inner(max));
        size_t kept = 0;
        for (size_t i = 0; i < fault.held_count; i++) {
            int late = fault.plan.kind == FAULT_DELAY && fault.held[i] == fault.spoilt && fault.inside > 0;
            if (late || *count == max)
                fault.held[kept++] = fault.held[i];
            else {
                if (fault.held[i] == fault.spoilt)
                    fault.spoilt = NULL;
                done[(*count)++] = fault.held[i];
            }
        }
        fault.held_count = kept;
    }
    return OT_OK;
}

const ot_block_backend block_fault = {"fault", fault_open, fault_submit, fault_wait, fault_close};
