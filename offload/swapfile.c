/* The store's files: ownership, header, space. */
#include "offload/swapfile.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "io/host.h"
#include "io/log.h"
#include "io/path.h"
#include "io/text.h"
#include "offload/store.h"

static const char header_magic[8] = "OTSWAP\r\n";
enum {
    HEADER_VERSION = 1,
    LOCK_TRIES = 300,
    LOCK_TRY_EVERY_NS = 10000000,
};

/* Little-endian, as the machines are. The page is padded with zeros. */
typedef struct swap_header {
    char magic[8];
    uint32_t version;
    uint32_t index, count;
    uint32_t reserved;
    unsigned char uuid[OT_SWAP_UUID_BYTES];
    uint64_t layout_hash;
    uint64_t file_bytes;
    int64_t owner_pid;
    int64_t owner_since; /* seconds since 1970 */
    char owner_host[64];
    uint64_t checksum; /* XXH3 of all before */
} swap_header;

_Static_assert(sizeof(swap_header) <= OT_SWAP_HEADER_BYTES, "the header is one page");

static uint64_t header_checksum(const swap_header *header)
{
    return XXH3_64bits(header, offsetof(swap_header, checksum));
}

/* Reads the header; `*ours` says whether the file is a store's. A file that is not regular, or too short for
 * a header, is not; an empty one is: an owner that died between creating it and writing to it leaves that. */
static ot_status read_header(const ot_swap_file *file, uint64_t file_bytes, swap_header *header, int *ours)
{
    *header = (swap_header){0};
    *ours = file_bytes == 0;
    if (file_bytes < OT_SWAP_HEADER_BYTES)
        return OT_OK;
    void *page = aligned_alloc(OT_PAGE_BYTES, OT_SWAP_HEADER_BYTES);
    if (page == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for a page");
    ot_status status = ot_file_read(file->fd, file->path, 0, page, OT_SWAP_HEADER_BYTES);
    memcpy(header, page, sizeof *header);
    free(page);
    if (status == OT_OK)
        *ours = memcmp(header->magic, header_magic, sizeof header_magic) == 0;
    return status;
}

/* Who the header of a file that another process has locked says that is; pid 0 where it does not say. */
static swap_header read_owner(const ot_swap_file *file)
{
    struct stat facts;
    swap_header header;
    int ours;
    if (fstat(file->fd, &facts) != 0 || read_header(file, (uint64_t)facts.st_size, &header, &ours) != OT_OK ||
        !ours)
        header.owner_pid = 0;
    return header;
}

static int is_gone(const swap_header *owner)
{
    char host[sizeof owner->owner_host] = "";
    return owner->owner_pid > 0 && gethostname(host, sizeof host - 1) == 0 &&
           strncmp(host, owner->owner_host, sizeof host) == 0 && kill((pid_t)owner->owner_pid, 0) != 0 &&
           errno == ESRCH;
}

static ot_status refuse_in_use(const ot_swap_file *file, const swap_header *owner)
{
    if (owner->owner_pid > 0)
        return ot_fail(OT_ERR_IO,
                       "%s is in use by process %" PRId64
                       " on %.63s; wait for it to end, or give another directory",
                       file->path, owner->owner_pid, owner->owner_host);
    return ot_fail(OT_ERR_IO,
                   "%s is in use by another process; wait for it to end, or give another directory",
                   file->path);
}

/* A process that was killed is gone before the kernel has taken down its io_uring, which holds the lock a
 * moment longer: that is waited for. */
static ot_status take_lock(const ot_swap_file *file)
{
    for (int tries = 0;; tries++) {
        int taken;
        OT_TRY(ot_file_lock(file->fd, file->path, &taken));
        if (taken)
            return OT_OK;
        swap_header owner = read_owner(file);
        if (tries == LOCK_TRIES || !is_gone(&owner))
            return refuse_in_use(file, &owner);
        nanosleep(&(struct timespec){.tv_nsec = LOCK_TRY_EVERY_NS}, NULL);
    }
}

static ot_status refuse_foreign(const ot_swap_file *file)
{
    return ot_fail(
        OT_ERR_IO,
        "%s exists and is not a store of offtrain: it is left alone; move it away or give another directory",
        file->path);
}

/* Whether the path still leads to the open file. */
static int has_path(const ot_swap_file *file)
{
    struct stat opened, named;
    return fstat(file->fd, &opened) == 0 && lstat(file->path, &named) == 0 && named.st_ino == opened.st_ino &&
           named.st_dev == opened.st_dev;
}

/* Opens and locks the file. The owner before removes the path while it still holds the lock, so a lock can be
 * won on a file that has no name any more: then the path is opened anew. */
static ot_status open_locked(ot_swap_file *file)
{
    for (;;) {
        int direct;
        struct stat named;
        int exists = lstat(file->path, &named) == 0;
        if (exists && !S_ISREG(named.st_mode)) /* a folder, link or device: opening it may act */
            return refuse_foreign(file);
        /* Without O_CREAT where it exists: of another user's file in a folder like /tmp, fs.protected_regular refuses
         * that even to root. */
        ot_status status =
            ot_file_open(file->path, O_RDWR | O_NOFOLLOW | (exists ? 0 : O_CREAT), &file->fd, &direct);
        if (status != OT_OK && exists && lstat(file->path, &named) != 0 && errno == ENOENT)
            continue; /* removed in between */
        if (status != OT_OK && exists && named.st_uid != geteuid())
            return ot_fail(OT_ERR_IO, "%s; it is user %u's: have it removed, or give another directory",
                           ot_error_text(), (unsigned)named.st_uid);
        OT_TRY(status);
        OT_TRY(take_lock(file));
        if (has_path(file))
            return OT_OK;
        close(file->fd);
        file->fd = -1;
    }
}

/* With the lock held: is it a file of ours, and how much space can it have? */
static ot_status take_over(ot_swap_file *file)
{
    struct stat facts;
    swap_header header;
    int ours;
    if (fstat(file->fd, &facts) != 0)
        return ot_fail(OT_ERR_IO, "cannot stat %s: %s", file->path, strerror(errno));
    OT_TRY(read_header(file, (uint64_t)facts.st_size, &header, &ours));
    if (!ours || !S_ISREG(facts.st_mode))
        return refuse_foreign(file);
    file->capacity_bytes = file->directory.free_bytes + (uint64_t)facts.st_blocks * 512;
    if (facts.st_size == 0)
        return OT_OK;
    char size[OT_SIZE_TEXT_BYTES];
    file->orphan_bytes = (uint64_t)facts.st_size;
    if (header.checksum == header_checksum(&header))
        file->orphan_layout = header.layout_hash;
    ot_log(OT_LOG_INFO, "%s: took over %s left by process %" PRId64 ", which is gone", file->path,
           ot_format_size(file->orphan_bytes, size), header.owner_pid);
    return OT_OK;
}

ot_status ot_swap_open(const char *directory, ot_swap_file *out)
{
    *out = (ot_swap_file){.fd = -1};
    OT_TRY(ot_dir_probe(directory, &out->directory));
    if (out->directory.is_ram)
        return ot_fail(OT_ERR_USAGE,
                       "%s is on %s, which is memory and no drive; give a directory on the NVMe drive",
                       directory, out->directory.filesystem);
    if (out->directory.is_network)
        ot_log(OT_LOG_WARNING, "%s is on %s: a local NVMe drive is many times faster", directory,
               out->directory.filesystem);
    OT_TRY(ot_path_format(out->path, "%s/%s", directory, OT_STORE_FILE_NAME));
    ot_status status = open_locked(out);
    if (status == OT_OK)
        status = take_over(out);
    if (status != OT_OK && out->fd >= 0) {
        close(out->fd); /* not ours: it stays as it is */
        out->fd = -1;
    }
    return status;
}

static ot_status write_header(const ot_swap_file *file, const ot_swap_identity *identity, uint64_t bytes)
{
    unsigned char *page = aligned_alloc(OT_PAGE_BYTES, OT_SWAP_HEADER_BYTES);
    if (page == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for a page");
    swap_header header = {
        .version = HEADER_VERSION,
        .index = identity->index,
        .count = identity->count,
        .layout_hash = identity->layout_hash,
        .file_bytes = bytes,
        .owner_pid = getpid(),
        .owner_since = time(NULL),
    };
    memcpy(header.magic, header_magic, sizeof header_magic);
    memcpy(header.uuid, identity->uuid, sizeof header.uuid);
    if (gethostname(header.owner_host, sizeof header.owner_host - 1) != 0)
        header.owner_host[0] = '\0';
    header.checksum = header_checksum(&header);
    memset(page, 0, OT_SWAP_HEADER_BYTES);
    memcpy(page, &header, sizeof header);
    ot_status status = ot_file_write(file->fd, file->path, 0, page, OT_SWAP_HEADER_BYTES);
    free(page);
    return status;
}

ot_status ot_swap_allocate(ot_swap_file *file, const ot_swap_identity *identity, uint64_t bytes)
{
    int reuse = file->orphan_bytes == bytes && file->orphan_layout == identity->layout_hash;
    if (file->orphan_bytes > 0 && !reuse && ftruncate(file->fd, 0) != 0)
        return ot_fail(OT_ERR_IO, "cannot empty %s: %s", file->path, strerror(errno));
    if (!reuse)
        ot_file_disable_cow(file->fd);
    OT_TRY(write_header(file, identity, bytes));
    return ot_file_allocate(file->fd, file->path, bytes);
}

void ot_swap_close(ot_swap_file *file)
{
    if (file->fd < 0)
        return;
    /* Before the lock goes: see open_locked. A folder that was renamed in the meantime may have left its name to another,
     * with a file of another's in it. */
    if (has_path(file))
        unlink(file->path);
    close(file->fd);
    file->fd = -1;
}
