/* What the tokenizer's tests share. */
#ifndef OT_TESTS_IO_TOKENIZER_H
#define OT_TESTS_IO_TOKENIZER_H

#include <jansson.h>

#include "io/tokenizer.h"
#include "tests/support/test.h"

/* Opens a tokenizer, which must succeed. */
ot_tokenizer *open_tokenizer(const char *directory);

/* A line's text must become the ids of its list `key`. */
void check_ids(const ot_tokenizer *tokenizer, const json_t *line, const char *key, int special, ot_ids *ids);

/* The lines of a file of JSON objects, as an array. */
json_t *read_lines(const char *path);

/* A text of about `bytes` of what breaks tokenizers, valid UTF-8, for the caller to free. */
char *hostile_text(uint64_t *seed, size_t bytes, size_t *length);
uint64_t next_random(uint64_t *seed);

#endif
