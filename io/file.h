/* Files and folders: what a folder's drive allows, direct files, real allocation, atomic replacement,
 * ownership. */
#ifndef OT_IO_FILE_H
#define OT_IO_FILE_H

#include <stdint.h>
#include <stdio.h>

#include "io/status.h"

typedef struct ot_dir_info {
    char filesystem[32];       /* "ext4", "xfs", "btrfs", …, or the magic number in hexadecimal */
    int is_ram;                /* tmpfs, ramfs, hugetlbfs: its bytes are memory */
    int is_network;            /* NFS, SMB, 9p, FUSE, …: someone else's drive */
    int is_cow;                /* rewrites go elsewhere: btrfs, zfs, bcachefs, overlay */
    int direct;                /* O_DIRECT is accepted */
    int direct_errno;          /* why not, where it is not */
    uint32_t memory_alignment; /* of the address in direct I/O, in bytes */
    uint32_t offset_alignment; /* of offset and length in direct I/O, in bytes */
    uint64_t free_bytes;       /* for this user */
    uint64_t total_bytes;
    uint64_t device; /* equal for folders of one file system */
} ot_dir_info;

/* Looks at the folder `path` with an unnamed file of its own in it, which is gone on return. OT_ERR_IO, with
 * path and errno, where the folder is missing or nothing can be written there. */
ot_status ot_dir_probe(const char *path, ot_dir_info *out) OT_MUST_CHECK;

/* Whether two paths lead to the same existing folder. */
int ot_dir_same(const char *a, const char *b);

/* Opens `path` (open(2) `flags`, O_CLOEXEC added; new files get mode 0600) with O_DIRECT, or, where the file
 * system refuses that, without, after one log line. `*direct` tells which. */
ot_status ot_file_open(const char *path, int flags, int *fd, int *direct) OT_MUST_CHECK;

/* Opens `path` to be read, without waiting for what a pipe's writer may never send. The failure, with path and reason, is `code` where
 * nothing can be opened there, and where it is no regular file; `*fd` is -1 then. The caller closes `*fd`. */
ot_status ot_file_open_regular(const char *path, ot_status code, int *fd) OT_MUST_CHECK;

/* The same as a stream, or NULL after a failure; closed by fclose(3). */
FILE *ot_file_open_stream(const char *path, ot_status code);

/* Opens `path` as fopen(3) with the mode "w", "a" or "a+", without waiting for a pipe's reader: errno is ENXIO where there is none.
 * NULL with errno after a failure. */
FILE *ot_file_open_output(const char *path, const char *mode);

/* Gives the file real blocks for its first `bytes` and that size, so that no write inside runs out of space.
 * A file system without fallocate gets zeros written. OT_ERR_IO with need and have where the space is
 * missing. */
ot_status ot_file_allocate(int fd, const char *path, uint64_t bytes) OT_MUST_CHECK;

/* Turns copy-on-write off for an empty file where the file system has it (btrfs), so that rewrites stay in
 * place. Elsewhere, and where it is refused, nothing happens: it is about speed only. */
void ot_file_disable_cow(int fd);

/* Takes the exclusive lock of an open file, without waiting; it is held until the last descriptor of this
 * open file closes, so the kernel frees it when its owner dies. `*taken` is 0 where another process has it.
 */
ot_status ot_file_lock(int fd, const char *path, int *taken) OT_MUST_CHECK;

/* Replaces `path` by `bytes` of `data`, whole or not at all, also through a crash: a temporary file beside it
 * is written, fsynced and renamed, and the folder fsynced. */
ot_status ot_file_replace(const char *path, const void *data, uint64_t bytes) OT_MUST_CHECK;

/* Gives the file or folder `from` the name `to`, durably. */
ot_status ot_file_rename(const char *from, const char *to) OT_MUST_CHECK;

/* fsync of a folder, which makes creations, renames and removals in it durable. */
ot_status ot_dir_sync(const char *path) OT_MUST_CHECK;

/* pread and pwrite of exactly `bytes`: short transfers and EINTR are continued. Blocks. */
ot_status ot_file_read(int fd, const char *path, uint64_t offset, void *data, uint64_t bytes) OT_MUST_CHECK;
ot_status ot_file_write(int fd, const char *path, uint64_t offset, const void *data,
                        uint64_t bytes) OT_MUST_CHECK;

/* Size and XXH3-64 of a whole file, as the drive holds it: the page cache is asked to let go of it first. Blocks. */
ot_status ot_file_checksum(const char *path, uint64_t *bytes, uint64_t *hash) OT_MUST_CHECK;

#endif
