/* What the tokenizer's files share. The way of a text, as in Hugging Face's `tokenizers`:
 *
 *   text -> repaired UTF-8 -> split at added tokens that match before normalisation
 *        -> each piece normalised -> split at added tokens that match after it      tokenizer_added.c, tokenizer_normalize.c
 *        -> each piece through the pre-tokeniser's steps                            tokenizer_split.c, tokenizer_pattern.c
 *        -> each word through BPE                                                   tokenizer_bpe.c
 *
 * Invariants of an open tokenizer: it does not change; every id in a table is below V; texts inside are valid UTF-8. What
 * encoding needs to write to is an ot_encoder, which hangs on the caller's ot_ids. */
#ifndef OT_IO_TOKENIZER_PARTS_H
#define OT_IO_TOKENIZER_PARTS_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <jansson.h>
#include <pcre2.h>

#include "io/tokenizer.h"

enum {
    OT_STEPS_MAX = 16,          /* of a normaliser, pre-tokeniser or decoder */
    OT_TOKEN_ID_MAX = 0xFFFFFF, /* 16 million: a bound for what a damaged file makes us allocate */
    OT_ADDED_BYTES_MAX = 1024,  /* of an added token: bounds the search at each byte of a text */
    OT_JOIN_SPACE = 128,        /* U+2581, after the classes of ASCII */
    OT_JOIN_OTHER = 129,        /* every other character */
    OT_JOIN_CLASSES = 130,
    OT_NONE = -1,
};

/* A growing text. Starts as {0}; freed by free(data). */
typedef struct ot_bytes {
    char *data;
    size_t count, capacity;
} ot_bytes;
ot_status ot_bytes_reserve(ot_bytes *bytes, size_t more) OT_MUST_CHECK;
ot_status ot_bytes_add(ot_bytes *bytes, const char *text, size_t count) OT_MUST_CHECK;

/* Part of a text: of the tokenizer's own where it is kept. */
typedef struct ot_span {
    uint32_t offset, length;
} ot_span;
#define OT_NO_SPAN UINT32_MAX /* as an offset: there is no such text */

/* From 64 bits to 64 bits, for the merges and the tries. Keys are not UINT64_MAX. */
typedef struct ot_map {
    struct ot_map_slot {
        uint64_t key, value;
    } * slots;
    size_t mask, count;
} ot_map;
ot_status ot_map_put(ot_map *map, uint64_t key, uint64_t value) OT_MUST_CHECK;
static inline size_t ot_map_place(uint64_t key, size_t mask)
{
    key *= UINT64_C(0x9E3779B97F4A7C15);
    return (size_t)(key ^ key >> 32) & mask;
}
/* NULL where there is none. */
static inline const uint64_t *ot_map_get(const ot_map *map, uint64_t key)
{
    if (map->slots == NULL)
        return NULL;
    for (size_t at = ot_map_place(key, map->mask);; at = (at + 1) & map->mask) {
        if (map->slots[at].key == key)
            return &map->slots[at].value;
        if (map->slots[at].key == UINT64_MAX)
            return NULL;
    }
}

/* From texts to ids: open addressing over spans that stay where they are. */
typedef struct ot_words {
    int32_t *slots; /* OT_NONE: free */
    size_t mask;
} ot_words;
ot_status ot_words_make(size_t count, ot_words *out) OT_MUST_CHECK;
/* The id of `text`, or with `add` not OT_NONE where there is none, `add`, which is now in. spans[id] is the text of an id. */
int32_t ot_words_find(const ot_words *words, const ot_span *spans, const char *base, const char *text,
                      size_t bytes, int32_t add);

typedef struct ot_regex {
    pcre2_code *code;
    int jit;
} ot_regex;

typedef struct ot_encoder ot_encoder;

/* Compiles a pattern in Onigmo's syntax, as Hugging Face uses it, or with `literal` a plain text. OT_ERR_FORMAT names `where`
 * and what in the pattern would mean something else here. */
ot_status ot_regex_compile(const char *pattern, size_t bytes, int literal, const char *where,
                           ot_regex *out) OT_MUST_CHECK;
/* Appends the ranges of the class of "L", "Nd" and so on that newer versions of Unicode than PCRE2's have. */
ot_status ot_unicode_newer(const char *category, ot_bytes *out) OT_MUST_CHECK;
void ot_regex_free(ot_regex *regex);
/* The next match at or behind `from`; `*found` 0: none. */
ot_status ot_regex_next(const ot_regex *regex, ot_encoder *encoder, const char *text, size_t bytes,
                        size_t from, int *found, size_t *begin, size_t *end) OT_MUST_CHECK;

typedef struct ot_added {
    ot_span content, normal; /* as written and as normalised */
    int32_t id;
    uint8_t special, single_word, lstrip, rstrip, normalized;
} ot_added;

typedef struct ot_trie {
    ot_map edges;   /* node << 8 | byte -> node; the root is 0 */
    int32_t *added; /* of each node: the added token that ends there, or OT_NONE */
    size_t nodes, capacity;
    uint8_t begins[256]; /* whether some token begins with the byte */
} ot_trie;

/* A change of the text before it is split: one of the normaliser's steps. */
typedef struct ot_normal_step {
    enum { OT_NORMAL_NFC, OT_NORMAL_UNICODE, OT_NORMAL_PREPEND, OT_NORMAL_REPLACE } kind;
    int options;    /* UNICODE: utf8proc's */
    ot_regex regex; /* REPLACE */
    char *content;  /* PREPEND, REPLACE */
    size_t content_bytes;
} ot_normal_step;

typedef enum ot_split_behaviour {
    OT_SPLIT_ISOLATED,
    OT_SPLIT_REMOVED,
    OT_SPLIT_CONTIGUOUS,
    OT_SPLIT_PREVIOUS,
    OT_SPLIT_NEXT,
} ot_split_behaviour;

typedef enum ot_prepend_scheme { OT_PREPEND_NEVER, OT_PREPEND_FIRST, OT_PREPEND_ALWAYS } ot_prepend_scheme;

typedef struct ot_split_step {
    enum { OT_STEP_SPLIT, OT_STEP_PREFIX } kind;
    ot_regex regex; /* SPLIT */
    ot_split_behaviour behaviour;
    int invert;
    char space[5]; /* PREFIX: replaces each ' ', and is put in front where the scheme says so */
    size_t space_bytes;
    ot_prepend_scheme scheme;
} ot_split_step;

typedef struct ot_decode_step {
    enum {
        OT_DECODE_BYTE_LEVEL,
        OT_DECODE_BYTE_FALLBACK,
        OT_DECODE_FUSE,
        OT_DECODE_STRIP,
        OT_DECODE_REPLACE,
        OT_DECODE_METASPACE
    } kind;
    ot_regex regex; /* REPLACE */
    char *content;  /* REPLACE: the new text; STRIP, METASPACE: one character */
    size_t content_bytes;
    size_t start, stop; /* STRIP: how many at most */
    int drop_first;     /* METASPACE: the first token's are dropped */
} ot_decode_step;

struct ot_tokenizer {
    char *path; /* of tokenizer.json */
    ot_tokenizer_info info;
    char *chat_template;

    ot_bytes text;     /* of all tokens */
    ot_span *tokens;   /* V; what the file calls them */
    uint8_t *in_model; /* V; whether BPE knows the token */
    ot_words words;    /* by their text */

    ot_map merges;   /* left << 32 | right -> rank << 32 | id */
    int32_t unknown; /* OT_NONE: none */
    int has_unknown, fuse_unknown, byte_fallback, ignore_merges;
    int32_t bytes[256]; /* byte level: the token of each byte; byte fallback: <0x00> to <0xFF> */
    int byte_level;
    ot_span *raw; /* V; byte level with ignore_merges: the tokens as bytes */
    ot_words raw_words;
    int32_t ascii[128]; /* not byte level: the token of each character */
    uint8_t joined[OT_JOIN_CLASSES *
                   OT_JOIN_CLASSES]; /* whether some merge goes across two characters of these classes */
    int borders;                     /* whether words may be cut where none does */

    ot_added *added;
    size_t added_count;
    int32_t *added_of; /* V; the added token of an id, or OT_NONE */
    ot_trie before, after;

    ot_normal_step normal_steps[OT_STEPS_MAX];
    size_t normal_count;
    ot_split_step split_steps[OT_STEPS_MAX];
    size_t split_count;
    ot_decode_step decode_steps[OT_STEPS_MAX];
    size_t decode_count;
    int has_decoder;
};

enum { OT_CACHE_WORD_BYTES = 24, OT_CACHE_IDS = 9, OT_CACHE_ENTRIES = 1 << 14 };

/* A word and its ids, in one line of the processor's cache. */
typedef struct ot_cache_entry {
    _Alignas(64) uint64_t key[OT_CACHE_WORD_BYTES / 8]; /* zeros behind the word */
    int32_t ids[OT_CACHE_IDS];
    uint8_t bytes, count; /* bytes 0: free */
} ot_cache_entry;

/* Working memory of encoding, kept from text to text for its cache. */
struct ot_encoder {
    uint64_t tokenizer; /* hash of the one whose words are in the cache */
    size_t seen_bytes;  /* decides when a cache pays */
    ot_cache_entry *cache;
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    ot_bytes repaired, normal[2], prefixed[OT_STEPS_MAX];
    struct ot_symbols {
        uint32_t *ids, *ranks, *merged, *next, *previous;
        size_t capacity;
        uint64_t *heap;
        size_t heap_count, heap_capacity;
    } symbols;
    const ot_tokenizer *of; /* the rest: of the call in progress */
    int special;
    ot_ids *out;
};

ot_encoder *ot_encoder_new(void); /* NULL: out of memory */
void ot_encoder_free(ot_encoder *encoder);
/* Before a text of `bytes`: the cache has words of this tokenizer only, and is there once it pays. */
ot_status ot_encoder_begin(ot_encoder *encoder, const ot_tokenizer *tokenizer, size_t bytes) OT_MUST_CHECK;

/* Reading. Each fails with OT_ERR_FORMAT and the file's name; what was read so far is the tokenizer's to free. */
ot_status ot_text_read(const char *path, ot_bytes *out)
    OT_MUST_CHECK; /* `out` is the caller's to free, after errors too; it has room for a NUL */
ot_status ot_json_parse(const char *path, const char *data, size_t bytes, size_t flags,
                        json_t **root) OT_MUST_CHECK;
/* ot_tokenizer_open with the text of tokenizer.json, whose path is for messages only. */
ot_status ot_tokenizer_parse(const char *directory, const char *path, const char *data, size_t bytes,
                             ot_tokenizer **out) OT_MUST_CHECK;
ot_status ot_tokenizer_read_model(ot_tokenizer *tokenizer, const json_t *root) OT_MUST_CHECK;
ot_status ot_tokenizer_index_model(ot_tokenizer *tokenizer)
    OT_MUST_CHECK; /* once it is known whether it is byte level */
ot_status ot_tokenizer_read_added(ot_tokenizer *tokenizer, const json_t *root) OT_MUST_CHECK;
ot_status ot_tokenizer_read_normalizer(ot_tokenizer *tokenizer, const json_t *node) OT_MUST_CHECK;
ot_status ot_tokenizer_read_splits(ot_tokenizer *tokenizer, const json_t *node) OT_MUST_CHECK;
ot_status ot_tokenizer_read_decoder(ot_tokenizer *tokenizer, const json_t *node) OT_MUST_CHECK;
ot_status ot_tokenizer_read_config(ot_tokenizer *tokenizer, const char *directory,
                                   const json_t *root) OT_MUST_CHECK;
/* "pattern": {"String": …} or {"Regex": …} */
ot_status ot_json_pattern(const json_t *node, const char *where, ot_regex *out) OT_MUST_CHECK;
/* Keys of an object: a boolean, `otherwise` where the key is missing or null; a text, which must be there. */
ot_status ot_json_flag(const json_t *node, const char *key, int otherwise, const char *where,
                       int *out) OT_MUST_CHECK;
ot_status ot_json_text(const json_t *node, const char *key, const char *where, const char **text,
                       size_t *bytes) OT_MUST_CHECK;
/* The same text as a copy, NUL-terminated, for the caller to free. */
ot_status ot_json_keep(const json_t *node, const char *key, const char *where, char **text,
                       size_t *bytes) OT_MUST_CHECK;
/* The prepend scheme of a Metaspace node. */
ot_status ot_json_scheme(const json_t *node, const char *where, ot_prepend_scheme *out) OT_MUST_CHECK;

/* Encoding, in the order of a text's way. */
ot_status ot_added_split(ot_encoder *encoder, const ot_trie *trie, const char *text, size_t bytes, int first,
                         ot_status (*piece)(ot_encoder *encoder, const char *text, size_t bytes,
                                            int first)) OT_MUST_CHECK;
/* The text as the normaliser leaves it, in the encoder's memory or where it was. */
ot_status ot_normalize(const ot_tokenizer *tokenizer, ot_encoder *encoder, const char **text,
                       size_t *bytes) OT_MUST_CHECK;
/* From step `step` of the pre-tokeniser on. `first`: the piece begins where the text does. */
ot_status ot_split(ot_encoder *encoder, size_t step, const char *text, size_t bytes, int first) OT_MUST_CHECK;
ot_status ot_bpe(ot_encoder *encoder, const char *text, size_t bytes) OT_MUST_CHECK;
void ot_bpe_find_borders(ot_tokenizer *tokenizer);

/* Byte level: the character that stands for a byte, and back (OT_NONE). */
uint32_t ot_byte_level_character(int byte);
int ot_byte_level_byte(uint32_t character);

#endif
