/* config.json: files as the models' authors publish them against the presets, every key that must not be passed over, and
 * what is written. */
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/hf_config.h"
#include "io/log.h"
#include "tests/support/test.h"
#include "tests/support/tree.h"

/* ---- Published files ---- */

static const char smollm2[] =
    "{\"architectures\":[\"LlamaForCausalLM\"],\"attention_bias\":false,\"attention_dropout\":0.0,\"bos_token_id\":0,"
    "\"eos_token_id\":0,\"hidden_act\":\"silu\",\"hidden_size\":576,\"initializer_range\":0.041666666666666664,"
    "\"intermediate_size\":1536,\"is_llama_config\":true,\"max_position_embeddings\":8192,\"model_type\":\"llama\","
    "\"num_attention_heads\":9,\"num_hidden_layers\":30,\"num_key_value_heads\":3,\"pretraining_tp\":1,"
    "\"rms_norm_eps\":1e-05,\"rope_interleaved\":false,\"rope_scaling\":null,\"rope_theta\":100000,"
    "\"tie_word_embeddings\":true,\"torch_dtype\":\"bfloat16\",\"transformers_version\":\"4.40.1\",\"use_cache\":true,"
    "\"vocab_size\":49152}";

static const char llama31[] =
    "{\"architectures\":[\"LlamaForCausalLM\"],\"attention_bias\":false,\"attention_dropout\":0.0,"
    "\"bos_token_id\":128000,\"eos_token_id\":[128001,128008,128009],\"hidden_act\":\"silu\",\"hidden_size\":4096,"
    "\"initializer_range\":0.02,\"intermediate_size\":14336,\"max_position_embeddings\":131072,\"mlp_bias\":false,"
    "\"model_type\":\"llama\",\"num_attention_heads\":32,\"num_hidden_layers\":32,\"num_key_value_heads\":8,"
    "\"pretraining_tp\":1,\"rms_norm_eps\":1e-05,\"rope_scaling\":{\"factor\":8.0,\"low_freq_factor\":1.0,"
    "\"high_freq_factor\":4.0,\"original_max_position_embeddings\":8192,\"rope_type\":\"llama3\"},"
    "\"rope_theta\":500000.0,\"tie_word_embeddings\":false,\"torch_dtype\":\"bfloat16\",\"use_cache\":true,"
    "\"vocab_size\":128256}";

/* As transformers 5 writes the same model. */
static const char llama31_new[] =
    "{\"architectures\":[\"LlamaForCausalLM\"],\"bos_token_id\":128000,\"eos_token_id\":128001,\"hidden_size\":4096,"
    "\"intermediate_size\":14336,\"max_position_embeddings\":131072,\"model_type\":\"llama\","
    "\"num_attention_heads\":32,\"num_hidden_layers\":32,\"num_key_value_heads\":8,\"head_dim\":128,"
    "\"rms_norm_eps\":1e-05,\"rope_parameters\":{\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
    "\"original_max_position_embeddings\":8192,\"rope_type\":\"llama3\",\"rope_theta\":500000.0},"
    "\"dtype\":\"bfloat16\",\"vocab_size\":128256}";

static const char llama2[] =
    "{\"architectures\":[\"LlamaForCausalLM\"],\"bos_token_id\":1,\"eos_token_id\":2,\"hidden_act\":\"silu\","
    "\"hidden_size\":4096,\"initializer_range\":0.02,\"intermediate_size\":11008,\"max_position_embeddings\":4096,"
    "\"model_type\":\"llama\",\"num_attention_heads\":32,\"num_hidden_layers\":32,\"rms_norm_eps\":1e-05,"
    "\"torch_dtype\":\"float16\",\"vocab_size\":32000}";

static const char qwen25[] =
    "{\"architectures\":[\"Qwen2ForCausalLM\"],\"attention_dropout\":0.0,\"bos_token_id\":null,\"eos_token_id\":151643,"
    "\"hidden_act\":\"silu\",\"hidden_size\":896,\"initializer_range\":0.02,\"intermediate_size\":4864,"
    "\"max_position_embeddings\":32768,\"max_window_layers\":24,\"model_type\":\"qwen2\",\"num_attention_heads\":14,"
    "\"num_hidden_layers\":24,\"num_key_value_heads\":2,\"rms_norm_eps\":1e-06,\"rope_theta\":1000000.0,"
    "\"sliding_window\":32768,\"tie_word_embeddings\":true,\"torch_dtype\":\"bfloat16\",\"use_mrope\":false,"
    "\"use_sliding_window\":false,\"vocab_size\":151936}";

static const char gpt2[] =
    "{\"activation_function\":\"gelu_new\",\"architectures\":[\"GPT2LMHeadModel\"],\"attn_pdrop\":0.1,"
    "\"bos_token_id\":null,\"embd_pdrop\":0.1,\"eos_token_id\":50256,\"initializer_range\":0.02,"
    "\"layer_norm_epsilon\":1e-05,\"model_type\":\"gpt2\",\"n_ctx\":1024,\"n_embd\":768,\"n_head\":12,\"n_layer\":12,"
    "\"n_positions\":1024,\"resid_pdrop\":0.1,\"summary_type\":\"cls_index\",\"summary_first_dropout\":0.1,"
    "\"task_specific_params\":{\"text-generation\":{\"do_sample\":true,\"max_length\":50}},\"vocab_size\":50257}";

static const char mistral[] =
    "{\"architectures\":[\"MistralForCausalLM\"],\"bos_token_id\":1,\"eos_token_id\":2,\"hidden_act\":\"silu\","
    "\"hidden_size\":4096,\"initializer_range\":0.02,\"intermediate_size\":14336,\"max_position_embeddings\":32768,"
    "\"model_type\":\"mistral\",\"num_attention_heads\":32,\"num_hidden_layers\":32,\"num_key_value_heads\":8,"
    "\"rms_norm_eps\":1e-05,\"rope_theta\":10000.0,\"sliding_window\":4096,\"tie_word_embeddings\":false,"
    "\"torch_dtype\":\"bfloat16\",\"vocab_size\":32000}";

static const char qwen3[] =
    "{\"architectures\":[\"Qwen3ForCausalLM\"],\"attention_bias\":false,\"attention_dropout\":0.0,"
    "\"bos_token_id\":151643,\"eos_token_id\":151645,\"head_dim\":128,\"hidden_act\":\"silu\",\"hidden_size\":1024,"
    "\"initializer_range\":0.02,\"intermediate_size\":3072,\"max_position_embeddings\":40960,"
    "\"max_window_layers\":28,\"model_type\":\"qwen3\",\"num_attention_heads\":16,\"num_hidden_layers\":28,"
    "\"num_key_value_heads\":8,\"rms_norm_eps\":1e-06,\"rope_scaling\":null,\"rope_theta\":1000000,"
    "\"sliding_window\":null,\"tie_word_embeddings\":true,\"torch_dtype\":\"bfloat16\",\"use_sliding_window\":false,"
    "\"vocab_size\":151936}";

static ot_hf_config *parse(const char *text)
{
    ot_hf_config *config;
    if (ot_hf_config_parse("config.json", text, strlen(text), &config) != OT_OK)
        fail_msg("%s", ot_error_text());
    return config;
}

static void expect_equal(const ot_model_config *a, const ot_model_config *b)
{
    assert_int_equal(a->family, b->family);
    assert_string_equal(a->architecture, b->architecture);
    assert_int_equal(a->C, b->C);
    assert_int_equal(a->L, b->L);
    assert_int_equal(a->NH, b->NH);
    assert_int_equal(a->NKV, b->NKV);
    assert_int_equal(a->HD, b->HD);
    assert_int_equal(a->F, b->F);
    assert_int_equal(a->V, b->V);
    assert_int_equal(a->positions, b->positions);
    assert_memory_equal(&a->norm_eps, &b->norm_eps, sizeof a->norm_eps);
    assert_int_equal(a->rope.kind, b->rope.kind);
    assert_memory_equal(&a->rope.theta, &b->rope.theta, sizeof a->rope.theta);
    if (a->rope.kind != OT_ROPE_PLAIN)
        assert_memory_equal(&a->rope, &b->rope, sizeof a->rope);
    assert_int_equal(a->window, b->window);
    assert_int_equal(a->gelu, b->gelu);
    assert_int_equal(a->qkv_bias, b->qkv_bias);
    assert_int_equal(a->qk_norm, b->qk_norm);
    assert_int_equal(a->tied, b->tied);
    assert_int_equal(a->bos, b->bos);
    assert_int_equal(a->eos, b->eos);
    assert_memory_equal(&a->init_std, &b->init_std, sizeof a->init_std);
}

static void published_files_are_the_presets(void **state)
{
    (void)state;
    static const struct {
        const char *text, *preset;
    } cases[] = {
        {smollm2, "135m"}, {llama31, "8b"},  {llama31_new, "8b"},
        {llama2, "7b"},    {qwen25, "0.5b"}, {gpt2, "124m"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ot_model_config preset;
        ot_hf_config *config = parse(cases[i].text);
        assert_int_equal(ot_model_preset(cases[i].preset, &preset), OT_OK);
        expect_equal(ot_hf_config_model(config), &preset);
        ot_hf_config_close(config);
    }
}

static void mistral_and_qwen3_are_read(void **state)
{
    (void)state;
    ot_hf_config *config = parse(mistral);
    const ot_model_config *c = ot_hf_config_model(config);
    assert_string_equal(c->architecture, "MistralForCausalLM");
    assert_int_equal(c->window, 4096);
    assert_int_equal(c->NKV, 8);
    assert_int_equal(c->HD, 128);
    assert_int_equal(c->tied, 0);
    ot_hf_config_close(config);
    config = parse(qwen3);
    c = ot_hf_config_model(config);
    assert_int_equal(c->HD, 128); /* not 1024/16 */
    assert_int_equal(c->qk_norm, 1);
    assert_int_equal(c->qkv_bias, 0);
    assert_int_equal(c->tied, 1);
    assert_int_equal(c->window, 0);
    ot_hf_config_close(config);
}

/* ---- One key changed ---- */

/* `text` with one key set to a value, or removed where it is NULL. */
static char *change(const char *text, const char *key, const char *value)
{
    json_t *object = json_loads(text, 0, NULL);
    assert_non_null(object);
    if (value == NULL)
        assert_int_equal(json_object_del(object, key), 0);
    else
        assert_int_equal(json_object_set_new(object, key, json_loads(value, JSON_DECODE_ANY, NULL)), 0);
    char *out = json_dumps(object, 0);
    json_decref(object);
    return out;
}

static void whatever_changes_the_mathematics_is_used_or_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *key, *value, *says;
    } cases[] = {
        {llama2, "hidden_act", "\"gelu\"", "hidden_act is gelu"},
        {llama2, "attention_bias", "true", "attention_bias is true"},
        {qwen3, "attention_bias", "true", "attention_bias is true"},
        {llama2, "mlp_bias", "true", "mlp_bias is true"},
        {llama2, "sliding_window", "4096", "sliding_window is 4096"},
        {llama2, "rope_scaling", "{\"type\":\"dynamic\",\"factor\":2.0}", "is dynamic"},
        {llama2, "rope_scaling", "{\"rope_type\":\"yarn\",\"factor\":2.0}", "is yarn"},
        {llama2, "rope_scaling", "{\"rope_type\":\"longrope\"}", "is longrope"},
        {llama2, "rope_scaling", "{\"rope_type\":\"linear\",\"beta_fast\":32}",
         "beta_fast in rope_scaling is 32"},
        {llama2, "rope_scaling", "{\"rope_type\":\"linear\",\"type\":\"yarn\",\"factor\":2}",
         "but type is yarn"},
        {llama2, "rope_scaling", "{\"rope_type\":\"linear\"}", "factor in rope_scaling is missing"},
        {llama2, "rope_scaling", "{\"rope_type\":\"llama3\",\"factor\":8}",
         "low_freq_factor in rope_scaling is missing"},
        {llama2, "rope_scaling", "8", "rope_scaling is no object"},
        {llama31, "rope_parameters", "{\"rope_theta\":1}", "both rope_scaling and rope_parameters"},
        {llama31_new, "rope_theta", "10000", "rope_theta is 10000, but 500000 in rope_parameters"},
        {llama31_new, "rope_parameters", "{\"rope_theta\":1e6,\"partial_rotary_factor\":0.5}",
         "partial_rotary_factor in rope_parameters is 0.5"},
        {llama31_new, "rope_parameters", "{\"full_attention\":{\"rope_theta\":1e6}}",
         "full_attention in rope_parameters"},
        {llama2, "rope_theta", "\"10000\"", "rope_theta is \"10000\", expected a number"},
        {llama2, "rope_interleaved", "true", "rope_interleaved is true"},
        {llama2, "partial_rotary_factor", "0.5", "partial_rotary_factor is 0.5"},
        {llama2, "quantization_config", "{\"quant_method\":\"gptq\"}", "quantization_config is"},
        {llama2, "num_local_experts", "8", "num_local_experts is 8"},
        {llama2, "num_experts", "8", "num_experts is 8"},
        {llama2, "logit_scale", "0.0625", "logit_scale is 0.0625"},
        {llama2, "final_logit_softcapping", "30.0", "final_logit_softcapping is 30"},
        {llama2, "attn_logit_softcapping", "50.0", "attn_logit_softcapping is 50"},
        {llama2, "auto_map", "{\"AutoModelForCausalLM\":\"x.Y\"}", "auto_map is"},
        {llama2, "num_key_value_heads", "5", "no multiple of 5"},
        {llama2, "num_attention_heads", "0", "num_attention_heads 0"},
        {llama2, "num_attention_heads", "30", "no multiple of num_attention_heads 30"},
        {llama2, "head_dim", "127", "head dimension is 127"},
        {llama2, "hidden_size", "-4096", "hidden_size is -4096, expected a whole number"},
        {llama2, "hidden_size", "4096.0", "hidden_size is 4096.0, expected a whole number"},
        {llama2, "hidden_size", "4503599627370496", "hidden size is 4503599627370496"},
        {llama2, "hidden_size", "9223372036854775807", "expected a whole number up to 2^53"},
        {llama2, "num_hidden_layers", "5000", "5000 layers"},
        {llama2, "vocab_size", "null", "vocab_size is missing"},
        {llama2, "intermediate_size", NULL, "intermediate_size is missing"},
        {llama2, "rms_norm_eps", "1e300", "rms_norm_eps is 1e+300"},
        {llama2, "rms_norm_eps", "0", "epsilon"},
        {llama2, "tie_word_embeddings", "1", "tie_word_embeddings is 1, expected true or false"},
        {llama2, "eos_token_id", "32000", "EOS token is 32000"},
        {llama2, "eos_token_id", "[]", "eos_token_id is no token"},
        {llama2, "layer_types", "[\"full_attention\"]", "layer_types is no list of one name"},
        {llama2, "architectures", "[\"GemmaForCausalLM\"]", "the architecture is GemmaForCausalLM"},
        {llama2, "architectures", "[\"MistralForCausalLM\"]", "but model_type is llama"},
        {llama2, "architectures", "[\"LlamaForCausalLM\",\"X\"]", "no list of one name"},
        {mistral, "num_key_value_heads", NULL, "num_key_value_heads is missing"},
        {mistral, "sliding_window", "0", "sliding_window is 0"},
        {qwen25, "use_sliding_window", "\"yes\"", "expected true or false"},
        {gpt2, "scale_attn_weights", "false", "scale_attn_weights is false"},
        {gpt2, "scale_attn_by_inverse_layer_idx", "true", "scale_attn_by_inverse_layer_idx is true"},
        {gpt2, "activation_function", "\"relu\"", "activation_function is relu"},
        {gpt2, "add_cross_attention", "true", "add_cross_attention is true"},
        {gpt2, "n_head", "7", "n_embd 768 is no multiple of n_head 7"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ot_hf_config *config;
        char *text = change(cases[i].text, cases[i].key, cases[i].value);
        assert_int_equal(ot_hf_config_parse("DIR/config.json", text, strlen(text), &config), OT_ERR_FORMAT);
        if (strstr(ot_error_text(), cases[i].says) == NULL ||
            strncmp(ot_error_text(), "DIR/config.json: ", 17) != 0)
            fail_msg("'%s' does not say '%s'", ot_error_text(), cases[i].says);
        free(text);
    }
}

static const ot_model_config *changed(const char *text, const char *key, const char *value,
                                      ot_hf_config **config)
{
    char *whole = change(text, key, value);
    *config = parse(whole);
    free(whole);
    return ot_hf_config_model(*config);
}

static void keys_have_their_effect(void **state)
{
    (void)state;
    ot_hf_config *config;
    assert_int_equal(changed(llama2, "num_key_value_heads", "8", &config)->NKV, 8);
    ot_hf_config_close(config);
    assert_int_equal(changed(llama2, "head_dim", "64", &config)->HD, 64);
    ot_hf_config_close(config);
    assert_int_equal(changed(llama2, "tie_word_embeddings", "true", &config)->tied, 1);
    ot_hf_config_close(config);
    const ot_model_config *c =
        changed(llama2, "rope_scaling", "{\"type\":\"linear\",\"factor\":2.5}", &config);
    assert_int_equal(c->rope.kind, OT_ROPE_LINEAR);
    assert_true(c->rope.factor == 2.5 && c->rope.theta == 10000);
    ot_hf_config_close(config);
    assert_int_equal(
        changed(llama2, "rope_parameters", "{\"rope_theta\":5e5,\"rope_type\":\"default\"}", &config)
            ->rope.kind,
        OT_ROPE_PLAIN);
    assert_true(ot_hf_config_model(config)->rope.theta == 5e5);
    ot_hf_config_close(config);
    assert_true(changed(llama2, "rms_norm_eps", NULL, &config)->norm_eps == 1e-6f);
    ot_hf_config_close(config);
    assert_int_equal(changed(mistral, "sliding_window", NULL, &config)->window, 4096);
    ot_hf_config_close(config);
    assert_int_equal(changed(mistral, "sliding_window", "null", &config)->window, 0);
    ot_hf_config_close(config);
    assert_int_equal(changed(gpt2, "activation_function", "\"gelu\"", &config)->gelu, OT_GELU_ERF);
    ot_hf_config_close(config);
    assert_int_equal(changed(gpt2, "n_inner", "1000", &config)->F, 1000);
    ot_hf_config_close(config);
    assert_int_equal(changed(gpt2, "tie_word_embeddings", "false", &config)->tied, 0);
    ot_hf_config_close(config);
    assert_int_equal(changed(llama31, "architectures", NULL, &config)->L, 32);
    ot_hf_config_close(config);
}

/* Qwen's window: off by default, from a layer on where it is used. */
static void qwens_window_is_all_or_nothing(void **state)
{
    (void)state;
    static const struct {
        const char *use, *first, *types;
        int window; /* -1: refused */
    } cases[] = {
        {"false", "0", NULL, 0},
        {"true", "0", NULL, 32768},
        {"true", "24", NULL, 0},
        {"true", "12", NULL, -1},
        {"true", "12", "full_attention", 0},
        {"true", "12", "sliding_attention", 32768},
        {"false", "12", "sliding_attention", -1},
        {"true", "12", "chunked_attention", -1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *object = json_loads(qwen25, 0, NULL);
        json_object_set_new(object, "use_sliding_window", json_loads(cases[i].use, JSON_DECODE_ANY, NULL));
        json_object_set_new(object, "max_window_layers", json_loads(cases[i].first, JSON_DECODE_ANY, NULL));
        json_t *types = json_array();
        for (int l = 0; cases[i].types != NULL && l < 24; l++)
            json_array_append_new(types, json_string(cases[i].types));
        json_object_set_new(object, "layer_types", cases[i].types != NULL ? json_incref(types) : json_null());
        json_decref(types);
        char *text = json_dumps(object, 0);
        json_decref(object);
        ot_hf_config *config = NULL;
        ot_status status = ot_hf_config_parse("config.json", text, strlen(text), &config);
        assert_int_equal(status, cases[i].window < 0 ? OT_ERR_FORMAT : OT_OK);
        if (status == OT_OK)
            assert_int_equal(ot_hf_config_model(config)->window, cases[i].window);
        ot_hf_config_close(config);
        free(text);
    }
}

static void broken_files_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"", "config.json:1: "},
        {"[]", "no JSON object"},
        {"{\n\"a\":1,\n\"a\":2}", "config.json:3: duplicate"},
        {"{}", "the architecture is missing"},
    };
    ot_hf_config *config;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(ot_hf_config_parse("config.json", cases[i].text, strlen(cases[i].text), &config),
                         OT_ERR_FORMAT);
        assert_non_null(strstr(ot_error_text(), cases[i].says));
    }
    assert_int_equal(ot_hf_config_open("/no/such/folder", &config), OT_ERR_FORMAT);
    assert_non_null(strstr(ot_error_text(), "/no/such/folder/config.json"));
}

/* ---- The log ---- */

static char logged[4096];

static void keep_line(ot_log_level level, const char *line)
{
    (void)level;
    size_t n = strlen(logged);
    snprintf(logged + n, sizeof logged - n, "%s\n", line);
}

static void unknown_keys_and_dropout_are_logged(void **state)
{
    (void)state;
    ot_hf_config *config;
    ot_log_open(OT_LOG_INFO, keep_line);
    logged[0] = '\0';
    ot_hf_config_close(parse(smollm2));
    assert_string_equal(logged, "");
    (void)changed(smollm2, "warp_factor", "9", &config);
    ot_hf_config_close(config);
    assert_string_equal(logged, "config.json: key warp_factor is not known and not used\n");
    logged[0] = '\0';
    (void)changed(smollm2, "attention_dropout", "0.1", &config);
    ot_hf_config_close(config);
    assert_string_equal(logged, "config.json: attention_dropout is 0.1; training is without dropout\n");
    ot_log_open(OT_LOG_INFO, NULL);
}

/* ---- Writing ---- */

static char *read_text(const char *path)
{
    static char content[65536];
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    content[fread(content, 1, sizeof content - 1, file)] = '\0';
    fclose(file);
    return content;
}

static void what_is_made_is_read_as_the_same_model(void **state)
{
    (void)state;
    char *root = tree_open(), path[PATH_MAX];
    snprintf(path, sizeof path, "%s/config.json", root);
    for (size_t i = 0; ot_model_preset_name(i) != NULL; i++) {
        ot_model_config preset;
        ot_hf_config *made, *read;
        assert_int_equal(ot_model_preset(ot_model_preset_name(i), &preset), OT_OK);
        assert_int_equal(ot_hf_config_make(&preset, &made), OT_OK);
        assert_int_equal(ot_hf_config_write(made, OT_BF16, path), OT_OK);
        assert_int_equal(ot_hf_config_open(root, &read), OT_OK);
        expect_equal(ot_hf_config_model(read), &preset);
        assert_non_null(strstr(read_text(path), "\"torch_dtype\": \"bfloat16\""));
        ot_hf_config_close(made);
        ot_hf_config_close(read);
    }
    tree_close(root);
}

/* A window, a stretched RoPE, an untied Qwen3: what no preset has. */
static void rarer_models_are_written_too(void **state)
{
    (void)state;
    static const char *const texts[] = {mistral, qwen3};
    char *root = tree_open(), path[PATH_MAX];
    snprintf(path, sizeof path, "%s/config.json", root);
    for (size_t i = 0; i < 3; i++) {
        ot_hf_config *original = parse(i < 2 ? texts[i] : qwen25), *made, *read;
        ot_model_config c = *ot_hf_config_model(original);
        if (i == 2)
            c.window = 1000, c.rope.kind = OT_ROPE_LINEAR, c.rope.factor = 3;
        assert_int_equal(ot_hf_config_make(&c, &made), OT_OK);
        assert_int_equal(ot_hf_config_write(made, OT_FP32, path), OT_OK);
        assert_int_equal(ot_hf_config_open(root, &read), OT_OK);
        expect_equal(ot_hf_config_model(read), &c);
        ot_hf_config_close(original);
        ot_hf_config_close(made);
        ot_hf_config_close(read);
    }
    tree_close(root);
}

static void only_the_dtype_of_a_file_changes(void **state)
{
    (void)state;
    char *root = tree_open(), path[PATH_MAX];
    ot_hf_config *config;
    snprintf(path, sizeof path, "%s/config.json", root);
    (void)changed(llama31_new, "warp_factor", "[9, {\"a\": 0.1}]", &config);
    assert_int_equal(ot_hf_config_write(config, OT_FP16, path), OT_OK);
    json_t *written = json_load_file(path, 0, NULL);
    char *expected = change(llama31_new, "warp_factor", "[9, {\"a\": 0.1}]");
    json_t *object = json_loads(expected, 0, NULL);
    json_object_set_new(object, "dtype", json_string("float16"));
    assert_true(json_equal(written, object));
    json_decref(object);
    json_decref(written);
    free(expected);
    ot_hf_config_close(config);

    config = parse(smollm2); /* the very bytes where nothing changes */
    assert_int_equal(ot_hf_config_write(config, OT_BF16, path), OT_OK);
    assert_string_equal(read_text(path), smollm2);
    ot_hf_config_close(config);
    tree_close(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_files_are_the_presets),
        cmocka_unit_test(mistral_and_qwen3_are_read),
        cmocka_unit_test(whatever_changes_the_mathematics_is_used_or_refused),
        cmocka_unit_test(keys_have_their_effect),
        cmocka_unit_test(qwens_window_is_all_or_nothing),
        cmocka_unit_test(broken_files_are_refused),
        cmocka_unit_test(unknown_keys_and_dropout_are_logged),
        cmocka_unit_test(what_is_made_is_read_as_the_same_model),
        cmocka_unit_test(rarer_models_are_written_too),
        cmocka_unit_test(only_the_dtype_of_a_file_changes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
