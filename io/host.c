/* Arenas by mmap, and the allocator's own counters. */
#include "io/host.h"

#include <errno.h>
#include <inttypes.h>
#include <linux/mempolicy.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#ifdef OT_HAVE_JEMALLOC
#include <jemalloc/jemalloc.h>
#endif

#include "io/log.h"
#include "io/text.h"

#ifdef OT_HAVE_JEMALLOC
/* Read by jemalloc before main. Freed pages stay with the process: giving them back costs a page fault at every next use,
 * and what is big lives in arenas anyway. */
extern const char *malloc_conf;
__attribute__((visibility("default"))) const char *malloc_conf = "dirty_decay_ms:-1,muzzy_decay_ms:-1";
#endif

/* Newer than some distributions' headers. */
#ifndef PR_SET_VMA
#define PR_SET_VMA 0x53564d41
#define PR_SET_VMA_ANON_NAME 0
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

struct ot_arena {
    ot_host *host;
    ot_arena *next;
    char name[48];
    unsigned char *base;
    uint64_t bytes, taken;
};

struct ot_host {
    uint64_t budget, bytes, peak;
    int node; /* -1: any */
    ot_arena *first, **end;
};

ot_status ot_host_open(uint64_t budget_bytes, ot_host **out)
{
    ot_host *host = calloc(1, sizeof *host);
    if (host == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for the host tier");
    host->budget = budget_bytes;
    host->node = -1;
    host->end = &host->first;
    *out = host;
    return OT_OK;
}

void ot_host_close(ot_host *host)
{
    if (host == NULL)
        return;
    while (host->first != NULL)
        ot_arena_close(host->first);
    free(host);
}

/* Maps `bytes` at a multiple of 2 MiB: the kernel aligns a plain mapping to small pages only, so more is
 * mapped and the ends are given back. */
static void *map_aligned(uint64_t bytes)
{
    uint64_t padded = bytes + OT_HUGE_PAGE_BYTES;
    unsigned char *raw =
        mmap(NULL, padded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED)
        return MAP_FAILED;
    unsigned char *base = (unsigned char *)ot_round_up((uintptr_t)raw, OT_HUGE_PAGE_BYTES);
    size_t before = (size_t)(base - raw), after = padded - bytes - before;
    if (before > 0)
        munmap(raw, before);
    if (after > 0)
        munmap(base + bytes, after);
    return base;
}

static void *map_explicit(uint64_t bytes)
{
    /* Of 2 MiB, whatever the default is: of a 1 GiB page no part can be given back. */
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | 21 << MAP_HUGE_SHIFT;
    return mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
}

void ot_host_prefer(ot_host *host, int node)
{
    host->node = node;
}

/* Before its pages are touched. */
static void place(void *base, uint64_t bytes, int node)
{
    enum { BITS = 8 * sizeof(unsigned long), NODES_MAX = 1024 };
    unsigned long nodes[NODES_MAX / BITS] = {0};
    if (node < 0 || node >= NODES_MAX || base == MAP_FAILED)
        return;
    nodes[node / BITS] = 1ul << node % BITS;
    (void)!syscall(SYS_mbind, base, bytes, MPOL_PREFERRED, nodes, NODES_MAX + 1, 0);
}

/* Touches every page. Kernels before 5.14 do not know MADV_POPULATE_WRITE; a byte a page does the same there.
 */
static int populate(unsigned char *base, uint64_t bytes)
{
    int result;
    do
        result = madvise(base, bytes, MADV_POPULATE_WRITE);
    while (result != 0 && (errno == EAGAIN || errno == EINTR));
    if (result == 0 || errno != EINVAL)
        return result;
    for (uint64_t at = 0; at < bytes; at += OT_PAGE_BYTES)
        ((volatile unsigned char *)base)[at] = 0;
    return 0;
}

static void *populated(void *base, uint64_t bytes, int node)
{
    place(base, bytes, node);
    if (base == MAP_FAILED || populate(base, bytes) == 0)
        return base;
    int code = errno;
    munmap(base, bytes);
    errno = code;
    return MAP_FAILED;
}

/* A control group may refuse explicit pages that the pool has, which shows only when they are touched. */
static void *map_populated(uint64_t bytes, const char *name, ot_arena_pages pages, int node)
{
    if (pages == OT_PAGES_EXPLICIT || pages == OT_PAGES_BEST) {
        void *base = populated(map_explicit(bytes), bytes, node);
        if (base != MAP_FAILED)
            return base;
        if (pages == OT_PAGES_EXPLICIT)
            ot_log(
                OT_LOG_WARNING,
                "arena %s: no explicit huge pages (%s): using transparent ones; reserve them in vm.nr_hugepages",
                name, strerror(errno));
    }
    void *base = map_aligned(bytes);
    if (base != MAP_FAILED)
        madvise(base, bytes, pages == OT_PAGES_SMALL ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
    return populated(base, bytes, node);
}

static ot_status over_budget(const ot_host *host, const char *name, uint64_t bytes)
{
    char need[OT_SIZE_TEXT_BYTES], budget[OT_SIZE_TEXT_BYTES], list[512] = "";
    size_t used = 0;
    for (const ot_arena *arena = host->first; arena != NULL && used < sizeof list; arena = arena->next) {
        char size[OT_SIZE_TEXT_BYTES];
        int n = snprintf(list + used, sizeof list - used, "%s%s %s", used > 0 ? ", " : "", arena->name,
                         ot_format_size(arena->bytes, size));
        used += n > 0 ? (size_t)n : 0;
    }
    return ot_fail(
        OT_ERR_FIT,
        "arena %s needs %s of host memory, which the budget of %s does not hold beside %s; raise --host-mem or place less on the host",
        name, ot_format_size(bytes, need), ot_format_size(host->budget, budget),
        used > 0 ? list : "nothing else");
}

ot_status ot_arena_open(ot_host *host, const char *name, uint64_t bytes, ot_arena_pages pages, ot_arena **out)
{
    if (bytes > UINT64_MAX / 4)
        return over_budget(host, name, bytes);
    bytes = ot_round_up(bytes > 0 ? bytes : 1, OT_HUGE_PAGE_BYTES);
    if (bytes > host->budget || host->bytes > host->budget - bytes)
        return over_budget(host, name, bytes);

    ot_arena *arena = calloc(1, sizeof *arena);
    if (arena == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for arena %s", name);
    void *base = map_populated(bytes, name, pages, host->node);
    if (base == MAP_FAILED) {
        char size[OT_SIZE_TEXT_BYTES];
        int code = errno;
        free(arena);
        return ot_fail(
            OT_ERR_IO,
            "the kernel refuses %s of memory for arena %s: %s; lower --host-mem or end other programs",
            ot_format_size(bytes, size), name, strerror(code));
    }
    snprintf(arena->name, sizeof arena->name, "%s", name);
    char label[64];
    snprintf(label, sizeof label, "offtrain %s", arena->name);
    prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, base, bytes,
          label); /* a label in /proc/self/maps; where unknown, none */

    arena->host = host;
    arena->base = base;
    arena->bytes = bytes;
    *host->end = arena;
    host->end = &arena->next;
    host->bytes += bytes;
    if (host->bytes > host->peak)
        host->peak = host->bytes;
    *out = arena;
    return OT_OK;
}

void ot_arena_close(ot_arena *arena)
{
    if (arena == NULL)
        return;
    ot_host *host = arena->host;
    ot_arena **link = &host->first;
    while (*link != arena)
        link = &(*link)->next;
    *link = arena->next;
    if (host->end == &arena->next)
        host->end = link;
    host->bytes -= arena->bytes;
    munmap(arena->base, arena->bytes);
    free(arena);
}

ot_status ot_arena_take(ot_arena *arena, uint64_t bytes, uint64_t alignment, void **out)
{
    OT_ASSERT(alignment > 0 && (alignment & (alignment - 1)) == 0 && alignment <= OT_HUGE_PAGE_BYTES);
    uint64_t start = ot_round_up(arena->taken, alignment);
    if (bytes > arena->bytes || start > arena->bytes - bytes)
        return ot_fail(OT_ERR_INTERNAL,
                       "arena %s of %" PRIu64 " bytes, %" PRIu64 " of them taken, has no room for %" PRIu64
                       " more",
                       arena->name, arena->bytes, arena->taken, bytes);
    arena->taken = start + bytes;
    *out = arena->base + start;
    return OT_OK;
}

void *ot_arena_base(const ot_arena *arena)
{
    return arena->base;
}

uint64_t ot_arena_bytes(const ot_arena *arena)
{
    return arena->bytes;
}

/* Adds up AnonHugePages and the hugetlb lines of the mappings inside each arena. */
static void count_huge_pages(const ot_host *host, ot_arena_report reports[], size_t max)
{
    FILE *maps = fopen("/proc/self/smaps", "re");
    if (maps == NULL)
        return;
    char line[512];
    uintptr_t start = 0, end = 0;
    while (fgets(line, sizeof line, maps) != NULL) {
        uint64_t kib;
        uintptr_t first, last; /* not start and end: "Anon…" begins with a hexadecimal digit */
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " ", &first, &last) == 2) {
            start = first;
            end = last;
            continue;
        }
        if (sscanf(line, "AnonHugePages: %" SCNu64, &kib) != 1 &&
            sscanf(line, "Private_Hugetlb: %" SCNu64, &kib) != 1)
            continue;
        size_t i = 0;
        for (const ot_arena *arena = host->first; arena != NULL && i < max; arena = arena->next, i++)
            if (start >= (uintptr_t)arena->base && end <= (uintptr_t)arena->base + arena->bytes)
                reports[i].huge_bytes += kib << 10;
    }
    fclose(maps);
}

size_t ot_host_report(const ot_host *host, ot_arena_report reports[], size_t max)
{
    size_t count = 0;
    for (const ot_arena *arena = host->first; arena != NULL; arena = arena->next, count++)
        if (count < max)
            reports[count] = (ot_arena_report){arena->name, arena->bytes, arena->taken, 0};
    count_huge_pages(host, reports, count < max ? count : max);
    return count;
}

uint64_t ot_host_bytes(const ot_host *host)
{
    return host->bytes;
}

uint64_t ot_host_peak_bytes(const ot_host *host)
{
    return host->peak;
}

uint64_t ot_host_budget_bytes(const ot_host *host)
{
    return host->budget;
}

ot_object_report ot_object_bytes(void)
{
    ot_object_report report = {.allocator = "libc", .version = ""};
#ifdef OT_HAVE_JEMALLOC
    const char *version; /* a string the allocator owns */
    size_t size = sizeof version;
    if (mallctl("version", &version, &size, NULL, 0) != 0)
        return report;
    uint64_t epoch = 1; /* the counters are as of the last epoch: start a new one */
    mallctl("epoch", NULL, NULL, &epoch, sizeof epoch);
    size_t allocated = 0, resident = 0;
    size = sizeof allocated;
    mallctl("stats.allocated", &allocated, &size, NULL, 0);
    mallctl("stats.resident", &resident, &size, NULL, 0);
    report = (ot_object_report){"jemalloc", version, allocated, resident};
#endif
    return report;
}
