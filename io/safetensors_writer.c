/* Writing safetensors: what goes where is known before the first byte, then bytes are appended, file after file. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "io/file.h"
#include "io/path.h"
#include "io/safetensors.h"
#include "io/safetensors_header.h"

typedef struct shard {
    char name[NAME_MAX + 1];
    size_t first, count;  /* of its tensors */
    uint64_t data_bytes;  /* of its tensors */
    uint64_t bytes, xxh3; /* of the file, once it is complete */
} shard;

struct ot_tensor_writer {
    char *directory, *stem;
    ot_tensor_spec *tensors; /* with names of their own */
    size_t tensor_count;
    shard *shards; /* [shard_count + 1]: the last one is the index, where there is one */
    size_t shard_count, file_count;
    size_t current;           /* the shard that is open, or the next one */
    int fd;                   /* -1: none open */
    uint64_t written, offset; /* of the open shard's data, and of its file */
    uint64_t total, missing;  /* bytes of all tensors, and those still to come */
    XXH3_state_t *hash;
};

/* ---- Which tensor goes where ---- */

static ot_status copy_specs(ot_tensor_writer *w, const ot_tensor_writer_options *options)
{
    for (size_t i = 0; i < options->count; i++) {
        w->tensors[i] = options->tensors[i];
        w->tensors[i].name = strdup(options->tensors[i].name);
        w->tensor_count++;
        if (w->tensors[i].name == NULL)
            return ot_fail(OT_ERR_INTERNAL, "out of memory for writing tensors");
    }
    return OT_OK;
}

/* Fills shards in order; a tensor begins a new one where it would not fit. */
static ot_status fill_shards(ot_tensor_writer *w, uint64_t limit)
{
    shard *at = &w->shards[0];
    w->shard_count = 1;
    for (size_t i = 0; i < w->tensor_count; i++) {
        uint64_t bytes;
        OT_TRY(ot_tensor_spec_bytes(&w->tensors[i], w->directory, &bytes));
        if (at->count > 0 && (bytes > limit || at->data_bytes > limit - bytes)) {
            at = &w->shards[w->shard_count++];
            at->first = i;
        }
        at->count++;
        at->data_bytes += bytes;
        w->total += bytes;
    }
    return OT_OK;
}

static ot_status name_files(ot_tensor_writer *w)
{
    int fits = 1;
    for (size_t i = 0; i < w->shard_count; i++) {
        char *name = w->shards[i].name;
        int n = w->shard_count == 1 ? snprintf(name, NAME_MAX + 1, "%s.safetensors", w->stem)
                                    : snprintf(name, NAME_MAX + 1, "%s-%05zu-of-%05zu.safetensors", w->stem,
                                               i + 1, w->shard_count);
        fits = fits && n <= NAME_MAX;
    }
    w->file_count = w->shard_count;
    if (w->shard_count > 1) {
        char *name = w->shards[w->file_count++].name;
        fits = snprintf(name, NAME_MAX + 1, "%s.safetensors.index.json", w->stem) <= NAME_MAX && fits;
    }
    return fits ? OT_OK : ot_fail(OT_ERR_USAGE, "%s: too long a name for a file", w->stem);
}

ot_status ot_tensor_writer_open(const ot_tensor_writer_options *options, ot_tensor_writer **out)
{
    ot_tensor_writer *w = calloc(1, sizeof *w);
    if (w == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for writing tensors");
    w->fd = -1;
    w->directory = strdup(options->directory);
    w->stem = strdup(options->stem);
    w->tensors = calloc(options->count + 1, sizeof *w->tensors);
    w->shards = calloc(options->count + 2, sizeof *w->shards);
    w->hash = XXH3_createState();
    ot_status status = OT_OK;
    if (w->directory == NULL || w->stem == NULL || w->tensors == NULL || w->shards == NULL || w->hash == NULL)
        status = ot_fail(OT_ERR_INTERNAL, "out of memory for writing tensors");
    if (status == OT_OK)
        status = copy_specs(w, options);
    if (status == OT_OK)
        status = fill_shards(w, options->shard_bytes > 0 ? options->shard_bytes : OT_SHARD_BYTES);
    if (status == OT_OK)
        status = name_files(w);
    w->missing = w->total;
    if (status != OT_OK) {
        ot_tensor_writer_close(w);
        return status;
    }
    *out = w;
    return OT_OK;
}

/* ---- Writing ---- */

static ot_status path_of(const ot_tensor_writer *w, size_t file, char out[PATH_MAX])
{
    return ot_path_format(out, "%s/%s", w->directory, w->shards[file].name);
}

static json_t *entry_of(const ot_tensor_spec *spec, uint64_t begin, uint64_t end)
{
    json_t *shape = json_array();
    for (size_t i = 0; i < spec->dimensions; i++)
        json_array_append_new(shape, json_integer((json_int_t)spec->shape[i]));
    return json_pack("{s:s, s:o, s:[I,I]}", "dtype", ot_file_dtype_name(spec->dtype), "shape", shape,
                     "data_offsets", (json_int_t)begin, (json_int_t)end);
}

/* The header's text, padded so that data begin at a multiple of 8; for the caller to free. */
static ot_status header_of(const ot_tensor_writer *w, const shard *s, char **out, uint64_t *bytes)
{
    json_t *header = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    uint64_t begin = 0;
    for (size_t i = s->first; i < s->first + s->count; i++) {
        uint64_t size = 0;
        OT_TRY(ot_tensor_spec_bytes(&w->tensors[i], w->directory, &size));
        json_object_set_new(header, w->tensors[i].name, entry_of(&w->tensors[i], begin, begin + size));
        begin += size;
    }
    int whole = json_object_size(header) == s->count + 1;
    char *text = json_dumps(header, JSON_COMPACT), *padded = NULL;
    json_decref(header);
    size_t length = text != NULL ? strlen(text) : 0, padding = (8 - length % 8) % 8;
    if (text != NULL && whole)
        padded = realloc(text, length + padding + 1);
    if (padded == NULL) {
        free(text);
        return ot_fail(OT_ERR_INTERNAL, "%s: two tensors of one name, or out of memory for a header",
                       s->name);
    }
    memset(padded + length, ' ', padding);
    *out = padded;
    *bytes = length + padding;
    return OT_OK;
}

static ot_status create_file(ot_tensor_writer *w, size_t file)
{
    char path[PATH_MAX];
    OT_TRY(path_of(w, file, path));
    w->fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
    if (w->fd < 0)
        return ot_fail(OT_ERR_IO, "cannot create %s: %s", path, strerror(errno));
    w->offset = w->written = 0;
    XXH3_64bits_reset(w->hash);
    return OT_OK;
}

static ot_status put(ot_tensor_writer *w, const void *data, uint64_t bytes)
{
    char path[PATH_MAX];
    OT_TRY(path_of(w, w->current, path));
    OT_TRY(ot_file_write(w->fd, path, w->offset, data, bytes));
    XXH3_64bits_update(w->hash, data, bytes);
    w->offset += bytes;
    return OT_OK;
}

static ot_status end_file(ot_tensor_writer *w)
{
    shard *s = &w->shards[w->current];
    s->bytes = w->offset;
    s->xxh3 = XXH3_64bits_digest(w->hash);
    int failed = fsync(w->fd) != 0, code = errno;
    failed = close(w->fd) != 0 || failed;
    w->fd = -1;
    w->current++;
    if (failed)
        return ot_fail(OT_ERR_IO, "cannot write %s/%s: %s", w->directory, s->name, strerror(code));
    return OT_OK;
}

static ot_status begin_shard(ot_tensor_writer *w)
{
    char *header = NULL;
    uint64_t bytes = 0;
    unsigned char length[OT_SAFETENSORS_LENGTH_BYTES];
    OT_TRY(create_file(w, w->current));
    OT_TRY(header_of(w, &w->shards[w->current], &header, &bytes));
    for (size_t i = 0; i < sizeof length; i++)
        length[i] = (unsigned char)(bytes >> (8 * i));
    ot_status status = put(w, length, sizeof length);
    if (status == OT_OK)
        status = put(w, header, bytes);
    free(header);
    return status;
}

ot_status ot_tensor_writer_append(ot_tensor_writer *w, const void *data, uint64_t bytes)
{
    OT_ASSERT(bytes <= w->missing);
    while (bytes > 0) {
        if (w->fd < 0)
            OT_TRY(begin_shard(w));
        uint64_t room = w->shards[w->current].data_bytes - w->written, n = bytes < room ? bytes : room;
        OT_TRY(put(w, data, n));
        data = (const char *)data + n;
        bytes -= n;
        w->written += n;
        w->missing -= n;
        if (n == room)
            OT_TRY(end_file(w));
    }
    return OT_OK;
}

/* ---- The end ---- */

static ot_status write_index(ot_tensor_writer *w)
{
    json_t *map = json_object();
    for (size_t s = 0; s < w->shard_count; s++)
        for (size_t i = w->shards[s].first; i < w->shards[s].first + w->shards[s].count; i++)
            json_object_set_new(map, w->tensors[i].name, json_string(w->shards[s].name));
    int whole = json_object_size(map) == w->tensor_count;
    json_t *index =
        json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)w->total, "weight_map", map);
    char *text = json_dumps(index, JSON_INDENT(2));
    json_decref(index);
    if (text == NULL || !whole) {
        free(text);
        return ot_fail(OT_ERR_INTERNAL, "%s: two tensors of one name, or out of memory for the index",
                       w->stem);
    }
    ot_status status = create_file(w, w->current);
    if (status == OT_OK)
        status = put(w, text, strlen(text));
    if (status == OT_OK)
        status = put(w, "\n", 1);
    if (status == OT_OK)
        status = end_file(w);
    free(text);
    return status;
}

ot_status ot_tensor_writer_finish(ot_tensor_writer *w)
{
    OT_ASSERT(w->missing == 0);
    while (w->current < w->shard_count) { /* shards without a byte of data */
        if (w->fd < 0)
            OT_TRY(begin_shard(w));
        OT_TRY(end_file(w));
    }
    if (w->file_count > w->shard_count)
        OT_TRY(write_index(w));
    return ot_dir_sync(w->directory);
}

size_t ot_tensor_writer_files(const ot_tensor_writer *w)
{
    return w->file_count;
}

ot_written_file ot_tensor_writer_file(const ot_tensor_writer *w, size_t index)
{
    const shard *s = &w->shards[index];
    return (ot_written_file){s->name, s->bytes, s->xxh3};
}

void ot_tensor_writer_close(ot_tensor_writer *w)
{
    if (w == NULL)
        return;
    if (w->fd >= 0)
        close(w->fd);
    for (size_t i = 0; i < w->tensor_count; i++)
        free((char *)w->tensors[i].name);
    XXH3_freeState(w->hash);
    free(w->tensors);
    free(w->shards);
    free(w->directory);
    free(w->stem);
    free(w);
}
