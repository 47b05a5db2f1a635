/* A stack of its own for each CUDA thread, the switch between two, and what the sanitizers have to be told.
 *
 * ThreadSanitizer takes each fiber for a thread of its own, and a switch orders nothing: what one fiber did
 * before another is known to it only by simt_release and, after that, simt_acquire of the same tag, an address
 * that nobody else uses so. Files that call these are compiled without its instrumentation (simt.cmake), so
 * that it sees what kernels do and not how the emulator does it. Without it they do nothing. */
#ifndef OT_TESTS_SIMT_FIBER_H
#define OT_TESTS_SIMT_FIBER_H

#include <stddef.h>

enum { SIMT_STACK_BYTES = 256 << 10 };

struct simt_fiber {
    void *stack_pointer;
    const unsigned char *stack; /* its lower end */
    size_t stack_bytes;
    int was_left; /* for good, in the middle of a function */
    void *watched;
};

/* Maps its stack, once; and gives it back. */
void simt_fiber_open(simt_fiber *f);
void simt_fiber_close(simt_fiber *f);

/* Makes it begin in `main`, which begins with simt_fiber_entered and never returns. */
void simt_fiber_start(simt_fiber *f, void (*main)(void));
void simt_fiber_entered(simt_fiber *scheduler);

/* Makes `f` stand for the calling thread on its own stack. */
void simt_fiber_adopt(simt_fiber *f);

/* `for_good`: `from` will not be back. */
void simt_fiber_switch(simt_fiber *from, simt_fiber *to, int for_good);

/* ---- ThreadSanitizer ---- */

#if defined(OT_WATCHED)

extern "C" {
void __tsan_acquire(void *tag);
void __tsan_release(void *tag);
void __tsan_read_range(void *address, unsigned long bytes);
void __tsan_write_range(void *address, unsigned long bytes);
void AnnotateIgnoreReadsBegin(const char *file, int line);
void AnnotateIgnoreReadsEnd(const char *file, int line);
void AnnotateIgnoreWritesBegin(const char *file, int line);
void AnnotateIgnoreWritesEnd(const char *file, int line);
void AnnotateIgnoreSyncBegin(const char *file, int line);
void AnnotateIgnoreSyncEnd(const char *file, int line);
}

enum { SIMT_WATCHED = 1 };

inline void simt_acquire(void *tag)
{
    __tsan_acquire(tag);
}

inline void simt_release(void *tag)
{
    __tsan_release(tag);
}

/* In the place of `f`, which was left for good. */
void simt_release_for(simt_fiber *f, simt_fiber *scheduler, void *tag);

/* What the fiber that runs does to memory, where no instruction of its own does it. */
inline void simt_reads(const void *address, size_t bytes)
{
    __tsan_read_range((void *)address, bytes);
}

inline void simt_writes(void *address, size_t bytes)
{
    __tsan_write_range(address, bytes);
}

/* Nothing that this fiber reads and writes is looked at between 0 and 1. */
inline void simt_watch(int on)
{
    if (on) {
        AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
        AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    } else {
        AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
        AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
    }
}

/* While one lives, what this fiber reads, writes and locks is the emulator's and no thread's. */
struct simt_unwatched {
    simt_unwatched()
    {
        simt_watch(0);
        AnnotateIgnoreSyncBegin(__FILE__, __LINE__);
    }
    ~simt_unwatched()
    {
        AnnotateIgnoreSyncEnd(__FILE__, __LINE__);
        simt_watch(1);
    }
};

#else

enum { SIMT_WATCHED = 0 };

inline void simt_acquire(void *)
{
}

inline void simt_release(void *)
{
}

inline void simt_release_for(simt_fiber *, simt_fiber *, void *)
{
}

inline void simt_reads(const void *, size_t)
{
}

inline void simt_writes(void *, size_t)
{
}

inline void simt_watch(int)
{
}

struct simt_unwatched {
    ~simt_unwatched()
    {
    }
};

#endif
#endif
