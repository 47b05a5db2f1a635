/* Chat templates: a conversation as the model was taught to read it, with what is trained marked.
 *
 * The templates are known by name; which one a tokenizer wants, and in which of its published variants, is read off the Jinja
 * text that comes with it. A conversation is rendered segment by segment, so that content is never read as a special token, and so
 * that it is known without searching which tokens an assistant said: its text and the token that ends its turn are trained, what
 * the template puts around them is not. */
#ifndef OT_IO_TEMPLATE_H
#define OT_IO_TEMPLATE_H

#include <stddef.h>
#include <stdint.h>

#include "io/status.h"
#include "io/tokenizer.h"

typedef enum ot_role { OT_ROLE_SYSTEM, OT_ROLE_USER, OT_ROLE_ASSISTANT } ot_role;

typedef struct ot_turn {
    ot_role role;
    const char *text; /* UTF-8; not NUL-terminated */
    size_t bytes;
    const char *input; /* Alpaca's "input" of a user's turn, NULL: none; only the template alpaca takes it */
    size_t input_bytes;
    int trained; /* of an assistant's turn */
} ot_turn;

/* Tokens and which of them are trained. Starts as {0}; its memory, and the working memory of encoding, is kept from call to call:
 * one for each thread is enough. */
typedef struct ot_document {
    ot_ids ids;
    unsigned char *trained;       /* a byte each */
    size_t marks, marks_capacity; /* bytes set; allocated */
    ot_ids head, scratch;         /* of ot_template_encode */
} ot_document;
void ot_document_clear(ot_document *document);
void ot_document_free(ot_document *document);

/* Adds a token; -1 adds none. */
ot_status ot_document_add(ot_document *document, int32_t id, int trained) OT_MUST_CHECK;

typedef struct ot_template ot_template;

/* "auto|none|chatml|…", for an option table. */
#define OT_TEMPLATE_NAMES "none|chatml|llama2|llama3|mistral|gemma|phi3|zephyr|alpaca"

/* The template `name`, or with "auto" the one that the tokenizer's Jinja text is; where it has none, `otherwise`. The tokenizer
 * outlives it. "none" renders one user's and one assistant's turn, prompt and completion, as they are. OT_ERR_USAGE for a Jinja
 * text that is none of the known ones, and for an unknown name. Any number of threads may use a template. */
ot_status ot_template_open(const char *name, const char *otherwise, const ot_tokenizer *tokenizer,
                           ot_template **out) OT_MUST_CHECK;
void ot_template_close(ot_template *chat); /* NULL is allowed */

const char *ot_template_name(const ot_template *chat);

/* The text that the conversation becomes, special tokens in it, NUL-terminated, for the caller to free. OT_ERR_DATA where the
 * published template refuses it: roles that do not alternate, a system turn that has no place. */
ot_status ot_template_text(const ot_template *chat, const ot_turn *turns, size_t count,
                           char **text) OT_MUST_CHECK;

/* Appends its tokens and marks. */
ot_status ot_template_encode(const ot_template *chat, const ot_turn *turns, size_t count,
                             ot_document *out) OT_MUST_CHECK;

#endif
