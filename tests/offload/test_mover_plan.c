/* The mover executes what ot_plan_make writes: every list of random plans, byte for byte as a serial
 * execution. */
#include "tests/support/mover.h"
#include "tests/support/plan.h"
#include "tests/support/store.h"
#include "tests/support/test.h"

enum { SEEDS = 60, ARENAS_MAX = 24 << 20 };

static const ot_list_kind order[] = {OT_LIST_LOAD,   OT_LIST_EVAL,  OT_LIST_FIRST, OT_LIST_STEADY,
                                     OT_LIST_STEADY, OT_LIST_DRAIN, OT_LIST_SAVE,  OT_LIST_FIRST,
                                     OT_LIST_DRAIN,  OT_LIST_SAVE};

static void run_all(rig *r, const rig_setup *setup, int seed)
{
    if (rig_start(r, setup) != OT_OK)
        fail_msg("seed %d: %s", seed, ot_error_text());
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        if (rig_run(r, order[i]) != OT_OK)
            fail_msg("seed %d, list %d: %s", seed, (int)order[i], ot_error_text());
        rig_run_serially(r, order[i]);
        if (!rig_is_equal(r, order[i]))
            fail_msg("seed %d, list %d: the result differs", seed, (int)order[i]);
        ot_mover_stats stats = ot_mover_statistics(r->mover);
        for (int lane = 0; lane < OT_LANES; lane++)
            assert_int_equal(stats.bytes[lane], r->plan->lists[order[i]].lane_bytes[lane]);
    }
}

static void every_plan_is_executed(void **state)
{
    static model m;
    const folders *f = *state;
    int executed = 0, on_nvme = 0;
    for (int seed = 0; seed < SEEDS; seed++) {
        ot_plan *plan;
        model_random(&m, (uint64_t)seed);
        assert_int_equal(ot_plan_make(&m.request, &plan), OT_OK);
        if (plan->arena_bytes[0] + plan->arena_bytes[1] + plan->arena_bytes[2] < ARENAS_MAX) {
            rig *r = rig_open(RIG_WAITS_ALL);
            r->plan = plan;
            rig_setup setup = {
                .directories = f->list,
                .directory_count = 1 + (size_t)seed % 3,
                .backend = seed % 2 ? &ot_block_threads : &ot_block_uring,
                .jitter_seed = (uint64_t)seed,
                .jitter_ns = seed % 3 ? 40000 : 0,
            };
            run_all(r, &setup, seed);
            rig_close(r);
            executed++;
            on_nvme += plan->nvme_chunk_count > 0;
        }
        ot_plan_free(plan);
    }
    assert_true(executed > SEEDS / 3 && on_nvme > SEEDS / 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {IN_FOLDERS(every_plan_is_executed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
