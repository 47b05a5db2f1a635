/* Rows of JSONL: read and encoded on the team, a few hundred at a time, and written in their order. */
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "engine/corpus.h"
#include "io/jsonl.h"
#include "io/log.h"
#include "io/stop.h"

enum { ROWS = 256, ROWS_BYTES = 8 << 20 };

/* A row's outcome. */
typedef struct encoded {
    ot_jsonl_line line;
    int32_t *ids; /* a copy, with the marks behind it */
    size_t count, capacity;
    ot_status status;
    char text[OT_ERROR_TEXT_BYTES];
} encoded;

typedef struct batch {
    const ot_corpus *corpus;
    const ot_template *chat;
    ot_row_kind kind;
    size_t count;
    atomic_size_t next;
    ot_document *documents; /* of each member of the team */
    encoded rows[ROWS];
} batch;

static unsigned char *marks_of(const encoded *row)
{
    return (unsigned char *)(row->ids + row->capacity);
}

static ot_status keep(encoded *row, const ot_document *document)
{
    size_t count = document->ids.count;
    if (row->ids == NULL || row->capacity < count) {
        free(row->ids);
        row->capacity = count + count / 4 + 64;
        row->ids = malloc(row->capacity * (sizeof *row->ids + 1));
        if (row->ids == NULL)
            return ot_fail(OT_ERR_INTERNAL, "out of memory for %zu tokens", count);
    }
    row->count = count;
    if (count > 0) {
        memcpy(row->ids, document->ids.ids, count * sizeof *row->ids);
        memcpy(marks_of(row), document->trained, count);
    }
    return OT_OK;
}

/* ---- one row ---- */

static ot_status encode_turns(const batch *b, const ot_row_turns *turns, ot_document *out)
{
    const ot_tokenizer_info *tokenizer = &b->corpus->tokenizer;
    const ot_turn *text = turns->turns;
    if (b->chat != NULL)
        return ot_template_encode(b->chat, turns->turns, turns->count, out);
    OT_TRY(ot_document_add(out, tokenizer->add_bos ? tokenizer->bos : -1, 1));
    OT_TRY(ot_tokenizer_encode(b->corpus->options->tokenizer, text->text, text->bytes, 0, &out->ids));
    return ot_document_add(out, tokenizer->eos, 1);
}

static ot_status encode_row(const batch *b, const json_t *row, ot_row_turns *turns, ot_document *out)
{
    const ot_corpus *c = b->corpus;
    int apart = b->chat != NULL && strcmp(ot_template_name(b->chat), "alpaca") == 0;
    OT_TRY(ot_row_read(row, b->kind, c->options->train_on, apart, turns));
    ot_document_clear(out);
    OT_TRY(encode_turns(b, turns, out));
    if (c->options->train_on == OT_TRAIN_ON_ALL)
        memset(out->trained, 1, out->marks);
    return ot_corpus_check_ids(&out->ids, c->V);
}

static void encode_line(batch *b, encoded *row, ot_row_turns *turns, ot_document *document)
{
    json_t *value = NULL;
    row->status = ot_jsonl_parse(b->corpus->path, &row->line, &value);
    if (row->status == OT_OK) {
        row->status = encode_row(b, value, turns, document);
        if (row->status == OT_OK)
            row->status = keep(row, document);
        else if (row->status == OT_ERR_DATA)
            row->status = ot_fail(OT_ERR_DATA, "%s:%" PRIu64 ": %s", b->corpus->path, row->line.number,
                                  ot_error_text());
    }
    if (row->status != OT_OK)
        memcpy(row->text, ot_error_text(), strlen(ot_error_text()) + 1);
    json_decref(value);
}

static void encode_lines(void *context, int index, int count)
{
    (void)count;
    batch *b = context;
    ot_row_turns turns = {0};
    for (size_t i; (i = atomic_fetch_add(&b->next, 1)) < b->count;)
        encode_line(b, &b->rows[i], &turns, &b->documents[index]);
    ot_row_turns_free(&turns);
}

/* ---- all rows ---- */

static ot_status run_batch(ot_corpus *c, batch *b)
{
    OT_TRY(ot_stop_check());
    atomic_store(&b->next, 0);
    ot_team_run(c->team, encode_lines, b);
    for (size_t i = 0; i < b->count; i++) {
        const encoded *row = &b->rows[i];
        if (row->status != OT_OK)
            return ot_fail(row->status, "%s", row->text);
        OT_TRY(ot_tokens_writer_add(c->writer, row->ids, marks_of(row), row->count));
        OT_TRY(ot_tokens_writer_end(c->writer, c->file, row->line.number, 0));
    }
    b->count = 0;
    return OT_OK;
}

static ot_status find_kind(const ot_corpus *c, const ot_jsonl_line *first, ot_row_kind *kind)
{
    json_t *row;
    OT_TRY(ot_jsonl_parse(c->path, first, &row));
    int known = ot_row_detect(row, kind);
    json_decref(row);
    if (!known)
        return ot_fail(OT_ERR_DATA,
                       "%s:%" PRIu64
                       ": a row has \"text\", \"messages\", \"conversations\", \"instruction\" with "
                       "\"output\", or \"prompt\" with \"completion\"; none of them is there",
                       c->path, first->number);
    return OT_OK;
}

static ot_status open_template(const ot_corpus *c, ot_row_kind kind, ot_template **out)
{
    const ot_samples_options *o = c->options;
    if (kind == OT_ROW_TEXT &&
        (o->train_on == OT_TRAIN_ON_ASSISTANT || o->train_on == OT_TRAIN_ON_COMPLETION))
        return ot_fail(OT_ERR_USAGE,
                       "--train-on: %s holds text, which has no assistant; auto or all trains it", c->path);
    *out = NULL;
    if (kind == OT_ROW_TEXT)
        return OT_OK;
    const char *name = kind == OT_ROW_COMPLETION ? "none" : o->chat_template;
    OT_TRY(ot_template_open(name, kind == OT_ROW_ALPACA ? "alpaca" : "chatml", o->tokenizer, out));
    if (kind != OT_ROW_COMPLETION)
        ot_log(OT_LOG_INFO, "%s: rows of kind %s, chat template %s%s", c->path, ot_row_kind_name(kind),
               ot_template_name(*out),
               c->tokenizer.chat_template == NULL && strcmp(o->chat_template, "auto") == 0
                   ? ": the tokenizer has none of its own"
                   : "");
    return OT_OK;
}

static ot_status run_rows(ot_corpus *c, batch *b, ot_jsonl *lines, ot_jsonl_line line)
{
    size_t bytes = 0;
    do {
        b->rows[b->count++].line = line;
        bytes += line.bytes;
        if (b->count == ROWS || bytes >= ROWS_BYTES) {
            OT_TRY(run_batch(c, b));
            bytes = 0;
        }
    } while (ot_jsonl_next(lines, &line));
    return run_batch(c, b);
}

ot_status ot_encode_jsonl(ot_corpus *corpus, const ot_mapping *map, const ot_row_kind *kind)
{
    ot_jsonl lines;
    ot_jsonl_line line;
    ot_template *chat = NULL;
    ot_jsonl_init(&lines, map->data, map->bytes);
    if (!ot_jsonl_next(&lines, &line))
        return ot_fail(OT_ERR_DATA, "%s: there is no row in it", corpus->path);
    size_t members = (size_t)ot_team_count(corpus->team);
    batch *b = calloc(1, sizeof *b);
    ot_document *documents = calloc(members, sizeof *documents);
    if (b == NULL || documents == NULL) {
        free(documents);
        free(b);
        return ot_fail(OT_ERR_INTERNAL, "out of memory for rows");
    }
    ot_status status = OT_OK;
    b->documents = documents;
    b->corpus = corpus;
    if (kind != NULL)
        b->kind = *kind;
    else
        OT_TRY_GOTO(find_kind(corpus, &line, &b->kind), out);
    OT_TRY_GOTO(open_template(corpus, b->kind, &chat), out);
    b->chat = chat;
    status = run_rows(corpus, b, &lines, line);
out:
    for (size_t i = 0; i < ROWS; i++)
        free(b->rows[i].ids);
    for (size_t i = 0; i < members; i++)
        ot_document_free(&documents[i]);
    free(documents);
    ot_template_close(chat);
    free(b);
    return status;
}
