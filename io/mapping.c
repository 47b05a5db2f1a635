#include "io/mapping.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

ot_status ot_mapping_open(const char *path, ot_mapping *out)
{
    struct stat facts;
    *out = (ot_mapping){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &facts) != 0) {
        ot_status status = ot_fail(OT_ERR_DATA, "%s: %s", path, strerror(errno));
        if (fd >= 0)
            close(fd);
        return status;
    }
    void *data = MAP_FAILED;
    if (S_ISREG(facts.st_mode) && facts.st_size > 0)
        data = mmap(NULL, (size_t)facts.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    int code = errno;
    close(fd);
    if (!S_ISREG(facts.st_mode))
        return ot_fail(OT_ERR_DATA, "%s is no regular file; give a text, JSONL or token file", path);
    if (facts.st_size == 0)
        return OT_OK;
    if (data == MAP_FAILED)
        return ot_fail(OT_ERR_DATA, "%s: cannot be mapped: %s", path, strerror(code));
    *out = (ot_mapping){data, (size_t)facts.st_size};
    return OT_OK;
}

void ot_mapping_close(ot_mapping *map)
{
    if (map->data != NULL)
        munmap((void *)(size_t)map->data, map->bytes);
    *map = (ot_mapping){0};
}
