/* Reading the file's "model": vocabulary and merges. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/tokenizer_parts.h"
#include "io/utf8.h"

static ot_status check_options(ot_tokenizer *tokenizer, const json_t *model)
{
    const char *path = tokenizer->path;
    const json_t *type = json_object_get(model, "type"), *dropout = json_object_get(model, "dropout");
    if (type != NULL && (!json_is_string(type) || strcmp(json_string_value(type), "BPE") != 0))
        return ot_fail(OT_ERR_FORMAT, "%s: the model '%s' is not supported; BPE is", path,
                       json_is_string(type) ? json_string_value(type) : "?");
    if (dropout != NULL && !json_is_null(dropout) &&
        !(json_is_number(dropout) && json_number_value(dropout) == 0))
        return ot_fail(OT_ERR_FORMAT, "%s: model: 'dropout' is not supported", path);
    static const char *const empty[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (size_t i = 0; i < sizeof empty / sizeof *empty; i++) {
        const json_t *value = json_object_get(model, empty[i]);
        if (value != NULL && !json_is_null(value) &&
            !(json_is_string(value) && json_string_length(value) == 0))
            return ot_fail(OT_ERR_FORMAT, "%s: model: '%s' is not supported", path, empty[i]);
    }
    OT_TRY(ot_json_flag(model, "fuse_unk", 0, path, &tokenizer->fuse_unknown));
    OT_TRY(ot_json_flag(model, "byte_fallback", 0, path, &tokenizer->byte_fallback));
    return ot_json_flag(model, "ignore_merges", 0, path, &tokenizer->ignore_merges);
}

static ot_status read_vocabulary(ot_tokenizer *tokenizer, json_t *vocab)
{
    const char *path = tokenizer->path;
    if (!json_is_object(vocab) || json_object_size(vocab) == 0)
        return ot_fail(OT_ERR_FORMAT, "%s: model: no 'vocab'", path);
    const char *token;
    json_t *number;
    json_int_t most = 0;
    json_object_foreach(vocab, token, number)
    {
        json_int_t id = json_is_integer(number) ? json_integer_value(number) : -1;
        if (id < 0 || id > OT_TOKEN_ID_MAX)
            return ot_fail(OT_ERR_FORMAT, "%s: model: the token '%s' has no id from 0 to %d", path, token,
                           OT_TOKEN_ID_MAX);
        most = id > most ? id : most;
    }
    size_t V = (size_t)most + 1;
    tokenizer->tokens = malloc(V * sizeof *tokenizer->tokens);
    tokenizer->in_model = calloc(V, 1);
    if (tokenizer->tokens == NULL || tokenizer->in_model == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for %zu tokens", V);
    for (size_t id = 0; id < V; id++)
        tokenizer->tokens[id].offset = OT_NO_SPAN;
    tokenizer->info.V = V;
    json_object_foreach(vocab, token, number)
    {
        size_t id = (size_t)json_integer_value(number), bytes = strlen(token);
        if (tokenizer->in_model[id])
            return ot_fail(OT_ERR_FORMAT, "%s: model: id %zu belongs to two tokens, '%s' is one", path, id,
                           token);
        tokenizer->in_model[id] = 1;
        tokenizer->tokens[id] = (ot_span){(uint32_t)tokenizer->text.count, (uint32_t)bytes};
        OT_TRY(ot_bytes_add(&tokenizer->text, token, bytes));
    }
    return OT_OK;
}

/* Room for the added tokens too, which come later. */
static ot_status index_vocabulary(ot_tokenizer *tokenizer, const json_t *root)
{
    size_t added = json_array_size(json_object_get(root, "added_tokens"));
    OT_TRY(ot_words_make(tokenizer->info.V + added, &tokenizer->words));
    for (size_t id = 0; id < tokenizer->info.V; id++) {
        ot_span text = tokenizer->tokens[id];
        if (text.offset != OT_NO_SPAN)
            ot_words_find(&tokenizer->words, tokenizer->tokens, tokenizer->text.data,
                          tokenizer->text.data + text.offset, text.length, (int32_t)id);
    }
    return OT_OK;
}

static int32_t find(const ot_tokenizer *tokenizer, const char *text, size_t bytes)
{
    return ot_words_find(&tokenizer->words, tokenizer->tokens, tokenizer->text.data, text, bytes, OT_NONE);
}

/* "left right" or ["left", "right"]. */
static int merge_halves(const json_t *merge, const char *halves[2], size_t bytes[2])
{
    if (json_is_array(merge) && json_array_size(merge) == 2) {
        for (size_t i = 0; i < 2; i++) {
            const json_t *half = json_array_get(merge, i);
            if (!json_is_string(half))
                return 0;
            halves[i] = json_string_value(half);
            bytes[i] = json_string_length(half);
        }
        return 1;
    }
    if (!json_is_string(merge))
        return 0;
    const char *text = json_string_value(merge), *space = memchr(text, ' ', json_string_length(merge));
    if (space == NULL)
        return 0;
    halves[0] = text;
    bytes[0] = (size_t)(space - text);
    halves[1] = space + 1;
    bytes[1] = json_string_length(merge) - bytes[0] - 1;
    return memchr(halves[1], ' ', bytes[1]) == NULL;
}

static ot_status read_merges(ot_tokenizer *tokenizer, const json_t *merges)
{
    const char *path = tokenizer->path;
    if (!json_is_array(merges) || json_array_size(merges) > OT_TOKEN_ID_MAX)
        return ot_fail(OT_ERR_FORMAT, "%s: model: 'merges' is not a list of %d at most", path,
                       OT_TOKEN_ID_MAX);
    ot_bytes joined = {0};
    ot_status status = OT_OK;
    uint64_t rank = 0;
    for (size_t i = 0; i < json_array_size(merges); i++) {
        const json_t *merge = json_array_get(merges, i);
        const char *halves[2];
        size_t bytes[2];
        if (json_is_string(merge) && strncmp(json_string_value(merge), "#version", 8) == 0)
            continue;
        if (!merge_halves(merge, halves, bytes))
            OT_TRY_GOTO(ot_fail(OT_ERR_FORMAT, "%s: model: merge %zu is not of two tokens", path, i), out);
        joined.count = 0;
        OT_TRY_GOTO(ot_bytes_add(&joined, halves[0], bytes[0]), out);
        OT_TRY_GOTO(ot_bytes_add(&joined, halves[1], bytes[1]), out);
        int32_t left = find(tokenizer, halves[0], bytes[0]), right = find(tokenizer, halves[1], bytes[1]);
        int32_t made = find(tokenizer, joined.data, joined.count);
        if (left == OT_NONE || right == OT_NONE || made == OT_NONE)
            OT_TRY_GOTO(ot_fail(OT_ERR_FORMAT,
                                "%s: model: merge %zu, '%s' and '%.*s': '%.*s' is not in the vocabulary",
                                path, i, json_is_array(merge) ? halves[0] : "", (int)bytes[1], halves[1],
                                (int)joined.count, joined.data),
                        out);
        OT_TRY_GOTO(ot_map_put(&tokenizer->merges, (uint64_t)left << 32 | (uint32_t)right,
                               rank++ << 32 | (uint32_t)made),
                    out);
    }
out:
    free(joined.data);
    return status;
}

ot_status ot_tokenizer_read_model(ot_tokenizer *tokenizer, const json_t *root)
{
    json_t *model = json_object_get(root, "model");
    if (!json_is_object(model))
        return ot_fail(OT_ERR_FORMAT, "%s: no 'model'; it is not a tokenizer.json", tokenizer->path);
    OT_TRY(check_options(tokenizer, model));
    OT_TRY(read_vocabulary(tokenizer, json_object_get(model, "vocab")));
    OT_TRY(index_vocabulary(tokenizer, root));
    OT_TRY(read_merges(tokenizer, json_object_get(model, "merges")));
    const json_t *unknown = json_object_get(model, "unk_token");
    tokenizer->has_unknown = json_is_string(unknown);
    tokenizer->unknown = json_is_string(unknown)
                             ? find(tokenizer, json_string_value(unknown), json_string_length(unknown))
                             : OT_NONE;
    return OT_OK;
}

/* Byte level with ignore_merges: words are looked up as bytes, so the tokens are kept as bytes too. */
static ot_status index_raw(ot_tokenizer *tokenizer)
{
    size_t V = tokenizer->info.V;
    tokenizer->raw = malloc(V * sizeof *tokenizer->raw);
    if (tokenizer->raw == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for %zu tokens", V);
    OT_TRY(ot_words_make(V, &tokenizer->raw_words));
    OT_TRY(ot_bytes_reserve(&tokenizer->text, tokenizer->text.count));
    for (size_t id = 0; id < V; id++) {
        ot_span token = tokenizer->tokens[id];
        size_t begin = tokenizer->text.count, length;
        int byte = OT_NONE;
        tokenizer->raw[id].offset = OT_NO_SPAN;
        if (token.offset == OT_NO_SPAN || token.length == 0)
            continue;
        for (size_t at = 0; at < token.length; at += length) {
            byte = ot_byte_level_byte(ot_utf8_decode(tokenizer->text.data + token.offset + at, &length));
            if (byte == OT_NONE)
                break;
            tokenizer->text.data[tokenizer->text.count++] = (char)byte;
        }
        if (byte == OT_NONE) { /* no text becomes this token by its bytes */
            tokenizer->text.count = begin;
            continue;
        }
        tokenizer->raw[id] = (ot_span){(uint32_t)begin, (uint32_t)(tokenizer->text.count - begin)};
        ot_words_find(&tokenizer->raw_words, tokenizer->raw, tokenizer->text.data,
                      tokenizer->text.data + begin, tokenizer->raw[id].length, (int32_t)id);
    }
    return OT_OK;
}

static size_t encode_utf8(uint32_t c, char out[4])
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    out[0] = (char)(0xC0 | c >> 6);
    out[1] = (char)(0x80 | (c & 0x3F));
    return 2;
}

ot_status ot_tokenizer_index_model(ot_tokenizer *tokenizer)
{
    for (int byte = 0; byte < 256; byte++) {
        char name[8];
        size_t bytes;
        if (tokenizer->byte_level)
            bytes = encode_utf8(ot_byte_level_character(byte), name);
        else
            bytes = (size_t)snprintf(name, sizeof name, "<0x%02X>", byte);
        tokenizer->bytes[byte] = find(tokenizer, name, bytes);
    }
    for (int c = 0; c < 128; c++) {
        char name = (char)c;
        tokenizer->ascii[c] = find(tokenizer, &name, 1);
    }
    if (tokenizer->byte_level && tokenizer->ignore_merges)
        OT_TRY(index_raw(tokenizer));
    ot_bpe_find_borders(tokenizer);
    return OT_OK;
}
