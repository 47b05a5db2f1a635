/* What this process may use: the smallest of the limits that apply, and which one it is. */
#ifndef OT_IO_BUDGET_H
#define OT_IO_BUDGET_H

#include <stdint.h>

#include "io/status.h"

typedef struct ot_memory_budget {
    uint64_t bytes;           /* what can be taken without being killed or swapping */
    uint64_t total_bytes;     /* MemTotal */
    uint64_t available_bytes; /* MemAvailable */
    uint64_t
        cgroup_bytes; /* limit less what cannot be reclaimed, the smallest up the tree; UINT64_MAX: none */
    char source[256]; /* which one `bytes` is: "MemAvailable", or the cgroup's file */
} ot_memory_budget;

/* Reads MemAvailable and every cgroup limit, v1 and v2, from the process's own group up to the root of the
 * tree (a limit of a parent binds as well). `root` is "" on a real system; tests give a folder that holds
 * proc/ and sys/. OT_ERR_IO where /proc/meminfo cannot be read. */
ot_status ot_memory_budget_read(const char *root, ot_memory_budget *out) OT_MUST_CHECK;

typedef struct ot_cpu_budget {
    int threads;      /* what to start: min(affinity, quota), at least 1 */
    int online;       /* processors of the machine that are online */
    int affinity;     /* processors in the process's affinity mask */
    double quota;     /* CPUs by cgroup quota, the smallest up the tree; 0: none */
    char source[256]; /* "affinity", or the cgroup's file */
} ot_cpu_budget;

/* As above, for processors. */
ot_status ot_cpu_budget_read(const char *root, ot_cpu_budget *out) OT_MUST_CHECK;

#endif
