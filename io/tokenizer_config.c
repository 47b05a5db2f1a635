/* The files beside tokenizer.json: BOS, EOS, chat template; and the post-processor, which may put BOS in front. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/path.h"
#include "io/tokenizer_parts.h"

/* tokenizer_config.json and special_tokens_map.json, each NULL where it is missing. */
typedef struct config {
    json_t *main, *map;
    char main_path[PATH_MAX], map_path[PATH_MAX];
} config;

static ot_status read_if_there(const char *directory, const char *name, char path[PATH_MAX], json_t **root)
{
    OT_TRY(ot_path_format(path, "%s/%s", directory, name));
    if (access(path, F_OK) != 0)
        return OT_OK;
    ot_bytes text = {0};
    ot_status status = ot_text_read(path, &text);
    if (status == OT_OK) /* model_max_length may be 1e30, which is no whole number of 64 bits */
        status = ot_json_parse(path, text.data, text.count, JSON_DECODE_INT_AS_REAL, root);
    free(text.data);
    return status;
}

/* A special token of the files, as a text or as an object with a "content". */
static ot_status special_token(const ot_tokenizer *tokenizer, const config *files, const char *key,
                               int32_t *id)
{
    const json_t *roots[] = {files->main, files->map};
    const char *paths[] = {files->main_path, files->map_path};
    *id = OT_NONE;
    for (size_t i = 0; i < 2; i++) {
        const json_t *value = json_object_get(roots[i], key);
        if (json_is_object(value))
            value = json_object_get(value, "content");
        if (value == NULL || json_is_null(value))
            continue;
        if (!json_is_string(value))
            return ot_fail(OT_ERR_FORMAT, "%s: '%s' is not a token", paths[i], key);
        *id = ot_tokenizer_find(tokenizer, json_string_value(value));
        if (*id == OT_NONE)
            return ot_fail(OT_ERR_FORMAT, "%s: '%s' is '%s', which %s does not have", paths[i], key,
                           json_string_value(value), tokenizer->path);
        return OT_OK;
    }
    return OT_OK;
}

/* What a TemplateProcessing puts in front of a text: nothing (OT_NONE) or one token. */
static ot_status template_front(const ot_tokenizer *tokenizer, const json_t *node, int32_t *front)
{
    const json_t *single = json_object_get(node, "single");
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *special = json_object_get(json_array_get(single, i), "SpecialToken");
        if (special == NULL)
            break; /* the text itself */
        const char *name;
        size_t bytes;
        OT_TRY(ot_json_text(special, "id", tokenizer->path, &name, &bytes));
        const json_t *entry = json_object_get(json_object_get(node, "special_tokens"), name);
        const json_t *ids = json_object_get(entry, "ids"), *id = json_array_get(ids, 0);
        if (*front != OT_NONE || json_array_size(ids) != 1 || !json_is_integer(id))
            return ot_fail(OT_ERR_FORMAT,
                           "%s: post_processor: more than one token in front of a text is not supported",
                           tokenizer->path);
        json_int_t value = json_integer_value(id);
        if (value < 0 || (size_t)value >= tokenizer->info.V)
            return ot_fail(OT_ERR_FORMAT, "%s: post_processor: no token has the id of '%s'", tokenizer->path,
                           name);
        *front = (int32_t)value;
    }
    return OT_OK;
}

static ot_status read_processor(const ot_tokenizer *tokenizer, const json_t *node, int depth, int32_t *front)
{
    if (node == NULL || json_is_null(node))
        return OT_OK;
    const char *type;
    size_t bytes;
    OT_TRY(ot_json_text(node, "type", tokenizer->path, &type, &bytes));
    if (strcmp(type, "ByteLevel") == 0) /* of offsets only */
        return OT_OK;
    if (strcmp(type, "TemplateProcessing") == 0)
        return template_front(tokenizer, node, front);
    const json_t *list = json_object_get(node, "processors");
    if (strcmp(type, "Sequence") != 0 || depth == 4 || !json_is_array(list))
        return ot_fail(
            OT_ERR_FORMAT,
            "%s: the post_processor '%s' is not supported; Sequence, ByteLevel and TemplateProcessing are",
            tokenizer->path, type);
    for (size_t i = 0; i < json_array_size(list); i++)
        OT_TRY(read_processor(tokenizer, json_array_get(list, i), depth + 1, front));
    return OT_OK;
}

/* A text, or of a list of {"name", "template"} the default one. */
static const json_t *named_template(const json_t *value)
{
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *entry = json_array_get(value, i), *name = json_object_get(entry, "name");
        if (json_is_string(name) && strcmp(json_string_value(name), "default") == 0)
            return json_object_get(entry, "template");
    }
    return value;
}

static ot_status read_template(ot_tokenizer *tokenizer, const char *directory, const config *files)
{
    char path[PATH_MAX];
    OT_TRY(ot_path_format(path, "%s/chat_template.jinja", directory));
    if (access(path, F_OK) == 0) {
        ot_bytes text = {0};
        ot_status status = ot_text_read(path, &text);
        if (status == OT_OK)
            text.data[text.count] = '\0'; /* for which there is room */
        tokenizer->chat_template = text.data;
        return status;
    }
    const json_t *value = json_object_get(files->main, "chat_template");
    if (json_is_array(value))
        value = named_template(value);
    if (!json_is_string(value))
        return OT_OK;
    tokenizer->chat_template = strdup(json_string_value(value));
    return tokenizer->chat_template != NULL ? OT_OK
                                            : ot_fail(OT_ERR_INTERNAL, "out of memory for a chat template");
}

/* As `transformers` does: "add_bos_token" decides where it is there, else the post-processor. */
static ot_status decide(ot_tokenizer *tokenizer, const char *directory, const json_t *root,
                        const config *files)
{
    ot_tokenizer_info *info = &tokenizer->info;
    int32_t front = OT_NONE;
    OT_TRY(special_token(tokenizer, files, "bos_token", &info->bos));
    OT_TRY(special_token(tokenizer, files, "eos_token", &info->eos));
    OT_TRY(read_processor(tokenizer, json_object_get(root, "post_processor"), 0, &front));
    int said;
    OT_TRY(ot_json_flag(files->main, "add_bos_token", front != OT_NONE, files->main_path, &said));
    if (info->bos == OT_NONE)
        info->bos = front;
    info->add_bos = said && info->bos != OT_NONE;
    if (info->add_bos && front != OT_NONE && front != info->bos)
        return ot_fail(OT_ERR_FORMAT,
                       "%s: post_processor puts the token %d in front of a text, but BOS is %d",
                       tokenizer->path, front, info->bos);
    return read_template(tokenizer, directory, files);
}

ot_status ot_tokenizer_read_config(ot_tokenizer *tokenizer, const char *directory, const json_t *root)
{
    config *files = calloc(1, sizeof *files);
    if (files == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for %s", directory);
    ot_status status = read_if_there(directory, "tokenizer_config.json", files->main_path, &files->main);
    if (status == OT_OK)
        status = read_if_there(directory, "special_tokens_map.json", files->map_path, &files->map);
    if (status == OT_OK)
        status = decide(tokenizer, directory, root, files);
    json_decref(files->main);
    json_decref(files->map);
    free(files);
    return status;
}
