/* A count that threads wait for: what orders the CPU device's threads, and all that does.
 *
 * The word holds the count in its upper 31 bits and, in bit 0, whether somebody sleeps on it.
 *
 * Ordering: what a thread wrote before ot_counter_add is seen by whoever found that count with
 * ot_counter_wait, and nothing else is ordered: the adder acquires nothing, so that ThreadSanitizer sees no
 * order between two streams but the one that events make. Adding is a read-modify-write of the same word that
 * a sleeper marks, so one of the two sees the other, and no fence is needed. */
#ifndef OT_KERNELS_CPU_COUNTER_H
#define OT_KERNELS_CPU_COUNTER_H

#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "io/clock.h"

enum { OT_COUNTER_SPIN_NS = 5000 };

typedef struct ot_counter {
    _Atomic uint32_t word;
} ot_counter;

static inline void ot_counter_add(ot_counter *counter)
{
    uint32_t before = atomic_fetch_add_explicit(&counter->word, 2, memory_order_release);
    if (before & 1) {
        atomic_fetch_and_explicit(&counter->word, ~1u, memory_order_relaxed);
        syscall(SYS_futex, &counter->word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
    }
}

/* Whether the count has come to `target`; counts wrap, and are less than 2^30 apart. */
static inline int ot_counter_reached(const ot_counter *counter, uint32_t target)
{
    uint32_t word = atomic_load_explicit(&((ot_counter *)counter)->word, memory_order_acquire);
    return (int32_t)((word & ~1u) - (target << 1)) >= 0;
}

static inline void ot_counter_wait(ot_counter *counter, uint32_t target)
{
    int64_t deadline = 0;
    while (!ot_counter_reached(counter, target)) {
        int64_t now = ot_clock_ns();
        if (deadline == 0)
            deadline = now + OT_COUNTER_SPIN_NS;
        if (now < deadline)
            continue;
        uint32_t word = atomic_fetch_or_explicit(&counter->word, 1, memory_order_relaxed);
        if ((int32_t)((word & ~1u) - (target << 1)) < 0)
            syscall(SYS_futex, &counter->word, FUTEX_WAIT_PRIVATE, word | 1, NULL, NULL, 0);
    }
}

#endif
