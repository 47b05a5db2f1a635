/* The mover under faults: each request to the drive is spoilt in turn, and each operation of the engine and
 * of the device fails in turn. The first failure is what the run returns; nothing hangs, and nothing is left
 * behind. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/block_fault.h"
#include "tests/support/mover.h"
#include "tests/support/store.h"
#include "tests/support/test.h"

enum { LAYERS = 3, BYTES = 20000 };

static const ot_block_backend *const inner[] = {&ot_block_uring, &ot_block_threads};

/* LOAD, two steps and SAVE, until something fails. */
static ot_status run_all(rig *r)
{
    static const ot_list_kind lists[] = {OT_LIST_LOAD, OT_LIST_STEADY, OT_LIST_STEADY, OT_LIST_SAVE};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        OT_TRY(rig_run(r, lists[i]));
        rig_run_serially(r, lists[i]);
    }
    return OT_OK;
}

static rig_setup setup_in(void **state)
{
    const folders *f = *state;
    return (rig_setup){.directories = f->list, .directory_count = 2};
}

static void start(rig *r, const rig_setup *setup)
{
    if (rig_start(r, setup) != OT_OK)
        fail_msg("%s", ot_error_text());
}

/* A mover that has failed says the same again, whatever it is asked to run. */
static void stays_failed(rig *r, ot_status status)
{
    char text[OT_ERROR_TEXT_BYTES];
    strcpy(text, ot_error_text());
    for (int list = OT_LIST_LOAD; list <= OT_LIST_STEADY; list++) {
        assert_int_equal(ot_fail(OT_ERR_USAGE, "another failure of this thread"), OT_ERR_USAGE);
        assert_int_equal(rig_run(r, (ot_list_kind)list), status);
        assert_string_equal(ot_error_text(), text);
    }
}

/* ---- The drive ---- */

static uint64_t requests_of_all(void **state)
{
    rig *r = rig_pipeline(RIG_WAITS_ALL, LAYERS, BYTES);
    rig_setup setup = setup_in(state);
    setup.backend = &block_fault;
    block_fault_arm((fault_plan){.inner = &ot_block_threads});
    start(r, &setup);
    assert_int_equal(run_all(r), OT_OK);
    rig_close(r);
    return block_fault_count();
}

/* Spoils request k, for every k. A fault that passes is survived with right bytes; any other ends in an error
 * that names the chunk. */
static void spoil_each_request(void **state, fault_kind kind, int error, int survives)
{
    uint64_t requests = requests_of_all(state);
    assert_int_equal(requests, LAYERS * (2 + 2 * 7 + 2));
    for (uint64_t k = 0; k < requests; k++) {
        rig *r = rig_pipeline(k % 3 ? RIG_WAITS_PRUNED : RIG_WAITS_SERIAL, LAYERS, BYTES);
        rig_setup setup = setup_in(state);
        setup.backend = &block_fault;
        setup.jitter_ns = k % 5 == 0 ? 50000 : 0;
        setup.jitter_seed = k;
        block_fault_arm((fault_plan){.inner = inner[k % 2], .kind = kind, .victim = k, .error = error});
        start(r, &setup);
        ot_status status = run_all(r);
        assert_true(block_fault_count() > k); /* it did happen */
        if (survives) {
            assert_int_equal(status, OT_OK);
            assert_true(rig_is_equal(r, OT_LIST_SAVE));
        } else {
            assert_int_equal(status, OT_ERR_IO);
            const char *text = ot_error_text();
            assert_true(strstr(text, "(some weight)") != NULL || strstr(text, "(some other plane)") != NULL ||
                        strstr(text, "(activation of stage ") != NULL);
            stays_failed(r, status);
        }
        rig_close(r);
    }
}

static void an_io_error_is_named(void **state)
{
    spoil_each_request(state, FAULT_ERROR, EIO, 0);
}

static void a_flipped_bit_is_found(void **state)
{
    spoil_each_request(state, FAULT_FLIP, 0, 0);
}

static void a_short_transfer_is_continued(void **state)
{
    spoil_each_request(state, FAULT_SHORT, 0, 1);
}

static void try_again_is_survived(void **state)
{
    spoil_each_request(state, FAULT_ERROR, EAGAIN, 1);
}

static void a_late_completion_is_waited_for(void **state)
{
    spoil_each_request(state, FAULT_DELAY, 0, 1);
}

/* Everything fails from request k on: the first failure is the one that is returned, the others do no harm.
 */
static void a_dead_drive_is_survived(void **state)
{
    uint64_t requests = requests_of_all(state);
    for (uint64_t k = 0; k < requests; k++) {
        rig *r = rig_pipeline(RIG_WAITS_PRUNED, LAYERS, BYTES);
        rig_setup setup = setup_in(state);
        setup.backend = &block_fault;
        block_fault_arm((fault_plan){
            .inner = inner[k % 2], .kind = FAULT_ERROR, .victim = k, .times = UINT64_MAX, .error = EIO});
        start(r, &setup);
        assert_int_equal(run_all(r), OT_ERR_IO);
        stays_failed(r, OT_ERR_IO);
        rig_close(r);
    }
}

/* ---- The engine and the device ---- */

/* Lets the k-th operation of a kind fail, for every k; returns how many there are. */
static int fail_each(void **state, int *(*victim)(rig *), ot_status expected, const char *text)
{
    for (int k = 0;; k++) {
        rig *r = rig_pipeline((rig_waits)(k % 3), LAYERS, BYTES);
        rig_setup setup = setup_in(state);
        setup.jitter_ns = k % 2 ? 100000 : 0;
        setup.jitter_seed = (uint64_t)k;
        setup.queue_length = k % 4 == 1 ? 4 : 0;
        start(r, &setup);
        *victim(r) = k;
        ot_status status = run_all(r);
        if (status == OT_OK) {
            assert_true(rig_is_equal(r, OT_LIST_SAVE));
            rig_close(r);
            return k;
        }
        assert_int_equal(status, expected);
        assert_non_null(strstr(ot_error_text(), text));
        stays_failed(r, status);
        rig_close(r);
    }
}

static int *compute_victim(rig *r)
{
    return &r->fail_compute;
}

static int *device_victim(rig *r)
{
    return &r->fail_device;
}

static int *cpu_victim(rig *r)
{
    return &r->fail_cpu;
}

static void a_failing_compute_ends_the_run(void **state)
{
    assert_int_equal(fail_each(state, compute_victim, OT_ERR_NUMERIC, "compute fails as planned"),
                     2 * 4 * LAYERS);
}

static void a_failing_device_ends_the_run(void **state)
{
    assert_int_equal(fail_each(state, device_victim, OT_ERR_DEVICE, "the device fails as planned"),
                     2 * 4 * LAYERS);
}

static void a_failing_cpu_ends_the_run(void **state)
{
    assert_int_equal(fail_each(state, cpu_victim, OT_ERR_NUMERIC, "cpu fails as planned"),
                     LAYERS + 2 * LAYERS + LAYERS);
}

/* Two lanes that fail in one run: one of the two failures is returned, whole. */
static void two_failures_are_one(void **state)
{
    for (int k = 0; k < 60; k++) {
        rig *r = rig_pipeline(RIG_WAITS_PRUNED, LAYERS, BYTES);
        rig_setup setup = setup_in(state);
        setup.backend = &block_fault;
        block_fault_arm((fault_plan){.inner = inner[k % 2],
                                     .kind = FAULT_ERROR,
                                     .victim = (uint64_t)(2 * LAYERS + k % 11),
                                     .error = EIO});
        start(r, &setup);
        r->fail_device = k % 7;
        r->fail_cpu = LAYERS + k % 3;
        ot_status status = run_all(r);
        assert_int_not_equal(status, OT_OK);
        const char *sign = status == OT_ERR_IO       ? "chunk "
                           : status == OT_ERR_DEVICE ? "the device fails as planned"
                                                     : "cpu fails as planned";
        assert_non_null(strstr(ot_error_text(), sign));
        stays_failed(r, status);
        rig_close(r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_FOLDERS(an_io_error_is_named),
        IN_FOLDERS(a_flipped_bit_is_found),
        IN_FOLDERS(a_short_transfer_is_continued),
        IN_FOLDERS(try_again_is_survived),
        IN_FOLDERS(a_late_completion_is_waited_for),
        IN_FOLDERS(a_dead_drive_is_survived),
        IN_FOLDERS(a_failing_compute_ends_the_run),
        IN_FOLDERS(a_failing_device_ends_the_run),
        IN_FOLDERS(a_failing_cpu_ends_the_run),
        IN_FOLDERS(two_failures_are_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
