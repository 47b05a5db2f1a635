/* Files and folders through the system calls. */
#include "io/file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>
#include <xxhash.h>

#include "io/host.h"
#include "io/log.h"
#include "io/path.h"
#include "io/text.h"

enum { RAM = 1, NETWORK = 2, COW = 4 };

static const struct {
    uint32_t magic;
    const char *name;
    unsigned traits;
} filesystems[] = {
    {EXT4_SUPER_MAGIC, "ext4", 0},
    {XFS_SUPER_MAGIC, "xfs", 0},
    {F2FS_SUPER_MAGIC, "f2fs", 0},
    {BTRFS_SUPER_MAGIC, "btrfs", COW},
    {0x2FC12FC1, "zfs", COW},
    {0xCA451A4E, "bcachefs", COW},
    {OVERLAYFS_SUPER_MAGIC, "overlay", COW},
    {TMPFS_MAGIC, "tmpfs", RAM},
    {RAMFS_MAGIC, "ramfs", RAM},
    {HUGETLBFS_MAGIC, "hugetlbfs", RAM},
    {NFS_SUPER_MAGIC, "nfs", NETWORK},
    {CIFS_SUPER_MAGIC, "cifs", NETWORK},
    {SMB2_SUPER_MAGIC, "smb2", NETWORK},
    {V9FS_MAGIC, "9p", NETWORK},
    {FUSE_SUPER_MAGIC, "fuse", NETWORK},
    {CEPH_SUPER_MAGIC, "ceph", NETWORK},
    {0x0BD00BD0, "lustre", NETWORK},
};

static void name_filesystem(uint32_t magic, ot_dir_info *info)
{
    snprintf(info->filesystem, sizeof info->filesystem, "0x%08" PRIx32, magic);
    for (size_t i = 0; i < sizeof filesystems / sizeof *filesystems; i++)
        if (filesystems[i].magic == magic) {
            snprintf(info->filesystem, sizeof info->filesystem, "%s", filesystems[i].name);
            info->is_ram = (filesystems[i].traits & RAM) != 0;
            info->is_network = (filesystems[i].traits & NETWORK) != 0;
            info->is_cow = (filesystems[i].traits & COW) != 0;
        }
}

/* A file in folder `path` that is removed when it is closed. File systems without O_TMPFILE get a named one,
 * unlinked at once. Returns the descriptor, or -1 with errno. */
static int open_unnamed(const char *path, int flags)
{
    int fd = open(path, O_TMPFILE | O_RDWR | O_CLOEXEC | flags, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT && errno != EINVAL))
        return fd;
    char name[PATH_MAX];
    int n = snprintf(name, sizeof name, "%s/.offtrain-probe-%ld", path, (long)getpid());
    if (n < 0 || (size_t)n >= sizeof name) {
        errno = ENAMETOOLONG;
        return -1;
    }
    fd = open(name, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC | flags, 0600);
    int code = errno;
    if (fd >= 0 || code != EEXIST) /* some file systems create the file before they refuse O_DIRECT */
        unlink(name);
    errno = code;
    return fd;
}

/* The kernel says the alignment since 6.1; before, the page size is safe on every drive. */
static void find_alignment(int fd, ot_dir_info *info)
{
    info->memory_alignment = info->offset_alignment = OT_PAGE_BYTES;
#ifdef STATX_DIOALIGN
    struct statx facts;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &facts) == 0 && (facts.stx_mask & STATX_DIOALIGN) != 0 &&
        facts.stx_dio_offset_align > 0) {
        info->memory_alignment = facts.stx_dio_mem_align;
        info->offset_alignment = facts.stx_dio_offset_align;
    }
#endif
}

ot_status ot_dir_probe(const char *path, ot_dir_info *out)
{
    *out = (ot_dir_info){0};
    struct stat facts;
    struct statfs fs;
    if (stat(path, &facts) != 0 || statfs(path, &fs) != 0)
        return ot_fail(OT_ERR_IO, "%s: %s; give an existing folder on the drive to use", path,
                       strerror(errno));
    if (!S_ISDIR(facts.st_mode))
        return ot_fail(OT_ERR_IO, "%s is not a folder; give a folder on the drive to use", path);
    name_filesystem((uint32_t)fs.f_type, out);
    out->free_bytes = (uint64_t)fs.f_bavail * (uint64_t)fs.f_bsize;
    out->total_bytes = (uint64_t)fs.f_blocks * (uint64_t)fs.f_bsize;
    out->device = (uint64_t)makedev(major(facts.st_dev), minor(facts.st_dev));

    int fd = open_unnamed(path, O_DIRECT);
    out->direct = fd >= 0;
    if (fd < 0) {
        out->direct_errno = errno;
        fd = open_unnamed(path, 0);
    }
    if (fd < 0)
        return ot_fail(OT_ERR_IO, "%s: no file can be made there: %s", path, strerror(errno));
    find_alignment(fd, out);
    close(fd);
    return OT_OK;
}

int ot_dir_same(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

ot_status ot_file_open(const char *path, int flags, int *fd, int *direct)
{
    *fd = open(path, flags | O_DIRECT | O_CLOEXEC, 0600);
    *direct = *fd >= 0;
    if (*fd < 0 && (errno == EINVAL || errno == EOPNOTSUPP)) {
        int code = errno;
        *fd = open(path, flags | O_CLOEXEC, 0600);
        if (*fd >= 0)
            ot_log(
                OT_LOG_WARNING,
                "%s: the file system refuses O_DIRECT (%s, %s): reading and writing through the page cache; "
                "ext4 or xfs on a local drive is faster",
                path, strerrorname_np(code), strerror(code));
    }
    if (*fd < 0)
        return ot_fail(OT_ERR_IO, "cannot open %s: %s", path, strerror(errno));
    return OT_OK;
}

static ot_status write_zeros(int fd, const char *path, uint64_t bytes)
{
    enum { BLOCK = 1 << 16 };
    static const _Alignas(OT_PAGE_BYTES) unsigned char zeros[BLOCK];
    for (uint64_t at = 0; at < bytes; at += BLOCK)
        OT_TRY(ot_file_write(fd, path, at, zeros, bytes - at < BLOCK ? bytes - at : BLOCK));
    return OT_OK;
}

/* What this user can have for the file, its own blocks included. */
static uint64_t room_for(int fd)
{
    struct statfs fs;
    struct stat facts;
    if (fstatfs(fd, &fs) != 0 || fstat(fd, &facts) != 0)
        return 0;
    return (uint64_t)fs.f_bavail * (uint64_t)fs.f_bsize + (uint64_t)facts.st_blocks * 512;
}

ot_status ot_file_allocate(int fd, const char *path, uint64_t bytes)
{
    int code;
    char need[OT_SIZE_TEXT_BYTES], have[OT_SIZE_TEXT_BYTES];
    ot_format_size(bytes, need);
    ot_format_size(room_for(fd), have); /* now: what a failed attempt got is not given back */
    do
        code = fallocate(fd, 0, 0, (off_t)bytes) == 0 ? 0 : errno;
    while (code == EINTR);
    if (code == 0)
        return OT_OK;
    if (code != EOPNOTSUPP && code != ENOSYS)
        return ot_fail(OT_ERR_IO,
                       "cannot allocate %s for %s: %s; %s are free there; free some, or give another folder",
                       need, path, strerror(code), have);
    if (write_zeros(fd, path, bytes) != OT_OK)
        return ot_fail(OT_ERR_IO,
                       "cannot allocate %s (%s are free there): %s; free some, or give another folder", need,
                       have, ot_error_text());
    return OT_OK;
}

void ot_file_disable_cow(int fd)
{
    int flags;
    if (ioctl(fd, FS_IOC_GETFLAGS, &flags) == 0 && (flags & FS_NOCOW_FL) == 0) {
        flags |= FS_NOCOW_FL;
        ioctl(fd, FS_IOC_SETFLAGS, &flags);
    }
}

ot_status ot_file_lock(int fd, const char *path, int *taken)
{
    int result;
    do
        result = flock(fd, LOCK_EX | LOCK_NB);
    while (result != 0 && errno == EINTR);
    *taken = result == 0;
    if (result != 0 && errno != EWOULDBLOCK)
        return ot_fail(OT_ERR_IO, "cannot lock %s: %s; its file system must support flock", path,
                       strerror(errno));
    return OT_OK;
}

ot_status ot_file_read(int fd, const char *path, uint64_t offset, void *data, uint64_t bytes)
{
    for (uint64_t done = 0; done < bytes;) {
        ssize_t n = pread(fd, (char *)data + done, bytes - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return ot_fail(OT_ERR_IO, "cannot read %s at byte %" PRIu64 ": %s", path, offset + done,
                           strerror(errno));
        if (n == 0)
            return ot_fail(OT_ERR_IO, "%s ends at byte %" PRIu64 ", before byte %" PRIu64 "", path,
                           offset + done, offset + bytes);
        done += (uint64_t)n;
    }
    return OT_OK;
}

ot_status ot_file_write(int fd, const char *path, uint64_t offset, const void *data, uint64_t bytes)
{
    for (uint64_t done = 0; done < bytes;) {
        ssize_t n = pwrite(fd, (const char *)data + done, bytes - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return ot_fail(OT_ERR_IO, "cannot write %s at byte %" PRIu64 ": %s", path, offset + done,
                           n < 0 ? strerror(errno) : "nothing was written");
        done += (uint64_t)n;
    }
    return OT_OK;
}

ot_status ot_dir_sync(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    /* Some network file systems cannot sync a folder and say EINVAL; there is nothing to do about it. */
    int failed = fd < 0 || (fsync(fd) != 0 && errno != EINVAL);
    int code = errno;
    if (fd >= 0)
        close(fd);
    if (failed)
        return ot_fail(OT_ERR_IO, "cannot sync folder %s: %s", path, strerror(code));
    return OT_OK;
}

ot_status ot_file_rename(const char *from, const char *to)
{
    char folder[PATH_MAX];
    OT_TRY(ot_path_parent(to, folder));
    if (rename(from, to) != 0)
        return ot_fail(OT_ERR_IO, "cannot rename %s to %s: %s", from, to, strerror(errno));
    return ot_dir_sync(folder);
}

ot_status ot_file_replace(const char *path, const void *data, uint64_t bytes)
{
    char temporary[PATH_MAX];
    OT_TRY(ot_path_format(temporary, "%s.tmp", path));
    int fd = open(temporary, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644);
    if (fd < 0)
        return ot_fail(OT_ERR_IO, "cannot create %s: %s", temporary, strerror(errno));
    ot_status status = ot_file_write(fd, temporary, 0, data, bytes);
    if (status == OT_OK && fsync(fd) != 0)
        status = ot_fail(OT_ERR_IO, "cannot sync %s: %s", temporary, strerror(errno));
    if (close(fd) != 0 && status == OT_OK)
        status = ot_fail(OT_ERR_IO, "cannot close %s: %s", temporary, strerror(errno));
    if (status == OT_OK)
        status = ot_file_rename(temporary, path);
    if (status != OT_OK)
        unlink(temporary);
    return status;
}

ot_status ot_file_open_regular(const char *path, ot_status code, int *fd)
{
    struct stat facts;
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0)
        return ot_fail(code, "cannot open %s: %s", path, strerror(errno));
    if (fstat(*fd, &facts) == 0 && S_ISREG(facts.st_mode))
        return OT_OK;
    close(*fd);
    *fd = -1;
    return ot_fail(code, "%s is no regular file", path);
}

FILE *ot_file_open_stream(const char *path, ot_status code)
{
    int fd;
    if (ot_file_open_regular(path, code, &fd) != OT_OK)
        return NULL;
    FILE *file = fdopen(fd, "r");
    if (file == NULL)
        close(fd);
    return file;
}

FILE *ot_file_open_output(const char *path, const char *mode)
{
    int access = strchr(mode, '+') != NULL ? O_RDWR : O_WRONLY, place = *mode == 'w' ? O_TRUNC : O_APPEND;
    int fd = open(path, access | place | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
    FILE *file = fd < 0 || fcntl(fd, F_SETFL, place & O_APPEND) != 0 ? NULL : fdopen(fd, mode);
    int code = errno;
    if (file == NULL && fd >= 0)
        close(fd);
    errno = code;
    return file;
}

/* The page cache is asked to let go first, so that what is read is what the drive holds. */
ot_status ot_file_checksum(const char *path, uint64_t *bytes, uint64_t *hash)
{
    enum { PIECE_BYTES = 1 << 20 };
    ot_status status = OT_OK;
    struct stat facts;
    XXH3_state_t *state = XXH3_createState();
    char *piece = malloc(PIECE_BYTES);
    int fd = -1;
    if (state == NULL || piece == NULL)
        OT_TRY_GOTO(ot_fail(OT_ERR_INTERNAL, "out of memory for the hash of %s", path), out);
    OT_TRY_GOTO(ot_file_open_regular(path, OT_ERR_IO, &fd), out);
    if (fstat(fd, &facts) != 0)
        OT_TRY_GOTO(ot_fail(OT_ERR_IO, "%s: %s", path, strerror(errno)), out);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    XXH3_64bits_reset(state);
    *bytes = (uint64_t)facts.st_size;
    for (uint64_t at = 0; at < *bytes;) {
        uint64_t size = *bytes - at < PIECE_BYTES ? *bytes - at : PIECE_BYTES;
        OT_TRY_GOTO(ot_file_read(fd, path, at, piece, size), out);
        XXH3_64bits_update(state, piece, size);
        at += size;
    }
    *hash = XXH3_64bits_digest(state);
out:
    if (fd >= 0)
        close(fd);
    free(piece);
    XXH3_freeState(state);
    return status;
}
