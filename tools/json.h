/* JSON as commands write it: a line for each object, reals with nine digits, null for what is not finite. */
#ifndef OT_TOOLS_JSON_H
#define OT_TOOLS_JSON_H

#include <jansson.h>
#include <stdint.h>
#include <stdio.h>

#include "io/status.h"

/* Writes the object and a newline, and flushes. Takes over the reference. OT_ERR_IO "cannot write `what`", also for the NULL of
 * an object that could not be made. */
ot_status ot_json_line(json_t *object, FILE *out, const char *what) OT_MUST_CHECK;

/* New references. */
json_t *ot_json_count(uint64_t count);
json_t *ot_json_real(double value); /* null for infinities and NaN */

#endif
