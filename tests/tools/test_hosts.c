/* Ranks on two hosts: network namespaces of this machine with names of their own and one cable between them. By mpirun, with an
 * agent in place of ssh, and started by hand on each. Skipped where namespaces may not be made. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/process.h"
#include "tests/support/test.h"
#include "tests/support/tree.h"

#define RUN                                                                                                  \
    OT_COMMAND                                                                                               \
    " --model tiny --device cpu --seq-len 32 --global-batch-size 12 --max-steps 3 --threads 1 -q -o %s"

enum { SKIP = 77, HOSTS = 2 };

static char *root, words[2048];
static outcome result;

static int must_do(const char *line)
{
    if (process_run(&result, "sh -c '%s'", line) != 0)
        print_message("%s: %s", line, result.err);
    return result.code == 0;
}

static void remove_hosts(void)
{
    for (int host = 1; host <= HOSTS; host++)
        process_run(&result, "ip netns del offtrain-%d-%d", (int)getpid(), host);
}

/* 10.177.0.1 and 10.177.0.2. */
static int make_hosts(void)
{
    int id = (int)getpid(), made = 1;
    for (int host = 1; host <= HOSTS && made; host++) {
        snprintf(words, sizeof words, "ip netns add offtrain-%d-%d", id, host);
        made = must_do(words);
    }
    snprintf(words, sizeof words,
             "ip link add cable netns offtrain-%d-1 type veth peer name cable netns offtrain-%d-2", id, id);
    made = made && must_do(words);
    for (int host = 1; host <= HOSTS && made; host++) {
        snprintf(
            words, sizeof words,
            "ip -n offtrain-%d-%d addr add 10.177.0.%d/24 dev cable && ip -n offtrain-%d-%d link set lo up && "
            "ip -n offtrain-%d-%d link set cable up && ip netns exec offtrain-%d-%d unshare -um true",
            id, host, host, id, host, id, host, id, host);
        made = must_do(words);
    }
    return made;
}

/* The line of `words`; with `apart` the host does not see the others' run folder. */
static void start_on(process *p, int host, int apart)
{
    char hides[512] = "";
    if (apart)
        snprintf(hides, sizeof hides, "mount -t tmpfs tmpfs %s && ", root);
    process_start(p, "ip netns exec offtrain-%d-%d unshare -um sh -c '%shostname host-%d && exec %s'",
                  (int)getpid(), host, hides, host, words);
}

static long long sent_by_cable(void)
{
    process_run(&result, "ip netns exec offtrain-%d-1 cat /sys/class/net/cable/statistics/tx_bytes",
                (int)getpid());
    return atoll(result.out);
}

static run_end expected(void)
{
    process_run(&result, RUN " --ranks 2", root);
    return must_end_well(&result);
}

/* At least the gradients, in FP32 and halves, cross it in each of the three steps. */
static void expect_traffic(long long before)
{
    const long long params = 820608;
    long long sent = sent_by_cable() - before;
    if (sent < 3 * params * 4 / 2)
        fail_msg("%lld bytes from host to host", sent);
}

static void mpirun_reaches_two_hosts(void **state)
{
    (void)state;
    char path[256];
    long long before = sent_by_cable();
    snprintf(
        words, sizeof words,
        "#!/bin/sh\nhost=$1\nshift\nexec ip netns exec offtrain-%d-${host##*.} unshare -u sh -c \"hostname "
        "host-${host##*.} && $*\"\n",
        (int)getpid());
    tree_write(root, "/agent", words);
    snprintf(path, sizeof path, "%s/agent", root);
    assert_int_equal(chmod(path, 0700), 0);
    snprintf(words, sizeof words,
             "mpirun --allow-run-as-root --mca plm_rsh_agent %s --mca btl tcp,self -n 2 "
             "--host 10.177.0.1:1,10.177.0.2:1 " RUN,
             path, root);
    process p;
    start_on(&p, 1, 0);
    process_wait(&p, &result);
    run_end done = must_end_well(&result);
    assert_int_equal(count_lines(result.out), 1);
    expect_traffic(before);
    assert_string_equal(expected().hash, done.hash);
}

static void processes_meet_across_hosts(void **state)
{
    (void)state;
    process ranks[HOSTS];
    char hash[32];
    long long before = sent_by_cable();
    for (int rank = 0; rank < HOSTS; rank++) {
        snprintf(words, sizeof words,
                 "env MASTER_ADDR=10.177.0.1 MASTER_PORT=29500 WORLD_SIZE=2 LOCAL_WORLD_SIZE=1 RANK=%d " RUN,
                 rank, root);
        start_on(&ranks[rank], rank + 1, rank > 0);
    }
    process_wait(&ranks[1], &result);
    if (result.code != 0)
        fail_msg("%d: %s", result.code, result.err);
    process_wait(&ranks[0], &result);
    snprintf(hash, sizeof hash, "%s", must_end_well(&result).hash);
    expect_traffic(before);
    assert_string_equal(expected().hash, hash);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mpirun_reaches_two_hosts),
        cmocka_unit_test(processes_meet_across_hosts),
    };
    root = tree_open();
    int made = make_hosts(), failed = made ? cmocka_run_group_tests(tests, NULL, NULL) : SKIP;
    remove_hosts();
    tree_close(root);
    return failed;
}
