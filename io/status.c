/* The calling thread's last failure. Thread-local, so that a worker's failure never overwrites the caller's
 * text. */
#include "io/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local ot_error last_error;

ot_status ot_fail_at(ot_status status, const char *file, int line, const char *format, ...)
{
    char text[OT_ERROR_TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);

    last_error.status = status;
    last_error.file = file;
    last_error.line = line;
    memcpy(last_error.text, text, sizeof text);
    return status;
}

const char *ot_error_text(void)
{
    return last_error.text;
}

ot_error ot_error_take(void)
{
    return last_error;
}

ot_status ot_error_raise(const ot_error *error)
{
    last_error = *error;
    return error->status;
}

void ot_assert_fail(const char *file, int line, const char *condition)
{
    fprintf(stderr, "offtrain: internal error at %s:%d: %s does not hold\n", file, line, condition);
    abort();
}
