/* JSONL of any bytes: each line is refused with its number, or is a row that every template renders or refuses. */
#include <stdlib.h>
#include <string.h>

#include "engine/rows.h"
#include "io/jsonl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void check(int condition)
{
    if (!condition)
        abort();
}

static void render(const ot_tokenizer *tokenizer, const ot_row_turns *turns)
{
    static const char *const names[] = {"none",  "chatml", "llama2", "llama3", "mistral",
                                        "gemma", "phi3",   "zephyr", "alpaca"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        ot_template *chat;
        ot_document document = {0};
        check(ot_template_open(names[i], names[i], tokenizer, &chat) == OT_OK);
        if (ot_template_encode(chat, turns->turns, turns->count, &document) == OT_OK)
            check(document.marks == document.ids.count);
        ot_document_free(&document);
        ot_template_close(chat);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    ot_jsonl reader;
    ot_jsonl_line line;
    ot_row_turns turns = {0};
    ot_tokenizer *tokenizer;
    uint64_t last = 0;
    check(ot_tokenizer_open_bytes(258, 256, 257, &tokenizer) == OT_OK);
    ot_jsonl_init(&reader, (const char *)data, bytes);
    while (ot_jsonl_next(&reader, &line)) {
        json_t *row;
        ot_row_kind kind;
        check(line.number > last && line.bytes > 0);
        last = line.number;
        if (ot_jsonl_parse("rows", &line, &row) != OT_OK) {
            check(strncmp(ot_error_text(), "rows:", 5) == 0);
            continue;
        }
        if (ot_row_detect(row, &kind))
            for (int apart = 0; apart < 2; apart++)
                if (ot_row_read(row, kind, OT_TRAIN_ON_AUTO, apart, &turns) == OT_OK)
                    render(tokenizer, &turns);
        json_decref(row);
    }
    ot_row_turns_free(&turns);
    ot_tokenizer_close(tokenizer);
    return 0;
}
