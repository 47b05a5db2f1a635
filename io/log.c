/* The process's one log: a level and a sink. */
#include "io/log.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

static ot_log_level log_level = OT_LOG_INFO;
static ot_log_sink *log_sink;

void ot_log_open(ot_log_level level, ot_log_sink *sink)
{
    log_level = level;
    log_sink = sink;
}

void ot_log_limit(ot_log_level level)
{
    log_level = level < log_level ? level : log_level;
}

void ot_log(ot_log_level level, const char *format, ...)
{
    if (log_sink == NULL || level > log_level)
        return;
    char line[2048];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    log_sink(level, line);
}
