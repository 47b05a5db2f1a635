/* `offtrain inspect DIR`. */
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "io/json_file.h"
#include "io/path.h"
#include "io/safetensors.h"
#include "io/template.h"
#include "io/text.h"
#include "tools/inspect.h"
#include "tools/json.h"

/* Everything as one object, from which the lines are printed, too. A part that the folder does not have is not there; one that is
 * broken has an "error". */

static json_t *describe_config(const char *folder)
{
    static const char *const keys[] = {"model_type",
                                       "hidden_size",
                                       "num_hidden_layers",
                                       "num_attention_heads",
                                       "num_key_value_heads",
                                       "head_dim",
                                       "intermediate_size",
                                       "vocab_size",
                                       "max_position_embeddings",
                                       "n_embd",
                                       "n_layer",
                                       "n_head",
                                       "n_positions",
                                       "rope_theta",
                                       "sliding_window",
                                       "tie_word_embeddings",
                                       "torch_dtype",
                                       "dtype"};
    char path[PATH_MAX];
    json_t *config;
    if (!ot_path_has(folder, "config.json") || ot_path_format(path, "%s/config.json", folder) != OT_OK)
        return NULL;
    if (ot_json_read(path, 0, &config) != OT_OK)
        return json_pack("{s:s}", "error", ot_error_text());
    json_t *out = json_object();
    json_t *name = json_array_get(json_object_get(config, "architectures"), 0);
    if (name != NULL)
        json_object_set(out, "architecture", name);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        json_t *value = json_object_get(config, keys[i]);
        if (value != NULL && !json_is_null(value))
            json_object_set(out, keys[i], value);
    }
    json_decref(config);
    return out;
}

static json_t *describe_tensors(const char *folder)
{
    ot_tensor_set *set;
    if (ot_tensor_set_open(folder, "model", &set) != OT_OK)
        return json_pack("{s:s}", "error", ot_error_text());
    uint64_t parameters = 0, bytes = 0;
    json_t *dtypes = json_object();
    size_t count = ot_tensor_set_count(set);
    for (size_t i = 0; i < count; i++) {
        const ot_file_tensor *tensor = ot_tensor_set_at(set, i);
        const char *dtype = ot_file_dtype_name(tensor->spec.dtype);
        uint64_t elements = tensor->bytes / ot_file_dtype_bytes(tensor->spec.dtype);
        parameters += elements;
        bytes += tensor->bytes;
        json_int_t before = json_integer_value(json_object_get(dtypes, dtype));
        json_object_set_new(dtypes, dtype, json_integer(before + (json_int_t)elements));
    }
    ot_tensor_set_close(set);
    return json_pack("{s:I, s:I, s:I, s:o}", "tensors", (json_int_t)count, "parameters",
                     (json_int_t)parameters, "bytes", (json_int_t)bytes, "dtypes", dtypes);
}

static json_t *token_json(const ot_tokenizer *tokenizer, int32_t id)
{
    char *text;
    size_t bytes;
    if (id < 0 || ot_tokenizer_decode(tokenizer, &id, 1, 1, &text, &bytes) != OT_OK)
        return json_null();
    json_t *token = json_pack("{s:i, s:s}", "id", (int)id, "text", ot_clean_utf8(text));
    free(text);
    return token;
}

static json_t *describe_tokenizer(const char *folder)
{
    ot_tokenizer *tokenizer;
    ot_template *chat = NULL;
    if (ot_tokenizer_open(folder, &tokenizer) != OT_OK)
        return json_pack("{s:s}", "error", ot_error_text());
    ot_tokenizer_info info;
    ot_tokenizer_query(tokenizer, &info);
    char hash[32];
    snprintf(hash, sizeof hash, "xxh3:%016" PRIx64, info.hash);
    json_t *out = json_pack("{s:I, s:o, s:o, s:b, s:s}", "vocabulary", (json_int_t)info.V, "bos",
                            token_json(tokenizer, info.bos), "eos", token_json(tokenizer, info.eos),
                            "add_bos", info.add_bos, "hash", hash);
    const char *name = "none";
    if (info.chat_template != NULL)
        name =
            ot_template_open("auto", "none", tokenizer, &chat) == OT_OK ? ot_template_name(chat) : "unknown";
    json_object_set_new(out, "template", json_string(name));
    ot_template_close(chat);
    ot_tokenizer_close(tokenizer);
    return out;
}

/* ---- as lines ---- */

static void print_values(const char *heading, const json_t *object)
{
    const char *key, *gap = "  ";
    json_t *value;
    if (object == NULL)
        return;
    printf("%-10s", heading);
    json_object_foreach((json_t *)(size_t)object, key, value)
    {
        char *text = json_is_string(value) ? NULL : json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
        printf("%s%s %s", *gap == ' ' ? "" : gap, key, text != NULL ? text : json_string_value(value));
        free(text);
        gap = ", ";
    }
    printf("\n");
}

static void print_lines(const char *folder, const json_t *root)
{
    static const char *const parts[] = {"config", "tensors", "tokenizer"};
    printf("model     %s\n", folder);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        print_values(parts[i], json_object_get(root, parts[i]));
}

ot_status ot_inspect_model(const char *folder, int json)
{
    json_t *config = describe_config(folder), *tokenizer = describe_tokenizer(folder);
    if (config == NULL && json_object_get(tokenizer, "error") != NULL) {
        json_decref(tokenizer);
        return ot_fail(
            OT_ERR_FORMAT,
            "%s has neither a config.json nor a tokenizer that can be read: it is no model's folder", folder);
    }
    json_t *root = json_pack("{s:o*, s:o, s:o}", "config", config, "tensors", describe_tensors(folder),
                             "tokenizer", tokenizer);
    if (root == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for a description of %s", folder);
    if (json)
        return ot_json_line(root, stdout, "the JSON output");
    print_lines(folder, root);
    json_decref(root);
    return OT_OK;
}
