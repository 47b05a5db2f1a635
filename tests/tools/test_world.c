/* Ranks in surroundings that users have: started by hand with torchrun's variables, in containers with little shared memory or
 * without sight of each other, with fewer samples than a step takes, and with others who save at the same time. */
#include <dirent.h>
#include <limits.h>
#include <math.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "io/clock.h"
#include "tests/support/root.h"
#include "tests/support/test.h"
#include "tests/support/tree.h"

#define RUN                                                                                                  \
    OT_COMMAND                                                                                               \
    " --model tiny --device cpu --seq-len 32 --global-batch-size 12 --lr 1e-3 --lr-scheduler constant"       \
    " --warmup-steps 0 --threads 1 -q -o %s %s"

enum { RANKS = 3, SKIP = 77 };

static process ranks[RANKS];
static outcome results[RANKS];

static int close_all(void **state)
{
    for (int rank = 0; rank < RANKS; rank++)
        process_kill(&ranks[rank]);
    return close_root(state);
}

static run_end must_train(const char *flags)
{
    process_run(&result, RUN, root, flags);
    return must_end_well(&result);
}

/* ---- started by hand ---- */

static int free_port(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, bytes), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &bytes), 0);
    close(fd);
    return ntohs(at.sin_port);
}

static void start_by_hand(int count, const char *flags)
{
    int port = free_port();
    for (int rank = 0; rank < count; rank++)
        process_start(&ranks[rank],
                      "env MASTER_ADDR=localhost MASTER_PORT=%d RANK=%d LOCAL_RANK=%d WORLD_SIZE=%d " RUN,
                      port, rank, rank, count, root, flags);
}

static void wait_for_all(int count)
{
    for (int rank = 0; rank < count; rank++)
        process_wait(&ranks[rank], &results[rank]);
}

static void processes_of_any_launcher_meet(void **state)
{
    (void)state;
    run_end expected = must_train("--ranks 3 --max-steps 3");
    start_by_hand(3, "--max-steps 3 --zero 2");
    wait_for_all(3);
    assert_string_equal(must_end_well(&results[0]).hash, expected.hash);
    for (int rank = 1; rank < 3; rank++) {
        assert_int_equal(results[rank].code, 0);
        assert_string_equal(results[rank].out, "");
    }
}

/* Starts a run that would not end, and waits until it has made steps. */
static void start_for_ever(const char *name, const char *flags)
{
    char path[PATH_MAX], all[256];
    struct stat facts;
    snprintf(path, sizeof path, "%s/%s/metrics.jsonl", root, name);
    snprintf(all, sizeof all, "--max-steps 1000000 --save-steps 1000000 --run-name %s %s", name, flags);
    start_by_hand(3, all);
    int64_t limit = ot_clock_ns() + 60 * INT64_C(1000000000);
    while (stat(path, &facts) != 0 || facts.st_size == 0) {
        assert_true(ot_clock_ns() < limit && process_runs(&ranks[0]));
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
}

/* There is no launcher that would end the others: they do so themselves. */
static void a_killed_rank_ends_the_others(void **state)
{
    (void)state;
    start_for_ever("killed", "");
    int64_t began = ot_clock_ns();
    process_signal(&ranks[1], SIGKILL);
    wait_for_all(3);
    assert_true(ot_clock_ns() - began < 10 * INT64_C(1000000000));
    assert_int_equal(results[1].code, -SIGKILL);
    for (int rank = 0; rank < 3; rank += 2)
        assert_int_equal(results[rank].code, 8);
    if (strstr(results[0].err, "rank 1 has died") == NULL)
        expect_in(results[2].err, "rank 1 has died"); /* one may have seen the other end first */
}

static void a_rank_that_sleeps_is_named(void **state)
{
    (void)state;
    start_for_ever("asleep", "--rank-timeout 2");
    process_signal(&ranks[2], SIGSTOP);
    for (int rank = 0; rank < 2; rank++) {
        process_wait(&ranks[rank], &results[rank]);
        assert_int_equal(results[rank].code, 8);
    }
    /* The first to have waited says for whom, the other whether that was itself. */
    int teller = strstr(results[0].err, "waited 2 s for rank 2") == NULL, other = !teller;
    expect_in(results[teller].err, teller == 0 ? "rank 0 of 3, step " : "rank 1 of 3, step ");
    expect_in(results[teller].err, "waited 2 s for rank 2");
    if (strstr(results[other].err, "waited 2 s for rank 2") == NULL)
        expect_in(results[other].err, teller == 0 ? "rank 0 has failed" : "rank 1 has failed");
    process_kill(&ranks[2]);
}

static void a_stop_of_one_is_a_clean_end_of_all(void **state)
{
    (void)state;
    char path[PATH_MAX];
    start_for_ever("stopped", "");
    process_signal(&ranks[2], SIGTERM);
    wait_for_all(3);
    assert_int_equal(results[0].code, 143);
    snprintf(path, sizeof path, "%s/stopped/latest", root);
    assert_int_equal(access(path, F_OK), 0);
}

/* Nobody else comes: the first waits to be called, the last for the first to answer. */
static void a_stop_ends_the_meeting(void **state)
{
    (void)state;
    for (int rank = 0; rank < 2; rank++) {
        process_start(&ranks[rank], "env MASTER_ADDR=localhost MASTER_PORT=%d RANK=%d WORLD_SIZE=3 " RUN,
                      free_port(), rank, root, "--max-steps 1");
        nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
        int64_t began = ot_clock_ns();
        process_signal(&ranks[rank], SIGINT);
        process_wait(&ranks[rank], &results[rank]);
        assert_true(ot_clock_ns() - began < 5 * INT64_C(1000000000));
        assert_int_equal(results[rank].code, 130);
        expect_in(results[rank].err, "stopped by SIGINT");
    }
}

/* As by srun, of which MPI has not been told. */
static void a_world_that_mpi_does_not_find_is_told(void **state)
{
    (void)state;
    process_run(&result, "env SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=0 " RUN, root, "--max-steps 1");
    assert_int_equal(result.code, 8);
    expect_in(result.err,
              "the launcher has started 2 ranks, of which MPI finds 1; with srun either --mpi=pmix");
}

/* Ranks that would each train alone. */
static void an_incomplete_world_is_told(void **state)
{
    (void)state;
    static const char *const worlds[][2] = {
        {"RANK=3 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29511", "RANK=3 with WORLD_SIZE=2"},
        {"WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29511", "WORLD_SIZE=2, but no RANK"},
        {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1", "no MASTER_ADDR and MASTER_PORT"},
        {"RANK=0 WORLD_SIZE=2 MASTER_PORT=29511", "no MASTER_ADDR and MASTER_PORT"},
        {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=99999", "MASTER_PORT of 1 to 65535"},
        {"WORLD_SIZE=abc", "WORLD_SIZE=abc: expected 1 to 64"},
        {"WORLD_SIZE=0", "WORLD_SIZE=0: expected 1 to 64"},
    };
    for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++) {
        process_run(&result, "env %s " RUN, worlds[i][0], root, "--max-steps 1");
        assert_int_equal(result.code, 2);
        expect_in(result.err, worlds[i][1]);
    }
    must_train("--max-steps 1");
    static const char *const commands[] = {"eval", "generate --prompt x", "tune"};
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        process_run(&result,
                    "env RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29511 " OT_COMMAND
                    " %s --model tiny",
                    commands[i]);
        assert_int_equal(result.code, 2);
        expect_in(result.err, "WORLD_SIZE=2 in the environment: offtrain ");
        assert_null(strstr(result.err, "--ranks"));
    }
}

/* What each rank would do in its own way, found before the first step. */
static void ranks_with_other_flags_are_told(void **state)
{
    (void)state;
    static const char *const flags[][2] = {{"--lr 1e-2", "rank 1: lr of rank 0 is"},
                                           {"--seed 7", "rank 1: seed of rank 0 is"},
                                           {"--max-steps 6", "rank 1: total_steps of rank 0 is"},
                                           {"--save-steps 1", "rank 1: save_steps of rank 0 is"}};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        process_run(&result,
                    "mpirun --oversubscribe --allow-run-as-root -n 1 " RUN " --max-steps 2 : -n 1 " RUN
                    " --max-steps 2 %s",
                    root, "--rank-timeout 60", root, "--rank-timeout 60", flags[i][0]);
        assert_int_equal(result.code, 2);
        expect_in(result.err, flags[i][1]);
    }
}

/* ---- containers ---- */

static void little_shared_memory_is_enough(void **state)
{
    (void)state;
    if (process_run(&result, "unshare -m mount -t tmpfs -o size=64m tmpfs /dev/shm") != 0)
        skip();
    process_run(&result, "unshare -m sh -c 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec " RUN "'", root,
                "--ranks 3 --max-steps 3");
    char hash[32];
    snprintf(hash, sizeof hash, "%s", must_end_well(&result).hash);
    assert_string_equal(must_train("--ranks 3 --max-steps 3").hash, hash);
}

/* As in a container whose processes may not read each other's memory. */
static void ranks_need_not_see_each_other(void **state)
{
    (void)state;
    if (process_run(&result, OT_DENY " process_vm_readv=EPERM -- true") == SKIP)
        skip();
    process_run(&result, OT_DENY " process_vm_readv=EPERM process_vm_writev=EPERM -- " RUN, root,
                "--ranks 3 --max-steps 3");
    run_end done = must_end_well(&result);
    assert_string_equal(result.err, "");
    assert_string_equal(must_train("--ranks 3 --max-steps 3").hash, done.hash);
}

/* ---- data and folders ---- */

/* 7 rows, 4 a step: the second step of an epoch has 3, and the second rank one of them. */
static void seven_samples_are_enough(void **state)
{
    (void)state;
    static const char row[] = "{\"prompt\": \"What is %d and %d?\", \"completion\": \" It is %d%.*s\"}\n";
    char text[2048] = "", flags[512];
    for (int i = 0; i < 7; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), row, i, i * i, i + i * i, i, "!!!!!!!");
    tree_write(root, "/seven.jsonl", text);
    double losses[2];
    for (int i = 0; i < 2; i++) {
        snprintf(flags, sizeof flags,
                 "--data %s/seven.jsonl --packing off --global-batch-size 4 --precision fp32 --epochs 2 "
                 "--max-steps -1 --run-name seven-%d --ranks %d",
                 root, i + 1, i + 1);
        losses[i] = must_train(flags).loss;
        expect_in(result.out, "done steps=4 ");
    }
    assert_true(fabs(losses[1] - losses[0]) <= 1e-5 * losses[0]);
}

/* Every step of both runs, of two ranks each, in one folder: none gets in the other's way, and what they leave is whole. */
static void two_save_at_once(void **state)
{
    (void)state;
    process groups[2];
    char flags[256], hashes[2][32];
    for (int i = 0; i < 2; i++) {
        snprintf(flags, sizeof flags,
                 "--ranks 2 --max-steps 6 --save-steps 1 --seed %d --run-name at-once-%d", i, i);
        process_start(&groups[i], RUN, root, flags);
    }
    for (int i = 0; i < 2; i++) {
        process_wait(&groups[i], &result);
        memcpy(hashes[i], must_end_well(&result).hash, sizeof hashes[i]);
    }
    assert_string_not_equal(hashes[0], hashes[1]);
    for (int i = 0; i < 2; i++) {
        process_run(&result, "ls %s/at-once-%d", root, i);
        expect_in(result.out, "checkpoint-5\ncheckpoint-6\n");
        assert_null(strstr(result.out, "checkpoint-4"));
        assert_null(strstr(result.out, ".tmp"));
        assert_null(strstr(result.out, "rank-"));
        snprintf(flags, sizeof flags, "--max-steps 6 --resume %s/at-once-%d --run-name after-%d --seed %d",
                 root, i, i, i);
        assert_string_equal(must_train(flags).hash, hashes[i]);
    }
}

/* Whether a checkpoint is being written, or was when the run died. */
static int is_saving(const char *folder)
{
    int found = 0;
    DIR *open_folder = opendir(folder);
    if (open_folder == NULL)
        return 0;
    for (struct dirent *entry; (entry = readdir(open_folder)) != NULL;)
        found |= strncmp(entry->d_name, "checkpoint-", 11) == 0 && strstr(entry->d_name, ".tmp") != NULL;
    closedir(open_folder);
    return found;
}

static void wait_for_saving(const char *folder, int wanted)
{
    int64_t limit = ot_clock_ns() + 60 * INT64_C(1000000000);
    while (is_saving(folder) != wanted) {
        assert_true(ot_clock_ns() < limit && process_runs(&ranks[0]));
        nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL);
    }
}

static uint64_t newest_checkpoint(const char *folder)
{
    char path[PATH_MAX + 16], to[PATH_MAX];
    unsigned long long step = 0;
    snprintf(path, sizeof path, "%s/latest", folder);
    ssize_t length = readlink(path, to, sizeof to - 1);
    to[length > 0 ? length : 0] = '\0';
    (void)sscanf(to, "checkpoint-%llu", &step);
    return step;
}

/* Both ranks of one world hand their parts of a checkpoint over when one of them dies, or both: the older one is whole, and
 * who goes on from it comes to the same end. */
static void ranks_that_die_while_they_save(void **state)
{
    (void)state;
    enum { KILLS = 9 };
    char folder[PATH_MAX];
    run_end whole = must_train("--ranks 2 --max-steps 16 --place states=nvme");
    snprintf(folder, sizeof folder, "%s/parts", root);
    int hits = 0;
    for (int i = 0; i < KILLS; i++) {
        uint64_t before = newest_checkpoint(folder);
        start_by_hand(2, "--max-steps 16 --save-steps 1 --place states=nvme --run-name parts --resume auto");
        wait_for_saving(folder, 0); /* what the last one has left is swept when the ranks have met */
        wait_for_saving(folder, 1);
        nanosleep(&(struct timespec){.tv_nsec = i / 3 * 4000000}, NULL);
        for (int rank = 0; rank < 2; rank++)
            if (i % 3 == 2 || i % 3 == rank)
                process_signal(&ranks[rank], SIGKILL);
        wait_for_all(2);
        hits += is_saving(folder);
        assert_true(newest_checkpoint(folder) >= before);
    }
    assert_true(hits > KILLS / 3); /* the others' came when the checkpoint had its name */
    run_end resumed = must_train(
        "--ranks 2 --max-steps 16 --save-steps 1 --place states=nvme --run-name parts --resume auto");
    assert_string_equal(resumed.hash, whole.hash);
    assert_null(strstr(result.err, "damaged"));
    assert_false(is_saving(folder));
}

/* Of ranks that were killed all at once, by the next run in the folder, whatever its own ranks. */
static void what_dead_ranks_left_is_swept(void **state)
{
    (void)state;
    char path[PATH_MAX];
    start_for_ever("swept", "--place states=nvme --io threads"); /* the kernel takes io_uring down later */
    for (int rank = 0; rank < 3; rank++)
        process_signal(&ranks[rank], SIGKILL);
    wait_for_all(3);
    tree_write(root, "/swept/rank-1/notes", "nobody's of ours");
    for (int rank = 1; rank < 3; rank++) {
        snprintf(path, sizeof path, "%s/swept/rank-%d/offtrain.swap", root, rank);
        assert_int_equal(access(path, F_OK), 0);
    }
    must_train("--max-steps 1");
    process_run(&result, "find %s/swept -name rank-2 -o -name offtrain.swap -o -name notes", root);
    snprintf(path, sizeof path, "%s/swept/rank-1/notes\n", root);
    assert_string_equal(result.out, path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes_of_any_launcher_meet),
        cmocka_unit_test(a_killed_rank_ends_the_others),
        cmocka_unit_test(a_rank_that_sleeps_is_named),
        cmocka_unit_test(a_stop_of_one_is_a_clean_end_of_all),
        cmocka_unit_test(a_stop_ends_the_meeting),
        cmocka_unit_test(a_world_that_mpi_does_not_find_is_told),
        cmocka_unit_test(an_incomplete_world_is_told),
        cmocka_unit_test(ranks_with_other_flags_are_told),
        cmocka_unit_test(little_shared_memory_is_enough),
        cmocka_unit_test(ranks_need_not_see_each_other),
        cmocka_unit_test(seven_samples_are_enough),
        cmocka_unit_test(two_save_at_once),
        cmocka_unit_test(ranks_that_die_while_they_save),
        cmocka_unit_test(what_dead_ranks_left_is_swept),
    };
    return cmocka_run_group_tests(tests, open_root, close_all);
}
