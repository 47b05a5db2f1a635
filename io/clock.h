/* The monotonic clock. */
#ifndef OT_IO_CLOCK_H
#define OT_IO_CLOCK_H

#include <stdint.h>
#include <time.h>

/* Nanoseconds since an arbitrary start; never goes back, does not count suspended time. Any thread. */
static inline int64_t ot_clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static inline double ot_seconds(int64_t ns)
{
    return (double)ns * 1e-9;
}

#endif
