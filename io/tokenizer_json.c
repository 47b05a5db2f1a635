/* The tokenizer's way to JSON: files, and typed keys of objects. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/file.h"
#include "io/tokenizer_parts.h"

enum { FILE_BYTES_MAX = 1 << 30 }; /* spans are of 32 bits */

ot_status ot_text_read(const char *path, ot_bytes *out)
{
    int fd;
    struct stat info;
    OT_TRY(ot_file_open_regular(path, OT_ERR_FORMAT, &fd));
    if (fstat(fd, &info) != 0 || info.st_size > FILE_BYTES_MAX) {
        close(fd);
        return ot_fail(OT_ERR_FORMAT, "%s cannot be read: it is not a file of at most 1 GiB", path);
    }
    size_t bytes = (size_t)info.st_size;
    ot_status status = ot_bytes_reserve(out, bytes + 1);
    if (status == OT_OK)
        status = ot_file_read(fd, path, 0, out->data, bytes);
    out->count = bytes;
    close(fd);
    return status;
}

ot_status ot_json_parse(const char *path, const char *data, size_t bytes, size_t flags, json_t **root)
{
    json_error_t error;
    json_t *parsed = json_loadb(data, bytes, flags | JSON_ALLOW_NUL, &error);
    if (parsed == NULL)
        return ot_fail(OT_ERR_FORMAT, "%s:%d: %s", path, error.line, error.text);
    if (!json_is_object(parsed)) {
        json_decref(parsed);
        return ot_fail(OT_ERR_FORMAT, "%s is not a JSON object", path);
    }
    *root = parsed;
    return OT_OK;
}

ot_status ot_json_flag(const json_t *node, const char *key, int otherwise, const char *where, int *out)
{
    const json_t *value = json_object_get(node, key);
    if (value != NULL && !json_is_null(value) && !json_is_boolean(value))
        return ot_fail(OT_ERR_FORMAT, "%s: '%s' is neither true nor false", where, key);
    *out = json_is_boolean(value) ? json_is_true(value) : otherwise;
    return OT_OK;
}

ot_status ot_json_text(const json_t *node, const char *key, const char *where, const char **text,
                       size_t *bytes)
{
    const json_t *value = json_object_get(node, key);
    if (!json_is_string(value))
        return ot_fail(OT_ERR_FORMAT, "%s: a text '%s' is missing", where, key);
    *text = json_string_value(value);
    *bytes = json_string_length(value);
    return OT_OK;
}

ot_status ot_json_keep(const json_t *node, const char *key, const char *where, char **text, size_t *bytes)
{
    const char *found = NULL;
    OT_TRY(ot_json_text(node, key, where, &found, bytes));
    *text = malloc(*bytes + 1);
    if (*text == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for %s", where);
    memcpy(*text, found, *bytes + 1);
    return OT_OK;
}

ot_status ot_json_pattern(const json_t *node, const char *where, ot_regex *out)
{
    const json_t *pattern = json_object_get(node, "pattern");
    const json_t *literal = json_object_get(pattern, "String"), *regex = json_object_get(pattern, "Regex");
    const json_t *text = literal != NULL ? literal : regex;
    if (!json_is_string(text))
        return ot_fail(OT_ERR_FORMAT, "%s: a 'pattern' with a 'String' or a 'Regex' is missing", where);
    return ot_regex_compile(json_string_value(text), json_string_length(text), literal != NULL, where, out);
}

ot_status ot_json_scheme(const json_t *node, const char *where, ot_prepend_scheme *out)
{
    static const char *const names[] = {"never", "first", "always"};
    const char *name = "always";
    size_t bytes;
    int prefix = 1;
    if (json_object_get(node, "prepend_scheme") != NULL)
        OT_TRY(ot_json_text(node, "prepend_scheme", where, &name, &bytes));
    OT_TRY(ot_json_flag(node, "add_prefix_space", 1, where, &prefix));
    for (size_t i = 0; i < 3; i++) {
        if (strcmp(name, names[i]) == 0) {
            *out = prefix ? (ot_prepend_scheme)i : OT_PREPEND_NEVER;
            return OT_OK;
        }
    }
    return ot_fail(OT_ERR_FORMAT, "%s: unknown prepend_scheme '%s' of Metaspace", where, name);
}
