/* Learning-rate schedules: pure functions of the step's number. */
#ifndef OT_ENGINE_SCHEDULE_H
#define OT_ENGINE_SCHEDULE_H

#include <stdint.h>

#include "io/status.h"

typedef enum ot_schedule_kind {
    OT_SCHEDULE_CONSTANT,
    OT_SCHEDULE_LINEAR,
    OT_SCHEDULE_COSINE, /* Loshchilov & Hutter 2017, without restarts */
    OT_SCHEDULE_WSD,    /* warm-up, stable, decay: Hu et al. 2024 */
} ot_schedule_kind;

/* W = warmup_steps, K = total_steps. Step k, counted from 1, has the rate
 *   k <= W              lr k/W
 *   otherwise, with p = (k-W)/(K-W), so that the last step has p = 1, and m = min_ratio:
 *     constant          lr
 *     linear            lr (1 - (1-m) p)
 *     cosine            lr (m + (1-m) (1 + cos(pi p))/2)
 *     wsd               lr up to step K-D, D = decay_steps, then lr (1 - (1-m) (k-(K-D))/D)
 * Steps beyond K have the rate of step K. A warm-up of all steps has no fall. */
typedef struct ot_schedule {
    ot_schedule_kind kind;
    double lr;
    double min_ratio; /* 0 … 1; ignored by constant */
    uint64_t warmup_steps, total_steps;
    uint64_t decay_steps; /* wsd; 0: a tenth of all steps. Cut where the warm-up leaves less */
} ot_schedule;

/* "constant", "linear", "cosine", "wsd"; OT_ERR_USAGE with the nearest name for others. */
ot_status ot_schedule_parse(const char *name, ot_schedule_kind *out) OT_MUST_CHECK;

/* The learning rate of step `step` >= 1. A skipped step is not counted: the caller passes the number of steps
 * that changed the weights, with this one. */
double ot_learning_rate(const ot_schedule *schedule, uint64_t step);

/* Warm-up steps as the flag gives them: a whole number, or below 1 a fraction of all steps, rounded up. */
uint64_t ot_warmup_steps(double value, uint64_t total_steps);

#endif
