/* JSON from a file. json_load_file would wait for ever where a pipe has the file's name. */
#include "io/json_file.h"

#include <unistd.h>

#include "io/file.h"

ot_status ot_json_read(const char *path, size_t flags, json_t **root)
{
    json_error_t error;
    int fd;
    *root = NULL;
    OT_TRY(ot_file_open_regular(path, OT_ERR_FORMAT, &fd));
    json_t *read = json_loadfd(fd, flags, &error);
    close(fd);
    if (read == NULL)
        return ot_fail(OT_ERR_FORMAT, "%s:%d: %s", path, error.line, error.text);
    if (!json_is_object(read)) {
        json_decref(read);
        return ot_fail(OT_ERR_FORMAT, "%s is not a JSON object", path);
    }
    *root = read;
    return OT_OK;
}
