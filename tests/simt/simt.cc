/* The SIMT emulator: one block of CUDA threads at a time, each a fiber with a stack of its own.
 *
 * A fiber runs until it waits for the others; which one goes on then is up to the order. A barrier opens when
 * the last thread arrives; what a warp does together is done by its last lane, on the operands that all 32
 * left on their stacks. So whatever is read before a barrier that was forgotten is read too early in one of
 * the orders, and shared memory holds poison (NaN in every type) until it is written.
 *
 * Named errors, after which the kernel stops: threads at different barriers, or gone while others wait; lanes
 * that are absent from what their warp does together, or that are not named in its mask; more shared memory
 * than every card has; blocks and grids that no card takes; misaligned cp.async, ldmatrix.
 *
 * Invariants: `self->running` is the fiber whose code runs, NULL in the scheduler; a bit in `runnable` is a
 * fiber that waits for nothing; a fiber at a barrier or in its warp's work is in neither. */
#include "tests/simt/simt.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <mutex>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace
{

enum {
    THREADS_MAX = 1024,
    WARPS_MAX = THREADS_MAX / 32,
    STACK_BYTES = 256 << 10,
    SHARED_MAX = 99 << 10, /* of a block on sm_86, 89 and 120 */
    STATIC_SHARED_MAX = 48 << 10,
    DECLARATIONS_MAX = 16,
    COPIES_MAX = 128,
    BARRIERS_MAX = 256,
    POISON = 0xff,
};

struct site {
    const char *what, *file;
    int line;
};

struct copy {
    unsigned char *shared;
    const unsigned char *global;
    unsigned bytes, group;
};

struct fiber {
    void *stack_pointer;
    unsigned char *stack; /* its lower end */
    simt_position position;
    int index, waiting, done;
    site at;
    const void *in;
    void *out;
    copy copies[COPIES_MAX];
    unsigned copy_count, group;
};

struct warp {
    unsigned runnable, arrived;
    site at;
};

struct declaration {
    const void *key;
    size_t offset;
};

/* One operating-system thread's emulator. */
struct machine {
    fiber fibers[THREADS_MAX];
    warp warps[WARPS_MAX];
    void *scheduler;
    fiber *running;
    int threads, left, at_barrier, failed;
    site barrier;
    const simt_launch_options *options;
    simt_body *body;
    void *context;
    uint64_t random;
    alignas(128) unsigned char shared[SHARED_MAX];
    size_t dynamic_bytes, static_bytes;
    declaration declarations[DECLARATIONS_MAX];
    int declaration_count;
    simt_counts counts;
#if defined(__SANITIZE_ADDRESS__)
    const void *scheduler_stack;
    size_t scheduler_stack_bytes;
#endif
};

__thread machine *self;

simt_order order;
uint64_t order_seed;
simt_hook *hook;

std::mutex lock; /* of what follows */
char error_text[512];
simt_counts counts;
site barriers[BARRIERS_MAX];
int barrier_count, barrier_left_out = -1;

} // namespace

__thread simt_position *simt_here;

/* ---- Fibers ---- */

extern "C" void simt_switch(void **save, void *load);

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

/* `save` gets where the caller stands; a fiber that will not be back says so to the sanitizer. */
static void switch_stacks(void **save, fiber *to, int for_good)
{
    void *load = to != NULL ? to->stack_pointer : self->scheduler;
    self->running = to;
    if (to != NULL)
        simt_here = &to->position;
#if defined(__SANITIZE_ADDRESS__)
    void *fake = NULL;
    const void *bottom = to != NULL ? to->stack : self->scheduler_stack;
    size_t bytes = to != NULL ? (size_t)STACK_BYTES : self->scheduler_stack_bytes;
    __sanitizer_start_switch_fiber(for_good ? NULL : &fake, bottom, bytes);
    simt_switch(save, load);
    __sanitizer_finish_switch_fiber(fake, NULL, NULL);
#else
    (void)for_good;
    simt_switch(save, load);
#endif
}

static uint64_t next_random(void)
{
    uint64_t x = self->random;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return self->random = x;
}

static int lowest(unsigned bits)
{
    return __builtin_ctz(bits);
}

static int highest(unsigned bits)
{
    return 31 - __builtin_clz(bits);
}

/* The n-th set bit, from a random start. */
static int any(unsigned bits)
{
    int start = (int)(next_random() >> 40) & 31;
    unsigned from = bits >> start << start;
    return lowest(from != 0 ? from : bits);
}

/* A fiber that waits for nothing, or NULL. */
static fiber *pick(void)
{
    machine *m = self;
    int warps = m->threads / 32, start = order == SIMT_RANDOM ? (int)(next_random() >> 40) % warps : 0;
    for (int i = 0; i < warps; i++) {
        int w = order == SIMT_REVERSE ? warps - 1 - i : (start + i) % warps;
        unsigned bits = m->warps[w].runnable;
        if (bits == 0)
            continue;
        int lane = order == SIMT_FORWARD ? lowest(bits) : order == SIMT_REVERSE ? highest(bits) : any(bits);
        return &m->fibers[w * 32 + lane];
    }
    return NULL;
}

/* Lets the next one go on, the caller among them if it is runnable. */
static void give_way(int for_good)
{
    fiber *me = self->running, *next = pick();
    if (next != me || for_good)
        switch_stacks(&me->stack_pointer, next, for_good);
}

static unsigned lane_bit(const fiber *f)
{
    return 1u << (f->index & 31);
}

static warp *warp_of(const fiber *f)
{
    return &self->warps[f->index / 32];
}

static void fiber_main(void)
{
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(NULL, self->scheduler_stack != NULL ? NULL : &self->scheduler_stack,
                                    self->scheduler_stack_bytes != 0 ? NULL : &self->scheduler_stack_bytes);
#endif
    fiber *me = self->running;
    self->body(self->context);
    me->done = 1;
    self->left--;
    warp_of(me)->runnable &= ~lane_bit(me);
    give_way(1);
    abort();
}

static void start_fiber(fiber *f)
{
    void **top = (void **)(f->stack + STACK_BYTES);
#if defined(__SANITIZE_ADDRESS__)
    /* What its last function left behind; all of it where an error kept functions from returning. */
    size_t used = f->done ? 4096 : STACK_BYTES;
    __asan_unpoison_memory_region(f->stack + STACK_BYTES - used, used);
#endif
    *--top = NULL; /* where fiber_main would return to; aligns the stack as a call does */
    *--top = (void *)fiber_main;
    for (int i = 0; i < 6; i++)
        *--top = NULL;
    f->stack_pointer = top;
}

/* ---- Errors ---- */

static void record_error(const char *format, va_list arguments)
{
    std::lock_guard<std::mutex> guard(lock);
    if (error_text[0] == '\0')
        vsnprintf(error_text, sizeof error_text, format, arguments);
}

static void note_error(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    record_error(format, arguments);
    va_end(arguments);
}

/* An error of the fiber that runs, which is left for good. */
[[noreturn]] static void fail(const char *format, ...)
{
    char text[320];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fiber *me = self->running;
    const dim3 &b = me->position.block;
    note_error("%s, block (%u,%u,%u), thread %d: %s", self->options->kernel, b.x, b.y, b.z, me->index, text);
    self->failed = 1;
    switch_stacks(&me->stack_pointer, NULL, 1);
    abort();
}

/* Nothing is runnable, and somebody waits. */
static void explain_standstill(void)
{
    machine *m = self;
    const fiber *first = NULL, *other = NULL;
    int gone = 0;
    for (int i = 0; i < m->threads; i++) {
        const fiber *f = &m->fibers[i];
        gone += f->done;
        if (!f->done && first == NULL)
            first = f;
        else if (!f->done && other == NULL && (f->at.line != first->at.line || f->at.file != first->at.file))
            other = f;
    }
    const dim3 &b = first->position.block;
    if (other != NULL)
        note_error("%s, block (%u,%u,%u): divergent: thread %d waits in %s (%s:%d), thread %d in %s (%s:%d)",
                   m->options->kernel, b.x, b.y, b.z, first->index, first->at.what, first->at.file,
                   first->at.line, other->index, other->at.what, other->at.file, other->at.line);
    else
        note_error("%s, block (%u,%u,%u): divergent: thread %d waits in %s (%s:%d), %d threads have left",
                   m->options->kernel, b.x, b.y, b.z, first->index, first->at.what, first->at.file,
                   first->at.line, gone);
}

const char *simt_error(void)
{
    return error_text;
}

void simt_clear_error(void)
{
    std::lock_guard<std::mutex> guard(lock);
    error_text[0] = '\0';
}

/* ---- Barriers ---- */

/* Whether the barrier at this place is the one left out. */
static int is_left_out(const site &at)
{
    std::lock_guard<std::mutex> guard(lock);
    int i = 0;
    while (i < barrier_count && (barriers[i].line != at.line || strcmp(barriers[i].file, at.file) != 0))
        i++;
    if (i == barrier_count && i < BARRIERS_MAX)
        barriers[barrier_count++] = at;
    return i == barrier_left_out;
}

static int tracking;

void simt_reset_barriers(void)
{
    std::lock_guard<std::mutex> guard(lock);
    barrier_count = 0;
    barrier_left_out = -1;
    tracking = 1;
}

int simt_barriers(void)
{
    std::lock_guard<std::mutex> guard(lock);
    return barrier_count;
}

void simt_leave_out(int barrier)
{
    std::lock_guard<std::mutex> guard(lock);
    barrier_left_out = barrier;
}

const char *simt_barrier_name(int barrier)
{
    static char name[256];
    std::lock_guard<std::mutex> guard(lock);
    const char *slash = strrchr(barriers[barrier].file, '/');
    snprintf(name, sizeof name, "%s:%d", slash != NULL ? slash + 1 : barriers[barrier].file,
             barriers[barrier].line);
    return name;
}

void simt_block_barrier(const char *file, int line)
{
    machine *m = self;
    fiber *me = m->running;
    site at = {"__syncthreads", file, line};
    if (tracking && is_left_out(at))
        return;
    if (m->at_barrier == 0)
        m->barrier = at;
    else if (m->barrier.line != line || strcmp(m->barrier.file, file) != 0)
        fail("divergent: at the __syncthreads of %s:%d while others wait at that of %s:%d", file, line,
             m->barrier.file, m->barrier.line);
    me->at = at;
    me->waiting = 1;
    warp_of(me)->runnable &= ~lane_bit(me);
    if (++m->at_barrier == m->threads) {
        m->at_barrier = 0;
        for (int w = 0; w < m->threads / 32; w++)
            m->warps[w].runnable = 0xffffffffu;
    }
    give_way(0);
}

void simt_warp(const char *what, unsigned mask, const char *file, int line, const void *in, void *out,
               simt_work *work)
{
    machine *m = self;
    fiber *me = m->running;
    warp *w = warp_of(me);
    if (mask != 0xffffffffu)
        fail("%s (%s:%d) with the mask %#x: absent lanes; all 32 have to be named", what, file, line, mask);
    if (w->arrived == 0)
        w->at = site{what, file, line};
    else if (w->at.line != line || strcmp(w->at.file, file) != 0)
        fail("divergent lanes: in %s (%s:%d) while others of the warp wait in %s (%s:%d)", what, file, line,
             w->at.what, w->at.file, w->at.line);
    me->at = w->at;
    me->in = in;
    me->out = out;
    w->arrived |= lane_bit(me);
    w->runnable &= ~lane_bit(me);
    if (w->arrived == 0xffffffffu) {
        const void *ins[32];
        void *outs[32];
        fiber *first = &m->fibers[me->index & ~31];
        for (int lane = 0; lane < 32; lane++) {
            ins[lane] = first[lane].in;
            outs[lane] = first[lane].out;
        }
        work(ins, outs);
        w->arrived = 0;
        w->runnable = 0xffffffffu;
    }
    give_way(0);
}

void simt_warp_barrier(unsigned mask, const char *file, int line)
{
    if (!tracking || !is_left_out(site{"__syncwarp", file, line}))
        simt_warp("__syncwarp", mask, file, line, NULL, NULL, [](const void *const *, void *const *) {});
}

unsigned simt_lane(void)
{
    return (unsigned)self->running->index & 31;
}

/* ---- Shared memory ---- */

void *simt_shared_dynamic(void)
{
    return self->shared;
}

void *simt_shared(const void *key, size_t bytes)
{
    machine *m = self;
    for (int i = 0; i < m->declaration_count; i++)
        if (m->declarations[i].key == key)
            return m->shared + m->declarations[i].offset;
    size_t offset = (m->dynamic_bytes + m->static_bytes + 127) / 128 * 128, end = offset + bytes;
    if (m->declaration_count == DECLARATIONS_MAX)
        fail("more than %d declarations of shared memory", (int)DECLARATIONS_MAX);
    if (end > SHARED_MAX || m->static_bytes + bytes > STATIC_SHARED_MAX)
        fail(
            "%zu bytes of shared memory, %zu of them declared: over-large; a block has %d and may declare %d",
            end, m->static_bytes + bytes, (int)SHARED_MAX, (int)STATIC_SHARED_MAX);
    m->declarations[m->declaration_count++] = declaration{key, offset};
    m->static_bytes = end - m->dynamic_bytes;
    memset(m->shared + offset, POISON, bytes);
    return m->shared + offset;
}

/* ---- cp.async ---- */

void ot_copy_async(void *shared, const void *global, unsigned bytes)
{
    fiber *me = self->running;
    if ((uintptr_t)shared % 16 != 0 || (bytes > 0 && (uintptr_t)global % 16 != 0) || bytes > 16)
        fail("cp.async of %u bytes from %p to %p: misaligned or too long", bytes, global, shared);
    if (me->copy_count == COPIES_MAX)
        fail("more than %d cp.async under way in one thread", (int)COPIES_MAX);
    memset(shared, POISON, 16);
    me->copies[me->copy_count++] =
        copy{(unsigned char *)shared, (const unsigned char *)global, bytes, me->group};
}

void ot_copy_commit(void)
{
    self->running->group++;
}

void simt_copy_wait(unsigned groups_left)
{
    fiber *me = self->running;
    unsigned kept = 0;
    for (unsigned i = 0; i < me->copy_count; i++) {
        copy c = me->copies[i];
        if (c.group + groups_left >= me->group) {
            me->copies[kept++] = c;
            continue;
        }
        memcpy(c.shared, c.global, c.bytes);
        memset(c.shared + c.bytes, 0, 16 - c.bytes);
        simt_count(c.bytes, 0);
    }
    me->copy_count = kept;
}

/* ---- Matrix instructions (PTX ISA, "Matrix fragments for mma.m16n8k16" and "ldmatrix") ---- */

template <int transposed> static void load_matrices(const void *const in[32], void *const out[32])
{
    for (int lane = 0; lane < 32; lane++) {
        uint32_t *r = (uint32_t *)out[lane];
        for (int matrix = 0; matrix < 4; matrix++) {
            uint16_t pair[2];
            for (int e = 0; e < 2; e++) {
                int row = transposed ? lane % 4 * 2 + e : lane / 4,
                    column = transposed ? lane / 4 : lane % 4 * 2 + e;
                const uint16_t *values = *(const uint16_t *const *)in[matrix * 8 + row];
                pair[e] = values[column];
            }
            r[matrix] = pair[0] | (uint32_t)pair[1] << 16;
        }
    }
}

static void check_row(const void *row)
{
    const unsigned char *p = (const unsigned char *)row;
    if ((uintptr_t)row % 16 != 0 || p < self->shared || p + 16 > self->shared + SHARED_MAX)
        fail("ldmatrix from %p: misaligned, or not in shared memory", row);
}

void ot_ldmatrix_x4(uint32_t out[4], const void *row, const char *file, int line)
{
    check_row(row);
    simt_warp("ldmatrix", 0xffffffffu, file, line, &row, out, load_matrices<0>);
}

void ot_ldmatrix_x4_trans(uint32_t out[4], const void *row, const char *file, int line)
{
    check_row(row);
    simt_warp("ldmatrix", 0xffffffffu, file, line, &row, out, load_matrices<1>);
}

namespace
{

struct fragments {
    const uint32_t *a, *b;
};

struct half_table {
    float value[65536];
    half_table()
    {
        for (unsigned i = 0; i < 65536; i++) {
            __half_raw raw;
            raw.x = (unsigned short)i;
            value[i] = __half2float(__half(raw));
        }
    }
};

float widen(__half, uint32_t bits)
{
    static const half_table table;
    return table.value[bits & 0xffff];
}

float widen(__nv_bfloat16, uint32_t bits)
{
    return __uint_as_float(bits << 16);
}

/* Row and column of element e of register r in a lane's part of the 16x16 matrix a. */
template <class T> void multiply_fragments(const void *const in[32], void *const out[32])
{
    float a[16][16], b[16][8], sum[16][8];
    for (int lane = 0; lane < 32; lane++) {
        const fragments *f = (const fragments *)in[lane];
        const float *c = (const float *)out[lane];
        int group = lane / 4, pair = lane % 4 * 2;
        for (int e = 0; e < 2; e++) {
            for (int r = 0; r < 4; r++)
                a[group + r % 2 * 8][pair + e + r / 2 * 8] = widen(T(), f->a[r] >> (16 * e));
            for (int r = 0; r < 2; r++)
                b[pair + e + r * 8][group] = widen(T(), f->b[r] >> (16 * e));
            sum[group][pair + e] = c[e];
            sum[group + 8][pair + e] = c[2 + e];
        }
    }
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 16; k++)
            for (int j = 0; j < 8; j++)
                sum[i][j] += a[i][k] * b[k][j];
    for (int lane = 0; lane < 32; lane++) {
        float *c = (float *)out[lane];
        for (int e = 0; e < 4; e++)
            c[e] = sum[lane / 4 + e / 2 * 8][lane % 4 * 2 + e % 2];
    }
}

} // namespace

void ot_mma(__half, float c[4], const uint32_t a[4], const uint32_t b[2], const char *file, int line)
{
    fragments f = {a, b};
    simt_warp("mma", 0xffffffffu, file, line, &f, c, multiply_fragments<__half>);
}

void ot_mma(__nv_bfloat16, float c[4], const uint32_t a[4], const uint32_t b[2], const char *file, int line)
{
    fragments f = {a, b};
    simt_warp("mma", 0xffffffffu, file, line, &f, c, multiply_fragments<__nv_bfloat16>);
}

/* ---- Counters ---- */

void simt_count(uint64_t read_bytes, uint64_t written_bytes)
{
    self->counts.read_bytes += read_bytes;
    self->counts.written_bytes += written_bytes;
}

simt_counts simt_get_counts(void)
{
    std::lock_guard<std::mutex> guard(lock);
    return counts;
}

void simt_reset_counts(void)
{
    std::lock_guard<std::mutex> guard(lock);
    counts = simt_counts{0, 0, 0};
}

/* ---- Launches ---- */

void simt_set_order(simt_order new_order, uint64_t seed)
{
    order = new_order;
    order_seed = seed;
}

void simt_set_hook(simt_hook *new_hook)
{
    hook = new_hook;
}

static void run_block(const simt_launch_options &o, dim3 block)
{
    machine *m = self;
    memset(m->shared, POISON, m->dynamic_bytes);
    m->declaration_count = 0;
    m->static_bytes = 0;
    m->at_barrier = 0;
    m->left = m->threads;
    for (int i = 0; i < m->threads; i++) {
        fiber *f = &m->fibers[i];
        unsigned n = (unsigned)i;
        f->position = simt_position{dim3(n % o.block.x, n / o.block.x % o.block.y, n / o.block.x / o.block.y),
                                    block, o.block, o.grid};
        f->index = i;
        f->copy_count = f->group = 0;
        start_fiber(f);
        f->done = 0;
    }
    for (int w = 0; w < m->threads / 32; w++)
        m->warps[w] = warp{0xffffffffu, 0, {NULL, NULL, 0}};
    switch_stacks(&m->scheduler, pick(), 0);
    if (!m->failed && m->left > 0) {
        explain_standstill();
        m->failed = 1;
    }
}

/* A machine ends with its thread. */
struct keeper {
    ~keeper()
    {
        for (int i = 0; i < THREADS_MAX; i++) {
            if (self->fibers[i].stack == NULL)
                continue;
#if defined(__SANITIZE_ADDRESS__)
            __asan_unpoison_memory_region(self->fibers[i].stack, STACK_BYTES); /* others get the addresses */
#endif
            munmap(self->fibers[i].stack, STACK_BYTES);
        }
        delete self;
        self = NULL;
    }
};

static void prepare_machine(int threads)
{
    if (self == NULL) {
        self = new machine();
        static thread_local keeper of_this_thread;
        (void)&of_this_thread;
    }
    for (int i = 0; i < threads; i++) {
        fiber *f = &self->fibers[i];
        if (f->stack != NULL)
            continue;
        f->done = 1;
        void *stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (stack == MAP_FAILED)
            abort();
        f->stack = (unsigned char *)stack;
    }
}

namespace
{

struct launch {
    simt_launch_options options;
    simt_body *body, *release;
    void *context;
};

} // namespace

static cudaError_t run_launch(void *context)
{
    launch *l = (launch *)context;
    const simt_launch_options &o = l->options;
    int threads = (int)(o.block.x * o.block.y * o.block.z);
    prepare_machine(threads);
    machine *m = self;
    m->threads = threads;
    m->options = &o;
    m->body = l->body;
    m->context = l->context;
    m->dynamic_bytes = o.shared_bytes;
    m->failed = 0;
    m->counts = simt_counts{0, 0, 1};
    m->random = (order_seed + 1) * 0x9E3779B97F4A7C15u | 1;
    uint64_t blocks = (uint64_t)o.grid.x * o.grid.y * o.grid.z;
    uint64_t start = order == SIMT_RANDOM ? next_random() % blocks : 0;
    for (uint64_t i = 0; i < blocks && !m->failed; i++) {
        uint64_t b = order == SIMT_REVERSE ? blocks - 1 - i : (start + i) % blocks;
        run_block(o, dim3((unsigned)(b % o.grid.x), (unsigned)(b / o.grid.x % o.grid.y),
                          (unsigned)(b / o.grid.x / o.grid.y)));
    }
    {
        std::lock_guard<std::mutex> guard(lock);
        counts.read_bytes += m->counts.read_bytes;
        counts.written_bytes += m->counts.written_bytes;
        counts.kernels++;
    }
    cudaError_t result = m->failed ? cudaErrorLaunchFailure : cudaSuccess;
    l->release(l->context);
    delete l;
    return result;
}

static int is_launchable(const simt_launch_options &o)
{
    unsigned threads = o.block.x * o.block.y * o.block.z;
    if (threads == 0 || threads > THREADS_MAX || threads % 32 != 0 || o.block.z > 64) {
        note_error("%s: bad launch: a block of (%u,%u,%u) threads", o.kernel, o.block.x, o.block.y,
                   o.block.z);
        return 0;
    }
    if (o.grid.x == 0 || o.grid.y == 0 || o.grid.z == 0 || o.grid.x > 0x7fffffff || o.grid.y > 65535 ||
        o.grid.z > 65535) {
        note_error("%s: bad launch: a grid of (%u,%u,%u) blocks", o.kernel, o.grid.x, o.grid.y, o.grid.z);
        return 0;
    }
    if (o.shared_bytes > SHARED_MAX) {
        note_error("%s: bad launch: %zu bytes of shared memory: over-large; a block has %d", o.kernel,
                   o.shared_bytes, (int)SHARED_MAX);
        return 0;
    }
    return 1;
}

cudaError_t simt_launch(const simt_launch_options *options, simt_body *body, simt_body *release,
                        void *context)
{
    if (!is_launchable(*options)) {
        release(context);
        return cudaErrorInvalidConfiguration;
    }
    launch *l = new launch{*options, body, release, context};
    if (hook == NULL)
        return run_launch(l);
    cudaError_t error = hook(options->stream, run_launch, l);
    if (error != cudaSuccess) {
        release(context);
        delete l;
    }
    return error;
}
