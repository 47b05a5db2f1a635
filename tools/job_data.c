#include "tools/job_data.h"

#include <inttypes.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "engine/hf_config.h"
#include "io/log.h"
#include "io/path.h"

/* ---- words ---- */

/* The place of a word in "a|b|c". */
static int place_of(const char *word, const char *words)
{
    size_t length = strlen(word);
    int place = 0;
    for (const char *at = words; at != NULL; place++) {
        size_t n = strcspn(at, "|");
        if (n == length && memcmp(at, word, n) == 0)
            return place;
        at = at[n] == '|' ? at + n + 1 : NULL;
    }
    return 0;
}

ot_data_format ot_data_format_of(const char *word)
{
    return (ot_data_format)place_of(word, OT_DATA_FORMAT_NAMES);
}

ot_train_on ot_train_on_of(const char *word)
{
    return (ot_train_on)place_of(word, OT_TRAIN_ON_NAMES);
}

ot_long ot_long_of(const char *word)
{
    return strcmp(word, "drop") == 0    ? OT_LONG_DROP
           : strcmp(word, "split") == 0 ? OT_LONG_SPLIT
                                        : OT_LONG_CUT;
}

/* ---- the tokenizer ---- */

static ot_status open_tokenizer(const char *folder, const ot_model_config *config, ot_tokenizer **out)
{
    if (folder != NULL && ot_path_has(folder, "tokenizer.json"))
        return ot_tokenizer_open(folder, out);
    enum { BYTES_AND_SOME = 512 }; /* a larger vocabulary is not one of bytes */
    if (folder != NULL && config->V > BYTES_AND_SOME)
        ot_log(OT_LOG_WARNING, "%s/tokenizer.json is not there: texts are read as bytes", folder);
    return ot_tokenizer_open_bytes(config->V, config->bos, config->eos, out);
}

/* A folder with a tokenizer alone is enough to tokenise. */
static ot_status open_of_folder(const char *folder, ot_tokenizer **out, size_t *V)
{
    ot_hf_config *config;
    if (!ot_path_has(folder, "config.json")) {
        ot_tokenizer_info info;
        OT_TRY(ot_tokenizer_open(folder, out));
        ot_tokenizer_query(*out, &info);
        *V = info.V;
        return OT_OK;
    }
    OT_TRY(ot_hf_config_open(folder, &config));
    *V = ot_hf_config_model(config)->V;
    ot_status status = open_tokenizer(folder, ot_hf_config_model(config), out);
    ot_hf_config_close(config);
    return status;
}

ot_status ot_tokenizer_of_model(const char *model, ot_tokenizer **out, size_t *V)
{
    if (ot_path_is_folder(model))
        return open_of_folder(model, out, V);
    ot_model_config config;
    OT_TRY(ot_model_preset(model, &config));
    *V = config.V;
    return open_tokenizer(NULL, &config, out);
}

/* ---- tokens ---- */

/* A token file that was made elsewhere. Bytes are no tokenizer that would have to agree: a preset has no other. */
static ot_status open_made(const char *path, const ot_tokenizer *tokenizer, ot_token_list *out)
{
    ot_tokenizer_info info;
    ot_tokenizer_query(tokenizer, &info);
    OT_TRY(ot_tokens_open(path, &out->items[out->count]));
    const ot_tokens_info *tokens = ot_tokens_query(out->items[out->count++]);
    if (!info.is_bytes && tokens->tokenizer_hash != 0 && tokens->tokenizer_hash != info.hash)
        return ot_fail(
            OT_ERR_DATA,
            "%s was made with another tokenizer than this model's; offtrain tokenize makes it again", path);
    return OT_OK;
}

/* Files that are to be tokenised become one list, in the place of the first of them. */
static ot_status open_tokens(const ot_train_flags *flags, const char *const *files, size_t count,
                             const ot_tokenizer *tokenizer, size_t V, ot_token_list *out)
{
    const char *texts[OT_OPTION_LIST_MAX];
    size_t text_count = 0, place = 0;
    char folder[PATH_MAX];
    OT_TRY(ot_path_format(folder, "%s/.cache", flags->output_dir));
    for (size_t i = 0; i < count; i++) {
        if (ot_tokens_recognise(files[i])) {
            OT_TRY(open_made(files[i], tokenizer, out));
            continue;
        }
        if (text_count == 0) {
            place = out->count;
            out->items[out->count++] = NULL;
        }
        texts[text_count++] = files[i];
    }
    if (count > 0 && text_count == 0)
        return OT_OK;
    if (count == 0)
        out->count = 1;
    const ot_samples_options options = {.files = texts,
                                        .file_count = text_count,
                                        .format = ot_data_format_of(flags->data_format),
                                        .train_on = ot_train_on_of(flags->train_on),
                                        .tokenizer = tokenizer,
                                        .chat_template = flags->chat_template,
                                        .V = V,
                                        .threads = flags->threads == OT_AUTO_INT ? 0 : (int)flags->threads};
    return ot_samples_open(&options, folder, &out->items[place]);
}

static void close_tokens(ot_token_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        ot_tokens_close(list->items[i]);
    list->count = 0;
}

/* ---- windows ---- */

static void report(const ot_data_stats *s, size_t T)
{
    if (s->truncated > 0)
        ot_log(OT_LOG_WARNING,
               "%" PRIu64 " of %" PRIu64 " documents were cut to --seq-len %zu, and %" PRIu64
               " tokens lost; --long split keeps them",
               s->truncated, s->documents, T, s->lost);
}

static ot_status open_dataset(const ot_train_flags *flags, const ot_model_config *config,
                              const ot_token_list *tokens, ot_data_part part, ot_dataset **out)
{
    const ot_data_options options = {.tokens = (const ot_tokens *const *)tokens->items,
                                     .token_count = tokens->count,
                                     .T = (size_t)flags->seq_len,
                                     .V = config->V,
                                     .packing = flags->packing,
                                     .long_documents = ot_long_of(flags->long_documents),
                                     .val_split = flags->val_split,
                                     .part = part,
                                     .shuffle = part != OT_DATA_EVAL && flags->shuffle,
                                     .seed = (uint64_t)flags->seed};
    OT_TRY(ot_dataset_open(&options, out));
    report(ot_dataset_stats(*out), options.T);
    return OT_OK;
}

ot_status ot_job_data_open(const ot_train_flags *flags, const char *tokenizer_folder,
                           const ot_model_config *config, ot_job_data *out)
{
    size_t V = config->V;
    OT_TRY(open_tokenizer(tokenizer_folder, config, &out->tokenizer));
    OT_TRY(
        open_tokens(flags, flags->data.items, flags->data.count, out->tokenizer, V, &out->training_tokens));
    OT_TRY(open_dataset(flags, config, &out->training_tokens,
                        flags->val_split > 0 ? OT_DATA_TRAIN : OT_DATA_ALL, &out->training));
    if (flags->val_split > 0)
        return open_dataset(flags, config, &out->training_tokens, OT_DATA_EVAL, &out->evaluation);
    if (flags->eval_data == NULL)
        return OT_OK;
    OT_TRY(open_tokens(flags, &flags->eval_data, 1, out->tokenizer, V, &out->evaluation_tokens));
    return open_dataset(flags, config, &out->evaluation_tokens, OT_DATA_ALL, &out->evaluation);
}

void ot_job_data_close(ot_job_data *data)
{
    ot_dataset_close(data->training);
    ot_dataset_close(data->evaluation);
    close_tokens(&data->training_tokens);
    close_tokens(&data->evaluation_tokens);
    ot_tokenizer_close(data->tokenizer);
    *data = (ot_job_data){0};
}
