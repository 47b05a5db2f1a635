/* config.json: opening, making one, writing. */
#include "engine/hf_config.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/hf.h"
#include "io/file.h"
#include "io/path.h"

struct ot_hf_config {
    char *text; /* as it was read; NULL for one that was made */
    size_t bytes;
    json_t *object;
    ot_model_config model;
};

enum { CONFIG_BYTES_MAX = 16 << 20 };

/* ---- Opening ---- */

ot_status ot_hf_config_parse(const char *path, const char *text, size_t bytes, ot_hf_config **out)
{
    json_error_t error;
    ot_hf_config *config = calloc(1, sizeof *config);
    if (config == NULL || (config->text = malloc(bytes + 1)) == NULL) {
        free(config);
        return ot_fail(OT_ERR_INTERNAL, "out of memory for %s", path);
    }
    memcpy(config->text, text, bytes);
    config->bytes = bytes;
    config->object = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    ot_status status = OT_OK;
    if (config->object == NULL)
        status = ot_fail(OT_ERR_FORMAT, "%s:%d: %s", path, error.line, error.text);
    else if (!json_is_object(config->object))
        status = ot_fail(OT_ERR_FORMAT, "%s: it is no JSON object", path);
    else
        status = ot_hf_read_model(path, config->object, &config->model);
    if (status != OT_OK) {
        ot_hf_config_close(config);
        return status;
    }
    *out = config;
    return OT_OK;
}

ot_status ot_hf_config_open(const char *directory, ot_hf_config **out)
{
    char path[PATH_MAX];
    struct stat facts;
    OT_TRY(ot_path_format(path, "%s/config.json", directory));
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return ot_fail(errno == ENOENT || errno == ENOTDIR ? OT_ERR_FORMAT : OT_ERR_IO, "cannot open %s: %s",
                       path, strerror(errno));
    char *text = NULL;
    ot_status status = OT_OK;
    if (fstat(fd, &facts) != 0 || !S_ISREG(facts.st_mode) || facts.st_size > CONFIG_BYTES_MAX)
        status = ot_fail(OT_ERR_FORMAT, "%s is no file of at most %d bytes", path, CONFIG_BYTES_MAX);
    else if ((text = malloc((size_t)facts.st_size + 1)) == NULL)
        status = ot_fail(OT_ERR_INTERNAL, "out of memory for %s", path);
    else
        status = ot_file_read(fd, path, 0, text, (uint64_t)facts.st_size);
    if (status == OT_OK)
        status = ot_hf_config_parse(path, text, (size_t)facts.st_size, out);
    free(text);
    close(fd);
    return status;
}

void ot_hf_config_close(ot_hf_config *config)
{
    if (config == NULL)
        return;
    json_decref(config->object);
    free(config->text);
    free(config);
}

const ot_model_config *ot_hf_config_model(const ot_hf_config *config)
{
    return &config->model;
}

/* ---- Making ---- */

/* The shortest decimal number that is the same FP32, as people write it: 1e-05. */
static json_t *short_real(float value)
{
    char text[32];
    for (int digits = 1; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)value);
        if (memcmp(&(float){strtof(text, NULL)}, &value, sizeof value) == 0)
            break;
    }
    return json_real(strtod(text, NULL));
}

static json_t *size(size_t value)
{
    return json_integer((json_int_t)value);
}

static json_t *rope_scaling(const ot_rope_scaling *rope)
{
    if (rope->kind == OT_ROPE_PLAIN)
        return json_null();
    json_t *out = json_pack("{s:s, s:f}", "rope_type", rope->kind == OT_ROPE_LINEAR ? "linear" : "llama3",
                            "factor", rope->factor);
    if (rope->kind == OT_ROPE_LLAMA3) {
        json_object_set_new(out, "low_freq_factor", json_real(rope->low_freq_factor));
        json_object_set_new(out, "high_freq_factor", json_real(rope->high_freq_factor));
        json_object_set_new(out, "original_max_position_embeddings",
                            json_integer((json_int_t)rope->original_positions));
    }
    return out;
}

static void make_llama(json_t *o, const ot_model_config *c, int bit)
{
    json_object_set_new(o, "hidden_size", size(c->C));
    json_object_set_new(o, "intermediate_size", size(c->F));
    json_object_set_new(o, "num_hidden_layers", size(c->L));
    json_object_set_new(o, "num_attention_heads", size(c->NH));
    json_object_set_new(o, "num_key_value_heads", size(c->NKV));
    json_object_set_new(o, "head_dim", size(c->HD));
    json_object_set_new(o, "max_position_embeddings", size(c->positions));
    json_object_set_new(o, "hidden_act", json_string("silu"));
    json_object_set_new(o, "rms_norm_eps", short_real(c->norm_eps));
    json_object_set_new(o, "rope_theta", json_real(c->rope.theta));
    json_object_set_new(o, "rope_scaling", rope_scaling(&c->rope));
    json_object_set_new(o, "attention_dropout", json_real(0));
    if (bit == OT_HF_LLAMA)
        json_object_set_new(o, "mlp_bias", json_false());
    if (bit == OT_HF_LLAMA || bit == OT_HF_QWEN3)
        json_object_set_new(o, "attention_bias", json_false());
    if (bit == OT_HF_MISTRAL || (bit & OT_HF_QWEN) != 0)
        json_object_set_new(o, "sliding_window", c->window > 0 ? size(c->window) : json_null());
    if ((bit & OT_HF_QWEN) != 0) {
        json_object_set_new(o, "use_sliding_window", json_boolean(c->window > 0));
        json_object_set_new(o, "max_window_layers", size(c->window > 0 ? 0 : c->L));
    }
}

static void make_gpt2(json_t *o, const ot_model_config *c)
{
    json_object_set_new(o, "n_embd", size(c->C));
    json_object_set_new(o, "n_inner", c->F == 4 * c->C ? json_null() : size(c->F));
    json_object_set_new(o, "n_layer", size(c->L));
    json_object_set_new(o, "n_head", size(c->NH));
    json_object_set_new(o, "n_positions", size(c->positions));
    json_object_set_new(o, "activation_function", json_string(c->gelu == OT_GELU_TANH ? "gelu_new" : "gelu"));
    json_object_set_new(o, "layer_norm_epsilon", short_real(c->norm_eps));
    json_object_set_new(o, "resid_pdrop", json_real(0));
    json_object_set_new(o, "embd_pdrop", json_real(0));
    json_object_set_new(o, "attn_pdrop", json_real(0));
}

static json_t *token(int32_t id)
{
    return id < 0 ? json_null() : json_integer(id);
}

ot_status ot_hf_config_make(const ot_model_config *c, ot_hf_config **out)
{
    const ot_hf_architecture *is = ot_hf_find_architecture(c->architecture, NULL);
    OT_ASSERT(is != NULL);
    ot_hf_config *config = calloc(1, sizeof *config);
    json_t *o = json_pack("{s:[s], s:s}", "architectures", is->name, "model_type", is->model_type);
    if (config == NULL || o == NULL) {
        free(config);
        return ot_fail(OT_ERR_INTERNAL, "out of memory for a config.json");
    }
    json_object_set_new(o, "vocab_size", size(c->V));
    if (is->bit == OT_HF_GPT2)
        make_gpt2(o, c);
    else
        make_llama(o, c, is->bit);
    json_object_set_new(o, "tie_word_embeddings", json_boolean(c->tied));
    json_object_set_new(o, "bos_token_id", token(c->bos));
    json_object_set_new(o, "eos_token_id", token(c->eos));
    json_object_set_new(o, "initializer_range", json_real(c->init_std));
    json_object_set_new(o, "use_cache", json_true());
    config->object = o;
    ot_status status = ot_hf_read_model("config.json", o, &config->model);
    if (status != OT_OK) {
        ot_hf_config_close(config);
        return status;
    }
    *out = config;
    return OT_OK;
}

/* ---- Writing ---- */

/* Sets the dtype under the names that are there; returns whether it was so before. */
static int set_dtype(json_t *object, const char *dtype)
{
    static const char *const names[] = {"torch_dtype", "dtype"};
    int found = 0, same = 1;
    for (size_t i = 0; i < 2; i++) {
        const char *now = json_string_value(json_object_get(object, names[i]));
        if (json_object_get(object, names[i]) == NULL)
            continue;
        found = 1;
        same = same && now != NULL && strcmp(now, dtype) == 0;
        json_object_set_new(object, names[i], json_string(dtype));
    }
    if (!found)
        json_object_set_new(object, names[0], json_string(dtype));
    return found && same;
}

ot_status ot_hf_config_write(const ot_hf_config *config, ot_dtype dtype, const char *path)
{
    OT_ASSERT(dtype != OT_INT8);
    json_t *object = json_deep_copy(config->object);
    int same = set_dtype(object, dtype == OT_FP32 ? "float32" : dtype == OT_BF16 ? "bfloat16" : "float16");
    char *text = NULL;
    ot_status status;
    if (same && config->text != NULL)
        status = ot_file_replace(path, config->text, config->bytes);
    else if ((text = json_dumps(object, JSON_INDENT(2))) == NULL)
        status = ot_fail(OT_ERR_INTERNAL, "out of memory for %s", path);
    else
        status = ot_file_replace(path, text, strlen(text));
    free(text);
    json_decref(object);
    return status;
}
