#include "tools/stalls.h"

/* The operation that ended last of those that `operation` waited for, or `none`. */
static size_t last_of(const ot_list *list, const ot_span *spans, const ot_operation *operation)
{
    size_t last = list->count;
    for (uint32_t w = 0; w < operation->wait_count; w++) {
        size_t o = list->waits[operation->wait_first + w];
        if (last == list->count || spans[o].end_ns > spans[last].end_ns)
            last = o;
    }
    return last;
}

/* Counts the time from `begin` to `end`, at which `cause` let compute go on. */
static void blame(const ot_list *list, const ot_span *spans, size_t cause, int64_t begin, int64_t end,
                  double seconds[OT_LANES])
{
    while (cause != list->count && end > begin) {
        const ot_operation *operation = &list->operations[cause];
        int64_t from = spans[cause].start_ns > begin ? spans[cause].start_ns : begin;
        if (from < end && operation->lane != OT_LANE_COMPUTE)
            seconds[operation->lane] += (double)(end - from) * 1e-9;
        end = from < end ? from : end;
        cause = last_of(list, spans, operation);
    }
}

void ot_stalls_add(const ot_list *list, const ot_span *spans, double seconds[OT_LANES])
{
    int64_t free_ns = 0;
    size_t latest = list->count;
    for (size_t o = 0; o < list->count; o++) {
        if (latest == list->count || spans[o].end_ns > spans[latest].end_ns)
            latest = o;
        if (list->operations[o].lane != OT_LANE_COMPUTE)
            continue;
        blame(list, spans, last_of(list, spans, &list->operations[o]), free_ns, spans[o].start_ns, seconds);
        free_ns = spans[o].end_ns;
    }
    if (latest != list->count)
        blame(list, spans, latest, free_ns, spans[latest].end_ns, seconds);
}
