/* The inside of tokenising: what the readers of each format share. */
#ifndef OT_ENGINE_CORPUS_H
#define OT_ENGINE_CORPUS_H

#include "engine/samples.h"
#include "io/mapping.h"
#include "io/team.h"

typedef struct ot_corpus {
    const ot_samples_options *options;
    ot_tokenizer_info tokenizer;
    size_t V;
    ot_team *team;
    ot_tokens_writer *writer;
    uint32_t file; /* index of the one being read */
    const char *path;
} ot_corpus;

/* The file's documents into the writer. */
ot_status ot_encode_text(ot_corpus *corpus, const char *text, size_t bytes) OT_MUST_CHECK;
ot_status ot_encode_bin(ot_corpus *corpus, const ot_mapping *map) OT_MUST_CHECK;

/* `kind` NULL: that of the first row. */
ot_status ot_encode_jsonl(ot_corpus *corpus, const ot_mapping *map, const ot_row_kind *kind) OT_MUST_CHECK;

/* OT_ERR_DATA where an id is not below V, without a place. */
ot_status ot_corpus_check_ids(const ot_ids *ids, size_t V) OT_MUST_CHECK;

#endif
