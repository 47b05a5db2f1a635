/* Why the compute lane stood still: every gap between two of its operations is counted against the lanes it waited for. */
#ifndef OT_TOOLS_STALLS_H
#define OT_TOOLS_STALLS_H

#include "offload/mover.h"
#include "offload/plan.h"

/* Adds to seconds[lane] the time that compute stood still because of that lane, from the start of the list to its end. A gap goes to
 * the lane of the operation that ended last among those waited for, as far back as that operation was at work; before that, to what it
 * waited for itself. */
void ot_stalls_add(const ot_list *list, const ot_span *spans, double seconds[OT_LANES]);

#endif
