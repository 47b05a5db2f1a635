/* The command on systems that refuse it something: `bench nvme` stands for every command with an NVMe store.
 * The kernel itself does the refusing, through tests/support/deny. Expected are the right exit code, one line
 * that says what is wrong and what to do, and nothing left behind. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/process.h"
#include "tests/support/test.h"
#include "tests/support/tree.h"

#define BENCH                                                                                                \
    OT_COMMAND " bench nvme --size 128M --chunk 16M --seconds 0.1 --pattern write --io-depth 8 --io-block 1M"
#define LONG_BENCH                                                                                           \
    OT_COMMAND " bench nvme --size 128M --chunk 16M --seconds 60 --pattern mixed --io-depth 8 --io-block 1M"

enum { SWAP_BYTES = 128 << 20, SKIP = 77, NOT_STARTED = 126, NOT_FOUND = 127 };

typedef struct fixture {
    char *folder;
    char swap[PATH_MAX]; /* the store's file in it */
    char mounted[PATH_MAX];
    process first;
    outcome o;
} fixture;

/* What this machine does without any fault of ours: a test adds to that. */
static struct {
    int has_uring;
    int warnings; /* at most the one about memlock */
} plain;

static int is_on_tmpfs(const char *path)
{
    struct statfs fs;
    return statfs(path, &fs) == 0 && fs.f_type == TMPFS_MAGIC;
}

static void sleep_ms(long ms)
{
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

static int set_up(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    f->folder = tree_open();
    assert_in_range(snprintf(f->swap, sizeof f->swap, "%s/offtrain.swap", f->folder), 1, sizeof f->swap - 1);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    process_kill(&f->first);
    for (int tries = 0;
         f->mounted[0] != '\0' && process_run(&f->o, "umount %s", f->mounted) != 0 && tries < 100; tries++)
        sleep_ms(50); /* a killed process lets go a moment later */
    chmod(f->folder, 0700);
    tree_close(f->folder);
    free(f);
    return 0;
}

static int entries(const char *folder)
{
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    int count = -2; /* . and .. */
    while (readdir(dir) != NULL)
        count++;
    closedir(dir);
    return count;
}

static void assert_says(const char *text, const char *word)
{
    if (strstr(text, word) == NULL)
        fail_msg("'%s' is missing in: %s", word, text);
}

/* A run that worked, with `lines` more on stderr than without the fault, and left nothing behind. */
static void assert_worked(const fixture *f, const char *folder, int lines)
{
    if (f->o.code == SKIP)
        skip();
    if (f->o.code != 0 || count_lines(f->o.err) != lines)
        fail_msg("exit code %d, %d lines instead of %d: %s", f->o.code, count_lines(f->o.err), lines,
                 f->o.err);
    assert_says(f->o.out, "\nbest: ");
    assert_int_equal(entries(folder), 0);
}

/* A run that ended with `code`, nothing on stdout and one more line on stderr than warnings. */
static void assert_refused(const fixture *f, int code, const char *word)
{
    if (f->o.code == SKIP)
        skip();
    if (f->o.code != code || count_lines(f->o.err) != 1)
        fail_msg("exit code %d instead of %d, with: %s", f->o.code, code, f->o.err);
    assert_memory_equal(f->o.err, "offtrain: ", 10);
    assert_says(f->o.err, word);
    assert_string_equal(f->o.out, "");
}

/* Starts a long run in the background and waits until it has all its space, and so its header. */
static void start_first(fixture *f, const char *more)
{
    struct stat facts;
    process_start(&f->first, LONG_BENCH " --nvme %s %s", f->folder, more);
    for (int ms = 0; stat(f->swap, &facts) != 0 || facts.st_size <= SWAP_BYTES; ms += 2) {
        if (!process_runs(&f->first) || ms > 60000)
            fail_msg("the first run does not get its file");
        sleep_ms(2);
    }
}

static void end_first(fixture *f, int number, int code)
{
    process_signal(&f->first, number);
    process_wait(&f->first, &f->o);
    if (f->o.code != code)
        fail_msg("exit code %d instead of %d: %s", f->o.code, code, f->o.err);
}

/* ---- refused by the kernel ---- */

static void works_where_nothing_is_refused(void **state)
{
    fixture *f = *state;
    process_run(&f->o, BENCH " --nvme %s", f->folder);
    plain.has_uring = strncmp(f->o.out, "io_uring, 128 MiB ", 18) == 0;
    plain.warnings = count_lines(f->o.err);
    assert_in_range(plain.warnings, 0, 1);
    assert_worked(f, f->folder, plain.warnings);
    if (plain.warnings == 1 && plain.has_uring)
        assert_says(f->o.err, "memlock");
}

static void goes_on_with_threads_where_io_uring_is_denied(void **state)
{
    fixture *f = *state;
    static const struct {
        const char *call, *code, *cause;
    } cases[] = {
        {"io_uring_setup", "EPERM", "seccomp"},      {"io_uring_setup", "ENOSYS", "the kernel"},
        {"io_uring_setup", "EINVAL", "the kernel"},  {"io_uring_setup", "ENOMEM", "memlock"},
        {"io_uring_setup", "EOPNOTSUPP", "sandbox"}, {"io_uring_register", "EPERM", "seccomp"},
        {"io_uring_enter", "EPERM", "seccomp"},      {"io_uring_enter", "ENOSYS", "the kernel"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        process_run(&f->o, OT_DENY " %s=%s -- " BENCH " --nvme %s", cases[i].call, cases[i].code, f->folder);
        assert_worked(f, f->folder, 1);
        assert_memory_equal(f->o.err, "warning: io_uring ", 18);
        assert_says(f->o.err, cases[i].code);
        assert_says(f->o.err, cases[i].cause);
        assert_says(f->o.err, "threads");
        assert_memory_equal(f->o.out, "threads, 128 MiB ", 17);
    }
}

static void goes_on_without_registered_buffers(void **state)
{
    fixture *f = *state;
    if (!plain.has_uring)
        skip();
    static const char *const codes[] = {"ENOMEM", "EPERM", "EOPNOTSUPP"};
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        process_run(&f->o, OT_DENY " register-buffers=%s -- " BENCH " --nvme %s", codes[i], f->folder);
        assert_worked(f, f->folder, 1);
        assert_memory_equal(f->o.err, "warning: io_uring: buffers are not registered", 45);
        assert_says(f->o.err, codes[i]);
        assert_says(f->o.err, i == 0 ? "memlock" : "; ");
        assert_memory_equal(f->o.out, "io_uring, ", 10);
    }
}

/* Kernels since 5.12 charge the rings to the memory cgroup, and only the buffers to memlock. */
static void works_under_a_small_memlock_limit(void **state)
{
    fixture *f = *state;
    if (process_run(&f->o, OT_DENY " memlock=64K -- grep CapEff /proc/self/status") == SKIP)
        skip();
    unsigned long long capabilities;
    assert_int_equal(sscanf(f->o.out, "CapEff: %llx", &capabilities), 1);
    assert_int_equal(capabilities >> 14 & 1, 0); /* CAP_IPC_LOCK, after an exec */
    process_run(&f->o, OT_DENY " memlock=64K -- " BENCH " --nvme %s", f->folder);
    int lines = count_lines(f->o.err);
    assert_in_range(lines, 0, 1);
    assert_worked(f, f->folder, lines);
    if (lines == 1)
        assert_says(f->o.err, "memlock");
}

static void goes_on_without_direct_io(void **state)
{
    fixture *f = *state;
    static const char *const codes[] = {"EINVAL", "EOPNOTSUPP"};
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        process_run(&f->o, OT_DENY " open-direct=%s -- " BENCH " --nvme %s", codes[i], f->folder);
        assert_worked(f, f->folder, plain.warnings + 1);
        assert_says(f->o.err, "refuses O_DIRECT");
        assert_says(f->o.err, codes[i]);
    }
}

static void everything_refused_at_once_still_works(void **state)
{
    fixture *f = *state;
    process_run(&f->o,
                OT_DENY " io_uring_setup=EPERM open-direct=EINVAL fallocate=EOPNOTSUPP memlock=0 -- " BENCH
                        " --nvme %s",
                f->folder);
    assert_worked(f, f->folder, 2);
    assert_says(f->o.err, "io_uring_setup: EPERM");
    assert_says(f->o.err, "refuses O_DIRECT");

    /* Buffers are of no interest to a ring that is not used. */
    process_run(&f->o, OT_DENY " io_uring_enter=EPERM register-buffers=ENOMEM -- " BENCH " --nvme %s",
                f->folder);
    assert_worked(f, f->folder, 1);
}

/* ---- no space ---- */

static void says_need_and_have_where_space_is_missing(void **state)
{
    fixture *f = *state;
    static const char *const codes[] = {"ENOSPC", "EDQUOT"};
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        process_run(&f->o, OT_DENY " fallocate=%s -- " BENCH " --nvme %s", codes[i], f->folder);
        assert_refused(f, 6, "cannot allocate 128.00 MiB");
        assert_says(f->o.err, f->folder);
        assert_says(f->o.err, " are free there");
        assert_int_equal(entries(f->folder), 0);
    }
    process_run(&f->o, OT_COMMAND " bench nvme --size 1000T --nvme %s", f->folder);
    assert_refused(f, 6, "needs 1000.00 TiB");
    assert_int_equal(entries(f->folder), 0);
}

/* A small file system of our own, in a file in the fixture's folder. */
static void mount_image(fixture *f, const char *size)
{
    char path[PATH_MAX];
    assert_in_range(snprintf(path, sizeof path, "%s/mounted", f->folder), 1, sizeof path - 1);
    assert_int_equal(mkdir(path, 0700), 0);
    if (geteuid() != 0 || process_run(&f->o, "truncate -s %s %s/image", size, f->folder) != 0 ||
        process_run(&f->o, "mkfs.ext4 -q -F -m 0 %s/image", f->folder) != 0 ||
        process_run(&f->o, "mount -o loop %s/image %s", f->folder, path) != 0)
        skip();
    memcpy(f->mounted, path, sizeof path);
    assert_int_equal(process_run(&f->o, "rmdir %s/lost+found", path), 0);
}

static void refuses_a_small_drive(void **state)
{
    fixture *f = *state;
    mount_image(f, "64M");
    process_run(&f->o, BENCH " --nvme %s", f->mounted);
    assert_refused(f, 6, "needs 128.00 MiB");
    assert_says(f->o.err, " MiB are free for ");
    assert_says(f->o.err, f->mounted);
    assert_int_equal(entries(f->mounted), 0);

    /* Two folders on it do not have its space twice. */
    assert_int_equal(process_run(&f->o, "mkdir %s/a %s/b", f->mounted, f->mounted), 0);
    process_run(&f->o, BENCH " --nvme %s/a %s/b", f->mounted, f->mounted);
    assert_refused(f, 6, "needs 512.");
    assert_int_equal(process_run(&f->o, "rmdir %s/a %s/b", f->mounted, f->mounted), 0);
    assert_int_equal(process_run(&f->o, "mount -o remount,ro %s", f->mounted), 0);
    process_run(&f->o, BENCH " --nvme %s", f->mounted);
    assert_refused(f, 6, "Read-only file system");
}

/* The space is the store's from the start: what others fill meanwhile is the rest. */
static void a_drive_that_fills_up_meanwhile_does_no_harm(void **state)
{
    fixture *f = *state;
    mount_image(f, "160M");
    process_start(&f->first, BENCH " --seconds 1 --nvme %s", f->mounted);
    char swap[PATH_MAX + 16];
    struct stat facts;
    snprintf(swap, sizeof swap, "%s/offtrain.swap", f->mounted);
    for (int ms = 0; (stat(swap, &facts) != 0 || facts.st_size <= SWAP_BYTES) && ms < 60000; ms++)
        sleep_ms(1);
    assert_int_equal(process_run(&f->o, "dd if=/dev/zero of=%s/ballast bs=1M", f->mounted), 1);
    assert_says(f->o.err, "No space left");
    assert_true(process_runs(&f->first));
    process_wait(&f->first, &f->o);
    assert_int_equal(unlink(strcat(strcpy(swap, f->mounted), "/ballast")), 0);
    assert_worked(f, f->mounted, plain.warnings);
}

/* ---- owners ---- */

static void a_second_run_names_the_first(void **state)
{
    fixture *f = *state;
    char pid[32];
    start_first(f, "");
    snprintf(pid, sizeof pid, "in use by process %d ", f->first.pid);
    for (int i = 0; i < 2; i++) {
        process_run(&f->o, BENCH " --nvme %s", f->folder);
        assert_refused(f, 6, pid);
        assert_true(process_runs(&f->first));
        assert_int_equal(entries(f->folder), 1);
    }
    end_first(f, SIGTERM, 143);
    assert_int_equal(entries(f->folder), 0);
}

static void a_dead_owners_file_is_taken_over(void **state)
{
    fixture *f = *state;
    static const struct {
        const char *size;
        off_t cut; /* the file is cut to this first, as if the owner had died earlier */
    } cases[] = {{"128M", 0}, {"144M", 0}, {"128M", 4096}, {"128M", 1 << 20}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char line[64];
        start_first(f, "");
        snprintf(line, sizeof line, "left by process %d,", f->first.pid);
        end_first(f, SIGKILL, -SIGKILL);
        assert_int_equal(entries(f->folder), 1);
        if (cases[i].cut > 0)
            assert_int_equal(truncate(f->swap, cases[i].cut), 0);
        process_run(&f->o, BENCH " --size %s --nvme %s", cases[i].size, f->folder);
        assert_worked(f, f->folder, plain.warnings + 1);
        assert_says(f->o.err, "took over ");
        assert_says(f->o.err, line);
    }
    tree_write(f->folder, "/offtrain.swap", ""); /* died between creating and writing it */
    process_run(&f->o, BENCH " --nvme %s", f->folder);
    assert_worked(f, f->folder, plain.warnings);
}

static void a_dead_owners_file_is_no_reason_to_miss_an_error(void **state)
{
    fixture *f = *state;
    start_first(f, "");
    end_first(f, SIGKILL, -SIGKILL);
    process_run(&f->o, OT_DENY " fallocate=ENOSPC -- " BENCH " --size 144M --nvme %s", f->folder);
    if (f->o.code == SKIP)
        skip();
    assert_int_equal(f->o.code, 6);
    assert_int_equal(count_lines(f->o.err), 2);
    assert_says(f->o.err, "took over ");
    assert_says(f->o.err, "\nofftrain: cannot allocate 144.00 MiB");
    assert_int_equal(entries(f->folder), 0);
}

/* After a kill the kernel holds the lock until it has taken down the io_uring of the dead; here the test
 * holds it. */
static void a_dead_owners_lock_is_waited_for(void **state)
{
    fixture *f = *state;
    start_first(f, "");
    end_first(f, SIGKILL, -SIGKILL);
    int fd = open(f->swap, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    process_start(&f->first, BENCH " --nvme %s", f->folder);
    sleep_ms(1000);
    assert_true(process_runs(&f->first));
    close(fd);
    process_wait(&f->first, &f->o);
    assert_worked(f, f->folder, plain.warnings + 1);
}

/* A drive with room for one store is free again the moment a run has ended. */
static void space_is_free_when_a_run_has_ended(void **state)
{
    fixture *f = *state;
    struct statfs before, after;
    mount_image(f, "160M");
    assert_int_equal(statfs(f->mounted, &before), 0);
    process_run(&f->o, BENCH " --nvme %s", f->mounted);
    assert_int_equal(statfs(f->mounted, &after), 0);
    assert_worked(f, f->mounted, plain.warnings);
    assert_int_equal(after.f_bavail, before.f_bavail);
    assert_int_equal(process_run(&f->o, "umount %s", f->mounted), 0);
    f->mounted[0] = '\0';
}

/* ---- foreign things of that name ---- */

enum { FOREIGN_BYTES = 100000 };

static void write_foreign(const char *path, unsigned char content[FOREIGN_BYTES], size_t bytes)
{
    for (size_t at = 0; at < bytes; at += 256)
        assert_true(getrandom(content + at, bytes - at < 256 ? bytes - at : 256, 0) > 0);
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, content, bytes), bytes);
    assert_int_equal(close(fd), 0);
}

static void assert_unchanged(const char *path, const unsigned char *content, size_t bytes)
{
    static unsigned char found[FOREIGN_BYTES + 1];
    int fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    assert_int_equal(read(fd, found, sizeof found), bytes);
    assert_memory_equal(found, content, bytes);
    close(fd);
}

static void refuse_foreign(fixture *f)
{
    process_run(&f->o, BENCH " --nvme %s", f->folder);
    assert_refused(f, 6, "is not a store of offtrain: it is left alone");
    assert_says(f->o.err, f->swap);
}

static void foreign_files_are_left_alone(void **state)
{
    fixture *f = *state;
    static unsigned char content[FOREIGN_BYTES];
    static const size_t sizes[] = {FOREIGN_BYTES, 8192, 4096, 4095, 100, 1};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        write_foreign(f->swap, content, sizes[i]);
        refuse_foreign(f);
        assert_unchanged(f->swap, content, sizes[i]);
    }
}

static void other_things_of_that_name_are_left_alone(void **state)
{
    fixture *f = *state;
    static unsigned char content[FOREIGN_BYTES];
    char target[PATH_MAX + 16];
    struct stat facts;
    snprintf(target, sizeof target, "%s/target", f->folder);
    write_foreign(target, content, FOREIGN_BYTES);
    assert_int_equal(symlink(target, f->swap), 0);
    refuse_foreign(f);
    assert_unchanged(target, content, FOREIGN_BYTES);

    assert_int_equal(unlink(target), 0); /* a link to nothing: nothing may appear there */
    refuse_foreign(f);
    assert_int_equal(entries(f->folder), 1);
    assert_int_equal(unlink(f->swap), 0);

    assert_int_equal(mkfifo(f->swap, 0600), 0);
    refuse_foreign(f);
    assert_int_equal(unlink(f->swap), 0);

    assert_int_equal(mkdir(f->swap, 0700), 0);
    tree_write(f->folder, "/offtrain.swap/file", "theirs\n");
    refuse_foreign(f);
    assert_unchanged(strcat(strcpy(target, f->swap), "/file"), (const unsigned char *)"theirs\n", 7);
    assert_int_equal(lstat(f->swap, &facts), 0);
    assert_true(S_ISDIR(facts.st_mode));
}

/* ---- folders ---- */

static void memory_is_no_drive(void **state)
{
    fixture *f = *state;
    if (!is_on_tmpfs("/dev/shm") || access("/dev/shm", W_OK) != 0)
        skip();
    char folder[] = "/dev/shm/offtrain-test-XXXXXX";
    assert_non_null(mkdtemp(folder));
    process_run(&f->o, BENCH " --nvme %s", folder);
    int left = entries(folder);
    rmdir(folder);
    assert_refused(f, 2, "tmpfs");
    assert_says(f->o.err, "memory");
    assert_int_equal(left, 0);
}

static void folders_that_are_none(void **state)
{
    fixture *f = *state;
    process_run(&f->o, BENCH " --nvme %s/none", f->folder);
    assert_refused(f, 6, "/none: No such file or directory");
    tree_write(f->folder, "/file", "text");
    process_run(&f->o, BENCH " --nvme %s/file", f->folder);
    assert_refused(f, 6, "/file is not a folder");
    assert_int_equal(entries(f->folder), 1);
    process_run(&f->o, BENCH " --nvme %s %s/none", f->folder, f->folder); /* the good one is left clean */
    assert_refused(f, 6, "/none: No such file or directory");
    assert_int_equal(entries(f->folder), 1);
}

static void a_folder_without_write_permission(void **state)
{
    fixture *f = *state;
    assert_int_equal(chmod(f->folder, 0555), 0);
    process_run(&f->o, "%s" BENCH " --nvme %s",
                geteuid() == 0 ? "setpriv --reuid 65534 --regid 65534 --clear-groups " : "", f->folder);
    if (f->o.code == NOT_STARTED || f->o.code == NOT_FOUND || strncmp(f->o.err, "setpriv", 7) == 0)
        skip(); /* that user cannot reach the command */
    assert_refused(f, 6, "Permission denied");
    assert_says(f->o.err, f->folder);
}

static void a_folder_given_twice(void **state)
{
    fixture *f = *state;
    process_run(&f->o, BENCH " --nvme %s %s", f->folder, f->folder);
    assert_refused(f, 2, "given twice");
    process_run(&f->o, BENCH " --nvme %s,%s/.", f->folder, f->folder);
    assert_refused(f, 2, "given twice");
    assert_int_equal(entries(f->folder), 0);
}

/* The way to the file of a run, once the folder's name is another's, leads to a file that is none of its own. */
static void a_renamed_folder_takes_no_other_file_with_it(void **state)
{
    fixture *f = *state;
    char moved[PATH_MAX], left[PATH_MAX + 32];
    start_first(f, "");
    assert_in_range(snprintf(moved, sizeof moved, "%s.moved", f->folder), 1, sizeof moved - 1);
    assert_int_equal(rename(f->folder, moved), 0);
    assert_int_equal(mkdir(f->folder, 0700), 0);
    tree_write(f->folder, "/offtrain.swap", "another's");
    end_first(f, SIGTERM, 143);
    assert_int_equal(entries(f->folder), 1);
    snprintf(left, sizeof left, "%s/offtrain.swap", moved);
    assert_int_equal(unlink(left), 0);
    assert_int_equal(rmdir(moved), 0);
}

/* In a folder that all may write to, as /tmp; the kernel's fs.protected_regular goes by its mode and by who the owner is. */
static void root_takes_over_another_users_file(void **state)
{
    fixture *f = *state;
    if (geteuid() != 0)
        skip();
    tree_write(f->folder, "/offtrain.swap", "");
    assert_int_equal(chown(f->swap, 65534, 65534), 0);
    assert_int_equal(chmod(f->folder, 01777), 0);
    process_run(&f->o, BENCH " --nvme %s", f->folder);
    assert_worked(f, f->folder, plain.warnings);
}

static void a_file_size_limit_is_an_error(void **state)
{
    fixture *f = *state;
    process_run(&f->o, "prlimit --fsize=1048144 " BENCH " --nvme %s", f->folder);
    if (f->o.code == NOT_FOUND)
        skip();
    assert_refused(f, 6, "File too large");
    assert_int_equal(entries(f->folder), 0);
}

/* ---- stopped ---- */

static void a_signal_ends_it_cleanly(void **state)
{
    fixture *f = *state;
    static const struct {
        int number, code;
        const char *text;
    } cases[] = {
        {SIGINT, 130, "offtrain: stopped by SIGINT\n"},
        {SIGTERM, 143, "offtrain: stopped by SIGTERM\n"},
        {SIGINT, 130, "offtrain: stopped by SIGINT\n"},
        {SIGTERM, 143, "offtrain: stopped by SIGTERM\n"},
        {SIGHUP, 143, "offtrain: stopped by SIGHUP, the end of the terminal\n"},
    };
    for (int i = 0; i < 5; i++) {
        start_first(f, i < 2 ? "" : "--io threads --checksums");
        sleep_ms(i % 2 == 0 ? 0 : 300); /* while the store is filled, and while it is measured */
        end_first(f, cases[i].number, cases[i].code);
        assert_says(f->o.err, cases[i].text);
        assert_string_equal(f->o.out, "");
        assert_int_equal(entries(f->folder), 0);
    }
}

static void a_second_signal_stops_it_at_once(void **state)
{
    fixture *f = *state;
    start_first(f, "");
    process_signal(&f->first, SIGSTOP);
    process_signal(&f->first, SIGINT);
    process_signal(&f->first, SIGTERM);
    process_signal(&f->first, SIGCONT);
    process_wait(&f->first, &f->o);
    assert_true(f->o.code == 130 || f->o.code == 143);
    assert_int_equal(entries(f->folder), 1);
    process_run(&f->o, BENCH " --nvme %s", f->folder);
    assert_worked(f, f->folder, plain.warnings + 1);
}

/* ---- mistakes ---- */

static void mistakes_end_with_2(void **state)
{
    fixture *f = *state;
    static const struct {
        const char *arguments, *word;
    } cases[] = {
        {"--size 5X", "--size: '5X'"},
        {"--size -1", "--size: "},
        {"--size", "--size needs a value"},
        {"--size 100M", "at least 512 MiB"},
        {"--size 99999999999T", "--size: "},
        {"--size 20T --chunk 1M", "at most 16 TiB"},
        {"--nvme a b c d e f g h i j k l m n o p", "17 directories; at most 16 work"},
        {"--seconds 0", "--seconds: "},
        {"--seconds soon", "--seconds: 'soon'"},
        {"--io-depth 0", "--io-depth: 0 is not in 1 to 256"},
        {"--io-depth 257", "--io-depth: 257 is not in 1 to 256"},
        {"--io-depth 8,", "--io-depth: an empty entry"},
        {"--io-block 3K", "--io-block: 3K is not a multiple of 4K"},
        {"--io-block 128M", "--io-block: 128M is not a multiple of 4K from 4K to 64M"},
        {"--io-block 0", "--io-block: 0 is not"},
        {"--pattern reed", "--pattern: 'reed' is not one of read|write|mixed|all"},
        {"--io ring", "--io: 'ring' is not one of "},
        {"--io-dept 8", "unknown option --io-dept; did you mean --io-depth?"},
        {"--sise=1G", "did you mean --size?"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        process_run(&f->o, OT_COMMAND " bench nvme --nvme %s %s", f->folder, cases[i].arguments);
        assert_refused(f, 2, cases[i].word);
        assert_int_equal(entries(f->folder), 0);
    }
    process_run(&f->o, OT_COMMAND " bench nvme --size 1G");
    assert_refused(f, 2, "--nvme: give a directory");
    process_run(&f->o, OT_COMMAND " bench nvm --nvme %s", f->folder);
    assert_refused(f, 2, "unknown benchmark 'nvm'; did you mean nvme");
    process_run(&f->o, OT_COMMAND " bench");
    assert_refused(f, 2, "bench what?");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(works_where_nothing_is_refused),
        TEST(goes_on_with_threads_where_io_uring_is_denied),
        TEST(goes_on_without_registered_buffers),
        TEST(works_under_a_small_memlock_limit),
        TEST(goes_on_without_direct_io),
        TEST(everything_refused_at_once_still_works),
        TEST(says_need_and_have_where_space_is_missing),
        TEST(refuses_a_small_drive),
        TEST(a_drive_that_fills_up_meanwhile_does_no_harm),
        TEST(a_second_run_names_the_first),
        TEST(a_dead_owners_file_is_taken_over),
        TEST(a_dead_owners_file_is_no_reason_to_miss_an_error),
        TEST(a_dead_owners_lock_is_waited_for),
        TEST(space_is_free_when_a_run_has_ended),
        TEST(foreign_files_are_left_alone),
        TEST(other_things_of_that_name_are_left_alone),
        TEST(memory_is_no_drive),
        TEST(folders_that_are_none),
        TEST(a_folder_without_write_permission),
        TEST(a_folder_given_twice),
        TEST(a_renamed_folder_takes_no_other_file_with_it),
        TEST(root_takes_over_another_users_file),
        TEST(a_file_size_limit_is_an_error),
        TEST(a_signal_ends_it_cleanly),
        TEST(a_second_signal_stops_it_at_once),
        TEST(mistakes_end_with_2),
    };
    /* The folders must be on a drive; where the usual place for temporary files is not, the build folder is.
     */
    const char *folder = getenv("TMPDIR");
    if (is_on_tmpfs(folder != NULL ? folder : "/tmp")) {
        if (is_on_tmpfs(OT_BUILD_FOLDER))
            return SKIP;
        setenv("TMPDIR", OT_BUILD_FOLDER, 1);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
