/* The kernel's small text files under /proc and /sys. Every path is read below a `root`: "" on a real system;
 * tests give a folder that holds proc/ and sys/. */
#ifndef OT_IO_SYSFILE_H
#define OT_IO_SYSFILE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Opens root+path for reading; NULL and errno where that fails. The caller closes it. */
FILE *ot_sysfile_open(const char *root, const char *path);

/* Reads up to size-1 bytes of root+path into `out`, ends them with NUL and drops a last newline. Returns 1,
 * or 0 with `out` empty where there is no such file or it cannot be read. */
int ot_sysfile_read(const char *root, const char *path, char *out, size_t size);

/* The whole number root+path starts with. Returns 1, or 0 where there is none: no such file, "max", "-1". */
int ot_sysfile_number(const char *root, const char *path, uint64_t *value);

/* The number on the line of `text` that starts with `key` and a space or a colon. Returns 1, or 0 where none
 * does. */
int ot_sysfile_field(const char *text, const char *key, uint64_t *value);

/* How many numbers a kernel list names: "0-3,7" is 5. 0 where `text` is not such a list. */
int ot_sysfile_list_count(const char *text);

/* The version of the Windows Subsystem for Linux that this is, 1 or 2; 0: it is none. */
int ot_sysfile_wsl(const char *root);

#endif
