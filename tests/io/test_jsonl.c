/* Lines of JSONL: numbers, ends, and what is refused. Case 40. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/jsonl.h"
#include "tests/support/test.h"

/* Reads all rows of `text`: their "n" must be 1, 2, …, on the lines given. */
static void reads(const char *text, size_t bytes, const uint64_t *lines, size_t count)
{
    ot_jsonl reader;
    ot_jsonl_line line;
    ot_jsonl_init(&reader, text, bytes);
    for (size_t i = 0; i < count; i++) {
        json_t *row;
        assert_int_equal(ot_jsonl_next(&reader, &line), 1);
        assert_int_equal(line.number, lines[i]);
        if (ot_jsonl_parse("x", &line, &row) != OT_OK)
            fail_msg("%s", ot_error_text());
        assert_true(json_number_value(json_object_get(row, "n")) == (double)(i + 1));
        json_decref(row);
    }
    assert_int_equal(ot_jsonl_next(&reader, &line), 0);
    assert_int_equal(ot_jsonl_next(&reader, &line), 0);
}

static void reads_text(const char *text, const uint64_t *lines, size_t count)
{
    reads(text, strlen(text), lines, count);
}

static void ends_of_lines(void **state)
{
    (void)state;
    static const uint64_t one[] = {1}, two[] = {1, 2}, gaps[] = {2, 5};
    static const char mark[] = "\xef\xbb\xbf{\"n\":1}\n{\"n\":2}";
    reads_text("{\"n\":1}\n{\"n\":2}\n", two, 2);
    reads_text("{\"n\":1}\r\n{\"n\":2}\r\n", two, 2);
    reads_text("{\"n\":1}\n{\"n\":2}", two, 2);
    reads_text("{\"n\":1}\r", one, 1);
    reads(mark, sizeof mark - 1, two, 2);
    reads_text("\n{\"n\":1}\n\r\n \t \n{\"n\":2}\n\n\n", gaps, 2);
    reads("", 0, NULL, 0);
    reads(NULL, 0, NULL, 0);
    reads_text("\xef\xbb\xbf", NULL, 0);
    reads_text(" \n\n", NULL, 0);
}

static void long_lines(void **state)
{
    (void)state;
    enum { LONG = 20000000 };
    static const uint64_t two[] = {1, 2};
    char *text = malloc(LONG + 64);
    int head = sprintf(text, "{\"n\":1,\"text\":\"");
    memset(text + head, 'x', LONG);
    int tail = sprintf(text + head + LONG, "\"}\n{\"n\":2}");
    reads(text, (size_t)(head + LONG + tail), two, 2);
    free(text);
}

static void large_numbers(void **state)
{
    (void)state;
    static const uint64_t one[] = {1};
    reads_text("{\"n\":1,\"id\":18446744073709551615,\"hash\":123456789012345678901234567890}", one, 1);
}

static void nul_in_a_text(void **state)
{
    (void)state;
    ot_jsonl reader;
    ot_jsonl_line line;
    json_t *row;
    ot_jsonl_init(&reader, "{\"text\":\"a\\u0000b\"}", 19);
    assert_int_equal(ot_jsonl_next(&reader, &line), 1);
    assert_int_equal(ot_jsonl_parse("x", &line, &row), OT_OK);
    assert_int_equal(json_string_length(json_object_get(row, "text")), 3);
    json_decref(row);
}

static void what_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *line, *word;
    } cases[] = {
        {"{\"a\":1", "expected"},
        {"{\"a\":1}}", "end of file expected"},
        {"{\"a\":}", "column"},
        {"[1,2]", "jq"},
        {"\"text\"", "object is expected"},
        {"null", "object is expected"},
        {"text", "column"},
        {"{\"a\":\"\xff\"}", "decode byte"},
        {"{\"a\":1,\"a\":2}", "duplicate"},
        {"{\"a\":\"\\ud800\"}", "x.jsonl:3"},
        {"{'a':1}", "x.jsonl:3"},
        {"\xff\xfe{\"a\":1}", "UTF-16"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[256];
        ot_jsonl reader;
        ot_jsonl_line line;
        json_t *row;
        int bytes = snprintf(text, sizeof text, "{}\r\n\n%s\n{}\n", cases[i].line);
        ot_jsonl_init(&reader, text, (size_t)bytes);
        assert_int_equal(ot_jsonl_next(&reader, &line), 1);
        assert_int_equal(ot_jsonl_next(&reader, &line), 1);
        assert_int_equal(ot_jsonl_parse("x.jsonl", &line, &row), OT_ERR_DATA);
        if (strncmp(ot_error_text(), "x.jsonl:3: ", 11) != 0 ||
            strstr(ot_error_text(), cases[i].word) == NULL)
            fail_msg("\"%s\" for %s", ot_error_text(), cases[i].line);
    }
}

static void deep_nesting_is_refused(void **state)
{
    (void)state;
    enum { DEPTH = 200000 };
    char *text = malloc(DEPTH + 8);
    ot_jsonl reader;
    ot_jsonl_line line;
    json_t *row;
    memcpy(text, "{\"a\":", 5);
    memset(text + 5, '[', DEPTH);
    ot_jsonl_init(&reader, text, DEPTH + 5);
    assert_int_equal(ot_jsonl_next(&reader, &line), 1);
    assert_int_equal(ot_jsonl_parse("x", &line, &row), OT_ERR_DATA);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ends_of_lines),   cmocka_unit_test(long_lines),
        cmocka_unit_test(large_numbers),   cmocka_unit_test(nul_in_a_text),
        cmocka_unit_test(what_is_refused), cmocka_unit_test(deep_nesting_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
