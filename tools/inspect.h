/* `offtrain inspect` of a folder; of data, see inspect.c. */
#ifndef OT_TOOLS_INSPECT_H
#define OT_TOOLS_INSPECT_H

#include "io/status.h"

/* What the folder of a model holds: configuration, parameters, tokenizer, chat template. */
ot_status ot_inspect_model(const char *folder, int json) OT_MUST_CHECK;

#endif
