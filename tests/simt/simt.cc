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
 * Under ThreadSanitizer a data race is one too, found in any order: each CUDA thread is a thread to it, and only
 * __syncthreads, __syncwarp, atomics and the ends of a launch order what they do; shuffles, mma and ldmatrix do not.
 *
 * Invariants: `self->running` is the fiber whose code runs, NULL in the scheduler; a bit in `runnable` is a
 * fiber that waits for nothing; a fiber at a barrier or in its warp's work is in neither. */
#include "tests/simt/simt.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <mutex>

#include "tests/simt/fiber.h"

namespace
{

enum {
    THREADS_MAX = 1024,
    WARPS_MAX = THREADS_MAX / 32,
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

struct thread {
    simt_fiber *fiber;
    simt_position position;
    int index, waiting, done;
    site at;
    const void *in;
    void *out;
    copy copies[COPIES_MAX];
    unsigned copy_count, group;
};

/* Tags for the two generations of a barrier that may be under way: one that threads are still leaving, and the
 * next. */
struct generations {
    long tag[2];
};

struct warp {
    unsigned runnable, arrived, generation;
    site at;
};

struct declaration {
    const void *key;
    size_t offset;
};

/* What a block has to itself. Under ThreadSanitizer each block's is new, so that it has no past. */
struct block_memory {
    alignas(128) unsigned char shared[SHARED_MAX];
    long start;
    generations barrier, warps[WARPS_MAX];
};

/* One operating-system thread's emulator. */
struct machine {
    thread all[THREADS_MAX];
    simt_fiber fibers[THREADS_MAX], scheduler;
    warp warps[WARPS_MAX];
    thread *running;
    int threads, left, at_barrier, failed, raced;
    unsigned generation, blocks;
    site barrier;
    const simt_launch_options *options;
    simt_body *body;
    void *context, *end;
    uint64_t random;
    block_memory *memory;
    size_t dynamic_bytes, static_bytes;
    declaration declarations[DECLARATIONS_MAX];
    int declaration_count;
    simt_counts counts;
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

/* `to` NULL: the scheduler. */
static void switch_to(thread *to, int for_good)
{
    machine *m = self;
    simt_fiber *from = m->running != NULL ? m->running->fiber : &m->scheduler;
    m->running = to;
    if (to != NULL)
        simt_here = &to->position;
    simt_fiber_switch(from, to != NULL ? to->fiber : &m->scheduler, for_good);
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
static thread *pick(void)
{
    machine *m = self;
    int warps = m->threads / 32, start = order == SIMT_RANDOM ? (int)(next_random() >> 40) % warps : 0;
    for (int i = 0; i < warps; i++) {
        int w = order == SIMT_REVERSE ? warps - 1 - i : (start + i) % warps;
        unsigned bits = m->warps[w].runnable;
        if (bits == 0)
            continue;
        int lane = order == SIMT_FORWARD ? lowest(bits) : order == SIMT_REVERSE ? highest(bits) : any(bits);
        return &m->all[w * 32 + lane];
    }
    return NULL;
}

/* In the middle of a function, for an error. */
[[noreturn]] static void leave_block(void)
{
    if (self->raced)
        simt_watch(1);
    switch_to(NULL, 1);
    abort();
}

/* Lets the next one go on, the caller among them if it is runnable; none where one has raced. */
static void give_way(int for_good)
{
    if (self->raced)
        leave_block();
    thread *next = pick();
    if (next != self->running || for_good)
        switch_to(next, for_good);
}

static unsigned lane_bit(const thread *f)
{
    return 1u << (f->index & 31);
}

static warp *warp_of(const thread *f)
{
    return &self->warps[f->index / 32];
}

static void fiber_main(void)
{
    machine *m = self;
    simt_fiber_entered(&m->scheduler);
    simt_acquire(&m->memory->start);
    thread *me = m->running;
    m->body(m->context);
    simt_release(m->end);
    me->done = 1;
    me->fiber->was_left = 0;
    m->left--;
    warp_of(me)->runnable &= ~lane_bit(me);
    give_way(1);
    abort();
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
    thread *me = self->running;
    const dim3 &b = me->position.block;
    note_error("%s, block (%u,%u,%u), thread %d: %s", self->options->kernel, b.x, b.y, b.z, me->index, text);
    self->failed = 1;
    leave_block();
}

#if defined(OT_WATCHED)
/* Of a program that links the emulator, not of the emulated plugin. Races are errors of the kernels, and planted ones
 * are no failure of the test; each is one again in the next order. */
extern "C" __attribute__((visibility("default"))) const char *__tsan_default_options(void)
{
    return "exitcode=0:suppress_equal_stacks=0:suppress_equal_addresses=0";
}

/* ThreadSanitizer calls it with locks held: the kernel stops where it comes to wait. */
extern "C" __attribute__((visibility("default"))) void __tsan_on_report(void *)
{
    if (self == NULL || self->running == NULL || self->raced)
        return;
    self->raced = 1;
    simt_watch(0); /* it goes on to where it waits, and one report is enough */
}
#endif

/* Nothing is runnable, and somebody waits. */
static void explain_standstill(void)
{
    machine *m = self;
    const thread *first = NULL, *other = NULL;
    int gone = 0;
    for (int i = 0; i < m->threads; i++) {
        const thread *t = &m->all[i];
        gone += t->done;
        if (!t->done && first == NULL)
            first = t;
        else if (!t->done && other == NULL && (t->at.line != first->at.line || t->at.file != first->at.file))
            other = t;
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

static int kept_stderr = -1;

void simt_hush(void)
{
    fflush(stderr);
    int nowhere = open("/dev/null", O_WRONLY);
    kept_stderr = dup(STDERR_FILENO);
    if (nowhere < 0 || kept_stderr < 0 || dup2(nowhere, STDERR_FILENO) < 0)
        abort();
    close(nowhere);
}

void simt_unhush(void)
{
    fflush(stderr);
    if (dup2(kept_stderr, STDERR_FILENO) < 0)
        abort();
    close(kept_stderr);
}

/* ---- Barriers ---- */

/* Whether the barrier at this place is the one left out. */
static int is_left_out(const site &at)
{
    simt_unwatched quiet; /* the lock orders no threads of the kernel */
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
    thread *me = m->running;
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
    long *tag = &m->memory->barrier.tag[m->generation % 2];
    simt_release(tag);
    if (++m->at_barrier == m->threads) {
        m->at_barrier = 0;
        m->generation++;
        for (int w = 0; w < m->threads / 32; w++)
            m->warps[w].runnable = 0xffffffffu;
    }
    give_way(0);
    simt_acquire(tag);
}

void simt_warp(const char *what, unsigned mask, const char *file, int line, const void *in, void *out,
               simt_work *work)
{
    machine *m = self;
    thread *me = m->running;
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
        thread *first = &m->all[me->index & ~31];
        for (int lane = 0; lane < 32; lane++) {
            ins[lane] = first[lane].in;
            outs[lane] = first[lane].out;
        }
        simt_unwatched quiet; /* each lane's own registers, on a card */
        work(ins, outs);
        w->arrived = 0;
        w->runnable = 0xffffffffu;
    }
    give_way(0);
}

/* What a warp does together orders no memory, but for __syncwarp. */
void simt_warp_barrier(unsigned mask, const char *file, int line)
{
    if (tracking && is_left_out(site{"__syncwarp", file, line}))
        return;
    unsigned w = (unsigned)self->running->index / 32;
    long *tag = &self->memory->warps[w].tag[self->warps[w].generation % 2];
    simt_release(tag);
    simt_warp("__syncwarp", mask, file, line, NULL, NULL,
              [](const void *const *, void *const *) { warp_of(self->running)->generation++; });
    simt_acquire(tag);
}

unsigned simt_lane(void)
{
    return (unsigned)self->running->index & 31;
}

/* ---- Shared memory ---- */

void *simt_shared_dynamic(void)
{
    return self->memory->shared;
}

void *simt_shared(const void *key, size_t bytes)
{
    machine *m = self;
    for (int i = 0; i < m->declaration_count; i++)
        if (m->declarations[i].key == key)
            return m->memory->shared + m->declarations[i].offset;
    size_t offset = (m->dynamic_bytes + m->static_bytes + 127) / 128 * 128, end = offset + bytes;
    if (m->declaration_count == DECLARATIONS_MAX)
        fail("more than %d declarations of shared memory", (int)DECLARATIONS_MAX);
    if (end > SHARED_MAX || m->static_bytes + bytes > STATIC_SHARED_MAX)
        fail(
            "%zu bytes of shared memory, %zu of them declared: over-large; a block has %d and may declare %d",
            end, m->static_bytes + bytes, (int)SHARED_MAX, (int)STATIC_SHARED_MAX);
    m->declarations[m->declaration_count++] = declaration{key, offset};
    m->static_bytes = end - m->dynamic_bytes;
    simt_unwatched quiet; /* for whoever comes first it is no write of its own */
    return memset(m->memory->shared + offset, POISON, bytes);
}

/* ---- cp.async ---- */

void ot_copy_async(void *shared, const void *global, unsigned bytes)
{
    thread *me = self->running;
    if ((uintptr_t)shared % 16 != 0 || (bytes > 0 && (uintptr_t)global % 16 != 0) || bytes > 16)
        fail("cp.async of %u bytes from %p to %p: misaligned or too long", bytes, global, shared);
    if (me->copy_count == COPIES_MAX)
        fail("more than %d cp.async under way in one thread", (int)COPIES_MAX);
    simt_writes(shared, 16);
    simt_reads(global, bytes);
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
    thread *me = self->running;
    unsigned kept = 0;
    for (unsigned i = 0; i < me->copy_count; i++) {
        copy c = me->copies[i];
        if (c.group + groups_left >= me->group) {
            me->copies[kept++] = c;
            continue;
        }
        simt_writes(c.shared, 16);
        simt_reads(c.global, c.bytes);
        memcpy(c.shared, c.global, c.bytes);
        memset(c.shared + c.bytes, 0, 16 - c.bytes);
        simt_count(c.bytes, 0);
    }
    me->copy_count = kept;
}

void simt_read_row(const void *row)
{
    const unsigned char *p = (const unsigned char *)row, *shared = self->memory->shared;
    if ((uintptr_t)row % 16 != 0 || p < shared || p + 16 > shared + SHARED_MAX)
        fail("ldmatrix from %p: misaligned, or not in shared memory", row);
    simt_reads(row, 16);
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

/* A mapping of a block's memory; under ThreadSanitizer a new one for each block. */
static void prepare_memory(void)
{
    machine *m = self;
    if (m->memory != NULL && !SIMT_WATCHED)
        return;
    if (m->memory != NULL)
        munmap(m->memory, sizeof *m->memory);
    void *memory = mmap(NULL, sizeof *m->memory, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        abort();
    m->memory = (block_memory *)memory;
}

/* Thread i of one block and of the next are different fibers, or ThreadSanitizer would see them in order. */
static void prepare_thread(int i, const simt_launch_options &o, dim3 block)
{
    machine *m = self;
    thread *t = &m->all[i];
    unsigned n = (unsigned)i;
    t->position = simt_position{dim3(n % o.block.x, n / o.block.x % o.block.y, n / o.block.x / o.block.y),
                                block, o.block, o.grid};
    t->index = i;
    t->copy_count = t->group = 0;
    t->done = 0;
    t->fiber = &m->fibers[(n + m->blocks * 37) % (unsigned)m->threads];
    simt_fiber_start(t->fiber, fiber_main);
}

static void run_block(const simt_launch_options &o, dim3 block)
{
    machine *m = self;
    prepare_memory();
    memset(m->memory->shared, POISON, m->dynamic_bytes);
    m->declaration_count = 0;
    m->static_bytes = 0;
    m->at_barrier = 0;
    m->generation = 0;
    m->left = m->threads;
    m->blocks++;
    for (int i = 0; i < m->threads; i++)
        prepare_thread(i, o, block);
    for (int w = 0; w < m->threads / 32; w++)
        m->warps[w] = warp{0xffffffffu, 0, 0, {NULL, NULL, 0}};
    simt_release(&m->memory->start);
    switch_to(pick(), 0);
    if (m->raced && !m->failed)
        note_error("%s, block (%u,%u,%u): a data race, which ThreadSanitizer has reported", o.kernel, block.x,
                   block.y, block.z);
    else if (!m->failed && m->left > 0)
        explain_standstill();
    m->failed |= m->raced || m->left > 0;
    for (int i = 0; i < m->threads && m->failed; i++)
        if (!m->all[i].done)
            simt_release_for(m->all[i].fiber, &m->scheduler, m->end);
}

/* A machine ends with its thread. */
struct keeper {
    ~keeper()
    {
        for (int i = 0; i < THREADS_MAX; i++)
            simt_fiber_close(&self->fibers[i]);
        munmap(self->memory, sizeof *self->memory);
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
    simt_fiber_adopt(&self->scheduler);
    for (int i = 0; i < threads; i++)
        simt_fiber_open(&self->fibers[i]);
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
    m->failed = m->raced = 0;
    m->end = l;
    m->counts = simt_counts{0, 0, 1};
    m->random = (order_seed + 1) * 0x9E3779B97F4A7C15u | 1;
    uint64_t blocks = (uint64_t)o.grid.x * o.grid.y * o.grid.z;
    uint64_t start = order == SIMT_RANDOM ? next_random() % blocks : 0;
    for (uint64_t i = 0; i < blocks && !m->failed; i++) {
        uint64_t b = order == SIMT_REVERSE ? blocks - 1 - i : (start + i) % blocks;
        run_block(o, dim3((unsigned)(b % o.grid.x), (unsigned)(b / o.grid.x % o.grid.y),
                          (unsigned)(b / o.grid.x / o.grid.y)));
    }
    simt_acquire(m->end);
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
