/* Budgets from made-up /proc and /sys trees; every expected value is worked out by hand from what the tree
 * says. */
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "io/budget.h"
#include "tests/support/test.h"
#include "tests/support/tree.h"

#define GIB (UINT64_C(1) << 30)
#define MIB (UINT64_C(1) << 20)

#define V2_MOUNT "30 24 0:27 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
#define V1_MEMORY_MOUNT "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
#define V1_CPU_MOUNT "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"

/* A machine of 64 GiB, 48 of them available. */
static int open_tree(void **state)
{
    char *root = tree_open();
    tree_write(root, "/proc/meminfo",
               "MemTotal:       67108864 kB\nMemFree:         1048576 kB\nMemAvailable:   50331648 kB\n");
    tree_write(root, "/sys/devices/system/cpu/online", "0-11,16\n");
    *state = root;
    return 0;
}

static int close_tree(void **state)
{
    tree_close(*state);
    return 0;
}

static void set_groups(const char *root, const char *cgroup, const char *mountinfo)
{
    tree_write(root, "/proc/self/cgroup", cgroup);
    tree_write(root, "/proc/self/mountinfo", mountinfo);
}

static void check_memory(const char *root, uint64_t bytes, uint64_t cgroup_bytes, const char *source)
{
    ot_memory_budget budget;
    assert_int_equal(ot_memory_budget_read(root, &budget), OT_OK);
    assert_int_equal(budget.total_bytes, 64 * GIB);
    assert_int_equal(budget.available_bytes, 48 * GIB);
    assert_int_equal(budget.bytes, bytes);
    assert_int_equal(budget.cgroup_bytes, cgroup_bytes);
    assert_string_equal(budget.source, source);
}

static void memory_without_groups_is_what_is_available(void **state)
{
    check_memory(*state, 48 * GIB, UINT64_MAX, "MemAvailable");
}

static void memory_of_v2_subtracts_what_cannot_be_reclaimed(void **state)
{
    set_groups(*state, "0::/job\n", V2_MOUNT);
    tree_write(*state, "/sys/fs/cgroup/job/memory.max", "17179869184\n");    /* 16 GiB */
    tree_write(*state, "/sys/fs/cgroup/job/memory.current", "5368709120\n"); /* 5 GiB */
    tree_write(*state, "/sys/fs/cgroup/job/memory.stat",
               "anon 1073741824\nfile 4294967296\nactive_file 1073741824\n"
               "inactive_file 3221225472\n"); /* 3 GiB */
    check_memory(*state, 14 * GIB, 14 * GIB, "/sys/fs/cgroup/job/memory.max");
}

static void memory_of_v2_is_bound_by_a_parent(void **state)
{
    set_groups(*state, "0::/user.slice/app/job\n", V2_MOUNT);
    tree_write(*state, "/sys/fs/cgroup/user.slice/app/job/memory.max", "max\n");
    tree_write(*state, "/sys/fs/cgroup/user.slice/app/job/memory.high", "max\n");
    tree_write(*state, "/sys/fs/cgroup/user.slice/app/memory.max", "21474836480\n"); /* 20 GiB */
    tree_write(*state, "/sys/fs/cgroup/user.slice/memory.max", "8589934592\n");      /* 8 GiB */
    tree_write(*state, "/sys/fs/cgroup/user.slice/memory.current", "1073741824\n");
    check_memory(*state, 7 * GIB, 7 * GIB, "/sys/fs/cgroup/user.slice/memory.max");
}

static void memory_high_counts(void **state)
{
    set_groups(*state, "0::/job\n", V2_MOUNT);
    tree_write(*state, "/sys/fs/cgroup/job/memory.max", "17179869184\n");
    tree_write(*state, "/sys/fs/cgroup/job/memory.high", "12884901888\n");
    check_memory(*state, 12 * GIB, 12 * GIB, "/sys/fs/cgroup/job/memory.high");
}

static void memory_limit_above_the_available_does_not_bind(void **state)
{
    set_groups(*state, "0::/job\n", V2_MOUNT);
    tree_write(*state, "/sys/fs/cgroup/job/memory.max", "53687091200\n"); /* 50 GiB */
    check_memory(*state, 48 * GIB, 50 * GIB, "MemAvailable");
}

static void memory_use_above_the_limit_leaves_nothing(void **state)
{
    set_groups(*state, "0::/job\n", V2_MOUNT);
    tree_write(*state, "/sys/fs/cgroup/job/memory.max", "1073741824\n");
    tree_write(*state, "/sys/fs/cgroup/job/memory.current", "1074790400\n");
    check_memory(*state, 0, 0, "/sys/fs/cgroup/job/memory.max");
}

static void memory_cache_above_the_use_is_not_negative(void **state)
{
    set_groups(*state, "0::/job\n", V2_MOUNT);
    tree_write(*state, "/sys/fs/cgroup/job/memory.max", "1073741824\n");
    tree_write(*state, "/sys/fs/cgroup/job/memory.current", "1048576\n");
    tree_write(*state, "/sys/fs/cgroup/job/memory.stat", "inactive_file 2097152\n");
    check_memory(*state, GIB, GIB, "/sys/fs/cgroup/job/memory.max");
}

/* As in a container: the group's path is told from the host, the mount shows it as its root. */
static void memory_is_found_below_the_mount_root(void **state)
{
    set_groups(*state, "0::/docker/abc/inner\n",
               "30 24 0:27 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n");
    tree_write(*state, "/sys/fs/cgroup/inner/memory.max", "2147483648\n");
    tree_write(*state, "/sys/fs/cgroup/memory.max", "4294967296\n");
    check_memory(*state, 2 * GIB, 2 * GIB, "/sys/fs/cgroup/inner/memory.max");
}

/* A root of /docker/ab is no ancestor of /docker/abc: its limit is that of another container. The mount that
 * shows the groups above, too, is the best one. */
static void mount_of_the_group_is_preferred(void **state)
{
#define OTHER_MOUNT "30 24 0:27 /docker/ab /mnt/other ro - cgroup2 cgroup2 rw\n"
#define OWN_MOUNT "31 24 0:27 /docker/abc /mnt/own ro - cgroup2 cgroup2 rw\n"
#define WHOLE_MOUNT "32 24 0:27 / /mnt/all ro - cgroup2 cgroup2 rw\n"
    tree_write(*state, "/mnt/other/memory.max", "1073741824\n");
    tree_write(*state, "/mnt/own/memory.max", "4294967296\n");
    tree_write(*state, "/mnt/all/docker/abc/memory.max", "4294967296\n");
    tree_write(*state, "/mnt/all/docker/memory.max", "3221225472\n");
    set_groups(*state, "0::/docker/abc\n", OTHER_MOUNT OWN_MOUNT);
    check_memory(*state, 4 * GIB, 4 * GIB, "/mnt/own/memory.max");
    set_groups(*state, "0::/docker/abc\n", OWN_MOUNT OTHER_MOUNT);
    check_memory(*state, 4 * GIB, 4 * GIB, "/mnt/own/memory.max");
    set_groups(*state, "0::/docker/abc\n", OTHER_MOUNT OWN_MOUNT WHOLE_MOUNT);
    check_memory(*state, 3 * GIB, 3 * GIB, "/mnt/all/docker/memory.max");
}

static void memory_falls_back_to_the_mount_point(void **state)
{
    static const char *const groups[] = {"0::/not/here\n", "0::/../outside\n", "0::/..\n", "0::/\n"};
    tree_write(*state, "/sys/fs/cgroup/memory.max", "3221225472\n");
    tree_write(*state, "/sys/fs/memory.max", "1048576\n"); /* above the mount: no group */
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        set_groups(*state, groups[i], V2_MOUNT);
        check_memory(*state, 3 * GIB, 3 * GIB, "/sys/fs/cgroup/memory.max");
    }
    set_groups(*state, "0::/\n", "30 24 0:27 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    check_memory(*state, 3 * GIB, 3 * GIB, "/sys/fs/cgroup/memory.max");
}

static void memory_of_v1(void **state)
{
    set_groups(*state, "7:cpu,cpuacct:/\n4:memory:/box/job\n0::/\n", V1_MEMORY_MOUNT);
    tree_write(*state, "/sys/fs/cgroup/memory/box/job/memory.limit_in_bytes",
               "9223372036854771712\n");                                                    /* none */
    tree_write(*state, "/sys/fs/cgroup/memory/box/memory.limit_in_bytes", "10737418240\n"); /* 10 GiB */
    tree_write(*state, "/sys/fs/cgroup/memory/box/memory.usage_in_bytes", "4294967296\n");
    tree_write(
        *state, "/sys/fs/cgroup/memory/box/memory.stat",
        "inactive_file 4294967296\nhierarchical_memory_limit 10737418240\ntotal_inactive_file 1073741824\n");
    check_memory(*state, 7 * GIB, 7 * GIB, "/sys/fs/cgroup/memory/box/memory.limit_in_bytes");
}

static void memory_of_v1_without_a_limit(void **state)
{
    set_groups(*state, "4:memory:/\n", V1_MEMORY_MOUNT);
    tree_write(*state, "/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    tree_write(*state, "/sys/fs/cgroup/memory/memory.stat",
               "hierarchical_memory_limit 9223372036854771712\n");
    check_memory(*state, 48 * GIB, UINT64_MAX, "MemAvailable");
    tree_write(*state, "/sys/fs/cgroup/memory/memory.limit_in_bytes",
               "9223372036854710272\n"); /* 64 KiB pages */
    check_memory(*state, 48 * GIB, UINT64_MAX, "MemAvailable");
}

/* A pod's limit, of which its container sees only this line. */
static void memory_of_v1_has_hidden_parents(void **state)
{
    set_groups(*state, "4:memory:/kubepods/pod/box\n",
               "35 31 0:32 /kubepods/pod/box /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
    tree_write(*state, "/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    tree_write(*state, "/sys/fs/cgroup/memory/memory.usage_in_bytes", "1073741824\n");
    tree_write(*state, "/sys/fs/cgroup/memory/memory.stat", "hierarchical_memory_limit 6442450944\n");
    check_memory(*state, 5 * GIB, 5 * GIB, "/sys/fs/cgroup/memory/memory.stat");
}

static void memory_of_a_hybrid_system(void **state)
{
    set_groups(*state, "4:memory:/a\n1:name=systemd:/s\n0::/b\n",
               V1_MEMORY_MOUNT "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
    tree_write(*state, "/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "5368709120\n");
    tree_write(*state, "/sys/fs/cgroup/unified/b/memory.max", "6442450944\n");
    check_memory(*state, 5 * GIB, 5 * GIB, "/sys/fs/cgroup/memory/a/memory.limit_in_bytes");
    tree_write(*state, "/sys/fs/cgroup/unified/b/memory.max", "4294967296\n");
    check_memory(*state, 4 * GIB, 4 * GIB, "/sys/fs/cgroup/unified/b/memory.max");
}

static void mount_point_with_a_blank(void **state)
{
    set_groups(*state, "0::/job\n", "30 24 0:27 / /my\\040groups rw - cgroup2 cgroup2 rw\n");
    tree_write(*state, "/my groups/job/memory.max", "1073741824\n");
    check_memory(*state, GIB, GIB, "/my groups/job/memory.max");
}

static void source_of_a_long_path_keeps_its_end(void **state)
{
    char group[400], line[500], file[600];
    memset(group, 'g', sizeof group);
    for (size_t i = 0; i < sizeof group; i += 100)
        group[i] = '/';
    group[sizeof group - 1] = '\0';
    snprintf(line, sizeof line, "0::%s\n", group);
    set_groups(*state, line, V2_MOUNT);
    snprintf(file, sizeof file, "/sys/fs/cgroup%s/memory.max", group);
    tree_write(*state, file, "1048576\n");
    ot_memory_budget budget;
    assert_int_equal(ot_memory_budget_read(*state, &budget), OT_OK);
    assert_int_equal(budget.bytes, MIB);
    assert_int_equal(strlen(budget.source), 255);
    assert_memory_equal(budget.source, "...g", 4);
    assert_string_equal(budget.source + 255 - strlen("g/memory.max"), "g/memory.max");
}

static void memory_without_meminfo_fails(void **state)
{
    (void)state;
    char *empty = tree_open();
    ot_memory_budget budget;
    assert_int_equal(ot_memory_budget_read(empty, &budget), OT_ERR_IO);
    assert_non_null(strstr(ot_error_text(), "/proc/meminfo"));
    tree_write(empty, "/proc/meminfo", "MemTotal: 1 kB\n");
    assert_int_equal(ot_memory_budget_read(empty, &budget), OT_ERR_IO);
    assert_non_null(strstr(ot_error_text(), "MemAvailable"));
    tree_close(empty);
}

static int allowed_processors(void)
{
    cpu_set_t set;
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    return CPU_COUNT(&set);
}

static void check_cpus(const char *root, int threads, double quota, const char *source)
{
    ot_cpu_budget budget;
    assert_int_equal(ot_cpu_budget_read(root, &budget), OT_OK);
    assert_int_equal(budget.online, 13);
    assert_int_equal(budget.affinity, allowed_processors());
    assert_int_equal(budget.threads, threads);
    assert_float_equal(budget.quota, quota, 1e-9);
    assert_string_equal(budget.source, source);
}

static void cpus_without_a_quota(void **state)
{
    check_cpus(*state, allowed_processors(), 0, "affinity");
    set_groups(*state, "0::/job\n3:cpu,cpuacct:/job\n", V2_MOUNT V1_CPU_MOUNT);
    tree_write(*state, "/sys/fs/cgroup/job/cpu.max", "max 100000\n");
    tree_write(*state, "/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "-1\n");
    tree_write(*state, "/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
    check_cpus(*state, allowed_processors(), 0, "affinity");
}

static void cpus_follow_the_affinity(void **state)
{
    cpu_set_t before, one;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    size_t first = 0;
    while (!CPU_ISSET(first, &before))
        first++;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    ot_cpu_budget budget;
    ot_status status = ot_cpu_budget_read(*state, &budget);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
    assert_int_equal(status, OT_OK);
    assert_int_equal(budget.affinity, 1);
    assert_int_equal(budget.threads, 1);
}

/* Quotas are rounded up and never below one thread; on a machine with one processor there is less to see. */
static void cpus_of_v2(void **state)
{
    set_groups(*state, "0::/a/job\n", V2_MOUNT);
    tree_write(*state, "/sys/fs/cgroup/a/job/cpu.max", "50000 100000\n");
    check_cpus(*state, 1, 0.5, allowed_processors() > 1 ? "/sys/fs/cgroup/a/job/cpu.max" : "affinity");
    tree_write(*state, "/sys/fs/cgroup/a/job/cpu.max", "110000 100000\n");
    check_cpus(*state, allowed_processors() < 2 ? 1 : 2, 1.1,
               allowed_processors() > 2 ? "/sys/fs/cgroup/a/job/cpu.max" : "affinity");
    tree_write(*state, "/sys/fs/cgroup/a/job/cpu.max", "9000000 100000\n");
    tree_write(*state, "/sys/fs/cgroup/a/cpu.max", "20000 20000\n");
    check_cpus(*state, 1, 1, allowed_processors() > 1 ? "/sys/fs/cgroup/a/cpu.max" : "affinity");
}

static void cpus_of_v1(void **state)
{
    set_groups(*state, "3:cpuset:/x\n2:cpu,cpuacct:/a/job\n", V1_CPU_MOUNT);
    tree_write(*state, "/sys/fs/cgroup/cpu,cpuacct/a/job/cpu.cfs_quota_us", "-1\n");
    tree_write(*state, "/sys/fs/cgroup/cpu,cpuacct/a/job/cpu.cfs_period_us", "100000\n");
    tree_write(*state, "/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "25000\n");
    tree_write(*state, "/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n");
    check_cpus(*state, 1, 0.25,
               allowed_processors() > 1 ? "/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us" : "affinity");
}

static void the_real_system_is_read(void **state)
{
    (void)state;
    ot_memory_budget memory;
    ot_cpu_budget cpus;
    assert_int_equal(ot_memory_budget_read("", &memory), OT_OK);
    uint64_t pages = (uint64_t)sysconf(_SC_PHYS_PAGES), page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
    assert_int_equal(memory.total_bytes, pages * page_bytes);
    assert_in_range(memory.bytes, 1, memory.total_bytes);
    assert_int_equal(ot_cpu_budget_read("", &cpus), OT_OK);
    assert_int_equal(cpus.online, sysconf(_SC_NPROCESSORS_ONLN));
    assert_in_range(cpus.threads, 1, cpus.affinity);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_tree, close_tree)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(memory_without_groups_is_what_is_available),
        TEST(memory_of_v2_subtracts_what_cannot_be_reclaimed),
        TEST(memory_of_v2_is_bound_by_a_parent),
        TEST(memory_high_counts),
        TEST(memory_limit_above_the_available_does_not_bind),
        TEST(memory_use_above_the_limit_leaves_nothing),
        TEST(memory_cache_above_the_use_is_not_negative),
        TEST(memory_is_found_below_the_mount_root),
        TEST(mount_of_the_group_is_preferred),
        TEST(memory_falls_back_to_the_mount_point),
        TEST(memory_of_v1),
        TEST(memory_of_v1_without_a_limit),
        TEST(memory_of_v1_has_hidden_parents),
        TEST(memory_of_a_hybrid_system),
        TEST(mount_point_with_a_blank),
        TEST(source_of_a_long_path_keeps_its_end),
        TEST(memory_without_meminfo_fails),
        TEST(cpus_without_a_quota),
        TEST(cpus_follow_the_affinity),
        TEST(cpus_of_v2),
        TEST(cpus_of_v1),
        TEST(the_real_system_is_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
