/* Paths put together and cut as POSIX's dirname(3) does, arrays that grow. */
#include "io/path.h"

#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "io/file.h"
#include "io/grow.h"
#include "tests/support/test.h"
#include "tests/support/tree.h"

static void too_long_is_an_error(void **state)
{
    (void)state;
    char name[PATH_MAX + 1], out[PATH_MAX];
    memset(name, 'x', sizeof name);
    name[PATH_MAX - 3] = '\0';
    assert_int_equal(ot_path_format(out, "a/%s", name), OT_OK); /* PATH_MAX - 1 bytes, and NUL */
    assert_int_equal(strlen(out), PATH_MAX - 1);
    assert_int_equal(ot_path_format(out, "ab/%s", name), OT_ERR_IO);
    assert_non_null(strstr(ot_error_text(), "ab/xxx"));
    assert_int_equal(ot_path_has("a", name), 0);
    name[PATH_MAX - 3] = 'x';
    name[PATH_MAX - 1] = '/';
    name[PATH_MAX] = '\0';
    assert_int_equal(ot_path_make_folders(name), OT_ERR_IO);
    assert_int_equal(ot_path_parent(name, out), OT_OK);
    assert_int_equal(strlen(out), PATH_MAX - 1);
}

static void parents(void **state)
{
    (void)state;
    static const char *const paths[] = {"a", "a/b", "/a", "/", "/a/b/c", "./a", "../a", "a.b/c.d"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        char copy[32], out[PATH_MAX];
        strcpy(copy, paths[i]);
        assert_int_equal(ot_path_parent(paths[i], out), OT_OK);
        assert_string_equal(out, dirname(copy));
        strcpy(out, paths[i]);
        strcpy(copy, paths[i]);
        assert_int_equal(ot_path_parent(out, out), OT_OK); /* in place */
        assert_string_equal(out, dirname(copy));
    }
}

static void folders(void **state)
{
    (void)state;
    char *root = tree_open(), path[PATH_MAX], moved[PATH_MAX];
    struct stat facts;
    tree_write(root, "/file", "text");
    assert_true(ot_path_is_folder(root));
    assert_true(ot_path_has(root, "file"));
    assert_false(ot_path_has(root, "other"));
    assert_int_equal(ot_path_format(path, "%s/file", root), OT_OK);
    assert_false(ot_path_is_folder(path));
    assert_int_equal(ot_path_format(path, "%s/file/below", root), OT_OK);
    assert_int_equal(ot_path_make_folders(path), OT_ERR_IO); /* a file stands in the way */
    assert_non_null(strstr(ot_error_text(), "/file"));
    assert_int_equal(ot_path_format(path, "%s/one/two/three", root), OT_OK);
    assert_int_equal(ot_path_make_folders(path), OT_OK);
    assert_int_equal(ot_path_make_folders(path), OT_OK);
    assert_true(ot_path_is_folder(path));
    assert_int_equal(ot_path_format(moved, "%s/one/four", root), OT_OK);
    assert_int_equal(ot_file_rename(path, moved), OT_OK);
    assert_int_equal(stat(moved, &facts), 0);
    assert_int_not_equal(stat(path, &facts), 0);
    assert_int_equal(ot_file_rename(path, moved), OT_ERR_IO);
    tree_close(root);
}

static void arrays_keep_what_they_hold(void **state)
{
    (void)state;
    enum { COUNT = 100000 };
    uint64_t *items = NULL;
    size_t capacity = 0, moves = 0;
    for (size_t i = 0; i < COUNT; i++) {
        size_t before = capacity;
        assert_int_equal(ot_grow(&items, &capacity, i + 1, sizeof *items, "items"), OT_OK);
        assert_true(capacity > i);
        moves += capacity != before;
        items[i] = i * i;
    }
    for (size_t i = 0; i < COUNT; i++)
        assert_int_equal(items[i], i * i);
    assert_true(moves < 20); /* it doubles */
    uint64_t *old = items;
    size_t room = capacity;
    assert_int_equal(ot_grow(&items, &capacity, SIZE_MAX / 2, sizeof *items, "items"), OT_ERR_INTERNAL);
    assert_non_null(strstr(ot_error_text(), "items"));
    assert_ptr_equal(items, old);
    assert_int_equal(capacity, room);
    free(items);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(too_long_is_an_error),
        cmocka_unit_test(parents),
        cmocka_unit_test(folders),
        cmocka_unit_test(arrays_keep_what_they_hold),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
