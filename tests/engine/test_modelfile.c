/* Models written and read: every family, dtype and chunk size; what files hold, looked at without the source; and every way
 * in which a file and a model can disagree. */
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/modelfile.h"
#include "kernels/random.h"
#include "tests/support/test.h"
#include "tests/support/tiny.h"
#include "tests/support/tree.h"

/* ---- Models ---- */

enum { LLAMA, LLAMA_TIED, MISTRAL, QWEN2, QWEN3, GPT2, GPT2_UNTIED, FAMILIES };

static ot_model *open_model(int family)
{
    ot_model_config c = tiny_config;
    ot_model *model;
    c.C = 64;
    c.F = 88;
    c.V = 259;
    c.positions = 50;
    c.tied = family == LLAMA_TIED || family == QWEN2 || family == GPT2;
    c.qkv_bias = family == QWEN2;
    c.qk_norm = family == QWEN3;
    if (family == QWEN3)
        c.HD = 24; /* 4 heads of it are not C */
    if (family == MISTRAL)
        c.window = 20;
    if (family >= GPT2) {
        c.family = OT_FAMILY_GPT2;
        c.NKV = c.NH;
    }
    assert_int_equal(ot_model_open(&c, &model), OT_OK);
    return model;
}

static uint64_t elements_of(const ot_tensor *tensor)
{
    return (uint64_t)tensor->rows * tensor->cols;
}

/* All planes of a model, layer by layer; padding is zero. */
typedef struct planes {
    float *master[8];
    void *moment1[8], *moment2[8];
    float *scale1[8], *scale2[8];
} planes;

static float random_float(uint64_t i, uint64_t sequence)
{
    uint32_t words[4];
    ot_philox(17, i, sequence, words);
    uint32_t u = (words[0] & 0x83ffffff) | 0x38000000; /* 2^-15 to 2^-7 in size, either sign */
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static void fill_random(const ot_layer *layer, size_t width, void *out, uint64_t sequence)
{
    for (size_t t = 0; t < layer->tensor_count; t++)
        for (uint64_t i = 0; i < elements_of(&layer->tensors[t]); i++) {
            float x = random_float(i, sequence * 100 + t);
            memcpy((char *)out + (layer->tensors[t].offset + i) * width, (char *)&x + 4 - width, width);
        }
}

static void planes_new(const ot_model *model, size_t moment_width, planes *p)
{
    for (size_t l = 0; l < model->layer_count; l++) {
        const ot_layer *layer = &model->layers[l];
        p->master[l] = calloc(layer->params, 4);
        p->moment1[l] = calloc(layer->params, moment_width);
        p->moment2[l] = calloc(layer->params, moment_width);
        p->scale1[l] = calloc(layer->params / OT_MOMENT_BLOCK, 4);
        p->scale2[l] = calloc(layer->params / OT_MOMENT_BLOCK, 4);
    }
}

static void planes_fill(const ot_model *model, size_t moment_width, planes *p)
{
    for (size_t l = 0; l < model->layer_count; l++) {
        const ot_layer *layer = &model->layers[l];
        fill_random(layer, 4, p->master[l], l);
        fill_random(layer, moment_width, p->moment1[l], 100 + l);
        fill_random(layer, moment_width, p->moment2[l], 200 + l);
        for (size_t i = 0; i < layer->params / OT_MOMENT_BLOCK; i++) {
            p->scale1[l][i] = random_float(i, 300 + l);
            p->scale2[l][i] = random_float(i, 400 + l);
        }
    }
}

static void planes_free(const ot_model *model, planes *p)
{
    for (size_t l = 0; l < model->layer_count; l++) {
        free(p->master[l]);
        free(p->moment1[l]);
        free(p->moment2[l]);
        free(p->scale1[l]);
        free(p->scale2[l]);
    }
}

/* ---- Chunk by chunk ---- */

typedef ot_status call(void *context, const ot_chunk_values *chunk);

static void pass(const ot_model *model, planes *p, size_t moment_width, uint64_t step, call *each,
                 void *context)
{
    for (size_t l = 0; l < model->layer_count; l++)
        for (uint64_t at = 0, n; at < model->layers[l].params; at += n) {
            n = model->layers[l].params - at < step ? model->layers[l].params - at : step;
            const ot_chunk_values chunk = {
                .layer = l,
                .first = at,
                .count = n,
                .master = p->master[l] + at,
                .moment1 = (char *)p->moment1[l] + at * moment_width,
                .moment2 = (char *)p->moment2[l] + at * moment_width,
                .scale1 = p->scale1[l] + at / OT_MOMENT_BLOCK,
                .scale2 = p->scale2[l] + at / OT_MOMENT_BLOCK,
            };
            if (each(context, &chunk) != OT_OK)
                fail_msg("%s", ot_error_text());
        }
}

typedef struct target {
    const char *root, *stem;
    ot_value_plane plane;
    ot_dtype dtype;
    int split;
    uint64_t shard_bytes;
} target;

static void write_plane(const ot_model *model, planes *p, size_t moment_width, uint64_t step,
                        const target *to)
{
    const ot_model_writer_options options = {
        .model = model,
        .directory = to->root,
        .stem = to->stem,
        .plane = to->plane,
        .dtype = to->dtype,
        .split = to->split,
        .shard_bytes = to->shard_bytes,
    };
    ot_model_writer *writer;
    assert_int_equal(ot_model_writer_open(&options, &writer), OT_OK);
    ot_sink sink = ot_model_writer_values(writer);
    pass(model, p, moment_width, step, sink.take, sink.context);
    assert_int_equal(ot_model_writer_finish(writer), OT_OK);
    assert_int_equal(ot_model_writer_overflows(writer), 0);
    ot_model_writer_close(writer);
}

static void read_planes(const ot_model *model, const ot_model_source_options *options, planes *p,
                        size_t moment_width, uint64_t step)
{
    ot_model_source *source;
    if (ot_model_source_open(options, &source) != OT_OK)
        fail_msg("%s", ot_error_text());
    for (size_t l = 0; l < model->layer_count; l++)
        memset(p->master[l], 0xff, model->layers[l].params * 4); /* padding must be written, too */
    ot_source values = ot_model_source_values(source);
    pass(model, p, moment_width, step, values.fill, values.context);
    ot_model_source_close(source);
}

static void expect_same_files(const char *a, const char *b, const char *name)
{
    char path[PATH_MAX];
    static char content[2][1 << 20];
    size_t bytes[2];
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", i == 0 ? a : b, name);
        FILE *file = fopen(path, "rb");
        if (file == NULL)
            fail_msg("%s is missing", path);
        bytes[i] = fread(content[i], 1, sizeof *content, file);
        assert_true(bytes[i] < sizeof *content);
        fclose(file);
    }
    assert_int_equal(bytes[0], bytes[1]);
    assert_memory_equal(content[0], content[1], bytes[0]);
}

static const uint64_t steps[] = {OT_MOMENT_BLOCK, 3 * OT_MOMENT_BLOCK, 77 * OT_MOMENT_BLOCK, UINT64_MAX / 8};
enum { STEPS = sizeof steps / sizeof *steps };

/* ---- Round trips ---- */

static void fp32_is_read_as_it_was_written(void **state)
{
    (void)state;
    for (int family = 0; family < FAMILIES; family++) {
        ot_model *model = open_model(family);
        planes p = {0}, q = {0};
        planes_new(model, 4, &p);
        planes_new(model, 4, &q);
        planes_fill(model, 4, &p);
        for (size_t i = 0; i < STEPS; i++) {
            char *root = tree_open(), *again = tree_open();
            target to = {.root = root, .stem = "model", .dtype = OT_FP32};
            write_plane(model, &p, 4, steps[i], &to);
            const ot_model_source_options options = {.model = model, .directory = root, .stem = "model"};
            read_planes(model, &options, &q, 4, steps[STEPS - 1 - i]);
            for (size_t l = 0; l < model->layer_count; l++)
                assert_memory_equal(p.master[l], q.master[l], model->layers[l].params * 4);
            to.root = again;
            write_plane(model, &q, 4, steps[(i + 1) % STEPS], &to);
            expect_same_files(root, again, "model.safetensors");
            tree_close(root);
            tree_close(again);
        }
        planes_free(model, &p);
        planes_free(model, &q);
        ot_model_close(model);
    }
}

/* Narrowed once, then the same bytes for ever; in shards of 30 KB. */
static void narrow_dtypes_survive(void **state)
{
    (void)state;
    for (int family = 0; family < FAMILIES; family++)
        for (int kind = 0; kind < 3; kind++) {
            char *root = tree_open(), *again = tree_open();
            ot_model *model = open_model(family);
            planes p = {0}, q = {0};
            planes_new(model, 4, &p);
            planes_new(model, 4, &q);
            planes_fill(model, 4, &p);
            target to = {.root = root,
                         .stem = "model",
                         .dtype = kind < 2 ? OT_BF16 : OT_FP16,
                         .split = kind == 1,
                         .shard_bytes = 30000};
            write_plane(model, &p, 4, steps[1], &to);
            const ot_model_source_options options = {.model = model, .directory = root, .stem = "model"};
            read_planes(model, &options, &q, 4, steps[2]);
            ot_model_source *source;
            assert_int_equal(ot_model_source_open(&options, &source), OT_OK);
            assert_int_equal(ot_model_source_dtype(source), to.dtype);
            ot_model_source_close(source);
            to.root = again;
            write_plane(model, &q, 4, steps[0], &to);
            expect_same_files(root, again, "model.safetensors.index.json");
            ot_tensor_set *set;
            assert_int_equal(ot_tensor_set_open(root, "model", &set), OT_OK);
            for (size_t i = 0; i < ot_tensor_set_count(set); i++)
                expect_same_files(root, again,
                                  strrchr(ot_tensor_set_path(set, ot_tensor_set_at(set, i)), '/') + 1);
            ot_tensor_set_close(set);
            planes_free(model, &p);
            planes_free(model, &q);
            ot_model_close(model);
            tree_close(root);
            tree_close(again);
        }
}

/* Masters and moments of a checkpoint, in every state dtype. */
static void a_checkpoints_state_is_read_as_it_was_written(void **state)
{
    (void)state;
    static const ot_dtype dtypes[] = {OT_FP32, OT_BF16, OT_INT8};
    for (int family = 0; family < FAMILIES; family++)
        for (size_t d = 0; d < 3; d++) {
            char *root = tree_open();
            ot_model *model = open_model(family);
            size_t width = ot_dtype_bytes(dtypes[d]);
            planes p = {0}, q = {0};
            planes_new(model, width, &p);
            planes_new(model, width, &q);
            planes_fill(model, width, &p);
            const target master = {root, "master", OT_VALUE_MASTER, OT_FP32, 0, 0},
                         first = {root, "moment1", OT_VALUE_MOMENT1, dtypes[d], 0, 20000},
                         second = {root, "moment2", OT_VALUE_MOMENT2, dtypes[d], 0, 0};
            write_plane(model, &p, width, steps[1], &master);
            write_plane(model, &p, width, steps[2], &first);
            write_plane(model, &p, width, steps[3], &second);
            const ot_model_source_options options = {.model = model,
                                                     .directory = root,
                                                     .stem = "master",
                                                     .moment1_stem = "moment1",
                                                     .moment2_stem = "moment2",
                                                     .state_dtype = dtypes[d]};
            read_planes(model, &options, &q, width, steps[family % STEPS]);
            for (size_t l = 0; l < model->layer_count; l++) {
                uint64_t n = model->layers[l].params, scales = n / OT_MOMENT_BLOCK;
                assert_memory_equal(p.master[l], q.master[l], n * 4);
                assert_memory_equal(p.moment1[l], q.moment1[l], n * width);
                assert_memory_equal(p.moment2[l], q.moment2[l], n * width);
                if (dtypes[d] == OT_INT8) {
                    assert_memory_equal(p.scale1[l], q.scale1[l], scales * 4);
                    assert_memory_equal(p.scale2[l], q.scale2[l], scales * 4);
                }
            }
            ot_model_source_options wrong = options;
            ot_model_source *source;
            wrong.state_dtype = dtypes[(d + 1) % 3];
            assert_int_equal(ot_model_source_open(&wrong, &source), OT_ERR_FORMAT);
            assert_non_null(strstr(ot_error_text(), ", expected "));
            planes_free(model, &p);
            planes_free(model, &q);
            ot_model_close(model);
            tree_close(root);
        }
}

/* ---- What is in a file ---- */

static void *tensor_bytes(const char *root, const char *stem, const char *name, ot_file_dtype dtype)
{
    ot_tensor_set *set;
    if (ot_tensor_set_open(root, stem, &set) != OT_OK)
        fail_msg("%s", ot_error_text());
    const ot_file_tensor *tensor = ot_tensor_set_find(set, name);
    if (tensor == NULL)
        fail_msg("no tensor %s", name);
    assert_int_equal(tensor->spec.dtype, dtype);
    void *bytes = malloc(tensor->bytes);
    assert_int_equal(ot_tensor_set_read(set, tensor, 0, bytes, tensor->bytes), OT_OK);
    ot_tensor_set_close(set);
    return bytes;
}

static void conv1d_lies_transposed_in_the_file(void **state)
{
    (void)state;
    char *root = tree_open();
    ot_model *model = open_model(GPT2);
    planes p = {0};
    planes_new(model, 1, &p);
    planes_fill(model, 1, &p);
    const target to = {root, "model", OT_VALUE_MASTER, OT_FP32, 0, 0},
                 moment = {root, "moment2", OT_VALUE_MOMENT2, OT_INT8, 0, 0};
    write_plane(model, &p, 1, steps[0], &to);
    write_plane(model, &p, 1, steps[0], &moment);
    const ot_layer *block = &model->layers[2];
    const ot_tensor *fc = &block->tensors[ot_layer_find(block, "mlp.c_fc.weight")];
    assert_int_equal(fc->rows, 88);
    float *in_out = tensor_bytes(root, "model", "transformer.h.1.mlp.c_fc.weight", OT_FILE_F32);
    uint8_t *second = tensor_bytes(root, "moment2", "transformer.h.1.mlp.c_fc.weight", OT_FILE_U8);
    for (size_t out = 0; out < fc->rows; out++)
        for (size_t in = 0; in < fc->cols; in++) {
            size_t i = fc->offset + out * fc->cols + in;
            assert_memory_equal(&in_out[in * fc->rows + out], &p.master[2][i], 4);
            assert_int_equal(second[in * fc->rows + out], ((uint8_t *)p.moment2[2])[i]);
        }
    float *scales = tensor_bytes(root, "moment2", "transformer.h.1.scales", OT_FILE_F32);
    assert_memory_equal(scales, p.scale2[2], block->params / OT_MOMENT_BLOCK * 4);
    free(in_out);
    free(second);
    free(scales);
    planes_free(model, &p);
    ot_model_close(model);
    tree_close(root);
}

/* A bf16 run's weights are the high halves of its split masters: half up, where casting would go to even. */
static void weights_are_rounded_as_they_were_trained(void **state)
{
    (void)state;
    static const struct {
        uint32_t master;
        uint16_t split, even, half;
        int overflow;
    } cases[] = {
        {0x3f800000, 0x3f80, 0x3f80, 0x3c00, 0}, /* 1 */
        {0x3f808000, 0x3f81, 0x3f80, 0x3c04, 0}, /* half of bf16's last place above it */
        {0x3f818000, 0x3f82, 0x3f82, 0x3c0c, 0}, {0x3f807fff, 0x3f80, 0x3f80, 0x3c04, 0},
        {0x477fe000, 0x4780, 0x4780, 0x7bff, 0}, /* 65504, FP16's largest */
        {0x477ff000, 0x4780, 0x4780, 0x7c00, 1}, /* 65520 */
        {0xc77ff000, 0xc780, 0xc780, 0xfc00, 1}, {0x33800000, 0x3380, 0x3380, 0x0001, 0}, /* 2^-24 */
        {0x33000000, 0x3300, 0x3300, 0x0000, 0},                                          /* 2^-25, to even */
        {0x7f800000, 0x7f80, 0x7f80, 0x7c00, 0}, /* inf stays, uncounted */
    };
    ot_model *model = open_model(LLAMA);
    planes p = {0};
    planes_new(model, 4, &p);
    size_t n = sizeof cases / sizeof *cases;
    uint64_t overflows = 0;
    for (size_t i = 0; i < n; i++) {
        memcpy(&p.master[0][i], &cases[i].master, 4);
        overflows += (uint64_t)cases[i].overflow;
    }
    for (int kind = 0; kind < 3; kind++) {
        char *root = tree_open();
        const ot_model_writer_options options = {.model = model,
                                                 .directory = root,
                                                 .stem = "model",
                                                 .dtype = kind < 2 ? OT_BF16 : OT_FP16,
                                                 .split = kind == 0};
        ot_model_writer *writer;
        assert_int_equal(ot_model_writer_open(&options, &writer), OT_OK);
        ot_sink sink = ot_model_writer_values(writer);
        pass(model, &p, 4, steps[1], sink.take, sink.context);
        assert_int_equal(ot_model_writer_finish(writer), OT_OK);
        assert_int_equal(ot_model_writer_overflows(writer), kind < 2 ? 0 : overflows);
        ot_model_writer_close(writer);
        uint16_t *out =
            tensor_bytes(root, "model", "model.embed_tokens.weight", kind < 2 ? OT_FILE_BF16 : OT_FILE_F16);
        for (size_t i = 0; i < n; i++)
            assert_int_equal(out[i], kind == 0 ? cases[i].split : kind == 1 ? cases[i].even : cases[i].half);
        free(out);
        tree_close(root);
    }
    planes_free(model, &p);
    ot_model_close(model);
}

static void a_gap_in_the_chunks_is_refused(void **state)
{
    (void)state;
    char *root = tree_open();
    ot_model *model = open_model(LLAMA);
    float values[OT_MOMENT_BLOCK] = {0};
    const ot_model_writer_options options = {.model = model, .directory = root, .stem = "model"};
    ot_model_writer *writer;
    assert_int_equal(ot_model_writer_open(&options, &writer), OT_OK);
    ot_sink sink = ot_model_writer_values(writer);
    ot_chunk_values chunk = {.layer = 0, .first = 0, .count = OT_MOMENT_BLOCK, .master = values};
    assert_int_equal(sink.take(sink.context, &chunk), OT_OK);
    assert_int_equal(sink.take(sink.context, &chunk), OT_ERR_INTERNAL);
    assert_int_equal(ot_model_writer_finish(writer), OT_ERR_INTERNAL);
    ot_model_writer_close(writer);
    ot_model_close(model);
    tree_close(root);
}

/* ---- Files that other programs write ---- */

/* A model's file with changes: specs are taken over, changed by the test, then written with bytes that count up, the same
 * for the same name. */
typedef struct foreign {
    ot_tensor_spec specs[64];
    char names[64][OT_TENSOR_NAME_BYTES];
    size_t count;
} foreign;

static void foreign_add(foreign *f, const char *name, ot_file_dtype dtype, size_t dimensions, uint64_t a,
                        uint64_t b)
{
    snprintf(f->names[f->count], sizeof *f->names, "%s", name);
    f->specs[f->count] = (ot_tensor_spec){f->names[f->count], dtype, dimensions, {a, b}};
    f->count++;
}

static void foreign_model(foreign *f, const ot_model *model, size_t strip)
{
    *f = (foreign){.count = 0};
    for (size_t l = 0; l < model->layer_count; l++)
        for (size_t t = 0; t < model->layers[l].tensor_count; t++) {
            const ot_tensor *tensor = &model->layers[l].tensors[t];
            const char *name = tensor->name + (strncmp(tensor->name, "lm_head", 7) == 0 ? 0 : strip);
            size_t a = tensor->transposed ? tensor->cols : tensor->rows;
            foreign_add(f, name, OT_FILE_F32, tensor->cols > 1 ? 2 : 1, a, tensor->rows * tensor->cols / a);
        }
}

static ot_tensor_spec *foreign_find(foreign *f, const char *name)
{
    for (size_t i = 0; i < f->count; i++)
        if (strcmp(f->names[i], name) == 0)
            return &f->specs[i];
    fail_msg("no tensor %s", name);
    return NULL;
}

static void foreign_write(const foreign *f, const char *root)
{
    const ot_tensor_writer_options options = {root, "model", f->specs, f->count, 0};
    ot_tensor_writer *writer;
    assert_int_equal(ot_tensor_writer_open(&options, &writer), OT_OK);
    for (size_t i = 0; i < f->count; i++) {
        uint64_t bytes = ot_file_dtype_bytes(f->specs[i].dtype);
        for (size_t d = 0; d < f->specs[i].dimensions; d++)
            bytes *= f->specs[i].shape[d];
        unsigned char *data = malloc(bytes + 1);
        for (uint64_t b = 0; b < bytes; b++)
            data[b] = (unsigned char)(b * 7 % 251 & 0x3f);
        assert_int_equal(ot_tensor_writer_append(writer, data, bytes), OT_OK);
        free(data);
    }
    assert_int_equal(ot_tensor_writer_finish(writer), OT_OK);
    ot_tensor_writer_close(writer);
}

/* Opens the file as the model; `says` NULL: it is accepted. Always refused and accepted without reading values. */
static void expect(const foreign *f, const ot_model *model, const char *says)
{
    char *root = tree_open();
    const ot_model_source_options options = {.model = model, .directory = root, .stem = "model"};
    ot_model_source *source = NULL;
    foreign_write(f, root);
    ot_status status = ot_model_source_open(&options, &source);
    if (says == NULL && status != OT_OK)
        fail_msg("%s", ot_error_text());
    if (says != NULL) {
        assert_int_equal(status, OT_ERR_FORMAT);
        if (strstr(ot_error_text(), says) == NULL ||
            strstr(ot_error_text(), "model.safetensors: tensor ") == NULL)
            fail_msg("'%s' does not say '%s'", ot_error_text(), says);
    }
    ot_model_source_close(source);
    tree_close(root);
}

static void files_that_are_not_the_model_are_refused(void **state)
{
    (void)state;
    foreign f;
    ot_model *model = open_model(LLAMA);
    foreign_model(&f, model, 0);
    expect(&f, model, NULL);

    foreign_find(&f, "model.layers.1.mlp.up_proj.weight")->name = "model.layers.1.mlp.upper.weight";
    expect(&f, model, "model.layers.1.mlp.up_proj.weight is missing");

    foreign_model(&f, model, 0);
    foreign_find(&f, "lm_head.weight")->name = "head";
    expect(&f, model, "lm_head.weight is missing; if the head is the embedding");

    foreign_model(&f, model, 0);
    foreign_add(&f, "model.layers.2.mlp.up_proj.weight", OT_FILE_F32, 2, 88, 64);
    expect(&f, model, "model.layers.2.mlp.up_proj.weight is not one of the model");

    foreign_model(&f, model, 0); /* a bias that would be dropped */
    foreign_add(&f, "model.layers.0.self_attn.q_proj.bias", OT_FILE_F32, 1, 64, 0);
    expect(&f, model, "model.layers.0.self_attn.q_proj.bias is not one of the model");

    foreign_model(&f, model, 0);
    foreign_find(&f, "model.embed_tokens.weight")->shape[0] = 260;
    expect(&f, model, "model.embed_tokens.weight has shape [260,64], expected [259,64]");

    foreign_model(&f, model, 0); /* as many elements, another shape */
    foreign_find(&f, "model.norm.weight")->dimensions = 2;
    foreign_find(&f, "model.norm.weight")->shape[1] = 1;
    expect(&f, model, "model.norm.weight has shape [64,1], expected [64]");

    foreign_model(&f, model, 0);
    foreign_find(&f, "model.norm.weight")->dtype = OT_FILE_F64;
    expect(&f, model, "model.norm.weight is F64, expected F32, BF16 or F16");

    foreign_model(&f, model, 0); /* dtypes may be mixed */
    foreign_find(&f, "model.norm.weight")->dtype = OT_FILE_BF16;
    foreign_find(&f, "lm_head.weight")->dtype = OT_FILE_F16;
    expect(&f, model, NULL);
    ot_model_close(model);
}

static void other_spellings_and_old_buffers_are_accepted(void **state)
{
    (void)state;
    foreign f;
    for (int family = 0; family < FAMILIES; family++) {
        ot_model *model = open_model(family);
        foreign_model(&f, model, family >= GPT2 ? strlen("transformer.") : strlen("model."));
        expect(&f, model, NULL);
        f.specs[3].name = model->layers[1].tensors[2].name; /* one in the other spelling */
        expect(&f, model, " is missing");
        ot_model_close(model);
    }
    ot_model *model = open_model(GPT2);
    foreign_model(&f, model, strlen("transformer."));
    foreign_add(&f, "h.0.attn.bias", OT_FILE_U8, 2, 50, 50);
    foreign_add(&f, "h.1.attn.masked_bias", OT_FILE_F32, 0, 0, 0);
    expect(&f, model, NULL);
    ot_model_close(model);
    model = open_model(LLAMA);
    foreign_model(&f, model, 0);
    foreign_add(&f, "model.layers.0.self_attn.rotary_emb.inv_freq", OT_FILE_F32, 1, 8, 0);
    expect(&f, model, NULL);
    foreign_add(&f, "h.0.attn.bias", OT_FILE_U8, 2, 50, 50); /* GPT-2's, not Llama's */
    expect(&f, model, "h.0.attn.bias is not one of the model");
    ot_model_close(model);
}

static void a_tied_head_must_equal_the_embedding(void **state)
{
    (void)state;
    foreign f;
    ot_model *model = open_model(LLAMA_TIED);
    foreign_model(&f, model, 0);
    foreign_add(&f, "lm_head.weight", OT_FILE_F32, 2, 259, 64);
    expect(&f, model, NULL); /* foreign_write gives both the same bytes */
    f.specs[f.count - 1].dtype = OT_FILE_BF16;
    expect(&f, model, "lm_head.weight differs from model.embed_tokens.weight");
    f.specs[f.count - 1].dtype = OT_FILE_F32;
    f.specs[f.count - 1].shape[0] = 258;
    expect(&f, model, "lm_head.weight differs");

    char *root = tree_open(), path[PATH_MAX]; /* one byte of the head's end */
    const ot_model_source_options options = {.model = model, .directory = root, .stem = "model"};
    ot_model_source *source;
    f.specs[f.count - 1].shape[0] = 259;
    foreign_write(&f, root);
    snprintf(path, sizeof path, "%s/model.safetensors", root);
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, -1, SEEK_END), 0);
    assert_int_equal(fputc(0xee, file), 0xee);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(ot_model_source_open(&options, &source), OT_ERR_FORMAT);
    assert_non_null(strstr(ot_error_text(), "lm_head.weight differs"));
    tree_close(root);
    ot_model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fp32_is_read_as_it_was_written),
        cmocka_unit_test(narrow_dtypes_survive),
        cmocka_unit_test(a_checkpoints_state_is_read_as_it_was_written),
        cmocka_unit_test(conv1d_lies_transposed_in_the_file),
        cmocka_unit_test(weights_are_rounded_as_they_were_trained),
        cmocka_unit_test(a_gap_in_the_chunks_is_refused),
        cmocka_unit_test(files_that_are_not_the_model_are_refused),
        cmocka_unit_test(other_spellings_and_old_buffers_are_accepted),
        cmocka_unit_test(a_tied_head_must_equal_the_embedding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
