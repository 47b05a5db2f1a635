/* Rows of JSONL as conversations: which kind a row is, and its turns. */
#ifndef OT_ENGINE_ROWS_H
#define OT_ENGINE_ROWS_H

#include <jansson.h>

#include "io/template.h"

typedef enum ot_row_kind {
    OT_ROW_TEXT,       /* {"text": …} */
    OT_ROW_MESSAGES,   /* {"messages": [{"role": …, "content": …}, …]} */
    OT_ROW_SHAREGPT,   /* {"conversations": [{"from": "human", "value": …}, …]} */
    OT_ROW_ALPACA,     /* {"instruction": …, "input": …, "output": …} */
    OT_ROW_COMPLETION, /* {"prompt": …, "completion": …} */
    OT_ROW_KINDS,
} ot_row_kind;

/* What is trained. */
typedef enum ot_train_on {
    OT_TRAIN_ON_AUTO,       /* text: all of it; completions; every turn of the assistant */
    OT_TRAIN_ON_ASSISTANT,  /* every turn of the assistant */
    OT_TRAIN_ON_COMPLETION, /* its last turn */
    OT_TRAIN_ON_ALL,
} ot_train_on;

/* "text", "messages", … */
const char *ot_row_kind_name(ot_row_kind kind);

/* Returns 1 and the kind, or 0: none. */
int ot_row_detect(const json_t *row, ot_row_kind *kind);

/* A row's turns; their texts are the row's own or in `joined`. Starts as {0}, is used again and again, and freed at the end. A row
 * of text is one turn of a user. */
typedef struct ot_row_turns {
    ot_turn *turns;
    size_t count, capacity;
    char *joined;
} ot_row_turns;
void ot_row_turns_free(ot_row_turns *turns);

/* Reads a row of the given kind. `apart`: Alpaca's input stays apart from the instruction, as the template alpaca wants it.
 * OT_ERR_DATA says what is wrong with the row, not where it is. */
ot_status ot_row_read(const json_t *row, ot_row_kind kind, ot_train_on train_on, int apart,
                      ot_row_turns *out) OT_MUST_CHECK;

#endif
