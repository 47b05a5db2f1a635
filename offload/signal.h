/* A word of flags that threads raise and wait for.
 *
 * Ordering: what a thread wrote before it raised a flag is seen by whoever found the flag with ot_signal_wait
 * or ot_signal_flags, and nothing else is ordered: raising acquires nothing, so that ThreadSanitizer sees no
 * order but the one that was asked for. Raising and going to sleep are read-modify-writes of the same word,
 * so one of the two sees the other: no wake-up is lost. */
#ifndef OT_OFFLOAD_SIGNAL_H
#define OT_OFFLOAD_SIGNAL_H

#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { OT_SIGNAL_SLEEPER = 1 }; /* somebody sleeps on the word; the other bits are flags */

typedef struct ot_signal {
    _Atomic uint32_t word;
} ot_signal;

/* No flag is up afterwards. Nobody waits meanwhile. */
static inline void ot_signal_reset(ot_signal *signal)
{
    atomic_store_explicit(&signal->word, 0, memory_order_relaxed);
}

static inline void ot_signal_raise(ot_signal *signal, uint32_t flags)
{
    uint32_t before = atomic_fetch_or_explicit(&signal->word, flags, memory_order_release);
    if (before & OT_SIGNAL_SLEEPER) {
        atomic_fetch_and_explicit(&signal->word, ~(uint32_t)OT_SIGNAL_SLEEPER, memory_order_relaxed);
        syscall(SYS_futex, &signal->word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
    }
}

/* Takes flags down; what was written before they were raised is seen afterwards. */
static inline void ot_signal_clear(ot_signal *signal, uint32_t flags)
{
    atomic_fetch_and_explicit(&signal->word, ~flags, memory_order_acquire);
}

static inline uint32_t ot_signal_flags(const ot_signal *signal)
{
    return atomic_load_explicit(&((ot_signal *)signal)->word, memory_order_acquire);
}

/* Blocks until one of `flags` is up. Returns all that are. */
static inline uint32_t ot_signal_wait(ot_signal *signal, uint32_t flags)
{
    for (;;) {
        uint32_t word = ot_signal_flags(signal);
        if (!(word & (flags | OT_SIGNAL_SLEEPER))) {
            word = atomic_fetch_or_explicit(&signal->word, OT_SIGNAL_SLEEPER, memory_order_acquire);
            word |= OT_SIGNAL_SLEEPER;
        }
        if (word & flags)
            return word;
        syscall(SYS_futex, &signal->word, FUTEX_WAIT_PRIVATE, word, NULL, NULL, 0);
    }
}

#endif
