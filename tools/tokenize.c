/* `offtrain tokenize`: data into a token file, which --data reads as it is. */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>

#include "io/clock.h"
#include "io/stop.h"
#include "tools/command.h"
#include "tools/job_data.h"
#include "tools/json.h"

typedef struct tokenize_flags {
    const char *model, *output, *data_format, *chat_template, *train_on;
    ot_option_list data;
    int64_t threads;
    int json;
} tokenize_flags;

#define FIELD(name) offsetof(tokenize_flags, name)
static const ot_option options[] = {
    {"model", OT_OPTION_TEXT, FIELD(model), "NAME|DIR", NULL, NULL,
     "a folder with tokenizer.json, or a preset, whose tokens are bytes", NULL},
    {"data", OT_OPTION_LIST, FIELD(data), "FILE…", NULL, NULL, "text, JSONL, or .bin of llm.c and nanoGPT",
     NULL},
    {"output", OT_OPTION_TEXT, FIELD(output), "FILE", NULL, NULL, "the token file", "-o"},
    {"data-format", OT_OPTION_TEXT, FIELD(data_format), "NAME", "auto", OT_DATA_FORMAT_NAMES,
     "what the files are; auto: looks", NULL},
    {"template", OT_OPTION_TEXT, FIELD(chat_template), "NAME", "auto", "auto|" OT_TEMPLATE_NAMES,
     "how conversations are written; auto: as the tokenizer says", NULL},
    {"train-on", OT_OPTION_TEXT, FIELD(train_on), "WORD", "auto", OT_TRAIN_ON_NAMES,
     "what is learnt: all answers, the last one, or every token", NULL},
    {"threads", OT_OPTION_INT, FIELD(threads), "N", "auto", "auto",
     "of the CPU; auto: one for each core allowed", NULL},
    {"json", OT_OPTION_FLAG, FIELD(json), NULL, NULL, NULL, "one JSON object instead of a line", NULL},
};
static const ot_option_table table = {"offtrain tokenize", "Turns data into a token file for --data.",
                                      options, sizeof options / sizeof *options};

static ot_status check(const tokenize_flags *flags)
{
    if (flags->model == NULL)
        return ot_fail(OT_ERR_USAGE, "--model is missing; a folder with tokenizer.json");
    if (flags->data.count == 0)
        return ot_fail(OT_ERR_USAGE, "--data is missing; text or JSONL files");
    if (flags->output == NULL)
        return ot_fail(OT_ERR_USAGE, "-o is missing; the token file to write");
    if (flags->threads != OT_AUTO_INT && (flags->threads < 1 || flags->threads > 1024))
        return ot_fail(OT_ERR_USAGE, "--threads: 1 to 1024 work");
    return OT_OK;
}

static ot_status print_json(const ot_tokens_info *info, double seconds)
{
    char hash[32];
    snprintf(hash, sizeof hash, "xxh3:%016" PRIx64, info->tokenizer_hash);
    json_t *root =
        json_pack("{s:I, s:I, s:I, s:I, s:i, s:s, s:f}", "tokens", (json_int_t)info->tokens, "documents",
                  (json_int_t)info->documents, "trained", (json_int_t)info->trained, "longest",
                  (json_int_t)info->longest, "width", info->width, "tokenizer", hash, "seconds", seconds);
    return ot_json_line(root, stdout, "the JSON output");
}

static ot_status print(const tokenize_flags *flags, const ot_tokens_info *info, double seconds)
{
    if (flags->json)
        return print_json(info, seconds);
    printf("%s: %" PRIu64 " tokens, %" PRIu64 " of them trained, in %" PRIu64
           " documents, the longest %" PRIu64 "; %.3g s, %.3g M tokens/s\n",
           flags->output, info->tokens, info->trained, info->documents, info->longest, seconds,
           (double)info->tokens / 1e6 / seconds);
    return OT_OK;
}

ot_status ot_command_tokenize(int argc, char **argv)
{
    tokenize_flags flags = {0};
    ot_tokenizer *tokenizer;
    ot_tokens *tokens = NULL;
    size_t V;
    int help;
    OT_TRY(ot_options_parse(&table, argc, argv, &flags, &help));
    if (help)
        return OT_OK;
    OT_TRY(check(&flags));
    OT_TRY(ot_tokenizer_of_model(flags.model, &tokenizer, &V));
    const ot_samples_options samples = {.files = flags.data.items,
                                        .file_count = flags.data.count,
                                        .format = ot_data_format_of(flags.data_format),
                                        .train_on = ot_train_on_of(flags.train_on),
                                        .tokenizer = tokenizer,
                                        .chat_template = flags.chat_template,
                                        .V = V,
                                        .threads = flags.threads == OT_AUTO_INT ? 0 : (int)flags.threads};
    ot_stop_install();
    int64_t start = ot_clock_ns();
    ot_status status = ot_samples_write(&samples, flags.output, &tokens);
    if (status == OT_OK)
        status = print(&flags, ot_tokens_query(tokens), ot_seconds(ot_clock_ns() - start));
    ot_tokens_close(tokens);
    ot_tokenizer_close(tokenizer);
    return status;
}
