/* `offtrain inspect`: what a run would train on, token by token and in figures. */
#include "tools/inspect.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/path.h"
#include "tools/command.h"
#include "tools/job_data.h"
#include "tools/json.h"

typedef struct inspect_flags {
    ot_option_list path;
    const char *model, *data_format, *chat_template, *train_on, *long_documents;
    int64_t seq_len, samples, threads;
    int packing, json;
} inspect_flags;

#define FIELD(name) offsetof(inspect_flags, name)
static const ot_option options[] = {
    {"_", OT_OPTION_LIST, FIELD(path), "FILE|DIR", NULL, NULL, "data, or the folder of a model", NULL},
    {"model", OT_OPTION_TEXT, FIELD(model), "NAME|DIR", NULL, NULL,
     "of the data: a folder with tokenizer.json, or a preset, whose tokens are bytes", NULL},
    {"samples", OT_OPTION_INT, FIELD(samples), "N", "3", NULL, "documents to show", NULL},
    {"data-format", OT_OPTION_TEXT, FIELD(data_format), "NAME", "auto", OT_DATA_FORMAT_NAMES,
     "what the file is; auto: looks", NULL},
    {"template", OT_OPTION_TEXT, FIELD(chat_template), "NAME", "auto", "auto|" OT_TEMPLATE_NAMES,
     "how conversations are written; auto: as the tokenizer says", NULL},
    {"train-on", OT_OPTION_TEXT, FIELD(train_on), "WORD", "auto", OT_TRAIN_ON_NAMES,
     "what is learnt: all answers, the last one, or every token", NULL},
    {"seq-len", OT_OPTION_INT, FIELD(seq_len), "N", "2048", NULL, "tokens of a sequence",
     "max-length|cutoff-len|block-size"},
    {"packing", OT_OPTION_FLAG, FIELD(packing), NULL, "on", NULL, "several documents in a sequence", NULL},
    {"long", OT_OPTION_TEXT, FIELD(long_documents), "WORD", "cut", "drop|cut|split",
     "rows longer than a sequence", NULL},
    {"threads", OT_OPTION_INT, FIELD(threads), "N", "auto", "auto",
     "of the CPU; auto: one for each core allowed", NULL},
    {"json", OT_OPTION_FLAG, FIELD(json), NULL, NULL, NULL, "the statistics as one JSON object", NULL},
};
static const ot_option_table table = {
    "offtrain inspect",
    "Shows what data trains: trained text is marked, by colour or «like this». Or what a model is.", options,
    sizeof options / sizeof *options};

/* ---- documents ---- */

/* How trained text begins and ends. */
typedef struct marks {
    const char *begin, *end;
} marks;

/* Decoded from the beginning each time: a part alone is not always what it is in the whole. */
static ot_status print_marked(const ot_tokenizer *tokenizer, const int32_t *ids, const unsigned char *trained,
                              size_t count, marks m)
{
    size_t printed = 0;
    for (size_t begin = 0, end; begin < count; begin = end) {
        for (end = begin + 1; end < count && trained[end] == trained[begin];)
            end++;
        char *text;
        size_t bytes;
        OT_TRY(ot_tokenizer_decode(tokenizer, ids, end, 1, &text, &bytes));
        if (bytes > printed) {
            fputs(trained[begin] ? m.begin : "", stdout);
            fwrite(text + printed, 1, bytes - printed, stdout);
            fputs(trained[begin] ? m.end : "", stdout);
            printed = bytes;
        }
        free(text);
    }
    return OT_OK;
}

static ot_status show_document(const ot_tokens *tokens, const ot_tokenizer *tokenizer, uint64_t document,
                               size_t T)
{
    const marks m = isatty(STDOUT_FILENO) ? (marks){"\033[4;32m", "\033[0m"} : (marks){"«", "»"};
    uint64_t start = ot_tokens_start(tokens, document), all = ot_tokens_start(tokens, document + 1) - start,
             line;
    size_t count = all < T + 1 ? (size_t)all : T + 1;
    const char *file = ot_tokens_origin(tokens, document, &line);
    int32_t *ids = malloc(count * sizeof *ids);
    unsigned char *trained = malloc(count);
    ot_status status = OT_OK;
    if (ids == NULL || trained == NULL)
        OT_TRY_GOTO(ot_fail(OT_ERR_INTERNAL, "out of memory for a document"), out);
    for (size_t i = 0; i < count; i++) {
        ids[i] = ot_tokens_id(tokens, start + i);
        trained[i] = i > 0 && ot_tokens_trained(tokens, start + i);
    }
    printf("--- %s", file);
    if (line > 0)
        printf(":%" PRIu64, line);
    printf(": %" PRIu64 " tokens, %" PRIu64 " of them trained\n", all,
           ot_tokens_count_trained(tokens, start + 1, all - 1));
    OT_TRY_GOTO(print_marked(tokenizer, ids, trained, count, m), out);
    printf("\n");
    if (count < all)
        printf("… and %" PRIu64 " tokens beyond --seq-len\n", all - count);
out:
    free(ids);
    free(trained);
    return status;
}

/* ---- figures ---- */

enum { CLASSES = 40, BAR = 40 };

/* Documents by length: class i holds those of 2^i to 2^(i+1)-1 tokens. */
static void count_lengths(const ot_tokens *tokens, uint64_t classes[CLASSES])
{
    uint64_t documents = ot_tokens_query(tokens)->documents;
    memset(classes, 0, CLASSES * sizeof *classes);
    for (uint64_t d = 0; d < documents; d++) {
        uint64_t length = ot_tokens_start(tokens, d + 1) - ot_tokens_start(tokens, d);
        int i = 63 - __builtin_clzll(length);
        classes[i < CLASSES ? i : CLASSES - 1]++;
    }
}

static void print_lengths(const uint64_t classes[CLASSES])
{
    uint64_t most = 1;
    for (int i = 0; i < CLASSES; i++)
        most = classes[i] > most ? classes[i] : most;
    printf("lengths\n");
    for (int i = 0; i < CLASSES; i++) {
        char bar[BAR + 1];
        int length = (int)((double)classes[i] / (double)most * BAR + 0.5);
        memset(bar, '#', BAR);
        bar[length] = '\0';
        if (classes[i] > 0)
            printf("  %8" PRIu64 " to %8" PRIu64 " tokens  %8" PRIu64 "  %s\n", UINT64_C(1) << i,
                   (UINT64_C(2) << i) - 1, classes[i], bar);
    }
}

static double percent(uint64_t part, uint64_t whole)
{
    return whole > 0 ? 100.0 * (double)part / (double)whole : 0;
}

static void print_figures(const ot_tokens *tokens, const ot_data_stats *s, size_t T, int packing)
{
    const ot_tokens_info *info = ot_tokens_query(tokens);
    uint64_t classes[CLASSES], dropped = s->dropped_long + s->dropped_prompt + s->dropped_untrained;
    count_lengths(tokens, classes);
    print_lengths(classes);
    printf("documents %" PRIu64 ", %" PRIu64 " tokens, the longest %" PRIu64 "\n", info->documents,
           info->tokens, info->longest);
    printf("trained   %" PRIu64 " tokens, %.1f %%; masked %" PRIu64 "\n", info->trained,
           percent(info->trained, info->tokens), info->tokens - info->trained);
    printf("truncated %" PRIu64 " documents, %" PRIu64 " tokens lost\n", s->truncated, s->lost);
    printf("dropped   %" PRIu64 " documents: %" PRIu64 " with nothing to train within --seq-len, %" PRIu64
           " too long, %" PRIu64 " with nothing to train\n",
           dropped, s->dropped_prompt, s->dropped_long, s->dropped_untrained);
    printf("windows   %" PRIu64
           " of %zu tokens, %.1f %% full, packing %s; one document each would be %" PRIu64 ", %.1f %% full\n",
           s->windows, T, 100 * s->efficiency, packing ? "on" : "off", s->pieces,
           percent(s->inputs, s->pieces * T));
}

static ot_status print_json(const ot_tokens *tokens, const ot_data_stats *s)
{
    const ot_tokens_info *info = ot_tokens_query(tokens);
    uint64_t classes[CLASSES];
    json_t *lengths = json_object();
    count_lengths(tokens, classes);
    for (int i = 0; i < CLASSES; i++)
        if (classes[i] > 0) {
            char least[24];
            snprintf(least, sizeof least, "%" PRIu64, UINT64_C(1) << i);
            json_object_set_new(lengths, least, ot_json_count(classes[i]));
        }
    json_t *root =
        json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:f, s:o}", "documents",
                  ot_json_count(info->documents), "tokens", ot_json_count(info->tokens), "trained",
                  ot_json_count(info->trained), "longest", ot_json_count(info->longest), "truncated",
                  ot_json_count(s->truncated), "lost", ot_json_count(s->lost), "dropped_long",
                  ot_json_count(s->dropped_long), "dropped_prompt", ot_json_count(s->dropped_prompt),
                  "dropped_untrained", ot_json_count(s->dropped_untrained), "windows",
                  ot_json_count(s->windows), "efficiency", s->efficiency, "lengths", lengths);
    return ot_json_line(root, stdout, "the JSON output");
}

/* ---- the command ---- */

static ot_status open_tokens(const inspect_flags *flags, const ot_tokenizer *tokenizer, size_t V,
                             ot_tokens **out)
{
    const ot_samples_options samples = {.files = flags->path.items,
                                        .file_count = 1,
                                        .format = ot_data_format_of(flags->data_format),
                                        .train_on = ot_train_on_of(flags->train_on),
                                        .tokenizer = tokenizer,
                                        .chat_template = flags->chat_template,
                                        .V = V,
                                        .threads = flags->threads == OT_AUTO_INT ? 0 : (int)flags->threads};
    if (ot_tokens_recognise(flags->path.items[0]))
        return ot_tokens_open(flags->path.items[0], out);
    return ot_samples_write(&samples, NULL, out);
}

static ot_status inspect_tokens(const inspect_flags *flags, const ot_tokens *tokens,
                                const ot_tokenizer *tokenizer, size_t V)
{
    const ot_tokens *list[] = {tokens};
    ot_dataset *dataset;
    const ot_data_options data = {.tokens = list,
                                  .token_count = 1,
                                  .T = (size_t)flags->seq_len,
                                  .V = V,
                                  .packing = flags->packing,
                                  .long_documents = ot_long_of(flags->long_documents)};
    uint64_t documents = ot_tokens_query(tokens)->documents;
    for (uint64_t d = 0; !flags->json && d < documents && d < (uint64_t)flags->samples; d++)
        OT_TRY(show_document(tokens, tokenizer, d, data.T));
    fflush(stdout);
    OT_TRY(ot_dataset_open(&data, &dataset));
    ot_status status = OT_OK;
    if (flags->json)
        status = print_json(tokens, ot_dataset_stats(dataset));
    else
        print_figures(tokens, ot_dataset_stats(dataset), data.T, flags->packing);
    ot_dataset_close(dataset);
    return status;
}

static ot_status inspect_data(const inspect_flags *flags)
{
    ot_tokenizer *tokenizer;
    ot_tokens *tokens = NULL;
    size_t V;
    if (flags->model == NULL)
        return ot_fail(OT_ERR_USAGE, "--model is missing; a folder with tokenizer.json, or a preset");
    OT_TRY(ot_tokenizer_of_model(flags->model, &tokenizer, &V));
    ot_status status = open_tokens(flags, tokenizer, V, &tokens);
    if (status == OT_OK)
        status = inspect_tokens(flags, tokens, tokenizer, V);
    ot_tokens_close(tokens);
    ot_tokenizer_close(tokenizer);
    return status;
}

ot_status ot_command_inspect(int argc, char **argv)
{
    inspect_flags flags = {0};
    int help;
    OT_TRY(ot_options_parse(&table, argc, argv, &flags, &help));
    if (help)
        return OT_OK;
    if (flags.path.count != 1)
        return ot_fail(OT_ERR_USAGE, "one file or folder to look at is needed; %zu are given",
                       flags.path.count);
    if (flags.seq_len < 2 || flags.seq_len > 1 << 24 || flags.samples < 0 ||
        (flags.threads != OT_AUTO_INT && (flags.threads < 1 || flags.threads > 1024)))
        return ot_fail(OT_ERR_USAGE, "--seq-len: 2 to 16777216; --samples: 0 or more; --threads: 1 to 1024");
    if (ot_path_is_folder(flags.path.items[0]))
        return ot_inspect_model(flags.path.items[0], flags.json);
    return inspect_data(&flags);
}
