/* `offtrain export`: what went in comes out, byte for byte; what is read back from a GGUF file by a reader of the test's own;
 * and what must not be overwritten. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/hf_config.h"
#include "engine/modelfile.h"
#include "tests/support/process.h"
#include "tests/support/test.h"
#include "tests/support/tokenizer.h"
#include "tests/support/tree.h"
#include "tools/command.h"

static char *root;
static outcome result;

static int open_root(void **state)
{
    (void)state;
    root = tree_open();
    return 0;
}

static int close_root(void **state)
{
    (void)state;
    tree_close(root);
    return 0;
}

static char *contents(const char *name, size_t *bytes)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", root, name);
    return tree_read(path, bytes);
}

static void expect_same_file(const char *a, const char *b)
{
    char paths[2][PATH_MAX];
    snprintf(paths[0], PATH_MAX, "%s/%s", root, a);
    snprintf(paths[1], PATH_MAX, "%s/%s", root, b);
    tree_expect_same(paths[0], paths[1]);
}

static int exists(const char *name)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", root, name);
    return access(path, F_OK) == 0;
}

/* ---- Models ---- */

static ot_model_config config_of(const char *architecture)
{
    ot_model_config c;
    assert_int_equal(ot_model_preset(strncmp(architecture, "GPT2", 4) == 0 ? "124m" : "tiny", &c), OT_OK);
    snprintf(c.architecture, sizeof c.architecture, "%s", architecture);
    c.C = 64;
    c.L = 2;
    c.NH = 4;
    c.NKV = c.family == OT_FAMILY_GPT2 ? 4 : 2;
    c.HD = 16;
    c.F = 88;
    c.V = 259;
    c.positions = 64;
    c.qkv_bias = strcmp(architecture, "Qwen2ForCausalLM") == 0;
    c.bos = c.eos = -1;
    return c;
}

/* ROOT/NAME: config.json, random weights of `dtype`, and a file that goes along. */
static void make_model(const char *name, const ot_model_config *c, ot_dtype dtype)
{
    char folder[PATH_MAX], path[PATH_MAX + 16];
    ot_hf_config *config;
    ot_model *model;
    ot_model_writer *writer;
    snprintf(folder, sizeof folder, "%s/%s", root, name);
    snprintf(path, sizeof path, "%s/config.json", folder);
    assert_int_equal(mkdir(folder, 0700), 0);
    assert_int_equal(ot_hf_config_make(c, &config), OT_OK);
    assert_int_equal(ot_hf_config_write(config, dtype, path), OT_OK);
    assert_int_equal(ot_model_open(c, &model), OT_OK);
    const ot_model_writer_options options = {
        .model = model, .directory = folder, .stem = "model", .dtype = dtype};
    assert_int_equal(ot_model_writer_open(&options, &writer), OT_OK);
    ot_sink sink = ot_model_writer_values(writer);
    for (size_t l = 0; l < model->layer_count; l++) {
        uint64_t n = model->layers[l].params;
        float *values = malloc(n * sizeof *values);
        assert_non_null(values);
        ot_model_random(model, l, 0, n, 5, values);
        const ot_chunk_values chunk = {.layer = l, .count = n, .master = values};
        assert_int_equal(sink.take(sink.context, &chunk), OT_OK);
        free(values);
    }
    assert_int_equal(ot_model_writer_finish(writer), OT_OK);
    ot_model_writer_close(writer);
    ot_model_close(model);
    ot_hf_config_close(config);
    snprintf(path, sizeof path, "/%s/generation_config.json", name);
    tree_write(root, path, "{ \"eos_token_id\": [1,2] }");
}

static void must_run(const char *command)
{
    if (process_run(&result, "env -C %s %s %s", root, OT_COMMAND, command) != 0)
        fail_msg("%s: %d: %s%s", command, result.code, result.out, result.err);
}

static void refused(int code, const char *says, const char *command)
{
    assert_int_equal(process_run(&result, "env -C %s %s %s", root, OT_COMMAND, command), code);
    if (strstr(result.err, says) == NULL)
        fail_msg("%s: '%s' does not say '%s'", command, result.err, says);
}

/* ---- Hugging Face directories ---- */

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

/* ---- GGUF ---- */

typedef struct gguf_tensor {
    char name[64];
    uint32_t dimensions, type;
    uint64_t extent[2], offset;
} gguf_tensor;

/* A file and a place in it. */
typedef struct gguf {
    unsigned char *data;
    size_t bytes, at;
    uint64_t tensor_count, key_count;
    gguf_tensor tensors[64];
    size_t metadata_end; /* metadata are from 24 to here */
    size_t base;         /* of the tensors' bytes */
} gguf;

static uint64_t number(gguf *g, int bytes)
{
    uint64_t value = 0;
    assert_true(g->at + (size_t)bytes <= g->bytes);
    for (int i = 0; i < bytes; i++)
        value |= (uint64_t)g->data[g->at + (size_t)i] << (8 * i);
    g->at += (size_t)bytes;
    return value;
}

static const char *text(gguf *g, uint64_t *bytes)
{
    *bytes = number(g, 8);
    assert_true(*bytes <= g->bytes - g->at);
    g->at += *bytes;
    return (const char *)g->data + g->at - *bytes;
}

static void skip_value(gguf *g, uint64_t type)
{
    static const int bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    uint64_t n;
    assert_in_range(type, 0, 12);
    if (type == 8) {
        text(g, &n);
    } else if (type == 9) {
        uint64_t of = number(g, 4);
        for (n = number(g, 8); n > 0; n--)
            skip_value(g, of);
    } else {
        number(g, bytes[type]);
    }
}

static void gguf_open(gguf *g, const char *name)
{
    *g = (gguf){.at = 0};
    g->data = (unsigned char *)contents(name, &g->bytes);
    assert_memory_equal(g->data, "GGUF\3\0\0\0", 8);
    g->at = 8;
    g->tensor_count = number(g, 8);
    g->key_count = number(g, 8);
    for (uint64_t i = 0, n; i < g->key_count; i++) {
        text(g, &n);
        skip_value(g, number(g, 4));
    }
    g->metadata_end = g->at;
    assert_in_range(g->tensor_count, 1, 64);
    for (uint64_t i = 0, n; i < g->tensor_count; i++) {
        gguf_tensor *t = &g->tensors[i];
        const char *found = text(g, &n);
        snprintf(t->name, sizeof t->name, "%.*s", (int)n, found);
        t->dimensions = (uint32_t)number(g, 4);
        assert_in_range(t->dimensions, 1, 2);
        for (uint32_t d = 0; d < t->dimensions; d++)
            t->extent[d] = number(g, 8);
        t->type = (uint32_t)number(g, 4);
        t->offset = number(g, 8);
        assert_int_equal(t->offset % 32, 0);
    }
    g->base = (g->at + 31) / 32 * 32;
}

/* The place of a key's value, behind its type, which must be `type`. */
static void find_key(gguf *g, const char *key, uint64_t type)
{
    g->at = 24;
    for (uint64_t i = 0, n; i < g->key_count; i++) {
        const char *found = text(g, &n);
        uint64_t is = number(g, 4);
        if (n == strlen(key) && memcmp(found, key, n) == 0) {
            assert_int_equal(is, type);
            return;
        }
        skip_value(g, is);
    }
    fail_msg("no key %s", key);
}

static uint64_t key_number(gguf *g, const char *key)
{
    find_key(g, key, 4);
    return number(g, 4);
}

static float as_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static float key_float(gguf *g, const char *key)
{
    find_key(g, key, 6);
    return as_float((uint32_t)number(g, 4));
}

static void expect_text(gguf *g, const char *key, const char *expected)
{
    uint64_t n;
    find_key(g, key, 8);
    const char *found = text(g, &n);
    assert_int_equal(n, strlen(expected));
    assert_memory_equal(found, expected, n);
}

/* An array of texts, against those given up to NULL. */
static void expect_texts(gguf *g, const char *key, const char *const expected[])
{
    find_key(g, key, 9);
    assert_int_equal(number(g, 4), 8);
    uint64_t count = number(g, 8), n;
    for (uint64_t i = 0; i < count && expected[i] != NULL; i++) {
        const char *found = text(g, &n);
        assert_int_equal(n, strlen(expected[i]));
        assert_memory_equal(found, expected[i], n);
    }
}

static const gguf_tensor *tensor_of(const gguf *g, const char *name)
{
    for (uint64_t i = 0; i < g->tensor_count; i++)
        if (strcmp(g->tensors[i].name, name) == 0)
            return &g->tensors[i];
    fail_msg("no tensor %s", name);
    return NULL;
}

/* A tensor of ROOT/FOLDER, all bytes. */
static void *original(const char *folder, const char *name)
{
    char path[PATH_MAX];
    ot_tensor_set *set;
    snprintf(path, sizeof path, "%s/%s", root, folder);
    assert_int_equal(ot_tensor_set_open(path, "model", &set), OT_OK);
    const ot_file_tensor *tensor = ot_tensor_set_find(set, name);
    if (tensor == NULL)
        fail_msg("no tensor %s", name);
    void *data = malloc(tensor->bytes);
    assert_int_equal(ot_tensor_set_read(set, tensor, 0, data, tensor->bytes), OT_OK);
    ot_tensor_set_close(set);
    return data;
}

static void expect_tensor(const gguf *g, const char *name, const char *folder, const char *from, int permuted)
{
    const gguf_tensor *t = tensor_of(g, name);
    size_t rows = t->dimensions == 2 ? t->extent[1] : 1, row = t->extent[0] * 2;
    char *data = original(folder, from);
    assert_int_equal(t->type, 30); /* bf16 */
    for (size_t r = 0; r < rows; r++) {
        /* Of a head's 16 rows, the first of each pair that RoPE turns are 0..7, the second ones 8..15. */
        size_t in = r % 16, source = permuted ? r - in + (in % 2 == 0 ? in / 2 : 8 + in / 2) : r;
        assert_memory_equal(g->data + g->base + t->offset + r * row, data + source * row, row);
    }
    free(data);
}

static void a_gguf_file_holds_the_model(void **state)
{
    (void)state;
    gguf g;
    ot_model_config c = config_of("LlamaForCausalLM");
    c.tied = 0;
    c.rope = (ot_rope_scaling){OT_ROPE_LLAMA3, 500000, 8, 1, 4, 64};
    make_model("m", &c, OT_BF16);
    must_run("export m --to gguf -o m.gguf");
    gguf_open(&g, "m.gguf");
    expect_text(&g, "general.architecture", "llama");
    expect_text(&g, "tokenizer.ggml.model", "none");
    assert_int_equal(key_number(&g, "general.file_type"), 32);
    assert_int_equal(key_number(&g, "llama.block_count"), 2);
    assert_int_equal(key_number(&g, "llama.context_length"), 64);
    assert_int_equal(key_number(&g, "llama.embedding_length"), 64);
    assert_int_equal(key_number(&g, "llama.feed_forward_length"), 88);
    assert_int_equal(key_number(&g, "llama.attention.head_count"), 4);
    assert_int_equal(key_number(&g, "llama.attention.head_count_kv"), 2);
    assert_int_equal(key_number(&g, "llama.rope.dimension_count"), 16);
    assert_int_equal(key_number(&g, "llama.vocab_size"), 259);
    assert_true(key_float(&g, "llama.rope.freq_base") == 500000.0f);
    assert_true(key_float(&g, "llama.attention.layer_norm_rms_epsilon") == 1e-5f);
    assert_int_equal(g.tensor_count, 1 + 1 + 2 * 9 + 2);
    expect_tensor(&g, "token_embd.weight", "m", "model.embed_tokens.weight", 0);
    expect_tensor(&g, "output.weight", "m", "lm_head.weight", 0);
    expect_tensor(&g, "blk.1.attn_q.weight", "m", "model.layers.1.self_attn.q_proj.weight", 1);
    expect_tensor(&g, "blk.1.attn_k.weight", "m", "model.layers.1.self_attn.k_proj.weight", 1);
    expect_tensor(&g, "blk.0.attn_v.weight", "m", "model.layers.0.self_attn.v_proj.weight", 0);
    expect_tensor(&g, "blk.0.ffn_down.weight", "m", "model.layers.0.mlp.down_proj.weight", 0);
    const gguf_tensor *norm = tensor_of(&g, "blk.0.attn_norm.weight"), *last = &g.tensors[g.tensor_count - 1];
    assert_int_equal(norm->type, 0);
    assert_int_equal(norm->dimensions, 1);
    for (size_t i = 0; i < 64; i++)
        assert_memory_equal(g.data + g.base + norm->offset + 4 * i, &(float){1}, 4);
    assert_string_equal(last->name, "output_norm.weight");
    assert_int_equal(g.base + last->offset + 64 * 4, g.bytes);
    /* By hand: waves of 2 pi 500000^(i/8) tokens; below 16 factor 1, above 64 factor 8, between by the smooth formula. */
    const gguf_tensor *factors = tensor_of(&g, "rope_freqs.weight");
    static const double expected[] = {1, 2.4423, 8, 8, 8, 8, 8, 8};
    for (size_t i = 0; i < 8; i++) {
        float value;
        memcpy(&value, g.data + g.base + factors->offset + 4 * i, sizeof value);
        assert_true((double)value > expected[i] * 0.999 && (double)value < expected[i] * 1.001);
    }
    free(g.data);
}

static void only_llama_and_mistral_are_permuted(void **state)
{
    (void)state;
    gguf g;
    ot_model_config c = config_of("Qwen2ForCausalLM"), m = config_of("MistralForCausalLM");
    c.tied = m.tied = 1;
    make_model("q", &c, OT_BF16);
    must_run("export q --to gguf -o q.gguf");
    gguf_open(&g, "q.gguf");
    expect_text(&g, "general.architecture", "qwen2");
    assert_int_equal(key_number(&g, "qwen2.block_count"), 2);
    assert_int_equal(g.tensor_count, 1 + 2 * 12 + 1); /* three biases; no head */
    expect_tensor(&g, "blk.1.attn_q.weight", "q", "model.layers.1.self_attn.q_proj.weight", 0);
    assert_int_equal(tensor_of(&g, "blk.1.attn_k.bias")->type, 0);
    free(g.data);
    make_model("m", &m, OT_BF16);
    must_run("export m --to gguf -o m.gguf");
    gguf_open(&g, "m.gguf");
    expect_text(&g, "general.architecture", "llama");
    expect_tensor(&g, "blk.0.attn_k.weight", "m", "model.layers.0.self_attn.k_proj.weight", 1);
    free(g.data);
}

#define ADDED                                                                                                              \
    "\"added_tokens\":[{\"id\":0,\"content\":\"<unk>\",\"special\":true},{\"id\":1,\"content\":\"<s>\",\"special\":true}," \
    "{\"id\":9,\"content\":\"<user>\",\"special\":false}],"

static void a_byte_level_tokenizer_goes_along(void **state)
{
    (void)state;
    gguf g;
    ot_model_config c = config_of("LlamaForCausalLM");
    make_model("m", &c, OT_BF16);
    tree_write(
        root, "/m/tokenizer.json",
        "{" ADDED "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"use_regex\":true},"
        "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\"}}]},"
        "\"model\":{\"type\":\"BPE\",\"vocab\":{\"<unk>\":0,\"<s>\":1,\"a\":2,\"b\":3,\"ab\":4,\"abb\":6},"
        "\"merges\":[\"a b\",[\"ab\",\"b\"]]}}");
    tree_write(
        root, "/m/tokenizer_config.json",
        "{\"bos_token\":{\"content\":\"<s>\"},\"eos_token\":\"b\",\"model_max_length\":1000000000000000000000000000000,"
        "\"chat_template\":[{\"name\":\"tool\",\"template\":\"T\"},{\"name\":\"default\",\"template\":\"{{ x }}\"}]}");
    must_run("export m --to gguf -o m.gguf");
    gguf_open(&g, "m.gguf");
    expect_text(&g, "tokenizer.ggml.model", "gpt2");
    expect_text(&g, "tokenizer.ggml.pre", "gpt-2");
    expect_texts(&g, "tokenizer.ggml.tokens",
                 (const char *const[]){"<unk>", "<s>", "a", "b", "ab", "[PAD5]", "abb", "[PAD7]", "[PAD8]",
                                       "<user>", NULL});
    expect_texts(&g, "tokenizer.ggml.merges", (const char *const[]){"a b", "ab b", NULL});
    find_key(&g, "tokenizer.ggml.token_type", 9);
    assert_int_equal(number(&g, 4), 5);
    assert_int_equal(number(&g, 8), 259);
    static const int types[] = {3, 3, 1, 1, 1, 5, 1, 5, 5, 4, 5};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        assert_int_equal(number(&g, 4), types[i]);
    assert_int_equal(key_number(&g, "tokenizer.ggml.bos_token_id"), 1);
    assert_int_equal(key_number(&g, "tokenizer.ggml.eos_token_id"), 3);
    find_key(&g, "tokenizer.ggml.add_bos_token", 7);
    assert_int_equal(number(&g, 1), 1);
    expect_text(&g, "tokenizer.chat_template", "{{ x }}");
    free(g.data);

    must_run("export m -o again"); /* and to a directory unchanged */
    expect_same_file("m/tokenizer.json", "again/tokenizer.json");
    expect_same_file("m/tokenizer_config.json", "again/tokenizer_config.json");
    tree_write(root, "/m/chat_template.jinja", "the file wins");
    must_run("export m --to gguf -o second.gguf");
    gguf_open(&g, "second.gguf");
    expect_text(&g, "tokenizer.chat_template", "the file wins");
    free(g.data);
    tree_write(
        root, "/m/tokenizer.json",
        "{\"pre_tokenizer\":{\"type\":\"Whitespace\"},\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]}}");
    refused(5, "no name for its pre_tokenizer", "export m --to gguf -o third.gguf");
    tree_write(root, "/m/tokenizer.json",
               "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":259},\"merges\":[]}}");
    refused(5, "'a' has no id below", "export m --to gguf -o third.gguf");
    assert_true(!exists("third.gguf") && !exists("third.gguf.tmp"));
}

/* The merges' order as scores: the first merge that makes a token is the best. */
static void a_tokenizer_with_byte_fallback_gets_scores(void **state)
{
    (void)state;
    gguf g;
    ot_model_config c = config_of("LlamaForCausalLM");
    make_model("m", &c, OT_BF16);
    tree_write(
        root, "/m/tokenizer.json",
        "{" ADDED
        "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"_\"}]},"
        "\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"unk_token\":\"<unk>\",\"vocab\":{\"<unk>\":0,\"<s>\":1,"
        "\"<0x0A>\":2,\"a\":3,\"b\":4,\"ab\":5,\"aba\":6},"
        "\"merges\":[\"a b\",\"ab a\",\"a ba\"]}}");
    must_run("export m --to gguf -o m.gguf");
    gguf_open(&g, "m.gguf");
    expect_text(&g, "tokenizer.ggml.model", "llama");
    find_key(&g, "tokenizer.ggml.scores", 9);
    assert_int_equal(number(&g, 4), 6);
    assert_int_equal(number(&g, 8), 259);
    static const float scores[] = {0, 0, 0, -6, -7, 0, -1, 0}; /* a and b: behind all three merges, by id */
    for (size_t i = 0; i < sizeof scores / sizeof *scores; i++)
        assert_true(as_float((uint32_t)number(&g, 4)) == scores[i]);
    find_key(&g, "tokenizer.ggml.token_type", 9);
    number(&g, 4), number(&g, 8);
    static const int types[] = {2, 3, 6, 1, 1, 1, 1, 5, 5, 4};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        assert_int_equal(number(&g, 4), types[i]);
    find_key(&g, "tokenizer.ggml.add_space_prefix", 7);
    assert_int_equal(number(&g, 1), 1);
    assert_int_equal(key_number(&g, "tokenizer.ggml.unknown_token_id"), 0);
    free(g.data);
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
        cmocka_unit_test_setup_teardown(a_gguf_file_holds_the_model, open_root, close_root),
        cmocka_unit_test_setup_teardown(only_llama_and_mistral_are_permuted, open_root, close_root),
        cmocka_unit_test_setup_teardown(a_byte_level_tokenizer_goes_along, open_root, close_root),
        cmocka_unit_test_setup_teardown(a_tokenizer_with_byte_fallback_gets_scores, open_root, close_root),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
