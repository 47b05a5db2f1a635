/* What attention.c hands to the ranges of attention_forward.c and attention_backward.c: where the packed
 * operands lie.
 *
 * A block is OT_ATTENTION_QUERIES queries of one head against OT_ATTENTION_KEYS keys. Scores stand with the
 * keys down and the queries across: then maxima and sums over keys run down the columns, a lane a query, and
 * K and V are needed by rows and turned, never one like the other. Packed operands are words (operand.h). */
#ifndef OT_KERNELS_CPU_ATTENTION_H
#define OT_KERNELS_CPU_ATTENTION_H

#include "kernels/cpu/operand.h"
#include "kernels/kernels.h"

enum {
    OT_ATTENTION_QUERIES = 64,
    OT_ATTENTION_KEYS = 128,
    OT_ATTENTION_STEP = 16, /* keys that mask nothing at the ends of a block are left out in such steps */
};

typedef struct ot_attention_work {
    const ot_attention *args;
    int paired, backward;
    size_t query_blocks, key_blocks; /* of a sequence */
    size_t depth;                    /* words of a packed row of HD elements */
    size_t wide;                     /* HD with what fills up the last lanes */
    size_t splits;                   /* backward: parts of the queries of one key and value head */
    uint32_t *k, *v;                 /* [B,NKV,key_blocks,KEYS,depth]: rows of K, and for backward of V */
    uint32_t *turned; /* [B,NKV,key_blocks,wide,words of KEYS]: V turned, or for backward K turned */
    float *
        sums; /* backward: slots of dk and dv, each [key_blocks*KEYS,wide], one for each split, or a thread */
} ot_attention_work;

/* One thread's share of the work: items, in the order in which the range counts them. */
typedef struct ot_attention_share {
    const ot_attention_work *work;
    unsigned char *scratch; /* ot_attention_*_scratch */
    float *sums;            /* with one split: the thread's slot */
} ot_attention_share;

static inline size_t ot_attention_ceiling(size_t n, size_t step)
{
    return (n + step - 1) / step;
}

static inline size_t ot_attention_key_words(const ot_attention_work *w)
{
    return ot_words(w->paired, OT_ATTENTION_KEYS);
}

static inline size_t ot_attention_query_words(const ot_attention_work *w)
{
    return ot_words(w->paired, OT_ATTENTION_QUERIES);
}

/* Floats of dk and dv of one slot. */
static inline size_t ot_attention_slot(const ot_attention_work *w)
{
    return 2 * w->key_blocks * OT_ATTENTION_KEYS * w->wide;
}

/* The scratch of a thread, in words of 4 bytes: queries turned, scores, probabilities, output turned. */
static inline size_t ot_attention_forward_scratch(const ot_attention_work *w)
{
    return (w->depth + OT_ATTENTION_KEYS + ot_attention_key_words(w) + w->wide) * OT_ATTENTION_QUERIES;
}

/* Queries and dout turned, both by rows, scores and their gradient, both by rows of keys and one by rows of
 * words, dq turned. */
static inline size_t ot_attention_backward_scratch(const ot_attention_work *w)
{
    return (2 * w->depth + 2 * OT_ATTENTION_KEYS + ot_attention_key_words(w) + w->wide) *
               OT_ATTENTION_QUERIES +
           2 * ot_attention_query_words(w) * (w->wide + OT_ATTENTION_KEYS);
}

#endif
