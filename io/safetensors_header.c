/* The header of a safetensors file: nothing that it says is used before it is checked. */
#include "io/safetensors_header.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "io/file.h"

static const struct {
    const char *name;
    size_t bytes;
} dtypes[] = {
    [OT_FILE_BOOL] = {"BOOL", 1}, [OT_FILE_U8] = {"U8", 1},           [OT_FILE_I8] = {"I8", 1},
    [OT_FILE_F16] = {"F16", 2},   [OT_FILE_F8_E4M3] = {"F8_E4M3", 1}, [OT_FILE_F8_E5M2] = {"F8_E5M2", 1},
    [OT_FILE_I16] = {"I16", 2},   [OT_FILE_U16] = {"U16", 2},         [OT_FILE_BF16] = {"BF16", 2},
    [OT_FILE_I32] = {"I32", 4},   [OT_FILE_U32] = {"U32", 4},         [OT_FILE_F32] = {"F32", 4},
    [OT_FILE_I64] = {"I64", 8},   [OT_FILE_U64] = {"U64", 8},         [OT_FILE_F64] = {"F64", 8},
};

const char *ot_file_dtype_name(ot_file_dtype dtype)
{
    return dtypes[dtype].name;
}

size_t ot_file_dtype_bytes(ot_file_dtype dtype)
{
    return dtypes[dtype].bytes;
}

ot_status ot_tensor_spec_bytes(const ot_tensor_spec *spec, const char *path, uint64_t *bytes)
{
    uint64_t product = ot_file_dtype_bytes(spec->dtype);
    for (size_t i = 0; i < spec->dimensions; i++)
        if (__builtin_mul_overflow(product, spec->shape[i], &product) || product > INT64_MAX)
            return ot_fail(OT_ERR_FORMAT, "%s: tensor %s: its shape has more than 2^63 bytes", path,
                           spec->name);
    *bytes = product;
    return OT_OK;
}

/* ---- One entry ---- */

static ot_status read_dtype(const json_t *entry, const char *path, ot_tensor_spec *spec)
{
    const char *name = json_string_value(json_object_get(entry, "dtype"));
    for (size_t i = 0; name != NULL && i < sizeof dtypes / sizeof *dtypes; i++)
        if (strcmp(dtypes[i].name, name) == 0) {
            spec->dtype = (ot_file_dtype)i;
            return OT_OK;
        }
    return ot_fail(OT_ERR_FORMAT,
                   "%s: tensor %s: the dtype is %s, expected F32, BF16, F16 or another known one", path,
                   spec->name, name != NULL ? name : "missing");
}

static ot_status read_shape(const json_t *entry, const char *path, ot_tensor_spec *spec)
{
    const json_t *shape = json_object_get(entry, "shape");
    if (!json_is_array(shape) || json_array_size(shape) > OT_FILE_DIMENSIONS_MAX)
        return ot_fail(OT_ERR_FORMAT, "%s: tensor %s: the shape is no list of at most %d numbers", path,
                       spec->name, OT_FILE_DIMENSIONS_MAX);
    spec->dimensions = json_array_size(shape);
    for (size_t i = 0; i < spec->dimensions; i++) {
        const json_t *extent = json_array_get(shape, i);
        if (!json_is_integer(extent) || json_integer_value(extent) < 0)
            return ot_fail(OT_ERR_FORMAT,
                           "%s: tensor %s: extent %zu of the shape is no whole number of 0 or more", path,
                           spec->name, i);
        spec->shape[i] = (uint64_t)json_integer_value(extent);
    }
    return OT_OK;
}

/* Offsets count from the end of the header and are kept so until the whole header is checked. */
static ot_status read_offsets(const json_t *entry, const char *path, ot_file_tensor *tensor)
{
    const json_t *pair = json_object_get(entry, "data_offsets");
    const json_t *begin = json_array_get(pair, 0), *end = json_array_get(pair, 1);
    if (json_array_size(pair) != 2 || !json_is_integer(begin) || !json_is_integer(end) ||
        json_integer_value(begin) < 0 || json_integer_value(end) < json_integer_value(begin))
        return ot_fail(OT_ERR_FORMAT, "%s: tensor %s: data_offsets is no pair of a beginning and an end",
                       path, tensor->spec.name);
    tensor->offset = (uint64_t)json_integer_value(begin);
    tensor->bytes = (uint64_t)json_integer_value(end) - tensor->offset;
    uint64_t expected = 0;
    OT_TRY(ot_tensor_spec_bytes(&tensor->spec, path, &expected));
    if (tensor->bytes != expected)
        return ot_fail(OT_ERR_FORMAT,
                       "%s: tensor %s: data_offsets span %" PRIu64
                       " bytes, but dtype and shape make %" PRIu64,
                       path, tensor->spec.name, tensor->bytes, expected);
    return OT_OK;
}

static ot_status read_entry(const char *name, const json_t *entry, const char *path, ot_file_tensor *tensor)
{
    tensor->spec.name = strdup(name);
    if (tensor->spec.name == NULL)
        return ot_fail(OT_ERR_INTERNAL, "%s: out of memory for its tensors' names", path);
    if (!json_is_object(entry))
        return ot_fail(OT_ERR_FORMAT, "%s: tensor %s: its entry in the header is no object", path, name);
    OT_TRY(read_dtype(entry, path, &tensor->spec));
    OT_TRY(read_shape(entry, path, &tensor->spec));
    return read_offsets(entry, path, tensor);
}

/* ---- The whole header ---- */

/* Empty tensors before the one that begins where they are. */
static int by_offset(const void *a, const void *b)
{
    const ot_file_tensor *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? -1 : 1;
    return strcmp(x->spec.name, y->spec.name);
}

/* Each byte behind the header is one tensor's. Leaves offsets in the file. */
static ot_status check_offsets(ot_safetensors_header *header, const char *path, uint64_t data_offset,
                               uint64_t file_bytes)
{
    uint64_t end = 0, data_bytes = file_bytes - data_offset;
    for (size_t i = 0; i < header->count; i++) {
        ot_file_tensor *tensor = &header->tensors[i];
        if (tensor->offset < end)
            return ot_fail(OT_ERR_FORMAT, "%s: tensor %s overlaps tensor %s", path, tensor->spec.name,
                           header->tensors[i - 1].spec.name);
        if (tensor->offset > end)
            return ot_fail(OT_ERR_FORMAT, "%s: %" PRIu64 " bytes before tensor %s belong to no tensor", path,
                           tensor->offset - end, tensor->spec.name);
        end = tensor->offset + tensor->bytes;
        if (end > data_bytes)
            return ot_fail(OT_ERR_FORMAT,
                           "%s is truncated: it has %" PRIu64 " bytes, but tensor %s ends at byte %" PRIu64
                           "; fetch it again",
                           path, file_bytes, tensor->spec.name, end + data_offset);
        tensor->offset += data_offset;
    }
    if (end < data_bytes)
        return ot_fail(OT_ERR_FORMAT, "%s: %" PRIu64 " bytes behind the last tensor belong to no tensor",
                       path, data_bytes - end);
    return OT_OK;
}

static ot_status read_metadata(json_t *value, const char *path, ot_safetensors_header *out)
{
    const char *key;
    json_t *text;
    if (!json_is_object(value))
        return ot_fail(OT_ERR_FORMAT, "%s: __metadata__ is no object", path);
    json_object_foreach(value, key, text) if (!json_is_string(text)) return ot_fail(
        OT_ERR_FORMAT, "%s: %s in __metadata__ is no text", path, key);
    out->metadata = json_incref(value);
    return OT_OK;
}

static ot_status read_entries(const json_t *object, const char *path, ot_safetensors_header *out)
{
    const char *key;
    json_t *value;
    out->tensors = calloc(json_object_size(object) + 1, sizeof *out->tensors);
    if (out->tensors == NULL)
        return ot_fail(OT_ERR_INTERNAL, "%s: out of memory for its tensors", path);
    json_object_foreach((json_t *)object, key, value)
    {
        if (strcmp(key, "__metadata__") == 0)
            OT_TRY(read_metadata(value, path, out));
        else
            OT_TRY(read_entry(key, value, path, &out->tensors[out->count++]));
    }
    qsort(out->tensors, out->count, sizeof *out->tensors, by_offset);
    return OT_OK;
}

/* The header's bytes, for the caller to free. */
static ot_status read_text(int fd, const char *path, uint64_t file_bytes, char **text, uint64_t *bytes)
{
    unsigned char length[OT_SAFETENSORS_LENGTH_BYTES];
    if (file_bytes < sizeof length)
        return ot_fail(OT_ERR_FORMAT, "%s is truncated: it has %" PRIu64 " bytes, too few for a header", path,
                       file_bytes);
    OT_TRY(ot_file_read(fd, path, 0, length, sizeof length));
    uint64_t n = 0;
    for (size_t i = sizeof length; i-- > 0;)
        n = n << 8 | length[i];
    if (n > OT_SAFETENSORS_HEADER_MAX)
        return ot_fail(OT_ERR_FORMAT,
                       "%s: a header of %" PRIu64 " bytes, expected at most %d; is it a safetensors file?",
                       path, n, OT_SAFETENSORS_HEADER_MAX);
    if (n > file_bytes - sizeof length)
        return ot_fail(OT_ERR_FORMAT,
                       "%s is truncated: it has %" PRIu64 " bytes, but its header ends at byte %" PRIu64
                       "; fetch it again",
                       path, file_bytes, n + sizeof length);
    char *buffer = malloc(n + 1);
    if (buffer == NULL)
        return ot_fail(OT_ERR_INTERNAL, "%s: out of memory for a header of %" PRIu64 " bytes", path, n);
    ot_status status = ot_file_read(fd, path, sizeof length, buffer, n);
    if (status == OT_OK && (n == 0 || buffer[0] != '{'))
        status =
            ot_fail(OT_ERR_FORMAT, "%s: the header does not begin with '{'; is it a safetensors file?", path);
    if (status != OT_OK) {
        free(buffer);
        return status;
    }
    *text = buffer;
    *bytes = n;
    return OT_OK;
}

ot_status ot_safetensors_header_read(int fd, const char *path, ot_safetensors_header *out)
{
    struct stat facts;
    char *text = NULL;
    uint64_t bytes = 0;
    if (fstat(fd, &facts) != 0 || !S_ISREG(facts.st_mode))
        return ot_fail(OT_ERR_FORMAT, "%s is no file", path);
    OT_TRY(read_text(fd, path, (uint64_t)facts.st_size, &text, &bytes));
    json_error_t error;
    json_t *object = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    free(text);
    if (object == NULL)
        return ot_fail(OT_ERR_FORMAT, "%s: the header is no JSON object: %s at byte %d", path, error.text,
                       error.position);
    ot_status status = read_entries(object, path, out);
    if (status == OT_OK)
        status = check_offsets(out, path, OT_SAFETENSORS_LENGTH_BYTES + bytes, (uint64_t)facts.st_size);
    json_decref(object);
    return status;
}

void ot_safetensors_header_free(ot_safetensors_header *header)
{
    for (size_t i = 0; i < header->count; i++)
        free((char *)header->tensors[i].spec.name);
    free(header->tensors);
    json_decref(header->metadata);
    *header = (ot_safetensors_header){0};
}
