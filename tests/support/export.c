/* Models in a folder, and the command in it. */
#include "tests/support/export.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/hf_config.h"
#include "engine/modelfile.h"
#include "tests/support/test.h"
#include "tests/support/tree.h"

char *contents(const char *name, size_t *bytes)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", root, name);
    return tree_read(path, bytes);
}

void expect_same_file(const char *a, const char *b)
{
    char paths[2][PATH_MAX];
    snprintf(paths[0], PATH_MAX, "%s/%s", root, a);
    snprintf(paths[1], PATH_MAX, "%s/%s", root, b);
    tree_expect_same(paths[0], paths[1]);
}

int exists(const char *name)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", root, name);
    return access(path, F_OK) == 0;
}

ot_model_config config_of(const char *architecture)
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

void make_model(const char *name, const ot_model_config *c, ot_dtype dtype)
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

void must_run(const char *command)
{
    if (process_run(&result, "env -C %s %s %s", root, OT_COMMAND, command) != 0)
        fail_msg("%s: %d: %s%s", command, result.code, result.out, result.err);
}

void refused(int code, const char *says, const char *command)
{
    assert_int_equal(process_run(&result, "env -C %s %s %s", root, OT_COMMAND, command), code);
    if (strstr(result.err, says) == NULL)
        fail_msg("%s: '%s' does not say '%s'", command, result.err, says);
}
