/* Tokenizers: opening, closing, and a text's way to ids. */
#include "io/tokenizer.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "io/path.h"
#include "io/tokenizer_parts.h"
#include "io/utf8.h"

static ot_status read_all(ot_tokenizer *tokenizer, const char *directory, const json_t *root)
{
    OT_TRY(ot_tokenizer_read_model(tokenizer, root));
    OT_TRY(ot_tokenizer_read_normalizer(tokenizer, json_object_get(root, "normalizer")));
    OT_TRY(ot_tokenizer_read_splits(tokenizer, json_object_get(root, "pre_tokenizer")));
    OT_TRY(ot_tokenizer_index_model(tokenizer));
    OT_TRY(ot_tokenizer_read_added(tokenizer, root));
    OT_TRY(ot_tokenizer_read_decoder(tokenizer, json_object_get(root, "decoder")));
    return ot_tokenizer_read_config(tokenizer, directory, root);
}

/* The file's own hash, and what the files beside it change. */
static uint64_t final_hash(const ot_tokenizer_info *info, uint64_t file)
{
    uint64_t parts[] = {file,
                        info->V,
                        (uint64_t)(int64_t)info->bos,
                        (uint64_t)(int64_t)info->eos,
                        (uint64_t)info->add_bos,
                        (uint64_t)info->is_bytes};
    return XXH3_64bits(parts, sizeof parts);
}

ot_status ot_tokenizer_parse(const char *directory, const char *path, const char *data, size_t bytes,
                             ot_tokenizer **out)
{
    json_t *root;
    OT_TRY(ot_json_parse(path, data, bytes, 0, &root));
    ot_tokenizer *tokenizer = calloc(1, sizeof *tokenizer);
    ot_status status = OT_ERR_INTERNAL;
    if (tokenizer == NULL || (tokenizer->path = strdup(path)) == NULL)
        status = ot_fail(OT_ERR_INTERNAL, "out of memory for %s", path);
    else
        status = read_all(tokenizer, directory, root);
    json_decref(root);
    if (status != OT_OK) {
        ot_tokenizer_close(tokenizer);
        return status;
    }
    tokenizer->info.chat_template = tokenizer->chat_template;
    tokenizer->info.hash = final_hash(&tokenizer->info, XXH3_64bits(data, bytes));
    *out = tokenizer;
    return OT_OK;
}

ot_status ot_tokenizer_open(const char *directory, ot_tokenizer **out)
{
    char path[PATH_MAX];
    OT_TRY(ot_path_format(path, "%s/tokenizer.json", directory));
    ot_bytes text = {0};
    ot_status status = ot_text_read(path, &text);
    if (status == OT_OK)
        status = ot_tokenizer_parse(directory, path, text.data, text.count, out);
    free(text.data);
    return status;
}

ot_status ot_tokenizer_open_bytes(size_t V, int32_t bos, int32_t eos, ot_tokenizer **out)
{
    if (V == 0 || V > OT_TOKEN_ID_MAX + 1)
        return ot_fail(OT_ERR_USAGE, "a byte tokenizer of %zu tokens; 1 to %d are supported", V,
                       OT_TOKEN_ID_MAX + 1);
    const int32_t specials[] = {bos, eos};
    for (size_t i = 0; i < 2; i++)
        if (specials[i] < -1 || (specials[i] >= 0 && (size_t)specials[i] >= V))
            return ot_fail(OT_ERR_USAGE, "%s of a byte tokenizer is %d, beyond its %zu tokens",
                           i == 0 ? "BOS" : "EOS", specials[i], V);
    ot_tokenizer *tokenizer = calloc(1, sizeof *tokenizer);
    if (tokenizer == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for a tokenizer");
    tokenizer->info = (ot_tokenizer_info){.V = V, .bos = bos, .eos = eos, .is_bytes = 1};
    tokenizer->info.hash = final_hash(&tokenizer->info, 0);
    *out = tokenizer;
    return OT_OK;
}

void ot_tokenizer_close(ot_tokenizer *tokenizer)
{
    if (tokenizer == NULL)
        return;
    for (size_t i = 0; i < OT_STEPS_MAX; i++) {
        ot_regex_free(&tokenizer->normal_steps[i].regex);
        ot_regex_free(&tokenizer->split_steps[i].regex);
        ot_regex_free(&tokenizer->decode_steps[i].regex);
        free(tokenizer->normal_steps[i].content);
        free(tokenizer->decode_steps[i].content);
    }
    free(tokenizer->before.edges.slots);
    free(tokenizer->before.added);
    free(tokenizer->after.edges.slots);
    free(tokenizer->after.added);
    free(tokenizer->merges.slots);
    free(tokenizer->words.slots);
    free(tokenizer->raw_words.slots);
    free(tokenizer->raw);
    free(tokenizer->tokens);
    free(tokenizer->in_model);
    free(tokenizer->added);
    free(tokenizer->added_of);
    free(tokenizer->text.data);
    free(tokenizer->chat_template);
    free(tokenizer->path);
    free(tokenizer);
}

void ot_tokenizer_query(const ot_tokenizer *tokenizer, ot_tokenizer_info *out)
{
    *out = tokenizer->info;
}

int32_t ot_tokenizer_find(const ot_tokenizer *tokenizer, const char *token)
{
    if (tokenizer->info.is_bytes)
        return token[0] != '\0' && token[1] == '\0' && (unsigned char)token[0] < tokenizer->info.V
                   ? (unsigned char)token[0]
                   : OT_NONE;
    return ot_words_find(&tokenizer->words, tokenizer->tokens, tokenizer->text.data, token, strlen(token),
                         OT_NONE);
}

static ot_status encode_bytes(const ot_tokenizer *tokenizer, const char *text, size_t bytes, ot_ids *out)
{
    for (size_t i = 0; i < bytes; i++) {
        if ((unsigned char)text[i] >= tokenizer->info.V)
            return ot_fail(OT_ERR_DATA, "byte %zu of the text is %d, beyond the vocabulary of %zu", i,
                           (unsigned char)text[i], tokenizer->info.V);
        OT_TRY(ot_ids_add(out, (unsigned char)text[i]));
    }
    return OT_OK;
}

static ot_status split_piece(ot_encoder *encoder, const char *text, size_t bytes, int first)
{
    return ot_split(encoder, 0, text, bytes, first);
}

static ot_status normalize_piece(ot_encoder *encoder, const char *text, size_t bytes, int first)
{
    OT_TRY(ot_normalize(encoder->of, encoder, &text, &bytes));
    return ot_added_split(encoder, &encoder->of->after, text, bytes, first, split_piece);
}

ot_status ot_tokenizer_encode(const ot_tokenizer *tokenizer, const char *text, size_t bytes, int special,
                              ot_ids *out)
{
    if (tokenizer->info.is_bytes)
        return encode_bytes(tokenizer, text, bytes, out);
    if (bytes > INT32_MAX / 4)
        return ot_fail(OT_ERR_DATA, "a text of %zu bytes; %d are supported, cut it", bytes, INT32_MAX / 4);
    if (out->encoder == NULL && (out->encoder = ot_encoder_new()) == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for encoding");
    ot_encoder *encoder = out->encoder;
    OT_TRY(ot_encoder_begin(encoder, tokenizer, bytes));
    encoder->of = tokenizer;
    encoder->special = special;
    encoder->out = out;
    if (ot_utf8_valid(text, bytes) < bytes) {
        encoder->repaired.count = 0;
        OT_TRY(ot_bytes_reserve(&encoder->repaired, 3 * bytes));
        bytes = ot_utf8_repair(text, bytes, encoder->repaired.data);
        text = encoder->repaired.data;
    }
    return ot_added_split(encoder, &tokenizer->before, text, bytes, 1, normalize_piece);
}
