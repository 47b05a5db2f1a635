/* Predicts how long a list takes: every lane works in order at its own rate, and every operation waits for
 * what the plan says. Where the drives are half-duplex the two NVMe lanes take turns, the one that can start
 * first going first. */
#ifndef OT_OFFLOAD_SIMULATE_H
#define OT_OFFLOAD_SIMULATE_H

#include "offload/plan.h"

typedef struct ot_timeline {
    double seconds;          /* until the last operation has ended */
    double busy_s[OT_LANES]; /* each lane's own work */
    double wait_s[OT_LANES]; /* time a lane stood still between its first and last operation */
    double nvme_busy_s;      /* both NVMe lanes together: their sum where the drive is half-duplex */
    ot_lane bottleneck;      /* the lane with the most work */
    double bound_s;          /* its work: no order of the same operations is faster */
} ot_timeline;

/* `ends`, where not NULL, gets the time each operation of the list ends, in seconds from its start. Fails
 * only where there is no memory. */
ot_status ot_simulate(const ot_list *list, const ot_rates *rates, double *ends,
                      ot_timeline *out) OT_MUST_CHECK;

/* Seconds one operation occupies its lane: its latency and its bytes, or flops, at the lane's rate, on the compute lane also
 * its bytes at the device memory's; a rate of 0 is one without limit. */
double ot_operation_seconds(const ot_operation *operation, const ot_rates *rates);

#endif
