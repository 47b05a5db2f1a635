/* Windows over token files, and their order. */
#include "engine/data.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine/layout.h"
#include "engine/packing.h"
#include "engine/samples.h"
#include "kernels/random.h"

struct ot_dataset {
    const ot_tokens **tokens;
    ot_tokens *sample; /* the built-in one, where it is used; else NULL */
    ot_windows windows;
    ot_data_stats stats;
    size_t T;
    int shuffle;
    uint64_t seed;
};

/* ---- opening ---- */

static ot_status take_tokens(ot_dataset *dataset, ot_data_options *options)
{
    size_t count = options->token_count > 0 ? options->token_count : 1;
    dataset->tokens = calloc(count, sizeof(ot_tokens *));
    if (dataset->tokens == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for %zu token files", count);
    if (options->token_count == 0) {
        OT_TRY(ot_samples_builtin(options->V, &dataset->sample));
        dataset->tokens[0] = dataset->sample;
    } else
        memcpy(dataset->tokens, options->tokens, count * sizeof(ot_tokens *));
    options->tokens = dataset->tokens;
    options->token_count = count;
    for (size_t i = 0; i < count; i++)
        OT_TRY(ot_tokens_check_vocabulary(dataset->tokens[i], options->V));
    return OT_OK;
}

static ot_status lay_out(ot_dataset *dataset, const ot_data_options *options)
{
    ot_pieces pieces = {0};
    ot_data_stats *stats = &dataset->stats;
    ot_status status = ot_pieces_lay_out(options, &pieces, stats);
    if (status != OT_OK) {
        free(pieces.items);
        return status;
    }
    OT_TRY(ot_windows_pack(pieces.items, pieces.count, options->T, options->packing, &dataset->windows));
    stats->pieces = pieces.count;
    stats->windows = dataset->windows.count;
    stats->efficiency = (double)stats->inputs / ((double)stats->windows * (double)options->T);
    return OT_OK;
}

ot_status ot_dataset_open(const ot_data_options *options, ot_dataset **out)
{
    OT_ASSERT(options->T > 0 && options->V > 0);
    ot_data_options taken = *options;
    ot_dataset *dataset = calloc(1, sizeof *dataset);
    if (dataset == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for a data set");
    dataset->T = options->T;
    dataset->shuffle = options->shuffle;
    dataset->seed = options->seed;
    ot_status status = take_tokens(dataset, &taken);
    if (status == OT_OK)
        status = lay_out(dataset, &taken);
    if (status != OT_OK) {
        ot_error failure = ot_error_take();
        ot_dataset_close(dataset);
        return ot_error_raise(&failure);
    }
    *out = dataset;
    return OT_OK;
}

void ot_dataset_close(ot_dataset *dataset)
{
    if (dataset == NULL)
        return;
    ot_windows_free(&dataset->windows);
    ot_tokens_close(dataset->sample);
    free(dataset->tokens);
    free(dataset);
}

/* ---- order ---- */

/* A Feistel network over the smallest even number of bits that holds `count`, walked until it lands inside: a permutation
 * without a table (Black & Rogaway 2002, "cycle walking"). */
uint64_t ot_shuffle(uint64_t index, uint64_t count, uint64_t seed, uint64_t epoch)
{
    enum { ROUNDS = 6 };
    unsigned half = 1;
    while (half < 32 && (UINT64_C(1) << 2 * half) < count)
        half++;
    uint64_t mask = (UINT64_C(1) << half) - 1;
    do {
        uint64_t left = index >> half, right = index & mask;
        for (uint64_t round = 0; round < ROUNDS; round++) {
            uint32_t word[4];
            ot_philox(seed, right, epoch * ROUNDS + round, word);
            uint64_t next = left ^ (word[0] & mask);
            left = right;
            right = next;
        }
        index = left << half | right;
    } while (index >= count);
    return index;
}

uint64_t ot_dataset_windows(const ot_dataset *dataset)
{
    return dataset->windows.count;
}

uint64_t ot_dataset_tokens(const ot_dataset *dataset)
{
    return dataset->stats.inputs;
}

const ot_data_stats *ot_dataset_stats(const ot_dataset *dataset)
{
    return &dataset->stats;
}

uint64_t ot_dataset_steps(const ot_dataset *dataset, size_t sequences)
{
    return (dataset->windows.count + sequences - 1) / sequences;
}

/* ---- a step's data ---- */

/* `length` places of a sequence from `at` on are a document of their own; `stride` elements lie between tokens, targets, positions
 * and document starts. Without tokens they are padding. Returns the trained tokens. */
static uint64_t fill_piece(const ot_tokens *tokens, uint64_t start, size_t at, size_t length, size_t stride,
                           int32_t *out)
{
    uint64_t trained = 0;
    for (size_t i = 0; i < length; i++) {
        int32_t *to = out + at + i;
        int is_trained = tokens != NULL && ot_tokens_trained(tokens, start + i + 1);
        to[0] = tokens != NULL ? ot_tokens_id(tokens, start + i) : 0;
        to[stride] = is_trained ? ot_tokens_id(tokens, start + i + 1) : -1;
        to[2 * stride] = (int32_t)i;
        to[3 * stride] = (int32_t)at;
        trained += (uint64_t)is_trained;
    }
    return trained;
}

static uint64_t fill_window(const ot_dataset *dataset, uint64_t window, size_t stride, int32_t *out)
{
    const ot_windows *w = &dataset->windows;
    uint64_t trained = 0;
    size_t at = 0;
    for (uint64_t i = w->first[window]; i < w->first[window + 1]; i++) {
        const ot_piece *piece = &w->pieces[i];
        trained += fill_piece(dataset->tokens[piece->file], piece->start, at, piece->length, stride, out);
        at += piece->length;
    }
    fill_piece(NULL, 0, at, dataset->T - at, stride, out);
    return trained;
}

uint64_t ot_dataset_fill_part(const ot_dataset *dataset, uint64_t step, size_t B, size_t M, int rank,
                              int ranks, int32_t *out)
{
    size_t T = dataset->T, stride = B * T, all = B * M * (size_t)ranks;
    uint64_t windows = dataset->windows.count, steps = ot_dataset_steps(dataset, all), epoch = step / steps,
             first = step % steps * all + B * M * (size_t)rank, trained = 0;
    for (size_t i = 0; i < B * M; i++) {
        int32_t *to = out + i / B * 4 * stride + i % B * T;
        uint64_t window = first + i;
        if (window >= windows) {
            fill_piece(NULL, 0, 0, T, stride, to);
            continue;
        }
        if (dataset->shuffle)
            window = ot_shuffle(window, windows, dataset->seed, epoch);
        trained += fill_window(dataset, window, stride, to);
    }
    return trained;
}

uint64_t ot_dataset_fill(const ot_dataset *dataset, uint64_t step, size_t B, size_t M, int32_t *out)
{
    return ot_dataset_fill_part(dataset, step, B, M, 0, 1, out);
}
