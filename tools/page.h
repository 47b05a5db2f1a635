/* report.html: a run at a glance, from the files in its folder alone. */
#ifndef OT_TOOLS_PAGE_H
#define OT_TOOLS_PAGE_H

#include "io/status.h"

/* Reads FOLDER/metrics.jsonl, plan.json and command.txt and replaces FOLDER/report.html. OT_ERR_FORMAT where FOLDER is no run's. */
ot_status ot_page_write(const char *folder) OT_MUST_CHECK;

#endif
