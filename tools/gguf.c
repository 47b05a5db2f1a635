/* GGUF files. */
#include "tools/gguf.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "io/file.h"

enum { VERSION = 3, ALIGNMENT = 32, TYPE_U32 = 4, TYPE_BOOL = 7, TYPE_ARRAY = 9 };

/* A text in memory that is written as a file. */
typedef struct section {
    FILE *stream;
    char *data;
    size_t bytes;
    uint64_t count; /* of its entries */
} section;

struct ot_gguf {
    char *path;
    int fd; /* -1: not open */
    section metadata, tensors;
    uint64_t data_bytes; /* of the tensors that have been put, padding included */
    uint64_t offset;     /* of the file */
    XXH3_state_t *hash;
};

ot_status ot_gguf_open(const char *path, ot_gguf **out)
{
    ot_gguf *g = calloc(1, sizeof *g);
    if (g == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for writing %s", path);
    g->fd = -1;
    g->path = strdup(path);
    g->hash = XXH3_createState();
    g->metadata.stream = open_memstream(&g->metadata.data, &g->metadata.bytes);
    g->tensors.stream = open_memstream(&g->tensors.data, &g->tensors.bytes);
    if (g->path == NULL || g->hash == NULL || g->metadata.stream == NULL || g->tensors.stream == NULL) {
        ot_gguf_close(g);
        return ot_fail(OT_ERR_INTERNAL, "out of memory for writing %s", path);
    }
    *out = g;
    return OT_OK;
}

void ot_gguf_close(ot_gguf *g)
{
    if (g == NULL)
        return;
    if (g->metadata.stream != NULL)
        fclose(g->metadata.stream);
    if (g->tensors.stream != NULL)
        fclose(g->tensors.stream);
    if (g->fd >= 0)
        close(g->fd);
    XXH3_freeState(g->hash);
    free(g->metadata.data);
    free(g->tensors.data);
    free(g->path);
    free(g);
}

/* ---- Values ---- */

static void put(section *s, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        fputc((int)(value >> (8 * i) & 0xff), s->stream);
}

static void put_float(section *s, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    put(s, bits, 4);
}

static void put_string(section *s, const char *text)
{
    put(s, strlen(text), 8);
    fputs(text, s->stream);
}

static void put_key(ot_gguf *g, const char *key, uint32_t type)
{
    put_string(&g->metadata, key);
    put(&g->metadata, type, 4);
    g->metadata.count++;
}

void ot_gguf_put_u32(ot_gguf *g, const char *key, uint32_t value)
{
    put_key(g, key, TYPE_U32);
    put(&g->metadata, value, 4);
}

void ot_gguf_put_f32(ot_gguf *g, const char *key, float value)
{
    put_key(g, key, OT_GGUF_F32);
    put_float(&g->metadata, value);
}

void ot_gguf_put_flag(ot_gguf *g, const char *key, int value)
{
    put_key(g, key, TYPE_BOOL);
    put(&g->metadata, value != 0, 1);
}

void ot_gguf_put_text(ot_gguf *g, const char *key, const char *value)
{
    put_key(g, key, OT_GGUF_TEXT);
    put_string(&g->metadata, value);
}

void ot_gguf_put_array(ot_gguf *g, const char *key, ot_gguf_type type, uint64_t count)
{
    put_key(g, key, TYPE_ARRAY);
    put(&g->metadata, type, 4);
    put(&g->metadata, count, 8);
}

void ot_gguf_add_i32(ot_gguf *g, int32_t value)
{
    put(&g->metadata, (uint32_t)value, 4);
}

void ot_gguf_add_f32(ot_gguf *g, float value)
{
    put_float(&g->metadata, value);
}

void ot_gguf_add_text(ot_gguf *g, const char *value)
{
    put_string(&g->metadata, value);
}

/* ---- Tensors ---- */

static uint64_t padded(uint64_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

void ot_gguf_put_tensor(ot_gguf *g, const char *name, ot_dtype dtype, uint64_t rows, uint64_t cols)
{
    section *s = &g->tensors;
    put_string(s, name);
    put(s, rows > 0 ? 2 : 1, 4);
    put(s, cols, 8); /* the dimension that varies fastest comes first */
    if (rows > 0)
        put(s, rows, 8);
    put(s, dtype == OT_FP32 ? 0 : dtype == OT_FP16 ? 1 : 30, 4);
    put(s, g->data_bytes, 8);
    s->count++;
    g->data_bytes += padded((rows > 0 ? rows : 1) * cols * ot_dtype_bytes(dtype));
}

static int ends_well(section *s)
{
    int failed = ferror(s->stream);
    failed = fclose(s->stream) != 0 || failed;
    s->stream = NULL;
    return !failed;
}

ot_status ot_gguf_append(ot_gguf *g, const void *data, uint64_t bytes)
{
    OT_TRY(ot_file_write(g->fd, g->path, g->offset, data, bytes));
    XXH3_64bits_update(g->hash, data, bytes);
    g->offset += bytes;
    return OT_OK;
}

ot_status ot_gguf_end_tensor(ot_gguf *g)
{
    static const char zeros[ALIGNMENT] = {0};
    return ot_gguf_append(g, zeros, padded(g->offset) - g->offset);
}

ot_status ot_gguf_begin(ot_gguf *g)
{
    const uint64_t counts[] = {g->tensors.count, g->metadata.count};
    const uint32_t version = VERSION;
    int whole = ends_well(&g->metadata);
    if (!ends_well(&g->tensors) || !whole)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for the metadata of %s", g->path);
    g->fd = open(g->path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
    if (g->fd < 0)
        return ot_fail(OT_ERR_IO, "cannot create %s: %s", g->path, strerror(errno));
    XXH3_64bits_reset(g->hash);
    OT_TRY(ot_gguf_append(g, "GGUF", 4));
    OT_TRY(ot_gguf_append(g, &version, sizeof version));
    OT_TRY(ot_gguf_append(g, counts, sizeof counts));
    OT_TRY(ot_gguf_append(g, g->metadata.data, g->metadata.bytes));
    OT_TRY(ot_gguf_append(g, g->tensors.data, g->tensors.bytes));
    OT_TRY(ot_gguf_end_tensor(g)); /* data begin at a multiple, too */
    g->data_bytes += g->offset;    /* now: where the file has to end */
    return OT_OK;
}

ot_status ot_gguf_finish(ot_gguf *g)
{
    OT_ASSERT(g->offset == g->data_bytes);
    uint64_t bytes, hash, written = XXH3_64bits_digest(g->hash);
    int failed = fsync(g->fd) != 0, code = errno;
    failed = close(g->fd) != 0 || failed;
    g->fd = -1;
    if (failed)
        return ot_fail(OT_ERR_IO, "cannot write %s: %s", g->path, strerror(code));
    OT_TRY(ot_file_checksum(g->path, &bytes, &hash));
    if (bytes != g->offset || hash != written)
        return ot_fail(OT_ERR_IO,
                       "%s: read back, it is not what was written (XXH3 %016" PRIx64 ", expected %016" PRIx64
                       "); check the drive",
                       g->path, hash, written);
    return OT_OK;
}
