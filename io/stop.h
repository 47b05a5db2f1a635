/* A clean end on SIGINT, SIGTERM and SIGHUP (the terminal is gone; as SIGTERM), and, as mpirun hands them
 * on, on SIGUSR1 (as SIGINT) and SIGUSR2 (as SIGTERM): the first signal asks for it, a second one of the former stops the process at
 * once; the latter may come any number of times.
 * The request is process-wide, as signals are. */
#ifndef OT_IO_STOP_H
#define OT_IO_STOP_H

#include "io/status.h"

/* From now on those are requests; a SIGHUP that is ignored (nohup) stays so. SIGPIPE and SIGXFSZ are ignored: what they say
 * is an error of the write too. Call once, before threads start. */
void ot_stop_install(void);

/* OT_OK, or with a request OT_STOPPED_INT or OT_STOPPED_TERM and the error text "stopped by SIGINT". Any
 * thread. */
ot_status ot_stop_check(void) OT_MUST_CHECK;

/* Whether a status is that of a request. */
static inline int ot_is_stopped(ot_status status)
{
    return status == OT_STOPPED_INT || status == OT_STOPPED_TERM;
}

#endif
