/* A plan in words and as JSON. */
#ifndef OT_TOOLS_PLAN_REPORT_H
#define OT_TOOLS_PLAN_REPORT_H

#include <jansson.h>
#include <stdio.h>

#include "tools/job.h"

/* Most bytes of a tier that a phase has in use: all homes, and the places its lists touch. */
uint64_t ot_phase_bytes(const ot_plan *plan, ot_list_kind list, ot_tier tier);

/* What the ranks of this machine write to its drives in a step, in bytes. */
uint64_t ot_step_writes(const ot_job *job);

/* A lane in words: "NVMe read". */
const char *ot_lane_words(ot_lane lane);

/* The object of `plan --json`; a new reference, NULL where memory is short. */
json_t *ot_plan_json(const ot_job *job, const ot_suggestions *suggestions);

/* The whole table; `brief`: what the header of a run shows. */
void ot_plan_print(const ot_job *job, const ot_suggestions *suggestions, int brief, FILE *out);

/* Fails with OT_ERR_FIT: need and have of each tier, and the changes that would fit. */
ot_status ot_plan_refuse(const ot_job *job, const ot_suggestions *suggestions) OT_MUST_CHECK;

#endif
