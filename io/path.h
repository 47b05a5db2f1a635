/* Paths: put together, cut, and what they lead to. A path has less than PATH_MAX bytes, its NUL included. Any thread. */
#ifndef OT_IO_PATH_H
#define OT_IO_PATH_H

#include <limits.h>

#include "io/status.h"

/* Puts a path together as printf does. OT_ERR_IO where it is too long: `out` then holds its beginning. */
ot_status ot_path_format(char out[PATH_MAX], const char *format, ...)
    __attribute__((format(printf, 2, 3))) OT_MUST_CHECK;

/* The folder that holds `path`, which may be `out` itself: "." where the path has no slash. OT_ERR_IO as above. */
ot_status ot_path_parent(const char *path, char out[PATH_MAX]) OT_MUST_CHECK;

/* Whether the path leads to a folder; whether the folder holds something of that name. */
int ot_path_is_folder(const char *path);
int ot_path_has(const char *folder, const char *name);

/* Makes the folder and those above it; what is there stays. OT_ERR_IO names the one that cannot be made. */
ot_status ot_path_make_folders(const char *path) OT_MUST_CHECK;

#endif
