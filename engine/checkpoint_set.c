#include "engine/checkpoint_set.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/file.h"
#include "io/grow.h"
#include "io/log.h"
#include "io/path.h"

#define PREFIX "checkpoint-"
#define UNFINISHED ".tmp"

ot_status ot_checkpoint_path(const char *folder, uint64_t step, int unfinished, char *path)
{
    return ot_path_format(path, "%s/" PREFIX "%" PRIu64 "%s", folder, step, unfinished ? UNFINISHED : "");
}

/* ---- what is there ---- */

/* Reads "checkpoint-N" and nothing else: no sign, no leading zero. */
static int parse_name(const char *name, const char *suffix, uint64_t *step)
{
    size_t prefix = strlen(PREFIX);
    if (strncmp(name, PREFIX, prefix) != 0)
        return 0;
    const char *digits = name + prefix;
    size_t length = strspn(digits, "0123456789");
    if (length == 0 || length > 18 || (digits[0] == '0' && length > 1) ||
        strcmp(digits + length, suffix) != 0)
        return 0;
    *step = strtoull(digits, NULL, 10);
    return 1;
}

typedef struct steps {
    uint64_t *items;
    size_t count, capacity;
} steps;

static int newest_first(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x < y) - (x > y);
}

/* The steps of all folders named checkpoint-N<suffix>, newest first. A folder that is missing has none. */
static ot_status list_steps(const char *folder, const char *suffix, steps *out)
{
    *out = (steps){0};
    DIR *stream = opendir(folder);
    if (stream == NULL && errno == ENOENT)
        return OT_OK;
    if (stream == NULL)
        return ot_fail(OT_ERR_IO, "%s: %s", folder, strerror(errno));
    ot_status status = OT_OK;
    for (struct dirent *entry; (entry = readdir(stream)) != NULL;) {
        uint64_t step;
        if (!parse_name(entry->d_name, suffix, &step))
            continue;
        OT_TRY_GOTO(
            ot_grow(&out->items, &out->capacity, out->count + 1, sizeof *out->items, "a list of checkpoints"),
            out);
        out->items[out->count++] = step;
    }
    if (out->count > 0)
        qsort(out->items, out->count, sizeof *out->items, newest_first);
out:
    closedir(stream);
    if (status != OT_OK)
        free(out->items);
    return status;
}

ot_status ot_checkpoint_newest(const char *folder, char *path, ot_manifest *out)
{
    steps found;
    OT_TRY(list_steps(folder, "", &found));
    ot_status status = OT_OK;
    *path = '\0';
    for (size_t i = 0; i < found.count; i++) {
        status = ot_checkpoint_path(folder, found.items[i], 0, path);
        if (status == OT_OK)
            status = ot_manifest_verify(path, out);
        if (status == OT_OK)
            break;
        ot_log(OT_LOG_WARNING, "passed over: %s", ot_error_text());
    }
    if (status != OT_OK)
        status = ot_fail(OT_ERR_FORMAT, "%s: no checkpoint is whole: %s", folder, ot_error_text());
    free(found.items);
    return status;
}

/* ---- removing ---- */

static int remove_entry(const char *path, const struct stat *facts, int type, struct FTW *place)
{
    (void)facts;
    (void)type;
    (void)place;
    return remove(path);
}

/* The manifest goes first: whatever happens on the way, what is left is no checkpoint. Of a link the link alone: somebody has moved
 * the checkpoint away and wants to keep it. */
static ot_status remove_folder(const char *path)
{
    enum { OPEN_MAX_FOLDERS = 16 };
    char manifest[PATH_MAX];
    struct stat facts;
    OT_TRY(ot_path_format(manifest, "%s/" OT_MANIFEST_NAME, path));
    if (lstat(path, &facts) == 0 && S_ISDIR(facts.st_mode))
        unlink(manifest);
    if (nftw(path, remove_entry, OPEN_MAX_FOLDERS, FTW_DEPTH | FTW_PHYS | FTW_MOUNT) != 0)
        return ot_fail(OT_ERR_IO, "%s: cannot be removed: %s", path, strerror(errno));
    return OT_OK;
}

ot_status ot_checkpoint_rotate(const char *folder, const ot_manifest *newest, uint64_t limit)
{
    steps found;
    OT_TRY(list_steps(folder, "", &found));
    ot_status status = OT_OK;
    uint64_t kept = 0;
    for (size_t i = 0; i < found.count && status == OT_OK; i++) {
        char path[PATH_MAX];
        ot_manifest manifest;
        status = ot_checkpoint_path(folder, found.items[i], 0, path);
        if (status != OT_OK || ot_manifest_read(path, &manifest) != OT_OK ||
            strcmp(manifest.run, newest->run) != 0)
            continue;
        if (found.items[i] <= newest->step && kept++ < limit)
            continue;
        status = remove_folder(path);
    }
    free(found.items);
    return status;
}

ot_status ot_checkpoint_sweep(const char *folder)
{
    steps found;
    OT_TRY(list_steps(folder, UNFINISHED, &found));
    ot_status status = OT_OK;
    for (size_t i = 0; i < found.count && status == OT_OK; i++) {
        char path[PATH_MAX];
        status = ot_checkpoint_path(folder, found.items[i], 1, path);
        if (status == OT_OK)
            status = remove_folder(path);
    }
    free(found.items);
    return status;
}

/* ---- publishing ---- */

/* `latest` is replaced by a rename, so that it always points somewhere. */
static ot_status point_latest(const char *folder, uint64_t step)
{
    char target[64], link[PATH_MAX], fresh[PATH_MAX];
    snprintf(target, sizeof target, PREFIX "%" PRIu64, step);
    OT_TRY(ot_path_format(fresh, "%s/latest" UNFINISHED, folder));
    OT_TRY(ot_path_format(link, "%s/latest", folder));
    unlink(fresh);
    if (symlink(target, fresh) != 0 || rename(fresh, link) != 0)
        return ot_fail(OT_ERR_IO, "%s: cannot be made: %s", link, strerror(errno));
    return OT_OK;
}

/* In place of an older one of that step: exchanged, so that one of the two has the name at any moment. */
static ot_status replace_folder(const char *from, const char *to)
{
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE) == 0)
        return remove_folder(from);
    OT_TRY(remove_folder(to));
    if (rename(from, to) != 0)
        return ot_fail(OT_ERR_IO, "%s: cannot be renamed: %s", from, strerror(errno));
    return OT_OK;
}

ot_status ot_checkpoint_publish(const char *folder, uint64_t step)
{
    char from[PATH_MAX], to[PATH_MAX];
    OT_TRY(ot_checkpoint_path(folder, step, 1, from));
    OT_TRY(ot_checkpoint_path(folder, step, 0, to));
    if (rename(from, to) != 0)
        OT_TRY(replace_folder(from, to));
    OT_TRY(point_latest(folder, step));
    return ot_dir_sync(folder);
}
