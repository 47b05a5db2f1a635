/* Ids back to text: the tokens' texts through the decoder's steps, each of which makes a new list of texts. */
#include <stdlib.h>
#include <string.h>

#include "io/grow.h"
#include "io/tokenizer_parts.h"
#include "io/utf8.h"

/* A list of texts: behind one another, with their ends. */
typedef struct pieces {
    ot_bytes text;
    size_t *ends;
    size_t count, capacity;
} pieces;

static ot_status end_piece(pieces *list)
{
    OT_TRY(ot_grow(&list->ends, &list->capacity, list->count + 1, sizeof *list->ends, "pieces of text"));
    list->ends[list->count++] = list->text.count;
    return OT_OK;
}

static ot_status add_piece(pieces *list, const char *text, size_t bytes)
{
    OT_TRY(ot_bytes_add(&list->text, text, bytes));
    return end_piece(list);
}

static const char *piece(const pieces *list, size_t i, size_t *bytes)
{
    size_t begin = i > 0 ? list->ends[i - 1] : 0;
    *bytes = list->ends[i] - begin;
    return list->text.data + begin;
}

uint32_t ot_byte_level_character(int byte)
{
    if ((byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE)
        return (uint32_t)byte;
    return byte <= ' '    ? 256u + (uint32_t)byte
           : byte <= 0xA0 ? 256u + 33u + (uint32_t)byte - 0x7F
                          : 256u + 67u; /* 0xAD */
}

int ot_byte_level_byte(uint32_t character)
{
    if (character >= 256 + 68)
        return OT_NONE;
    int byte = character < 256        ? (int)character
               : character < 256 + 33 ? (int)character - 256
               : character < 256 + 67 ? (int)character - 256 - 33 + 0x7F
                                      : 0xAD;
    return ot_byte_level_character(byte) == character ? byte : OT_NONE;
}

/* All tokens joined as bytes; one with a character that stands for none counts as it is written. */
static ot_status byte_level(const pieces *in, pieces *out)
{
    ot_bytes joined = {0};
    ot_status status = OT_OK;
    OT_TRY_GOTO(ot_bytes_reserve(&joined, in->text.count + 1), out);
    for (size_t i = 0; i < in->count; i++) {
        size_t bytes, length, before = joined.count;
        const char *text = piece(in, i, &bytes);
        for (size_t at = 0; at < bytes; at += length) {
            int byte = ot_byte_level_byte(ot_utf8_decode(text + at, &length));
            if (byte == OT_NONE) {
                memcpy(joined.data + before, text, bytes);
                joined.count = before + bytes;
                break;
            }
            joined.data[joined.count++] = (char)byte;
        }
    }
    OT_TRY_GOTO(ot_bytes_reserve(&out->text, 3 * joined.count + 1), out);
    out->text.count = ot_utf8_repair(joined.data, joined.count, out->text.data);
    status = end_piece(out);
out:
    free(joined.data);
    return status;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* The byte of "<0x41>", or OT_NONE. */
static int byte_token(const char *text, size_t bytes)
{
    if (bytes != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>' || hex_digit(text[4]) < 0)
        return OT_NONE;
    return text[3] == '+'           ? hex_digit(text[4]) /* which Rust takes for a number too */
           : hex_digit(text[3]) < 0 ? OT_NONE
                                    : hex_digit(text[3]) * 16 + hex_digit(text[4]);
}

/* Runs of byte tokens become their text, or as many U+FFFD where they are none. */
static ot_status byte_fallback(const pieces *in, pieces *out)
{
    for (size_t i = 0; i < in->count;) {
        size_t bytes, begin = out->text.count, n = 0;
        const char *text = NULL;
        int byte = OT_NONE;
        for (; i < in->count; i++, n++) {
            text = piece(in, i, &bytes);
            byte = byte_token(text, bytes);
            if (byte == OT_NONE)
                break;
            char c = (char)byte;
            OT_TRY(ot_bytes_add(&out->text, &c, 1));
        }
        if (n > 0 && ot_utf8_valid(out->text.data + begin, n) < n) {
            out->text.count = begin;
            for (size_t k = 0; k < n; k++)
                OT_TRY(add_piece(out, "\xEF\xBF\xBD", 3));
        } else if (n > 0) {
            OT_TRY(end_piece(out));
        }
        if (i < in->count && byte == OT_NONE) {
            OT_TRY(add_piece(out, text, bytes));
            i++;
        }
    }
    return OT_OK;
}

static ot_status strip(const ot_decode_step *step, const pieces *in, pieces *out)
{
    for (size_t i = 0; i < in->count; i++) {
        size_t bytes, length = step->content_bytes;
        const char *text = piece(in, i, &bytes);
        for (size_t n = 0; n < step->start && bytes >= length && memcmp(text, step->content, length) == 0;
             n++) {
            text += length;
            bytes -= length;
        }
        for (size_t n = 0;
             n < step->stop && bytes >= length && memcmp(text + bytes - length, step->content, length) == 0;
             n++)
            bytes -= length;
        OT_TRY(add_piece(out, text, bytes));
    }
    return OT_OK;
}

static ot_status replace(const ot_decode_step *step, ot_encoder *encoder, const pieces *in, pieces *out)
{
    for (size_t i = 0; i < in->count; i++) {
        size_t bytes, done = 0;
        const char *text = piece(in, i, &bytes);
        while (done < bytes) {
            int found;
            size_t begin, end;
            OT_TRY(ot_regex_next(&step->regex, encoder, text, bytes, done, &found, &begin, &end));
            if (!found)
                break;
            OT_TRY(ot_bytes_add(&out->text, text + done, begin - done));
            OT_TRY(ot_bytes_add(&out->text, step->content, step->content_bytes));
            done = end;
        }
        OT_TRY(add_piece(out, text + done, bytes - done));
    }
    return OT_OK;
}

static ot_status metaspace(const ot_decode_step *step, const pieces *in, pieces *out)
{
    for (size_t i = 0; i < in->count; i++) {
        size_t bytes, length;
        const char *text = piece(in, i, &bytes);
        for (size_t at = 0; at < bytes; at += length) {
            ot_utf8_decode(text + at, &length);
            int space = length == step->content_bytes && memcmp(text + at, step->content, length) == 0;
            if (!space)
                OT_TRY(ot_bytes_add(&out->text, text + at, length));
            else if (i > 0 || !step->drop_first)
                OT_TRY(ot_bytes_add(&out->text, " ", 1));
        }
        OT_TRY(end_piece(out));
    }
    return OT_OK;
}

static ot_status run_step(const ot_decode_step *step, ot_encoder *encoder, const pieces *in, pieces *out)
{
    switch (step->kind) {
    case OT_DECODE_BYTE_LEVEL:
        return byte_level(in, out);
    case OT_DECODE_BYTE_FALLBACK:
        return byte_fallback(in, out);
    case OT_DECODE_FUSE:
        return add_piece(out, in->text.data, in->text.count);
    case OT_DECODE_STRIP:
        return strip(step, in, out);
    case OT_DECODE_REPLACE:
        return replace(step, encoder, in, out);
    case OT_DECODE_METASPACE:
        return metaspace(step, in, out);
    }
    return OT_OK;
}

/* The texts of the ids, which are known to be below V. A number that no token has is passed over. */
static ot_status look_up(const ot_tokenizer *tokenizer, const int32_t *ids, size_t count, int special,
                         pieces *list)
{
    for (size_t i = 0; i < count; i++) {
        int32_t which = tokenizer->added_of[ids[i]];
        const ot_added *added = which != OT_NONE ? &tokenizer->added[which] : NULL;
        ot_span text = added != NULL ? added->normal : tokenizer->tokens[ids[i]];
        if (text.offset == OT_NO_SPAN || (added != NULL && added->special && !special))
            continue;
        if (!tokenizer->has_decoder && list->count > 0)
            OT_TRY(ot_bytes_add(&list->text, " ", 1));
        OT_TRY(add_piece(list, tokenizer->text.data + text.offset, text.length));
    }
    return ot_bytes_reserve(&list->text, 1);
}

static ot_status decode_bytes(const ot_tokenizer *tokenizer, const int32_t *ids, size_t count, int special,
                              pieces *list)
{
    OT_TRY(ot_bytes_reserve(&list->text, count + 1));
    for (size_t i = 0; i < count; i++) {
        int is_special = ids[i] == tokenizer->info.bos || ids[i] == tokenizer->info.eos;
        if (ids[i] < 256 && (special || !is_special))
            list->text.data[list->text.count++] = (char)ids[i];
    }
    return OT_OK;
}

static ot_status decode_tokens(const ot_tokenizer *tokenizer, const int32_t *ids, size_t count, int special,
                               pieces lists[2], size_t *result)
{
    OT_TRY(look_up(tokenizer, ids, count, special, &lists[0]));
    ot_encoder *encoder = tokenizer->decode_count > 0 ? ot_encoder_new() : NULL;
    if (tokenizer->decode_count > 0 && encoder == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for decoding %zu tokens", count);
    ot_status status = OT_OK;
    for (size_t i = 0; i < tokenizer->decode_count; i++) {
        const pieces *in = &lists[*result];
        pieces *out = &lists[1 - *result];
        out->text.count = out->count = 0;
        OT_TRY_GOTO(ot_bytes_reserve(&out->text, in->text.count + 1), out);
        OT_TRY_GOTO(run_step(&tokenizer->decode_steps[i], encoder, in, out), out);
        *result = 1 - *result;
    }
out:
    ot_encoder_free(encoder);
    return status;
}

ot_status ot_tokenizer_decode(const ot_tokenizer *tokenizer, const int32_t *ids, size_t count, int special,
                              char **text, size_t *bytes)
{
    for (size_t i = 0; i < count; i++)
        if (ids[i] < 0 || (size_t)ids[i] >= tokenizer->info.V)
            return ot_fail(OT_ERR_DATA, "token %zu is %d, beyond the vocabulary of %zu", i, ids[i],
                           tokenizer->info.V);
    pieces lists[2] = {0};
    size_t result = 0;
    ot_status status = tokenizer->info.is_bytes
                           ? decode_bytes(tokenizer, ids, count, special, &lists[0])
                           : decode_tokens(tokenizer, ids, count, special, lists, &result);
    if (status == OT_OK)
        status = ot_bytes_add(&lists[result].text, "", 1);
    if (status == OT_OK) {
        *text = lists[result].text.data;
        *bytes = lists[result].text.count - 1;
        lists[result].text.data = NULL;
    }
    for (size_t i = 0; i < 2; i++) {
        free(lists[i].text.data);
        free(lists[i].ends);
    }
    return status;
}

/* Reading the file's "decoder". */

static ot_status read_strip(const json_t *node, const char *path, ot_decode_step *step)
{
    const json_t *start = json_object_get(node, "start"), *stop = json_object_get(node, "stop");
    step->kind = OT_DECODE_STRIP;
    OT_TRY(ot_json_keep(node, "content", path, &step->content, &step->content_bytes));
    if (step->content_bytes == 0 || !json_is_integer(start) || !json_is_integer(stop) ||
        json_integer_value(start) < 0 || json_integer_value(stop) < 0)
        return ot_fail(OT_ERR_FORMAT,
                       "%s: decoder: Strip needs a character and the numbers 'start' and 'stop'", path);
    step->start = (size_t)json_integer_value(start);
    step->stop = (size_t)json_integer_value(stop);
    return OT_OK;
}

static ot_status read_step(ot_tokenizer *tokenizer, const json_t *node, int depth)
{
    const char *type, *path = tokenizer->path;
    size_t bytes;
    OT_TRY(ot_json_text(node, "type", path, &type, &bytes));
    if (strcmp(type, "Sequence") == 0 && depth < 4) {
        const json_t *list = json_object_get(node, "decoders");
        if (!json_is_array(list))
            return ot_fail(OT_ERR_FORMAT, "%s: decoder: Sequence without 'decoders'", path);
        for (size_t i = 0; i < json_array_size(list); i++)
            OT_TRY(read_step(tokenizer, json_array_get(list, i), depth + 1));
        return OT_OK;
    }
    if (tokenizer->decode_count == OT_STEPS_MAX)
        return ot_fail(OT_ERR_FORMAT, "%s: decoder has more than %d steps", path, OT_STEPS_MAX);
    ot_decode_step *step = &tokenizer->decode_steps[tokenizer->decode_count++];
    if (strcmp(type, "Strip") == 0)
        return read_strip(node, path, step);
    if (strcmp(type, "Replace") == 0) {
        step->kind = OT_DECODE_REPLACE;
        OT_TRY(ot_json_pattern(node, path, &step->regex));
        return ot_json_keep(node, "content", path, &step->content, &step->content_bytes);
    }
    if (strcmp(type, "Metaspace") == 0) {
        ot_prepend_scheme scheme;
        step->kind = OT_DECODE_METASPACE;
        OT_TRY(ot_json_scheme(node, path, &scheme));
        step->drop_first = scheme != OT_PREPEND_NEVER;
        return ot_json_keep(node, "replacement", path, &step->content, &step->content_bytes);
    }
    if (strcmp(type, "ByteLevel") == 0)
        step->kind = OT_DECODE_BYTE_LEVEL;
    else if (strcmp(type, "ByteFallback") == 0)
        step->kind = OT_DECODE_BYTE_FALLBACK;
    else if (strcmp(type, "Fuse") == 0)
        step->kind = OT_DECODE_FUSE;
    else
        return ot_fail(
            OT_ERR_FORMAT,
            "%s: the decoder '%s' is not supported; Sequence, ByteLevel, ByteFallback, Fuse, Strip, Replace and "
            "Metaspace are",
            path, type);
    return OT_OK;
}

ot_status ot_tokenizer_read_decoder(ot_tokenizer *tokenizer, const json_t *node)
{
    tokenizer->has_decoder = node != NULL && !json_is_null(node);
    return tokenizer->has_decoder ? read_step(tokenizer, node, 0) : OT_OK;
}
