/* Writing token files. Tokens go straight into the file. Mask, starts and origins, whose place is known only when all tokens
 * are, go into unnamed files beside it and are copied behind at the end. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

#include "io/file.h"
#include "io/path.h"
#include "io/tokens.h"
#include "io/tokens_format.h"

enum { SPOOL_BYTES = 1 << 18 };

/* A file that grows at its end, through a buffer. */
typedef struct spool {
    int fd;
    uint64_t written;
    size_t used;
    unsigned char *buffer;
} spool;

struct ot_tokens_writer {
    char path[PATH_MAX], temporary[PATH_MAX]; /* "": in memory */
    spool tokens, mask, starts, origins;
    ot_tokens_header header;
    char *files;
    uint64_t document_start;
    unsigned char bits; /* of the mask's last byte */
    XXH3_state_t *hash;
};

/* ---- spools ---- */

static ot_status spool_flush(spool *s, const char *path)
{
    OT_TRY(ot_file_write(s->fd, path, s->written, s->buffer, s->used));
    s->written += s->used;
    s->used = 0;
    return OT_OK;
}

static ot_status spool_add(spool *s, const char *path, const void *data, size_t bytes)
{
    if (s->used + bytes > SPOOL_BYTES)
        OT_TRY(spool_flush(s, path));
    memcpy(s->buffer + s->used, data, bytes);
    s->used += bytes;
    return OT_OK;
}

static ot_status spool_open(ot_tokens_writer *w, spool *s)
{
    s->buffer = malloc(SPOOL_BYTES);
    if (s->buffer == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for a token file");
    if (*w->path == '\0') {
        s->fd = memfd_create("offtrain-tokens", MFD_CLOEXEC);
    } else {
        char name[PATH_MAX];
        OT_TRY(ot_path_format(name, "%s%s", w->temporary, s == &w->tokens ? "" : "-spool"));
        s->fd = open(name, O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0644);
        int code = errno;
        if (s->fd >= 0 && s != &w->tokens)
            unlink(name);
        errno = code;
    }
    if (s->fd < 0)
        return ot_fail(OT_ERR_IO, "cannot create %s: %s",
                       *w->path != '\0' ? w->temporary : "a file in memory", strerror(errno));
    return OT_OK;
}

static void spool_close(spool *s)
{
    if (s->fd >= 0)
        close(s->fd);
    free(s->buffer);
}

/* ---- opening ---- */

static ot_status take_options(ot_tokens_writer *w, const char *path, const ot_tokens_options *options)
{
    OT_ASSERT(options->file_count > 0 && options->file_count <= 32768 && options->V > 0);
    w->header = (ot_tokens_header){.version = OT_TOKENS_VERSION,
                                   .width = options->V <= 65536 ? 2 : 4,
                                   .V = options->V,
                                   .tokenizer_hash = options->tokenizer_hash,
                                   .options_hash = options->options_hash,
                                   .files = options->file_count};
    memcpy(w->header.magic, OT_TOKENS_MAGIC, sizeof w->header.magic);
    for (size_t i = 0; i < options->file_count; i++)
        w->header.files_bytes += strlen(options->files[i]) + 1;
    w->files = calloc(ot_tokens_round(w->header.files_bytes), 1);
    w->hash = XXH3_createState();
    if (w->files == NULL || w->hash == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for a token file");
    char *at = w->files;
    for (size_t i = 0; i < options->file_count; i++)
        at = stpcpy(at, options->files[i]) + 1;
    XXH3_64bits_reset(w->hash);
    if (path != NULL) {
        OT_TRY(ot_path_format(w->path, "%s", path));
        OT_TRY(ot_path_format(w->temporary, "%s.tmp-%ld", path, (long)getpid()));
    }
    return OT_OK;
}

ot_status ot_tokens_writer_open(const char *path, const ot_tokens_options *options, ot_tokens_writer **out)
{
    ot_tokens_writer *w = calloc(1, sizeof *w);
    if (w == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for a token file");
    w->tokens.fd = w->mask.fd = w->starts.fd = w->origins.fd = -1;
    static const unsigned char nothing[OT_TOKENS_HEADER_BYTES];
    static const uint64_t first;
    ot_status status = OT_OK;
    OT_TRY_GOTO(take_options(w, path, options), out);
    OT_TRY_GOTO(spool_open(w, &w->tokens), out);
    OT_TRY_GOTO(spool_open(w, &w->mask), out);
    OT_TRY_GOTO(spool_open(w, &w->starts), out);
    OT_TRY_GOTO(spool_open(w, &w->origins), out);
    OT_TRY_GOTO(spool_add(&w->tokens, w->temporary, nothing, sizeof nothing), out);
    OT_TRY_GOTO(spool_flush(&w->tokens, w->temporary), out);
    OT_TRY_GOTO(spool_add(&w->starts, w->temporary, &first, sizeof first), out);
    *out = w;
out:
    if (status != OT_OK)
        ot_tokens_writer_abandon(w);
    return status;
}

void ot_tokens_writer_abandon(ot_tokens_writer *writer)
{
    if (writer == NULL)
        return;
    if (writer->tokens.fd >= 0 && *writer->path != '\0')
        unlink(writer->temporary);
    spool_close(&writer->tokens);
    spool_close(&writer->mask);
    spool_close(&writer->starts);
    spool_close(&writer->origins);
    XXH3_freeState(writer->hash);
    free(writer->files);
    free(writer);
}

/* ---- tokens and documents ---- */

static ot_status add_id(ot_tokens_writer *w, int32_t id)
{
    if (id < 0 || (uint64_t)id >= w->header.V)
        return ot_fail(OT_ERR_DATA, "token id %d is beyond the vocabulary of %" PRIu64, id, w->header.V);
    if (w->header.width == 2) {
        uint16_t narrow = (uint16_t)id;
        return spool_add(&w->tokens, w->temporary, &narrow, sizeof narrow);
    }
    return spool_add(&w->tokens, w->temporary, &id, sizeof id);
}

/* A document's first token has none before it to be learnt from. */
static ot_status add_bit(ot_tokens_writer *w, int wanted)
{
    int trained = wanted && w->header.tokens > w->document_start;
    unsigned bit = (unsigned)(w->header.tokens % 8);
    w->bits = (unsigned char)((bit == 0 ? 0 : w->bits) | (unsigned)trained << bit);
    w->header.tokens++;
    w->header.trained += (uint64_t)trained;
    return bit == 7 ? spool_add(&w->mask, w->temporary, &w->bits, 1) : OT_OK;
}

ot_status ot_tokens_writer_add(ot_tokens_writer *writer, const int32_t *ids, const unsigned char *trained,
                               size_t count)
{
    for (size_t i = 0; i < count; i++) {
        OT_TRY(add_id(writer, ids[i]));
        OT_TRY(add_bit(writer, trained == NULL || trained[i]));
    }
    return OT_OK;
}

ot_status ot_tokens_writer_end(ot_tokens_writer *writer, uint32_t file, uint64_t line, int continues)
{
    OT_ASSERT(file < writer->header.files && line <= OT_TOKENS_LINE_MASK);
    uint64_t end = writer->header.tokens, length = end - writer->document_start;
    if (length == 0)
        return OT_OK;
    uint64_t origin = line | (uint64_t)file << OT_TOKENS_FILE_SHIFT | (continues ? OT_TOKENS_CONTINUES : 0);
    OT_TRY(spool_add(&writer->starts, writer->temporary, &end, sizeof end));
    OT_TRY(spool_add(&writer->origins, writer->temporary, &origin, sizeof origin));
    if (writer->header.longest < length)
        writer->header.longest = length;
    writer->header.documents++;
    writer->document_start = end;
    return OT_OK;
}

/* ---- the end ---- */

static ot_status pad(ot_tokens_writer *w, spool *s)
{
    static const unsigned char zeros[8];
    uint64_t bytes = s->written + s->used;
    return spool_add(s, w->temporary, zeros, ot_tokens_round(bytes) - bytes);
}

static ot_status append(ot_tokens_writer *w, spool *from)
{
    OT_TRY(spool_flush(from, w->temporary));
    for (uint64_t at = 0; at < from->written;) {
        size_t part = from->written - at < SPOOL_BYTES ? (size_t)(from->written - at) : SPOOL_BYTES;
        OT_TRY(ot_file_read(from->fd, w->temporary, at, from->buffer, part));
        OT_TRY(spool_add(&w->tokens, w->temporary, from->buffer, part));
        at += part;
    }
    return OT_OK;
}

/* The body is read back for its hash, from the page cache mostly: as it is on the way in, since short writes are continued. */
static ot_status hash_body(ot_tokens_writer *w)
{
    spool *s = &w->tokens;
    for (uint64_t at = OT_TOKENS_HEADER_BYTES; at < s->written;) {
        size_t part = s->written - at < SPOOL_BYTES ? (size_t)(s->written - at) : SPOOL_BYTES;
        OT_TRY(ot_file_read(s->fd, w->temporary, at, s->buffer, part));
        XXH3_64bits_update(w->hash, s->buffer, part);
        at += part;
    }
    w->header.body_hash = XXH3_64bits_digest(w->hash);
    w->header.header_hash = XXH3_64bits(&w->header, offsetof(ot_tokens_header, header_hash));
    return ot_file_write(s->fd, w->temporary, 0, &w->header, sizeof w->header);
}

static ot_status complete(ot_tokens_writer *w)
{
    OT_ASSERT(w->document_start == w->header.tokens);
    if (w->header.tokens % 8 != 0)
        OT_TRY(spool_add(&w->mask, w->temporary, &w->bits, 1));
    OT_TRY(pad(w, &w->mask));
    OT_TRY(pad(w, &w->tokens));
    OT_TRY(append(w, &w->mask));
    OT_TRY(append(w, &w->starts));
    OT_TRY(append(w, &w->origins));
    const char *name = w->files;
    for (uint64_t left = ot_tokens_round(w->header.files_bytes); left > 0;) {
        size_t part = left < SPOOL_BYTES ? (size_t)left : SPOOL_BYTES;
        OT_TRY(spool_add(&w->tokens, w->temporary, name, part));
        name += part;
        left -= part;
    }
    OT_TRY(spool_flush(&w->tokens, w->temporary));
    return hash_body(w);
}

static ot_status publish(ot_tokens_writer *w)
{
    if (fsync(w->tokens.fd) != 0)
        return ot_fail(OT_ERR_IO, "cannot sync %s: %s", w->temporary, strerror(errno));
    return ot_file_rename(w->temporary, w->path);
}

ot_status ot_tokens_writer_close(ot_tokens_writer *writer, ot_tokens **out)
{
    int fd;
    ot_status status = complete(writer);
    if (status == OT_OK && *writer->path != '\0')
        status = publish(writer);
    if (status == OT_OK && out != NULL) {
        fd = writer->tokens.fd;
        writer->tokens.fd = -1;
        status = ot_tokens_open_fd(fd, *writer->path != '\0' ? writer->path : writer->files, out);
    }
    ot_tokens_writer_abandon(writer);
    return status;
}
