/* --trace: every operation in the Trace Event Format of Chrome, which ui.perfetto.dev opens. Two processes, measured and predicted, with
 * one track a lane; the number of an operation in its list is the same in both. */
#ifndef OT_TOOLS_TRACE_H
#define OT_TOOLS_TRACE_H

#include "tools/job.h"

typedef struct ot_trace ot_trace;

/* Creates the file, and `folder`/trace.json as a link to it where it lies elsewhere. */
ot_status ot_trace_open(const char *path, const char *folder, ot_trace **out) OT_MUST_CHECK;

/* Writes the operations of a list that has just run, from `start_s` on. After a million of them nothing more is written. */
ot_status ot_trace_add(ot_trace *trace, const ot_job *job, const ot_list *list, const ot_span *spans,
                       uint64_t step, double start_s) OT_MUST_CHECK;

/* OT_ERR_IO where something could not be written. NULL is allowed. */
ot_status ot_trace_close(ot_trace *trace) OT_MUST_CHECK;

#endif
