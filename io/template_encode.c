/* A rendered conversation as tokens.
 *
 * What stands between two special tokens is encoded as one text, as Hugging Face does with the whole conversation: cut at the edge
 * of an answer, "\n" and "\n\n" would be two tokens where the model knows one. Where the answer begins and ends among the tokens
 * is where those of the text up to there alone begin to differ; a token across an edge is trained. */
#include <stdlib.h>
#include <string.h>

#include "io/grow.h"
#include "io/template_state.h"
#include "io/tokenizer_parts.h"

/* ---- documents ---- */

void ot_document_clear(ot_document *document)
{
    document->ids.count = 0;
    document->marks = 0;
}

void ot_document_free(ot_document *document)
{
    ot_ids_free(&document->ids);
    ot_ids_free(&document->head);
    ot_ids_free(&document->scratch);
    free(document->trained);
    *document = (ot_document){0};
}

/* Marks the tokens that have no mark yet. */
static ot_status mark(ot_document *document, int trained)
{
    size_t count = document->ids.count;
    OT_TRY(ot_grow(&document->trained, &document->marks_capacity, count, 1, "the marks of tokens"));
    if (count > document->marks)
        memset(document->trained + document->marks, trained != 0, count - document->marks);
    document->marks = count;
    return OT_OK;
}

ot_status ot_document_add(ot_document *document, int32_t id, int trained)
{
    if (id >= 0)
        OT_TRY(ot_ids_add(&document->ids, id));
    return mark(document, trained);
}

/* ---- what stands between two special tokens ---- */

typedef struct run {
    const ot_template *chat;
    char *text;
    size_t bytes, capacity;
    size_t *edges; /* where trained and not trained text meet; the first part is not trained */
    size_t edge_count, edge_capacity;
    int behind; /* a special token comes before it … */
    int strips; /* … which swallows white space */
    ot_document *out;
} run;

static ot_status run_reserve(run *r, size_t bytes)
{
    OT_TRY(ot_grow(&r->text, &r->capacity, r->bytes + bytes, 1, "a conversation"));
    return ot_grow(&r->edges, &r->edge_capacity, r->edge_count + 1, sizeof *r->edges, "a conversation");
}

static ot_status run_add(run *r, const char *text, size_t bytes, int trained)
{
    OT_TRY(run_reserve(r, bytes));
    while (r->strips && bytes > 0 && strchr(" \t\n\r\f\v", *text) != NULL && *text != '\0') {
        text++;
        bytes--;
    }
    if (bytes == 0)
        return OT_OK;
    r->strips = 0;
    if ((r->edge_count % 2 != 0) != trained)
        r->edges[r->edge_count++] = r->bytes;
    memcpy(r->text + r->bytes, text, bytes);
    r->bytes += bytes;
    return OT_OK;
}

/* The first `bytes` of the run, encoded as what stands behind a special token. */
static ot_status encode(run *r, size_t bytes, ot_ids *out)
{
    const ot_tokenizer *tokenizer = r->chat->tokenizer;
    const char *glue = r->chat->glue;
    size_t before = out->count;
    OT_TRY(ot_tokenizer_encode(tokenizer, r->text, bytes, 0, out));
    if (glue == NULL || !r->behind)
        return OT_OK;
    /* With the special token in front and special tokens read as such, which content that holds one must not be. */
    r->out->scratch.count = 0;
    OT_TRY(ot_tokenizer_encode(tokenizer, r->text, bytes, 1, &r->out->scratch));
    size_t count = out->count - before;
    if (r->out->scratch.count != count ||
        memcmp(r->out->scratch.ids, out->ids + before, count * sizeof *out->ids) != 0)
        return OT_OK;
    size_t length = strlen(glue);
    char *joined = malloc(length + bytes + 1);
    if (joined == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for a conversation");
    memcpy(joined, glue, length);
    memcpy(joined + length, r->text, bytes);
    out->count = before;
    ot_status status = ot_tokenizer_encode(tokenizer, joined, length + bytes, 1, out);
    free(joined);
    if (status == OT_OK) {
        out->count--;
        memmove(out->ids + before, out->ids + before + 1, (out->count - before) * sizeof *out->ids);
    }
    return status;
}

/* Tokens from `before` on that belong to the text before edge `edge`. */
static ot_status find_edge(run *r, size_t edge, size_t before, size_t *count)
{
    ot_ids *head = &r->out->head, *ids = &r->out->ids;
    size_t common = 0;
    head->count = 0;
    if (r->edges[edge] > 0)
        OT_TRY(encode(r, r->edges[edge], head));
    while (common < head->count && before + common < ids->count &&
           head->ids[common] == ids->ids[before + common])
        common++;
    int across = common < head->count && before + common < ids->count;
    *count = common + (size_t)(across && edge % 2 != 0); /* the end of an answer keeps the token across it */
    return OT_OK;
}

static ot_status run_flush(run *r)
{
    ot_document *out = r->out;
    size_t before = out->ids.count;
    if (r->bytes == 0)
        return OT_OK;
    OT_TRY(encode(r, r->bytes, &out->ids));
    size_t all = out->ids.count;
    for (size_t edge = 0; edge < r->edge_count; edge++) {
        size_t count;
        OT_TRY(find_edge(r, edge, before, &count));
        if (before + count <= out->marks)
            continue;
        out->ids.count = before + count;
        ot_status status = mark(out, edge % 2 != 0);
        out->ids.count = all;
        OT_TRY(status);
    }
    OT_TRY(mark(out, r->edge_count % 2 != 0));
    r->bytes = r->edge_count = 0;
    return OT_OK;
}

static ot_status run_special(run *r, int32_t id, int trained, int strips)
{
    OT_TRY(run_flush(r));
    r->behind = 1;
    r->strips = strips;
    return ot_document_add(r->out, id, trained);
}

static ot_status encode_segment(run *r, const ot_segment *s)
{
    if (s->kind == OT_SEGMENT_BOS)
        return run_special(r, r->chat->bos_id, s->trained, 0);
    if (s->kind == OT_SEGMENT_EOS)
        return run_special(r, r->chat->eos_id, s->trained, 0);
    for (size_t i = 0; s->kind == OT_SEGMENT_MARKER && i < r->chat->marker_count; i++)
        if (strcmp(r->chat->markers[i].text, s->text) == 0)
            return run_special(r, r->chat->markers[i].id, s->trained, r->chat->markers[i].strips);
    return run_add(r, s->text, s->bytes, s->trained);
}

ot_status ot_template_encode(const ot_template *chat, const ot_turn *turns, size_t count, ot_document *out)
{
    ot_segments segments = {0};
    run r = {.chat = chat, .out = out};
    ot_status status = ot_template_render(chat, turns, count, &segments);
    for (size_t i = 0; status == OT_OK && i < segments.count; i++)
        status = encode_segment(&r, &segments.items[i]);
    if (status == OT_OK)
        status = run_flush(&r);
    free(r.edges);
    free(r.text);
    free(segments.items);
    return status;
}
