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

/* Puts a run of marks into the order of their combining classes, equal ones as they were. utf8proc does that too, but in a time
 * that grows with the square of the run. `room` is as long as the run. */
static void order_marks(utf8proc_int32_t *marks, size_t count, utf8proc_int32_t *room)
{
    size_t places[257] = {0};
    for (size_t i = 0; i < count; i++)
        places[utf8proc_get_property(marks[i])->combining_class + 1]++;
    for (size_t class = 0; class < 256; class ++)
        places[class + 1] += places[class];
    for (size_t i = 0; i < count; i++)
        room[places[utf8proc_get_property(marks[i])->combining_class]++] = marks[i];
    memcpy(marks, room, count * sizeof *marks);
}

static void order_all_marks(utf8proc_int32_t *codes, size_t count, utf8proc_int32_t *room)
{
    for (size_t begin = 0, end; begin < count; begin = end + 1) {
        end = begin;
        while (end < count && utf8proc_get_property(codes[end])->combining_class != 0)
            end++;
        if (end - begin > 1)
            order_marks(codes + begin, end - begin, room);
    }
}

/* The characters' decompositions; `codes` NULL: only how many there are. */
static size_t decompose(const char *text, size_t bytes, int options, utf8proc_int32_t *codes, size_t room)
{
    size_t count = 0, length;
    int last_boundary = 0;
    for (size_t at = 0; at < bytes; at += length)
        count += (size_t)utf8proc_decompose_char(
            (utf8proc_int32_t)ot_utf8_decode(text + at, &length), codes != NULL ? codes + count : NULL,
            codes != NULL ? (utf8proc_ssize_t)(room - count) : 0, (utf8proc_option_t)options, &last_boundary);
    return count;
}

/* A normal form: decomposed, marks in order, and with COMPOSE among the options composed again. */
static ot_status unicode_form(const char *text, size_t bytes, int options, ot_bytes *out)
{
    options |= UTF8PROC_STABLE;
    size_t count = decompose(text, bytes, options, NULL, 0);
    utf8proc_int32_t *codes = malloc((2 * count + 1) * sizeof *codes); /* and one for a NUL of utf8proc's */
    if (codes == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for normalising %zu characters", count);
    decompose(text, bytes, options, codes, count);
    order_all_marks(codes, count, codes + count + 1);
    utf8proc_ssize_t length = utf8proc_reencode(codes, (utf8proc_ssize_t)count, (utf8proc_option_t)options);
    ot_status status = length < 0 ? ot_fail(OT_ERR_DATA, "a text of %zu bytes cannot be normalised: %s",
                                            bytes, utf8proc_errmsg(length))
                                  : ot_bytes_add(out, (const char *)codes, (size_t)length);
    free(codes);
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
        return ot_json_keep(node, "prepend", path, &step->content, &step->content_bytes);
    }
    if (strcmp(type, "Replace") == 0) {
        step->kind = OT_NORMAL_REPLACE;
        OT_TRY(ot_json_pattern(node, path, &step->regex));
        return ot_json_keep(node, "content", path, &step->content, &step->content_bytes);
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
