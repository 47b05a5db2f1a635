/* Ranks as processes under mpirun, on the emulated CUDA device: their collective operations bring what they should from process to
 * process, and one that is killed or hangs in the midst of them is told by the others, who end. */
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "io/clock.h"
#include "kernels/collective.h"
#include "tests/cuda/emulator.h"
#include "tests/support/process.h"
#include "tests/support/ranks.h"
#include "tests/support/tree.h"

enum { RANKS = 3, COUNT = 4099, ROUNDS = 20 };

/* ---- a rank ---- */

typedef struct card {
    ot_group *group;
    ot_device *device;
    ot_stream *stream;
    float *memory, *host;
} card;

static void open_card(card *c, double timeout_s)
{
    const ot_group_options options = {.timeout_s = timeout_s};
    must(ot_group_open(&options, &c->group) == OT_OK);
    const ot_device_options device = {
        .kind = "cuda", .ordinal = ot_group_launched_local(), .ranks = RANKS, .memory_bytes = 512 * MIB};
    must(ot_device_open(&device, &c->device) == OT_OK);
    must(ot_group_attach(c->group, c->device) == OT_OK);
    const ot_stream_options stream = {.kind = OT_STREAM_COLLECTIVE, .name = "collective"};
    must(ot_stream_open(c->device, &stream, &c->stream) == OT_OK);
    size_t bytes = (RANKS * COUNT * sizeof(float) + 4095) / 4096 * 4096;
    void *memory;
    must(ot_device_arena_open(c->device, "test", bytes, &memory) == OT_OK);
    c->memory = memory;
    c->host = aligned_alloc(4096, bytes);
    must(c->host != NULL && ot_device_pin(c->device, c->host, bytes) == OT_OK);
}

static float value(int round, int rank, int i)
{
    return (float)((round * 31 + rank * 7 + i) % 101);
}

/* Sums all ranks' values, and gathers the sums. */
static ot_status work(card *c, int round)
{
    int rank = ot_group_rank(c->group);
    const size_t bytes = RANKS * COUNT * sizeof(float);
    for (int i = 0; i < RANKS * COUNT; i++)
        c->host[i] = value(round, rank, i);
    ot_copy_h2d(c->stream, c->memory, c->host, bytes);
    ot_group_scatter(c->group, c->stream, "a gradient", c->memory, COUNT);
    ot_group_gather(c->group, c->stream, "a layer", c->memory, COUNT * sizeof(float));
    ot_copy_d2h(c->stream, c->host, c->memory, bytes);
    OT_TRY(ot_stream_synchronize(c->stream));
    for (int i = 0; i < RANKS * COUNT; i++) {
        float expected = value(round, 0, i) + value(round, 1, i) + value(round, 2, i);
        must(memcmp(&c->host[i], &expected, sizeof expected) == 0);
    }
    return OT_OK;
}

/* Makes rounds for ever where a folder is given, in which it says who it is; ends as offtrain does. */
static int be_rank(double timeout_s, const char *directory)
{
    char path[PATH_MAX];
    card c;
    ot_status status = OT_OK;
    use_emulator();
    setenv("OFFTRAIN_MPI_PLUGIN", OT_MPI_PLUGIN, 1);
    open_card(&c, timeout_s);
    for (int round = 0; (directory != NULL || round < ROUNDS) && status == OT_OK; round++) {
        ot_group_set_step(c.group, (uint64_t)round);
        status = work(&c, round);
        if (round == ROUNDS && directory != NULL) {
            snprintf(path, sizeof path, "%s/%d-%d", directory, ot_group_rank(c.group), (int)getpid());
            must(mkdir(path, 0700) == 0);
        }
    }
    if (status != OT_OK) {
        fprintf(stderr, "%s\n", ot_error_text());
        fflush(stderr);
        ot_group_leave(c.group, (int)status);
        _exit((int)status);
    }
    ot_group_detach(c.group);
    ot_device_unpin(c.device, c.host);
    ot_device_close(c.device);
    free(c.host);
    ot_group_close(c.group);
    return 0;
}

/* ---- the tests ---- */

#define LAUNCH "mpirun --allow-run-as-root --oversubscribe -n 3 %s %g %s"

static char *root;
static char self[PATH_MAX];
static outcome result;
static process group;

static int open_root(void **state)
{
    (void)state;
    root = tree_open();
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    self[length > 0 ? length : 0] = '\0';
    setenv("FAKECUDA_DEVICES", "3", 1);
    return 0;
}

static int close_root(void **state)
{
    (void)state;
    process_kill(&group);
    tree_close(root);
    return 0;
}

static void processes_work_together(void **state)
{
    (void)state;
    if (process_run(&result, LAUNCH, self, 60.0, "") != 0)
        fail_msg("%d: %s%s", result.code, result.out, result.err);
}

/* Starts ranks that go on for ever, waits until all do, and returns the process of one. */
static pid_t start(const char *name, double timeout_s, int rank)
{
    char directory[PATH_MAX], line[PATH_MAX + 64];
    int found = 0;
    long pids[RANKS] = {0};
    snprintf(directory, sizeof directory, "%s/%s", root, name);
    assert_int_equal(mkdir(directory, 0700), 0);
    process_start(&group, LAUNCH, self, timeout_s, directory);
    int64_t limit = ot_clock_ns() + 60 * INT64_C(1000000000);
    while (found < RANKS) {
        assert_true(ot_clock_ns() < limit && process_runs(&group));
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
        snprintf(line, sizeof line, "ls %s", directory);
        FILE *list = popen(line, "r");
        int number;
        long pid;
        for (found = 0; fscanf(list, "%d-%ld", &number, &pid) == 2; found++)
            pids[number] = pid;
        pclose(list);
    }
    return (pid_t)pids[rank];
}

static void expect_in(const char *text, const char *part)
{
    if (strstr(text, part) == NULL)
        fail_msg("\"%s\" is not in \"%s\"", part, text);
}

static void a_killed_rank_is_named(void **state)
{
    (void)state;
    char text[64];
    pid_t pid = start("killed", 60, 1);
    int64_t began = ot_clock_ns();
    kill(pid, SIGKILL);
    process_wait(&group, &result);
    assert_true(ot_clock_ns() - began < 10 * INT64_C(1000000000));
    assert_int_not_equal(result.code, 0);
    snprintf(text, sizeof text, "rank 1 has died (process %d)", (int)pid);
    expect_in(result.err, text);
    expect_in(result.err, " of 3, step ");
}

static void a_rank_that_hangs_is_told(void **state)
{
    (void)state;
    pid_t pid = start("hung", 1, 2);
    int64_t began = ot_clock_ns();
    kill(pid, SIGSTOP);
    process_wait(&group, &result);
    assert_true(ot_clock_ns() - began < 10 * INT64_C(1000000000));
    assert_int_equal(result.code, OT_ERR_DEVICE);
    expect_in(result.err, "waited 1 s for the other ranks");
    for (int tries = 0; kill(pid, 0) == 0; tries++) {
        assert_true(tries < 500);
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes_work_together),
        cmocka_unit_test(a_killed_rank_is_named),
        cmocka_unit_test(a_rank_that_hangs_is_told),
    };
    if (argc > 1)
        return be_rank(atof(argv[1]), argc > 2 ? argv[2] : NULL);
    return cmocka_run_group_tests(tests, open_root, close_root);
}
