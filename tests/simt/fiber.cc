#include "tests/simt/fiber.h"

#include <stdlib.h>
#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

extern "C" {
void simt_switch(void **save, void *load);
#if defined(OT_WATCHED)
void *__tsan_get_current_fiber(void);
void *__tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void *fiber);
void __tsan_switch_to_fiber(void *fiber, unsigned flags);
#endif
}

enum { NO_SYNC = 1 }; /* __tsan_switch_to_fiber_no_sync */

#if !defined(__x86_64__)
#error "the emulator's switch is written for x86-64"
#endif
__asm__(".text\n"
        ".type simt_switch,@function\n"
        "simt_switch:\n"
        "    push %rbp\n"
        "    push %rbx\n"
        "    push %r12\n"
        "    push %r13\n"
        "    push %r14\n"
        "    push %r15\n"
        "    mov %rsp, (%rdi)\n"
        "    mov %rsi, %rsp\n"
        "    pop %r15\n"
        "    pop %r14\n"
        "    pop %r13\n"
        "    pop %r12\n"
        "    pop %rbx\n"
        "    pop %rbp\n"
        "    ret\n"
        ".size simt_switch,.-simt_switch\n");

void simt_fiber_open(simt_fiber *f)
{
    if (f->stack != NULL)
        return;
    void *stack = mmap(NULL, SIMT_STACK_BYTES, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED)
        abort();
    f->stack = (unsigned char *)stack;
    f->stack_bytes = SIMT_STACK_BYTES;
#if defined(OT_WATCHED)
    f->watched = __tsan_create_fiber(0);
#endif
}

void simt_fiber_close(simt_fiber *f)
{
    if (f->stack == NULL)
        return;
#if defined(OT_WATCHED)
    __tsan_destroy_fiber(f->watched);
#endif
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(f->stack, SIMT_STACK_BYTES); /* others get the addresses */
#endif
    munmap((void *)f->stack, SIMT_STACK_BYTES);
    f->stack = NULL;
}

void simt_fiber_start(simt_fiber *f, void (*main)(void))
{
    void **top = (void **)(f->stack + SIMT_STACK_BYTES);
#if defined(__SANITIZE_ADDRESS__)
    /* What its last function left behind; all of it where an error kept functions from returning. */
    size_t used = f->was_left ? SIMT_STACK_BYTES : 4096;
    __asan_unpoison_memory_region(f->stack + SIMT_STACK_BYTES - used, used);
#endif
    f->was_left = 1;
    *--top = NULL; /* where main would return to; aligns the stack as a call does */
    *--top = (void *)main;
    for (int i = 0; i < 6; i++)
        *--top = NULL;
    f->stack_pointer = top;
}

void simt_fiber_adopt(simt_fiber *f)
{
#if defined(OT_WATCHED)
    f->watched = __tsan_get_current_fiber();
#else
    (void)f;
#endif
}

#if defined(OT_WATCHED)
void simt_release_for(simt_fiber *f, simt_fiber *scheduler, void *tag)
{
    __tsan_switch_to_fiber(f->watched, NO_SYNC);
    simt_release(tag);
    __tsan_switch_to_fiber(scheduler->watched, NO_SYNC);
}
#endif

void simt_fiber_entered(simt_fiber *scheduler)
{
#if defined(__SANITIZE_ADDRESS__)
    /* The first fiber comes from the scheduler's stack, and learns where that is. */
    const void *stack;
    int is_known = scheduler->stack != NULL;
    __sanitizer_finish_switch_fiber(NULL, is_known ? NULL : &stack,
                                    is_known ? NULL : &scheduler->stack_bytes);
    if (!is_known)
        scheduler->stack = (const unsigned char *)stack;
#else
    (void)scheduler;
#endif
}

void simt_fiber_switch(simt_fiber *from, simt_fiber *to, int for_good)
{
#if defined(OT_WATCHED)
    __tsan_switch_to_fiber(to->watched, NO_SYNC);
#endif
#if defined(__SANITIZE_ADDRESS__)
    void *fake = NULL;
    __sanitizer_start_switch_fiber(for_good ? NULL : &fake, to->stack, to->stack_bytes);
    simt_switch(&from->stack_pointer, to->stack_pointer);
    __sanitizer_finish_switch_fiber(fake, NULL, NULL);
#else
    (void)for_good;
    simt_switch(&from->stack_pointer, to->stack_pointer);
#endif
}
