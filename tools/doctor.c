/* `offtrain doctor`: looks at the machine and says, line by line, what is good and what to change. */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/budget.h"
#include "io/file.h"
#include "io/machine.h"
#include "io/text.h"
#include "kernels/device.h"
#include "tools/command.h"
#include "tools/json.h"
#include "tools/option.h"

typedef struct doctor_options {
    ot_option_list nvme;
    int json;
} doctor_options;

static const ot_option options[] = {
    {.name = "nvme",
     .kind = OT_OPTION_LIST,
     .offset = offsetof(doctor_options, nvme),
     .value = "DIR…",
     .help = "folders to check for training state; without it the current one"},
    {.name = "json", .offset = offsetof(doctor_options, json), .help = "one JSON object instead of lines"},
};
static const ot_option_table table = {
    .command = "offtrain doctor",
    .summary = "Checks this machine and says what to change.",
    .options = options,
    .count = sizeof options / sizeof *options,
};

typedef enum severity { LEVEL_OK, LEVEL_WARNING, LEVEL_ERROR } severity;

static const char *const level_names[] = {"ok", "warning", "error"};

typedef struct check {
    severity level;
    const char *subject;
    char found[1536];
    const char *advice; /* a string literal, or NULL: nothing to do */
} check;

/* One line each for the machine, and one for each folder. */
enum { CHECKS_MAX = 32 + OT_OPTION_LIST_MAX + OT_MACHINE_GPUS_MAX };

typedef struct report {
    size_t count;
    check checks[CHECKS_MAX];
    int bad_folders;
    ot_memory_budget memory;
    ot_cpu_budget cpus;
    ot_machine machine;
} report;

__attribute__((format(printf, 5, 6))) static void add(report *to, severity level, const char *subject,
                                                      const char *advice, const char *format, ...)
{
    OT_ASSERT(to->count < CHECKS_MAX);
    check *line = &to->checks[to->count++];
    line->level = level;
    line->subject = subject;
    line->advice = advice;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line->found, sizeof line->found, format, arguments);
    va_end(arguments);
    ot_clean_utf8(line->found);
}

static void check_kernel(report *to)
{
    const ot_machine *machine = &to->machine;
    int major = 0, minor = 0;
    int known = sscanf(machine->kernel, "%d.%d", &major, &minor) == 2;
    int old = known && (major < 5 || (major == 5 && minor < 10));
    add(to, old ? LEVEL_WARNING : LEVEL_OK, "kernel",
        old ? "older than 5.10, io_uring may be missing or slow: install a newer kernel" : NULL, "Linux %s",
        machine->kernel);
    if (machine->wsl == 1)
        add(to, LEVEL_WARNING, "wsl",
            "it has neither GPU nor io_uring: `wsl --set-version DISTRIBUTION 2` in Windows",
            "Windows Subsystem for Linux 1");
    if (machine->wsl == 2)
        add(to, LEVEL_OK, "wsl",
            "memory= in %UserProfile%\\.wslconfig sets its RAM; keep files in ~, not in /mnt/c",
            "Windows Subsystem for Linux 2");
    if (machine->container[0] != '\0')
        add(to, LEVEL_OK, "container", NULL, "%s", machine->container);
}

static const char *uring_advice(const ot_machine *machine)
{
    if (machine->uring_disabled > 0)
        return "the slower threads are used; `sysctl kernel.io_uring_disabled=0` allows it";
    if (machine->uring_errno == ENOMEM)
        return "the slower threads are used; raise the memlock limit";
    if (machine->container[0] != '\0' || machine->uring_errno == EPERM)
        return "the slower threads are used; in a container `docker run --security-opt seccomp=unconfined` allows it";
    return "the slower threads are used; it needs Linux 5.10 or later with CONFIG_IO_URING";
}

/* What the I/O slots of a run take at most; they are registered with io_uring, which locks them. */
#define MEMLOCK_ENOUGH_BYTES (UINT64_C(4) << 30)

static void check_uring(report *to)
{
    const ot_machine *machine = &to->machine;
    char size[OT_SIZE_TEXT_BYTES];
    if (machine->uring_errno == 0)
        add(to, LEVEL_OK, "io_uring", NULL, "available");
    else
        add(to, LEVEL_WARNING, "io_uring", uring_advice(machine), "%s", strerror(machine->uring_errno));
    if (machine->can_lock)
        add(to, LEVEL_OK, "memlock", NULL, "no limit (CAP_IPC_LOCK)");
    else if (machine->memlock_bytes == UINT64_MAX)
        add(to, LEVEL_OK, "memlock", NULL, "no limit");
    else
        add(to, machine->memlock_bytes < MEMLOCK_ENOUGH_BYTES ? LEVEL_WARNING : LEVEL_OK, "memlock",
            machine->memlock_bytes < MEMLOCK_ENOUGH_BYTES
                ? "buffers stay unregistered; `memlock unlimited` in /etc/security/limits.conf, in a container "
                  "`docker run --ulimit memlock=-1`"
                : NULL,
            "%s", ot_format_size(machine->memlock_bytes, size));
}

static const char *folder_advice(const report *to, const ot_dir_info *info)
{
    if (info->is_ram)
        return "its bytes are memory, not a drive: give a folder on an SSD";
    if (info->is_network && to->machine.wsl > 0)
        return "Windows' or a remote drive, slow: give a folder in the Linux file system";
    if (info->is_network)
        return "a remote drive or one behind a user process, slow: give a folder on a local SSD";
    if (strcmp(info->filesystem, "overlay") == 0)
        return "the container's own layer, slow: mount a folder of the host's drive";
    if (strcmp(info->filesystem, "btrfs") == 0)
        return "copy-on-write scatters what is rewritten: `chattr +C` the empty folder";
    if (info->is_cow)
        return "copy-on-write scatters what is rewritten: ext4 or xfs is faster";
    if (!info->direct)
        return "everything passes the page cache: ext4 or xfs on a local SSD is faster";
    return NULL;
}

/* A folder that was asked for must do; the current one, looked at by default, need not hold anything. Returns
 * its file system, or 0. */
static uint64_t check_folder(report *to, const char *path, int asked)
{
    ot_dir_info info;
    severity bad = asked ? LEVEL_ERROR : LEVEL_WARNING;
    if (ot_dir_probe(path, &info) != OT_OK) {
        add(to, bad, "folder", NULL, "%s", ot_error_text());
        to->bad_folders += asked;
        return 0;
    }
    char space[OT_SIZE_TEXT_BYTES], total[OT_SIZE_TEXT_BYTES], direct[64];
    const char *advice = folder_advice(to, &info);
    if (info.direct)
        snprintf(direct, sizeof direct, "O_DIRECT at %" PRIu32 "/%" PRIu32 " bytes (address/offset)",
                 info.memory_alignment, info.offset_alignment);
    else
        snprintf(direct, sizeof direct, "no O_DIRECT (%s)", strerror(info.direct_errno));
    add(to,
        info.is_ram      ? bad
        : advice != NULL ? LEVEL_WARNING
                         : LEVEL_OK,
        "folder", advice, "%s: %s, %s, %s of %s free", path, info.filesystem, direct,
        ot_format_size(info.free_bytes, space), ot_format_size(info.total_bytes, total));
    to->bad_folders += asked && info.is_ram;
    return info.device;
}

static void check_folders(report *to, const ot_option_list *folders)
{
    uint64_t devices[OT_OPTION_LIST_MAX];
    int shared = 0;
    for (size_t i = 0; i < folders->count; i++) {
        devices[i] = check_folder(to, folders->items[i], 1);
        for (size_t j = 0; j < i; j++)
            shared |= devices[i] != 0 && devices[i] == devices[j];
    }
    if (folders->count == 0)
        check_folder(to, ".", 0);
    if (shared)
        add(to, LEVEL_WARNING, "folders", "striping over one drive gains nothing: give one folder a drive",
            "several are on one file system");
}

static void check_memory(report *to)
{
    if (ot_memory_budget_read("", &to->memory) != OT_OK) {
        to->memory = (ot_memory_budget){.source = "unknown"};
        add(to, LEVEL_ERROR, "memory", NULL, "%s", ot_error_text());
        return;
    }
    ot_clean_utf8(to->memory.source);
    const ot_memory_budget *memory = &to->memory;
    int limited = memory->bytes < memory->available_bytes;
    char usable[OT_SIZE_TEXT_BYTES], total[OT_SIZE_TEXT_BYTES];
    add(to, limited ? LEVEL_WARNING : LEVEL_OK, "memory",
        limited ? "raise that limit: `docker run --memory`, or MemoryMax= of the systemd unit" : NULL,
        "%s of %s usable, by %s", ot_format_size(memory->bytes, usable),
        ot_format_size(memory->total_bytes, total), memory->source);
}

static void check_huge_pages(report *to)
{
    const ot_machine *machine = &to->machine;
    int off =
        strcmp(machine->huge_page_mode, "always") != 0 && strcmp(machine->huge_page_mode, "madvise") != 0;
    char size[OT_SIZE_TEXT_BYTES], reserved[96] = "no explicit ones reserved";
    if (machine->huge_pages > 0)
        snprintf(reserved, sizeof reserved, "%" PRIu64 " of %" PRIu64 " reserved ones of %s free",
                 machine->huge_pages_free, machine->huge_pages,
                 ot_format_size(machine->huge_page_bytes, size));
    add(to, off ? LEVEL_WARNING : LEVEL_OK, "huge pages",
        off ? "`echo madvise > /sys/kernel/mm/transparent_hugepage/enabled` speeds up the optimizer" : NULL,
        "transparent: %s; %s", machine->huge_page_mode[0] != '\0' ? machine->huge_page_mode : "none",
        reserved);
}

static ot_status check_cpus(report *to)
{
    const ot_machine *machine = &to->machine;
    const ot_cpu_budget *cpus = &to->cpus;
    OT_TRY(ot_cpu_budget_read("", &to->cpus));
    ot_clean_utf8(to->cpus.source);
    const char *advice =
        cpus->threads < cpus->affinity  ? "raise that quota: `docker run --cpus`, or CPUQuota= of the "
                                          "systemd unit"
        : cpus->affinity < cpus->online ? "start it without taskset, or mpirun with --bind-to none"
                                        : NULL;
    add(to, advice != NULL ? LEVEL_WARNING : LEVEL_OK, "processors", advice, "%d of %d usable, by %s",
        cpus->threads, cpus->online, cpus->source);
    if (getenv("OMP_NUM_THREADS") != NULL)
        add(to, LEVEL_OK, "threads", "--threads sets the number of threads", "OMP_NUM_THREADS=%s is ignored",
            getenv("OMP_NUM_THREADS"));

    const char *names[OT_ISA_NAMES_MAX];
    size_t count = ot_isa_names(machine->isa, names);
    char sets[128] = "";
    for (size_t i = 0; i < count; i++)
        snprintf(sets + strlen(sets), sizeof sets - strlen(sets), "%s%s", i > 0 ? " " : "", names[i]);
    int plain = strcmp(names[0], "x86-64") == 0 && count == 1;
    add(to, plain ? LEVEL_WARNING : LEVEL_OK, "cpu",
        plain ? "without AVX2 the optimizer is several times slower; a virtual machine may hide it" : NULL,
        "%s: %s", machine->cpu, sets);
    add(to, LEVEL_OK, "numa",
        machine->numa_nodes > 1 ? "`numactl --interleave=all offtrain …` uses the memory of all of them"
                                : NULL,
        "%d node%s", machine->numa_nodes, machine->numa_nodes > 1 ? "s" : "");
    return OT_OK;
}

static const char *gpu_advice(const ot_machine *machine)
{
    if (machine->driver[0] == '\0' && machine->wsl == 0)
        return "its driver is not loaded: install it (Debian nvidia-driver, Ubuntu nvidia-driver-NNN) and restart";
    if (machine->gpu_devices == 0)
        return "the driver is loaded, but no /dev/nvidia* is here: `docker run --gpus all`, or run nvidia-smi once";
    return ot_gpu_build.missing;
}

static void check_gpus(report *to)
{
    const ot_machine *machine = &to->machine;
    const char *advice = gpu_advice(machine), *driver = machine->driver[0] != '\0' ? machine->driver : "none";
    severity level = advice != NULL ? LEVEL_WARNING : LEVEL_OK;
    for (size_t i = 0; i < machine->gpu_count && i < OT_MACHINE_GPUS_MAX; i++)
        add(to, level, "gpu", advice, "%s at %s, driver %s", machine->gpus[i].name, machine->gpus[i].address,
            driver);
    if (machine->gpu_count > 0)
        return;
    if (machine->gpu_devices > 0)
        add(to, level, "gpu", advice, "%d behind the driver of the host", machine->gpu_devices);
    else
        add(to, LEVEL_OK, "gpu", "training runs on the CPU device", "no NVIDIA GPU found");
}

static void print_lines(const report *from)
{
    for (size_t i = 0; i < from->count; i++) {
        const check *line = &from->checks[i];
        printf("%-8s %-11s %s%s%s\n", level_names[line->level], line->subject, line->found,
               line->advice != NULL ? " → " : "", line->advice != NULL ? line->advice : "");
    }
}

static ot_status print_json(const report *from)
{
    json_t *checks = json_array();
    for (size_t i = 0; i < from->count; i++) {
        const check *line = &from->checks[i];
        json_array_append_new(checks,
                              json_pack("{s:s, s:s, s:s, s:s?}", "level", level_names[line->level], "subject",
                                        line->subject, "found", line->found, "advice", line->advice));
    }
    json_t *object = json_pack("{s:o, s:I, s:s, s:i, s:s}", "checks", checks, "host_budget_bytes",
                               (json_int_t)from->memory.bytes, "host_budget_source", from->memory.source,
                               "threads", from->cpus.threads, "threads_source", from->cpus.source);
    return ot_json_line(object, stdout, "the JSON output");
}

static ot_status run_checks(report *to, const ot_option_list *folders)
{
    ot_machine_read("", &to->machine);
    check_kernel(to);
    check_uring(to);
    check_folders(to, folders);
    check_memory(to);
    check_huge_pages(to);
    OT_TRY(check_cpus(to));
    check_gpus(to);
    return OT_OK;
}

ot_status ot_command_doctor(int argc, char **argv)
{
    doctor_options given = {0};
    int help;
    OT_TRY(ot_options_parse(&table, argc, argv, &given, &help));
    if (help)
        return OT_OK;
    report *found = calloc(1, sizeof *found);
    if (found == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for the report");
    ot_status status = run_checks(found, &given.nvme);
    if (status == OT_OK && given.json)
        status = print_json(found);
    else if (status == OT_OK)
        print_lines(found);
    if (status == OT_OK && found->bad_folders > 0)
        status = ot_fail(OT_ERR_USAGE,
                         "%d of %zu folders of --nvme cannot hold training state: see the error lines",
                         found->bad_folders, given.nvme.count);
    free(found);
    return status;
}
