/* Limits from /proc and the control groups.
 *
 * A group is bound by its own limits and by those of every group above it, so each hierarchy is walked from
 * the process's group up to where it is mounted. Files that are missing set no limit: controllers may be off
 * in a group, and inside a cgroup namespace the group's path may not exist below the mount, whose top then is
 * the group. */
#include "io/budget.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/sysfile.h"

/* "No limit" in v1 is the largest multiple of the page size, which differs between kernels: 4 KiB to 64 KiB.
 */
#define V1_UNLIMITED UINT64_C(0x7FFFFFFFFFFF0000)

/* One directory of a hierarchy; `top`: it is the mount point, and what lies above it cannot be seen. */
typedef void visit_group(const char *root, const char *directory, int top, void *context);

typedef struct mount_line {
    char *root, *point, *type, *options;
} mount_line;

/* Whether the comma-separated `list` holds `word`. */
static int list_holds(const char *list, const char *word)
{
    size_t length = strlen(word);
    for (const char *at = list; at != NULL; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, word, length) == 0 && strchr(",\n", at[length]) != NULL)
            return 1;
    }
    return 0;
}

/* The path of the process's group in the hierarchy of `controller`, or of v2 where that is NULL. */
static int find_group(const char *root, const char *controller, char path[PATH_MAX])
{
    FILE *file = ot_sysfile_open(root, "/proc/self/cgroup");
    if (file == NULL)
        return 0;
    char *line = NULL;
    size_t size = 0;
    int found = 0;
    while (!found && getline(&line, &size, file) > 0) {
        char *controllers = strchr(line, ':');
        char *group = controllers != NULL ? strchr(controllers + 1, ':') : NULL;
        if (group == NULL)
            continue;
        *controllers++ = '\0';
        *group++ = '\0';
        group[strcspn(group, "\n")] = '\0';
        found = controller == NULL ? strcmp(line, "0") == 0 : list_holds(controllers, controller);
        if (found && strlen(group) < PATH_MAX)
            strcpy(path, group);
    }
    free(line);
    fclose(file);
    return found;
}

/* mountinfo writes blanks and backslashes as \ooo. */
static void unescape(char *text)
{
    char *out = text;
    while (*text != '\0') {
        unsigned code;
        if (*text == '\\' && strspn(text + 1, "01234567") >= 3 && sscanf(text + 1, "%3o", &code) == 1) {
            *out++ = (char)code;
            text += 4;
        } else {
            *out++ = *text++;
        }
    }
    *out = '\0';
}

/* Cuts a line of mountinfo: id parent device ROOT POINT options [optional fields] - TYPE source OPTIONS. */
static int parse_mount(char *line, mount_line *out)
{
    char *rest, *field = strtok_r(line, " \n", &rest);
    char **const wanted[] = {NULL, NULL, NULL, &out->root, &out->point};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++, field = strtok_r(NULL, " \n", &rest)) {
        if (field == NULL)
            return 0;
        if (wanted[i] != NULL)
            *wanted[i] = field;
    }
    while (field != NULL && strcmp(field, "-") != 0)
        field = strtok_r(NULL, " \n", &rest);
    out->type = strtok_r(NULL, " \n", &rest);
    strtok_r(NULL, " \n", &rest);
    out->options = strtok_r(NULL, " \n", &rest);
    if (field == NULL || out->type == NULL || out->options == NULL)
        return 0;
    unescape(out->root);
    unescape(out->point);
    return 1;
}

/* The part of `group` below a mount that shows the hierarchy from `mount_root` on; NULL where the group lies
 * elsewhere, as seen from a cgroup namespace. */
static const char *below(const char *group, const char *mount_root)
{
    size_t length = strcmp(mount_root, "/") == 0 ? 0 : strlen(mount_root);
    if (strncmp(group, mount_root, length) != 0 || (group[length] != '/' && group[length] != '\0'))
        return NULL;
    if (strcmp(group, "/..") == 0 || strncmp(group, "/../", 4) == 0)
        return NULL;
    return strcmp(group + length, "/") == 0 ? "" : group + length;
}

/* The directory of the process's group and, in `*top`, the length of the mount point it begins with. Of
 * several mounts the one that shows the group with most of the tree above it is taken. */
static int find_directory(const char *root, const char *controller, char directory[PATH_MAX], size_t *top)
{
    char group[PATH_MAX] = "/";
    FILE *file = find_group(root, controller, group) ? ot_sysfile_open(root, "/proc/self/mountinfo") : NULL;
    if (file == NULL)
        return 0;
    char *line = NULL;
    size_t size = 0, best = SIZE_MAX;
    int found = 0;
    while (getline(&line, &size, file) > 0) {
        mount_line mount;
        if (!parse_mount(line, &mount) ||
            strcmp(mount.type, controller == NULL ? "cgroup2" : "cgroup") != 0 ||
            (controller != NULL && !list_holds(mount.options, controller)))
            continue;
        const char *path = below(group, mount.root);
        size_t hidden = path != NULL ? strlen(mount.root) : SIZE_MAX;
        if ((found && hidden >= best) || strlen(mount.point) + strlen(path != NULL ? path : "") >= PATH_MAX)
            continue;
        snprintf(directory, PATH_MAX, "%s%s", mount.point, path != NULL ? path : "");
        *top = strlen(mount.point);
        best = hidden;
        found = 1;
    }
    free(line);
    fclose(file);
    return found;
}

static void walk_up(const char *root, const char *controller, visit_group *visit, void *context)
{
    char directory[PATH_MAX];
    size_t top;
    if (!find_directory(root, controller, directory, &top))
        return;
    while (strlen(directory) > top) {
        visit(root, directory, 0, context);
        *strrchr(directory, '/') = '\0';
    }
    visit(root, directory, 1, context);
}

/* Reads a whole number from a file of a group. */
static int group_number(const char *root, const char *directory, const char *file, uint64_t *value)
{
    char path[PATH_MAX + 64];
    snprintf(path, sizeof path, "%s/%s", directory, file);
    return ot_sysfile_number(root, path, value);
}

/* Names a group's file; of a longer path the end, which tells more. */
static void name_source(char source[256], const char *directory, const char *file)
{
    char path[PATH_MAX + 64];
    size_t length = (size_t)snprintf(path, sizeof path, "%s/%s", directory, file);
    if (length < 256)
        memcpy(source, path, length + 1);
    else
        snprintf(source, 256, "...%s", path + length - 252);
}

static void apply_memory_limit(ot_memory_budget *budget, uint64_t limit, uint64_t used, const char *directory,
                               const char *file)
{
    uint64_t room = limit > used ? limit - used : 0;
    if (room < budget->cgroup_bytes)
        budget->cgroup_bytes = room;
    if (room < budget->bytes) {
        budget->bytes = room;
        name_source(budget->source, directory, file);
    }
}

/* What a group uses less the file cache that the kernel drops first. `stat` gets the group's memory.stat. */
static uint64_t unreclaimable(const char *root, const char *directory, const char *usage_file,
                              const char *cache_field, char *stat, size_t stat_size)
{
    char path[PATH_MAX + 64];
    uint64_t usage = 0, cache = 0;
    group_number(root, directory, usage_file, &usage);
    snprintf(path, sizeof path, "%s/memory.stat", directory);
    ot_sysfile_read(root, path, stat, stat_size);
    ot_sysfile_field(stat, cache_field, &cache);
    return usage > cache ? usage - cache : 0;
}

static void visit_memory_v2(const char *root, const char *directory, int top, void *context)
{
    (void)top;
    static const char *const files[] = {"memory.max", "memory.high"};
    char stat[8192];
    uint64_t used = unreclaimable(root, directory, "memory.current", "inactive_file", stat, sizeof stat),
             limit;
    for (size_t i = 0; i < 2; i++)
        if (group_number(root, directory, files[i], &limit))
            apply_memory_limit(context, limit, used, directory, files[i]);
}

static void visit_memory_v1(const char *root, const char *directory, int top, void *context)
{
    char stat[8192];
    uint64_t used =
        unreclaimable(root, directory, "memory.usage_in_bytes", "total_inactive_file", stat, sizeof stat);
    uint64_t limit;
    if (group_number(root, directory, "memory.limit_in_bytes", &limit) && limit < V1_UNLIMITED)
        apply_memory_limit(context, limit, used, directory, "memory.limit_in_bytes");
    /* In a container the groups above are hidden, but their smallest limit is told here. */
    if (top && ot_sysfile_field(stat, "hierarchical_memory_limit", &limit) && limit < V1_UNLIMITED)
        apply_memory_limit(context, limit, used, directory, "memory.stat");
}

ot_status ot_memory_budget_read(const char *root, ot_memory_budget *out)
{
    char meminfo[8192];
    uint64_t total_kib, available_kib;
    if (!ot_sysfile_read(root, "/proc/meminfo", meminfo, sizeof meminfo))
        return ot_fail(OT_ERR_IO, "cannot read %s/proc/meminfo: %s; is /proc mounted?", root,
                       strerror(errno));
    if (!ot_sysfile_field(meminfo, "MemTotal", &total_kib) ||
        !ot_sysfile_field(meminfo, "MemAvailable", &available_kib))
        return ot_fail(
            OT_ERR_IO,
            "%s/proc/meminfo has no MemTotal or no MemAvailable; a kernel of 3.14 or later is needed", root);
    *out = (ot_memory_budget){.bytes = available_kib << 10,
                              .total_bytes = total_kib << 10,
                              .available_bytes = available_kib << 10,
                              .cgroup_bytes = UINT64_MAX,
                              .source = "MemAvailable"};
    walk_up(root, NULL, visit_memory_v2, out);
    walk_up(root, "memory", visit_memory_v1, out);
    return OT_OK;
}

static void apply_quota(ot_cpu_budget *budget, uint64_t quota_us, uint64_t period_us, const char *directory,
                        const char *file)
{
    if (quota_us == 0 || period_us == 0)
        return;
    double cpus = (double)quota_us / (double)period_us;
    if (budget->quota == 0 || cpus < budget->quota)
        budget->quota = cpus;
    /* Rounded up: a quota of 1.5 keeps two threads busy for three quarters of the time, and one would lose a
     * third. */
    uint64_t threads = quota_us / period_us + (quota_us % period_us != 0);
    if (threads < (uint64_t)budget->threads) {
        budget->threads = (int)threads;
        name_source(budget->source, directory, file);
    }
}

static void visit_cpu_v2(const char *root, const char *directory, int top, void *context)
{
    (void)top;
    char path[PATH_MAX + 64], text[64];
    uint64_t quota_us, period_us;
    snprintf(path, sizeof path, "%s/cpu.max", directory);
    if (ot_sysfile_read(root, path, text, sizeof text) &&
        sscanf(text, "%" SCNu64 " %" SCNu64, &quota_us, &period_us) == 2)
        apply_quota(context, quota_us, period_us, directory, "cpu.max");
}

static void visit_cpu_v1(const char *root, const char *directory, int top, void *context)
{
    (void)top;
    uint64_t quota_us, period_us;
    if (group_number(root, directory, "cpu.cfs_quota_us", &quota_us) &&
        group_number(root, directory, "cpu.cfs_period_us", &period_us))
        apply_quota(context, quota_us, period_us, directory, "cpu.cfs_quota_us");
}

/* Of the process, not of the calling thread, which may be a pinned worker. 0 where the kernel does not say.
 */
static int affinity_count(void)
{
    int count = 0, refused = 1;
    for (int max = 1024; refused && max <= 1 << 20; max *= 2) { /* EINVAL: the machine has more */
        cpu_set_t *set = CPU_ALLOC((size_t)max);
        size_t size = CPU_ALLOC_SIZE((size_t)max);
        if (set == NULL)
            return 0;
        refused = sched_getaffinity(getpid(), size, set) != 0;
        count = refused ? 0 : CPU_COUNT_S(size, set);
        CPU_FREE(set);
    }
    return count;
}

ot_status ot_cpu_budget_read(const char *root, ot_cpu_budget *out)
{
    char online[4096];
    *out = (ot_cpu_budget){.affinity = affinity_count(), .source = "affinity"};
    ot_sysfile_read(root, "/sys/devices/system/cpu/online", online, sizeof online);
    out->online = ot_sysfile_list_count(online);
    if (out->online == 0)
        out->online = (int)sysconf(_SC_NPROCESSORS_ONLN);
    if (out->affinity == 0)
        out->affinity = out->online;
    out->threads = out->affinity > 1 ? out->affinity : 1;
    walk_up(root, NULL, visit_cpu_v2, out);
    walk_up(root, "cpu", visit_cpu_v1, out);
    return OT_OK;
}
