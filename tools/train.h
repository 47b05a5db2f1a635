/* What the commands train and plan share. */
#ifndef OT_TOOLS_TRAIN_H
#define OT_TOOLS_TRAIN_H

#include "tools/train_flags.h"

/* Reads the flags, and prints help or configuration, plans (with --dry-run, or where `plan_only` is 1) or trains. */
ot_status ot_train_with_flags(const ot_option_table *table, int argc, char **argv,
                              int plan_only) OT_MUST_CHECK;

/* Prints the plan. OT_ERR_FIT where there is none. */
ot_status ot_plan_run(const ot_train_flags *flags) OT_MUST_CHECK;

/* Trains; argc and argv are for command.txt. */
ot_status ot_train_run(const ot_train_flags *flags, int argc, char **argv) OT_MUST_CHECK;

#endif
