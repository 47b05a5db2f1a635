/* A thread team: a generation counter starts a run, a count of members ends it.
 *
 * A run is often shorter than a sleep and wake-up, so both sides spin for a short time before they sleep on a
 * futex.
 *
 * Ordering: the caller writes task and context, then publishes a new generation (release); workers read it
 * (acquire). Each worker's decrement of `running` (release) is read by the caller (acquire). */
#include "io/team.h"

#include <hwloc.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "io/budget.h"
#include "io/clock.h"
#include "io/log.h"

enum { SPIN_NS = 50000 };

typedef struct worker {
    ot_team *team;
    pthread_t thread;
    int index, cpu; /* cpu: the operating system's number, or -1: not pinned */
} worker;

struct ot_team {
    int count;
    _Atomic uint32_t generation; /* one more for each run */
    _Atomic uint32_t running;    /* workers that have not ended the current run */
    ot_team_task *task;          /* NULL: end the thread */
    void *context;
    worker *workers; /* count-1 of them */
};

static void futex_wait(_Atomic uint32_t *word, uint32_t value)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void futex_wake_all(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* Returns once `*word` is no longer `value`: spins, then sleeps. */
static uint32_t wait_for_change(_Atomic uint32_t *word, uint32_t value)
{
    uint32_t now;
    int64_t deadline = ot_clock_ns() + SPIN_NS;
    while ((now = atomic_load_explicit(word, memory_order_acquire)) == value) {
        relax();
        if (ot_clock_ns() > deadline)
            futex_wait(word, value);
    }
    return now;
}

static void pin(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)cpu, &set);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set); /* a refusal costs speed only */
}

static void *worker_main(void *argument)
{
    worker *self = argument;
    ot_team *team = self->team;
    if (self->cpu >= 0)
        pin(self->cpu);
    uint32_t seen = 0;
    for (;;) {
        seen = wait_for_change(&team->generation, seen);
        if (team->task == NULL)
            return NULL;
        team->task(team->context, self->index, team->count);
        if (atomic_fetch_sub_explicit(&team->running, 1, memory_order_acq_rel) == 1)
            futex_wake_all(&team->running);
    }
}

static void start_generation(ot_team *team, ot_team_task *task, void *context)
{
    team->task = task;
    team->context = context;
    atomic_store_explicit(&team->running, (uint32_t)team->count - 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&team->generation, 1, memory_order_release);
    futex_wake_all(&team->generation);
}

void ot_team_run(ot_team *team, ot_team_task *task, void *context)
{
    if (team->count > 1)
        start_generation(team, task, context);
    task(context, 0, team->count);
    uint32_t running;
    while ((running = atomic_load_explicit(&team->running, memory_order_acquire)) != 0)
        wait_for_change(&team->running, running);
}

/* The processors of a memory node before the others, each part in its order. */
static void put_first(hwloc_topology_t topology, int node, int cpus[], int n)
{
    hwloc_obj_t at = node >= 0 ? hwloc_get_numanode_obj_by_os_index(topology, (unsigned)node) : NULL;
    int end = 0;
    for (int i = 0; i < n && at != NULL; i++) {
        int cpu = cpus[i];
        if (!hwloc_bitmap_isset(at->cpuset, (unsigned)cpu))
            continue;
        memmove(&cpus[end + 1], &cpus[end], (size_t)(i - end) * sizeof *cpus);
        cpus[end++] = cpu;
    }
}

/* The allowed processors, those of `node` first; of these and of the others one hyper-thread of every core first,
 * then the second ones, and so on. Returns how many cores there are; `cpus` gets all `*n` processors. Where hwloc
 * cannot read the machine there is nothing to pin to. */
static int order_processors(int node, int cpus[], int max, int *n)
{
    *n = 0;
    int cores = 0;
    hwloc_topology_t topology;
    if (hwloc_topology_init(&topology) != 0)
        return 0;
    hwloc_bitmap_t allowed = hwloc_bitmap_alloc();
    if (allowed == NULL || hwloc_topology_load(topology) != 0 ||
        hwloc_get_cpubind(topology, allowed, HWLOC_CPUBIND_PROCESS) != 0)
        goto out;
    int core_count = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE);
    for (int sibling = 0, found = 1; found && *n < max; sibling++) {
        found = 0;
        for (int i = 0; i < core_count && *n < max; i++) {
            hwloc_obj_t core = hwloc_get_obj_by_type(topology, HWLOC_OBJ_CORE, (unsigned)i);
            int rank = 0, cpu = hwloc_bitmap_first(core->cpuset);
            while (cpu >= 0 && !(hwloc_bitmap_isset(allowed, (unsigned)cpu) && rank++ == sibling))
                cpu = hwloc_bitmap_next(core->cpuset, cpu);
            if (cpu >= 0) {
                cpus[(*n)++] = cpu;
                found = 1;
            }
        }
        if (sibling == 0)
            cores = *n;
    }
    put_first(topology, node, cpus, *n);
out:
    hwloc_bitmap_free(allowed);
    hwloc_topology_destroy(topology);
    return cores;
}

ot_status ot_team_open(int threads, ot_team **out)
{
    return ot_team_open_near(threads, -1, out);
}

ot_status ot_team_open_near(int threads, int node, ot_team **out)
{
    enum { CPU_MAX = 1024 };
    int cpus[CPU_MAX], cpu_count;
    int cores = order_processors(node, cpus, CPU_MAX, &cpu_count);
    if (threads <= 0) {
        ot_cpu_budget budget;
        OT_TRY(ot_cpu_budget_read("", &budget));
        threads = cores > 0 && cores < budget.threads ? cores : budget.threads;
    }
    ot_status status = OT_OK;
    ot_team *team = calloc(1, sizeof *team);
    worker *workers = calloc((size_t)threads, sizeof *workers);
    if (team == NULL || workers == NULL) {
        free(team);
        free(workers);
        return ot_fail(OT_ERR_INTERNAL, "out of memory for a team of %d threads", threads);
    }
    team->workers = workers;
    team->count = 1;
    for (int i = 1; i < threads; i++) {
        worker *self = &workers[i - 1];
        *self = (worker){.team = team, .index = i, .cpu = threads <= cpu_count ? cpus[i] : -1};
        int code = pthread_create(&self->thread, NULL, worker_main, self);
        if (code != 0) {
            status =
                ot_fail(OT_ERR_INTERNAL,
                        "cannot start thread %d of %d: %s; lower --threads or raise the limit on processes",
                        i + 1, threads, strerror(code));
            break;
        }
        team->count++;
    }
    if (status != OT_OK) {
        ot_team_close(team);
        return status;
    }
    *out = team;
    return OT_OK;
}

void ot_team_close(ot_team *team)
{
    if (team == NULL)
        return;
    start_generation(team, NULL, NULL);
    for (int i = 0; i < team->count - 1; i++)
        pthread_join(team->workers[i].thread, NULL);
    free(team->workers);
    free(team);
}

int ot_team_count(const ot_team *team)
{
    return team->count;
}
