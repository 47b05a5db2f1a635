/* --ranks as a user runs it: processes under mpirun that train one model, a checkpoint that any number of ranks takes up, and
 * an end that is told when one of them dies, hangs, or is asked to stop. */
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "io/clock.h"
#include "tests/support/root.h"
#include "tests/support/test.h"

#define RUN                                                                                                  \
    OT_COMMAND                                                                                               \
    " --model tiny --device cpu --seq-len 32 --global-batch-size 12 --lr 1e-3 --lr-scheduler constant"       \
    " --warmup-steps 0 --threads 1 -q -o %s"
#define FOR_EVER RUN " --max-steps 1000000 --save-steps 1000000"

static process group;

static int close_all(void **state)
{
    process_kill(&group);
    return close_root(state);
}

static run_end must_train(const char *flags)
{
    process_run(&result, RUN " %s", root, flags);
    run_end done = must_end_well(&result);
    assert_int_equal(count_lines(result.out), 1); /* of all ranks together */
    return done;
}

static void ranks_train_one_model(void **state)
{
    (void)state;
    char flags[128];
    run_end alone = must_train("--precision fp32 --max-steps 20");
    for (int ranks = 2; ranks <= 4; ranks++) {
        snprintf(flags, sizeof flags, "--precision fp32 --max-steps 20 --%s %d",
                 ranks == 3 ? "gpus" : "ranks", ranks);
        run_end several = must_train(flags);
        double difference = several.loss - alone.loss;
        if (difference > 1e-5 * alone.loss || difference < -1e-5 * alone.loss)
            fail_msg("%d ranks: loss %.9g, expected %.9g", ranks, several.loss, alone.loss);
    }
}

static void placement_changes_nothing(void **state)
{
    (void)state;
    run_end first = must_train("--ranks 3 --max-steps 3");
    char path[PATH_MAX];
    for (int zero = 1; zero <= 3; zero++) {
        char flags[256];
        snprintf(flags, sizeof flags,
                 "--ranks 3 --max-steps 3 --run-name nvme-%d --place weights=nvme states=nvme grads=nvme "
                 "acts=nvme --prefetch-depth 1 --zero %d",
                 zero, zero);
        run_end other = must_train(flags);
        assert_string_equal(first.hash, other.hash);
        assert_true(first.loss == other.loss);
    }
    for (int rank = 1; rank < 3; rank++) {
        snprintf(path, sizeof path, "%s/nvme-3/rank-%d", root, rank);
        assert_int_not_equal(access(path, F_OK), 0);
    }
}

static void any_number_of_ranks_takes_up_a_checkpoint(void **state)
{
    (void)state;
    char flags[256];
    run_end saved = must_train("--ranks 2 --max-steps 4 --save-steps 4 --run-name saved");
    for (int ranks = 1; ranks <= 4; ranks++) {
        snprintf(flags, sizeof flags, "--ranks %d --max-steps 4 --resume %s/saved --run-name again-%d", ranks,
                 root, ranks);
        assert_string_equal(must_train(flags).hash, saved.hash);
        assert_int_equal(count_lines(result.err), 1); /* that it goes on, said by one of them */
    }
    /* With the same number it is as if nothing had been. */
    run_end whole = must_train("--ranks 2 --max-steps 6");
    snprintf(flags, sizeof flags,
             "--ranks 2 --max-steps 6 --resume %s/saved --run-name more --allow-changes total_steps", root);
    assert_string_equal(must_train(flags).hash, whole.hash);
}

/* Moments of rows and columns, and of 8 bits: with the same number of ranks a resumed run is as one that was not stopped. */
static void any_moments_go_on(void **state)
{
    (void)state;
    static const char *const moments[] = {"--optim adafactor --precision fp32", "--state-dtype int8"};
    for (int i = 0; i < 2; i++) {
        char flags[512];
        snprintf(flags, sizeof flags, "--ranks 2 %s --max-steps 5", moments[i]);
        run_end whole = must_train(flags);
        snprintf(flags, sizeof flags, "--ranks 2 %s --max-steps 3 --save-steps 3 --run-name moments-%d",
                 moments[i], i);
        must_train(flags);
        snprintf(flags, sizeof flags,
                 "--ranks 2 %s --max-steps 5 --resume %s/moments-%d --allow-changes total_steps", moments[i],
                 root, i);
        assert_string_equal(must_train(flags).hash, whole.hash);
    }
}

/* The process of a rank: mpirun's child with that rank in its environment. */
static pid_t find_rank(const char *name, int rank)
{
    char line[512];
    long pid = 0;
    snprintf(line, sizeof line,
             "for p in $(pgrep -f 'run-name %s '); do tr '\\0' '\\n' </proc/$p/environ | "
             "grep -qx OMPI_COMM_WORLD_RANK=%d && echo $p; done 2>/dev/null",
             name, rank);
    FILE *found = popen(line, "r");
    assert_non_null(found);
    assert_int_equal(fscanf(found, "%ld", &pid), 1);
    pclose(found);
    return (pid_t)pid;
}

/* Starts a run that would not end, and waits until it has made steps. */
static void start(const char *name, const char *flags)
{
    char path[PATH_MAX];
    struct stat facts;
    snprintf(path, sizeof path, "%s/%s/metrics.jsonl", root, name);
    process_start(&group, FOR_EVER " --run-name %s %s", root, name, flags);
    int64_t limit = ot_clock_ns() + 60 * INT64_C(1000000000);
    while (stat(path, &facts) != 0 || facts.st_size == 0) {
        assert_true(ot_clock_ns() < limit && process_runs(&group));
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
}

static void a_killed_rank_ends_the_group(void **state)
{
    (void)state;
    for (int rank = 0; rank < 3; rank++) {
        char name[32], text[64];
        snprintf(name, sizeof name, "killed-%d", rank);
        start(name, "--ranks 3");
        pid_t pid = find_rank(name, rank);
        int64_t began = ot_clock_ns();
        kill(pid, SIGKILL);
        process_wait(&group, &result);
        assert_true(ot_clock_ns() - began < 10 * INT64_C(1000000000));
        assert_int_not_equal(result.code, 0);
        snprintf(text, sizeof text, "rank %d has died (process %d)", rank, (int)pid);
        expect_in(result.err, text);
    }
}

static void a_rank_that_hangs_is_named(void **state)
{
    (void)state;
    start("hung", "--ranks 2 --rank-timeout 2");
    pid_t pid = find_rank("hung", 1);
    kill(pid, SIGSTOP);
    process_wait(&group, &result);
    assert_int_equal(result.code, 8);
    expect_in(result.err, "rank 0 of 2, step ");
    expect_in(result.err, "waited 2 s for rank 1");
    for (int tries = 0; kill(pid, 0) == 0; tries++) {
        assert_true(tries < 500);
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
}

static void a_stop_is_a_clean_end_of_all(void **state)
{
    (void)state;
    static const int signals[] = {SIGINT, SIGTERM}, codes[] = {130, 143};
    for (int i = 0; i < 2; i++) {
        char name[32], path[PATH_MAX];
        snprintf(name, sizeof name, "stopped-%d", i);
        start(name, "--ranks 3");
        process_signal(&group, signals[i]);
        process_wait(&group, &result);
        assert_int_equal(result.code, codes[i]);
        snprintf(path, sizeof path, "%s/%s/latest", root, name);
        assert_int_equal(access(path, F_OK), 0);
    }
}

static void what_makes_no_sense_is_refused(void **state)
{
    (void)state;
    assert_int_equal(process_run(&result, RUN " --ranks 5 --max-steps 1", root), 2);
    expect_in(result.err, "--global-batch-size 12 is no multiple of --ranks 5");
    assert_int_equal(process_run(&result, RUN " --ranks 2 --zero 2 --optim adafactor --max-steps 1", root),
                     2);
    expect_in(result.err, "--zero 2: --optim adafactor measures whole gradients");
    assert_int_equal(process_run(&result, OT_COMMAND " eval --model tiny --ranks 2"), 2);
    expect_in(result.err, "eval runs on one rank");
    assert_int_equal(
        process_run(&result, "mpirun --allow-run-as-root --oversubscribe -n 2 " RUN " --ranks 3", root), 2);
    expect_in(result.err, "--ranks 3, but the launcher has started 2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_train_one_model),
        cmocka_unit_test(placement_changes_nothing),
        cmocka_unit_test(any_number_of_ranks_takes_up_a_checkpoint),
        cmocka_unit_test(any_moments_go_on),
        cmocka_unit_test(a_killed_rank_ends_the_group),
        cmocka_unit_test(a_rank_that_hangs_is_named),
        cmocka_unit_test(a_stop_is_a_clean_end_of_all),
        cmocka_unit_test(what_makes_no_sense_is_refused),
    };
    return cmocka_run_group_tests(tests, open_root, close_all);
}
