/* Host memory: named arenas under one budget.
 *
 * Small objects come from malloc (jemalloc, where it is linked). Everything big lives in an arena: one
 * anonymous mapping, aligned to 2 MiB, opened once, from which blocks are taken and never given back singly.
 * Every arena has a name and counts against the budget of its ot_host, so that a report can say where each
 * byte is. */
#ifndef OT_IO_HOST_H
#define OT_IO_HOST_H

#include <stddef.h>
#include <stdint.h>

#include "io/status.h"

enum {
    OT_PAGE_BYTES = 4096,         /* the alignment of chunks, extents and slots */
    OT_HUGE_PAGE_BYTES = 2 << 20, /* the alignment of arenas */
};

/* `n` rounded up to a multiple of `multiple`, a power of two. */
static inline uint64_t ot_round_up(uint64_t n, uint64_t multiple)
{
    return (n + multiple - 1) & ~(multiple - 1);
}

typedef struct ot_host ot_host;
typedef struct ot_arena ot_arena;

/* A host budget of `budget_bytes`. Opening and closing arenas is for one thread at a time. */
ot_status ot_host_open(uint64_t budget_bytes, ot_host **out) OT_MUST_CHECK;

/* Arenas opened after this have their pages on the memory node `node` (the kernel's number) as long as it has room, then
 * on others. Where the kernel refuses they lie where they would have: that costs speed only. */
void ot_host_prefer(ot_host *host, int node);

/* Closes the arenas that are still open, too. NULL is allowed. */
void ot_host_close(ot_host *host);

typedef enum ot_arena_pages {
    OT_PAGES_TRANSPARENT, /* advise huge pages; the kernel gives them where it can */
    OT_PAGES_EXPLICIT, /* MAP_HUGETLB from the reserved pool; falls back to transparent ones with one log line
                        */
    OT_PAGES_BEST,     /* explicit ones where the pool has them, else transparent ones, without a word */
    OT_PAGES_SMALL,    /* 4 KiB pages */
} ot_arena_pages;

/* Maps an arena of `bytes`, rounded up to 2 MiB, and touches every page of it, so that no fault comes later
 * and a machine that has less memory than it says fails here. The memory is zero. OT_ERR_FIT where the budget
 * does not hold it (the message lists the arenas that fill it), OT_ERR_IO where the kernel refuses. */
ot_status ot_arena_open(ot_host *host, const char *name, uint64_t bytes, ot_arena_pages pages,
                        ot_arena **out) OT_MUST_CHECK;

/* Unmaps the arena and every block taken from it. NULL is allowed. */
void ot_arena_close(ot_arena *arena);

/* Takes a block of `bytes` whose address is a multiple of `alignment` (a power of two up to 2 MiB); it lives
 * as long as the arena. OT_ERR_INTERNAL where the arena is too small: the plan sized it. */
ot_status ot_arena_take(ot_arena *arena, uint64_t bytes, uint64_t alignment, void **out) OT_MUST_CHECK;

void *ot_arena_base(const ot_arena *arena);
uint64_t ot_arena_bytes(const ot_arena *arena);

typedef struct ot_arena_report {
    const char *name; /* valid while the arena is open */
    uint64_t bytes, taken_bytes;
    uint64_t huge_bytes; /* on huge pages, as the kernel reports it at this moment */
} ot_arena_report;

/* Fills up to `max` reports in the order the arenas were opened and returns the number of open arenas. */
size_t ot_host_report(const ot_host *host, ot_arena_report reports[], size_t max);

/* Bytes of all open arenas together, the most they have been together, and the budget. */
uint64_t ot_host_bytes(const ot_host *host);
uint64_t ot_host_peak_bytes(const ot_host *host);
uint64_t ot_host_budget_bytes(const ot_host *host);

typedef struct ot_object_report {
    const char *allocator;    /* "jemalloc" or "libc" */
    const char *version;      /* of jemalloc: "5.3.0-0-g…"; "" of libc */
    uint64_t allocated_bytes; /* in live objects; 0 where the allocator keeps no count */
    uint64_t resident_bytes;  /* in pages the allocator holds; 0 as above */
} ot_object_report;

/* What malloc holds at this moment, outside all arenas. */
ot_object_report ot_object_bytes(void);

#endif
