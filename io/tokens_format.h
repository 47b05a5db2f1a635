/* The header of a token file, as written and as read. */
#ifndef OT_IO_TOKENS_FORMAT_H
#define OT_IO_TOKENS_FORMAT_H

#include <stdint.h>

#include "io/tokens.h"

enum { OT_TOKENS_HEADER_BYTES = 4096, OT_TOKENS_VERSION = 1, OT_TOKENS_FILE_SHIFT = 48 };
#define OT_TOKENS_LINE_MASK ((UINT64_C(1) << OT_TOKENS_FILE_SHIFT) - 1)
#define OT_TOKENS_MAGIC "OTTOKENS"

typedef struct ot_tokens_header {
    char magic[8];
    uint32_t version, width;
    uint64_t tokens, documents, trained, longest, V;
    uint64_t tokenizer_hash, options_hash;
    uint64_t files, files_bytes;
    uint64_t body_hash;   /* XXH3 of what follows the header */
    uint64_t header_hash; /* XXH3 of the fields before this one */
} ot_tokens_header;

/* Where the sections begin; each but the first is rounded up to 8 bytes. */
typedef struct ot_tokens_layout {
    uint64_t mask, starts, origins, files, end;
} ot_tokens_layout;

static inline uint64_t ot_tokens_round(uint64_t bytes)
{
    return (bytes + 7) & ~UINT64_C(7);
}

static inline ot_tokens_layout ot_tokens_layout_of(const ot_tokens_header *h)
{
    ot_tokens_layout at;
    at.mask = OT_TOKENS_HEADER_BYTES + ot_tokens_round(h->tokens * h->width);
    at.starts = at.mask + ot_tokens_round((h->tokens + 7) / 8);
    at.origins = at.starts + 8 * (h->documents + 1);
    at.files = at.origins + 8 * h->documents;
    at.end = at.files + ot_tokens_round(h->files_bytes);
    return at;
}

/* Opens a complete file that has been mapped or is still open; takes `fd`. `path` names it in messages. */
ot_status ot_tokens_open_fd(int fd, const char *path, ot_tokens **out) OT_MUST_CHECK;

#endif
