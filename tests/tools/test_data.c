/* Data on the command line: tokenize, inspect, and training from JSONL and from token files. */
#include <dirent.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/process.h"
#include "tests/support/test.h"
#include "tests/support/tokenizer.h"
#include "tests/support/tree.h"

static char *root;
static outcome result;

static const char chat[] =
    "{\"messages\":[{\"role\":\"user\",\"content\":\"How deep?\"},{\"role\":\"assistant\",\"content\":"
    "\"Nine metres.\"}]}\n{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":"
    "\"assistant\",\"content\":\"Yo\"}]}\n";

static int set_up(void **state)
{
    (void)state;
    static const char *const specials[] = {"<|im_start|>", "<|im_end|>"};
    root = tree_open();
    assert_int_equal(chdir(root), 0);
    tree_write(root, "/chat.jsonl", chat);
    tree_write(root, "/bad.jsonl", "{\"text\":\"a\"}\r\n\r\n{\"text\":");
    tree_write(root, "/model/empty", "");
    char model[PATH_MAX];
    snprintf(model, sizeof model, "%s/model", root);
    tokenizer_write(model, specials, 2, NULL, "<|im_end|>", 0, NULL);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    assert_int_equal(chdir("/"), 0);
    tree_close(root);
    return 0;
}

static void has(const char *text, const char *word)
{
    if (strstr(text, word) == NULL)
        fail_msg("'%s' is not in: %s", word, text);
}

static int run(const char *arguments)
{
    return process_run(&result, "%s %s", OT_COMMAND, arguments);
}

/* The hash of the parameters that a run ends with. */
static void last_hash(char out[32])
{
    const char *found = strstr(result.out, "params=xxh3:");
    if (found == NULL)
        fail_msg("no hash in: %s %s", result.out, result.err);
    snprintf(out, 32, "%.16s", found + strlen("params=xxh3:"));
}

static void tokenize_and_inspect(void **state)
{
    (void)state;
    assert_int_equal(run("tokenize --model model --data chat.jsonl -o tokens.bin --json"), 0);
    json_t *json = json_loads(result.out, 0, NULL);
    assert_non_null(json);
    /* Counted by hand: "<|im_start|>user\n" is 6 tokens, "<|im_end|>\n" 2, "<|im_start|>assistant\n" 11. */
    assert_int_equal(json_integer_value(json_object_get(json, "tokens")),
                     2 * (6 + 2 + 11 + 2) + 9 + 12 + 2 + 2);
    assert_int_equal(json_integer_value(json_object_get(json, "trained")), 13 + 3);
    assert_int_equal(json_integer_value(json_object_get(json, "documents")), 2);
    json_decref(json);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(
            run(i == 0 ? "inspect chat.jsonl --model model" : "inspect tokens.bin --model model"), 0);
        has(result.out, "chat.jsonl:1: 42 tokens, 13 of them trained");
        has(result.out,
            "<|im_start|>user\nHow deep?<|im_end|>\n<|im_start|>assistant\n«Nine metres.<|im_end|>»\n");
        has(result.out, "«Yo<|im_end|>»");
        has(result.out, "trained   16 tokens");
        has(result.out, "windows   1 of 2048 tokens");
    }
    assert_int_equal(run("inspect chat.jsonl --model model --seq-len 30 --json"), 0);
    json = json_loads(result.out, 0, NULL);
    assert_non_null(json);
    assert_int_equal(json_integer_value(json_object_get(json, "truncated")), 1);
    assert_int_equal(json_integer_value(json_object_get(json, "lost")), 41 - 30);
    assert_int_equal(json_integer_value(json_object_get(json, "windows")), 2);
    json_decref(json);
}

static void inspect_a_model(void **state)
{
    (void)state;
    assert_int_equal(run("inspect model"), 0);
    has(result.out, "vocabulary 258");
    assert_int_equal(run("inspect ."), 5);
    has(result.err, "no model's folder");
}

/* The same run from JSONL, from what is cached of it, and from its token file; and the plan before it leaves the cache. */
static void the_same_training(void **state)
{
    (void)state;
    static const char flags[] =
        "--model tiny --seq-len 64 --global-batch-size 2 --max-steps 3 --threads 1 -q -o runs";
    char command[1024], first[32], again[32];
    assert_int_equal(run("plan --model tiny --seq-len 64 --global-batch-size 2 -o runs --data chat.jsonl"),
                     0);
    assert_int_equal(process_run(&result, "ls %s/runs/.cache", root), 0);
    assert_int_equal(count_lines(result.out), 1);
    snprintf(command, sizeof command, "%s --data chat.jsonl", flags);
    assert_int_equal(run(command), 0);
    last_hash(first);
    assert_int_equal(run("tokenize --model tiny --data chat.jsonl -o tiny.bin"), 0);
    snprintf(command, sizeof command, "%s --data tiny.bin", flags);
    assert_int_equal(run(command), 0);
    last_hash(again);
    assert_string_equal(first, again);
    assert_int_equal(process_run(&result, "ls %s/runs/.cache", root), 0);
    assert_int_equal(count_lines(result.out), 1);
    snprintf(command, sizeof command, "%s --data chat.jsonl --train-on all", flags);
    assert_int_equal(run(command), 0);
    last_hash(again);
    assert_string_not_equal(first, again);
}

static void evaluation_data(void **state)
{
    (void)state;
    assert_int_equal(run("plan --model tiny --seq-len 64 -o runs --data chat.jsonl --val-split 0.5"), 0);
    assert_int_equal(run("plan --model tiny --seq-len 64 -o runs --data chat.jsonl --eval-data chat.jsonl"),
                     0);
    assert_int_equal(run("plan --model tiny --seq-len 64 -o runs --data chat.jsonl --eval-data none.jsonl"),
                     4);
    assert_int_equal(
        run("plan --model tiny -o runs --data chat.jsonl --eval-data chat.jsonl --val-split 0.5"), 2);
}

/* ---- texts from models ---- */

/* One JSON object a line, and nothing else. Returns the last. */
static json_t *last_object(void)
{
    json_t *object = NULL;
    for (char *line = result.out, *end; *line != '\0'; line = end + 1) {
        json_error_t error;
        end = strchr(line, '\n');
        assert_non_null(end);
        *end = '\0';
        json_decref(object);
        object = json_loads(line, 0, &error);
        if (!json_is_object(object))
            fail_msg("'%s': %s", line, error.text);
    }
    return object;
}

/* A model of bytes whose random weights make bytes that are no UTF-8. */
static void make_model(const char *flags)
{
    char command[1024];
    snprintf(
        command, sizeof command,
        "--model tiny --seq-len 64 --global-batch-size 2 --max-steps 2 --save-steps 0 --threads 1 -q -o runs "
        "--data chat.jsonl %s",
        flags);
    if (run(command) != 0)
        fail_msg("%s: %s", command, result.err);
}

static void samples_are_utf8_whatever_the_model_says(void **state)
{
    (void)state;
    make_model(
        "--run-name samples --sample-prompt He --sample-steps 1 --max-tokens 60 --temperature 5 --json");
    json_t *object = NULL;
    for (char *line = result.out, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        object = json_loadb(line, (size_t)(end - line), 0, NULL);
        if (!json_is_object(object))
            fail_msg("no object: %.200s", line);
        json_decref(object);
    }
    assert_int_equal(process_run(&result, "cat %s/runs/samples/metrics.jsonl", root), 0);
    assert_int_equal(count_lines(result.out), 4);
    has(result.out, "\xEF\xBF\xBD");
    assert_int_equal(run("generate --model runs/samples/latest --prompt He --max-tokens 5 --json"), 0);
    object = last_object();
    assert_int_equal(json_integer_value(json_object_get(object, "prompt_tokens")), 2);
    assert_int_equal(json_integer_value(json_object_get(object, "tokens")), 5);
    json_decref(object);
}

static void a_text_ends_where_the_positions_end(void **state)
{
    (void)state;
    make_model("--run-name ends");
    process_run(
        &result,
        "sed -i s/max_position_embeddings.*/max_position_embeddings\\\":16,/ %s/runs/ends/latest/config.json",
        root);
    assert_int_equal(run("generate --model runs/ends/latest --prompt 1234567890 --max-tokens 60 --json"), 0);
    has(result.err, "6 tokens at most");
    json_t *object = last_object();
    assert_int_equal(json_integer_value(json_object_get(object, "tokens")), 6);
    json_decref(object);
    assert_int_equal(run("generate --model runs/ends/latest --prompt 1234567890123456"), 2);
    has(result.err, "--prompt: 16 tokens");
}

static void every_command_with_json_speaks_nothing_else(void **state)
{
    (void)state;
    static const char *const commands[] = {
        "tune --model tiny --seq-len 16 --global-batch-size 1 --threads 1 --json",
        "plan --model tiny --json",
        "eval --model tiny --seq-len 64 --data chat.jsonl -o runs --json",
        "inspect chat.jsonl --model model --json",
        "inspect model --json",
        "tokenize --model model --data chat.jsonl -o json.bin --json",
    };
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        assert_int_equal(run(commands[i]), 0);
        json_decref(last_object());
    }
}

static void what_yaml_cannot_hold_is_refused_before_a_folder_is_made(void **state)
{
    (void)state;
    assert_int_equal(run("--model tiny --seq-len 8 --global-batch-size 2 --max-steps 1 -o new\xff"), 2);
    has(result.err, "--output-dir: 'new?' is not UTF-8");
    assert_int_equal(access("new\xff", F_OK), -1);
}

static void a_run_is_named_after_the_models_folder(void **state)
{
    (void)state;
    static const char *const models[] = {"runs/named/latest/", "./runs/named/checkpoint-2"};
    make_model("--run-name named");
    for (int i = 0; i < 2; i++) {
        char command[512];
        snprintf(command, sizeof command,
                 "--model %s --seq-len 8 --global-batch-size 2 --max-steps 1 -q -o named%d", models[i], i);
        assert_int_equal(run(command), 0);
        assert_int_equal(process_run(&result, "ls %s/named%d", root, i), 0);
        assert_memory_equal(result.out, "checkpoint-2-", strlen("checkpoint-2-"));
    }
}

static void a_report_of_a_run_without_steps(void **state)
{
    (void)state;
    tree_write(root, "/empty/metrics.jsonl", "");
    assert_int_equal(run("report empty"), 0);
    assert_int_equal(process_run(&result, "cat %s/empty/report.html", root), 0);
    has(result.out, "no step has been made");
    assert_null(strstr(result.out, "nan"));
}

/* Before the first step, not after the last. */
static void a_prompt_that_leaves_no_room_is_refused(void **state)
{
    (void)state;
    static const char flags[] =
        "--model tiny --seq-len 8 --global-batch-size 2 --max-steps 2 -q -o runs --run-name ";
    char command[1024];
    snprintf(command, sizeof command, "%sroom --sample-prompt 12345678", flags);
    assert_int_equal(run(command), 2);
    has(result.err, "--sample-prompt: 8 tokens");
    assert_int_equal(access("runs/room", F_OK), -1);
}

/* Case 40 and its like, as a user sees them. */
static void what_is_refused(void **state)
{
    (void)state;
    static const struct {
        int code;
        const char *arguments, *word;
    } cases[] = {
        {4, "--model tiny -o runs --data bad.jsonl", "bad.jsonl:3: "},
        {4, "tokenize --model model --data bad.jsonl -o x.bin", "bad.jsonl:3: "},
        {4, "--model tiny -o runs --data chat.jsonl --seq-len 20", "all 2 documents are dropped"},
        {4, "--model tiny -o runs --data chat.jsonl --data-format alpaca", "chat.jsonl:1: "},
        {2, "--model tiny -o runs --data chat.jsonl --template lama", "--template"},
        {2, "--model tiny -o runs --data chat.jsonl --long keep", "--long"},
        {2, "tokenize --data chat.jsonl -o x.bin", "--model"},
        {2, "tokenize --model model -o x.bin", "--data"},
        {2, "tokenize --model model --data chat.jsonl", "-o"},
        {2, "inspect chat.jsonl", "--model"},
        {2, "inspect", "one file or folder"},
        {5, "tokenize --model . --data chat.jsonl -o x.bin", "tokenizer.json"},
        {6, "tokenize --model model --data chat.jsonl -o no/such/x.bin", "no/such"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int code = run(cases[i].arguments);
        if (code != cases[i].code || strstr(result.err, cases[i].word) == NULL)
            fail_msg("%s: code %d, '%s'", cases[i].arguments, code, result.err);
    }
    assert_int_equal(process_run(&result, "ls %s", root), 0);
    assert_null(strstr(result.out, "x.bin"));
}

/* ---- the loss of a step ---- */

enum { ROWS = 10 };

/* Rows of text, `first` to `last`, each of other words and another length. */
static void write_rows(const char *name, int first, int last)
{
    char text[4096] = "", path[64];
    for (int row = first; row <= last; row++) {
        size_t at = strlen(text);
        at += (size_t)snprintf(text + at, sizeof text - at, "{\"text\":\"");
        for (int i = 0; i < 4 + row * 7 % 23; i++)
            at += (size_t)snprintf(text + at, sizeof text - at, "%d", (row * 37 + i * i) % 89 % 10);
        snprintf(text + at, sizeof text - at, "\"}\n");
    }
    snprintf(path, sizeof path, "/%s", name);
    tree_write(root, path, text);
}

typedef struct measured {
    double loss;
    json_int_t trained; /* tokens, of this step */
} measured;

/* A run that changes nothing: its steps' losses. Returns their number. */
static int measure(const char *flags, measured out[ROWS])
{
    static int number;
    char path[64], line[4096];
    int steps = 0;
    json_int_t before = 0;
    if (process_run(
            &result,
            "%s --model tiny --precision fp32 --lr 0 --shuffle off --packing off --seq-len 64 -q -o runs "
            "--run-name m%d %s",
            OT_COMMAND, ++number, flags) != 0)
        fail_msg("%s: %d: %s", flags, result.code, result.err);
    snprintf(path, sizeof path, "runs/m%d/metrics.jsonl", number);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file) != NULL) {
        json_t *row = json_loads(line, 0, NULL);
        assert_true(row != NULL && steps < ROWS);
        json_int_t trained = json_integer_value(json_object_get(row, "trained_tokens"));
        out[steps++] = (measured){json_real_value(json_object_get(row, "loss")), trained - before};
        before = trained;
        json_decref(row);
    }
    fclose(file);
    return steps;
}

static void expect_same_loss(const char *flags, measured found, measured expected)
{
    if (found.trained != expected.trained || fabs(found.loss / expected.loss - 1) > 1e-6)
        fail_msg("%s: %.9g of %lld tokens instead of %.9g of %lld", flags, found.loss,
                 (long long)found.trained, expected.loss, (long long)expected.trained);
}

/* Case 27: micro-batches, padding, packing and order change the loss of the same rows by rounding alone. */
static void the_loss_is_the_tokens_own(void **state)
{
    (void)state;
    static const char *const flags[] = {
        "--batch-size 1",
        "--grad-accum 5",
        "--seq-len 150",
        "--packing on --batch-size 2",
        "--packing on --batch-size 1 --seq-len 150",
        "--shuffle on --batch-size 5",
        "--shuffle on --packing on --seed 42 --batch-size 10",
    };
    measured whole[ROWS], found[ROWS];
    write_rows("rows.jsonl", 1, ROWS);
    assert_int_equal(measure("--data rows.jsonl --max-steps 1 --global-batch-size 10 --batch-size 10", whole),
                     1);
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        char line[256];
        snprintf(line, sizeof line, "--data rows.jsonl --max-steps 1 --global-batch-size 10 %s", flags[i]);
        assert_int_equal(measure(line, found), 1);
        expect_same_loss(flags[i], found[0], whole[0]);
    }
}

/* Case 28: ten samples with accumulation 4 are three steps; the third has the loss of its two samples. Case 41: fewer samples
 * than a batch train, and so does one. */
static void the_last_window_is_right(void **state)
{
    (void)state;
    measured steps[ROWS], all[ROWS], last[ROWS];
    const char *four = "--global-batch-size 4 --grad-accum 4 --data";
    char line[256];
    write_rows("rows.jsonl", 1, ROWS);
    write_rows("last.jsonl", ROWS - 1, ROWS);
    write_rows("one.jsonl", 1, 1);
    snprintf(line, sizeof line, "%s rows.jsonl", four);
    assert_int_equal(measure(line, steps), 3);
    assert_int_equal(measure("--global-batch-size 10 --data rows.jsonl", all), 1);
    snprintf(line, sizeof line, "%s last.jsonl", four);
    assert_int_equal(measure(line, last), 1);
    expect_same_loss("the third step", steps[2], last[0]);
    measured sum = {0};
    for (int i = 0; i < 3; i++) {
        sum.loss += steps[i].loss * (double)steps[i].trained;
        sum.trained += steps[i].trained;
    }
    sum.loss /= (double)sum.trained;
    expect_same_loss("three steps", sum, all[0]);
    snprintf(line, sizeof line, "%s one.jsonl", four);
    assert_int_equal(measure(line, last), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokenize_and_inspect),
        cmocka_unit_test(inspect_a_model),
        cmocka_unit_test(the_same_training),
        cmocka_unit_test(evaluation_data),
        cmocka_unit_test(what_is_refused),
        cmocka_unit_test(the_loss_is_the_tokens_own),
        cmocka_unit_test(the_last_window_is_right),
        cmocka_unit_test(samples_are_utf8_whatever_the_model_says),
        cmocka_unit_test(a_text_ends_where_the_positions_end),
        cmocka_unit_test(every_command_with_json_speaks_nothing_else),
        cmocka_unit_test(what_yaml_cannot_hold_is_refused_before_a_folder_is_made),
        cmocka_unit_test(a_run_is_named_after_the_models_folder),
        cmocka_unit_test(a_report_of_a_run_without_steps),
        cmocka_unit_test(a_prompt_that_leaves_no_room_is_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
