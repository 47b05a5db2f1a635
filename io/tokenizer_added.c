/* Added tokens: found in a text by a trie, the leftmost first and of those the longest. */
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "io/grow.h"
#include "io/tokenizer_parts.h"
#include "io/utf8.h"

static ot_status trie_node(ot_trie *trie, size_t *node)
{
    OT_TRY(ot_grow(&trie->added, &trie->capacity, trie->nodes + 1, sizeof *trie->added,
                   "the nodes of added tokens"));
    *node = trie->nodes++;
    trie->added[*node] = OT_NONE;
    return OT_OK;
}

static ot_status trie_add(ot_trie *trie, const char *text, size_t bytes, int32_t added, int *taken)
{
    size_t node = 0;
    if (trie->nodes == 0)
        OT_TRY(trie_node(trie, &node));
    for (size_t i = 0; i < bytes; i++) {
        uint64_t edge = (uint64_t)node << 8 | (unsigned char)text[i];
        const uint64_t *next = ot_map_get(&trie->edges, edge);
        if (next != NULL) {
            node = *next;
        } else {
            OT_TRY(trie_node(trie, &node));
            OT_TRY(ot_map_put(&trie->edges, edge, node));
        }
    }
    *taken = trie->added[node] != OT_NONE;
    trie->added[node] = added;
    trie->begins[(unsigned char)text[0]] = 1;
    return OT_OK;
}

/* The next token at or behind `from`: which, or OT_NONE. */
static int32_t find(const ot_trie *trie, const char *text, size_t bytes, size_t from, size_t *begin,
                    size_t *end)
{
    for (size_t at = from; at < bytes; at++) {
        if (!trie->begins[(unsigned char)text[at]])
            continue;
        int32_t longest = OT_NONE;
        size_t node = 0;
        for (size_t i = at; i < bytes; i++) {
            const uint64_t *next = ot_map_get(&trie->edges, (uint64_t)node << 8 | (unsigned char)text[i]);
            if (next == NULL)
                break;
            node = *next;
            if (trie->added[node] != OT_NONE) {
                longest = trie->added[node];
                *end = i + 1;
            }
        }
        if (longest != OT_NONE) {
            *begin = at;
            return longest;
        }
    }
    return OT_NONE;
}

/* Word characters as the regular expressions of Rust have them: alphabetic, marks, digits, connectors, joiners. */
static int is_word(uint32_t c)
{
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return 1;
    default: /* joiners, and circled and squared letters */
        return c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
               (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
    }
}

static int is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
           c == 0x3000;
}

static int stands_alone(const char *text, size_t bytes, size_t begin, size_t end)
{
    size_t length;
    return (begin == 0 || !is_word(ot_utf8_decode(text + ot_utf8_last(text, begin), &length))) &&
           (end == bytes || !is_word(ot_utf8_decode(text + end, &length)));
}

ot_status ot_added_split(ot_encoder *encoder, const ot_trie *trie, const char *text, size_t bytes, int first,
                         ot_status (*piece)(ot_encoder *encoder, const char *text, size_t bytes, int first))
{
    size_t done = 0, begin = 0, end = 0, length;
    int32_t which;
    for (size_t at = 0; trie->nodes > 0 && (which = find(trie, text, bytes, at, &begin, &end)) != OT_NONE;) {
        const ot_added *token = &encoder->of->added[which];
        at = end; /* what is passed over is not looked into again */
        if ((token->special && !encoder->special) ||
            (token->single_word && !stands_alone(text, bytes, begin, end)))
            continue;
        while (token->lstrip && begin > done &&
               is_space(ot_utf8_decode(text + ot_utf8_last(text, begin), &length)))
            begin = ot_utf8_last(text, begin);
        while (token->rstrip && end < bytes && is_space(ot_utf8_decode(text + end, &length)))
            end += length;
        if (begin > done)
            OT_TRY(piece(encoder, text + done, begin - done, first && done == 0));
        OT_TRY(ot_ids_add(encoder->out, token->id));
        done = end;
    }
    return done < bytes ? piece(encoder, text + done, bytes - done, first && done == 0) : OT_OK;
}

/* Reading the file's "added_tokens". */

static ot_status read_one(ot_tokenizer *tokenizer, const json_t *node, ot_added *out, const char **content,
                          size_t *bytes)
{
    const char *path = tokenizer->path;
    OT_TRY(ot_json_text(node, "content", path, content, bytes));
    if (*bytes == 0 || *bytes > OT_ADDED_BYTES_MAX)
        return ot_fail(OT_ERR_FORMAT, "%s: an added token of %zu bytes; 1 to %d are supported", path, *bytes,
                       OT_ADDED_BYTES_MAX);
    const json_t *id = json_object_get(node, "id");
    if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > OT_TOKEN_ID_MAX)
        return ot_fail(OT_ERR_FORMAT, "%s: the added token '%s' has no id from 0 to %d", path, *content,
                       OT_TOKEN_ID_MAX);
    out->id = (int32_t)json_integer_value(id);
    const char *const keys[] = {"special", "single_word", "lstrip", "rstrip", "normalized"};
    uint8_t *const flags[] = {&out->special, &out->single_word, &out->lstrip, &out->rstrip, &out->normalized};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        int flag = 0;
        OT_TRY(ot_json_flag(node, keys[i], i == 4 && !out->special, path, &flag));
        *flags[i] = (uint8_t)flag;
    }
    return OT_OK;
}

/* Makes room for ids below V. */
static ot_status grow(ot_tokenizer *tokenizer, size_t V)
{
    if (V <= tokenizer->info.V)
        return OT_OK;
    ot_span *tokens = realloc(tokenizer->tokens, V * sizeof *tokens);
    if (tokens != NULL)
        tokenizer->tokens = tokens;
    uint8_t *in_model = realloc(tokenizer->in_model, V);
    if (in_model != NULL)
        tokenizer->in_model = in_model;
    if (tokens == NULL || in_model == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for %zu tokens", V);
    for (size_t id = tokenizer->info.V; id < V; id++) {
        tokens[id].offset = OT_NO_SPAN;
        in_model[id] = 0;
    }
    tokenizer->info.V = V;
    return OT_OK;
}

/* Hugging Face numbers added tokens itself: by the vocabulary where it has the text, else one behind the highest. A file whose
 * ids differ from that is read differently by different programs. */
static ot_status place(ot_tokenizer *tokenizer, ot_added *added, const char *content, size_t bytes,
                       size_t *next)
{
    int32_t known =
        ot_words_find(&tokenizer->words, tokenizer->tokens, tokenizer->text.data, content, bytes, OT_NONE);
    int32_t id = known != OT_NONE ? known : (int32_t)*next;
    if (id != added->id)
        return ot_fail(
            OT_ERR_FORMAT,
            "%s: the added token '%s' has id %d in the file, but Hugging Face's tokenizers would number it %d",
            tokenizer->path, content, added->id, id);
    if (known != OT_NONE) {
        added->content = tokenizer->tokens[id];
        return OT_OK;
    }
    OT_TRY(grow(tokenizer, (size_t)id + 1));
    if (tokenizer->tokens[id].offset != OT_NO_SPAN)
        return ot_fail(OT_ERR_FORMAT, "%s: id %d belongs to the added token '%s' and to another token",
                       tokenizer->path, id, content);
    added->content = (ot_span){(uint32_t)tokenizer->text.count, (uint32_t)bytes};
    OT_TRY(ot_bytes_add(&tokenizer->text, content, bytes));
    tokenizer->tokens[id] = added->content;
    ot_words_find(&tokenizer->words, tokenizer->tokens, tokenizer->text.data, content, bytes, id);
    *next = (size_t)id + 1;
    return OT_OK;
}

static ot_status normalize_token(ot_tokenizer *tokenizer, ot_encoder *encoder, ot_added *added)
{
    added->normal = added->content;
    if (!added->normalized)
        return OT_OK;
    const char *text = tokenizer->text.data + added->content.offset;
    size_t bytes = added->content.length;
    OT_TRY(ot_normalize(tokenizer, encoder, &text, &bytes));
    if (bytes == 0 || bytes > 4 * OT_ADDED_BYTES_MAX)
        return ot_fail(OT_ERR_FORMAT, "%s: the added token '%.*s' has %zu bytes when normalised",
                       tokenizer->path, (int)added->content.length,
                       tokenizer->text.data + added->content.offset, bytes);
    if (text == tokenizer->text.data + added->content.offset)
        return OT_OK;
    added->normal = (ot_span){(uint32_t)tokenizer->text.count, (uint32_t)bytes};
    return ot_bytes_add(&tokenizer->text, text, bytes);
}

static ot_status index_tokens(ot_tokenizer *tokenizer, ot_encoder *encoder)
{
    size_t V = tokenizer->info.V;
    tokenizer->added_of = malloc((V + 1) * sizeof *tokenizer->added_of);
    if (tokenizer->added_of == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for %zu tokens", V);
    for (size_t id = 0; id < V; id++)
        tokenizer->added_of[id] = OT_NONE;
    for (size_t i = 0; i < tokenizer->added_count; i++) {
        ot_added *added = &tokenizer->added[i];
        if (tokenizer->added_of[added->id] != OT_NONE)
            return ot_fail(OT_ERR_FORMAT, "%s: the added token of id %d stands there twice", tokenizer->path,
                           added->id);
        tokenizer->added_of[added->id] = (int32_t)i;
        OT_TRY(normalize_token(tokenizer, encoder, added));
        int taken;
        OT_TRY(trie_add(added->normalized ? &tokenizer->after : &tokenizer->before,
                        tokenizer->text.data + added->normal.offset, added->normal.length, (int32_t)i,
                        &taken));
        if (taken)
            return ot_fail(OT_ERR_FORMAT, "%s: two added tokens are '%.*s' when normalised", tokenizer->path,
                           (int)added->normal.length, tokenizer->text.data + added->normal.offset);
    }
    return OT_OK;
}

ot_status ot_tokenizer_read_added(ot_tokenizer *tokenizer, const json_t *root)
{
    const json_t *list = json_object_get(root, "added_tokens");
    size_t count = json_array_size(list), next = 0;
    if (list != NULL && !json_is_null(list) && !json_is_array(list))
        return ot_fail(OT_ERR_FORMAT, "%s: 'added_tokens' is not a list", tokenizer->path);
    tokenizer->added = calloc(count + 1, sizeof *tokenizer->added);
    ot_encoder *encoder = ot_encoder_new();
    ot_status status = OT_OK;
    if (tokenizer->added == NULL || encoder == NULL)
        OT_TRY_GOTO(ot_fail(OT_ERR_INTERNAL, "out of memory for %zu added tokens", count), out);
    for (size_t id = 0; id < tokenizer->info.V; id++)
        next += tokenizer->in_model[id];
    for (size_t i = 0; i < count; i++) {
        ot_added *added = &tokenizer->added[tokenizer->added_count++];
        const char *content;
        size_t bytes;
        OT_TRY_GOTO(read_one(tokenizer, json_array_get(list, i), added, &content, &bytes), out);
        OT_TRY_GOTO(place(tokenizer, added, content, bytes, &next), out);
    }
    status = index_tokens(tokenizer, encoder);
out:
    ot_encoder_free(encoder);
    return status;
}
