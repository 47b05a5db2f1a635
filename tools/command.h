/* The subcommands of `offtrain`. Each gets the arguments after its own name and returns the process's exit
 * code as an ot_status; the text of a failure is printed by main. Results go to stdout, everything else to
 * stderr. */
#ifndef OT_TOOLS_COMMAND_H
#define OT_TOOLS_COMMAND_H

#include "io/status.h"

ot_status ot_command_train(int argc, char **argv) OT_MUST_CHECK;
ot_status ot_command_plan(int argc, char **argv) OT_MUST_CHECK;
ot_status ot_command_tokenize(int argc, char **argv) OT_MUST_CHECK;
ot_status ot_command_inspect(int argc, char **argv) OT_MUST_CHECK;
ot_status ot_command_version(int argc, char **argv) OT_MUST_CHECK;
ot_status ot_command_doctor(int argc, char **argv) OT_MUST_CHECK;
ot_status ot_command_eval(int argc, char **argv) OT_MUST_CHECK;
ot_status ot_command_generate(int argc, char **argv) OT_MUST_CHECK;
ot_status ot_command_tune(int argc, char **argv) OT_MUST_CHECK;
ot_status ot_command_report(int argc, char **argv) OT_MUST_CHECK;
ot_status ot_command_export(int argc, char **argv) OT_MUST_CHECK;
ot_status ot_command_bench(int argc, char **argv) OT_MUST_CHECK;

#endif
