#include "kernels/plugin.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The folder of the running program, with its last slash; "" where the kernel does not tell. */
static void find_program_folder(char *out, size_t size)
{
    ssize_t length = readlink("/proc/self/exe", out, size - 1);
    out[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(out, '/');
    out[slash != NULL ? slash + 1 - out : 0] = '\0';
}

void *ot_plugin_open(const char *name, const char *named_by, int flags)
{
    static const char *const folders[] = {"", "../lib/"};
    char folder[PATH_MAX], path[PATH_MAX + 64];
    const char *named = getenv(named_by);
    (void)dlerror();
    if (named != NULL)
        return dlopen(named, flags);
    find_program_folder(folder, sizeof folder);
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
        snprintf(path, sizeof path, "%s%s%s", folder, folders[i], name);
        if (access(path, F_OK) == 0)
            return dlopen(path, flags);
    }
    return NULL;
}
