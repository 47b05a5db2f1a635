#include "engine/manifest.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/file.h"
#include "io/json_file.h"
#include "io/path.h"

/* ---- writing ---- */

typedef struct writing {
    json_t *files; /* path below the folder → {size, xxh3} */
    const ot_file_hash *known;
    size_t known_count;
    uint64_t bytes;
} writing;

static ot_status find_hash(const writing *w, const char *path, const char *name, uint64_t *bytes,
                           uint64_t *hash)
{
    for (size_t i = 0; i < w->known_count; i++)
        if (strcmp(w->known[i].path, name) == 0) {
            *bytes = w->known[i].bytes;
            *hash = w->known[i].hash;
            return OT_OK;
        }
    return ot_file_checksum(path, bytes, hash);
}

static ot_status add_file(writing *w, const char *path, const char *name)
{
    uint64_t bytes, hash;
    char text[17];
    OT_TRY(find_hash(w, path, name, &bytes, &hash));
    snprintf(text, sizeof text, "%016" PRIx64, hash);
    w->bytes += bytes;
    if (json_object_set_new(w->files, name,
                            json_pack("{s:I, s:s}", "size", (json_int_t)bytes, "xxh3", text)) != 0)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for a manifest");
    return OT_OK;
}

/* Adds what is in a folder, and what is below it; `prefix` is "" or ends with a slash. */
static ot_status add_folder(writing *w, const char *folder, const char *prefix)
{
    ot_status status = OT_OK;
    DIR *stream = opendir(folder);
    if (stream == NULL)
        return ot_fail(OT_ERR_IO, "%s: %s", folder, strerror(errno));
    for (struct dirent *entry; status == OT_OK && (entry = readdir(stream)) != NULL;) {
        char path[PATH_MAX], name[PATH_MAX];
        struct stat facts;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        OT_TRY_GOTO(ot_path_format(path, "%s/%s", folder, entry->d_name), out);
        snprintf(name, sizeof name, "%s%s", prefix, entry->d_name);
        if (lstat(path, &facts) != 0)
            OT_TRY_GOTO(ot_fail(OT_ERR_IO, "%s: %s", path, strerror(errno)), out);
        if (S_ISDIR(facts.st_mode)) {
            strncat(name, "/", sizeof name - strlen(name) - 1);
            status = add_folder(w, path, name);
        } else if (S_ISREG(facts.st_mode)) {
            status = add_file(w, path, name);
        }
    }
out:
    closedir(stream);
    return status;
}

ot_status ot_manifest_write(const char *folder, const ot_manifest *manifest, const ot_file_hash known[],
                            size_t count, uint64_t *bytes)
{
    writing w = {.files = json_object(), .known = known, .known_count = count};
    json_t *root = NULL;
    char *text = NULL, path[PATH_MAX];
    ot_status status = w.files != NULL ? add_folder(&w, folder, "") : OT_OK;
    *bytes = w.bytes;
    if (status != OT_OK)
        goto out;
    root = json_pack("{s:s, s:I, s:O}", "run", manifest->run, "step", (json_int_t)manifest->step, "files",
                     w.files);
    text = root != NULL ? json_dumps(root, JSON_INDENT(1)) : NULL;
    if (text == NULL)
        OT_TRY_GOTO(ot_fail(OT_ERR_INTERNAL, "out of memory for a manifest"), out);
    OT_TRY_GOTO(ot_path_format(path, "%s/" OT_MANIFEST_NAME, folder), out);
    OT_TRY_GOTO(ot_file_replace(path, text, strlen(text)), out);
    *bytes += strlen(text);
out:
    free(text);
    json_decref(root);
    json_decref(w.files);
    return status;
}

/* ---- reading ---- */

static ot_status load(const char *folder, json_t **root, ot_manifest *out)
{
    char path[PATH_MAX];
    const char *run;
    json_int_t step;
    json_error_t error;
    OT_TRY(ot_path_format(path, "%s/" OT_MANIFEST_NAME, folder));
    if (access(path, F_OK) != 0)
        return ot_fail(OT_ERR_FORMAT, "%s has no " OT_MANIFEST_NAME ": it is no complete checkpoint", folder);
    if (ot_json_read(path, JSON_REJECT_DUPLICATES, root) != OT_OK)
        return ot_fail(OT_ERR_FORMAT, "%s; the checkpoint is damaged", ot_error_text());
    json_t *files;
    if (json_unpack_ex(*root, &error, 0, "{s:s, s:I, s:o}", "run", &run, "step", &step, "files", &files) !=
            0 ||
        strlen(run) >= OT_RUN_ID_BYTES || step < 0 || json_object_size(files) == 0) {
        json_decref(*root);
        return ot_fail(OT_ERR_FORMAT,
                       "%s: expected {run, step, files}, and some files; the checkpoint is damaged", path);
    }
    snprintf(out->run, sizeof out->run, "%s", run);
    out->step = (uint64_t)step;
    return OT_OK;
}

ot_status ot_manifest_read(const char *folder, ot_manifest *out)
{
    json_t *root;
    OT_TRY(load(folder, &root, out));
    json_decref(root);
    return OT_OK;
}

static ot_status verify_file(const char *folder, const char *name, const json_t *entry)
{
    char path[PATH_MAX], found[17];
    const char *expected;
    json_int_t size;
    uint64_t bytes, hash;
    struct stat facts;
    OT_TRY(ot_path_format(path, "%s/%s", folder, name));
    if (*name == '/' || strstr(name, "..") != NULL)
        return ot_fail(OT_ERR_FORMAT, "%s/" OT_MANIFEST_NAME ": %s lies outside the checkpoint", folder,
                       name);
    if (json_unpack((json_t *)(uintptr_t)entry, "{s:I, s:s}", "size", &size, "xxh3", &expected) != 0)
        return ot_fail(OT_ERR_FORMAT, "%s/" OT_MANIFEST_NAME ": %s has no size and xxh3", folder, name);
    if (stat(path, &facts) != 0)
        return ot_fail(OT_ERR_FORMAT, "%s: missing; the checkpoint is damaged", path);
    if ((json_int_t)facts.st_size != size)
        return ot_fail(OT_ERR_FORMAT, "%s: %lld bytes, expected %lld; the checkpoint is damaged", path,
                       (long long)facts.st_size, (long long)size);
    OT_TRY(ot_file_checksum(path, &bytes, &hash));
    snprintf(found, sizeof found, "%016" PRIx64, hash);
    if (strcmp(found, expected) != 0)
        return ot_fail(OT_ERR_FORMAT, "%s: XXH3 %s, expected %s; the checkpoint is damaged", path, found,
                       expected);
    return OT_OK;
}

ot_status ot_manifest_verify(const char *folder, ot_manifest *out)
{
    json_t *root, *entry;
    const char *name;
    OT_TRY(load(folder, &root, out));
    ot_status status = OT_OK;
    json_object_foreach(json_object_get(root, "files"), name, entry)
    {
        status = verify_file(folder, name, entry);
        if (status != OT_OK)
            break;
    }
    json_decref(root);
    return status;
}
