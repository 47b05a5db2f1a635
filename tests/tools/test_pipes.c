/* Where a file is expected, a pipe that nobody writes to, a folder, or nothing: every command ends, at once and with a reason, and
 * never by a signal. The files are those of a run, of a checkpoint, of an exported model and of a tokenizer, each in turn. */
#include <fts.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/process.h"
#include "tests/support/test.h"
#include "tests/support/tree.h"

enum { FILES = 64, TIMED_OUT = 124 };

typedef struct fixture {
    char *root;
    char files[FILES][PATH_MAX];
    size_t count;
    outcome o;
} fixture;

static void run(fixture *f, const char *what)
{
    process_run(&f->o, "env -C %s timeout 60 " OT_COMMAND " %s", f->root, what);
}

static void must_run(fixture *f, const char *what)
{
    run(f, what);
    if (f->o.code != 0)
        fail_msg("%s: exit code %d: %s", what, f->o.code, f->o.err);
}

/* Regular files below the root's `folder`. */
static void list_files(fixture *f, const char *folder)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", f->root, folder);
    FTS *tree = fts_open((char *[]){path, NULL}, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
    assert_non_null(tree);
    for (FTSENT *entry; (entry = fts_read(tree)) != NULL;)
        if (entry->fts_info == FTS_F) {
            assert_true(f->count < FILES);
            snprintf(f->files[f->count++], PATH_MAX, "%s", entry->fts_path);
        }
    fts_close(tree);
}

/* Takes from the list what has `part` in its path. Returns how many are left. */
static size_t leave_out(fixture *f, const char *part)
{
    size_t left = 0;
    for (size_t i = 0; i < f->count; i++)
        if (strstr(f->files[i], part) == NULL)
            memmove(f->files[left++], f->files[i], PATH_MAX);
    return left;
}

#define TINY                                                                                                 \
    "--model tiny --seq-len 128 --global-batch-size 2 --data data.jsonl --quiet --threads 1 --save-steps 1"

static int set_up(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    f->root = tree_open();
    tree_write(f->root, "/data.jsonl",
               "{\"messages\":[{\"role\":\"user\",\"content\":\"2+3?\"},"
               "{\"role\":\"assistant\",\"content\":\"5, and nothing else will do\"}]}\n");
    must_run(f, TINY " --run-name r --max-steps 1");
    must_run(f, "export runs/r -o hf");
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    tree_close(f->root);
    free(f);
    return 0;
}

/* Commands with each of the files replaced. `must_fail` where no command can do without any of them. */
static void replace_each(fixture *f, const char *const commands[], int must_fail)
{
    enum { PIPE, FOLDER, NOTHING, KINDS };
    for (size_t i = 0; i < f->count; i++)
        for (int kind = 0; kind < KINDS; kind++) {
            char aside[PATH_MAX + 8];
            snprintf(aside, sizeof aside, "%s/aside", f->root);
            assert_int_equal(rename(f->files[i], aside), 0);
            if (kind != NOTHING)
                assert_int_equal(kind == PIPE ? mkfifo(f->files[i], 0600) : mkdir(f->files[i], 0700), 0);
            for (size_t c = 0; commands[c] != NULL; c++) {
                run(f, commands[c]);
                if (f->o.code < 0 || f->o.code >= TIMED_OUT || f->o.code == 1)
                    fail_msg("%s without %s: exit code %d: %s", commands[c], f->files[i], f->o.code,
                             f->o.err);
                if (must_fail && f->o.code == 0)
                    fail_msg("%s without %s went on", commands[c], f->files[i]);
                if (f->o.code != 0 && strstr(f->o.err, "offtrain: ") == NULL)
                    fail_msg("%s without %s gives no reason: %s", commands[c], f->files[i], f->o.err);
            }
            if (kind != NOTHING)
                assert_int_equal(kind == PIPE ? unlink(f->files[i]) : rmdir(f->files[i]), 0);
            assert_int_equal(rename(aside, f->files[i]), 0);
        }
}

static void a_checkpoint(void **state)
{
    fixture *f = *state;
    static const char *const commands[] = {TINY " --run-name r --max-steps 1 --resume runs/r/checkpoint-1",
                                           NULL};
    list_files(f, "runs/r/checkpoint-1");
    assert_true(f->count >= 6);
    replace_each(f, commands, 1);
}

/* A run goes on where its files are none: those that it writes are refused or replaced. */
static void a_resumed_run(void **state)
{
    static const char *const commands[] = {TINY " --run-name r --max-steps 1 --resume", NULL};
    fixture *f = *state;
    must_run(f, "report runs/r");
    list_files(f, "runs/r");
    f->count = leave_out(f, "/checkpoint-1/");
    assert_true(f->count >= 5);
    replace_each(f, commands, 0);
}

static void a_run(void **state)
{
    fixture *f = *state;
    static const char *const commands[] = {"report runs/r", "inspect runs/r/checkpoint-1",
                                           "eval --model runs/r/latest --data data.jsonl --seq-len 128",
                                           "export runs/r --to gguf -o x.gguf", NULL};
    must_run(f, "report runs/r");
    list_files(f, "runs/r");
    replace_each(f, commands, 0);
}

static void a_model(void **state)
{
    fixture *f = *state;
    static const char *const commands[] = {"eval --model hf --data data.jsonl --seq-len 128",
                                           "generate --model hf --prompt a --max-tokens 1",
                                           "export hf --to gguf -o x.gguf", NULL};
    list_files(f, "hf");
    assert_int_equal(f->count, 2);
    replace_each(f, commands, 1);
}

static void a_tokenizer(void **state)
{
    fixture *f = *state;
    static const char *const commands[] = {"inspect data.jsonl --model tok",
                                           "tokenize --model tok --data data.jsonl -o x.bin", NULL};
    process_run(&f->o, "cp -r " OT_GOLDEN_FOLDER "/tokenizers/gpt2 %s/tok", f->root);
    assert_int_equal(f->o.code, 0);
    tree_write(f->root, "/tok/tokenizer_config.json", "{}");
    tree_write(f->root, "/tok/special_tokens_map.json", "{}");
    must_run(f, commands[0]);
    list_files(f, "tok");
    replace_each(f, commands, 0);
}

/* Pipes as data, as a process substitution gives one, and as a configuration, which may be one. */
static void on_the_command_line(void **state)
{
    fixture *f = *state;
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/pipe", f->root);
    assert_int_equal(mkfifo(path, 0600), 0);
    static const char *const commands[] = {TINY " --data pipe",
                                           TINY " --eval-data pipe",
                                           "inspect pipe --model tiny",
                                           "tokenize --model tiny --data pipe -o x.bin",
                                           "eval --model hf --data pipe",
                                           "--model pipe",
                                           TINY " --run-name t --max-steps 1 --trace pipe",
                                           "export pipe -o x",
                                           "report pipe",
                                           NULL};
    for (size_t i = 0; commands[i] != NULL; i++) {
        run(f, commands[i]);
        if (f->o.code < 2 || f->o.code >= TIMED_OUT || strstr(f->o.err, "pipe") == NULL)
            fail_msg("%s: exit code %d: %s", commands[i], f->o.code, f->o.err);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_checkpoint, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_resumed_run, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_run, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_model, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_tokenizer, set_up, tear_down),
        cmocka_unit_test_setup_teardown(on_the_command_line, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
