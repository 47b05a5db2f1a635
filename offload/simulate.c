/* Predicts how long a list takes. */
#include "offload/simulate.h"

#include <stdlib.h>

double ot_operation_seconds(const ot_operation *operation, const ot_rates *rates)
{
    double rate = rates->lane[operation->lane];
    int computes = operation->lane == OT_LANE_COMPUTE;
    double work = computes ? operation->flops : (double)operation->bytes, memory = rates->device_memory;
    return rates->lane_latency_s[operation->lane] + (rate > 0 ? work / rate : 0) +
           (computes && memory > 0 ? (double)operation->bytes / memory : 0);
}

/* A run of the list: where each lane stands, and when it is free. */
typedef struct simulation {
    const ot_list *list;
    const ot_rates *rates;
    double *ends;
    size_t next[OT_LANES]; /* the lane's next operation, or the list's count */
    double free_s[OT_LANES];
    double first_s[OT_LANES];
    int started[OT_LANES];
    ot_timeline *timeline;
} simulation;

static void advance(simulation *run, int lane, size_t from)
{
    while (from < run->list->count && (int)run->list->operations[from].lane != lane)
        from++;
    run->next[lane] = from;
}

/* When the lane's next operation has nothing more to wait for; negative while that is unknown. */
static double ready_s(const simulation *run, int lane)
{
    if (run->next[lane] == run->list->count)
        return -1;
    const ot_operation *operation = &run->list->operations[run->next[lane]];
    double ready = 0;
    for (uint32_t w = 0; w < operation->wait_count; w++) {
        double end = run->ends[run->list->waits[operation->wait_first + w]];
        if (end < 0)
            return -1;
        ready = ready > end ? ready : end;
    }
    return ready;
}

static double start_s(const simulation *run, int lane)
{
    double ready = ready_s(run, lane);
    return ready < 0 || ready > run->free_s[lane] ? ready : run->free_s[lane];
}

static void execute(simulation *run, int lane, double start)
{
    size_t o = run->next[lane];
    double seconds = ot_operation_seconds(&run->list->operations[o], run->rates);
    if (!run->started[lane])
        run->first_s[lane] = start;
    run->started[lane] = 1;
    run->ends[o] = run->free_s[lane] = start + seconds;
    run->timeline->busy_s[lane] += seconds;
    if (run->ends[o] > run->timeline->seconds)
        run->timeline->seconds = run->ends[o];
    advance(run, lane, o + 1);
}

/* Executes what the lanes that share nothing can execute. */
static int execute_alone(simulation *run, int shared_drive)
{
    int any = 0;
    for (int lane = shared_drive ? OT_LANE_H2D : 0; lane < OT_LANES; lane++)
        for (double start; (start = start_s(run, lane)) >= 0; any = 1)
            execute(run, lane, start);
    return any;
}

/* Executes the read or write that can start first. With all other lanes stuck, an operation that is not ready
 * yet depends on the one that is. */
static int execute_drive(simulation *run)
{
    double read = start_s(run, OT_LANE_NVME_READ), write = start_s(run, OT_LANE_NVME_WRITE);
    if (read < 0 && write < 0)
        return 0;
    int write_goes =
        read < 0 ||
        (write >= 0 &&
         (write < read || (write <= read && run->next[OT_LANE_NVME_WRITE] < run->next[OT_LANE_NVME_READ])));
    int lane = write_goes ? OT_LANE_NVME_WRITE : OT_LANE_NVME_READ;
    execute(run, lane, write_goes ? write : read);
    run->free_s[OT_LANE_NVME_READ] = run->free_s[OT_LANE_NVME_WRITE] = run->free_s[lane];
    return 1;
}

static void summarise(const simulation *run, const double last_s[OT_LANES], int shared_drive)
{
    ot_timeline *timeline = run->timeline;
    const double *busy = timeline->busy_s;
    for (int lane = 0; lane < OT_LANES; lane++) {
        double still = run->started[lane] ? last_s[lane] - run->first_s[lane] - busy[lane] : 0;
        timeline->wait_s[lane] = still > 0 ? still : 0;
        if (busy[lane] > timeline->bound_s) {
            timeline->bottleneck = (ot_lane)lane;
            timeline->bound_s = busy[lane];
        }
    }
    double read = busy[OT_LANE_NVME_READ], write = busy[OT_LANE_NVME_WRITE];
    timeline->nvme_busy_s = shared_drive ? read + write : read > write ? read : write;
    if (timeline->nvme_busy_s > timeline->bound_s) {
        timeline->bottleneck = read >= write ? OT_LANE_NVME_READ : OT_LANE_NVME_WRITE;
        timeline->bound_s = timeline->nvme_busy_s;
    }
}

ot_status ot_simulate(const ot_list *list, const ot_rates *rates, double *ends, ot_timeline *out)
{
    *out = (ot_timeline){.bottleneck = OT_LANE_COMPUTE};
    double *own = ends == NULL ? malloc((list->count + 1) * sizeof *own) : NULL;
    if (ends == NULL && own == NULL)
        return ot_fail(OT_ERR_INTERNAL, "no memory to simulate %zu operations", list->count);
    simulation run = {.list = list, .rates = rates, .ends = ends != NULL ? ends : own, .timeline = out};
    for (size_t o = 0; o < list->count; o++)
        run.ends[o] = -1;
    for (int lane = 0; lane < OT_LANES; lane++)
        advance(&run, lane, 0);
    int shared_drive = rates->nvme_half_duplex;
    while (execute_alone(&run, shared_drive) || (shared_drive && execute_drive(&run)))
        ;
    double last_s[OT_LANES] = {0};
    for (size_t o = 0; o < list->count; o++) {
        OT_ASSERT(run.ends[o] >= 0);
        last_s[list->operations[o].lane] = run.ends[o];
    }
    summarise(&run, last_s, shared_drive);
    free(own);
    return OT_OK;
}
