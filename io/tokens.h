/* Token files: what tokenising leaves behind and training maps.
 *
 * A header of 4096 bytes (magic "OTTOKENS", version, little-endian), then in this order, each from a multiple of 8 bytes on:
 *
 *     tokens    of `width` bytes, 2 or 4
 *     mask      one bit a token, lowest bit first: this token is a training target
 *     starts    documents + 1 numbers of 64 bits: the document's first token; the last one is the number of tokens
 *     origins   a number of 64 bits a document: its line from 1 on, its file << 48, and OT_TOKENS_CONTINUES
 *     files     the names of the files that the documents came from, each ended by NUL
 *
 * The header holds the XXH3 of all that follows it, and of itself. */
#ifndef OT_IO_TOKENS_H
#define OT_IO_TOKENS_H

#include <stddef.h>
#include <stdint.h>

#include "io/status.h"

typedef struct ot_tokens ot_tokens;
typedef struct ot_tokens_writer ot_tokens_writer;

typedef struct ot_tokens_info {
    uint64_t tokens, documents;
    uint64_t trained;        /* tokens that are targets */
    uint64_t longest;        /* tokens of the longest document */
    uint64_t tokenizer_hash; /* ot_tokenizer_info.hash; 0: unknown */
    uint64_t options_hash;   /* of everything else that decides the content */
    size_t V;                /* every token is below it */
    int width;
    uint32_t files;
} ot_tokens_info;

/* A document that may be cut anywhere without a loss, such as a text file: windows of it go on from one another. */
#define OT_TOKENS_CONTINUES (UINT64_C(1) << 63)

/* ---- reading ---- */

/* Maps the file and checks all of it: sizes, both hashes, order of the documents, ids below V. OT_ERR_DATA names what is wrong.
 * Any number of threads may read. */
ot_status ot_tokens_open(const char *path, ot_tokens **out) OT_MUST_CHECK;
void ot_tokens_close(ot_tokens *tokens); /* NULL is allowed */

/* Whether the file begins as a token file does. */
int ot_tokens_recognise(const char *path);

const ot_tokens_info *ot_tokens_query(const ot_tokens *tokens);

/* `path` as opened, or the name given to a file in memory. */
const char *ot_tokens_path(const ot_tokens *tokens);

int32_t ot_tokens_id(const ot_tokens *tokens, uint64_t index);
int ot_tokens_trained(const ot_tokens *tokens, uint64_t index);

/* How many of `count` tokens are trained, and the XXH3 of their ids. */
uint64_t ot_tokens_count_trained(const ot_tokens *tokens, uint64_t first, uint64_t count);
uint64_t ot_tokens_hash(const ot_tokens *tokens, uint64_t first, uint64_t count);

/* First token of document 0 … documents; that of the last is the number of tokens. */
uint64_t ot_tokens_start(const ot_tokens *tokens, uint64_t document);
int ot_tokens_continues(const ot_tokens *tokens, uint64_t document);

/* Where a document came from: the file, and its line from 1 on, 0 where it has none. */
const char *ot_tokens_origin(const ot_tokens *tokens, uint64_t document, uint64_t *line);

/* OT_ERR_DATA where a token is not below V, with the place it came from. */
ot_status ot_tokens_check_vocabulary(const ot_tokens *tokens, size_t V) OT_MUST_CHECK;

/* ---- writing ---- */

typedef struct ot_tokens_options {
    size_t V; /* ids are below it; up to 65536 they take two bytes */
    uint64_t tokenizer_hash, options_hash;
    const char *const *files;
    size_t file_count; /* at most 32768 */
} ot_tokens_options;

/* Begins PATH.tmp-PID; nothing is at `path` before ot_tokens_writer_close. With `path` NULL it is a file in memory. Tokens are
 * written as they come, and are never all held. OT_ERR_IO. */
ot_status ot_tokens_writer_open(const char *path, const ot_tokens_options *options,
                                ot_tokens_writer **out) OT_MUST_CHECK;

/* Adds `count` tokens to the current document; `trained` is a byte each, NULL: all. The first token of a document never is.
 * OT_ERR_DATA for an id that is not below V: the text says which, not where it came from. */
ot_status ot_tokens_writer_add(ot_tokens_writer *writer, const int32_t *ids, const unsigned char *trained,
                               size_t count) OT_MUST_CHECK;

/* Ends the document: file is an index into the options' files; line 0: none. An empty one is left out. */
ot_status ot_tokens_writer_end(ot_tokens_writer *writer, uint32_t file, uint64_t line,
                               int continues) OT_MUST_CHECK;

/* Completes the file, syncs it and gives it its name; with `out` it is opened, too. Frees the writer in any case. */
ot_status ot_tokens_writer_close(ot_tokens_writer *writer, ot_tokens **out) OT_MUST_CHECK;

/* Drops what was written. NULL is allowed. */
void ot_tokens_writer_abandon(ot_tokens_writer *writer);

#endif
