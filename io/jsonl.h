/* JSON Lines: one object a line. A byte-order mark at the start, CRLF, blank lines and a last line without newline are fine;
 * everything else that is no object is refused with file, line and reason. */
#ifndef OT_IO_JSONL_H
#define OT_IO_JSONL_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "io/status.h"

/* A place in a text in memory. */
typedef struct ot_jsonl {
    const char *at, *end;
    uint64_t line; /* lines begun */
} ot_jsonl;

typedef struct ot_jsonl_line {
    const char *text; /* in the text itself, not NUL-terminated */
    size_t bytes;
    uint64_t number; /* from 1 on */
} ot_jsonl_line;

void ot_jsonl_init(ot_jsonl *reader, const char *text, size_t bytes);

/* The next line that is not blank, without its end. Returns 0 at the end of the text. */
int ot_jsonl_next(ot_jsonl *reader, ot_jsonl_line *line);

/* The line as an object, which the caller drops with json_decref; its numbers are all reals. OT_ERR_DATA "file:line: reason".
 * Any thread. */
ot_status ot_jsonl_parse(const char *file, const ot_jsonl_line *line, json_t **out) OT_MUST_CHECK;

#endif
