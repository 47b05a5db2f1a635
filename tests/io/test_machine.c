/* Facts about made-up machines, and about this one by other ways than the code's. */
#include <errno.h>
#include <linux/io_uring.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "io/machine.h"
#include "io/sysfile.h"
#include "tests/support/test.h"
#include "tests/support/tree.h"

static int open_tree(void **state)
{
    *state = tree_open();
    return 0;
}

static int close_tree(void **state)
{
    tree_close(*state);
    return 0;
}

static void an_empty_tree_is_no_failure(void **state)
{
    ot_machine machine;
    memset(&machine, 0xA5, sizeof machine);
    ot_machine_read(*state, &machine);
    assert_int_equal(machine.wsl, 0);
    assert_string_equal(machine.container, "");
    assert_string_equal(machine.cpu, "unknown");
    assert_int_equal(machine.numa_nodes, 1);
    assert_string_equal(machine.huge_page_mode, "");
    assert_int_equal(machine.huge_pages, 0);
    assert_int_equal(machine.huge_page_bytes, 0);
    assert_int_equal(machine.can_lock, 0);
    assert_int_equal(machine.uring_disabled, -1);
    assert_string_equal(machine.driver, "");
    assert_int_equal(machine.gpu_count, 0);
    assert_int_equal(machine.gpu_devices, 0);
}

static void a_workstation(void **state)
{
    tree_write(*state, "/proc/version", "Linux version 6.1.0-18-amd64 (debian-kernel@lists.debian.org)\n");
    tree_write(*state, "/proc/sys/kernel/osrelease", "6.1.0-18-amd64\n");
    tree_write(*state, "/proc/sys/kernel/io_uring_disabled", "2\n");
    tree_write(*state, "/proc/cpuinfo",
               "processor\t: 0\nmodel\t\t: 33\nmodel name\t: AMD Ryzen 9 5950X\nprocessor\t: 1\n");
    tree_write(*state, "/sys/devices/system/node/online", "0,2-3\n");
    tree_write(*state, "/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
    tree_write(*state, "/proc/meminfo",
               "MemTotal: 67108864 kB\nHugePages_Total:    1024\nHugePages_Free:      512\n"
               "HugePages_Rsvd:        0\nHugepagesize:       2048 kB\n");
    tree_write(*state, "/proc/self/status",
               "Name:\tofftrain\nCapPrm:\t0000000000000000\nCapEff:\t0000000000004000\n");
    tree_write(*state, "/proc/driver/nvidia/version",
               "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22 01:44:30 UTC 2024\n"
               "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n");
    tree_write(*state, "/proc/driver/nvidia/gpus/0000:01:00.0/information",
               "Model: \t\t NVIDIA GeForce RTX 4090\nIRQ:   \t\t 120\n");
    tree_write(*state, "/sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n");
    tree_write(*state, "/sys/bus/pci/devices/0000:01:00.0/class", "0x030000\n");
    tree_write(*state, "/sys/bus/pci/devices/0000:01:00.1/vendor", "0x10de\n"); /* its sound device */
    tree_write(*state, "/sys/bus/pci/devices/0000:01:00.1/class", "0x040300\n");
    tree_write(*state, "/sys/bus/pci/devices/0000:02:00.0/vendor", "0x10de\n");
    tree_write(*state, "/sys/bus/pci/devices/0000:02:00.0/class", "0x030200\n");
    tree_write(*state, "/sys/bus/pci/devices/0000:02:00.0/device", "0x2204\n");
    tree_write(*state, "/sys/bus/pci/devices/0000:00:02.0/vendor", "0x8086\n"); /* another maker's graphics */
    tree_write(*state, "/sys/bus/pci/devices/0000:00:02.0/class", "0x030000\n");
    tree_write(*state, "/dev/nvidia0", "");
    tree_write(*state, "/dev/nvidia1", "");
    tree_write(*state, "/dev/nvidiactl", "");
    tree_write(*state, "/dev/nvidia-uvm", "");
    tree_write(*state, "/dev/dxg", "");
    ot_machine machine;
    ot_machine_read(*state, &machine);
    assert_string_equal(machine.kernel, "6.1.0-18-amd64");
    assert_int_equal(machine.wsl, 0);
    assert_string_equal(machine.container, "");
    assert_string_equal(machine.cpu, "AMD Ryzen 9 5950X");
    assert_int_equal(machine.numa_nodes, 3);
    assert_string_equal(machine.huge_page_mode, "never");
    assert_int_equal(machine.huge_pages, 1024);
    assert_int_equal(machine.huge_pages_free, 512);
    assert_int_equal(machine.huge_page_bytes, 2 << 20);
    assert_int_equal(machine.can_lock, 1);
    assert_int_equal(machine.uring_disabled, 2);
    assert_string_equal(machine.driver, "550.54.14");
    assert_int_equal(machine.gpu_devices, 2);
    assert_int_equal(machine.gpu_count, 2);
    assert_string_equal(machine.gpus[0].address, "0000:01:00.0");
    assert_string_equal(machine.gpus[0].name, "NVIDIA GeForce RTX 4090");
    assert_string_equal(machine.gpus[1].address, "0000:02:00.0");
    assert_string_equal(machine.gpus[1].name, "NVIDIA 10de:2204");
}

static void the_open_driver(void **state)
{
    tree_write(
        *state, "/proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (dvs-builder)\n");
    ot_machine machine;
    ot_machine_read(*state, &machine);
    assert_string_equal(machine.driver, "570.86.15");
}

static void more_gpus_than_are_listed(void **state)
{
    for (int i = 0; i < OT_MACHINE_GPUS_MAX + 3; i++) {
        char path[128];
        snprintf(path, sizeof path, "/sys/bus/pci/devices/0000:%02x:00.0/vendor", (unsigned)i);
        tree_write(*state, path, "0x10de\n");
        snprintf(path, sizeof path, "/sys/bus/pci/devices/0000:%02x:00.0/class", (unsigned)i);
        tree_write(*state, path, "0x030200\n");
    }
    ot_machine machine;
    ot_machine_read(*state, &machine);
    assert_int_equal(machine.gpu_count, OT_MACHINE_GPUS_MAX + 3);
    assert_string_equal(machine.gpus[OT_MACHINE_GPUS_MAX - 1].address, "0000:0f:00.0");
}

static void windows(void **state)
{
    ot_machine machine;
    tree_write(*state, "/dev/dxg", "");
    tree_write(*state, "/proc/version",
               "Linux version 5.15.153.1-microsoft-standard-WSL2 (root@941d701f84f1)\n");
    ot_machine_read(*state, &machine);
    assert_int_equal(machine.wsl, 2);
    assert_int_equal(machine.gpu_devices, 1);
    tree_write(*state, "/proc/version", "Linux version 4.4.0-19041-Microsoft (Microsoft@Microsoft.com)\n");
    ot_machine_read(*state, &machine);
    assert_int_equal(machine.wsl, 1);
}

static void containers(void **state)
{
    static const struct {
        const char *cgroup, *name;
    } groups[] = {
        {"0::/docker/4f1c\n", "docker"},
        {"4:memory:/kubepods/burstable/pod1/2\n", "kubernetes"},
        {"0::/machine.slice/libpod-77.scope\n", "podman"},
        {"0::/lxc/box\n", "lxc"},
        {"0::/user.slice\n", ""},
    };
    ot_machine machine;
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        tree_write(*state, "/proc/self/cgroup", groups[i].cgroup);
        ot_machine_read(*state, &machine);
        assert_string_equal(machine.container, groups[i].name);
    }
    tree_write(*state, "/run/systemd/container", "systemd-nspawn\n");
    ot_machine_read(*state, &machine);
    assert_string_equal(machine.container, "systemd-nspawn");
    tree_write(*state, "/.dockerenv", "");
    ot_machine_read(*state, &machine);
    assert_string_equal(machine.container, "docker");
}

/* The kernel lists what the processor has and what it saves; the code asks the processor. */
static void instruction_sets_are_those_the_kernel_lists(void **state)
{
    (void)state;
    static const struct {
        unsigned bit;
        const char *flags[4];
    } sets[] = {
        {OT_ISA_AVX2, {" avx2 ", " fma "}},
        {OT_ISA_AVX512, {" avx512f ", " avx512bw ", " avx512dq ", " avx512vl "}},
        {OT_ISA_AVX512_BF16, {" avx512f ", " avx512bw ", " avx512vl ", " avx512_bf16 "}},
    };
    static char text[1 << 16];
    assert_true(ot_sysfile_read("", "/proc/cpuinfo", text, sizeof text));
    char *flags = strstr(text, "\nflags");
    if (flags == NULL)
        skip();
    *strchr(flags + 1, '\n') = ' '; /* the last flag ends with a blank, too */
    strchr(flags + 1, '\n')[0] = '\0';
    unsigned isa = ot_isa_find();
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        int all = 1;
        for (size_t j = 0; j < 4 && sets[i].flags[j] != NULL; j++)
            all = all && strstr(flags, sets[i].flags[j]) != NULL;
        assert_int_equal((isa & sets[i].bit) != 0, all);
    }
}

static void names_of_instruction_sets(void **state)
{
    (void)state;
    const char *names[OT_ISA_NAMES_MAX];
    assert_int_equal(ot_isa_names(0, names), 1);
    assert_int_equal(ot_isa_names(OT_ISA_AVX2 | OT_ISA_AVX512 | OT_ISA_AVX512_BF16, names), 4);
    assert_string_equal(names[1], "AVX2+FMA");
    assert_string_equal(names[2], "AVX-512");
    assert_string_equal(names[3], "AVX512-BF16");
    assert_int_equal(ot_isa_names(OT_ISA_AVX512, names), 2);
    assert_string_equal(names[1], "AVX-512");
}

static void this_machine(void **state)
{
    (void)state;
    ot_machine machine;
    struct utsname name;
    struct rlimit before, limit;
    ot_machine_read("", &machine);
    assert_int_equal(uname(&name), 0);
    assert_string_equal(machine.kernel, name.release);

    assert_int_equal(getrlimit(RLIMIT_MEMLOCK, &before), 0);
    limit = before;
    limit.rlim_cur = 4096;
    assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
    ot_machine_read("", &machine);
    assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &before), 0);
    assert_int_equal(machine.memlock_bytes, 4096);

    struct io_uring_params parameters = {0};
    int fd = (int)syscall(SYS_io_uring_setup, 4, &parameters), code = errno;
    if (fd >= 0)
        close(fd);
    ot_machine_read("", &machine);
    assert_int_equal(machine.uring_errno, fd >= 0 ? 0 : code);
}

static void lists_of_the_kernel(void **state)
{
    (void)state;
    assert_int_equal(ot_sysfile_list_count("0"), 1);
    assert_int_equal(ot_sysfile_list_count("0-3,7"), 5);
    assert_int_equal(ot_sysfile_list_count("1,3,5-6\n"), 4);
    assert_int_equal(ot_sysfile_list_count(""), 0);
    assert_int_equal(ot_sysfile_list_count("x"), 0);
    assert_int_equal(ot_sysfile_list_count("3-1"), 0);
    assert_int_equal(ot_sysfile_list_count("0-3:1"), 0);
    assert_int_equal(ot_sysfile_list_count("0-9999999999"), 0);
}

static void fields_and_numbers(void **state)
{
    uint64_t value = 1;
    assert_int_equal(ot_sysfile_field("ab 1\na: 2 kB\na 3\n", "a", &value), 1);
    assert_int_equal(value, 2);
    assert_int_equal(ot_sysfile_field("ab 1\n", "a", &value), 0);
    assert_int_equal(ot_sysfile_field("a max\n", "a", &value), 0);
    tree_write(*state, "/number", "18446744073709551615\n");
    assert_int_equal(ot_sysfile_number(*state, "/number", &value), 1);
    assert_int_equal(value, UINT64_MAX);
    tree_write(*state, "/number", "-1\n");
    assert_int_equal(ot_sysfile_number(*state, "/number", &value), 0);
    char text[4];
    tree_write(*state, "/number", "12345\n");
    assert_int_equal(ot_sysfile_read(*state, "/number", text, sizeof text), 1);
    assert_string_equal(text, "123");
    assert_int_equal(ot_sysfile_read(*state, "/none", text, sizeof text), 0);
    assert_string_equal(text, "");
    assert_int_equal(ot_sysfile_read(*state, "/", text, sizeof text), 0); /* a folder */
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_tree, close_tree)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(an_empty_tree_is_no_failure),
        TEST(a_workstation),
        TEST(the_open_driver),
        TEST(more_gpus_than_are_listed),
        TEST(windows),
        TEST(containers),
        TEST(instruction_sets_are_those_the_kernel_lists),
        TEST(names_of_instruction_sets),
        TEST(this_machine),
        TEST(lists_of_the_kernel),
        TEST(fields_and_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
