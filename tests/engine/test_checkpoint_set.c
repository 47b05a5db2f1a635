/* Checkpoints as folders: found, passed over when damaged, rotated by number (cases.md 20, 21). */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/checkpoint_set.h"
#include "engine/run_state.h"
#include "tests/support/test.h"
#include "tests/support/tree.h"

#define RUN "11111111-1111-4111-8111-111111111111"
#define OTHER "22222222-2222-4222-8222-222222222222"

static void write_file(const char *root, const char *folder, const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "/%s/%s", folder, name);
    tree_write(root, path, text);
}

static void add_checkpoint(const char *root, const char *folder, const char *run, uint64_t step)
{
    char path[PATH_MAX];
    ot_manifest manifest = {.step = step};
    uint64_t bytes;
    snprintf(manifest.run, sizeof manifest.run, "%s", run);
    write_file(root, folder, "config.json", "{}");
    write_file(root, folder, "state/master.safetensors", "not really");
    snprintf(path, sizeof path, "%s/%s", root, folder);
    assert_int_equal(ot_manifest_write(path, &manifest, NULL, 0, &bytes), OT_OK);
}

static int is_there(const char *root, const char *folder)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", root, folder);
    return access(path, F_OK) == 0;
}

static void expect_newest(const char *root, const char *folder, uint64_t step)
{
    char path[PATH_MAX], expected[PATH_MAX];
    ot_manifest found;
    snprintf(expected, sizeof expected, "%s/%s", root, folder);
    assert_int_equal(ot_checkpoint_newest(root, path, &found), OT_OK);
    assert_string_equal(path, expected);
    assert_int_equal(found.step, step);
    assert_string_equal(found.run, RUN);
}

static void test_the_newest_is_that_of_the_highest_number(void **state)
{
    (void)state;
    char *root = tree_open();
    add_checkpoint(root, "checkpoint-9000", RUN, 9000);
    add_checkpoint(root, "checkpoint-10000", RUN, 10000);
    add_checkpoint(root, "checkpoint-10001.tmp", RUN, 10001);
    write_file(root, "checkpoint-20000x", "manifest.json", "{}");
    expect_newest(root, "checkpoint-10000", 10000);
    tree_close(root);
}

static void test_no_checkpoint_is_an_empty_path(void **state)
{
    (void)state;
    char *root = tree_open(), path[PATH_MAX] = "x";
    ot_manifest found;
    assert_int_equal(ot_checkpoint_newest(root, path, &found), OT_OK);
    assert_string_equal(path, "");
    tree_close(root);
}

/* Every kind of damage to the newest: the one before is taken; with all damaged, the file is named. */
static void test_damage_is_passed_over_and_named(void **state)
{
    (void)state;
    static const char *const names[] = {"config.json", "state/master.safetensors", "manifest.json"};
    for (size_t i = 0; i < 3; i++)
        for (int kind = 0; kind < 3; kind++) {
            char *root = tree_open(), path[PATH_MAX];
            ot_manifest found;
            add_checkpoint(root, "checkpoint-3", RUN, 3);
            add_checkpoint(root, "checkpoint-12", RUN, 12);
            snprintf(path, sizeof path, "%s/checkpoint-12/%s", root, names[i]);
            if (kind == 0)
                assert_int_equal(unlink(path), 0);
            else if (kind == 1)
                assert_int_equal(truncate(path, 1), 0);
            else
                write_file(root, "checkpoint-12", names[i],
                           i == 0   ? "{]"
                           : i == 1 ? "not Really"
                                    : "not JSON");
            expect_newest(root, "checkpoint-3", 3);
            snprintf(path, sizeof path, "%s/checkpoint-3/config.json", root);
            assert_int_equal(unlink(path), 0);
            assert_int_equal(ot_checkpoint_newest(root, path, &found), OT_ERR_FORMAT);
            assert_non_null(strstr(ot_error_text(), "checkpoint-3/config.json: missing"));
            tree_close(root);
        }
}

static void test_a_manifest_cannot_point_outside(void **state)
{
    (void)state;
    char *root = tree_open(), path[PATH_MAX];
    ot_manifest found;
    write_file(root, "checkpoint-1", "manifest.json",
               "{\"run\": \"" RUN "\", \"step\": 1, \"files\": {\"../x\": {\"size\": 1, \"xxh3\": \"0\"}}}");
    snprintf(path, sizeof path, "%s/checkpoint-1", root);
    assert_int_equal(ot_manifest_verify(path, &found), OT_ERR_FORMAT);
    assert_non_null(strstr(ot_error_text(), "outside"));
    write_file(root, "checkpoint-1", "manifest.json", "{\"run\": \"" RUN "\", \"step\": 1, \"files\": {}}");
    assert_int_equal(ot_manifest_verify(path, &found), OT_ERR_FORMAT); /* it vouches for nothing */
    tree_close(root);
}

static void test_what_its_writer_meant_is_what_counts(void **state)
{
    (void)state;
    char *root = tree_open(), path[PATH_MAX];
    const ot_manifest manifest = {RUN, 7};
    const ot_file_hash known = {"a", 3, UINT64_C(0x1234)};
    ot_manifest found;
    uint64_t bytes;
    write_file(root, "checkpoint-7", "a", "abc");
    snprintf(path, sizeof path, "%s/checkpoint-7", root);
    assert_int_equal(ot_manifest_write(path, &manifest, &known, 1, &bytes), OT_OK);
    assert_int_equal(ot_manifest_verify(path, &found), OT_ERR_FORMAT);
    assert_non_null(strstr(ot_error_text(), "expected 0000000000001234"));
    tree_close(root);
}

static void test_rotation_goes_by_number_and_leaves_others_alone(void **state)
{
    (void)state;
    char *root = tree_open();
    add_checkpoint(root, "checkpoint-9000", RUN, 9000);
    add_checkpoint(root, "checkpoint-9500", OTHER, 9500);
    add_checkpoint(root, "checkpoint-10000", RUN, 10000);
    add_checkpoint(root, "checkpoint-10500", RUN, 10500);
    add_checkpoint(root, "checkpoint-20000", RUN, 20000); /* of a future that a resume has undone */
    write_file(root, "checkpoint-1", "mine.txt", "not a checkpoint");
    const ot_manifest newest = {RUN, 10500};
    assert_int_equal(ot_checkpoint_rotate(root, &newest, 2), OT_OK);
    assert_false(is_there(root, "checkpoint-9000"));
    assert_true(is_there(root, "checkpoint-9500"));
    assert_true(is_there(root, "checkpoint-10000"));
    assert_true(is_there(root, "checkpoint-10500"));
    assert_false(is_there(root, "checkpoint-20000"));
    assert_true(is_there(root, "checkpoint-1/mine.txt"));
    tree_close(root);
}

static void test_a_moved_checkpoint_stays_whole_behind_its_link(void **state)
{
    (void)state;
    char *root = tree_open(), link[PATH_MAX];
    static const char *const names[] = {"checkpoint-2", "checkpoint-3.tmp"};
    add_checkpoint(root, "moved", RUN, 2);
    add_checkpoint(root, "checkpoint-4", RUN, 4);
    for (int i = 0; i < 2; i++) {
        snprintf(link, sizeof link, "%s/%s", root, names[i]);
        assert_int_equal(symlink("moved", link), 0);
    }
    const ot_manifest newest = {RUN, 4};
    assert_int_equal(ot_checkpoint_rotate(root, &newest, 1), OT_OK);
    assert_int_equal(ot_checkpoint_sweep(root), OT_OK);
    assert_false(is_there(root, names[0]));
    assert_false(is_there(root, names[1]));
    assert_true(is_there(root, "moved/manifest.json"));
    tree_close(root);
}

static void test_publishing_replaces_and_points(void **state)
{
    (void)state;
    char *root = tree_open(), link[PATH_MAX], target[64];
    add_checkpoint(root, "checkpoint-4", OTHER, 4);
    add_checkpoint(root, "checkpoint-4.tmp", RUN, 4);
    assert_int_equal(ot_checkpoint_publish(root, 4), OT_OK);
    expect_newest(root, "checkpoint-4", 4);
    assert_false(is_there(root, "checkpoint-4.tmp"));
    add_checkpoint(root, "checkpoint-6.tmp", RUN, 6);
    assert_int_equal(ot_checkpoint_publish(root, 6), OT_OK);
    expect_newest(root, "checkpoint-6", 6);
    snprintf(link, sizeof link, "%s/latest", root);
    ssize_t length = readlink(link, target, sizeof target - 1);
    assert_true(length > 0);
    target[length] = '\0';
    assert_string_equal(target, "checkpoint-6");
    tree_close(root);
}

static void test_sweeping_removes_unfinished_ones(void **state)
{
    (void)state;
    char *root = tree_open();
    add_checkpoint(root, "checkpoint-4", RUN, 4);
    write_file(root, "checkpoint-8.tmp", "state/master.safetensors", "half");
    write_file(root, "notes.tmp", "a", "mine");
    assert_int_equal(ot_checkpoint_sweep(root), OT_OK);
    assert_true(is_there(root, "checkpoint-4"));
    assert_false(is_there(root, "checkpoint-8.tmp"));
    assert_true(is_there(root, "notes.tmp/a"));
    tree_close(root);
}

/* ---- the run's state ---- */

static void test_a_state_comes_back_as_it_was(void **state)
{
    (void)state;
    char *root = tree_open();
    ot_run_state written, read;
    tree_write(root, "/state/x", "");
    assert_int_equal(ot_run_state_init(&written), OT_OK);
    assert_int_equal(strlen(written.run), OT_RUN_ID_BYTES - 1);
    written.step = UINT64_C(1) << 40;
    written.skipped = 3;
    written.tokens = 12345678901;
    written.trained_tokens = 12345678900;
    written.seconds = 1.0 / 3;
    written.nvme_bytes = 1e15 + 1;
    written.trainer = (ot_trainer_state){77, {.scale = 4096, .good_steps = 5, .overflows = 1, .skipped = 2}};
    json_object_set_new(written.settings, "lr", json_real(0.1));
    assert_int_equal(ot_run_state_write(&written, root), OT_OK);
    assert_int_equal(ot_run_state_read(root, &read), OT_OK);
    assert_string_equal(read.run, written.run);
    assert_int_equal(read.step, written.step);
    assert_int_equal(read.skipped, 3);
    assert_int_equal(read.tokens, written.tokens);
    assert_int_equal(read.trained_tokens, written.trained_tokens);
    assert_true(read.seconds == written.seconds && read.nvme_bytes == written.nvme_bytes);
    assert_int_equal(read.trainer.updates, 77);
    assert_true(read.trainer.loss_scale.scale == 4096);
    assert_int_equal(read.trainer.loss_scale.good_steps, 5);
    assert_int_equal(read.trainer.loss_scale.overflows, 1);
    assert_int_equal(read.trainer.loss_scale.skipped, 2);
    assert_true(json_equal(read.settings, written.settings) && isnan(read.loss));
    ot_run_state_fini(&read);
    written.loss = 2.0 / 3;
    assert_int_equal(ot_run_state_write(&written, root), OT_OK);
    assert_int_equal(ot_run_state_read(root, &read), OT_OK);
    assert_true(read.loss == written.loss);
    ot_run_state_fini(&read);
    ot_run_state_fini(&written);
    tree_close(root);
}

static void test_a_state_that_cannot_be_is_refused(void **state)
{
    (void)state;
    char *root = tree_open(), path[PATH_MAX];
    static const char *const cases[][2] = {
        {"step", "-1"},
        {"step", "9223372036854775808"},
        {"tokens", "1.5"},
        {"updates", "\"7\""},
        {"seconds", "-0.5"},
        {"seconds", "1e999"},
        {"settings", "[1,2]"},
        {"run", "\"00000000-0000-4000-8000-0000000000001\""},
        {"loss_scale", "{\"scale\":0.0,\"fixed\":false,\"good_steps\":0,\"overflows\":0,\"skipped\":0}"},
        {"loss_scale", "{\"scale\":1.0,\"fixed\":false,\"good_steps\":0,\"overflows\":-1,\"skipped\":0}"},
        {"loss_scale", "null"}};
    ot_run_state written, read;
    tree_write(root, "/state/x", "");
    snprintf(path, sizeof path, "%s/state/trainer.json", root);
    assert_int_equal(ot_run_state_init(&written), OT_OK);
    written.trainer.loss_scale.scale = 1;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[1024];
        assert_int_equal(ot_run_state_write(&written, root), OT_OK);
        json_t *good = json_load_file(path, 0, NULL);
        assert_non_null(good);
        json_object_del(good, cases[i][0]);
        char *rest = json_dumps(good, JSON_COMPACT);
        snprintf(text, sizeof text, "{\"%s\":%s,%s", cases[i][0], cases[i][1], rest + 1);
        tree_write(root, "/state/trainer.json", text);
        if (ot_run_state_read(root, &read) != OT_ERR_FORMAT)
            fail_msg("%s %s is taken", cases[i][0], cases[i][1]);
        assert_non_null(strstr(ot_error_text(), "trainer.json"));
        free(rest);
        json_decref(good);
    }
    ot_run_state_fini(&written);
    tree_close(root);
}

static void test_changed_settings_are_refused_unless_allowed(void **state)
{
    (void)state;
    ot_run_state run;
    static const char *const lr[] = {"lr", NULL};
    assert_int_equal(ot_run_state_init(&run), OT_OK);
    json_object_update_new(run.settings, json_pack("{s:f, s:i}", "lr", 0.1, "total_steps", 100));
    json_t *same = json_deep_copy(run.settings),
           *other = json_pack("{s:f, s:i}", "lr", 0.2, "total_steps", 100);
    assert_int_equal(ot_run_state_compare(&run, same, NULL), OT_OK);
    assert_int_equal(ot_run_state_compare(&run, other, NULL), OT_ERR_USAGE);
    assert_non_null(strstr(ot_error_text(), "lr was 0.1 and is 0.2"));
    assert_int_equal(ot_run_state_compare(&run, other, lr), OT_OK);
    json_object_set_new(other, "total_steps", json_integer(200));
    assert_int_equal(ot_run_state_compare(&run, other, lr), OT_ERR_USAGE);
    assert_non_null(strstr(ot_error_text(), "total_steps was 100 and is 200"));
    json_object_update_new(run.settings,
                           json_pack("{s:{s:i, s:{s:f}}}", "model", "C", 64, "rope", "theta", 1e4));
    json_object_update_new(other, json_pack("{s:f, s:i, s:{s:i, s:{s:f}}}", "lr", 0.1, "total_steps", 100,
                                            "model", "C", 64, "rope", "theta", 5e5));
    assert_int_equal(ot_run_state_compare(&run, other, lr), OT_ERR_USAGE);
    assert_non_null(strstr(ot_error_text(), "--resume: model.rope.theta was 10000.0 and is 500000.0;"));
    json_decref(same);
    json_decref(other);
    ot_run_state_fini(&run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_newest_is_that_of_the_highest_number),
        cmocka_unit_test(test_no_checkpoint_is_an_empty_path),
        cmocka_unit_test(test_damage_is_passed_over_and_named),
        cmocka_unit_test(test_a_manifest_cannot_point_outside),
        cmocka_unit_test(test_what_its_writer_meant_is_what_counts),
        cmocka_unit_test(test_rotation_goes_by_number_and_leaves_others_alone),
        cmocka_unit_test(test_a_moved_checkpoint_stays_whole_behind_its_link),
        cmocka_unit_test(test_publishing_replaces_and_points),
        cmocka_unit_test(test_sweeping_removes_unfinished_ones),
        cmocka_unit_test(test_a_state_comes_back_as_it_was),
        cmocka_unit_test(test_a_state_that_cannot_be_is_refused),
        cmocka_unit_test(test_changed_settings_are_refused_unless_allowed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
