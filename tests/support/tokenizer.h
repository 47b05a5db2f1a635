/* A tokenizer.json of single bytes, with added special tokens, made for a test. */
#ifndef OT_TESTS_SUPPORT_TOKENIZER_H
#define OT_TESTS_SUPPORT_TOKENIZER_H

#include <stddef.h>

enum { BYTE_TOKENS = 256 };

/* Writes ROOT/tokenizer.json: token b is byte b, and special token i is 256 + i; and ROOT/tokenizer_config.json. bos, eos and
 * jinja may be NULL. */
void tokenizer_write(const char *root, const char *const *specials, size_t count, const char *bos,
                     const char *eos, int add_bos, const char *jinja);

#endif
