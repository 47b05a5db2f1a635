/* The command as a user runs it: exit codes, what goes to stdout, JSON. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/test.h"
#include "tests/support/tree.h"

/* Runs the command with `arguments`, which a shell reads, and returns its exit code and its stdout. */
static int run(const char *arguments, char *out, size_t size)
{
    char line[1024];
    snprintf(line, sizeof line, "%s %s", OT_COMMAND, arguments);
    FILE *pipe = popen(line, "r");
    assert_non_null(pipe);
    size_t n = fread(out, 1, size - 1, pipe);
    out[n] = '\0';
    int status = pclose(pipe);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static json_t *run_json(const char *arguments, int code)
{
    char out[16384];
    json_error_t error;
    assert_int_equal(run(arguments, out, sizeof out), code);
    json_t *object = json_loads(out, 0, &error);
    if (object == NULL)
        fail_msg("%s: not JSON: %s\n%s", arguments, error.text, out);
    return object;
}

static void version(void **state)
{
    (void)state;
    char out[4096];
    assert_int_equal(run("version", out, sizeof out), 0);
    assert_memory_equal(out, "offtrain 0.1.0\n", 15);
    assert_non_null(strstr(out, "liburing 2."));
    assert_non_null(strstr(out, "\nCUDA device "));
    assert_non_null(strstr(out, "\ninstruction sets "));
    json_t *object = run_json("version --json", 0);
    assert_string_equal(json_string_value(json_object_get(object, "version")), "0.1.0");
    assert_true(json_is_boolean(json_object_get(json_object_get(object, "features"), "cuda")));
    json_t *sets = json_object_get(object, "instruction_sets");
    assert_true(json_array_size(sets) >= 1);
    for (size_t i = 0; i < json_array_size(sets); i++)
        assert_non_null(strstr(out, json_string_value(json_array_get(sets, i))));
    json_decref(object);
}

/* The check about `subject` whose finding holds `word`. */
static json_t *find_check(const json_t *report, const char *subject, const char *word)
{
    const json_t *checks = json_object_get(report, "checks");
    for (size_t i = 0; i < json_array_size(checks); i++) {
        json_t *check = json_array_get(checks, i);
        if (strcmp(json_string_value(json_object_get(check, "subject")), subject) == 0 &&
            strstr(json_string_value(json_object_get(check, "found")), word) != NULL)
            return check;
    }
    fail_msg("no check of %s that holds '%s'", subject, word);
    return NULL;
}

static const char *level_of(const json_t *check)
{
    return json_string_value(json_object_get(check, "level"));
}

static void doctor_looks_at_everything(void **state)
{
    (void)state;
    char *folder = tree_open(), arguments[256];
    static const char *const subjects[] = {"kernel",     "io_uring", "memlock", "memory", "huge pages",
                                           "processors", "cpu",      "numa",    "gpu"};
    snprintf(arguments, sizeof arguments, "doctor --json --nvme %s", folder);
    struct statfs fs;
    assert_int_equal(statfs(folder, &fs), 0);
    if (fs.f_type == 0x01021994) { /* tmpfs would be refused */
        tree_close(folder);
        skip();
    }
    json_t *report = run_json(arguments, 0);
    for (size_t i = 0; i < sizeof subjects / sizeof *subjects; i++)
        find_check(report, subjects[i], "");
    assert_string_not_equal(level_of(find_check(report, "folder", folder)), "error");
    assert_true(json_integer_value(json_object_get(report, "host_budget_bytes")) > 0);
    assert_true(json_integer_value(json_object_get(report, "threads")) > 0);
    json_decref(report);

    snprintf(arguments, sizeof arguments, "doctor --json --nvme %s /", folder);
    struct stat here, top;
    assert_int_equal(stat(folder, &here), 0);
    assert_int_equal(stat("/", &top), 0);
    if (here.st_dev == top.st_dev && access("/", W_OK) == 0) {
        report = run_json(arguments, 0);
        assert_string_equal(level_of(find_check(report, "folders", "one file system")), "warning");
        json_decref(report);
    }
    tree_close(folder);
}

static void doctor_prints_a_line_a_check(void **state)
{
    (void)state;
    char out[16384], *rest;
    assert_int_equal(run("doctor", out, sizeof out), 0);
    assert_memory_equal(out, "ok       kernel      Linux ", 27);
    for (char *line = strtok_r(out, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        assert_true(strncmp(line, "ok       ", 9) == 0 || strncmp(line, "warning  ", 9) == 0);
        assert_int_equal(line[20], ' '); /* between subject and finding */
        assert_int_not_equal(line[21], ' ');
    }
}

static void doctor_refuses_folders_that_cannot_do(void **state)
{
    (void)state;
    json_t *report = run_json("doctor --json --nvme /no/such/folder 2>/dev/null", 2);
    assert_string_equal(level_of(find_check(report, "folder", "/no/such/folder")), "error");
    json_decref(report);

    struct statfs fs;
    if (statfs("/dev/shm", &fs) == 0 && fs.f_type == 0x01021994 && access("/dev/shm", W_OK) == 0) {
        char out[16384];
        assert_int_equal(run("doctor --nvme /dev/shm 2>&1", out, sizeof out), 2);
        assert_non_null(strstr(out, "\nerror    folder      /dev/shm: tmpfs"));
        assert_non_null(strstr(out, "memory, not a drive"));
        assert_non_null(strstr(out, "offtrain: 1 of 1 folders"));
    }
}

static void doctor_says_that_openmp_settings_are_ignored(void **state)
{
    (void)state;
    setenv("OMP_NUM_THREADS", "1", 1);
    json_t *report = run_json("doctor --json", 0);
    unsetenv("OMP_NUM_THREADS");
    find_check(report, "threads", "OMP_NUM_THREADS=1 is ignored");
    json_decref(report);
}

static void mistakes_end_with_2(void **state)
{
    (void)state;
    static const struct {
        const char *arguments, *text;
    } cases[] = {
        {"docter", "did you mean doctor?"},
        {"doctor --jsn", "did you mean --json?"},
        {"version stray", "stray"},
        {"doctor --nvme", "needs a value"},
        {"", "usage: "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char arguments[128], out[4096];
        snprintf(arguments, sizeof arguments, "%s 2>&1 >/dev/null", cases[i].arguments);
        assert_int_equal(run(arguments, out, sizeof out), 2);
        assert_non_null(strstr(out, cases[i].text));
    }
}

static void help_goes_to_stdout(void **state)
{
    (void)state;
    char out[4096];
    assert_int_equal(run("--help", out, sizeof out), 0);
    assert_non_null(strstr(out, "usage: offtrain"));
    assert_int_equal(run("doctor --help", out, sizeof out), 0);
    assert_non_null(strstr(out, "--nvme DIR…"));
    assert_int_equal(run("version -h", out, sizeof out), 0);
    assert_non_null(strstr(out, "--json"));
}

static void a_full_stdout_is_an_error(void **state)
{
    (void)state;
    char out[256];
    if (access("/dev/full", W_OK) != 0)
        skip();
    assert_int_equal(run("version 2>&1 >/dev/full", out, sizeof out), 6);
    assert_non_null(strstr(out, "cannot write"));
}

/* Its number must not go to a file that the command opens: what it prints would land there. */
static void a_closed_stdout_is_an_error(void **state)
{
    (void)state;
    char out[256];
    assert_int_equal(run("doctor 2>&1 >&-", out, sizeof out), 6);
    assert_non_null(strstr(out, "cannot write"));
}

static void a_folders_name_need_not_be_utf8(void **state)
{
    (void)state;
    json_t *report = run_json("doctor --json --nvme /no/caf$(printf '\\351') 2>/dev/null", 2);
    assert_string_equal(level_of(find_check(report, "folder", "/no/caf?: No such file")), "error");
    json_decref(report);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(version),
        cmocka_unit_test(doctor_looks_at_everything),
        cmocka_unit_test(doctor_prints_a_line_a_check),
        cmocka_unit_test(doctor_refuses_folders_that_cannot_do),
        cmocka_unit_test(doctor_says_that_openmp_settings_are_ignored),
        cmocka_unit_test(mistakes_end_with_2),
        cmocka_unit_test(help_goes_to_stdout),
        cmocka_unit_test(a_full_stdout_is_an_error),
        cmocka_unit_test(a_closed_stdout_is_an_error),
        cmocka_unit_test(a_folders_name_need_not_be_utf8),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
