/* A team of threads that run one function together: the CPU side of every parallel loop.
 *
 * The number of threads comes from the process's affinity mask and its cgroup CPU quota, never from
 * OMP_NUM_THREADS: a launcher that exports OMP_NUM_THREADS=1 would make the optimizer many times slower.
 * Workers are pinned one to a core, physical cores before their hyper-threads. */
#ifndef OT_IO_TEAM_H
#define OT_IO_TEAM_H

#include <stddef.h>

#include "io/status.h"

typedef struct ot_team ot_team;

/* The work of one member, `index` in 0 .. count-1. Must not call ot_team_run on its own team. */
typedef void ot_team_task(void *context, int index, int count);

/* `threads` members, or with 0 one per physical core that affinity and quota allow. Starts threads-1 workers;
 * the thread that calls ot_team_run is the remaining member and stays unpinned, since threads it creates
 * would inherit its mask. */
ot_status ot_team_open(int threads, ot_team **out) OT_MUST_CHECK;

/* The same, on the processors of the memory node `node` (the kernel's number) before those of others; -1: any. */
ot_status ot_team_open_near(int threads, int node, ot_team **out) OT_MUST_CHECK;

/* Ends and joins the workers. NULL is allowed. */
void ot_team_close(ot_team *team);

int ot_team_count(const ot_team *team);

/* Runs `task` on every member and returns when all have ended. One caller at a time. What the caller wrote
 * before is seen by every member, and what they wrote is seen by the caller after. */
void ot_team_run(ot_team *team, ot_team_task *task, void *context);

/* The part of `total` items that member `index` of `count` takes: [begin, end), sizes differing by one at
 * most, each a multiple of `grain` but the last. */
static inline void ot_team_share(size_t total, size_t grain, int index, int count, size_t *begin, size_t *end)
{
    size_t grains = (total + grain - 1) / grain, n = (size_t)count, i = (size_t)index;
    size_t each = grains / n, extra = grains % n;
    size_t first = i * each + (i < extra ? i : extra);
    size_t last = first + each + (i < extra ? 1 : 0);
    *begin = first * grain < total ? first * grain : total;
    *end = last * grain < total ? last * grain : total;
}

#endif
