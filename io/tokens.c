/* Reading token files. */
#include "io/tokens.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "io/file.h"
#include "io/tokens_format.h"

struct ot_tokens {
    char *path;
    void *map;
    size_t bytes;
    ot_tokens_info info;
    const void *ids;
    const unsigned char *mask;
    const uint64_t *starts, *origins;
    const char **files;
};

/* ---- checks ---- */

static ot_status check_header(const char *path, const ot_tokens_header *h, uint64_t bytes)
{
    if (memcmp(h->magic, OT_TOKENS_MAGIC, sizeof h->magic) != 0)
        return ot_fail(OT_ERR_DATA, "%s is no token file; offtrain tokenize writes one", path);
    if (h->version != OT_TOKENS_VERSION)
        return ot_fail(OT_ERR_DATA, "%s: version %u of the token file, %d is read; tokenise it again", path,
                       h->version, OT_TOKENS_VERSION);
    if (XXH3_64bits(h, offsetof(ot_tokens_header, header_hash)) != h->header_hash)
        return ot_fail(OT_ERR_DATA, "%s: the header is damaged; tokenise it again", path);
    /* A header with a right hash can still have been made up: sizes must not overflow. */
    int plausible = (h->width == 2 || h->width == 4) && h->V > 0 && h->V <= INT32_MAX && h->tokens <= bytes &&
                    h->documents <= bytes && h->files_bytes <= bytes && h->files > 0 &&
                    h->files <= h->files_bytes && h->trained <= h->tokens;
    if (!plausible || ot_tokens_layout_of(h).end != bytes)
        return ot_fail(OT_ERR_DATA,
                       "%s: %" PRIu64 " bytes do not hold the %" PRIu64 " tokens of %" PRIu64
                       " documents that its header counts; the file is cut off or damaged",
                       path, bytes, h->tokens, h->documents);
    return OT_OK;
}

static ot_status check_documents(const ot_tokens *t)
{
    const ot_tokens_info *info = &t->info;
    if (t->starts[0] != 0 || t->starts[info->documents] != info->tokens)
        return ot_fail(OT_ERR_DATA, "%s: the documents do not cover the tokens", t->path);
    for (uint64_t d = 0; d < info->documents; d++) {
        if (t->starts[d + 1] <= t->starts[d])
            return ot_fail(OT_ERR_DATA, "%s: document %" PRIu64 " has no tokens", t->path, d);
        if ((t->origins[d] & ~OT_TOKENS_CONTINUES) >> OT_TOKENS_FILE_SHIFT >= info->files)
            return ot_fail(OT_ERR_DATA, "%s: document %" PRIu64 " comes from a file that is not listed",
                           t->path, d);
    }
    return OT_OK;
}

static ot_status read_files(ot_tokens *t, const ot_tokens_header *h, const char *names)
{
    const char *end = names + h->files_bytes;
    t->files = calloc(h->files, sizeof *t->files);
    if (t->files == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for the names of %" PRIu64 " files", h->files);
    for (uint64_t i = 0; i < h->files; i++) {
        size_t length = strnlen(names, (size_t)(end - names));
        if (names + length == end)
            return ot_fail(OT_ERR_DATA, "%s: the names of its sources are damaged", t->path);
        t->files[i] = names;
        names += length + 1;
    }
    return OT_OK;
}

static ot_status check_all(ot_tokens *t)
{
    const ot_tokens_header *h = t->map;
    if (t->bytes < OT_TOKENS_HEADER_BYTES)
        return ot_fail(OT_ERR_DATA, "%s: %zu bytes are no token file", t->path, t->bytes);
    OT_TRY(check_header(t->path, h, t->bytes));
    const char *base = t->map;
    if (XXH3_64bits(base + OT_TOKENS_HEADER_BYTES, t->bytes - OT_TOKENS_HEADER_BYTES) != h->body_hash)
        return ot_fail(OT_ERR_DATA, "%s: its checksum is wrong, the file is damaged; tokenise it again",
                       t->path);
    ot_tokens_layout at = ot_tokens_layout_of(h);
    t->ids = base + OT_TOKENS_HEADER_BYTES;
    t->mask = (const unsigned char *)base + at.mask;
    t->starts = (const uint64_t *)(const void *)(base + at.starts);
    t->origins = (const uint64_t *)(const void *)(base + at.origins);
    t->info = (ot_tokens_info){.tokens = h->tokens,
                               .documents = h->documents,
                               .trained = h->trained,
                               .longest = h->longest,
                               .tokenizer_hash = h->tokenizer_hash,
                               .options_hash = h->options_hash,
                               .V = h->V,
                               .width = (int)h->width,
                               .files = (uint32_t)h->files};
    OT_TRY(read_files(t, h, base + at.files));
    OT_TRY(check_documents(t));
    return ot_tokens_check_vocabulary(t, t->info.V);
}

/* ---- opening ---- */

ot_status ot_tokens_open_fd(int fd, const char *path, ot_tokens **out)
{
    struct stat facts;
    ot_tokens *t = calloc(1, sizeof *t);
    ot_status status = OT_OK;
    if (t == NULL || (t->path = strdup(path)) == NULL) {
        OT_TRY_GOTO(ot_fail(OT_ERR_INTERNAL, "out of memory for %s", path), out);
    }
    if (fstat(fd, &facts) != 0)
        OT_TRY_GOTO(ot_fail(OT_ERR_DATA, "%s: %s", path, strerror(errno)), out);
    if (!S_ISREG(facts.st_mode) || facts.st_size == 0)
        OT_TRY_GOTO(ot_fail(OT_ERR_DATA, "%s is empty, or no regular file", path), out);
    void *map = mmap(NULL, (size_t)facts.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        OT_TRY_GOTO(ot_fail(OT_ERR_DATA, "%s: cannot be mapped: %s", path, strerror(errno)), out);
    t->map = map;
    t->bytes = (size_t)facts.st_size;
    OT_TRY_GOTO(check_all(t), out);
    *out = t;
out:
    close(fd);
    if (status != OT_OK)
        ot_tokens_close(t);
    return status;
}

ot_status ot_tokens_open(const char *path, ot_tokens **out)
{
    int fd;
    OT_TRY(ot_file_open_regular(path, OT_ERR_DATA, &fd));
    return ot_tokens_open_fd(fd, path, out);
}

void ot_tokens_close(ot_tokens *tokens)
{
    if (tokens == NULL)
        return;
    if (tokens->map != NULL)
        munmap(tokens->map, tokens->bytes);
    free(tokens->files);
    free(tokens->path);
    free(tokens);
}

int ot_tokens_recognise(const char *path)
{
    char magic[8] = "";
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return 0;
    int known = read(fd, magic, sizeof magic) == (ssize_t)sizeof magic &&
                memcmp(magic, OT_TOKENS_MAGIC, sizeof magic) == 0;
    close(fd);
    return known;
}

/* ---- use ---- */

const ot_tokens_info *ot_tokens_query(const ot_tokens *tokens)
{
    return &tokens->info;
}

const char *ot_tokens_path(const ot_tokens *tokens)
{
    return tokens->path;
}

int32_t ot_tokens_id(const ot_tokens *tokens, uint64_t index)
{
    return tokens->info.width == 2 ? ((const uint16_t *)tokens->ids)[index]
                                   : (int32_t)((const uint32_t *)tokens->ids)[index];
}

int ot_tokens_trained(const ot_tokens *tokens, uint64_t index)
{
    return tokens->mask[index / 8] >> (index % 8) & 1;
}

uint64_t ot_tokens_count_trained(const ot_tokens *tokens, uint64_t first, uint64_t count)
{
    uint64_t trained = 0, end = first + count;
    while (first < end && first % 8 != 0)
        trained += (uint64_t)ot_tokens_trained(tokens, first++);
    for (; end - first >= 8; first += 8)
        trained += (uint64_t)__builtin_popcount(tokens->mask[first / 8]);
    while (first < end)
        trained += (uint64_t)ot_tokens_trained(tokens, first++);
    return trained;
}

uint64_t ot_tokens_hash(const ot_tokens *tokens, uint64_t first, uint64_t count)
{
    size_t width = (size_t)tokens->info.width;
    return XXH3_64bits((const char *)tokens->ids + first * width, count * width);
}

uint64_t ot_tokens_start(const ot_tokens *tokens, uint64_t document)
{
    return tokens->starts[document];
}

int ot_tokens_continues(const ot_tokens *tokens, uint64_t document)
{
    return (tokens->origins[document] & OT_TOKENS_CONTINUES) != 0;
}

const char *ot_tokens_origin(const ot_tokens *tokens, uint64_t document, uint64_t *line)
{
    uint64_t origin = tokens->origins[document] & ~OT_TOKENS_CONTINUES;
    *line = origin & OT_TOKENS_LINE_MASK;
    return tokens->files[origin >> OT_TOKENS_FILE_SHIFT];
}

static ot_status beyond(const ot_tokens *t, uint64_t index, size_t V)
{
    uint64_t low = 0, high = t->info.documents, line;
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        *(t->starts[middle] <= index ? &low : &high) = middle;
    }
    const char *file = ot_tokens_origin(t, low, &line);
    char place[32] = "";
    if (line > 0)
        snprintf(place, sizeof place, ":%" PRIu64, line);
    return ot_fail(OT_ERR_DATA,
                   "%s%s: token %" PRIu64 " of %s is id %d, beyond the vocabulary of %zu; is this the data's "
                   "model and tokenizer?",
                   file, place, index, t->path, ot_tokens_id(t, index), V);
}

ot_status ot_tokens_check_vocabulary(const ot_tokens *tokens, size_t V)
{
    uint64_t n = tokens->info.tokens;
    if (tokens->info.width == 2) {
        const uint16_t *ids = tokens->ids;
        for (uint64_t i = 0; i < n && V < 65536; i++)
            if (ids[i] >= V)
                return beyond(tokens, i, V);
        return OT_OK;
    }
    const uint32_t *ids = tokens->ids;
    for (uint64_t i = 0; i < n; i++)
        if (ids[i] >= V)
            return beyond(tokens, i, V);
    return OT_OK;
}
