/* The data of a job: from flags to tokens to windows. */
#ifndef OT_TOOLS_JOB_DATA_H
#define OT_TOOLS_JOB_DATA_H

#include "engine/data.h"
#include "engine/model.h"
#include "engine/samples.h"
#include "tools/train_flags.h"

/* Token files in the order of the flags; those that had to be made are one. */
typedef struct ot_token_list {
    ot_tokens *items[OT_OPTION_LIST_MAX + 1];
    size_t count;
} ot_token_list;

typedef struct ot_job_data {
    ot_tokenizer *tokenizer;
    ot_token_list training_tokens, evaluation_tokens;
    ot_dataset *training;
    ot_dataset *evaluation; /* in order; NULL: there is none */
} ot_job_data;

/* Texts are bytes where `tokenizer_folder` is NULL or has no tokenizer.json. Tokens of text and JSONL are kept under
 * OUTPUT_DIR/.cache. */
ot_status ot_job_data_open(const ot_train_flags *flags, const char *tokenizer_folder,
                           const ot_model_config *config, ot_job_data *out) OT_MUST_CHECK;
void ot_job_data_close(ot_job_data *data);

/* What the words of --data-format, --train-on and --long mean. */
ot_data_format ot_data_format_of(const char *word);
ot_train_on ot_train_on_of(const char *word);
ot_long ot_long_of(const char *word);

/* The tokenizer of `model`, a folder or the name of a preset, whose tokens are bytes; and the size of the model's vocabulary. */
ot_status ot_tokenizer_of_model(const char *model, ot_tokenizer **out, size_t *V) OT_MUST_CHECK;

#endif
