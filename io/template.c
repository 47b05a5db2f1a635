/* Which template a tokenizer wants, in which variant, and a rendered conversation as text. */
#include "io/template.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "io/template_state.h"
#include "io/text.h"

/* ---- the Jinja text ---- */

/* The string literal at `at`, which points behind its opening quote, up to `end`, which must come before the closing quote; or
 * with `end` NULL up to that. Escapes are resolved. NULL: there is none, or no memory. */
static char *read_literal(const char *at, char quote, const char *end)
{
    char *out = malloc(strlen(at) + 1), *to = out;
    size_t length = end != NULL ? strlen(end) : 0;
    for (; out != NULL && *at != '\0'; at++) {
        if (end != NULL ? strncmp(at, end, length) == 0 : *at == quote) {
            *to = '\0';
            return out;
        }
        if (*at == quote)
            break;
        if (*at == '\\' && at[1] != '\0') {
            at++;
            *to++ = *at == 'n' ? '\n' : *at == 't' ? '\t' : *at;
        } else
            *to++ = *at;
    }
    free(out);
    return NULL;
}

/* The quote that opens the literal in which `at` lies. */
static const char *literal_start(const char *jinja, const char *at)
{
    while (at > jinja && at[-1] != '\'' && at[-1] != '"')
        at--;
    return at > jinja ? at : NULL;
}

/* The whole literal around the first `word`, or a copy of `otherwise`. */
static char *literal_around(const char *jinja, const char *word, const char *otherwise)
{
    const char *found = jinja != NULL ? strstr(jinja, word) : NULL;
    const char *start = found != NULL ? literal_start(jinja, found) : NULL;
    char *literal = start != NULL ? read_literal(start, start[-1], NULL) : NULL;
    return literal != NULL ? literal : strdup(otherwise);
}

/* chatml: the text between head and end of a system turn in one literal is what the template says where nobody said anything. The
 * newline is an escape in the literal, or itself. */
static char *default_system(const char *jinja)
{
    static const char head[] = "<|im_start|>system";
    for (const char *at = jinja; at != NULL && (at = strstr(at, head)) != NULL;) {
        const char *start = literal_start(jinja, at);
        at += sizeof head - 1;
        size_t newline = at[0] == '\n' ? 1 : at[0] == '\\' && at[1] == 'n' ? 2 : 0;
        char *text =
            start != NULL && newline > 0 ? read_literal(at + newline, start[-1], "<|im_end|>") : NULL;
        if (text != NULL && *text != '\0')
            return text;
        free(text);
    }
    return NULL;
}

static int has(const char *jinja, const char *word)
{
    return jinja != NULL && strstr(jinja, word) != NULL;
}

static int detect(const char *jinja, ot_style *style)
{
    static const struct {
        ot_style style;
        const char *word, *other, *without;
    } signs[] = {
        {OT_STYLE_LLAMA3, "<|start_header_id|>", "<|eot_id|>", NULL},
        {OT_STYLE_GEMMA, "<start_of_turn>", "<end_of_turn>", NULL},
        {OT_STYLE_CHATML, "<|im_start|>", "<|im_end|>", "<|im_sep|>"},
        {OT_STYLE_LLAMA2, "<<SYS>>", "[INST]", NULL},
        {OT_STYLE_MISTRAL, "[INST]", "[/INST]", "[SYSTEM_PROMPT]"},
        {OT_STYLE_PHI3, "<|user|>", "<|end|>", NULL},
        {OT_STYLE_ZEPHYR, "<|user|>", "eos_token", NULL},
        {OT_STYLE_ALPACA, "Below is an instruction that describes a task", "### Response", NULL},
    };
    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++)
        if (has(jinja, signs[i].word) && has(jinja, signs[i].other) &&
            (signs[i].without == NULL || !has(jinja, signs[i].without))) {
            *style = signs[i].style;
            return 1;
        }
    return 0;
}

/* ---- opening ---- */

static ot_status choose_style(const char *name, const char *otherwise, const char *jinja, ot_style *style)
{
    if (strcmp(name, "auto") == 0 && jinja != NULL) {
        if (detect(jinja, style))
            return OT_OK;
        return ot_fail(OT_ERR_USAGE,
                       "the tokenizer's chat template is none of those that are known (%s); if the model "
                       "reads one of these, --template names it",
                       "chatml, llama2, llama3, mistral, gemma, phi3, zephyr, alpaca");
    }
    if (strcmp(name, "auto") == 0)
        name = otherwise;
    for (int i = 0; i < OT_STYLES; i++)
        if (strcmp(ot_style_names[i], name) == 0) {
            *style = (ot_style)i;
            return OT_OK;
        }
    const char *nearest = ot_nearest_name(name, ot_style_names, OT_STYLES);
    return ot_fail(OT_ERR_USAGE, "--template: '%s' is not known; did you mean %s?", name,
                   nearest != NULL ? nearest : "chatml");
}

static ot_status choose_variant(ot_template *t, const char *jinja)
{
    ot_style found;
    if (jinja != NULL && (!detect(jinja, &found) || found != t->style))
        jinja = NULL; /* another template was asked for */
    ot_tokenizer_info info;
    ot_tokenizer_query(t->tokenizer, &info);
    t->bos_id = info.bos;
    t->eos_id = info.eos;
    t->bos = info.bos >= 0 && (info.add_bos || has(jinja, "bos_token"));
    if (t->style == OT_STYLE_CHATML && info.bos == ot_tokenizer_find(t->tokenizer, "<|im_start|>"))
        t->bos = 0; /* SmolLM2: every turn begins with it */
    t->bos_each = t->bos && (jinja == NULL || has(jinja, "bos_token + '[INST]"));
    t->no_system = has(jinja, "System role not supported") ||
                   (t->style == OT_STYLE_MISTRAL && jinja != NULL && !has(jinja, "system"));
    t->final_eos = t->style == OT_STYLE_PHI3 && has(jinja, "{{ eos_token }}");
    t->dated = t->style == OT_STYLE_LLAMA3 && has(jinja, "Cutting Knowledge Date");
    t->thinks = t->style == OT_STYLE_CHATML && has(jinja, "reasoning_content") && has(jinja, "<think>\\n");
    if (t->style == OT_STYLE_CHATML)
        t->system = default_system(jinja);
    if (t->style != OT_STYLE_MISTRAL)
        return OT_OK;
    t->open = literal_around(jinja, "[INST]", " [INST] ");
    t->close = literal_around(jinja, "[/INST]", " [/INST]");
    if (t->open == NULL || t->close == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for a chat template");
    t->space = jinja == NULL || has(jinja, "' ' + message") || has(jinja, "\" \" + message");
    t->gap = has(jinja, "eos_token + ' '");
    t->trim = has(jinja, "]|trim") || has(jinja, "] | trim");
    t->system_last = has(jinja, "loop.last and system_message");
    return OT_OK;
}

/* Whether `text` in `a`, without its first `skip` ids, is what `b` holds. */
static int equal_ids(const ot_ids *a, size_t skip, const ot_ids *b)
{
    return a->count == b->count + skip &&
           (b->count == 0 || memcmp(a->ids + skip, b->ids, b->count * sizeof *b->ids) == 0);
}

/* The ids of `before` and `text` together, special tokens read as such. */
static ot_status encode_joined(const ot_template *t, const char *before, const char *text, ot_ids *out)
{
    char joined[256];
    int length = snprintf(joined, sizeof joined, "%s%s", before, text);
    out->count = 0;
    if (length < 0 || (size_t)length >= sizeof joined)
        return OT_OK;
    return ot_tokenizer_encode(t->tokenizer, joined, (size_t)length, 1, out);
}

/* Finds the style's special tokens in the tokenizer. One that swallows white space takes the newline behind it. */
static ot_status find_markers(ot_template *t, ot_ids *scratch)
{
    for (const char *const *name = ot_style_markers(t->style); *name != NULL; name++) {
        int32_t id = ot_tokenizer_find(t->tokenizer, *name);
        if (id < 0)
            continue;
        OT_ASSERT(t->marker_count < OT_MARKERS_MAX);
        ot_marker *marker = &t->markers[t->marker_count++];
        OT_TRY(encode_joined(t, *name, "\n", scratch));
        *marker = (ot_marker){*name, id, scratch->count == 1 && scratch->ids[0] == id};
    }
    return OT_OK;
}

/* SentencePiece's space at the beginning of a text: behind a special token it is added, too, or not. Where not, text behind one is
 * encoded with one in front. */
static ot_status find_glue(ot_template *t, ot_ids *scratch)
{
    size_t bytes;
    ot_ids plain = {0};
    if (t->bos)
        OT_TRY(ot_tokenizer_decode(t->tokenizer, &t->bos_id, 1, 1, &t->glue, &bytes));
    else if (t->marker_count > 0 && (t->glue = strdup(t->markers[0].text)) == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for a chat template");
    if (t->glue == NULL)
        return OT_OK;
    ot_status status = ot_tokenizer_encode(t->tokenizer, "a", 1, 0, &plain);
    if (status == OT_OK)
        status = encode_joined(t, t->glue, "a", scratch);
    int is_special = scratch->count > 1 && ot_tokenizer_find(t->tokenizer, t->glue) == scratch->ids[0];
    if (!is_special || equal_ids(scratch, 1, &plain)) {
        free(t->glue);
        t->glue = NULL;
    }
    ot_ids_free(&plain);
    return status;
}

static ot_status look_at_tokenizer(ot_template *t)
{
    ot_ids scratch = {0};
    ot_status status = find_markers(t, &scratch);
    if (status == OT_OK)
        status = find_glue(t, &scratch);
    ot_ids_free(&scratch);
    return status;
}

ot_status ot_template_open(const char *name, const char *otherwise, const ot_tokenizer *tokenizer,
                           ot_template **out)
{
    ot_tokenizer_info info;
    ot_template *t = calloc(1, sizeof *t);
    if (t == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for a chat template");
    t->tokenizer = tokenizer;
    ot_tokenizer_query(tokenizer, &info);
    ot_status status = choose_style(name, otherwise, info.chat_template, &t->style);
    if (status == OT_OK)
        status = choose_variant(t, info.chat_template);
    if (status == OT_OK && !info.is_bytes)
        status = look_at_tokenizer(t);
    if (status != OT_OK) {
        ot_template_close(t);
        return status;
    }
    *out = t;
    return OT_OK;
}

void ot_template_close(ot_template *chat)
{
    if (chat == NULL)
        return;
    free(chat->system);
    free(chat->open);
    free(chat->close);
    free(chat->glue);
    free(chat);
}

const char *ot_template_name(const ot_template *chat)
{
    return ot_style_names[chat->style];
}

/* ---- as text ---- */

static ot_status print_special(const ot_template *chat, int32_t id, FILE *out)
{
    char *text;
    size_t bytes;
    if (id < 0)
        return OT_OK;
    OT_TRY(ot_tokenizer_decode(chat->tokenizer, &id, 1, 1, &text, &bytes));
    fwrite(text, 1, bytes, out);
    free(text);
    return OT_OK;
}

ot_status ot_template_text(const ot_template *chat, const ot_turn *turns, size_t count, char **text)
{
    ot_segments segments = {0};
    size_t bytes;
    *text = NULL;
    FILE *out = open_memstream(text, &bytes);
    if (out == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for a conversation");
    ot_status status = ot_template_render(chat, turns, count, &segments);
    for (size_t i = 0; status == OT_OK && i < segments.count; i++) {
        const ot_segment *s = &segments.items[i];
        if (s->kind == OT_SEGMENT_BOS || s->kind == OT_SEGMENT_EOS)
            status = print_special(chat, s->kind == OT_SEGMENT_BOS ? chat->bos_id : chat->eos_id, out);
        else
            fwrite(s->text, 1, s->bytes, out);
    }
    fclose(out);
    free(segments.items);
    if (status != OT_OK) {
        free(*text);
        *text = NULL;
    }
    return status;
}
