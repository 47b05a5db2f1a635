/* tokenizer.json as GGUF metadata.
 *
 * Byte-level BPE becomes the model "gpt2": tokens, types, merges, and the name of the pattern that splits texts. BPE with byte
 * fallback becomes "llama", which merges the pair whose result has the best score; tokenizer.json has merges in the order of
 * those scores, so a token's score is minus the number of the first merge that makes it. */
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/file.h"
#include "io/json_file.h"
#include "io/log.h"
#include "io/path.h"
#include "tools/gguf.h"

typedef enum token_type {
    TOKEN_NORMAL = 1,
    TOKEN_UNKNOWN = 2,
    TOKEN_CONTROL = 3,
    TOKEN_USER = 4,
    TOKEN_UNUSED = 5,
    TOKEN_BYTE = 6,
} token_type;

typedef struct token {
    const char *text; /* NULL: no such id */
    token_type type;
    float score;
} token;

typedef struct tokenizer {
    char path[PATH_MAX];   /* of tokenizer.json */
    json_t *file, *config; /* tokenizer.json, tokenizer_config.json or NULL */
    const json_t *model, *vocab, *merges;
    int bytes; /* byte fallback: "llama" */
    size_t V;
    token *tokens; /* [V] */
} tokenizer;

/* ---- Tokens ---- */

static ot_status set_token(tokenizer *t, const json_t *id, const char *text, token_type type)
{
    if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= (json_int_t)t->V)
        return ot_fail(OT_ERR_FORMAT, "%s: token '%.40s' has no id below the model's vocabulary of %zu",
                       t->path, text, t->V);
    t->tokens[json_integer_value(id)] = (token){.text = text, .type = type};
    return OT_OK;
}

static int is_byte(const char *text)
{
    return strlen(text) == 6 && strncmp(text, "<0x", 3) == 0 && text[5] == '>';
}

static ot_status read_tokens(tokenizer *t)
{
    const char *text, *unknown = json_string_value(json_object_get(t->model, "unk_token"));
    json_t *id;
    json_object_foreach((json_t *)t->vocab, text, id)
    {
        token_type type = t->bytes && is_byte(text)                       ? TOKEN_BYTE
                          : unknown != NULL && strcmp(text, unknown) == 0 ? TOKEN_UNKNOWN
                                                                          : TOKEN_NORMAL;
        OT_TRY(set_token(t, id, text, type));
    }
    const json_t *added = json_object_get(t->file, "added_tokens");
    for (size_t i = 0; i < json_array_size(added); i++) {
        const json_t *entry = json_array_get(added, i);
        text = json_string_value(json_object_get(entry, "content"));
        if (text == NULL)
            return ot_fail(OT_ERR_FORMAT, "%s: added token %zu has no content", t->path, i);
        token_type type = unknown != NULL && strcmp(text, unknown) == 0     ? TOKEN_UNKNOWN
                          : json_is_true(json_object_get(entry, "special")) ? TOKEN_CONTROL
                                                                            : TOKEN_USER;
        OT_TRY(set_token(t, json_object_get(entry, "id"), text, type));
    }
    return OT_OK;
}

/* Merge `index` as its two parts: "a b", or ["a", "b"]. */
static ot_status merge_parts(const tokenizer *t, size_t index, const char **a, size_t *a_bytes,
                             const char **b)
{
    const json_t *merge = json_array_get(t->merges, index);
    const char *whole = json_string_value(merge);
    const char *space = whole != NULL ? strchr(whole[0] == ' ' ? whole + 1 : whole, ' ') : NULL;
    *a = whole != NULL ? whole : json_string_value(json_array_get(merge, 0));
    *b = whole != NULL ? (space != NULL ? space + 1 : NULL) : json_string_value(json_array_get(merge, 1));
    if (*a == NULL || *b == NULL)
        return ot_fail(OT_ERR_FORMAT, "%s: merge %zu is no pair of tokens", t->path, index);
    *a_bytes = space != NULL ? (size_t)(space - whole) : strlen(*a);
    return OT_OK;
}

enum { JOINED_BYTES = 1024 };

/* Both parts of a merge, with a text between them. */
static ot_status join_merge(const tokenizer *t, size_t index, const char *between, char out[JOINED_BYTES])
{
    const char *a = NULL, *b = NULL;
    size_t a_bytes = 0;
    OT_TRY(merge_parts(t, index, &a, &a_bytes, &b));
    if (a_bytes >= JOINED_BYTES ||
        snprintf(out, JOINED_BYTES, "%.*s%s%s", (int)a_bytes, a, between, b) >= JOINED_BYTES)
        return ot_fail(OT_ERR_FORMAT, "%s: merge %zu makes too long a token", t->path, index);
    return OT_OK;
}

/* Tokens that no merge makes come last: llama.cpp would merge to any token that is there. */
static ot_status read_scores(tokenizer *t)
{
    size_t merges = json_array_size(t->merges);
    for (size_t i = 0; i < t->V; i++)
        if (t->tokens[i].type == TOKEN_NORMAL)
            t->tokens[i].score = -(float)(merges + i);
    for (size_t i = merges; i-- > 0;) { /* so that the first one stays */
        char joined[JOINED_BYTES];
        OT_TRY(join_merge(t, i, "", joined));
        const json_t *id = json_object_get(t->vocab, joined);
        if (id == NULL)
            return ot_fail(OT_ERR_FORMAT, "%s: merge %zu makes a token that is not in the vocabulary",
                           t->path, i);
        t->tokens[json_integer_value(id)].score = -(float)i;
    }
    return OT_OK;
}

static ot_status put_merges(ot_gguf *g, const tokenizer *t)
{
    size_t merges = json_array_size(t->merges);
    ot_gguf_put_array(g, "tokenizer.ggml.merges", OT_GGUF_TEXT, merges);
    for (size_t i = 0; i < merges; i++) {
        char joined[JOINED_BYTES];
        OT_TRY(join_merge(t, i, " ", joined));
        ot_gguf_add_text(g, joined);
    }
    return OT_OK;
}

static void put_tokens(ot_gguf *g, const tokenizer *t)
{
    ot_gguf_put_array(g, "tokenizer.ggml.tokens", OT_GGUF_TEXT, t->V);
    for (size_t i = 0; i < t->V; i++) {
        char unused[32];
        snprintf(unused, sizeof unused, "[PAD%zu]", i);
        ot_gguf_add_text(g, t->tokens[i].text != NULL ? t->tokens[i].text : unused);
    }
    ot_gguf_put_array(g, "tokenizer.ggml.token_type", OT_GGUF_I32, t->V);
    for (size_t i = 0; i < t->V; i++)
        ot_gguf_add_i32(g, t->tokens[i].text != NULL ? (int32_t)t->tokens[i].type : TOKEN_UNUSED);
    if (!t->bytes)
        return;
    ot_gguf_put_array(g, "tokenizer.ggml.scores", OT_GGUF_F32, t->V);
    for (size_t i = 0; i < t->V; i++)
        ot_gguf_add_f32(g, t->tokens[i].score);
}

/* ---- How texts are split ---- */

/* The steps of a pre-tokenizer that is one or a sequence of them. */
static const json_t *step_at(const json_t *pre, size_t index)
{
    const json_t *list = json_object_get(pre, "pretokenizers");
    if (list != NULL)
        return json_array_get(list, index);
    return index == 0 && json_is_object(pre) ? pre : NULL;
}

static int is_step(const json_t *step, const char *type)
{
    const char *found = json_string_value(json_object_get(step, "type"));
    return found != NULL && strcmp(found, type) == 0;
}

/* llama.cpp knows splitting patterns by name. */
static const char *pattern_name(const tokenizer *t)
{
    static const struct {
        const char *name, *regex;
    } known[] = {
        {"llama-bpe", "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
                      "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
        {"qwen2", "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
                  "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
    };
    const json_t *pre = json_object_get(t->file, "pre_tokenizer"), *first = step_at(pre, 0),
                 *second = step_at(pre, 1);
    if (is_step(first, "ByteLevel") && second == NULL)
        return json_is_false(json_object_get(first, "use_regex")) ? NULL : "gpt-2";
    if (!is_step(second, "ByteLevel") || step_at(pre, 2) != NULL)
        return NULL;
    if (is_step(first, "Digits"))
        return json_is_true(json_object_get(first, "individual_digits")) ? "smollm" : NULL;
    const char *regex = json_string_value(json_object_get(json_object_get(first, "pattern"), "Regex"));
    for (size_t i = 0; is_step(first, "Split") && regex != NULL && i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i].regex, regex) == 0)
            return known[i].name;
    return NULL;
}

/* ---- Special tokens ---- */

/* "eos_token" of tokenizer_config.json, a text or an object with one. */
static const char *special_text(const tokenizer *t, const char *key)
{
    const json_t *value = json_object_get(t->config, key);
    return json_string_value(json_is_object(value) ? json_object_get(value, "content") : value);
}

static int32_t find_token(const tokenizer *t, const char *text)
{
    for (size_t i = 0; text != NULL && i < t->V; i++)
        if (t->tokens[i].text != NULL && strcmp(t->tokens[i].text, text) == 0)
            return (int32_t)i;
    return -1;
}

static void put_special(ot_gguf *g, const tokenizer *t, const char *key, const char *name, int32_t otherwise)
{
    int32_t id = find_token(t, special_text(t, name));
    id = id >= 0 ? id : otherwise;
    if (id >= 0)
        ot_gguf_put_u32(g, key, (uint32_t)id);
}

/* Whether the post-processor, or one of a sequence, begins texts with a special token; -1: there is none of its kind. */
static int template_begins(const json_t *processor)
{
    const json_t *list = json_object_get(processor, "processors");
    for (size_t i = 0; i < json_array_size(list); i++)
        if (template_begins(json_array_get(list, i)) >= 0)
            return template_begins(json_array_get(list, i));
    if (!is_step(processor, "TemplateProcessing"))
        return -1;
    return json_object_get(json_array_get(json_object_get(processor, "single"), 0), "SpecialToken") != NULL;
}

static void put_specials(ot_gguf *g, const tokenizer *t, const ot_model_config *model)
{
    const json_t *add = json_object_get(t->config, "add_bos_token");
    int begins = template_begins(json_object_get(t->file, "post_processor"));
    put_special(g, t, "tokenizer.ggml.bos_token_id", "bos_token", model->bos);
    put_special(g, t, "tokenizer.ggml.eos_token_id", "eos_token", model->eos);
    put_special(g, t, "tokenizer.ggml.unknown_token_id", "unk_token",
                find_token(t, json_string_value(json_object_get(t->model, "unk_token"))));
    put_special(g, t, "tokenizer.ggml.padding_token_id", "pad_token", -1);
    if (json_is_boolean(add) || begins >= 0)
        ot_gguf_put_flag(g, "tokenizer.ggml.add_bos_token",
                         json_is_boolean(add) ? json_is_true(add) : begins);
    const json_t *normalizers = json_object_get(json_object_get(t->file, "normalizer"), "normalizers");
    const json_t *pre = json_object_get(t->file, "pre_tokenizer");
    const char *scheme = json_string_value(json_object_get(pre, "prepend_scheme"));
    int space = is_step(json_array_get(normalizers, 0), "Prepend") ||
                (is_step(pre, "Metaspace") && (scheme == NULL || strcmp(scheme, "never") != 0));
    if (t->bytes)
        ot_gguf_put_flag(g, "tokenizer.ggml.add_space_prefix", space);
}

/* ---- The chat template ---- */

static ot_status put_template_file(ot_gguf *g, const char *path)
{
    FILE *file = ot_file_open_stream(path, OT_ERR_FORMAT);
    size_t bytes = 0, room = 0;
    char *text = NULL;
    ssize_t n = file != NULL ? getdelim(&text, &room, '\0', file) : -1;
    bytes = n > 0 ? (size_t)n : 0;
    if (file != NULL)
        fclose(file);
    if (bytes > 0)
        ot_gguf_put_text(g, "tokenizer.chat_template", text);
    free(text);
    return bytes > 0 ? OT_OK : ot_fail(OT_ERR_FORMAT, "%s: it is empty or cannot be read", path);
}

/* chat_template.jinja, or in tokenizer_config.json a text or a list of named ones, of which "default" is it. */
static ot_status put_template(ot_gguf *g, const tokenizer *t, const char *directory)
{
    char path[PATH_MAX];
    const json_t *value = json_object_get(t->config, "chat_template");
    OT_TRY(ot_path_format(path, "%s/chat_template.jinja", directory));
    if (access(path, F_OK) == 0)
        return put_template_file(g, path);
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *entry = json_array_get(value, i);
        const char *name = json_string_value(json_object_get(entry, "name"));
        if (name != NULL && strcmp(name, "default") == 0)
            value = json_object_get(entry, "template");
    }
    if (json_is_string(value))
        ot_gguf_put_text(g, "tokenizer.chat_template", json_string_value(value));
    return OT_OK;
}

/* ---- The whole ---- */

static ot_status open_tokenizer(tokenizer *t, const char *directory)
{
    char path[PATH_MAX];
    OT_TRY(ot_json_read(t->path, JSON_REJECT_DUPLICATES, &t->file));
    OT_TRY(ot_path_format(path, "%s/tokenizer_config.json", directory));
    if (access(path, F_OK) == 0) /* model_max_length is 1e30 in some */
        OT_TRY(ot_json_read(path, JSON_DECODE_INT_AS_REAL, &t->config));
    t->model = json_object_get(t->file, "model");
    t->vocab = json_object_get(t->model, "vocab");
    t->merges = json_object_get(t->model, "merges");
    const char *type = json_string_value(json_object_get(t->model, "type"));
    if ((type != NULL && strcmp(type, "BPE") != 0) || !json_is_object(t->vocab) || !json_is_array(t->merges))
        return ot_fail(OT_ERR_FORMAT, "%s: its model is %.40s, expected BPE with vocab and merges", t->path,
                       type != NULL ? type : "BPE");
    t->bytes = json_is_true(json_object_get(t->model, "byte_fallback"));
    t->tokens = calloc(t->V, sizeof *t->tokens);
    return t->tokens != NULL ? OT_OK
                             : ot_fail(OT_ERR_INTERNAL, "out of memory for the tokens of %s", t->path);
}

static ot_status put_tokenizer(ot_gguf *g, tokenizer *t, const char *directory, const ot_model_config *model)
{
    OT_TRY(open_tokenizer(t, directory));
    OT_TRY(read_tokens(t));
    const char *pattern = t->bytes ? "default" : pattern_name(t);
    if (pattern == NULL)
        return ot_fail(
            OT_ERR_FORMAT,
            "%s: GGUF has no name for its pre_tokenizer, expected that of GPT-2, Llama-3, Qwen2 or SmolLM2",
            t->path);
    ot_gguf_put_text(g, "tokenizer.ggml.model", t->bytes ? "llama" : "gpt2");
    ot_gguf_put_text(g, "tokenizer.ggml.pre", pattern);
    if (t->bytes)
        OT_TRY(read_scores(t));
    put_tokens(g, t);
    if (!t->bytes)
        OT_TRY(put_merges(g, t));
    put_specials(g, t, model);
    return put_template(g, t, directory);
}

ot_status ot_gguf_put_tokenizer(ot_gguf *g, const char *directory, const ot_model_config *model)
{
    tokenizer t = {.V = model->V};
    OT_TRY(ot_path_format(t.path, "%s/tokenizer.json", directory));
    if (access(t.path, F_OK) != 0) {
        ot_log(OT_LOG_WARNING, "%s has no tokenizer.json: the file will be without a tokenizer", directory);
        ot_gguf_put_text(g, "tokenizer.ggml.model", "none");
        return OT_OK;
    }
    ot_status status = put_tokenizer(g, &t, directory, model);
    free(t.tokens);
    json_decref(t.file);
    json_decref(t.config);
    return status;
}
