/* Training data: documents of token files in windows of T tokens, in an order that depends on seed and epoch alone.
 *
 * A window holds one document, or with packing several side by side: each has positions from 0, attends to itself alone, and no
 * label crosses from one to the next. What is left of a window is not trained, by its place, whatever token stands there. The last
 * token of a document is a target only. A document that continues (a text file) is cut into windows that go on from one another;
 * others are cut, dropped or split where they are longer than T + 1 tokens. */
#ifndef OT_ENGINE_DATA_H
#define OT_ENGINE_DATA_H

#include <stddef.h>
#include <stdint.h>

#include "io/status.h"
#include "io/tokens.h"

typedef struct ot_dataset ot_dataset;

typedef enum ot_long { OT_LONG_CUT, OT_LONG_DROP, OT_LONG_SPLIT } ot_long;
typedef enum ot_data_part { OT_DATA_ALL, OT_DATA_TRAIN, OT_DATA_EVAL } ot_data_part;

typedef struct ot_data_options {
    const ot_tokens *const
        *tokens; /* token files, which outlive the data set; none: the built-in sample as bytes */
    size_t token_count;
    size_t T; /* tokens of a window */
    size_t V; /* vocabulary of the model: every token is below it */
    int packing;
    ot_long long_documents;
    double val_split; /* share of the documents that is for evaluation, by a hash of their tokens */
    ot_data_part part;
    int shuffle;
    uint64_t seed;
} ot_data_options;

typedef struct ot_data_stats {
    uint64_t documents;         /* in windows */
    uint64_t pieces;            /* windows without packing */
    uint64_t windows, inputs;   /* inputs: tokens of them that are no padding */
    uint64_t trained;           /* targets */
    uint64_t truncated, lost;   /* documents that were cut, and their tokens that were lost by it */
    uint64_t dropped_long;      /* documents longer than T + 1, with --long drop */
    uint64_t dropped_prompt;    /* … whose first T + 1 tokens have nothing to train */
    uint64_t dropped_untrained; /* short ones without anything to train */
    uint64_t longest;           /* tokens of the longest document, before it was cut */
    double efficiency;          /* inputs over places in windows */
} ot_data_stats;

/* Scans the documents and lays out the windows; drops are logged with file and line. OT_ERR_DATA where a token is beyond the
 * vocabulary, and where nothing is left to train. */
ot_status ot_dataset_open(const ot_data_options *options, ot_dataset **out) OT_MUST_CHECK;
void ot_dataset_close(ot_dataset *dataset); /* NULL is allowed */

uint64_t ot_dataset_windows(const ot_dataset *dataset);
uint64_t ot_dataset_tokens(const ot_dataset *dataset); /* inputs of an epoch */
const ot_data_stats *ot_dataset_stats(const ot_dataset *dataset);

/* Steps of an epoch with `sequences` windows a step; the last one may have fewer. */
uint64_t ot_dataset_steps(const ot_dataset *dataset, size_t sequences);

/* Fills a step's data, M micro-batches of B windows, for step number `step` from 0 over all epochs; layout as
 * ot_trainer_data. Missing windows of an epoch's last step are not trained. Returns the number of trained tokens. Allocates
 * nothing; the place in the data is the step's number alone. */
uint64_t ot_dataset_fill(const ot_dataset *dataset, uint64_t step, size_t B, size_t M, int32_t *out);

/* The same for one of several ranks: of a step of ranks*B*M windows its part, so that all ranks' parts, one after
 * the other, are the step of one rank. */
uint64_t ot_dataset_fill_part(const ot_dataset *dataset, uint64_t step, size_t B, size_t M, int rank,
                              int ranks, int32_t *out);

/* Window number `index` of epoch `epoch`, for tests: a permutation of 0 … count-1 keyed by (seed, epoch). */
uint64_t ot_shuffle(uint64_t index, uint64_t count, uint64_t seed, uint64_t epoch);

/* The built-in sample: about 1 MB of English-like text from a fixed grammar. `*bytes` gets its length; the caller frees it.
 * NULL where memory is short. */
char *ot_builtin_text(size_t *bytes);

#endif
