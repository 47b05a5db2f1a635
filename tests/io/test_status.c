/* Error texts: quoting, cutting, threads, hand-over. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "io/status.h"
#include "tests/support/test.h"

static void the_text_is_empty_at_first(void **state)
{
    (void)state;
    assert_string_equal(ot_error_text(), "");
    assert_int_equal(ot_error_take().status, OT_OK);
}

static void a_failure_keeps_code_text_and_place(void **state)
{
    (void)state;
    int line = __LINE__ + 1;
    assert_int_equal(ot_fail(OT_ERR_DATA, "line %d: %s", 7, "no prompt"), OT_ERR_DATA);
    assert_string_equal(ot_error_text(), "line 7: no prompt");
    ot_error error = ot_error_take();
    assert_int_equal(error.status, OT_ERR_DATA);
    assert_int_equal(error.line, line);
    assert_string_equal(error.file, __FILE__);
}

static void a_text_may_quote_the_one_before(void **state)
{
    (void)state;
    assert_int_equal(ot_fail(OT_ERR_IO, "disk full"), OT_ERR_IO);
    assert_int_equal(ot_fail(OT_ERR_FORMAT, "shard 2: %s; free some", ot_error_text()), OT_ERR_FORMAT);
    assert_string_equal(ot_error_text(), "shard 2: disk full; free some");
}

static void a_long_text_is_cut(void **state)
{
    (void)state;
    char text[2 * OT_ERROR_TEXT_BYTES];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    assert_int_equal(ot_fail(OT_ERR_IO, "%s", text), OT_ERR_IO);
    assert_int_equal(strlen(ot_error_text()), OT_ERROR_TEXT_BYTES - 1);
}

/* The worker's failure; it also sees that it starts without one. */
static void *fail_in_a_thread(void *argument)
{
    ot_error *error = argument;
    if (strcmp(ot_error_text(), "") != 0 || ot_fail(OT_ERR_DEVICE, "lost") != OT_ERR_DEVICE)
        return NULL;
    *error = ot_error_take();
    return error;
}

static void a_failure_moves_between_threads(void **state)
{
    (void)state;
    pthread_t thread;
    ot_error error;
    void *result;
    assert_int_equal(ot_fail(OT_ERR_USAGE, "mine"), OT_ERR_USAGE);
    assert_int_equal(pthread_create(&thread, NULL, fail_in_a_thread, &error), 0);
    assert_int_equal(pthread_join(thread, &result), 0);
    assert_ptr_equal(result, &error);
    assert_string_equal(ot_error_text(), "mine");
    assert_int_equal(ot_error_raise(&error), OT_ERR_DEVICE);
    assert_string_equal(ot_error_text(), "lost");
}

static ot_status step(int good, int *steps)
{
    ++*steps;
    return good ? OT_OK : ot_fail(OT_ERR_NUMERIC, "step %d", *steps);
}

static ot_status try_three(int bad, int *steps)
{
    for (int i = 1; i <= 3; i++)
        OT_TRY(step(i != bad, steps));
    return OT_OK;
}

static ot_status try_and_clean(int bad, int *steps, int *cleaned)
{
    ot_status status = OT_OK;
    for (int i = 1; i <= 3; i++)
        OT_TRY_GOTO(step(i != bad, steps), out);
out:
    *cleaned = 1;
    return status;
}

static void try_stops_at_the_first_failure(void **state)
{
    (void)state;
    int steps = 0, cleaned = 0;
    assert_int_equal(try_three(0, &steps), OT_OK);
    assert_int_equal(steps, 3);
    steps = 0;
    assert_int_equal(try_three(2, &steps), OT_ERR_NUMERIC);
    assert_int_equal(steps, 2);
    steps = 0;
    assert_int_equal(try_and_clean(1, &steps, &cleaned), OT_ERR_NUMERIC);
    assert_int_equal(steps, 1);
    assert_int_equal(cleaned, 1);
    assert_string_equal(ot_error_text(), "step 1");
}

static void an_assertion_names_itself_and_aborts(void **state)
{
    (void)state;
    int ends[2], outcome, two = 2;
    char text[512] = "";
    OT_ASSERT(two == 2);
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGABRT, SIG_DFL);
        dup2(ends[1], STDERR_FILENO);
        OT_ASSERT(two == 3);
        _exit(0);
    }
    close(ends[1]);
    assert_int_equal(waitpid(child, &outcome, 0), child);
    assert_true(read(ends[0], text, sizeof text - 1) > 0);
    close(ends[0]);
    assert_true(WIFSIGNALED(outcome));
    assert_int_equal(WTERMSIG(outcome), SIGABRT);
    assert_non_null(strstr(text, "test_status.c"));
    assert_non_null(strstr(text, "two == 3"));
}

/* Scripts rely on these numbers. */
static void exit_codes_are_fixed(void **state)
{
    (void)state;
    static const int codes[][2] = {
        {OT_OK, 0},         {OT_ERR_INTERNAL, 1},  {OT_ERR_USAGE, 2},     {OT_ERR_FIT, 3},
        {OT_ERR_DATA, 4},   {OT_ERR_FORMAT, 5},    {OT_ERR_IO, 6},        {OT_ERR_NUMERIC, 7},
        {OT_ERR_DEVICE, 8}, {OT_STOPPED_INT, 130}, {OT_STOPPED_TERM, 143}};
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        assert_int_equal(codes[i][0], codes[i][1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_text_is_empty_at_first),
        cmocka_unit_test(a_failure_keeps_code_text_and_place),
        cmocka_unit_test(a_text_may_quote_the_one_before),
        cmocka_unit_test(a_long_text_is_cut),
        cmocka_unit_test(a_failure_moves_between_threads),
        cmocka_unit_test(try_stops_at_the_first_failure),
        cmocka_unit_test(an_assertion_names_itself_and_aborts),
        cmocka_unit_test(exit_codes_are_fixed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
