#include "io/jsonl.h"

#include <inttypes.h>
#include <string.h>

#include "io/text.h"

void ot_jsonl_init(ot_jsonl *reader, const char *text, size_t bytes)
{
    static const char mark[3] = {'\xef', '\xbb', '\xbf'};
    if (bytes >= sizeof mark && memcmp(text, mark, sizeof mark) == 0) {
        text += sizeof mark;
        bytes -= sizeof mark;
    }
    *reader = (ot_jsonl){.at = text, .end = bytes > 0 ? text + bytes : text};
}

static int is_blank(const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (text[i] != ' ' && text[i] != '\t' && text[i] != '\r')
            return 0;
    return 1;
}

int ot_jsonl_next(ot_jsonl *reader, ot_jsonl_line *line)
{
    while (reader->at < reader->end) {
        const char *text = reader->at;
        const char *end = memchr(text, '\n', (size_t)(reader->end - text));
        reader->at = end != NULL ? end + 1 : reader->end;
        reader->line++;
        size_t bytes = (size_t)((end != NULL ? end : reader->end) - text);
        if (bytes > 0 && text[bytes - 1] == '\r')
            bytes--;
        if (is_blank(text, bytes))
            continue;
        *line = (ot_jsonl_line){text, bytes, reader->line};
        return 1;
    }
    return 0;
}

/* What to do about the commonest mistakes. */
static const char *hint(const ot_jsonl_line *line)
{
    size_t i = 0;
    while (i + 1 < line->bytes && (line->text[i] == ' ' || line->text[i] == '\t'))
        i++;
    switch ((unsigned char)line->text[i]) {
    case '[':
        return "; for an array, write its elements one a line (jq -c '.[]')";
    case 0xff:
    case 0xfe:
        return "; it looks like UTF-16: convert the file to UTF-8";
    default:
        return "";
    }
}

ot_status ot_jsonl_parse(const char *file, const ot_jsonl_line *line, json_t **out)
{
    json_error_t error;
    /* Integers as reals: an identifier of 64 bits without sign is no reason to refuse a row. */
    const size_t flags = JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY | JSON_DECODE_INT_AS_REAL;
    json_t *value = json_loadb(line->text, line->bytes, flags, &error);
    if (value == NULL)
        return ot_fail(OT_ERR_DATA, "%s:%" PRIu64 ": column %d: %s%s", file, line->number, error.column,
                       ot_clean_utf8(error.text), hint(line));
    if (!json_is_object(value)) {
        json_decref(value);
        return ot_fail(OT_ERR_DATA, "%s:%" PRIu64 ": a JSON object is expected on each line%s", file,
                       line->number, hint(line));
    }
    *out = value;
    return OT_OK;
}
