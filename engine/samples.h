/* From data files to a token file: text, JSONL, and other programs' tokens.
 *
 * A text file is one document, which may be cut anywhere. A row of JSONL is a document: text, a conversation through its chat
 * template, or prompt and completion. Documents of text end with EOS, and every document begins with BOS where the model has one.
 * Rows and pieces of text are encoded on several threads and written in their order: the result does not depend on how many. */
#ifndef OT_ENGINE_SAMPLES_H
#define OT_ENGINE_SAMPLES_H

#include "engine/rows.h"
#include "io/tokens.h"

typedef enum ot_data_format {
    OT_DATA_AUTO,
    OT_DATA_TEXT,
    OT_DATA_JSONL, /* the kind of the rows is that of the first */
    OT_DATA_MESSAGES,
    OT_DATA_ALPACA,
    OT_DATA_SHAREGPT,
    OT_DATA_COMPLETION,
    OT_DATA_BIN,
    OT_DATA_FORMATS,
} ot_data_format;

/* For option tables, in the order of the enumerations. */
#define OT_DATA_FORMAT_NAMES "auto|text|jsonl|messages|alpaca|sharegpt|completion|bin"
#define OT_TRAIN_ON_NAMES "auto|assistant|completion|all"

typedef struct ot_samples_options {
    const char *const *files; /* none: the built-in sample */
    size_t file_count;
    ot_data_format format;
    ot_train_on train_on;
    const ot_tokenizer *tokenizer;
    const char *chat_template; /* a name, or "auto" */
    size_t V;                  /* of the model: every token is below it; 0: the tokenizer's */
    int threads;               /* 0: one for each core */
} ot_samples_options;

/* Tokenises into `path`, or with NULL into memory, and opens the result where `out` is given. OT_ERR_DATA as file:line: reason. */
ot_status ot_samples_write(const ot_samples_options *options, const char *path,
                           ot_tokens **out) OT_MUST_CHECK;

/* The tokens of the files from FOLDER/tokens-HASH.bin, which is made where it is not there or not whole. A folder that cannot be
 * written to, or NULL: in memory, after a log line. */
ot_status ot_samples_open(const ot_samples_options *options, const char *folder,
                          ot_tokens **out) OT_MUST_CHECK;

/* The built-in sample as bytes, for a vocabulary of V. */
ot_status ot_samples_builtin(size_t V, ot_tokens **out) OT_MUST_CHECK;

#endif
