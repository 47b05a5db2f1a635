#include "engine/layout.h"

#include <inttypes.h>
#include <stdlib.h>

#include "io/grow.h"
#include "io/log.h"

enum { NAMED_MAX = 5 }; /* dropped documents that are named in the log */

/* What goes to evaluation: hashes below the limit. At least one unit is on each side, whatever the share. */
typedef struct side {
    double share;
    uint64_t lowest, highest; /* hashes of all units */
    uint64_t units, below;
} side;

typedef struct layout {
    const ot_data_options *options;
    side split;
    int counting; /* the units' hashes are looked at, no piece is made */
    ot_pieces *pieces;
    ot_data_stats *stats;
    uint64_t named;
} layout;

/* ---- evaluation ---- */

static int is_below(const side *s, uint64_t hash)
{
    return (double)hash * 0x1p-64 < s->share;
}

static int is_for_evaluation(const side *s, uint64_t hash)
{
    if (s->below == 0)
        return hash == s->lowest;
    return is_below(s, hash) && (s->below < s->units || hash != s->highest);
}

/* Whether the unit of these tokens is of the part that is wanted. A unit is what must not be on both sides: a document, or one
 * window of a document that continues. */
static int is_wanted(layout *l, const ot_tokens *tokens, uint64_t first, uint64_t count)
{
    side *s = &l->split;
    if (l->options->part == OT_DATA_ALL)
        return 1;
    uint64_t hash = ot_tokens_hash(tokens, first, count);
    if (l->counting) {
        s->lowest = s->units == 0 || hash < s->lowest ? hash : s->lowest;
        s->highest = s->units == 0 || hash > s->highest ? hash : s->highest;
        s->units++;
        s->below += (uint64_t)is_below(s, hash);
        return 0;
    }
    return is_for_evaluation(s, hash) == (l->options->part == OT_DATA_EVAL);
}

/* ---- documents ---- */

static ot_status add_piece(layout *l, uint32_t file, uint64_t start, uint64_t length, uint64_t trained)
{
    ot_pieces *p = l->pieces;
    OT_TRY(ot_grow(&p->items, &p->capacity, p->count + 1, sizeof *p->items, "pieces of documents"));
    p->items[p->count++] = (ot_piece){start, (uint32_t)length, file};
    l->stats->inputs += length;
    l->stats->trained += trained;
    return OT_OK;
}

static void drop(layout *l, const ot_tokens *tokens, uint64_t document, uint64_t *counter, const char *why)
{
    uint64_t line, length = ot_tokens_start(tokens, document + 1) - ot_tokens_start(tokens, document);
    const char *file = ot_tokens_origin(tokens, document, &line);
    ++*counter;
    if (++l->named <= NAMED_MAX)
        ot_log(OT_LOG_WARNING, "%s:%" PRIu64 ": dropped: %" PRIu64 " tokens, %s", file, line, length, why);
}

/* Windows of a document one after the other, each beginning with the last target of the one before. */
static ot_status split_document(layout *l, uint32_t file, uint64_t document, int each_alone)
{
    const ot_tokens *tokens = l->options->tokens[file];
    uint64_t at = ot_tokens_start(tokens, document), last = ot_tokens_start(tokens, document + 1) - 1;
    uint64_t T = l->options->T, pieces = 0;
    for (uint64_t length; at < last; at += length) {
        length = last - at < T ? last - at : T;
        uint64_t trained = ot_tokens_count_trained(tokens, at + 1, length);
        if (trained == 0 || (each_alone && !is_wanted(l, tokens, at, length + 1)))
            continue;
        OT_TRY(add_piece(l, file, at, length, trained));
        pieces++;
    }
    if (l->counting)
        return OT_OK;
    l->stats->documents += pieces > 0;
    if (pieces == 0 && !each_alone)
        drop(l, tokens, document, &l->stats->dropped_untrained, "none of them to train");
    return OT_OK;
}

static ot_status lay_out_document(layout *l, uint32_t file, uint64_t document)
{
    const ot_tokens *tokens = l->options->tokens[file];
    uint64_t start = ot_tokens_start(tokens, document), count = ot_tokens_start(tokens, document + 1) - start;
    uint64_t T = l->options->T, length = count - 1;
    if (ot_tokens_continues(tokens, document)) {
        if (!l->counting && count > l->stats->longest)
            l->stats->longest = count;
        return split_document(l, file, document, 1);
    }
    if (!is_wanted(l, tokens, start, count))
        return OT_OK;
    if (count > l->stats->longest)
        l->stats->longest = count;
    if (length > T && l->options->long_documents == OT_LONG_SPLIT)
        return split_document(l, file, document, 0);
    if (length > T && l->options->long_documents == OT_LONG_DROP) {
        drop(l, tokens, document, &l->stats->dropped_long, "longer than --seq-len, and --long is drop");
        return OT_OK;
    }
    uint64_t kept = length < T ? length : T, trained = ot_tokens_count_trained(tokens, start + 1, kept);
    if (trained == 0 && length > T) {
        drop(l, tokens, document, &l->stats->dropped_prompt,
             "and what comes before the first one to train is longer than --seq-len");
        return OT_OK;
    }
    if (trained == 0) {
        drop(l, tokens, document, &l->stats->dropped_untrained, "none of them to train");
        return OT_OK;
    }
    l->stats->documents++;
    l->stats->truncated += kept < length;
    l->stats->lost += length - kept;
    return add_piece(l, file, start, kept, trained);
}

static ot_status lay_out_all(layout *l)
{
    for (size_t file = 0; file < l->options->token_count; file++) {
        uint64_t documents = ot_tokens_query(l->options->tokens[file])->documents;
        for (uint64_t document = 0; document < documents; document++)
            OT_TRY(lay_out_document(l, (uint32_t)file, document));
    }
    return OT_OK;
}

static ot_status refuse(const layout *l)
{
    const ot_data_stats *s = l->stats;
    uint64_t dropped = s->dropped_long + s->dropped_prompt + s->dropped_untrained;
    if (dropped == 0)
        return ot_fail(OT_ERR_DATA,
                       "%s: there is nothing to train on: a token is learnt from those before it, "
                       "and no document has two",
                       ot_tokens_path(l->options->tokens[0]));
    return ot_fail(
        OT_ERR_DATA,
        "%s: all %" PRIu64 " documents are dropped: %" PRIu64
        " have nothing to train within --seq-len %zu, %" PRIu64 " are longer than it, %" PRIu64
        " have nothing to train at all; raise --seq-len, or look at the data with offtrain inspect",
        ot_tokens_path(l->options->tokens[0]), dropped, s->dropped_prompt, l->options->T, s->dropped_long,
        s->dropped_untrained);
}

ot_status ot_pieces_lay_out(const ot_data_options *options, ot_pieces *out, ot_data_stats *stats)
{
    layout l = {.options = options, .split = {.share = options->val_split}, .pieces = out, .stats = stats};
    *stats = (ot_data_stats){0};
    if (options->part != OT_DATA_ALL) {
        l.counting = 1;
        OT_TRY(lay_out_all(&l));
        l.counting = 0;
        if (l.split.units < 2 || l.split.lowest == l.split.highest)
            return ot_fail(OT_ERR_DATA,
                           "%s: --val-split %g: %" PRIu64 " documents, or all alike, cannot be split; "
                           "--eval-data names other data",
                           ot_tokens_path(options->tokens[0]), options->val_split, l.split.units);
    }
    OT_TRY(lay_out_all(&l));
    if (l.named > NAMED_MAX)
        ot_log(OT_LOG_WARNING, "… and %" PRIu64 " documents more were dropped", l.named - NAMED_MAX);
    return out->count > 0 ? OT_OK : refuse(&l);
}
