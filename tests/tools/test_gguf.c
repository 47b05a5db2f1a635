/* `offtrain export --to gguf`: a file is read back by a reader of the test's own. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/modelfile.h"
#include "tests/support/export.h"
#include "tests/support/test.h"
#include "tests/support/tree.h"

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
        cmocka_unit_test_setup_teardown(a_gguf_file_holds_the_model, open_root, close_root),
        cmocka_unit_test_setup_teardown(only_llama_and_mistral_are_permuted, open_root, close_root),
        cmocka_unit_test_setup_teardown(a_byte_level_tokenizer_goes_along, open_root, close_root),
        cmocka_unit_test_setup_teardown(a_tokenizer_with_byte_fallback_gets_scores, open_root, close_root),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
