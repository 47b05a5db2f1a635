#include "tests/support/golden.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/test.h"

struct golden {
    unsigned char *file;
    const unsigned char *data;
    size_t data_bytes;
    json_t *header, *config;
    size_t decoded_count;
    void **decoded; /* what was handed out */
};

static unsigned char *read_file(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        fail_msg("%s: cannot be opened; tests/golden/make.py makes it", path);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    long size = ftell(file);
    assert_true(size > 8);
    rewind(file);
    unsigned char *content = malloc((size_t)size);
    assert_non_null(content);
    assert_int_equal(fread(content, 1, (size_t)size, file), size);
    fclose(file);
    *bytes = (size_t)size;
    return content;
}

golden *golden_open(const char *name)
{
    char path[4096];
    size_t bytes;
    uint64_t header_bytes;
    golden *g = calloc(1, sizeof *g);
    assert_non_null(g);
    snprintf(path, sizeof path, "%s/%s.safetensors", OT_GOLDEN_FOLDER, name);
    g->file = read_file(path, &bytes);
    memcpy(&header_bytes, g->file, sizeof header_bytes);
    assert_true(header_bytes <= bytes - 8);
    g->header = json_loadb((const char *)g->file + 8, header_bytes, 0, NULL);
    assert_non_null(g->header);
    g->data = g->file + 8 + header_bytes;
    g->data_bytes = bytes - 8 - header_bytes;
    json_t *metadata = json_object_get(g->header, "__metadata__");
    if (metadata != NULL) {
        g->config = json_loads(json_string_value(json_object_get(metadata, "config")), 0, NULL);
        assert_non_null(g->config);
    }
    return g;
}

void golden_close(golden *g)
{
    for (size_t i = 0; i < g->decoded_count; i++)
        free(g->decoded[i]);
    free(g->decoded);
    json_decref(g->header);
    json_decref(g->config);
    free(g->file);
    free(g);
}

int golden_has(const golden *g, const char *tensor)
{
    return json_object_get(g->header, tensor) != NULL;
}

static const json_t *find(const golden *g, const char *tensor)
{
    const json_t *entry = json_object_get(g->header, tensor);
    if (entry == NULL)
        fail_msg("no golden tensor %s", tensor);
    return entry;
}

size_t golden_dimensions(const golden *g, const char *tensor)
{
    return json_array_size(json_object_get(find(g, tensor), "shape"));
}

size_t golden_shape(const golden *g, const char *tensor, size_t dimension)
{
    const json_t *shape = json_object_get(find(g, tensor), "shape");
    assert_true(dimension < json_array_size(shape));
    return (size_t)json_integer_value(json_array_get(shape, dimension));
}

size_t golden_count(const golden *g, const char *tensor)
{
    size_t count = 1;
    for (size_t i = 0; i < golden_dimensions(g, tensor); i++)
        count *= golden_shape(g, tensor, i);
    return count;
}

static const unsigned char *bytes_of(const golden *g, const char *tensor, size_t element_bytes)
{
    const json_t *offsets = json_object_get(find(g, tensor), "data_offsets");
    size_t begin = (size_t)json_integer_value(json_array_get(offsets, 0));
    size_t end = (size_t)json_integer_value(json_array_get(offsets, 1));
    assert_true(begin <= end && end <= g->data_bytes);
    assert_int_equal(end - begin, golden_count(g, tensor) * element_bytes);
    return g->data + begin;
}

static const char *dtype_of(const golden *g, const char *tensor)
{
    return json_string_value(json_object_get(find(g, tensor), "dtype"));
}

static void *decode_into(golden *g, size_t bytes)
{
    void *values = calloc(1, bytes + 1);
    g->decoded = realloc(g->decoded, (g->decoded_count + 1) * sizeof *g->decoded);
    assert_non_null(values);
    assert_non_null(g->decoded);
    return g->decoded[g->decoded_count++] = values;
}

double *golden_doubles(golden *g, const char *tensor)
{
    size_t n = golden_count(g, tensor);
    double *values = decode_into(g, n * sizeof *values);
    int narrow = strcmp(dtype_of(g, tensor), "BF16") == 0;
    if (!narrow)
        assert_string_equal(dtype_of(g, tensor), "F32");
    const unsigned char *bytes = bytes_of(g, tensor, narrow ? 2 : 4);
    for (size_t i = 0; i < n; i++) {
        uint16_t half;
        uint32_t bits;
        float value;
        memcpy(&half, bytes + i * 2, sizeof half);
        if (narrow)
            bits = (uint32_t)half << 16;
        else
            memcpy(&bits, bytes + i * 4, sizeof bits);
        memcpy(&value, &bits, sizeof value);
        values[i] = (double)value;
    }
    return values;
}

int32_t *golden_integers(golden *g, const char *tensor)
{
    size_t n = golden_count(g, tensor);
    int32_t *values = decode_into(g, n * sizeof *values);
    int narrow = strcmp(dtype_of(g, tensor), "I16") == 0;
    if (!narrow)
        assert_string_equal(dtype_of(g, tensor), "I32");
    const unsigned char *bytes = bytes_of(g, tensor, narrow ? 2 : 4);
    for (size_t i = 0; i < n; i++) {
        int16_t half;
        memcpy(&half, bytes + i * 2, sizeof half);
        if (narrow)
            values[i] = half;
        else
            memcpy(&values[i], bytes + i * 4, sizeof values[i]);
    }
    return values;
}

static const json_t *setting(const golden *g, const char *key)
{
    const json_t *object = g->config;
    const char *dot = strchr(key, '.');
    char outer[64];
    if (dot != NULL) {
        snprintf(outer, sizeof outer, "%.*s", (int)(dot - key), key);
        object = json_object_get(object, outer);
        key = dot + 1;
    }
    const json_t *value = json_object_get(object, key);
    if (value == NULL)
        fail_msg("no golden setting %s", key);
    return value;
}

double golden_number(const golden *g, const char *key)
{
    assert_true(json_is_number(setting(g, key)));
    return json_number_value(setting(g, key));
}

const char *golden_text(const golden *g, const char *key)
{
    assert_true(json_is_string(setting(g, key)));
    return json_string_value(setting(g, key));
}

const char *golden_name(const golden *g, const char *prefix, size_t index)
{
    const char *key;
    json_t *value;
    json_object_foreach(g->header, key, value)
    {
        if (strncmp(key, prefix, strlen(prefix)) == 0 && index-- == 0)
            return key + strlen(prefix);
    }
    return NULL;
}
