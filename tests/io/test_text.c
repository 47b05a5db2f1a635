/* Sizes, numbers and nearest names. */
#include <string.h>

#include "io/text.h"
#include "tests/support/test.h"

static void sizes(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {
        {"0", 0},
        {"17", 17},
        {"17B", 17},
        {"1k", 1024},
        {"4K", 4096},
        {"4KB", 4096},
        {"4kib", 4096},
        {"512M", 536870912},
        {"24G", 25769803776},
        {"24GiB", 25769803776},
        {"1.5T", 1649267441664},
        {"0.5G", 536870912},
        {"8388607T", UINT64_C(9223370937343148032)},
        {"9007199254740993", UINT64_C(9007199254740993)}, /* one more than a double holds exactly */
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        uint64_t bytes = 1;
        assert_int_equal(ot_parse_size(good[i].text, "--size", &bytes), OT_OK);
        assert_int_equal(bytes, good[i].bytes);
    }
    static const char *const bad[] = {"",    " ",   "-1",   "+1",  "G",   "1X",   "1 G",   "1GG",  "1Gi",
                                      "1ib", ".5G", "1,5G", "inf", "nan", "0x10", "1e999", "1.G.", "12G "};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        uint64_t bytes = 99;
        assert_int_equal(ot_parse_size(bad[i], "--size", &bytes), OT_ERR_USAGE);
        assert_int_equal(bytes, 99);
        assert_non_null(strstr(ot_error_text(), "--size"));
    }
}

static void sizes_stop_at_63_bits(void **state)
{
    (void)state;
    uint64_t bytes = 0;
    assert_int_equal(ot_parse_size("8388608T", "--size", &bytes), OT_ERR_USAGE);
    assert_non_null(strstr(ot_error_text(), "2^63"));
    assert_int_equal(ot_parse_size("9223372036854775808", "--size", &bytes), OT_ERR_USAGE);
    assert_int_equal(ot_parse_size("99999999999999999999999999", "--size", &bytes), OT_ERR_USAGE);
    assert_int_equal(ot_parse_size("9223372036854775807", "--size", &bytes), OT_OK);
    assert_int_equal(bytes, INT64_MAX);
}

static void whole_numbers(void **state)
{
    (void)state;
    int64_t value = 0;
    assert_int_equal(ot_parse_int("-9223372036854775808", "--n", &value), OT_OK);
    assert_true(value == INT64_MIN);
    assert_int_equal(ot_parse_int("42", "--n", &value), OT_OK);
    assert_true(value == 42);
    static const char *const bad[] = {"", "4.2", "4K", " 4", "4 ", "9223372036854775808", "x", "0x4", "--4"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(ot_parse_int(bad[i], "--n", &value), OT_ERR_USAGE);
        assert_true(value == 42);
        assert_non_null(strstr(ot_error_text(), "--n"));
    }
}

static void real_numbers(void **state)
{
    (void)state;
    double value = 0;
    assert_int_equal(ot_parse_real("1e-5", "--lr", &value), OT_OK);
    assert_true(value == 1e-5);
    assert_int_equal(ot_parse_real("-.5", "--lr", &value), OT_OK);
    assert_true(value == -0.5);
    static const char *const bad[] = {"",     "inf", "nan", "-infinity", "1e999",
                                      "1.0x", " 1",  "1 ",  "1,5",       "0x1p3"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(ot_parse_real(bad[i], "--lr", &value), OT_ERR_USAGE);
        assert_true(value == -0.5);
    }
}

static void formatted_sizes(void **state)
{
    (void)state;
    static const struct {
        uint64_t bytes;
        const char *text;
    } cases[] = {
        {0, "0 B"},
        {17, "17 B"},
        {1023, "1023 B"},
        {1024, "1 KiB"},
        {1536, "1.50 KiB"},
        {4096, "4 KiB"},
        {25769803776, "24 GiB"},
        {1610612736, "1.50 GiB"},
        {1073741823, "1.00 GiB"}, /* not 1024.00 MiB */
        {UINT64_MAX, "16 EiB"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[OT_SIZE_TEXT_BYTES];
        assert_ptr_equal(ot_format_size(cases[i].bytes, text), text);
        assert_string_equal(text, cases[i].text);
    }
}

static void formats_numbers(void **state)
{
    (void)state;
    static const struct {
        double value;
        const char *text;
    } cases[] = {{0, "0"},           {0.00003459, "3.459e-05"}, {0.14639, "0.1464"},
                 {27.968, "27.97"},  {999.94, "999.9"},         {1000, "1000"},
                 {12290.4, "12290"}, {76508123, "76508123"},    {2e15, "2e+15"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[OT_NUMBER_TEXT_BYTES];
        assert_ptr_equal(ot_format_number(cases[i].value, text), text);
        assert_string_equal(text, cases[i].text);
    }
}

static void nearest_names(void **state)
{
    (void)state;
    static const char *const names[] = {"gpu-mem", "host-mem", "seq-len", "seed", "lr", "lr-scheduler"};
    static const struct {
        const char *typed, *nearest;
    } cases[] = {
        {"gpu_mem", "gpu-mem"}, /* equal */
        {"sede", "seed"},       /* swapped: one step, two would be too far */
        {"hots-mem", "host-mem"},
        {"seq-lenn", "seq-len"},
        {"sqe-len", "seq-len"},
        {"seeed", "seed"},
        {"lr-schedule", "lr-scheduler"},
        {"banana", NULL},
        {"", NULL},
        {"x", NULL},
        {"a-name-longer-than-any-name-that-the-comparison-is-willing-to-hold", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *nearest = ot_nearest_name(cases[i].typed, names, sizeof names / sizeof *names);
        if (cases[i].nearest == NULL)
            assert_null(nearest);
        else
            assert_string_equal(nearest, cases[i].nearest);
    }
    assert_null(ot_nearest_name("seed", names, 0));
}

static void equal_names(void **state)
{
    (void)state;
    assert_true(ot_name_equal("seq-len", "seq_len"));
    assert_true(ot_name_equal("", ""));
    assert_false(ot_name_equal("seq-len", "seq-le"));
    assert_false(ot_name_equal("seq-le", "seq-len"));
    assert_false(ot_name_equal("seq-len", "seqxlen"));
    assert_false(ot_name_equal("Seed", "seed"));
}

static void cleaned_utf8(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"", ""},
        {"plain\n", "plain\n"},
        {"\u00e9\u20ac\U0001F600", "\u00e9\u20ac\U0001F600"},
        {"\xF4\x8F\xBF\xBF", "\xF4\x8F\xBF\xBF"}, /* U+10FFFF, the last one */
        {"a\xFFz", "a?z"},
        {"caf\xE9", "caf?"},  /* Latin-1 */
        {"a\xE2\x82", "a??"}, /* cut */
        {"\x80\xC3-", "?"
                      "?-"},               /* a part without a start, a start without a part */
        {"\xC0\xAF", "??"},                /* overlong */
        {"\xED\xA0\x80", "???"},           /* a surrogate */
        {"\xF4\x90\x80\x80", "????"},      /* above U+10FFFF */
        {"\xF8\x88\x80\x80\x80", "?????"}, /* five bytes */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[16];
        strcpy(text, cases[i][0]);
        assert_ptr_equal(ot_clean_utf8(text), text);
        assert_string_equal(text, cases[i][1]);
    }
}

static void endings(void **state)
{
    (void)state;
    assert_true(ot_ends_with("model.norm.weight", ".weight"));
    assert_true(ot_ends_with(".weight", ".weight"));
    assert_true(ot_ends_with("weight", ""));
    assert_false(ot_ends_with("weight", ".weight"));
    assert_false(ot_ends_with("model.norm.weights", ".weight"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes),           cmocka_unit_test(sizes_stop_at_63_bits),
        cmocka_unit_test(whole_numbers),   cmocka_unit_test(real_numbers),
        cmocka_unit_test(formatted_sizes), cmocka_unit_test(formats_numbers),
        cmocka_unit_test(nearest_names),   cmocka_unit_test(equal_names),
        cmocka_unit_test(cleaned_utf8),    cmocka_unit_test(endings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
