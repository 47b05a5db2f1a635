/* The folder of a run: DIR/NAME with config.yaml, command.txt, plan.json, metrics.jsonl, train.log and trace.json. */
#ifndef OT_TOOLS_RUNDIR_H
#define OT_TOOLS_RUNDIR_H

#include <jansson.h>
#include <limits.h>
#include <stdio.h>

#include "tools/train_flags.h"

typedef struct ot_rundir {
    char path[PATH_MAX];
    FILE *metrics;
    const char *directory;  /* = path, for lists of folders */
    int evaluated, sampled; /* behind the step that the run goes on from */
} ot_rundir;

/* As a shell would have to be told. */
void ot_print_argument(const char *argument, FILE *out);

/* Removes the swap files of runs in --output-dir whose processes have died, their ranks' and those of ranks under --nvme: each
 * would keep its room for good. */
void ot_rundir_sweep(const ot_train_flags *flags);

/* Makes the folder, writes config.yaml and command.txt, and from now on adds what is logged to train.log. OT_ERR_USAGE where a
 * run of the given name is there already. With `folder` != "" that run goes on after `step` steps: metrics.jsonl loses the
 * rows beyond, and command.txt and train.log are added to; where it had `ended` then, evaluation and sample of the last step
 * come again. OT_ERR_USAGE where another process is at work in it. */
ot_status ot_rundir_open(const ot_train_flags *flags, int argc, char **argv, const char *folder,
                         uint64_t step, int ended, ot_rundir *out) OT_MUST_CHECK;

/* What has not been opened may be closed. OT_ERR_IO where something could not be written. */
ot_status ot_rundir_close(ot_rundir *dir) OT_MUST_CHECK;

/* Writes a file of the run. */
ot_status ot_rundir_json(const ot_rundir *dir, const char *name, const json_t *value) OT_MUST_CHECK;

/* Adds a line to train.log. */
void ot_rundir_log(const char *line);

#endif
