#include "engine/samples.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>
#include <xxhash.h>

#include "engine/corpus.h"
#include "engine/data.h"
#include "io/jsonl.h"
#include "io/log.h"
#include "io/path.h"

enum { SAMPLES_VERSION = 1 }; /* rises when the same files become other tokens */

static const char builtin_name[] = "the built-in sample";

/* ---- what a file is ---- */

static int ends_with(const char *path, const char *const *endings)
{
    size_t length = strlen(path);
    for (; *endings != NULL; endings++) {
        size_t n = strlen(*endings);
        if (length >= n && strcasecmp(path + length - n, *endings) == 0)
            return 1;
    }
    return 0;
}

/* By its name, or where that says nothing by its first line. */
static ot_data_format recognise(const char *path, const ot_mapping *map)
{
    static const char *const rows[] = {".jsonl", ".ndjson", ".json", NULL};
    static const char *const texts[] = {".txt", ".md", ".text", NULL};
    static const char *const tokens[] = {".bin", NULL};
    if (ends_with(path, tokens))
        return OT_DATA_BIN;
    if (ends_with(path, rows))
        return OT_DATA_JSONL;
    if (ends_with(path, texts))
        return OT_DATA_TEXT;
    ot_jsonl lines;
    ot_jsonl_line line;
    json_t *row;
    ot_jsonl_init(&lines, map->data, map->bytes);
    if (!ot_jsonl_next(&lines, &line) || line.text[0] != '{' || ot_jsonl_parse(path, &line, &row) != OT_OK)
        return OT_DATA_TEXT;
    json_decref(row);
    return OT_DATA_JSONL;
}

static ot_status encode_map(ot_corpus *c, const ot_mapping *map)
{
    static const ot_row_kind kinds[OT_DATA_FORMATS] = {[OT_DATA_MESSAGES] = OT_ROW_MESSAGES,
                                                       [OT_DATA_ALPACA] = OT_ROW_ALPACA,
                                                       [OT_DATA_SHAREGPT] = OT_ROW_SHAREGPT,
                                                       [OT_DATA_COMPLETION] = OT_ROW_COMPLETION};
    ot_data_format format = c->options->format;
    if (format == OT_DATA_AUTO)
        format = recognise(c->path, map);
    switch (format) {
    case OT_DATA_TEXT:
        return ot_encode_text(c, map->data, map->bytes);
    case OT_DATA_BIN:
        return ot_encode_bin(c, map);
    case OT_DATA_JSONL:
        return ot_encode_jsonl(c, map, NULL);
    default:
        return ot_encode_jsonl(c, map, &kinds[format]);
    }
}

static ot_status open_file(const char *path, ot_mapping *map)
{
    OT_TRY(ot_mapping_open(path, map));
    if (map->bytes == 0)
        return ot_fail(OT_ERR_DATA, "%s has 0 bytes; there is nothing to train on in it", path);
    return OT_OK;
}

static ot_status encode_file(ot_corpus *c)
{
    ot_mapping map;
    OT_TRY(open_file(c->path, &map));
    ot_status status = encode_map(c, &map);
    ot_mapping_close(&map);
    return status;
}

static ot_status encode_sample(ot_corpus *c)
{
    size_t bytes;
    char *text = ot_builtin_text(&bytes);
    if (text == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for the built-in sample");
    ot_status status = ot_encode_text(c, text, bytes);
    free(text);
    return status;
}

static ot_status encode_files(ot_corpus *c)
{
    const ot_samples_options *o = c->options;
    c->path = builtin_name;
    if (o->file_count == 0)
        return encode_sample(c);
    for (size_t i = 0; i < o->file_count; i++) {
        c->file = (uint32_t)i;
        c->path = o->files[i];
        OT_TRY(encode_file(c));
    }
    return OT_OK;
}

ot_status ot_corpus_check_ids(const ot_ids *ids, size_t V)
{
    for (size_t i = 0; i < ids->count; i++)
        if ((size_t)ids->ids[i] >= V)
            return ot_fail(OT_ERR_DATA,
                           "token id %d is beyond the model's vocabulary of %zu; is this its tokenizer?",
                           ids->ids[i], V);
    return OT_OK;
}

/* ---- writing ---- */

static ot_status check_tokenizer(const ot_tokenizer_info *tokenizer, size_t V)
{
    const int32_t ids[] = {tokenizer->add_bos ? tokenizer->bos : -1, tokenizer->eos};
    for (size_t i = 0; i < 2; i++)
        if (ids[i] >= 0 && (size_t)ids[i] >= V)
            return ot_fail(
                OT_ERR_FORMAT,
                "the tokenizer's %s is token %d, beyond the model's vocabulary of %zu; they do not belong "
                "together",
                i == 0 ? "BOS" : "EOS", ids[i], V);
    return OT_OK;
}

static ot_status write_hashed(const ot_samples_options *options, uint64_t hash, const char *path,
                              ot_tokens **out)
{
    static const char *const builtin[] = {builtin_name};
    ot_corpus c = {.options = options};
    ot_tokenizer_query(options->tokenizer, &c.tokenizer);
    c.V = options->V > 0 ? options->V : c.tokenizer.V;
    const ot_tokens_options file = {.V = c.V,
                                    .tokenizer_hash = c.tokenizer.hash,
                                    .options_hash = hash,
                                    .files = options->file_count > 0 ? options->files : builtin,
                                    .file_count = options->file_count > 0 ? options->file_count : 1};
    OT_TRY(check_tokenizer(&c.tokenizer, c.V));
    OT_TRY(ot_team_open(options->threads, &c.team));
    ot_status status = ot_tokens_writer_open(path, &file, &c.writer);
    if (status == OT_OK)
        status = encode_files(&c);
    ot_team_close(c.team);
    if (status == OT_OK)
        return ot_tokens_writer_close(c.writer, out);
    ot_error failure = ot_error_take();
    ot_tokens_writer_abandon(c.writer);
    return ot_error_raise(&failure);
}

static ot_status hash_file(const char *path, XXH3_state_t *state)
{
    ot_mapping map;
    OT_TRY(open_file(path, &map));
    uint64_t facts[2] = {strlen(path), map.bytes};
    XXH3_64bits_update(state, facts, sizeof facts);
    XXH3_64bits_update(state, path, strlen(path));
    XXH3_64bits_update(state, map.data, map.bytes);
    ot_mapping_close(&map);
    return OT_OK;
}

/* XXH3 of everything that decides the tokens: the files' names and contents, tokenizer, template and options. */
static ot_status hash_samples(const ot_samples_options *options, uint64_t *hash)
{
    ot_tokenizer_info info;
    ot_tokenizer_query(options->tokenizer, &info);
    const uint64_t numbers[] = {
        SAMPLES_VERSION,        info.hash,  (uint64_t)(int64_t)info.bos, (uint64_t)(int64_t)info.eos,
        (uint64_t)info.add_bos, options->V, (uint64_t)options->format,   (uint64_t)options->train_on,
        options->file_count};
    XXH3_state_t *state = XXH3_createState();
    if (state == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for a hash");
    XXH3_64bits_reset(state);
    XXH3_64bits_update(state, numbers, sizeof numbers);
    XXH3_64bits_update(state, options->chat_template, strlen(options->chat_template) + 1);
    if (info.chat_template != NULL)
        XXH3_64bits_update(state, info.chat_template, strlen(info.chat_template) + 1);
    ot_status status = OT_OK;
    for (size_t i = 0; status == OT_OK && i < options->file_count; i++)
        status = hash_file(options->files[i], state);
    *hash = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    return status;
}

ot_status ot_samples_write(const ot_samples_options *options, const char *path, ot_tokens **out)
{
    uint64_t hash;
    OT_TRY(hash_samples(options, &hash));
    return write_hashed(options, hash, path, out);
}

ot_status ot_samples_builtin(size_t V, ot_tokens **out)
{
    ot_tokenizer *tokenizer;
    OT_TRY(ot_tokenizer_open_bytes(V, -1, -1, &tokenizer));
    const ot_samples_options options = {
        .tokenizer = tokenizer, .chat_template = "auto", .V = V, .threads = 1};
    ot_status status = write_hashed(&options, 0, NULL, out);
    ot_tokenizer_close(tokenizer);
    return status;
}

/* ---- the cache ---- */

/* Removes what processes that have died were writing. */
static void sweep(const char *folder)
{
    DIR *entries = opendir(folder);
    if (entries == NULL)
        return;
    for (struct dirent *entry; (entry = readdir(entries)) != NULL;) {
        const char *mark = strstr(entry->d_name, ".bin.tmp-");
        char path[PATH_MAX];
        long pid = mark != NULL ? strtol(mark + strlen(".bin.tmp-"), NULL, 10) : 0;
        if (pid > 0 && pid <= INT_MAX && kill((pid_t)pid, 0) != 0 && errno == ESRCH &&
            ot_path_format(path, "%s/%s", folder, entry->d_name) == OT_OK)
            unlink(path);
    }
    closedir(entries);
}

static ot_status make_writable(const char *folder)
{
    OT_TRY(ot_path_make_folders(folder));
    if (access(folder, W_OK) != 0)
        return ot_fail(OT_ERR_IO, "%s: %s", folder, strerror(errno));
    return OT_OK;
}

ot_status ot_samples_open(const ot_samples_options *options, const char *folder, ot_tokens **out)
{
    uint64_t hash;
    char path[PATH_MAX];
    OT_TRY(hash_samples(options, &hash));
    if (folder == NULL || options->file_count == 0)
        return write_hashed(options, hash, NULL, out);
    if (ot_path_format(path, "%s/tokens-%016" PRIx64 ".bin", folder, hash) != OT_OK ||
        make_writable(folder) != OT_OK) {
        ot_log(OT_LOG_WARNING, "%s; the tokens are kept in memory and made again each time", ot_error_text());
        return write_hashed(options, hash, NULL, out);
    }
    sweep(folder);
    if (access(path, F_OK) == 0) {
        if (ot_tokens_open(path, out) == OT_OK) {
            if (ot_tokens_query(*out)->options_hash == hash) {
                ot_log(OT_LOG_INFO, "tokens of before: %s", path);
                return OT_OK;
            }
            ot_tokens_close(*out);
        }
        ot_log(OT_LOG_WARNING, "%s is not whole and is made again", path);
    }
    return write_hashed(options, hash, path, out);
}
