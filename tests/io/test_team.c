/* The thread team: who takes what, that data is seen on both sides, many runs, any count. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "io/budget.h"
#include "io/team.h"
#include "tests/support/test.h"

static const int counts[] = {1, 2, 3, 8};
enum { COUNTS = sizeof counts / sizeof *counts };

/* Every item is taken once, in order, sizes differ by one grain at most, and all starts are multiples of the
 * grain. */
static void shares_cover_everything_once(void **state)
{
    (void)state;
    static const size_t totals[] = {0, 1, 2, 7, 8, 9, 63, 64, 65, 1000, (size_t)1 << 40};
    static const size_t grains[] = {1, 2, 16, 64};
    for (size_t t = 0; t < sizeof totals / sizeof *totals; t++)
        for (size_t g = 0; g < sizeof grains / sizeof *grains; g++)
            for (int count = 1; count <= 9; count++) {
                size_t at = 0, least = SIZE_MAX, most = 0, begin, end;
                for (int i = 0; i < count; i++) {
                    ot_team_share(totals[t], grains[g], i, count, &begin, &end);
                    assert_int_equal(begin, at);
                    assert_true(end >= begin && end <= totals[t]);
                    assert_true(begin % grains[g] == 0 || begin == totals[t]);
                    size_t taken = (end - begin + grains[g] - 1) / grains[g];
                    least = taken < least ? taken : least;
                    most = taken > most ? taken : most;
                    at = end;
                }
                assert_int_equal(at, totals[t]);
                assert_true(most - least <= 1);
            }
}

enum { ITEMS = 1000 };

typedef struct sum_work {
    int input[ITEMS], output[ITEMS];
    int calls[8], counts[8];
} sum_work;

static void add_one(void *context, int index, int count)
{
    sum_work *work = context;
    size_t begin, end;
    ot_team_share(ITEMS, 1, index, count, &begin, &end);
    for (size_t i = begin; i < end; i++)
        work->output[i] = work->input[i] + 1;
    work->calls[index]++;
    work->counts[index] = count;
}

/* Plain memory in both directions, thousands of times: ThreadSanitizer sees a missing barrier, and so does
 * the sum. */
static void data_passes_through_many_runs(void **state)
{
    (void)state;
    enum { RUNS = 3000 };
    for (int c = 0; c < COUNTS; c++) {
        ot_team *team;
        assert_int_equal(ot_team_open(counts[c], &team), OT_OK);
        assert_int_equal(ot_team_count(team), counts[c]);
        sum_work work = {0};
        for (int run = 0; run < RUNS; run++) {
            ot_team_run(team, add_one, &work);
            memcpy(work.input, work.output, sizeof work.input);
        }
        for (int i = 0; i < ITEMS; i++)
            assert_int_equal(work.output[i], RUNS);
        for (int i = 0; i < counts[c]; i++) {
            assert_int_equal(work.calls[i], RUNS);
            assert_int_equal(work.counts[i], counts[c]);
        }
        ot_team_close(team);
    }
}

static void sleep_a_little(void *context, int index, int count)
{
    (void)count;
    int *done = context;
    if (index != 0)
        nanosleep(&(struct timespec){0, 2000000}, NULL);
    done[index]++;
}

/* Longer than either side spins: the caller sleeps until the workers end, and the workers until the next run.
 */
static void both_sides_sleep_and_wake(void **state)
{
    (void)state;
    ot_team *team;
    int done[3] = {0};
    assert_int_equal(ot_team_open(3, &team), OT_OK);
    for (int run = 1; run <= 20; run++) {
        ot_team_run(team, sleep_a_little, done);
        for (int i = 0; i < 3; i++)
            assert_int_equal(done[i], run);
        nanosleep(&(struct timespec){0, 2000000}, NULL);
    }
    ot_team_close(team);
}

typedef struct meeting {
    atomic_int arrived;
    pthread_t threads[8];
} meeting;

static void meet(void *context, int index, int count)
{
    meeting *here = context;
    here->threads[index] = pthread_self();
    atomic_fetch_add(&here->arrived, 1);
    while (atomic_load(&here->arrived) < count)
        sched_yield();
}

/* Members run at the same time, each on a thread of its own, the caller being the first. */
static void members_are_threads_of_their_own(void **state)
{
    (void)state;
    ot_team *team;
    meeting here = {0};
    assert_int_equal(ot_team_open(8, &team), OT_OK);
    ot_team_run(team, meet, &here);
    assert_true(pthread_equal(here.threads[0], pthread_self()));
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < i; j++)
            assert_false(pthread_equal(here.threads[i], here.threads[j]));
    ot_team_close(team);
}

static void the_callers_mask_stays(void **state)
{
    (void)state;
    cpu_set_t before, after;
    ot_team *team;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    assert_int_equal(ot_team_open(2, &team), OT_OK);
    ot_team_run(team, meet, &(meeting){0});
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_true(CPU_EQUAL(&before, &after));
    ot_team_close(team);
}

static int default_count(void)
{
    ot_team *team;
    assert_int_equal(ot_team_open(0, &team), OT_OK);
    int count = ot_team_count(team);
    ot_team_close(team);
    return count;
}

static void openmp_settings_are_ignored(void **state)
{
    (void)state;
    ot_cpu_budget budget;
    unsetenv("OMP_NUM_THREADS");
    int count = default_count();
    assert_int_equal(ot_cpu_budget_read("", &budget), OT_OK);
    assert_in_range(count, 1, budget.threads);
    setenv("OMP_NUM_THREADS", "1", 1);
    assert_int_equal(default_count(), count);
    setenv("OMP_NUM_THREADS", "77", 1);
    assert_int_equal(default_count(), count);
    unsetenv("OMP_NUM_THREADS");
}

static void a_narrow_mask_gives_one_thread(void **state)
{
    (void)state;
    cpu_set_t before, one;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    size_t last = CPU_SETSIZE - 1;
    while (!CPU_ISSET(last, &before))
        last--;
    CPU_ZERO(&one);
    CPU_SET(last, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    int count = default_count();
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
    assert_int_equal(count, 1);
}

static void note_processor(void *context, int index, int count)
{
    cpu_set_t mine;
    (void)count;
    if (index == 1 && sched_getaffinity(0, sizeof mine, &mine) == 0 && CPU_COUNT(&mine) == 1)
        *(int *)context = CPU_ISSET(0, &mine) ? 0 : 1;
}

/* A machine of two nodes with one processor each: the second member is on the other node's. */
static void the_near_node_comes_first(void **state)
{
    (void)state;
    cpu_set_t allowed;
    assert_int_equal(sched_getaffinity(0, sizeof allowed, &allowed), 0);
    if (!CPU_ISSET(0, &allowed) || !CPU_ISSET(1, &allowed))
        skip();
    setenv("HWLOC_SYNTHETIC", "numa:2 core:1 pu:1", 1);
    setenv("HWLOC_THISSYSTEM", "1", 1);
    for (int node = -1; node < 3; node++) {
        ot_team *team;
        int processor = -1;
        assert_int_equal(ot_team_open_near(2, node, &team), OT_OK);
        ot_team_run(team, note_processor, &processor);
        ot_team_close(team);
        assert_int_equal(processor, node == 1 ? 0 : 1); /* there is no node 2 */
    }
    unsetenv("HWLOC_SYNTHETIC");
    unsetenv("HWLOC_THISSYSTEM");
}

static void a_team_that_never_ran_closes(void **state)
{
    (void)state;
    for (int i = 0; i < 50; i++) {
        ot_team *team;
        assert_int_equal(ot_team_open(counts[i % COUNTS], &team), OT_OK);
        ot_team_close(team);
    }
    ot_team_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares_cover_everything_once),   cmocka_unit_test(data_passes_through_many_runs),
        cmocka_unit_test(both_sides_sleep_and_wake),      cmocka_unit_test(members_are_threads_of_their_own),
        cmocka_unit_test(the_callers_mask_stays),         cmocka_unit_test(openmp_settings_are_ignored),
        cmocka_unit_test(a_narrow_mask_gives_one_thread), cmocka_unit_test(a_team_that_never_ran_closes),
        cmocka_unit_test(the_near_node_comes_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
