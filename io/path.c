#include "io/path.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

ot_status ot_path_format(char out[PATH_MAX], const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(out, PATH_MAX, format, arguments);
    va_end(arguments);
    if (length < 0 || length >= PATH_MAX)
        return ot_fail(OT_ERR_IO, "%.80s…: the path is too long", out);
    return OT_OK;
}

ot_status ot_path_parent(const char *path, char out[PATH_MAX])
{
    const char *slash = strrchr(path, '/');
    size_t length = slash == NULL ? 0 : slash == path ? 1 : (size_t)(slash - path);
    if (length >= PATH_MAX)
        return ot_fail(OT_ERR_IO, "%.80s…: the path is too long", path);
    memmove(out, path, length);
    out[length] = '\0';
    if (length == 0)
        memcpy(out, ".", 2);
    return OT_OK;
}

int ot_path_is_folder(const char *path)
{
    struct stat facts;
    return stat(path, &facts) == 0 && S_ISDIR(facts.st_mode);
}

int ot_path_has(const char *folder, const char *name)
{
    char path[PATH_MAX];
    return ot_path_format(path, "%s/%s", folder, name) == OT_OK && access(path, F_OK) == 0;
}

ot_status ot_path_make_folders(const char *path)
{
    char part[PATH_MAX];
    OT_TRY(ot_path_format(part, "%s", path));
    for (char *slash = strchr(part + 1, '/');; slash = strchr(slash + 1, '/')) {
        if (slash != NULL)
            *slash = '\0';
        if (mkdir(part, 0777) != 0 && errno != EEXIST)
            return ot_fail(OT_ERR_IO, "%s: cannot be made: %s", part, strerror(errno));
        if (slash == NULL)
            return OT_OK;
        *slash = '/';
    }
}
