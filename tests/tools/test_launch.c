/* What --ranks N does around its ranks: an end that is asked for at any moment, failures that are told once and soon, an output that
 * nobody reads, surroundings without ssh or a home, and nothing left behind. */
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "io/clock.h"
#include "tests/support/root.h"
#include "tests/support/test.h"
#include "tests/support/tree.h"

#define RUN                                                                                                  \
    OT_COMMAND                                                                                               \
    " --model tiny --device cpu --seq-len 32 --global-batch-size 12 --threads 1 -q -o %s --ranks 3 %s"
#define FOR_EVER "--max-steps 1000000 --save-steps 1000000 "

static process group;

static int close_all(void **state)
{
    process_kill(&group);
    return close_root(state);
}

static void sleep_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

/* Said by one, and by nobody else; an mpirun that is stopped while it starts may have words of its libraries', which begin with
 * a bracket. */
static void expect_line(const char *part)
{
    int lines = 0;
    expect_in(result.err, part);
    for (const char *at = result.err; at != NULL && *at != '\0'; at = strchr(at, '\n'), at += at != NULL)
        lines += *at != '[';
    if (lines != 1)
        fail_msg("one line is expected: %s", result.err);
}

static void wait_seconds(double limit)
{
    int64_t began = ot_clock_ns();
    process_wait(&group, &result);
    double taken = ot_seconds(ot_clock_ns() - began);
    if (taken > limit)
        fail_msg("%.3g s, expected less than %g", taken, limit);
}

/* Until the shell has become offtrain, which does not end by SIGINT alone any more. */
static void wait_for_handler(void)
{
    char path[64], line[256];
    unsigned long long caught = 0;
    int is_offtrain = 0;
    snprintf(path, sizeof path, "/proc/%d/status", (int)group.pid);
    while (!is_offtrain || (caught >> (SIGINT - 1) & 1) == 0) {
        assert_true(process_runs(&group));
        FILE *file = fopen(path, "r");
        assert_non_null(file);
        while (fgets(line, sizeof line, file) != NULL)
            if (strcmp(line, "Name:\tofftrain\n") == 0)
                is_offtrain = 1;
            else
                (void)sscanf(line, "SigCgt: %llx", &caught);
        fclose(file);
    }
}

/* Starts a run that would not end, and waits until it has made steps. */
static void start(const char *name, const char *flags)
{
    char path[PATH_MAX], all[256];
    struct stat facts;
    snprintf(path, sizeof path, "%s/%s/metrics.jsonl", root, name);
    snprintf(all, sizeof all, FOR_EVER "--run-name %s %s", name, flags);
    process_start(&group, RUN, root, all);
    int64_t limit = ot_clock_ns() + 60 * INT64_C(1000000000);
    while (stat(path, &facts) != 0 || facts.st_size == 0) {
        assert_true(ot_clock_ns() < limit && process_runs(&group));
        sleep_ms(20);
    }
}

/* ---- stopping ---- */

/* Before mpirun is there, before it has ranks, before these have handlers, before they have met. */
static void a_stop_is_never_too_early(void **state)
{
    (void)state;
    static const int delays_ms[] = {0, 5, 10, 20, 30, 40, 60, 80, 120, 200, 400};
    for (size_t i = 0; i < sizeof delays_ms / sizeof *delays_ms; i++) {
        process_start(&group, RUN, root, FOR_EVER);
        wait_for_handler();
        sleep_ms(delays_ms[i]);
        process_signal(&group, i % 2 == 0 ? SIGINT : SIGTERM);
        wait_seconds(20);
        if (result.code != (i % 2 == 0 ? 130 : 143))
            fail_msg("after %d ms: ended with %d: %s", delays_ms[i], result.code, result.err);
        expect_line("offtrain: stopped");
    }
}

/* A rank's process, by its number in its environment. */
static pid_t find_rank(const char *name, int rank)
{
    int pid = 0;
    process_run(&result,
                "bash -c 'for p in $(pgrep -f \"run-name %s \"); do tr \"\\0\" \"\\n\" </proc/$p/environ | "
                "grep -qx OMPI_COMM_WORLD_RANK=%d && echo $p; done' 2>/dev/null",
                name, rank);
    assert_int_equal(sscanf(result.out, "%d", &pid), 1);
    return (pid_t)pid;
}

/* The first asks for what a rank that sleeps never lets happen. */
static void a_second_signal_ends_it_at_once(void **state)
{
    (void)state;
    static const int signals[] = {SIGINT, SIGTERM}, codes[] = {130, 143};
    for (int i = 0; i < 2; i++) {
        char name[32];
        snprintf(name, sizeof name, "twice-%d", i);
        start(name, "");
        pid_t rank = find_rank(name, 1);
        assert_int_equal(kill(rank, SIGSTOP), 0);
        process_signal(&group, signals[i]);
        sleep_ms(500);
        assert_true(process_runs(&group));
        process_signal(&group, signals[i]);
        wait_seconds(5);
        assert_int_equal(result.code, codes[i]);
        expect_in(result.err, "offtrain: stopped");
        for (int tries = 0; kill(rank, 0) == 0; tries++) {
            assert_true(tries < 500);
            sleep_ms(10);
        }
    }
}

/* ---- failures ---- */

static void what_all_refuse_is_told_once(void **state)
{
    (void)state;
    static const struct {
        const char *flags, *text;
        int code;
    } cases[] = {
        {"--gpu-mem 2M", "tiny does not fit", 3},
        {"--data /nowhere/at.all", "offtrain: /nowhere/at.all: No such file or directory", 4},
        {"--seq-len 1000000", "--seq-len: 1000000 tokens; tiny has ", 2},
        {"--resume /nowhere", "--resume: /nowhere is no folder", 5},
        {"--run-name twice-0", "twice-0 is there already; choose another --run-name", 2},
        {"--max-tbw 0 --max-steps 3 --place states=nvme", "offtrain: --max-tbw 0", 3},
        {"--lr 1e30 --precision fp16 --loss-scale 1 --max-steps 5",
         "offtrain: step 2: the loss is not finite", 7},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        process_run(&result, RUN, root, cases[i].flags);
        if (result.code != cases[i].code)
            fail_msg("%s: ended with %d: %s", cases[i].flags, result.code, result.err);
        if (cases[i].code == 3)
            expect_in(result.err, cases[i].text);
        else
            expect_line(cases[i].text);
        assert_null(strstr(result.err, "rank 0"));
        assert_null(strstr(result.err, "mpirun"));
    }
}

/* The one that is told is that of the rank that failed, and not that it is gone. */
static void a_failure_of_one_is_told_once(void **state)
{
    (void)state;
    char from[PATH_MAX], to[PATH_MAX];
    start("moved", "--save-steps 100");
    snprintf(from, sizeof from, "%s/moved", root);
    snprintf(to, sizeof to, "%s/elsewhere", root);
    assert_int_equal(rename(from, to), 0);
    wait_seconds(60);
    assert_int_equal(result.code, 6);
    expect_line("offtrain: rank 0: ");
    assert_null(strstr(result.err, "died"));
}

/* ---- surroundings ---- */

static void an_output_that_nobody_reads_ends_nothing(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 2; ranks++) {
        process_run(&result,
                    "bash -c '" RUN " --progress off --ranks %d | head -1; echo ${PIPESTATUS[0]}' 2>&1", root,
                    "--max-steps 12 --quiet off", ranks);
        expect_in(result.out, "\nofftrain: cannot write the output\n6\n");
        assert_int_equal(count_lines(result.out), 3);
    }
    process_run(&result, "bash -c '" RUN " 2>&1 | head -1; echo ${PIPESTATUS[0]}'", root,
                "--max-steps 12 --quiet off");
    expect_in(result.out, "\n6\n");
}

static void neither_ssh_nor_a_home_is_needed(void **state)
{
    (void)state;
    assert_int_equal(process_run(&result,
                                 "sh -c 'mkdir %s/bin && ln -s \"$(command -v mpirun)\" %s/bin/mpirun'", root,
                                 root),
                     0);
    process_run(&result, "env -i ASAN_OPTIONS=$ASAN_OPTIONS PATH=%s/bin " RUN, root, root, "--max-steps 1");
    must_end_well(&result);
    assert_string_equal(result.err, "");
    process_run(&result, "env -i ASAN_OPTIONS=$ASAN_OPTIONS PATH=/nowhere " RUN, root, "--max-steps 1");
    assert_int_equal(result.code, 8);
    expect_line("mpirun cannot be started: No such file or directory");
}

/* ---- what is left ---- */

/* What MPI makes lies in a folder that is gone with the run, or with the next one where it was killed; another's, which is held,
 * stays. */
static void what_mpi_leaves_is_swept(void **state)
{
    (void)state;
    char held[] = "/dev/shm/offtrain-mpi-heldXXXXXX", dead[] = "/dev/shm/offtrain-mpi-deadXXXXXX";
    if (access("/dev/shm", W_OK) != 0)
        skip();
    assert_true(mkdtemp(held) != NULL && mkdtemp(dead) != NULL);
    int fd = open(held, O_RDONLY | O_DIRECTORY);
    assert_int_equal(flock(fd, LOCK_SH), 0);
    tree_write(dead, "/ompi.here/segment", "of a dead one");
    start("segments", "");
    process_run(&result, "sh -c 'grep /dev/shm/ /proc/$(pgrep -f \"run-name segment[s] \" | tail -1)/maps'");
    expect_in(result.out, "/dev/shm/offtrain-mpi-");
    assert_null(strstr(result.out, "/dev/shm/vader"));
    char rank[PATH_MAX]; /* for what it has on drives, which is nothing here */
    snprintf(rank, sizeof rank, "%s/segments/rank-1", root);
    assert_int_not_equal(access(rank, F_OK), 0);
    process_signal(&group, SIGINT);
    process_wait(&group, &result);
    int dead_is_there = access(dead, F_OK) == 0, held_is_there = access(held, F_OK) == 0;
    close(fd);
    assert_false(dead_is_there);
    assert_true(held_is_there);
    process_run(&result, RUN, root, "--max-steps 1");
    assert_int_not_equal(access(held, F_OK), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stop_is_never_too_early),
        cmocka_unit_test(a_second_signal_ends_it_at_once),
        cmocka_unit_test(what_all_refuse_is_told_once),
        cmocka_unit_test(a_failure_of_one_is_told_once),
        cmocka_unit_test(an_output_that_nobody_reads_ends_nothing),
        cmocka_unit_test(neither_ssh_nor_a_home_is_needed),
        cmocka_unit_test(what_mpi_leaves_is_swept),
    };
    return cmocka_run_group_tests(tests, open_root, close_all);
}
