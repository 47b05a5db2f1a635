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

const char *ot_companion_name(size_t index)
{
    return index < sizeof names / sizeof names[0] ? names[index] : NULL;
}

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

ot_status ot_companions_copy(const char *from, const char *to)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char source[PATH_MAX], target[PATH_MAX];
        OT_TRY(ot_path_format(source, "%s/%s", from, names[i]));
        OT_TRY(ot_path_format(target, "%s/%s", to, names[i]));
        int fd = open(source, O_RDONLY | O_CLOEXEC);
        if (fd < 0 && errno == ENOENT)
            continue;
        if (fd < 0)
            return ot_fail(OT_ERR_IO, "%s: %s", source, strerror(errno));
        ot_status status = copy_open_file(fd, source, target);
        close(fd);
        OT_TRY(status);
    }
    return OT_OK;
}
