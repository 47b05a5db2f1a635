/* Normalisation of a text before it is split: the Unicode forms, prepending, replacing. */
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "io/tokenizer_parts.h"
#include "io/utf8.h"

/* Whether NFC leaves the character alone whatever stands beside it: a starter that stays as it is and never joins the one
 * before it. Those of common scripts; a character that is left out here only costs time. */
static int is_inert(const char *text, size_t *length)
{
    static const uint16_t ranges[][2] = {
        {0x0391, 0x03A9}, {0x03B1, 0x03C9}, {0x0410, 0x044F}, {0x05D0, 0x05EA}, {0x0621, 0x063A},
        {0x0641, 0x064A}, {0x0E01, 0x0E30}, {0x200B, 0x205E}, {0x2190, 0x21FF}, {0x2500, 0x27BF},
        {0x3001, 0x3029}, {0x3041, 0x3096}, {0x30A1, 0x30FA}, {0x3400, 0x9FFF}, {0xAC00, 0xD7A3},
        {0xFE0F, 0xFE0F}, {0xFF01, 0xFFEF}, {0xFFFD, 0xFFFD},
    };
    uint32_t c = ot_utf8_decode(text, length);
    if (c < 0x300 || (c >= 0x1F300 && c <= 0x1FAFF))
        return 1;
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges && c >= ranges[i][0]; i++)
        if (c <= ranges[i][1])
            return 1;
    return 0;
}

static ot_status unicode_form(const char *text, size_t bytes, int options, ot_bytes *out)
{
    utf8proc_uint8_t *mapped = NULL;
    utf8proc_ssize_t length = utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)bytes, &mapped,
                                           (utf8proc_option_t)(options | UTF8PROC_STABLE));
    if (length < 0)
        return ot_fail(OT_ERR_DATA, "a text of %zu bytes cannot be normalised: %s", bytes,
                       utf8proc_errmsg(length));
    ot_status status = ot_bytes_add(out, (const char *)mapped, (size_t)length);
    free(mapped);
    return status;
}

/* NFC of the stretches that need it, each with the starter before it, to which its marks may join. `*changed` 0: none did. */
static ot_status compose(const char *text, size_t bytes, ot_bytes *out, int *changed)
{
    size_t done = 0;
    for (size_t at = 0; at < bytes;) {
        size_t begin = at, length;
        while (at < bytes &&
               ((unsigned char)text[at] < 0x80 ? (length = 1) : (size_t)is_inert(text + at, &length))) {
            begin = at;
            at += length;
        }
        if (at == bytes)
            break;
        while (at < bytes && !is_inert(text + at, &length))
            at += length;
        OT_TRY(ot_bytes_add(out, text + done, begin - done));
        OT_TRY(unicode_form(text + begin, at - begin, UTF8PROC_COMPOSE, out));
        done = at;
    }
    *changed = done > 0;
    return *changed ? ot_bytes_add(out, text + done, bytes - done) : OT_OK;
}

static int is_ascii(const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if ((unsigned char)text[i] >= 0x80)
            return 0;
    return 1;
}

static ot_status replace(const ot_normal_step *step, ot_encoder *encoder, const char *text, size_t bytes,
                         ot_bytes *out)
{
    size_t done = 0;
    while (done < bytes) {
        int found;
        size_t begin, end;
        OT_TRY(ot_regex_next(&step->regex, encoder, text, bytes, done, &found, &begin, &end));
        if (!found)
            break;
        OT_TRY(ot_bytes_add(out, text + done, begin - done));
        OT_TRY(ot_bytes_add(out, step->content, step->content_bytes));
        done = end;
    }
    return ot_bytes_add(out, text + done, bytes - done);
}

ot_status ot_normalize(const ot_tokenizer *tokenizer, ot_encoder *encoder, const char **text, size_t *bytes)
{
    size_t free_one = 0; /* of the two texts that the steps write to in turn */
    for (size_t i = 0; i<tokenizer->normal_count && * bytes> 0; i++) {
        const ot_normal_step *step = &tokenizer->normal_steps[i];
        ot_bytes *out = &encoder->normal[free_one];
        out->count = 0;
        int changed = 1;
        switch (step->kind) {
        case OT_NORMAL_NFC:
            OT_TRY(compose(*text, *bytes, out, &changed));
            break;
        case OT_NORMAL_UNICODE:
            changed = !is_ascii(*text, *bytes);
            if (changed)
                OT_TRY(unicode_form(*text, *bytes, step->options, out));
            break;
        case OT_NORMAL_PREPEND:
            OT_TRY(ot_bytes_add(out, step->content, step->content_bytes));
            OT_TRY(ot_bytes_add(out, *text, *bytes));
            break;
        case OT_NORMAL_REPLACE:
            OT_TRY(replace(step, encoder, *text, *bytes, out));
            break;
        }
        if (changed) {
            *text = out->data;
            *bytes = out->count;
            free_one = 1 - free_one;
        }
    }
    return OT_OK;
}

/* Reading the file's "normalizer". */

static ot_status keep_text(const json_t *node, const char *key, const char *path, ot_normal_step *step)
{
    const char *text;
    OT_TRY(ot_json_text(node, key, path, &text, &step->content_bytes));
    step->content = malloc(step->content_bytes + 1);
    if (step->content == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for %s", path);
    memcpy(step->content, text, step->content_bytes + 1);
    return OT_OK;
}

static ot_status read_step(ot_tokenizer *tokenizer, const json_t *node, int depth)
{
    static const struct {
        const char *name;
        int options;
    } forms[] = {{"NFD", UTF8PROC_DECOMPOSE},
                 {"NFKC", UTF8PROC_COMPOSE | UTF8PROC_COMPAT},
                 {"NFKD", UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT}};
    const char *type, *path = tokenizer->path;
    size_t bytes;
    OT_TRY(ot_json_text(node, "type", path, &type, &bytes));
    if (strcmp(type, "Sequence") == 0 && depth < 4) {
        const json_t *list = json_object_get(node, "normalizers");
        if (!json_is_array(list))
            return ot_fail(OT_ERR_FORMAT, "%s: normalizer: Sequence without 'normalizers'", path);
        for (size_t i = 0; i < json_array_size(list); i++)
            OT_TRY(read_step(tokenizer, json_array_get(list, i), depth + 1));
        return OT_OK;
    }
    if (tokenizer->normal_count == OT_STEPS_MAX)
        return ot_fail(OT_ERR_FORMAT, "%s: normalizer has more than %d steps", path, OT_STEPS_MAX);
    ot_normal_step *step = &tokenizer->normal_steps[tokenizer->normal_count++];
    if (strcmp(type, "NFC") == 0) {
        step->kind = OT_NORMAL_NFC;
        return OT_OK;
    }
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        if (strcmp(type, forms[i].name) == 0) {
            *step = (ot_normal_step){.kind = OT_NORMAL_UNICODE, .options = forms[i].options};
            return OT_OK;
        }
    }
    if (strcmp(type, "Prepend") == 0) {
        step->kind = OT_NORMAL_PREPEND;
        return keep_text(node, "prepend", path, step);
    }
    if (strcmp(type, "Replace") == 0) {
        step->kind = OT_NORMAL_REPLACE;
        OT_TRY(ot_json_pattern(node, path, &step->regex));
        return keep_text(node, "content", path, step);
    }
    return ot_fail(
        OT_ERR_FORMAT,
        "%s: the normalizer '%s' is not supported; Sequence, NFC, NFD, NFKC, NFKD, Prepend and Replace are",
        path, type);
}

ot_status ot_tokenizer_read_normalizer(ot_tokenizer *tokenizer, const json_t *node)
{
    return node == NULL || json_is_null(node) ? OT_OK : read_step(tokenizer, node, 0);
}
