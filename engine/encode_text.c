/* Text files and other programs' tokens: documents that are encoded in pieces and never held whole. */
#include <ctype.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "engine/corpus.h"
#include "io/stop.h"
#include "io/tokenbin.h"

enum { PIECES = 32, PIECE_BYTES = 256 << 10 };

typedef struct piece {
    const char *text;
    size_t bytes;
    int32_t *ids;
    size_t count;
    ot_status status;
    char error[OT_ERROR_TEXT_BYTES];
} piece;

typedef struct pieces {
    const ot_tokenizer *tokenizer;
    size_t count, V;
    atomic_size_t next;
    ot_ids *scratch; /* of each member of the team, with its working memory */
    piece items[PIECES];
} pieces;

/* ---- where a text may be cut ---- */

/* How the tokenizer reads the space between two words in two encodings: 0: the second begins with it; 1: it is left out, as the
 * tokenizer puts one before every text; -1: neither gives what the whole text gives, and it must not be cut. */
static ot_status find_joint(const ot_tokenizer *tokenizer, int *joint)
{
    static const char text[] = "word word";
    ot_ids whole = {0}, parts = {0};
    ot_status status = OT_OK;
    *joint = -1;
    OT_TRY_GOTO(ot_tokenizer_encode(tokenizer, text, 9, 0, &whole), out);
    for (int skip = 0; skip <= 1 && *joint < 0; skip++) {
        parts.count = 0;
        OT_TRY_GOTO(ot_tokenizer_encode(tokenizer, text, 4, 0, &parts), out);
        OT_TRY_GOTO(ot_tokenizer_encode(tokenizer, text + 4 + skip, (size_t)(5 - skip), 0, &parts), out);
        if (parts.count == whole.count && memcmp(parts.ids, whole.ids, whole.count * sizeof *whole.ids) == 0)
            *joint = skip;
    }
out:
    ot_ids_free(&whole);
    ot_ids_free(&parts);
    /* A vocabulary without these letters: cutting at them does not come up. */
    return status == OT_ERR_DATA ? OT_OK : status;
}

/* Bytes of the piece that begins at `text`: up to a space between two ASCII letters, where no pattern and no merge of a tokenizer
 * goes across; all of it where there is none. */
static size_t cut(const char *text, size_t bytes)
{
    for (size_t i = PIECE_BYTES; i + 1 < bytes; i++)
        if (text[i] == ' ' && isalpha((unsigned char)text[i - 1]) && isalpha((unsigned char)text[i + 1]))
            return i;
    return bytes;
}

/* ---- text ---- */

static ot_status encode_checked(const pieces *p, const char *text, size_t bytes, ot_ids *ids)
{
    OT_TRY(ot_tokenizer_encode(p->tokenizer, text, bytes, 0, ids));
    return ot_corpus_check_ids(ids, p->V);
}

static ot_status encode_piece(const pieces *p, piece *item, ot_ids *scratch)
{
    scratch->count = 0;
    OT_TRY(encode_checked(p, item->text, item->bytes, scratch));
    item->count = scratch->count;
    item->ids = malloc((scratch->count + 1) * sizeof *item->ids);
    if (item->ids == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for %zu tokens", scratch->count);
    if (scratch->count > 0)
        memcpy(item->ids, scratch->ids, scratch->count * sizeof *item->ids);
    return OT_OK;
}

static void encode_pieces(void *context, int index, int count)
{
    (void)count;
    pieces *p = context;
    for (size_t i; (i = atomic_fetch_add(&p->next, 1)) < p->count;) {
        piece *item = &p->items[i];
        item->status = encode_piece(p, item, &p->scratch[index]);
        if (item->status != OT_OK)
            memcpy(item->error, ot_error_text(), strlen(ot_error_text()) + 1);
    }
}

static uint64_t count_lines(const char *text, const char *end)
{
    uint64_t lines = 0;
    while ((text = memchr(text, '\n', (size_t)(end - text))) != NULL) {
        lines++;
        text++;
    }
    return lines;
}

/* The piece's failure again, with the line it is on: the first that fails alone. */
static ot_status name_line(const ot_corpus *c, const pieces *p, const char *text, const piece *item)
{
    uint64_t line = 1 + count_lines(text, item->text);
    if (item->status != OT_ERR_DATA)
        return ot_fail(item->status, "%s", item->error);
    ot_ids ids = {0};
    const char *at = item->text, *end = item->text + item->bytes;
    while (at < end) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        size_t bytes = (size_t)((stop != NULL ? stop + 1 : end) - at);
        ids.count = 0;
        if (encode_checked(p, at, bytes, &ids) != OT_OK)
            break;
        at += bytes;
        line += stop != NULL;
    }
    ot_ids_free(&ids);
    return ot_fail(OT_ERR_DATA, "%s:%" PRIu64 ": %s", c->path, line, item->error);
}

static ot_status run_pieces(ot_corpus *c, pieces *p, const char *text, size_t bytes, int joint)
{
    for (size_t at = 0; at < bytes;) {
        for (p->count = 0; p->count < PIECES && at < bytes; p->count++) {
            size_t skip = joint == 1 && at > 0 ? 1 : 0, all = bytes - at - skip;
            size_t part = joint < 0 ? all : cut(text + at + skip, all);
            p->items[p->count].text = text + at + skip;
            p->items[p->count].bytes = part;
            at += skip + part;
        }
        OT_TRY(ot_stop_check());
        atomic_store(&p->next, 0);
        ot_team_run(c->team, encode_pieces, p);
        for (size_t i = 0; i < p->count; i++) {
            if (p->items[i].status != OT_OK)
                return name_line(c, p, text, &p->items[i]);
            OT_TRY(ot_tokens_writer_add(c->writer, p->items[i].ids, NULL, p->items[i].count));
            free(p->items[i].ids);
            p->items[i].ids = NULL;
        }
    }
    return OT_OK;
}

ot_status ot_encode_text(ot_corpus *corpus, const char *text, size_t bytes)
{
    int joint;
    const ot_tokenizer_info *info = &corpus->tokenizer;
    if (corpus->options->train_on == OT_TRAIN_ON_ASSISTANT ||
        corpus->options->train_on == OT_TRAIN_ON_COMPLETION)
        return ot_fail(OT_ERR_USAGE, "--train-on: %s is text, which has no assistant; auto or all trains it",
                       corpus->path);
    if (bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) {
        text += 3;
        bytes -= 3;
    }
    OT_TRY(find_joint(corpus->options->tokenizer, &joint));
    size_t members = (size_t)ot_team_count(corpus->team);
    pieces *p = calloc(1, sizeof *p);
    ot_ids *scratch = calloc(members, sizeof *scratch);
    if (p == NULL || scratch == NULL) {
        free(scratch);
        free(p);
        return ot_fail(OT_ERR_INTERNAL, "out of memory for pieces of text");
    }
    p->scratch = scratch;
    p->tokenizer = corpus->options->tokenizer;
    p->V = corpus->V;
    ot_status status = OT_OK;
    if (info->add_bos && info->bos >= 0)
        status = ot_tokens_writer_add(corpus->writer, &info->bos, NULL, 1);
    if (status == OT_OK)
        status = run_pieces(corpus, p, text, bytes, joint);
    if (status == OT_OK && info->eos >= 0)
        status = ot_tokens_writer_add(corpus->writer, &info->eos, NULL, 1);
    if (status == OT_OK)
        status = ot_tokens_writer_end(corpus->writer, corpus->file, 0, 1);
    for (size_t i = 0; i < PIECES; i++)
        free(p->items[i].ids);
    for (size_t i = 0; i < members; i++)
        ot_ids_free(&scratch[i]);
    free(scratch);
    free(p);
    return status;
}

/* ---- tokens of other programs ---- */

/* Documents end behind EOS, or begin with BOS, where the model has one: llm.c writes the end of a document before the next. */
ot_status ot_encode_bin(ot_corpus *corpus, const ot_mapping *map)
{
    enum { PART = 4096 };
    int32_t ids[PART];
    ot_tokenbin bin;
    OT_TRY(ot_tokenbin_read(corpus->path, map, &bin));
    int32_t eos = bin.V > 0 ? -1 : corpus->tokenizer.eos, bos = bin.V > 0 ? -1 : corpus->tokenizer.bos;
    if (bin.count == 0)
        return ot_fail(OT_ERR_DATA, "%s: there are no tokens in it", corpus->path);
    size_t used = 0;
    for (uint64_t i = 0; i < bin.count; i++) {
        uint32_t id = ot_tokenbin_id(&bin, i);
        if (id >= corpus->V)
            return ot_fail(OT_ERR_DATA,
                           "%s: token %" PRIu64 " (%s, %d bits each) is id %u, beyond the model's vocabulary "
                           "of %zu; is this data for this model?",
                           corpus->path, i, bin.kind, 8 * bin.width, id, corpus->V);
        int begins = (int32_t)id == bos && bos != eos;
        if (i % (1 << 20) == 0)
            OT_TRY(ot_stop_check());
        if (used == PART || begins) {
            OT_TRY(ot_tokens_writer_add(corpus->writer, ids, NULL, used));
            used = 0;
        }
        if (begins)
            OT_TRY(ot_tokens_writer_end(corpus->writer, corpus->file, 0, 1));
        ids[used++] = (int32_t)id;
        if ((int32_t)id == eos) {
            OT_TRY(ot_tokens_writer_add(corpus->writer, ids, NULL, used));
            OT_TRY(ot_tokens_writer_end(corpus->writer, corpus->file, 0, 1));
            used = 0;
        }
    }
    OT_TRY(ot_tokens_writer_add(corpus->writer, ids, NULL, used));
    return ot_tokens_writer_end(corpus->writer, corpus->file, 0, 1);
}
