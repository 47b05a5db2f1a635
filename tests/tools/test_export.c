/* `offtrain export` to a Hugging Face directory: what went in comes out, byte for byte; and what must not be overwritten. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/export.h"
#include "tests/support/test.h"
#include "tests/support/tokenizer.h"
#include "tests/support/tree.h"
#include "tools/command.h"

/* Case 22: the head is in the file as often as the model has one of its own. */
static void expect_heads(const char *name, size_t heads)
{
    static const char word[] = "lm_head.weight";
    char path[128];
    size_t bytes, found = 0;
    uint64_t header;
    snprintf(path, sizeof path, "%s/model.safetensors", name);
    char *data = contents(path, &bytes);
    memcpy(&header, data, sizeof header);
    assert_true(header < bytes - 8);
    for (const char *at = data + 8;
         (at = memmem(at, (size_t)(data + 8 + header - at), word, strlen(word))) != NULL; at++)
        found++;
    assert_int_equal(found, heads);
    free(data);
}

/* cases.md 26, through training, a checkpoint and the export. */
static void without_a_learning_rate_the_export_is_the_input(void **state)
{
    (void)state;
    static const struct {
        const char *architecture, *precision;
        ot_dtype dtype;
        int tied;
    } cases[] = {
        {"LlamaForCausalLM", "bf16", OT_BF16, 1},
        {"Qwen2ForCausalLM", "fp32", OT_FP32, 0},
        {"MistralForCausalLM", "fp16", OT_FP16, 0},
        {"GPT2LMHeadModel", "bf16", OT_BF16, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char name[64], out[64], line[512], a[128], b[128];
        ot_model_config c = config_of(cases[i].architecture);
        c.tied = cases[i].tied;
        snprintf(name, sizeof name, "in%zu", i);
        snprintf(out, sizeof out, "out%zu", i);
        make_model(name, &c, cases[i].dtype);
        tree_write(root, "/data.txt",
                   "The quick brown fox jumps over the lazy dog, again and again and again.\n"
                   "Pack my box with five dozen liquor jugs, said the other one to it.\n");
        snprintf(
            line, sizeof line,
            "train --model %s --data data.txt --precision %s --lr 0 --max-steps 1 --seq-len 32 --global-batch-size 2 "
            "-o . --run-name run%zu",
            name, cases[i].precision, i);
        must_run(line);
        snprintf(line, sizeof line, "export run%zu -o %s", i, out);
        must_run(line);
        static const char *const files[] = {"model.safetensors", "config.json", "generation_config.json"};
        for (size_t f = 0; f < 3; f++) {
            snprintf(a, sizeof a, "%s/%s", name, files[f]);
            snprintf(b, sizeof b, "%s/%s", out, files[f]);
            expect_same_file(a, b);
        }
        expect_heads(out, !cases[i].tied);
        if (i == 0) { /* fp32 from a checkpoint is its masters, not its weights */
            must_run("export run0/checkpoint-1 -o masters --dtype fp32");
            expect_same_file("masters/model.safetensors", "run0/checkpoint-1/state/master.safetensors");
        }
    }
}

/* Case 30: bf16 has a range that fp16 has not. */
static void fp16_on_bf16_weights_is_warned_of(void **state)
{
    (void)state;
    ot_model_config c = config_of("LlamaForCausalLM");
    make_model("wide", &c, OT_BF16);
    make_model("narrow", &c, OT_FP16);
    tree_write(root, "/data.txt",
               "Some words to train on, and some more of them, so that there is a window.\n");
    static const struct {
        const char *model, *precision;
        int warned;
    } cases[] = {{"wide", "fp16", 1}, {"wide", "bf16", 0}, {"narrow", "fp16", 0}};
    for (size_t i = 0; i < 3; i++) {
        char line[512];
        snprintf(
            line, sizeof line,
            "train --model %s --precision %s --data data.txt --max-steps 1 --seq-len 32 --global-batch-size 1 "
            "-q -o . --run-name range%zu",
            cases[i].model, cases[i].precision, i);
        must_run(line);
        assert_int_equal(strstr(result.err, "wide holds bf16 weights") != NULL, cases[i].warned);
    }
}

/* Case 22: whatever the tokenizer consists of goes along, into the checkpoint and out of it. */
static void tokenizer_files_go_along(void **state)
{
    (void)state;
    static const char *const specials[] = {"<|im_start|>", "<|im_end|>"};
    static const char *const files[] = {"tokenizer.json",          "tokenizer_config.json",
                                        "special_tokens_map.json", "chat_template.jinja",
                                        "generation_config.json",  "added_tokens.json"};
    ot_model_config c = config_of("LlamaForCausalLM");
    char folder[PATH_MAX], a[128], b[128];
    make_model("whole", &c, OT_BF16);
    snprintf(folder, sizeof folder, "%s/whole", root);
    tokenizer_write(folder, specials, 2, NULL, "<|im_end|>", 0, NULL);
    for (size_t i = 2; i < 6; i++) {
        snprintf(a, sizeof a, "/whole/%s", files[i]);
        if (i != 4)
            tree_write(root, a, i == 3 ? "{{ messages }}" : "{\"pad_token\": \"<|im_end|>\"}");
    }
    tree_write(root, "/data.txt",
               "Some words to train on, and some more of them, so that there is a window.\n");
    must_run(
        "train --model whole --data data.txt --max-steps 1 --seq-len 32 --global-batch-size 1 -o . --run-name with");
    must_run("export with -o with_out");
    for (size_t i = 0; i < 6; i++) {
        snprintf(a, sizeof a, "whole/%s", files[i]);
        snprintf(b, sizeof b, "with/checkpoint-1/%s", files[i]);
        expect_same_file(a, b);
        snprintf(b, sizeof b, "with_out/%s", files[i]);
        expect_same_file(a, b);
    }
}

/* ---- a drive that lies ---- */

ssize_t __real_pwrite(int fd, const void *data, size_t bytes, off_t offset);
ssize_t __wrap_pwrite(int fd, const void *data, size_t bytes, off_t offset);

static const char *lie_in; /* part of a path; NULL: the drive is honest */

/* The next write into such a file changes one bit. */
ssize_t __wrap_pwrite(int fd, const void *data, size_t bytes, off_t offset)
{
    char name[64], path[PATH_MAX] = "";
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    if (lie_in == NULL || readlink(name, path, sizeof path - 1) < 0 || strstr(path, lie_in) == NULL)
        return __real_pwrite(fd, data, bytes, offset);
    lie_in = NULL;
    unsigned char *changed = malloc(bytes);
    assert_non_null(changed);
    memcpy(changed, data, bytes);
    changed[bytes - 1] ^= 1;
    ssize_t written = __real_pwrite(fd, changed, bytes, offset);
    free(changed);
    return written;
}

/* Runs the command in this process, where the drive may lie. */
static ot_status run_here(ot_status (*command)(int, char **), const char *line, const char *lie)
{
    char words[1024], *argv[64], *rest = NULL;
    int argc = 0;
    snprintf(words, sizeof words, "%s", line);
    for (char *word = strtok_r(words, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest))
        argv[argc++] = word;
    argv[argc] = NULL;
    assert_int_equal(chdir(root), 0);
    lie_in = lie;
    ot_status status = command(argc, argv);
    if (lie_in != NULL)
        fail_msg("%s: nothing was written into %s: %s", line, lie, ot_error_text());
    assert_int_equal(chdir("/"), 0);
    return status;
}

/* Case 22: after each export and each save what was written is read back. */
static void what_was_written_is_read_back(void **state)
{
    (void)state;
    ot_model_config c = config_of("LlamaForCausalLM");
    make_model("honest", &c, OT_BF16);
    static const char *const files[] = {"lie.tmp/model.safetensors", "lie.tmp/generation_config.json",
                                        "lie.tmp"};
    for (int i = 0; i < 3; i++) {
        const char *line = i < 2 ? "honest -o lie" : "honest --to gguf -o lie";
        assert_int_equal(run_here(ot_command_export, line, files[i]), OT_ERR_IO);
        assert_non_null(strstr(ot_error_text(), i == 1 ? "no copy" : "read back"));
        assert_true(!exists("lie") && !exists("lie.tmp"));
    }
    tree_write(root, "/data.txt",
               "Some words to train on, and some more of them, so that there are windows.\n");
    static const char *const saved[] = {"checkpoint-2.tmp/model.safetensors", "checkpoint-2.tmp/state/master",
                                        "checkpoint-2.tmp/state/moment2"};
    for (int i = 0; i < 3; i++) {
        char line[512], path[64];
        snprintf(line, sizeof line,
                 "--model honest --data data.txt --precision bf16 --max-steps 2 --seq-len 32 "
                 "--global-batch-size 1 --save-steps 1 -q -o . --run-name lied%d",
                 i);
        assert_int_equal(run_here(ot_command_train, line, saved[i]), OT_ERR_IO);
        if (strstr(ot_error_text(), strchr(saved[i], '/')) == NULL)
            fail_msg("'%s' does not name %s", ot_error_text(), saved[i]);
        snprintf(path, sizeof path, "lied%d/checkpoint-1/manifest.json", i);
        assert_true(exists(path));
        for (int t = 0; t < 2; t++) {
            snprintf(path, sizeof path, "lied%d/checkpoint-2%s", i, t == 0 ? "" : ".tmp");
            assert_false(exists(path));
        }
    }
}

static void dtypes_are_converted(void **state)
{
    (void)state;
    ot_model_config c = config_of("LlamaForCausalLM");
    make_model("fp32", &c, OT_FP32);
    make_model("bf16", &c, OT_BF16);
    make_model("fp16", &c, OT_FP16);
    must_run("export fp32 -o a --dtype bf16");
    expect_same_file("a/model.safetensors", "bf16/model.safetensors");
    expect_same_file("a/config.json", "bf16/config.json");
    must_run("export fp32 --to hf -o b/ --dtype fp16");
    expect_same_file("b/model.safetensors", "fp16/model.safetensors");
    assert_non_null(strstr(result.out, "exported params=75264 dtype=fp16 to=b\n"));
    must_run("export fp16 -o c");
    expect_same_file("c/model.safetensors", "fp16/model.safetensors");
}

static void nothing_is_overwritten(void **state)
{
    (void)state;
    ot_model_config c = config_of("LlamaForCausalLM"), gpt2 = config_of("GPT2LMHeadModel");
    make_model("m", &c, OT_BF16);
    make_model("g", &gpt2, OT_BF16);
    tree_write(root, "/full/mine", "x");
    tree_write(root, "/file", "x");
    refused(2, "nothing is overwritten", "export m -o full");
    refused(2, "nothing is overwritten", "export m -o m");
    refused(2, "nothing is overwritten", "export m -o file");
    refused(2, "nothing is overwritten", "export m --to gguf -o file");
    refused(2, "needs --output", "export m");
    refused(2, "needs one RUN", "export -o x");
    refused(2, "models of the Llama family", "export g --to gguf -o x");
    refused(5, "neither a config.json nor a checkpoint", "export full -o x");
    refused(6, "cannot make none/there.tmp", "export m -o none/there");
    assert_int_equal(process_run(&result, "truncate -s 0 %s/m/model.safetensors", root), 0);
    refused(5, "m/model.safetensors is truncated", "export m -o x");
    assert_true(!exists("x") && !exists("x.tmp") && exists("full/mine"));
    assert_int_equal(process_run(&result, "mkdir %s/empty", root), 0);
    must_run("export g -o empty");
    expect_same_file("g/model.safetensors", "empty/model.safetensors");
}

static void a_damaged_checkpoint_is_not_exported(void **state)
{
    (void)state;
    ot_model_config c = config_of("LlamaForCausalLM");
    make_model("m", &c, OT_BF16);
    tree_write(root, "/data.txt",
               "Some words to train on, and some more of them, so that there is a window.\n");
    must_run(
        "train --model m --data data.txt --precision bf16 --max-steps 1 --seq-len 32 --global-batch-size 1 -o . "
        "--run-name run");
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/run/checkpoint-1/model.safetensors", root);
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, 9000, SEEK_SET), 0);
    int byte = fgetc(file);
    assert_int_equal(fseek(file, 9000, SEEK_SET), 0);
    assert_int_equal(fputc(byte ^ 1, file), byte ^ 1);
    assert_int_equal(fclose(file), 0);
    refused(5, "model.safetensors", "export run/checkpoint-1 -o x");
    refused(5, "model.safetensors", "export run -o x");
    assert_true(!exists("x") && !exists("x.tmp"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(without_a_learning_rate_the_export_is_the_input, open_root,
                                        close_root),
        cmocka_unit_test_setup_teardown(fp16_on_bf16_weights_is_warned_of, open_root, close_root),
        cmocka_unit_test_setup_teardown(tokenizer_files_go_along, open_root, close_root),
        cmocka_unit_test_setup_teardown(what_was_written_is_read_back, open_root, close_root),
        cmocka_unit_test_setup_teardown(dtypes_are_converted, open_root, close_root),
        cmocka_unit_test_setup_teardown(nothing_is_overwritten, open_root, close_root),
        cmocka_unit_test_setup_teardown(a_damaged_checkpoint_is_not_exported, open_root, close_root),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
