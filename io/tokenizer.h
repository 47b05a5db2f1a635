/* Tokenizers: tokenizer.json as Hugging Face's `tokenizers` reads it, and the one without a file, whose tokens are bytes.
 *
 * Byte-level BPE (GPT-2, Llama-3, Qwen2, Qwen3, SmolLM2) and SentencePiece-type BPE with byte fallback (Llama-2, Mistral,
 * TinyLlama). Whatever a file asks for beyond that is refused by name. A tokenizer does not change after it is opened: any
 * number of threads encode with it, each with its own ot_ids. */
#ifndef OT_IO_TOKENIZER_H
#define OT_IO_TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

#include "io/status.h"

typedef struct ot_tokenizer ot_tokenizer;

/* Reads DIRECTORY/tokenizer.json, and where they are there tokenizer_config.json (BOS, EOS, chat template),
 * special_tokens_map.json and chat_template.jinja. OT_ERR_FORMAT names the file, what was found and what is supported. */
ot_status ot_tokenizer_open(const char *directory, ot_tokenizer **out) OT_MUST_CHECK;

/* Token = byte, for models without a tokenizer, whose vocabulary V may be smaller than 256. bos and eos: -1 for none. */
ot_status ot_tokenizer_open_bytes(size_t V, int32_t bos, int32_t eos, ot_tokenizer **out) OT_MUST_CHECK;

void ot_tokenizer_close(ot_tokenizer *tokenizer); /* NULL is allowed */

typedef struct ot_tokenizer_info {
    size_t V;                  /* highest token id and one, added tokens in it */
    int32_t bos, eos;          /* -1: none */
    int add_bos;               /* texts begin with BOS */
    const char *chat_template; /* the Jinja text; NULL: none. Lives as long as the tokenizer */
    uint64_t hash;             /* XXH3 of everything that decides ids: equal ids for equal texts */
    int is_bytes;
} ot_tokenizer_info;
void ot_tokenizer_query(const ot_tokenizer *tokenizer, ot_tokenizer_info *out);

/* Token ids, growing. Starts as {0}; ids belong to the caller, who frees them with ot_ids_free. To encode many texts, set count
 * to 0 between them and keep the rest: the encoder's working memory and its cache of words (1 MiB) stay with it. */
typedef struct ot_ids {
    int32_t *ids;
    size_t count, capacity;
    struct ot_encoder *encoder; /* its own; NULL before the first text */
} ot_ids;
ot_status ot_ids_add(ot_ids *ids, int32_t id) OT_MUST_CHECK;
void ot_ids_free(ot_ids *ids);

/* Appends the ids of `bytes` of UTF-8 text, without BOS and EOS. Bytes that are no UTF-8 are read as U+FFFD, as Hugging Face's
 * are. `special`: 1: added special tokens such as "<|im_end|>" in the text become their ids; 0: they are text like any other,
 * which is what content from a user must be. OT_ERR_DATA for a text of more than
 * 512 MiB, a regular expression of the file that gives up, and a byte beyond a byte tokenizer's vocabulary; what was appended
 * before a failure stays. */
ot_status ot_tokenizer_encode(const ot_tokenizer *tokenizer, const char *text, size_t bytes, int special,
                              ot_ids *out) OT_MUST_CHECK;

/* The id of a token by its exact text, added ones first; -1: none. */
int32_t ot_tokenizer_find(const ot_tokenizer *tokenizer, const char *token);

/* The text of ids as Hugging Face's decode gives it, NUL-terminated, for the caller to free; `*bytes` its length. `special` 0
 * leaves special tokens out. A byte tokenizer gives the bytes as they are. Ids beyond the vocabulary: OT_ERR_DATA. */
ot_status ot_tokenizer_decode(const ot_tokenizer *tokenizer, const int32_t *ids, size_t count, int special,
                              char **text, size_t *bytes) OT_MUST_CHECK;

#endif
