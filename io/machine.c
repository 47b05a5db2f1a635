/* Reading what kind of machine this is. The GPU's own library is not asked: doctor must say what is wrong with a driver that
 * does not load, so GPUs are found on the PCI bus and the driver by what its kernel module shows. */
#include "io/machine.h"

#include <ctype.h>
#include <dirent.h>
#include <inttypes.h>
#include <liburing.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/utsname.h>

#include "io/sysfile.h"

unsigned ot_isa_find(void)
{
    unsigned isa = 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        isa |= OT_ISA_AVX2;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        isa |= OT_ISA_AVX512;
    if ((isa & OT_ISA_AVX512) != 0 && __builtin_cpu_supports("avx512bf16"))
        isa |= OT_ISA_AVX512_BF16;
#endif
    return isa;
}

size_t ot_isa_names(unsigned isa, const char *names[OT_ISA_NAMES_MAX])
{
    size_t count = 0;
#if defined(__x86_64__)
    names[count++] = "x86-64";
#elif defined(__aarch64__)
    names[count++] = "AArch64";
#else
    names[count++] = "baseline";
#endif
    if ((isa & OT_ISA_AVX2) != 0)
        names[count++] = "AVX2+FMA";
    if ((isa & OT_ISA_AVX512) != 0)
        names[count++] = "AVX-512";
    if ((isa & OT_ISA_AVX512_BF16) != 0)
        names[count++] = "AVX512-BF16";
    return count;
}

static int exists(const char *root, const char *path)
{
    char full[PATH_MAX];
    struct stat facts;
    int n = snprintf(full, sizeof full, "%s%s", root, path);
    return n > 0 && (size_t)n < sizeof full && stat(full, &facts) == 0;
}

/* Copies `text` up to the first of the characters in `ends`. */
static void copy_until(char *out, size_t size, const char *text, const char *ends)
{
    snprintf(out, size, "%.*s", (int)strcspn(text, ends), text);
}

static void read_kernel(const char *root, ot_machine *out)
{
    if (!ot_sysfile_read(root, "/proc/sys/kernel/osrelease", out->kernel, sizeof out->kernel)) {
        struct utsname name;
        if (uname(&name) == 0)
            snprintf(out->kernel, sizeof out->kernel, "%s", name.release);
    }
    out->wsl = ot_sysfile_wsl(root);
}

static void read_container(const char *root, ot_machine *out)
{
    static const struct {
        const char *path, *name;
    } files[] = {{"/run/.containerenv", "podman"}, {"/.dockerenv", "docker"}};
    static const struct {
        const char *word, *name;
    } groups[] = {{"kubepods", "kubernetes"}, {"/docker", "docker"}, {"libpod", "podman"}, {"/lxc", "lxc"}};
    char text[4096];
    ot_sysfile_read(root, "/proc/self/cgroup", text, sizeof text);
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        if (strstr(text, groups[i].word) != NULL && out->container[0] == '\0')
            strcpy(out->container, groups[i].name);
    if (exists(root, "/run/secrets/kubernetes.io"))
        strcpy(out->container, "kubernetes");
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (exists(root, files[i].path) && out->container[0] == '\0')
            strcpy(out->container, files[i].name);
    /* systemd writes what it was started in here. */
    if (out->container[0] == '\0' && ot_sysfile_read(root, "/run/systemd/container", text, sizeof text))
        copy_until(out->container, sizeof out->container, text, "\n");
}

static void read_cpu(const char *root, ot_machine *out)
{
    strcpy(out->cpu, "unknown");
    out->isa = ot_isa_find();
    char nodes[4096], line[512];
    FILE *file = ot_sysfile_open(root, "/proc/cpuinfo");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) == 0 && colon != NULL) {
            copy_until(out->cpu, sizeof out->cpu, colon + 1 + strspn(colon + 1, " \t"), "\n");
            break;
        }
    }
    if (file != NULL)
        fclose(file);
    ot_sysfile_read(root, "/sys/devices/system/node/online", nodes, sizeof nodes);
    out->numa_nodes = ot_sysfile_list_count(nodes);
    if (out->numa_nodes == 0)
        out->numa_nodes = 1; /* a kernel built without NUMA */
}

static void read_memory(const char *root, ot_machine *out)
{
    enum { CAPABILITY_IPC_LOCK = 14 };
    char text[8192];
    uint64_t kib;
    ot_sysfile_read(root, "/sys/kernel/mm/transparent_hugepage/enabled", text, sizeof text);
    const char *mode = strchr(text, '['); /* "always [madvise] never" */
    if (mode != NULL)
        copy_until(out->huge_page_mode, sizeof out->huge_page_mode, mode + 1, "]");
    ot_sysfile_read(root, "/proc/meminfo", text, sizeof text);
    ot_sysfile_field(text, "HugePages_Total", &out->huge_pages);
    ot_sysfile_field(text, "HugePages_Free", &out->huge_pages_free);
    if (ot_sysfile_field(text, "Hugepagesize", &kib))
        out->huge_page_bytes = kib << 10;

    struct rlimit limit;
    out->memlock_bytes = UINT64_MAX;
    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        out->memlock_bytes = limit.rlim_cur;
    uint64_t effective;
    ot_sysfile_read(root, "/proc/self/status", text, sizeof text);
    const char *line = strstr(text, "\nCapEff:");
    if (line != NULL && sscanf(line, "\nCapEff: %" SCNx64, &effective) == 1)
        out->can_lock = (int)(effective >> CAPABILITY_IPC_LOCK & 1);
}

static void read_uring(const char *root, ot_machine *out)
{
    uint64_t disabled;
    struct io_uring ring;
    out->uring_errno = -io_uring_queue_init(4, &ring, 0);
    if (out->uring_errno == 0)
        io_uring_queue_exit(&ring);
    out->uring_disabled =
        ot_sysfile_number(root, "/proc/sys/kernel/io_uring_disabled", &disabled) ? (int)disabled : -1;
}

/* "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb …", for the open module "… Kernel
 * Module for x86_64  550.54.14  Release Build …": the first word that is a number with a point. */
static void read_driver(const char *root, ot_machine *out)
{
    char text[1024], *rest;
    ot_sysfile_read(root, "/proc/driver/nvidia/version", text, sizeof text);
    text[strcspn(text, "\n")] = '\0';
    for (char *word = strtok_r(text, " \t", &rest); word != NULL; word = strtok_r(NULL, " \t", &rest))
        if (strchr(word, '.') != NULL && word[strspn(word, "0123456789.")] == '\0') {
            snprintf(out->driver, sizeof out->driver, "%s", word);
            return;
        }
}

static void name_gpu(const char *root, ot_gpu *gpu)
{
    char path[128], text[1024], device[16];
    snprintf(path, sizeof path, "/proc/driver/nvidia/gpus/%s/information", gpu->address);
    ot_sysfile_read(root, path, text, sizeof text);
    if (strncmp(text, "Model:", 6) == 0) {
        copy_until(gpu->name, sizeof gpu->name, text + 6 + strspn(text + 6, " \t"), "\n");
        return;
    }
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/device", gpu->address);
    ot_sysfile_read(root, path, device, sizeof device);
    snprintf(gpu->name, sizeof gpu->name, "NVIDIA 10de:%s", strncmp(device, "0x", 2) == 0 ? device + 2 : "?");
}

/* Vendor 10de with a display class, 03xx: the same cards carry sound and USB functions. */
static int is_gpu(const char *root, const char *address)
{
    char path[NAME_MAX + 64], vendor[16], class[16];
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/vendor", address);
    ot_sysfile_read(root, path, vendor, sizeof vendor);
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/class", address);
    ot_sysfile_read(root, path, class, sizeof class);
    return strcmp(vendor, "0x10de") == 0 && strncmp(class, "0x03", 4) == 0;
}

static int visible(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

/* The sorted names in a folder; -1 where it cannot be read. The caller frees them. */
static int list_folder(const char *root, const char *path, struct dirent ***names)
{
    char full[PATH_MAX];
    int n = snprintf(full, sizeof full, "%s%s", root, path);
    return n > 0 && (size_t)n < sizeof full ? scandir(full, names, visible, alphasort) : -1;
}

static void read_gpus(const char *root, ot_machine *out)
{
    struct dirent **names = NULL;
    int count = list_folder(root, "/sys/bus/pci/devices", &names);
    for (int i = 0; i < count; i++) {
        const char *address = names[i]->d_name;
        if (strlen(address) < sizeof out->gpus->address && is_gpu(root, address) &&
            out->gpu_count++ < OT_MACHINE_GPUS_MAX) {
            ot_gpu *gpu = &out->gpus[out->gpu_count - 1];
            strcpy(gpu->address, address);
            name_gpu(root, gpu);
        }
        free(names[i]);
    }
    free(names);

    names = NULL;
    count = list_folder(root, "/dev", &names);
    for (int i = 0; i < count; i++) {
        const char *name = names[i]->d_name;
        out->gpu_devices += (strncmp(name, "nvidia", 6) == 0 && isdigit((unsigned char)name[6])) ||
                            (out->wsl > 0 && strcmp(name, "dxg") == 0);
        free(names[i]);
    }
    free(names);
}

void ot_machine_read(const char *root, ot_machine *out)
{
    *out = (ot_machine){0};
    read_kernel(root, out);
    read_container(root, out);
    read_cpu(root, out);
    read_memory(root, out);
    read_uring(root, out);
    read_driver(root, out);
    read_gpus(root, out);
}
