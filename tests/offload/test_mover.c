/* The mover: whatever it overlaps, every byte is that of a serial execution of the list. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "tests/support/mover.h"
#include "tests/support/store.h"
#include "tests/support/test.h"

static const ot_block_backend *const backends[] = {&ot_block_uring, &ot_block_threads};

static rig_setup setup_in(void **state, size_t directories)
{
    const folders *f = *state;
    return (rig_setup){.directories = f->list, .directory_count = directories};
}

static void start(rig *r, const rig_setup *setup)
{
    if (rig_start(r, setup) != OT_OK)
        fail_msg("%s", ot_error_text());
}

static void run(rig *r, ot_list_kind list)
{
    if (rig_run(r, list) != OT_OK)
        fail_msg("%s", ot_error_text());
    rig_run_serially(r, list);
}

/* ---- Any list ---- */

enum { CHUNKS = 8, HOSTS = 5, DEVICES = 4, SMALL = 20000, LARGE = 600000 };

typedef struct lists {
    rig *r;
    uint64_t random;
    int32_t chunk[CHUNKS], host[HOSTS], device[DEVICES];
} lists;

static size_t pick(lists *l, size_t count)
{
    l->random = l->random * 6364136223846793005u + 1442695040888963407u;
    return (size_t)(l->random >> 33) % count;
}

static ot_operation with_places(lists *l, ot_operation_kind kind, int count, const int32_t from[],
                                size_t from_count)
{
    ot_operation operation = {.kind = kind, .layer = (int32_t)pick(l, 100), .zero_grads = (int)pick(l, 4)};
    for (int i = 0; i < OT_OPERATION_PLACES; i++)
        operation.places[i] = i < count && pick(l, 4) > 0 ? from[pick(l, from_count)] : -1;
    return operation;
}

/* A chunk goes into a host place that is long enough. */
static void add_nvme(lists *l, ot_list_kind list, ot_operation_kind kind)
{
    int32_t chunk = l->chunk[pick(l, CHUNKS)], host = l->host[pick(l, HOSTS)];
    if (l->r->own.places[host].bytes < l->r->own.places[chunk].bytes)
        host = l->host[0];
    if (kind == OT_OP_READ)
        rig_move(l->r, list, kind, chunk, host, 0);
    else
        rig_move(l->r, list, kind, host, chunk, 0);
}

static void add_copy(lists *l, ot_list_kind list, ot_operation_kind kind)
{
    int32_t host = l->host[pick(l, HOSTS)], device = l->device[pick(l, DEVICES)];
    uint64_t room = l->r->own.places[device].bytes - l->r->own.places[host].bytes;
    uint64_t offset = pick(l, 2) * pick(l, (size_t)room);
    if (kind == OT_OP_H2D)
        rig_move(l->r, list, kind, host, device, offset);
    else
        rig_move(l->r, list, kind, device, host, offset);
}

static void add_any(lists *l, ot_list_kind list)
{
    static const ot_operation_kind computes[] = {OT_OP_FORWARD, OT_OP_BACKWARD, OT_OP_HEAD, OT_OP_REDUCE};
    size_t what = pick(l, 7);
    if (what == 0)
        rig_add(l->r, list, with_places(l, pick(l, 3) > 0 ? OT_OP_UPDATE : OT_OP_SAVE, 5, l->host, HOSTS));
    else if (what < 3)
        add_nvme(l, list, what == 1 ? OT_OP_READ : OT_OP_WRITE);
    else if (what < 5)
        add_copy(l, list, what == 3 ? OT_OP_H2D : OT_OP_D2H);
    else {
        ot_operation_kind kind = computes[pick(l, 4)];
        rig_add(l->r, list, with_places(l, kind, kind == OT_OP_REDUCE ? 3 : 8, l->device, DEVICES));
    }
}

/* LOAD writes every chunk, STEADY is anything, SAVE looks at every chunk. */
static rig *random_lists(uint64_t seed, rig_waits waits, int length)
{
    lists l = {.r = rig_open(waits), .random = seed};
    for (size_t i = 0; i < CHUNKS; i++)
        l.chunk[i] = rig_home(l.r, i % 2 ? OT_PLANE_WEIGHT : OT_PLANE_MOMENT1, i % 4 == 3 ? LARGE : SMALL);
    for (size_t i = 0; i < HOSTS; i++)
        l.host[i] = rig_place(l.r, OT_TIER_HOST, OT_PLANE_WEIGHT, i == 0 ? LARGE : SMALL + 8192 * (i % 2));
    for (size_t i = 0; i < DEVICES; i++)
        l.device[i] = rig_place(l.r, OT_TIER_DEVICE, OT_PLANE_WEIGHT, LARGE + 3 * SMALL);
    for (size_t i = 0; i < CHUNKS; i++) {
        int32_t host = i % 4 == 3 ? l.host[0] : l.host[i % HOSTS];
        ot_operation load = {
            .kind = OT_OP_LOAD, .layer = (int32_t)i, .places = {host, -1, -1, -1, -1, -1, -1, -1, -1}};
        ot_operation save = load;
        save.kind = OT_OP_SAVE;
        rig_add(l.r, OT_LIST_LOAD, load);
        rig_move(l.r, OT_LIST_LOAD, OT_OP_WRITE, host, l.chunk[i], 0);
        rig_move(l.r, OT_LIST_SAVE, OT_OP_READ, l.chunk[i], host, 0);
        rig_add(l.r, OT_LIST_SAVE, save);
    }
    for (int i = 0; i < length; i++)
        add_any(&l, OT_LIST_STEADY);
    return l.r;
}

static void any_list_gives_the_serial_result(void **state)
{
    for (uint64_t seed = 0; seed < 24; seed++) {
        rig *r = random_lists(seed, (rig_waits)(seed % 3), 150);
        rig_setup setup = setup_in(state, 1 + seed % 2);
        setup.backend = backends[seed / 2 % 2];
        setup.jitter_ns = seed % 4 ? 60000 : 0;
        setup.jitter_seed = seed;
        setup.queue_length = seed % 5 ? 0 : 4; /* a queue that is always full blocks nobody for ever */
        start(r, &setup);
        run(r, OT_LIST_LOAD);
        for (int step = 0; step < 3; step++) {
            run(r, OT_LIST_STEADY);
            assert_true(rig_is_equal(r, OT_LIST_STEADY));
        }
        run(r, OT_LIST_SAVE);
        assert_true(rig_is_equal(r, OT_LIST_SAVE));
        rig_close(r);
    }
}

/* ---- A step in small ---- */

static void a_step_gives_the_serial_result(void **state)
{
    for (int i = 0; i < 12; i++) {
        rig *r = rig_pipeline((rig_waits)(i % 3), 4, i % 2 ? 50000 : 300000);
        rig_setup setup = setup_in(state, 2);
        setup.backend = backends[i / 3 % 2];
        setup.jitter_ns = i < 6 ? 300000 : 0;
        setup.jitter_seed = (uint64_t)i;
        start(r, &setup);
        run(r, OT_LIST_LOAD);
        for (int step = 0; step < 4; step++)
            run(r, OT_LIST_STEADY);
        assert_true(rig_is_equal(r, OT_LIST_STEADY));
        run(r, OT_LIST_SAVE);
        assert_true(rig_is_equal(r, OT_LIST_SAVE));
        rig_close(r);
    }
}

static void a_step_runs_many_times(void **state)
{
    rig *r = rig_pipeline(RIG_WAITS_PRUNED, 3, 4096);
    rig_setup setup = setup_in(state, 1);
    start(r, &setup);
    run(r, OT_LIST_LOAD);
    for (int step = 0; step < 400; step++)
        run(r, OT_LIST_STEADY);
    assert_true(rig_is_equal(r, OT_LIST_STEADY));
    rig_close(r);
}

/* Lists without operations, and plans without a tier, are executed, too. */
static void little_is_enough(void **state)
{
    rig *r = rig_open(RIG_WAITS_ALL);
    int32_t host = rig_place(r, OT_TIER_HOST, OT_PLANE_WEIGHT, 4096);
    rig_add(r, OT_LIST_LOAD,
            (ot_operation){.kind = OT_OP_LOAD, .places = {host, -1, -1, -1, -1, -1, -1, -1, -1}});
    rig_setup setup = setup_in(state, 0);
    start(r, &setup);
    run(r, OT_LIST_EVAL);
    run(r, OT_LIST_LOAD);
    assert_true(rig_is_equal(r, OT_LIST_LOAD));
    assert_int_equal(ot_mover_statistics(r->mover).bytes[OT_LANE_COMPUTE], 0);
    rig_close(r);
}

/* ---- Times and bytes ---- */

static int on_device(ot_lane lane)
{
    return lane == OT_LANE_H2D || lane == OT_LANE_D2H || lane == OT_LANE_COMPUTE;
}

/* Operations of a lane do not overlap, and none starts before what it waits for has ended. The clocks of host
 * and device are compared only with themselves. */
static void check_spans(const rig *r, ot_list_kind kind)
{
    const ot_list *list = &r->plan->lists[kind];
    const ot_span *spans = ot_mover_spans(r->mover);
    ot_mover_stats stats = ot_mover_statistics(r->mover);
    int64_t ended[OT_LANES] = {0}, busy[OT_LANES] = {0};
    for (size_t i = 0; i < list->count; i++) {
        const ot_operation *operation = &list->operations[i];
        assert_true(spans[i].start_ns >= ended[operation->lane] && spans[i].end_ns >= spans[i].start_ns);
        ended[operation->lane] = spans[i].end_ns;
        busy[operation->lane] += spans[i].end_ns - spans[i].start_ns;
        for (uint32_t w = 0; w < operation->wait_count; w++) {
            uint32_t earlier = list->waits[operation->wait_first + w];
            if (on_device(list->operations[earlier].lane) == on_device(operation->lane))
                assert_true(spans[i].start_ns >= spans[earlier].end_ns);
        }
    }
    for (int lane = 0; lane < OT_LANES; lane++) {
        assert_true(ended[lane] <= stats.total_ns);
        assert_int_equal(stats.busy_ns[lane], busy[lane]);
        assert_true(stats.wait_ns[lane] >= 0 && busy[lane] + stats.wait_ns[lane] <= ended[lane]);
    }
}

static void every_operation_is_measured(void **state)
{
    rig *r = rig_pipeline(RIG_WAITS_ALL, 4, 300000);
    rig_setup setup = setup_in(state, 1);
    setup.jitter_ns = 200000;
    r->compute_ns = r->cpu_ns = 1000000;
    start(r, &setup);
    run(r, OT_LIST_LOAD);
    for (int step = 0; step < 5; step++) {
        run(r, OT_LIST_STEADY);
        check_spans(r, OT_LIST_STEADY);
        ot_mover_stats stats = ot_mover_statistics(r->mover);
        assert_true(stats.busy_ns[OT_LANE_COMPUTE] >=
                    16 * r->compute_ns); /* 4 forward, 8 backward, 4 reduce */
        assert_true(stats.busy_ns[OT_LANE_CPU] >= 4 * r->cpu_ns);
    }
    rig_close(r);
}

static void the_bytes_are_those_of_the_plan(void **state)
{
    enum { LAYERS = 4, BYTES = 50000 };
    static const uint64_t passes[OT_LANES] = {[OT_LANE_NVME_READ] = 4,
                                              [OT_LANE_NVME_WRITE] = 3,
                                              [OT_LANE_H2D] = 3,
                                              [OT_LANE_D2H] = 2,
                                              [OT_LANE_CPU] = 3};
    rig *r = rig_pipeline(RIG_WAITS_ALL, LAYERS, BYTES);
    rig_setup setup = setup_in(state, 2);
    start(r, &setup);
    run(r, OT_LIST_LOAD);
    for (int step = 0; step < 2; step++) {
        run(r, OT_LIST_STEADY);
        ot_mover_stats stats = ot_mover_statistics(r->mover);
        for (int lane = 0; lane < OT_LANES; lane++) {
            assert_int_equal(stats.bytes[lane], r->plan->lists[OT_LIST_STEADY].lane_bytes[lane]);
            assert_int_equal(stats.bytes[lane],
                             passes[lane] * LAYERS * BYTES + (lane == OT_LANE_H2D ? RIG_DATA_BYTES : 0));
        }
    }
    rig_close(r);
}

/* Ten pairs of a compute and a CPU operation that have nothing to do with each other take hardly longer than
 * the ten of one lane; with every operation waiting for the one before they take as long as all twenty. */
static void lanes_work_at_the_same_time(void **state)
{
    for (int serial = 0; serial < 2; serial++) {
        rig *r = rig_open(serial ? RIG_WAITS_SERIAL : RIG_WAITS_ALL);
        int32_t host = rig_place(r, OT_TIER_HOST, OT_PLANE_WEIGHT, 4096);
        int32_t device = rig_place(r, OT_TIER_DEVICE, OT_PLANE_WEIGHT, 4096);
        for (int i = 0; i < 10; i++) {
            rig_add(r, OT_LIST_FIRST,
                    (ot_operation){.kind = OT_OP_UPDATE, .places = {host, -1, -1, -1, -1, -1, -1, -1, -1}});
            rig_add(
                r, OT_LIST_FIRST,
                (ot_operation){.kind = OT_OP_REDUCE, .places = {device, device, -1, -1, -1, -1, -1, -1, -1}});
        }
        rig_setup setup = setup_in(state, 0);
        r->compute_ns = r->cpu_ns = 20000000;
        start(r, &setup);
        run(r, OT_LIST_FIRST);
        int64_t total = ot_mover_statistics(r->mover).total_ns;
        if (serial)
            assert_true(total >= 20 * r->cpu_ns);
        else
            assert_true(total >= 10 * r->cpu_ns && total < 17 * r->cpu_ns);
        assert_true(rig_is_equal(r, OT_LIST_FIRST));
        rig_close(r);
    }
}

/* ---- A steady step ---- */

/* The best of several tries: what else happens in the process, such as the kernel's huge pages, comes and
 * goes. */
static void a_steady_step_allocates_nothing(void **state)
{
    for (int b = 0; b < 2; b++) {
        rig *r = rig_pipeline(RIG_WAITS_PRUNED, 4, 300000);
        rig_setup setup = setup_in(state, 1);
        setup.backend = backends[b];
        start(r, &setup);
        run(r, OT_LIST_LOAD);
        for (int step = 0; step < 10; step++)
            run(r, OT_LIST_STEADY);
        long least = -1;
        for (int attempt = 0; attempt < 5; attempt++) {
            struct rusage before, after;
            uint64_t bytes = ot_object_bytes().allocated_bytes;
            getrusage(RUSAGE_SELF, &before);
            for (int step = 0; step < 20; step++)
                assert_int_equal(rig_run(r, OT_LIST_STEADY), OT_OK);
            getrusage(RUSAGE_SELF, &after);
            assert_int_equal(ot_object_bytes().allocated_bytes, bytes);
            long faults = after.ru_minflt - before.ru_minflt;
            least = least < 0 || faults < least ? faults : least;
            assert_int_equal(after.ru_majflt - before.ru_majflt, 0);
        }
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__) /* whose shadow memory grows */
        assert_int_equal(least, 0);
#endif
        rig_close(r);
    }
}

/* ---- What does not fit ---- */

static void a_failed_opening_leaves_nothing(void **state)
{
    rig *r = rig_pipeline(RIG_WAITS_ALL, 2, 4096);
    rig_setup setup = setup_in(state, 0);
    assert_int_equal(rig_start(r, &setup), OT_ERR_USAGE);
    assert_non_null(strstr(ot_error_text(), "directories"));
    setup = setup_in(state, 1);
    setup.directories = (const char *const[]){"./there/is/no/such/folder"};
    assert_int_not_equal(rig_start(r, &setup), OT_OK);
    assert_non_null(strstr(ot_error_text(), "there/is/no/such/folder"));
    r->own.arena_bytes[OT_TIER_DEVICE] += UINT64_C(1)
                                          << 50; /* calloc of the serial execution's does not fail */
    rig_close(r);
}

/* ---- A wait left out ---- */

/* A pipeline whose only order is a copy to the host that waits for the gradient it copies, or does not wait. Returns
 * whether its result was the serial one. */
static int run_a_copy(void **state, int removed)
{
    rig *r = rig_open(RIG_WAITS_ALL);
    int32_t host = rig_place(r, OT_TIER_HOST, OT_PLANE_WEIGHT, 4096);
    int32_t device = rig_place(r, OT_TIER_DEVICE, OT_PLANE_WEIGHT, 4096);
    size_t reduce =
        rig_add(r, OT_LIST_FIRST,
                (ot_operation){.kind = OT_OP_REDUCE, .places = {device, device, -1, -1, -1, -1, -1, -1, -1}});
    size_t copy = rig_move(r, OT_LIST_FIRST, OT_OP_D2H, device, host, 0);
    if (removed)
        rig_remove_wait(r, OT_LIST_FIRST, copy, reduce);
    rig_setup setup = setup_in(state, 0);
    r->compute_ns = 20000000;
    start(r, &setup);
    run(r, OT_LIST_FIRST);
    int right = rig_is_equal(r, OT_LIST_FIRST);
    rig_close(r);
    return right;
}

/* `offload/mover_no_wait`: a copy to the host that does not wait for what it copies. The result changes, and
 * ThreadSanitizer reports a race; on a busy machine chance may order a run's threads, so there are several. */
static void run_without_a_wait(void **state)
{
    enum { RUNS = 20 };
    int changed = 0;
    for (int i = 0; i < RUNS; i++) {
        assert_true(run_a_copy(state, 0));
        changed += !run_a_copy(state, 1);
    }
    printf("%s in %d of %d runs\n", changed ? "result changed" : "result right", changed, RUNS);
}

int main(int count, char **arguments)
{
    if (count == 2 && strcmp(arguments[1], "no-wait") == 0) {
        const struct CMUnitTest test[] = {IN_FOLDERS(run_without_a_wait)};
        return cmocka_run_group_tests(test, NULL, NULL);
    }
    const struct CMUnitTest tests[] = {
        IN_FOLDERS(any_list_gives_the_serial_result), IN_FOLDERS(a_step_gives_the_serial_result),
        IN_FOLDERS(a_step_runs_many_times),           IN_FOLDERS(little_is_enough),
        IN_FOLDERS(every_operation_is_measured),      IN_FOLDERS(the_bytes_are_those_of_the_plan),
        IN_FOLDERS(lanes_work_at_the_same_time),      IN_FOLDERS(a_steady_step_allocates_nothing),
        IN_FOLDERS(a_failed_opening_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
