/* What the commands that take the flags of train share. */
#ifndef OT_TOOLS_TRAIN_H
#define OT_TOOLS_TRAIN_H

#include "tools/train_flags.h"

/* A command on flags that have been read; argc and argv are as typed, for command.txt. */
typedef ot_status ot_train_command(const ot_train_flags *flags, int argc, char **argv);

/* Reads the flags, and prints help or configuration, or runs the command. */
ot_status ot_train_with_flags(const ot_option_table *table, int argc, char **argv,
                              ot_train_command *run) OT_MUST_CHECK;

/* Prints the plan. OT_ERR_FIT where there is none. */
ot_train_command ot_plan_run;

#endif
