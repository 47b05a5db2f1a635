#include "tools/scratch.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static const char home[] = "/dev/shm", prefix[] = "offtrain-mpi-";

static int remove_entry(const char *path, const struct stat *facts, int kind, struct FTW *where)
{
    (void)facts;
    (void)kind;
    (void)where;
    (void)remove(path);
    return 0;
}

static void remove_tree(const char *path)
{
    enum { FOLDERS_OPEN = 16 };
    (void)nftw(path, remove_entry, FOLDERS_OPEN, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}

/* The folder, locked; -1 where it is another user's, gone, or in use. */
static int take(const char *path)
{
    struct stat held, named;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    if (fd < 0)
        return -1;
    /* Between its making and its lock another process may have swept it. */
    if (fstat(fd, &held) == 0 && held.st_uid == geteuid() && flock(fd, LOCK_EX | LOCK_NB) == 0 &&
        lstat(path, &named) == 0 && named.st_ino == held.st_ino)
        return fd;
    close(fd);
    return -1;
}

static void sweep(void)
{
    DIR *folder = opendir(home);
    if (folder == NULL)
        return;
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        char path[OT_SCRATCH_BYTES];
        if (strncmp(entry->d_name, prefix, sizeof prefix - 1) != 0 ||
            snprintf(path, sizeof path, "%s/%s", home, entry->d_name) >= OT_SCRATCH_BYTES)
            continue;
        int fd = take(path);
        if (fd < 0)
            continue;
        remove_tree(path);
        close(fd);
    }
    closedir(folder);
}

void ot_scratch_open(ot_scratch *out)
{
    enum { TRIES = 8 };
    sweep();
    *out = (ot_scratch){.fd = -1};
    for (int tries = 0; tries < TRIES && out->fd < 0; tries++) {
        snprintf(out->path, sizeof out->path, "%s/%sXXXXXX", home, prefix);
        if (mkdtemp(out->path) == NULL)
            break;
        out->fd = take(out->path);
    }
    if (out->fd < 0)
        out->path[0] = '\0';
}

void ot_scratch_close(ot_scratch *scratch)
{
    if (scratch->fd < 0)
        return;
    remove_tree(scratch->path);
    close(scratch->fd);
    scratch->fd = -1;
}
