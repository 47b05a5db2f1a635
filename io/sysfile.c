/* Reading /proc and /sys. */
#include "io/sysfile.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

FILE *ot_sysfile_open(const char *root, const char *path)
{
    char full[PATH_MAX];
    int n = snprintf(full, sizeof full, "%s%s", root, path);
    if (n < 0 || (size_t)n >= sizeof full) {
        errno = ENAMETOOLONG;
        return NULL;
    }
    return fopen(full, "re");
}

int ot_sysfile_read(const char *root, const char *path, char *out, size_t size)
{
    *out = '\0';
    FILE *file = ot_sysfile_open(root, path);
    if (file == NULL)
        return 0;
    size_t n = fread(out, 1, size - 1, file);
    int good = !ferror(file); /* a folder opens, and fails here */
    fclose(file);
    if (!good)
        n = 0;
    out[n] = '\0';
    if (n > 0 && out[n - 1] == '\n')
        out[n - 1] = '\0';
    return good;
}

static int parse_number(const char *text, uint64_t *value)
{
    if (!isdigit((unsigned char)*text))
        return 0;
    *value = strtoumax(text, NULL, 10);
    return 1;
}

int ot_sysfile_number(const char *root, const char *path, uint64_t *value)
{
    char text[64];
    return ot_sysfile_read(root, path, text, sizeof text) && parse_number(text, value);
}

int ot_sysfile_field(const char *text, const char *key, uint64_t *value)
{
    size_t length = strlen(key);
    for (const char *line = text; line != NULL; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, length) == 0 && (line[length] == ' ' || line[length] == ':'))
            return parse_number(line + length + strspn(line + length, ": \t"), value);
    }
    return 0;
}

int ot_sysfile_list_count(const char *text)
{
    long count = 0;
    while (isdigit((unsigned char)*text)) {
        char *end;
        long first = strtol(text, &end, 10), last = first;
        if (*end == '-' && isdigit((unsigned char)end[1]))
            last = strtol(end + 1, &end, 10);
        if (last < first || last - first >= INT_MAX - count)
            return 0;
        count += last - first + 1;
        text = *end == ',' ? end + 1 : end;
    }
    return *text == '\0' || *text == '\n' ? (int)count : 0;
}

int ot_sysfile_wsl(const char *root)
{
    char version[512];
    ot_sysfile_read(root, "/proc/version", version, sizeof version);
    if (strcasestr(version, "microsoft") == NULL)
        return 0;
    /* The first version reports a Windows build as Linux 4.4 and has no kernel of its own; the second does. */
    return strstr(version, "Linux version 4.4.") != NULL ? 1 : 2;
}
