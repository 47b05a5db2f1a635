/* The option table: every kind, spelling and mistake, and the help. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/test.h"
#include "tools/option.h"

typedef struct values {
    int fast, shuffle;
    int64_t steps;
    double rate;
    uint64_t memory;
    const char *optimizer, *output;
    ot_option_list folders, data, rest;
} values;

static const ot_option options[] = {
    {.name = "fast", .offset = offsetof(values, fast), .help = "be fast"},
    {.name = "shuffle-data", .offset = offsetof(values, shuffle), .initial = "on", .help = "mix"},
    {.name = "max-steps",
     .kind = OT_OPTION_INT,
     .offset = offsetof(values, steps),
     .value = "N",
     .initial = "-1",
     .help = "stop there",
     .aliases = "steps|num-steps"},
    {.name = "lr",
     .kind = OT_OPTION_REAL,
     .offset = offsetof(values, rate),
     .value = "X",
     .initial = "1e-5",
     .help = "learning rate"},
    {.name = "gpu-mem",
     .kind = OT_OPTION_SIZE,
     .offset = offsetof(values, memory),
     .value = "SIZE",
     .help = "cap"},
    {.name = "optim",
     .kind = OT_OPTION_TEXT,
     .offset = offsetof(values, optimizer),
     .value = "NAME",
     .initial = "adamw",
     .choices = "adamw|sgd|lion",
     .help = "optimizer"},
    {.name = "output-dir",
     .kind = OT_OPTION_TEXT,
     .offset = offsetof(values, output),
     .value = "DIR",
     .help = "where to",
     .aliases = "-o"},
    {.name = "nvme",
     .kind = OT_OPTION_LIST,
     .offset = offsetof(values, folders),
     .value = "DIR…",
     .help = "drives"},
    {.name = "data",
     .kind = OT_OPTION_LIST,
     .offset = offsetof(values, data),
     .value = "FILE…",
     .help = "text"},
};
enum { OPTIONS = sizeof options / sizeof *options };

static const ot_option_table table = {"offtrain try", "Tries.", options, OPTIONS};

/* Parses the words of `line`; they are kept until the next call. */
static ot_status parse(const ot_option_table *with, const char *line, values *out, int *help)
{
    static char text[1024];
    static char *words[32];
    int count = 0;
    snprintf(text, sizeof text, "%s", line);
    for (char *word = strtok(text, " "); word != NULL; word = strtok(NULL, " "))
        words[count++] = word;
    memset(out, 0, sizeof *out);
    return ot_options_parse(with, count, words, out, help);
}

static values good(const char *line)
{
    values out;
    int help = 7;
    ot_status status = parse(&table, line, &out, &help);
    if (status != OT_OK)
        fail_msg("'%s': %s", line, ot_error_text());
    assert_int_equal(help, 0);
    return out;
}

/* `line` must be refused with a text that holds both words. */
static void bad(const char *line, const char *word, const char *other)
{
    values out;
    int help;
    if (parse(&table, line, &out, &help) != OT_ERR_USAGE)
        fail_msg("'%s' is accepted", line);
    if (strstr(ot_error_text(), word) == NULL || strstr(ot_error_text(), other) == NULL)
        fail_msg("'%s': \"%s\" does not hold '%s' and '%s'", line, ot_error_text(), word, other);
}

static void defaults(void **state)
{
    (void)state;
    values out = good("");
    assert_int_equal(out.fast, 0);
    assert_int_equal(out.shuffle, 1);
    assert_true(out.steps == -1);
    assert_true(out.rate == 1e-5);
    assert_int_equal(out.memory, 0);
    assert_string_equal(out.optimizer, "adamw");
    assert_null(out.output);
    assert_int_equal(out.folders.count, 0);
}

static void every_kind(void **state)
{
    (void)state;
    values out = good("--fast --max-steps 10 --lr 3e-4 --gpu-mem 24G --optim sgd --output-dir runs");
    assert_int_equal(out.fast, 1);
    assert_true(out.steps == 10);
    assert_true(out.rate == 3e-4);
    assert_int_equal(out.memory, UINT64_C(24) << 30);
    assert_string_equal(out.optimizer, "sgd");
    assert_string_equal(out.output, "runs");
}

static void values_after_an_equals_sign(void **state)
{
    (void)state;
    values out = good("--max-steps=10 --optim=lion --output-dir=a=b --gpu-mem=1.5K");
    assert_true(out.steps == 10);
    assert_string_equal(out.optimizer, "lion");
    assert_string_equal(out.output, "a=b");
    assert_int_equal(out.memory, 1536);
    assert_string_equal(good("--output-dir=").output, "");
    assert_string_equal(good("--output-dir=-x").output, "-x");
}

static void dashes_and_underscores(void **state)
{
    (void)state;
    assert_true(good("--max_steps 3").steps == 3);
    assert_true(good("--max_steps=3").steps == 3);
    assert_int_equal(good("--no_shuffle_data").shuffle, 0);
    assert_int_equal(good("--no-shuffle_data").shuffle, 0);
}

static void aliases(void **state)
{
    (void)state;
    assert_true(good("--steps 4").steps == 4);
    assert_true(good("--num_steps=5").steps == 5);
    assert_string_equal(good("-o x").output, "x");
    assert_string_equal(good("-o=x").output, "x");
    bad("--step 4", "--step", "did you mean");
    bad("--o x", "--o", "--help");
}

static void flags(void **state)
{
    (void)state;
    static const char *const on[] = {"--shuffle-data",      "--shuffle-data=on",
                                     "--shuffle-data=true", "--shuffle-data=yes",
                                     "--shuffle-data=1",    "--no-shuffle-data --shuffle-data"};
    static const char *const off[] = {"--no-shuffle-data",    "--shuffle-data=off",
                                      "--shuffle-data=false", "--shuffle-data=no",
                                      "--shuffle-data=0",     "--shuffle-data --no-shuffle-data"};
    for (size_t i = 0; i < sizeof on / sizeof *on; i++)
        assert_int_equal(good(on[i]).shuffle, 1);
    for (size_t i = 0; i < sizeof off / sizeof *off; i++)
        assert_int_equal(good(off[i]).shuffle, 0);
    bad("--fast=maybe", "--fast", "maybe");
    bad("--fast=", "--fast", "neither on nor off");
    bad("--no-fast=on", "--no-fast", "takes no value");
    bad("--no-lr", "--no-lr", ""); /* no flag */
    bad("--no-", "--no-", "");
}

static void lists(void **state)
{
    (void)state;
    values out = good("--nvme /a /b --lr 1 --nvme=/c,/d --data x");
    static const char *const folders[] = {"/a", "/b", "/c", "/d"};
    assert_int_equal(out.folders.count, 4);
    for (size_t i = 0; i < 4; i++)
        assert_string_equal(out.folders.items[i], folders[i]);
    assert_int_equal(out.data.count, 1);
    assert_string_equal(out.data.items[0], "x");
    bad("--nvme", "--nvme", "needs a value");
    bad("--nvme --lr 1", "--nvme", "needs a value");
    bad("--nvme /a,,/b", "--nvme", "empty");
    bad("--nvme=", "--nvme", "empty");
}

static void a_list_has_an_end(void **state)
{
    (void)state;
    char line[1024] = "--nvme ";
    for (int i = 0; i < OT_OPTION_LIST_MAX; i++)
        strcat(line, i == 0 ? "x" : ",x");
    assert_int_equal(good(line).folders.count, OT_OPTION_LIST_MAX);
    strcat(line, ",x");
    bad(line, "--nvme", "64");
}

static void the_last_one_wins(void **state)
{
    (void)state;
    assert_true(good("--lr 1 --lr 2").rate == 2);
    assert_string_equal(good("--output-dir a -o b").output, "b");
}

static void negative_numbers_are_values(void **state)
{
    (void)state;
    assert_true(good("--max-steps -5").steps == -5);
    assert_true(good("--lr -.5").rate == -0.5);
    assert_string_equal(good("-o -").output, "-"); /* the usual name of stdin */
}

static void bad_values(void **state)
{
    (void)state;
    bad("--max-steps ten", "--max-steps", "ten");
    bad("--steps 1.5", "--max-steps", "1.5");                            /* named as the table does */
    bad("--max-steps -9223372036854775808", "--max-steps", "too small"); /* stands for auto */
    bad("--lr fast", "--lr", "fast");
    bad("--gpu-mem 24Q", "--gpu-mem", "24Q");
    bad("--gpu-mem -1", "--gpu-mem", "-1");
    bad("--optim adam", "adam", "adamw|sgd|lion");
    bad("--optim=", "--optim", "adamw|sgd|lion");
    bad("--lr", "--lr", "needs a value: X");
    bad("--lr --fast", "--lr", "needs a value");
}

static void unknown_names(void **state)
{
    (void)state;
    bad("--gpu-men 24G", "--gpu-men", "did you mean --gpu-mem?");
    bad("--gpu_men=24G", "--gpu_men;", "did you mean --gpu-mem?");
    bad("-lr 1", "-lr", "did you mean --lr?");
    bad("--num-stepz 1", "--num-stepz", "did you mean --num-steps?"); /* near an alias */
    bad("--no-shufle-data", "--no-shufle-data", "did you mean --no-shuffle-data?");
    bad("--banana", "--banana", "offtrain try --help");
    bad("-x", "-x", "offtrain try --help");
    bad("--", "--", "offtrain try --help");
    bad("stray", "stray", "offtrain try --help");
    bad("--_ x", "--_", "");
}

static void positional_arguments(void **state)
{
    (void)state;
    ot_option with_rest[OPTIONS + 1];
    memcpy(with_rest, options, sizeof options);
    with_rest[OPTIONS] = (ot_option){.name = "_",
                                     .kind = OT_OPTION_LIST,
                                     .offset = offsetof(values, rest),
                                     .value = "FILE",
                                     .help = "to look at"};
    ot_option_table positional = {"offtrain try", "Tries.", with_rest, OPTIONS + 1};
    values out;
    int help;
    assert_int_equal(parse(&positional, "a,b --fast c --lr 1 -", &out, &help), OT_OK);
    assert_int_equal(out.rest.count, 3);
    assert_string_equal(out.rest.items[0], "a,b"); /* file names may hold commas */
    assert_string_equal(out.rest.items[1], "c");
    assert_string_equal(out.rest.items[2], "-");
    assert_int_equal(parse(&positional, "--_ x", &out, &help), OT_ERR_USAGE);
}

/* Prints the help into a text, which the caller frees. */
static char *help_text(void)
{
    char *text;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    ot_options_help(&table, out);
    fclose(out);
    return text;
}

static void help_lists_every_option(void **state)
{
    (void)state;
    static const char *const lines[] = {"--help", "-h", "--banana --help", "--lr -h", "--lr x --help"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        values out;
        int asked = 0;
        assert_int_equal(parse(&table, lines[i], &out, &asked), OT_OK);
        assert_int_equal(asked, 1);
    }
    char *text = help_text();
    assert_memory_equal(text, "usage: offtrain try [options]\nTries.\n\n", 38);
    assert_non_null(strstr(text, "\n  --fast                     be fast\n"));
    assert_non_null(strstr(text, "\n  --max-steps N              stop there (-1) [steps|num-steps]\n"));
    assert_non_null(strstr(text, "\n  --optim NAME               optimizer: adamw|sgd|lion (adamw)\n"));
    assert_non_null(strstr(text, "\n  --nvme DIR…                drives\n"));
    for (size_t i = 0; i < OPTIONS; i++)
        assert_non_null(strstr(text, options[i].help));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults),
        cmocka_unit_test(every_kind),
        cmocka_unit_test(values_after_an_equals_sign),
        cmocka_unit_test(dashes_and_underscores),
        cmocka_unit_test(aliases),
        cmocka_unit_test(flags),
        cmocka_unit_test(lists),
        cmocka_unit_test(a_list_has_an_end),
        cmocka_unit_test(the_last_one_wins),
        cmocka_unit_test(negative_numbers_are_values),
        cmocka_unit_test(bad_values),
        cmocka_unit_test(unknown_names),
        cmocka_unit_test(positional_arguments),
        cmocka_unit_test(help_lists_every_option),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
