#include "tests/support/golden.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/safetensors.h"
#include "tests/support/test.h"

struct golden {
    ot_tensor_set *set;
    json_t *config;
    size_t decoded_count;
    void **decoded; /* what was handed out */
};

golden *golden_open(const char *name)
{
    char path[4096];
    golden *g = calloc(1, sizeof *g);
    assert_non_null(g);
    snprintf(path, sizeof path, "%s/%s.safetensors", OT_GOLDEN_FOLDER, name);
    if (ot_tensor_set_open_file(path, &g->set) != OT_OK)
        fail_msg("%s; tests/golden/make.py makes it", ot_error_text());
    const char *config = ot_tensor_set_metadata(g->set, "config");
    if (config != NULL) {
        g->config = json_loads(config, 0, NULL);
        assert_non_null(g->config);
    }
    return g;
}

void golden_close(golden *g)
{
    for (size_t i = 0; i < g->decoded_count; i++)
        free(g->decoded[i]);
    free(g->decoded);
    json_decref(g->config);
    ot_tensor_set_close(g->set);
    free(g);
}

int golden_has(const golden *g, const char *tensor)
{
    return ot_tensor_set_find(g->set, tensor) != NULL;
}

static const ot_file_tensor *find(const golden *g, const char *tensor)
{
    const ot_file_tensor *found = ot_tensor_set_find(g->set, tensor);
    if (found == NULL)
        fail_msg("no golden tensor %s", tensor);
    return found;
}

size_t golden_dimensions(const golden *g, const char *tensor)
{
    return find(g, tensor)->spec.dimensions;
}

size_t golden_shape(const golden *g, const char *tensor, size_t dimension)
{
    assert_true(dimension < golden_dimensions(g, tensor));
    return (size_t)find(g, tensor)->spec.shape[dimension];
}

size_t golden_count(const golden *g, const char *tensor)
{
    const ot_file_tensor *found = find(g, tensor);
    return (size_t)found->bytes / ot_file_dtype_bytes(found->spec.dtype);
}

/* Memory that lives until the file is closed. */
static void *keep(golden *g, size_t bytes)
{
    void *values = calloc(1, bytes + 1);
    g->decoded = realloc(g->decoded, (g->decoded_count + 1) * sizeof *g->decoded);
    assert_non_null(values);
    assert_non_null(g->decoded);
    return g->decoded[g->decoded_count++] = values;
}

/* The tensor as it is stored, one of two dtypes. */
static const void *content_of(golden *g, const char *tensor, ot_file_dtype wide, ot_file_dtype narrow)
{
    const ot_file_tensor *found = find(g, tensor);
    void *content = keep(g, (size_t)found->bytes);
    assert_true(found->spec.dtype == wide || found->spec.dtype == narrow);
    assert_int_equal(ot_tensor_set_read(g->set, found, 0, content, found->bytes), OT_OK);
    return content;
}

double *golden_doubles(golden *g, const char *tensor)
{
    size_t n = golden_count(g, tensor);
    double *values = keep(g, n * sizeof *values);
    const void *content = content_of(g, tensor, OT_FILE_F32, OT_FILE_BF16);
    int narrow = find(g, tensor)->spec.dtype == OT_FILE_BF16;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits =
            narrow ? (uint32_t)((const uint16_t *)content)[i] << 16 : ((const uint32_t *)content)[i];
        float value;
        memcpy(&value, &bits, sizeof value);
        values[i] = (double)value;
    }
    return values;
}

int32_t *golden_integers(golden *g, const char *tensor)
{
    size_t n = golden_count(g, tensor);
    int32_t *values = keep(g, n * sizeof *values);
    const void *content = content_of(g, tensor, OT_FILE_I32, OT_FILE_I16);
    int narrow = find(g, tensor)->spec.dtype == OT_FILE_I16;
    for (size_t i = 0; i < n; i++)
        values[i] = narrow ? ((const int16_t *)content)[i] : ((const int32_t *)content)[i];
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
    for (size_t i = 0; i < ot_tensor_set_count(g->set); i++) {
        const char *name = ot_tensor_set_at(g->set, i)->spec.name;
        if (strncmp(name, prefix, strlen(prefix)) == 0 && index-- == 0)
            return name + strlen(prefix);
    }
    return NULL;
}
