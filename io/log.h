/* A levelled log. Libraries write to it; who prints decides the program, by giving a sink.
 * Level and sink are process-wide and set once, before other threads start. */
#ifndef OT_IO_LOG_H
#define OT_IO_LOG_H

typedef enum ot_log_level { OT_LOG_ERROR, OT_LOG_WARNING, OT_LOG_INFO, OT_LOG_DEBUG } ot_log_level;

/* Called on the thread that logs, one call a line, without a trailing newline. `line` is valid during the
 * call. Calls can overlap; the sink orders them. */
typedef void ot_log_sink(ot_log_level level, const char *line);

/* Lines above `level` are dropped, and so are all lines while the sink is NULL, as it is at first. */
void ot_log_open(ot_log_level level, ot_log_sink *sink);

/* Drops lines above a lower level from now on. Before other threads start, too. */
void ot_log_limit(ot_log_level level);

void ot_log(ot_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
