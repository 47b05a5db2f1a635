/* A clean end on SIGINT and SIGTERM: the first signal asks for it, a second one stops the process at once.
 * The request is process-wide, as signals are. */
#ifndef OT_IO_STOP_H
#define OT_IO_STOP_H

#include "io/status.h"

/* From now on SIGINT and SIGTERM are requests. Call once, before threads start. */
void ot_stop_install(void);

/* OT_OK, or with a request OT_STOPPED_INT or OT_STOPPED_TERM and the error text "stopped by SIGINT". Any
 * thread. */
ot_status ot_stop_check(void) OT_MUST_CHECK;

#endif
