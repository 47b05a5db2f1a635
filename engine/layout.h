/* From documents to pieces: what is longer than a window, what has nothing to train, and what is for evaluation. */
#ifndef OT_ENGINE_LAYOUT_H
#define OT_ENGINE_LAYOUT_H

#include "engine/data.h"
#include "engine/packing.h"

typedef struct ot_pieces {
    ot_piece *items; /* the caller's, from malloc */
    uint64_t count;
    size_t capacity;
} ot_pieces;

/* The pieces of the options' part of the documents, in their order, and everything of `stats` but windows and efficiency. */
ot_status ot_pieces_lay_out(const ot_data_options *options, ot_pieces *out,
                            ot_data_stats *stats) OT_MUST_CHECK;

#endif
