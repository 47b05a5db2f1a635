/* Tensor sets: one safetensors file, or the shards that an index names. */
#include "io/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/file.h"
#include "io/json_file.h"
#include "io/path.h"
#include "io/safetensors_header.h"

typedef struct set_file {
    char *path;
    int fd;
    ot_safetensors_header header;
} set_file;

struct ot_tensor_set {
    set_file *files;
    size_t file_count;
    size_t count;
    const ot_file_tensor **tensors; /* [count] in the order of files and offsets */
    const ot_file_tensor **by_name; /* [count] */
};

/* ---- Files ---- */

static ot_status add_file(ot_tensor_set *set, const char *path)
{
    set_file *files = realloc(set->files, (set->file_count + 1) * sizeof *files);
    if (files == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for the file %s", path);
    set->files = files;
    set_file *file = &files[set->file_count];
    *file = (set_file){.path = strdup(path), .fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
    int code = errno;
    set->file_count++;
    if (file->path == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for the file %s", path);
    if (file->fd < 0)
        return ot_fail(code == ENOENT ? OT_ERR_FORMAT : OT_ERR_IO, "cannot open %s: %s", path,
                       strerror(code));
    return ot_safetensors_header_read(file->fd, path, &file->header);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp((*(const ot_file_tensor *const *)a)->spec.name,
                  (*(const ot_file_tensor *const *)b)->spec.name);
}

/* Behind the last file: all tensors, and their order by name, in which two of one name lie side by side. */
static ot_status list_tensors(ot_tensor_set *set)
{
    for (size_t f = 0; f < set->file_count; f++)
        set->count += set->files[f].header.count;
    set->tensors = calloc(set->count + 1, sizeof *set->tensors);
    set->by_name = calloc(set->count + 1, sizeof *set->by_name);
    if (set->tensors == NULL || set->by_name == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for a list of %zu tensors", set->count);
    size_t n = 0;
    for (size_t f = 0; f < set->file_count; f++)
        for (size_t i = 0; i < set->files[f].header.count; i++) {
            set->files[f].header.tensors[i].file = f;
            set->tensors[n] = set->by_name[n] = &set->files[f].header.tensors[i];
            n++;
        }
    qsort(set->by_name, n, sizeof *set->by_name, compare_names);
    for (size_t i = 1; i < n; i++)
        if (strcmp(set->by_name[i - 1]->spec.name, set->by_name[i]->spec.name) == 0)
            return ot_fail(OT_ERR_FORMAT, "tensor %s is in %s and in %s, expected in one of them",
                           set->by_name[i]->spec.name, ot_tensor_set_path(set, set->by_name[i - 1]),
                           ot_tensor_set_path(set, set->by_name[i]));
    return OT_OK;
}

/* ---- The index ---- */

static ot_status read_index(const char *path, json_t **weight_map)
{
    json_t *index;
    OT_TRY(ot_json_read(path, JSON_REJECT_DUPLICATES, &index));
    json_t *map = json_object_get(index, "weight_map");
    *weight_map = json_is_object(map) ? json_incref(map) : NULL;
    json_decref(index);
    if (*weight_map == NULL)
        return ot_fail(OT_ERR_FORMAT, "%s: it has no object weight_map", path);
    return OT_OK;
}

/* Opens each file that the index names, once. */
static ot_status add_shards(ot_tensor_set *set, const char *directory, const char *index, json_t *map)
{
    const char *name;
    json_t *value;
    json_t *seen = json_object();
    ot_status status = seen != NULL ? OT_OK : ot_fail(OT_ERR_INTERNAL, "out of memory for %s", index);
    json_object_foreach(map, name, value)
    {
        const char *file = json_string_value(value);
        char path[PATH_MAX];
        if (status != OT_OK)
            break;
        if (file == NULL || file[0] == '\0' || strchr(file, '/') != NULL)
            status = ot_fail(OT_ERR_FORMAT, "%s: tensor %s: its file is no name of a file beside the index",
                             index, name);
        else if (json_object_get(seen, file) == NULL) {
            json_object_set_new(seen, file, json_true());
            status = ot_path_format(path, "%s/%s", directory, file);
            if (status == OT_OK && access(path, F_OK) != 0)
                status = ot_fail(OT_ERR_FORMAT, "%s is missing: %s names it for tensor %s; fetch it again",
                                 path, index, name);
            if (status == OT_OK)
                status = add_file(set, path);
        }
    }
    json_decref(seen);
    return status;
}

/* Index and headers say the same of every tensor. */
static ot_status check_index(const ot_tensor_set *set, const char *index, json_t *map)
{
    const char *name;
    json_t *value;
    json_object_foreach(map, name, value)
    {
        const ot_file_tensor *tensor = ot_tensor_set_find(set, name);
        if (tensor == NULL)
            return ot_fail(OT_ERR_FORMAT, "%s: tensor %s is not in %s", index, name,
                           json_string_value(value));
        const char *path = ot_tensor_set_path(set, tensor), *file = strrchr(path, '/') + 1;
        if (strcmp(file, json_string_value(value)) != 0)
            return ot_fail(OT_ERR_FORMAT, "%s: tensor %s is in %s, not in %s", index, name, file,
                           json_string_value(value));
    }
    for (size_t i = 0; i < set->count; i++)
        if (json_object_get(map, set->tensors[i]->spec.name) == NULL)
            return ot_fail(OT_ERR_FORMAT, "%s: tensor %s is not in %s",
                           ot_tensor_set_path(set, set->tensors[i]), set->tensors[i]->spec.name, index);
    return OT_OK;
}

static ot_status open_index(ot_tensor_set *set, const char *directory, const char *index)
{
    json_t *map;
    OT_TRY(read_index(index, &map));
    ot_status status = add_shards(set, directory, index, map);
    if (status == OT_OK)
        status = list_tensors(set);
    if (status == OT_OK)
        status = check_index(set, index, map);
    json_decref(map);
    return status;
}

/* ---- Opening ---- */

static ot_status open_single(ot_tensor_set *set, const char *path)
{
    OT_TRY(add_file(set, path));
    return list_tensors(set);
}

static ot_status open_directory(ot_tensor_set *set, const char *directory, const char *stem)
{
    char single[PATH_MAX], index[PATH_MAX];
    OT_TRY(ot_path_format(single, "%s/%s.safetensors", directory, stem));
    OT_TRY(ot_path_format(index, "%s/%s.safetensors.index.json", directory, stem));
    int has_single = access(single, F_OK) == 0, has_index = access(index, F_OK) == 0;
    if (has_single && has_index)
        return ot_fail(OT_ERR_FORMAT, "%s has both %s.safetensors and %s.safetensors.index.json: remove one",
                       directory, stem, stem);
    if (!has_single && !has_index)
        return ot_fail(
            OT_ERR_FORMAT,
            "%s has neither %s.safetensors nor %s.safetensors.index.json; other formats are not read",
            directory, stem, stem);
    return has_index ? open_index(set, directory, index) : open_single(set, single);
}

static ot_status finish_open(ot_tensor_set *set, ot_status status, ot_tensor_set **out)
{
    if (status != OT_OK) {
        ot_tensor_set_close(set);
        return status;
    }
    *out = set;
    return OT_OK;
}

ot_status ot_tensor_set_open_file(const char *path, ot_tensor_set **out)
{
    ot_tensor_set *set = calloc(1, sizeof *set);
    if (set == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for the tensors of %s", path);
    return finish_open(set, open_single(set, path), out);
}

ot_status ot_tensor_set_open(const char *directory, const char *stem, ot_tensor_set **out)
{
    ot_tensor_set *set = calloc(1, sizeof *set);
    if (set == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for the tensors of %s", directory);
    return finish_open(set, open_directory(set, directory, stem), out);
}

void ot_tensor_set_close(ot_tensor_set *set)
{
    if (set == NULL)
        return;
    for (size_t f = 0; f < set->file_count; f++) {
        ot_safetensors_header_free(&set->files[f].header);
        if (set->files[f].fd >= 0)
            close(set->files[f].fd);
        free(set->files[f].path);
    }
    free(set->files);
    free(set->tensors);
    free(set->by_name);
    free(set);
}

/* ---- Asking and reading ---- */

size_t ot_tensor_set_count(const ot_tensor_set *set)
{
    return set->count;
}

const ot_file_tensor *ot_tensor_set_at(const ot_tensor_set *set, size_t index)
{
    return set->tensors[index];
}

const ot_file_tensor *ot_tensor_set_find(const ot_tensor_set *set, const char *name)
{
    const ot_file_tensor key = {.spec.name = name}, *pointer = &key;
    const ot_file_tensor **found =
        bsearch(&pointer, set->by_name, set->count, sizeof *set->by_name, compare_names);
    return found != NULL ? *found : NULL;
}

const char *ot_tensor_set_path(const ot_tensor_set *set, const ot_file_tensor *tensor)
{
    return set->files[tensor->file].path;
}

const char *ot_tensor_set_metadata(const ot_tensor_set *set, const char *key)
{
    return set->file_count > 0 ? json_string_value(json_object_get(set->files[0].header.metadata, key))
                               : NULL;
}

ot_status ot_tensor_set_read(const ot_tensor_set *set, const ot_file_tensor *tensor, uint64_t first,
                             void *data, uint64_t bytes)
{
    OT_ASSERT(first <= tensor->bytes && bytes <= tensor->bytes - first);
    const set_file *file = &set->files[tensor->file];
    return ot_file_read(file->fd, file->path, tensor->offset + first, data, bytes);
}
