/* Training data: text as bytes, cut into windows, in an order that depends on seed and epoch alone.
 *
 * A file is one document. Its windows of T tokens follow one another; the last one of a file is filled up with tokens that are
 * not trained, so no label crosses from one file to the next. A window's targets are its tokens shifted by one. */
#ifndef OT_ENGINE_DATA_H
#define OT_ENGINE_DATA_H

#include <stddef.h>
#include <stdint.h>

#include "io/status.h"

typedef struct ot_dataset ot_dataset;

typedef struct ot_data_options {
    const char *const *files; /* paths; none: the built-in sample */
    size_t file_count;
    size_t T; /* tokens of a window */
    size_t V; /* vocabulary of the model: every token is below it */
    int shuffle;
    uint64_t seed;
} ot_data_options;

/* Maps the files. OT_ERR_DATA names the file that cannot be read, is empty, or holds a byte beyond the vocabulary. */
ot_status ot_dataset_open(const ot_data_options *options, ot_dataset **out) OT_MUST_CHECK;
void ot_dataset_close(ot_dataset *dataset); /* NULL is allowed */

uint64_t ot_dataset_windows(const ot_dataset *dataset);
uint64_t ot_dataset_tokens(const ot_dataset *dataset);

/* Steps of an epoch with `sequences` windows a step; the last one may have fewer. */
uint64_t ot_dataset_steps(const ot_dataset *dataset, size_t sequences);

/* Fills a step's data, M micro-batches of B windows, for step number `step` from 0 over all epochs; layout as
 * ot_trainer_data. Missing windows of an epoch's last step are not trained. Returns the number of trained tokens. */
uint64_t ot_dataset_fill(const ot_dataset *dataset, uint64_t step, size_t B, size_t M, int32_t *out);

/* Window number `index` of epoch `epoch`, for tests: a permutation of 0 … count-1 keyed by (seed, epoch). */
uint64_t ot_shuffle(uint64_t index, uint64_t count, uint64_t seed, uint64_t epoch);

/* The built-in sample: about 1 MB of English-like text from a fixed grammar. `*bytes` gets its length; the caller frees it.
 * NULL where memory is short. */
char *ot_builtin_text(size_t *bytes);

#endif
