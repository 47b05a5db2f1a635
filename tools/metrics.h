/* What is measured in a run: a row a step, and sums for the report. */
#ifndef OT_TOOLS_METRICS_H
#define OT_TOOLS_METRICS_H

#include <jansson.h>

#include "engine/run_state.h"
#include "tools/job.h"

/* The fields of metrics.jsonl. Tokens are all that have passed so far, trained tokens those with a target. */
typedef struct ot_row {
    uint64_t step, total_steps, tokens, trained_tokens;
    double epoch, loss, grad_norm, learning_rate, clip_factor, loss_scale;
    int skipped;
    double step_s, fwd_s, bwd_s, opt_exposed_s, tok_per_s, mfu; /* mfu: 0: not known */
    uint64_t h2d_bytes, d2h_bytes, nvme_read_bytes, nvme_write_bytes;
    double wait_h2d_s, wait_nvme_s, wait_cpu_s, wait_data_s;
    uint64_t device_peak_bytes, host_peak_bytes;
    double elapsed_s, eta_s;
} ot_row;

enum { OT_WINDOW_STEPS = 16 };

/* What a run does beside its steps, every so many of them. */
typedef enum ot_pause { OT_PAUSE_SAVE, OT_PAUSE_EVAL, OT_PAUSE_SAMPLE, OT_PAUSES } ot_pause;

typedef struct ot_metrics {
    const ot_job *job;
    ot_run_state *state; /* of the whole run, with what earlier sessions did: kept up to date */
    double earlier_s;    /* of those sessions */
    int64_t start_ns;
    uint64_t steps;                 /* of this session */
    double window[OT_WINDOW_STEPS]; /* seconds of its last steps */
    uint64_t every[OT_PAUSES];      /* steps from one pause to the next; 0: none */
    double pause_s[OT_PAUSES];      /* how long the last one took */

    /* Sums over the session's steps. */
    double step_s, data_s, list_s;
    double busy_s[OT_LANES], stall_s[OT_LANES];
    uint64_t moved[OT_LANES], planned[OT_LANES];
} ot_metrics;

void ot_metrics_init(ot_metrics *metrics, const ot_job *job, ot_run_state *state);

/* A pause that has ended. */
void ot_metrics_pause(ot_metrics *metrics, ot_pause pause, double seconds);

/* Takes in a step. `step_s`: with the filling of its data, which took `data_s`. */
void ot_metrics_add(ot_metrics *metrics, const ot_trainer *trainer, const ot_step_result *result, double lr,
                    uint64_t trained_tokens, double step_s, double data_s, ot_row *row);

json_t *ot_row_json(const ot_row *row); /* a new reference */

/* The report at the end: time, waits and bytes of each lane beside the plan's, peaks, tokens a second. */
void ot_report_print(const ot_metrics *metrics, const ot_trainer *trainer, FILE *out);
json_t *ot_report_json(const ot_metrics *metrics, const ot_trainer *trainer); /* a new reference */

#endif
