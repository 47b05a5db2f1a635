#include "engine/companions.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/file.h"
#include "io/path.h"

static const char *const names[] = {
    "tokenizer.json",     "tokenizer_config.json",
    "tokenizer.model",    "special_tokens_map.json",
    "added_tokens.json",  "vocab.json",
    "merges.txt",         "chat_template.jinja",
    "chat_template.json", "generation_config.json",
};
enum { NAMES = sizeof names / sizeof *names };

const char *ot_companion_name(size_t index)
{
    return index < NAMES ? names[index] : NULL;
}

struct ot_companions {
    char *folder;
    int fds[NAMES]; /* -1: it is not there */
};

/* ---- opening ---- */

static ot_status open_one(const char *folder, const char *name, int *out)
{
    char path[PATH_MAX];
    struct stat facts;
    OT_TRY(ot_path_format(path, "%s/%s", folder, name));
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT)
        return OT_OK;
    if (fd < 0)
        return ot_fail(OT_ERR_IO, "%s: %s", path, strerror(errno));
    if (fstat(fd, &facts) != 0 || !S_ISREG(facts.st_mode)) {
        close(fd);
        return ot_fail(OT_ERR_FORMAT, "%s is no file", path);
    }
    *out = fd;
    return OT_OK;
}

ot_status ot_companions_open(const char *folder, ot_companions **out)
{
    ot_companions *companions = malloc(sizeof *companions);
    if (companions == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for the tokenizer's files");
    for (size_t i = 0; i < NAMES; i++)
        companions->fds[i] = -1;
    companions->folder = strdup(folder);
    ot_status status = companions->folder != NULL
                           ? OT_OK
                           : ot_fail(OT_ERR_INTERNAL, "out of memory for the tokenizer's files");
    for (size_t i = 0; i < NAMES && status == OT_OK; i++)
        status = open_one(folder, names[i], &companions->fds[i]);
    if (status != OT_OK) {
        ot_companions_close(companions);
        return status;
    }
    *out = companions;
    return OT_OK;
}

void ot_companions_close(ot_companions *companions)
{
    if (companions == NULL)
        return;
    for (size_t i = 0; i < NAMES; i++)
        if (companions->fds[i] >= 0)
            close(companions->fds[i]);
    free(companions->folder);
    free(companions);
}

/* ---- copying ---- */

static ot_status copy_open_file(int fd, const char *from, const char *to)
{
    struct stat facts;
    if (fstat(fd, &facts) != 0)
        return ot_fail(OT_ERR_IO, "%s: %s", from, strerror(errno));
    uint64_t bytes = (uint64_t)facts.st_size;
    char *data = malloc(bytes + 1);
    if (data == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for %s", from);
    ot_status status = ot_file_read(fd, from, 0, data, bytes);
    if (status == OT_OK)
        status = ot_file_replace(to, data, bytes);
    free(data);
    return status;
}

ot_status ot_companions_copy(const ot_companions *companions, const char *to)
{
    for (size_t i = 0; i < NAMES; i++) {
        char source[PATH_MAX], target[PATH_MAX];
        if (companions->fds[i] < 0)
            continue;
        OT_TRY(ot_path_format(source, "%s/%s", companions->folder, names[i]));
        OT_TRY(ot_path_format(target, "%s/%s", to, names[i]));
        OT_TRY(copy_open_file(companions->fds[i], source, target));
    }
    return OT_OK;
}
