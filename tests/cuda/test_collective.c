/* Collective operations of the emulated CUDA device: right on odd sizes over seeds and both ways to run; a wait that is missing
 * around one is seen; and each way to fail is told with rank, step and operation. Ranks are threads here, a card each. */
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "io/clock.h"
#include "tests/cuda/emulator.h"
#include "tests/support/ranks.h"

enum { RANKS = 4, GUARD = 64, SHARD_MOST = (1 << 16) + 5, FAULT_SEEDS = 16, ROUNDS = 12, N = 1024 };

#define CAP (512 * MIB)
#define TIMEOUT_S 0.5

static void configure(fakecuda_options options)
{
    options.devices = RANKS;
    fakecuda_configure(&options);
}

typedef struct rig {
    ot_group *group;
    int rank, size;
    ot_device *device;
    ot_stream *collective, *copies, *compute;
    char *memory, *host;
    size_t bytes;
} rig;

static ot_stream *must_open_stream(ot_device *device, ot_stream_kind kind, const char *name)
{
    const ot_stream_options options = {.kind = kind, .name = name};
    ot_stream *stream;
    must(ot_stream_open(device, &options, &stream) == OT_OK);
    return stream;
}

static void open_card(rig *g, ot_group *group)
{
    *g = (rig){.group = group, .rank = ot_group_rank(group), .size = ot_group_size(group)};
    const ot_device_options options = {
        .kind = "cuda", .ordinal = g->rank, .ranks = g->size, .memory_bytes = CAP};
    must(ot_device_open(&options, &g->device) == OT_OK);
}

static void open_rig(rig *g, ot_group *group, size_t bytes)
{
    void *memory;
    open_card(g, group);
    must(ot_group_attach(group, g->device) == OT_OK);
    g->bytes = (bytes + 4095) / 4096 * 4096;
    must(ot_device_arena_open(g->device, "test", g->bytes, &memory) == OT_OK);
    g->memory = memory;
    g->host = aligned_alloc(4096, g->bytes);
    must(g->host != NULL && ot_device_pin(g->device, g->host, g->bytes) == OT_OK);
    g->collective = must_open_stream(g->device, OT_STREAM_COLLECTIVE, "collective");
    g->copies = must_open_stream(g->device, OT_STREAM_H2D, "h2d");
    g->compute = must_open_stream(g->device, OT_STREAM_COMPUTE, "compute");
}

static void close_rig(rig *g)
{
    ot_group_detach(g->group);
    ot_device_unpin(g->device, g->host);
    ot_device_close(g->device);
    free(g->host);
}

/* ---- what they do ---- */

static unsigned char byte_of(int rank, size_t i)
{
    return (unsigned char)((size_t)rank * 77 + i * 131 + i / 4096);
}

static float value_of(int rank, size_t i)
{
    return ((float)((i * 2654435761u) % 1000003) - 5e5f) * (rank % 2 ? 1e-3f : 1.7f) + (float)rank;
}

static void gathers(rig *g, size_t shard)
{
    size_t bytes = shard * (size_t)g->size;
    memset(g->host, GUARD, bytes + GUARD);
    for (size_t i = 0; i < shard; i++)
        g->host[(size_t)g->rank * shard + i] = (char)byte_of(g->rank, i);
    ot_copy_h2d(g->collective, g->memory, g->host, bytes + GUARD);
    ot_group_gather(g->group, g->collective, "bytes", g->memory, shard);
    ot_copy_d2h(g->collective, g->host, g->memory, bytes + GUARD);
    must(ot_stream_synchronize(g->collective) == OT_OK);
    for (int r = 0; r < g->size; r++)
        for (size_t i = 0; i < shard; i++)
            must((unsigned char)g->host[(size_t)r * shard + i] == byte_of(r, i));
    for (size_t i = 0; i < GUARD; i++)
        must(g->host[bytes + i] == GUARD);
}

/* In the order of the ranks, as on the CPU device. */
static void scatters(rig *g, size_t shard)
{
    float *x = (float *)(void *)g->host;
    size_t count = shard * (size_t)g->size;
    for (size_t i = 0; i < count; i++)
        x[i] = value_of(g->rank, i);
    ot_copy_h2d(g->collective, g->memory, x, count * sizeof *x);
    ot_group_scatter(g->group, g->collective, "values", (float *)(void *)g->memory, shard);
    ot_copy_d2h(g->collective, x, g->memory, count * sizeof *x);
    must(ot_stream_synchronize(g->collective) == OT_OK);
    for (size_t i = 0; i < count; i++) {
        float expected = value_of(0, i);
        for (int r = 1; r < g->size; r++)
            expected += value_of(r, i);
        if (i / shard != (size_t)g->rank)
            expected = value_of(g->rank, i);
        must(memcmp(&x[i], &expected, sizeof expected) == 0);
    }
}

/* More than may be on their way at once, each on what the one before has left. */
static void streams(rig *g)
{
    enum { MANY = 100, COUNT = 5 };
    float *x = (float *)(void *)g->host, expected = 1;
    size_t bytes = sizeof *x * COUNT * (size_t)g->size;
    for (int i = 0; i < COUNT * g->size; i++)
        x[i] = 1;
    ot_copy_h2d(g->collective, g->memory, x, bytes);
    for (int k = 0; k < MANY; k++) {
        ot_group_scatter(g->group, g->collective, "values", (float *)(void *)g->memory, COUNT);
        ot_group_gather(g->group, g->collective, "values", g->memory, COUNT * sizeof *x);
        expected = k % 20 < 19 ? expected * (float)g->size : 0;
        if (k % 20 == 19)
            ot_copy_zero(g->collective, g->memory, bytes);
    }
    ot_copy_d2h(g->collective, x, g->memory, bytes);
    must(ot_stream_synchronize(g->collective) == OT_OK);
    for (int i = 0; i < COUNT * g->size; i++)
        must(memcmp(&x[i], &expected, sizeof expected) == 0);
}

static void everything(ot_group *group, void *context)
{
    static const size_t sizes[] = {0, 1, 7, 4097, SHARD_MOST};
    rig g;
    (void)context;
    open_rig(&g, group, (size_t)SHARD_MOST * sizeof(float) * (size_t)ot_group_size(group) + GUARD);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        gathers(&g, sizes[i]);
        if (sizes[i] > 0)
            scatters(&g, sizes[i]);
    }
    streams(&g);
    close_rig(&g);
}

static void operations_do_what_they_say(void **state)
{
    (void)state;
    for (int mode = FIRST_MODE; mode < 2; mode++)
        for (int size = 2; size <= RANKS; size++) {
            configure((fakecuda_options){.seed = (uint64_t)size, .threads = mode});
            ranks_run(size, 60, everything, NULL);
            assert_int_equal(fakecuda_count().refused, 0);
            assert_int_equal(fakecuda_count().pageable_copies, 0);
            for (int card = 0; card < RANKS; card++) /* the context alone is left */
                assert_int_equal(fakecuda_card_bytes(card), card < size ? 48 * MIB : 0);
        }
}

/* ---- a missing wait is seen ---- */

typedef enum fault {
    NO_FAULT,
    NO_READY_WAIT, /* the collective does not wait for the copy of this rank's shard */
    NO_DONE_WAIT,  /* the sum does not wait for the collective */
    NO_FREE_WAIT,  /* the copy does not wait for the sum of what lay there before */
} fault;

typedef struct pipeline {
    fault planted;
    int right[RANKS];
} pipeline;

static float chunk_value(int k, int rank, int i)
{
    return (float)((k * 31 + rank * 7 + i) % 101);
}

/* As a layer's weights come: a copy of the own shard, an all-gather, and a kernel that reads all of it. */
static void run_pipeline(ot_group *group, void *context)
{
    pipeline *p = context;
    rig g;
    open_rig(&g, group, (size_t)(ROUNDS + 2) * RANKS * N * sizeof(float));
    int all = g.size * N, own = g.rank * N;
    float *slot = (float *)(void *)g.memory, *sum = slot + all, *shards = (float *)(void *)g.host,
          *total = shards + (size_t)ROUNDS * N;
    ot_event *ready, *done, *freed;
    must(ot_event_open(g.device, 0, &ready) == OT_OK && ot_event_open(g.device, 0, &done) == OT_OK &&
         ot_event_open(g.device, 0, &freed) == OT_OK);
    for (int k = 0; k < ROUNDS; k++) {
        float *shard = shards + (size_t)k * N;
        for (int i = 0; i < N; i++)
            shard[i] = chunk_value(k, g.rank, i);
        if (p->planted != NO_FREE_WAIT)
            ot_stream_wait(g.copies, freed);
        ot_copy_h2d(g.copies, slot + own, shard, N * sizeof *shard);
        ot_event_record(ready, g.copies);
        if (p->planted != NO_READY_WAIT)
            ot_stream_wait(g.collective, ready);
        ot_group_gather(group, g.collective, "a layer", slot, N * sizeof *shard);
        ot_event_record(done, g.collective);
        if (p->planted != NO_DONE_WAIT)
            ot_stream_wait(g.compute, done);
        ot_accumulate add = {OT_FP32, (size_t)all, sum, slot, 1};
        ot_device_kernels(g.device)->accumulate(g.compute, &add);
        ot_event_record(freed, g.compute);
        if (p->planted == NO_READY_WAIT) /* what is planted is one wait, not two */
            ot_stream_wait(g.collective, freed);
    }
    ot_copy_d2h(g.compute, total, sum, (size_t)all * sizeof *total);
    must(ot_device_synchronize(g.device) == OT_OK);
    p->right[g.rank] = 1;
    for (int i = 0; i < all; i++) {
        float expected = 0;
        for (int k = 0; k < ROUNDS; k++)
            expected += chunk_value(k, i / N, i % N);
        p->right[g.rank] &= memcmp(&total[i], &expected, sizeof expected) == 0;
    }
    close_rig(&g);
}

static int is_right(uint64_t seed, int mode, fault planted)
{
    pipeline p = {.planted = planted};
    configure((fakecuda_options){.seed = seed, .threads = mode});
    ranks_run(2, 60, run_pipeline, &p);
    return p.right[0] && p.right[1];
}

static void a_pipeline_is_right(void **state)
{
    (void)state;
    for (int mode = FIRST_MODE; mode < 2; mode++)
        for (uint64_t seed = 1; seed <= SEEDS; seed++)
            if (!is_right(seed, mode, NO_FAULT))
                fail_msg("threads %d, seed %d: wrong sum", mode, (int)seed);
}

/* How many seeds show it, the machine's load has a say in. */
static void expect_seen(fault planted)
{
    int wrong = 0;
    if (FIRST_MODE > 0) /* ThreadSanitizer would end it at once */
        skip();
    for (uint64_t seed = 1; seed <= FAULT_SEEDS; seed++)
        wrong += !is_right(seed, 0, planted);
    print_message("%d of %d seeds show it\n", wrong, FAULT_SEEDS);
    assert_true(wrong > 0);
}

static void a_missing_wait_before_a_collective_is_seen(void **state)
{
    (void)state;
    expect_seen(NO_READY_WAIT);
}

static void a_missing_wait_behind_a_collective_is_seen(void **state)
{
    (void)state;
    expect_seen(NO_DONE_WAIT);
    expect_seen(NO_FREE_WAIT);
}

/* ---- failures ---- */

typedef struct failing {
    const char *what;
    ot_status status[RANKS];
    ot_error error[RANKS];
    double seconds[RANKS];
} failing;

static void keep(failing *f, int rank, ot_status status)
{
    f->status[rank] = status;
    f->error[rank] = ot_error_take();
}

static void expect_error(const failing *f, int rank, ot_status status, const char *text)
{
    if (f->status[rank] != status || strstr(f->error[rank].text, text) == NULL)
        fail_msg("rank %d: %d \"%s\", expected %d \"%s\"", rank, f->status[rank], f->error[rank].text, status,
                 text);
}

/* Two ranks of three come. */
static void miss_one(ot_group *group, void *context)
{
    failing *f = context;
    rig g;
    open_rig(&g, group, RANKS * N);
    ot_group_set_step(group, 17);
    int64_t start = ot_clock_ns();
    if (g.rank != 2) {
        ot_group_gather(group, g.collective, "model.layers.3", g.memory, N);
        keep(f, g.rank, ot_stream_synchronize(g.collective));
        f->seconds[g.rank] = ot_seconds(ot_clock_ns() - start);
        ot_group_scatter(group, g.collective, "later", (float *)(void *)g.memory, 16); /* is skipped */
        must(ot_device_synchronize(g.device) == f->status[g.rank]);
    }
    close_rig(&g);
}

static void who_waits_too_long_says_for_what(void **state)
{
    (void)state;
    for (int mode = FIRST_MODE; mode < 2; mode++) {
        failing f = {0};
        configure((fakecuda_options){.seed = 5, .threads = mode});
        ranks_run(3, TIMEOUT_S, miss_one, &f);
        expect_error(&f, 0, OT_ERR_DEVICE,
                     "rank 0 of 3, step 17, all-gather of model.layers.3: waited 0.5 s");
        expect_error(&f, 1, OT_ERR_DEVICE,
                     "rank 1 of 3, step 17, all-gather of model.layers.3: waited 0.5 s");
        assert_true(f.seconds[0] >= TIMEOUT_S && f.seconds[0] < TIMEOUT_S + 5);
    }
}

/* The time that an operation waits for its turn is not a peer's fault. */
static ot_status sleep_long(void *context, ot_status before)
{
    (void)context;
    usleep((useconds_t)(2.5e6 * TIMEOUT_S));
    return before;
}

static void wait_for_turn(ot_group *group, void *context)
{
    failing *f = context;
    rig g;
    open_rig(&g, group, RANKS * N);
    ot_stream_call(g.collective, sleep_long, NULL);
    ot_group_gather(group, g.collective, "a layer", g.memory, N);
    keep(f, g.rank, ot_stream_synchronize(g.collective));
    close_rig(&g);
}

static void a_turn_that_is_long_in_coming_is_no_timeout(void **state)
{
    (void)state;
    failing f = {0};
    configure((fakecuda_options){.seed = 2,
                                 .threads = 1}); /* one executor would sleep for both, one after the other */
    ranks_run(2, TIMEOUT_S, wait_for_turn, &f);
    assert_int_equal(f.status[0], OT_OK);
    assert_int_equal(f.status[1], OT_OK);
}

static void cancel_one(ot_group *group, void *context)
{
    failing *f = context;
    rig g;
    open_rig(&g, group, RANKS * N);
    if (g.rank == 0) {
        ot_group_gather(group, g.collective, "weights", g.memory, N);
        ot_group_cancel(group);
        keep(f, 0, ot_stream_synchronize(g.collective));
    }
    close_rig(&g);
}

static void giving_up_ends_what_waits(void **state)
{
    (void)state;
    failing f = {0};
    configure((fakecuda_options){.seed = 3, .threads = FIRST_MODE});
    ranks_run(2, 60, cancel_one, &f);
    expect_error(&f, 0, OT_ERR_DEVICE, "all-gather of weights: this rank has failed");
}

/* The library says that a peer is gone; then, that a call fails. */
static void fail_one(ot_group *group, void *context)
{
    failing *f = context;
    rig g;
    open_rig(&g, group, RANKS * N);
    if (g.rank == 0) {
        fakecuda_fail(f->what, strcmp(f->what, "ncclCommGetAsyncError") == 0 ? 9 : 0, cudaErrorUnknown);
        ot_group_gather(group, g.collective, "weights", g.memory, N);
        keep(f, 0, ot_stream_synchronize(g.collective));
    }
    close_rig(&g);
}

static void failures_of_the_library_are_told(void **state)
{
    (void)state;
    failing f = {.what = "ncclCommGetAsyncError"};
    configure((fakecuda_options){.seed = 3, .threads = FIRST_MODE});
    ranks_run(2, 60, fail_one, &f);
    expect_error(&f, 0, OT_ERR_DEVICE, "all-gather of weights: NCCL: remote process exited");
    f = (failing){.what = "ncclAllGather"};
    configure((fakecuda_options){.seed = 3, .threads = FIRST_MODE});
    ranks_run(2, 60, fail_one, &f);
    expect_error(&f, 0, OT_ERR_DEVICE, "all-gather of weights: NCCL: a failure of the fake NCCL");
}

/* ---- joining ---- */

static void join(ot_group *group, void *context)
{
    failing *f = context;
    rig g;
    open_card(&g, group);
    keep(f, g.rank, ot_group_attach(group, g.device));
    ot_group_detach(group);
    ot_device_close(g.device);
}

static void a_damaged_way_is_named(void **state)
{
    (void)state;
    failing f = {0};
    configure((fakecuda_options){.seed = 3, .threads = FIRST_MODE});
    fakecuda_damage(1);
    ranks_run(3, 60, join, &f);
    expect_error(&f, 0, OT_ERR_DEVICE, "what rank 1's GPU sends arrives damaged at rank 0's");
    expect_error(&f, 1, OT_ERR_DEVICE, "do not join: rank 0 says why");
    expect_error(&f, 2, OT_ERR_DEVICE, "what rank 1's GPU sends arrives damaged at rank 2's");
    assert_non_null(strstr(f.error[2].text, "NCCL_P2P_DISABLE=1"));
}

static void what_rank_0_cannot_name_nobody_opens(void **state)
{
    (void)state;
    failing f = {0};
    configure((fakecuda_options){.seed = 3, .threads = FIRST_MODE});
    fakecuda_fail("ncclGetUniqueId", 0, cudaErrorUnknown);
    ranks_run(2, 60, join, &f);
    expect_error(&f, 0, OT_ERR_DEVICE, "NCCL: ");
    expect_error(&f, 1, OT_ERR_DEVICE, "rank 0 cannot join the ranks' devices");
}

static void open_too_many(ot_group *group, void *context)
{
    failing *f = context;
    const ot_device_options options = {
        .kind = "cuda", .ordinal = ot_group_rank(group), .ranks = 3, .memory_bytes = CAP};
    ot_device *device = NULL;
    keep(f, ot_group_rank(group), ot_device_open(&options, &device));
    ot_device_close(device);
}

static void every_rank_needs_a_card(void **state)
{
    (void)state;
    failing f = {0};
    fakecuda_configure(&(fakecuda_options){.seed = 1, .devices = 2, .threads = FIRST_MODE});
    ranks_run(3, 60, open_too_many, &f);
    assert_int_equal(f.status[1], OT_OK);
    expect_error(&f, 2, OT_ERR_USAGE, "3 ranks or more on this machine, of which 2 GPUs are visible");
    /* One that all see as theirs is one each on a cluster that hides the others, and one for all elsewhere. */
    fakecuda_configure(&(fakecuda_options){.seed = 1, .devices = 1, .threads = FIRST_MODE});
    ranks_run(2, 60, join, &f);
    for (int rank = 0; rank < 2; rank++)
        expect_error(&f, rank, OT_ERR_USAGE, "ranks 0 and 1 have one GPU, at 0000:01:00.0");
}

static void join_unlike(ot_group *group, void *context)
{
    failing *f = context;
    int rank = ot_group_rank(group);
    const ot_device_options options = {
        .kind = rank == 1 ? "cpu" : "cuda", .ranks = 2, .memory_bytes = CAP, .threads = 1};
    ot_device *device;
    must(ot_device_open(&options, &device) == OT_OK);
    keep(f, rank, ot_group_attach(group, device));
    ot_device_close(device);
}

static void ranks_have_one_kind_of_device(void **state)
{
    (void)state;
    failing f = {0};
    configure((fakecuda_options){.seed = 1, .threads = FIRST_MODE});
    ranks_run(2, 60, join_unlike, &f);
    for (int rank = 0; rank < 2; rank++)
        expect_error(&f, rank, OT_ERR_USAGE, "rank 0 computes on device cuda, and rank 1 on cpu");
}

typedef struct measured {
    uint64_t cap, before[RANKS], after[RANKS];
    failing failing;
} measured;

static void measure(ot_group *group, void *context)
{
    measured *m = context;
    int rank = ot_group_rank(group);
    const ot_device_options options = {
        .kind = "cuda", .ordinal = rank, .ranks = ot_group_size(group), .memory_bytes = m->cap};
    ot_device *device;
    ot_device_info info;
    must(ot_device_open(&options, &device) == OT_OK);
    ot_device_query(device, &info);
    m->before[rank] = info.own_bytes;
    keep(&m->failing, rank, ot_group_attach(group, device));
    ot_device_query(device, &info);
    m->after[rank] = info.own_bytes;
    must(fakecuda_card_bytes(rank) <= info.own_bytes);
    ot_group_detach(group);
    ot_device_close(device);
}

/* Of a context of 88 MiB and, beside it, what is set aside for a communicator. */
static void a_communicator_is_counted(void **state)
{
    (void)state;
    measured m = {.cap = CAP};
    configure((fakecuda_options){.seed = 3, .threads = FIRST_MODE});
    ranks_run(2, 60, measure, &m);
    for (int rank = 0; rank < 2; rank++) {
        assert_int_equal(m.before[rank], 384 * MIB);
        assert_int_equal(m.after[rank], 384 * MIB);
    }
    /* One that takes more is as much for all: 400 MiB beside the context. */
    m.cap = 2 * CAP;
    configure((fakecuda_options){.seed = 3, .threads = FIRST_MODE, .nccl_bytes = 200 * MIB});
    ranks_run(2, 60, measure, &m);
    for (int rank = 0; rank < 2; rank++) {
        assert_int_equal(m.failing.status[rank], OT_OK);
        assert_in_range(m.after[rank], (88 + 400) * MIB, (88 + 400 + 64) * MIB);
        assert_int_equal(m.after[rank], m.after[0]);
    }
    m.cap = 400 * MIB;
    configure((fakecuda_options){.seed = 3, .threads = FIRST_MODE, .nccl_bytes = 200 * MIB});
    ranks_run(2, 60, measure, &m);
    expect_error(&m.failing, 0, OT_ERR_DEVICE, "do not join: rank 1 says why");
    expect_error(&m.failing, 1, OT_ERR_FIT, "the CUDA context with NCCL alone takes");
}

/* ---- collectives that differ ---- */

static void differ(ot_group *group, void *context)
{
    const char *how = context;
    rig g;
    open_rig(&g, group, 2 * RANKS * N);
    int other = g.rank == 1, by_order = strcmp(how, "order") == 0;
    if (strcmp(how, "count") == 0)
        ot_group_gather(group, g.collective, "a layer", g.memory, other ? 48 : 32);
    for (int k = 0; k < 2 && by_order; k++) {
        if (k == other)
            ot_group_gather(group, g.collective, "a layer", g.memory, 32);
        else
            ot_group_scatter(group, g.collective, "a layer", (float *)(void *)g.memory, 32);
    }
    (void)!ot_stream_synchronize(g.collective);
}

/* In a process of its own, which must not outlive it. */
static int run_differing(const char *how)
{
    configure((fakecuda_options){.seed = 4, .threads = FIRST_MODE});
    ranks_run(2, 20, differ, (void *)(uintptr_t)how);
    return 0;
}

static void expect_end(const char *how, const char *texts[2])
{
    char told[1024] = "";
    int ends[2], status;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], 2);
        execl("/proc/self/exe", "differ", how, NULL);
        _exit(1);
    }
    close(ends[1]);
    FILE *from = fdopen(ends[0], "r");
    size_t length = fread(told, 1, sizeof told - 1, from);
    told[length] = '\0';
    fclose(from);
    waitpid(child, &status, 0);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    for (int i = 0; i < 2; i++)
        if (strstr(told, texts[i]) == NULL)
            fail_msg("\"%s\" is not in \"%s\"", texts[i], told);
}

static void collectives_that_differ_end_the_process(void **state)
{
    (void)state;
    expect_end("count", (const char *[]){"an all-gather of 32", "an all-gather of 48"});
    expect_end("order", (const char *[]){"a reduce-scatter of 32", "an all-gather of 32"});
}

int main(int argc, char **argv)
{
    use_emulator();
    if (argc > 1)
        return run_differing(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operations_do_what_they_say),
        cmocka_unit_test(a_pipeline_is_right),
        cmocka_unit_test(a_missing_wait_before_a_collective_is_seen),
        cmocka_unit_test(a_missing_wait_behind_a_collective_is_seen),
        cmocka_unit_test(who_waits_too_long_says_for_what),
        cmocka_unit_test(a_turn_that_is_long_in_coming_is_no_timeout),
        cmocka_unit_test(giving_up_ends_what_waits),
        cmocka_unit_test(failures_of_the_library_are_told),
        cmocka_unit_test(a_damaged_way_is_named),
        cmocka_unit_test(what_rank_0_cannot_name_nobody_opens),
        cmocka_unit_test(every_rank_needs_a_card),
        cmocka_unit_test(ranks_have_one_kind_of_device),
        cmocka_unit_test(a_communicator_is_counted),
        cmocka_unit_test(collectives_that_differ_end_the_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
