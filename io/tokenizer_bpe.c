/* Byte pair encoding of words.
 *
 * A word's symbols are merged pair by pair, always the pair of the lowest rank, of equal ones the leftmost, as long as some pair
 * has a rank. Short words look for that pair anew each time, long ones keep a heap: the result is the same.
 *
 * Without a pre-tokeniser a whole text is one word. It may be cut between two characters x and y where no merge makes a token
 * with x before y in it: the token that went across the cut would be one, so none is ever made there, and what is merged on
 * one side does not depend on the other. This needs each symbol to be the text it stands for: no merge may take a byte
 * token or the unknown token, and x and y must have symbols of their own whatever stands beside them. */
#include <stdlib.h>
#include <string.h>

#include "io/grow.h"
#include "io/tokenizer_parts.h"
#include "io/utf8.h"

enum { SHORT_WORD = 32, CACHE_FROM_BYTES = 8192 };

ot_encoder *ot_encoder_new(void)
{
    ot_encoder *encoder = calloc(1, sizeof *encoder);
    if (encoder == NULL)
        return NULL;
    encoder->match = pcre2_match_data_create(1, NULL);
    encoder->context = pcre2_match_context_create(NULL);
    encoder->stack = pcre2_jit_stack_create(32 << 10, 8 << 20, NULL);
    if (encoder->match == NULL || encoder->context == NULL || encoder->stack == NULL) {
        ot_encoder_free(encoder);
        return NULL;
    }
    pcre2_jit_stack_assign(encoder->context, NULL, encoder->stack);
    return encoder;
}

void ot_encoder_free(ot_encoder *encoder)
{
    if (encoder == NULL)
        return;
    pcre2_match_data_free(encoder->match);
    pcre2_match_context_free(encoder->context);
    pcre2_jit_stack_free(encoder->stack);
    free(encoder->cache);
    free(encoder->repaired.data);
    free(encoder->normal[0].data);
    free(encoder->normal[1].data);
    for (size_t i = 0; i < OT_STEPS_MAX; i++)
        free(encoder->prefixed[i].data);
    free(encoder->symbols.ids);
    free(encoder->symbols.heap);
    free(encoder);
}

static ot_status symbols_reserve(struct ot_symbols *symbols, size_t count)
{
    if (count <= symbols->capacity)
        return OT_OK;
    if (count > INT32_MAX)
        return ot_fail(OT_ERR_DATA, "a word of %zu symbols; %d are supported", count, INT32_MAX);
    free(symbols->ids);
    symbols->capacity = 0;
    symbols->ids = malloc(5 * count * sizeof *symbols->ids);
    if (symbols->ids == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for a word of %zu symbols", count);
    symbols->ranks = symbols->ids + count;
    symbols->merged = symbols->ranks + count;
    symbols->next = symbols->merged + count;
    symbols->previous = symbols->next + count;
    symbols->capacity = count;
    return OT_OK;
}

/* Looks up the pair that begins at symbol `at`, whose right half is `right`. */
static inline void rank_pair(const ot_tokenizer *tokenizer, struct ot_symbols *symbols, size_t at,
                             size_t right)
{
    const uint64_t *merge =
        ot_map_get(&tokenizer->merges, (uint64_t)symbols->ids[at] << 32 | symbols->ids[right]);
    symbols->ranks[at] = merge != NULL ? (uint32_t)(*merge >> 32) : UINT32_MAX;
    symbols->merged[at] = merge != NULL ? (uint32_t)*merge : 0;
}

static size_t merge_short(const ot_tokenizer *tokenizer, struct ot_symbols *symbols, size_t count)
{
    for (size_t i = 0; i + 1 < count; i++)
        rank_pair(tokenizer, symbols, i, i + 1);
    while (count > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < count; i++)
            if (symbols->ranks[i] < symbols->ranks[best])
                best = i;
        if (symbols->ranks[best] == UINT32_MAX)
            break;
        symbols->ids[best] = symbols->merged[best];
        count--;
        for (size_t i = best + 1; i < count; i++) {
            symbols->ids[i] = symbols->ids[i + 1];
            symbols->ranks[i] = symbols->ranks[i + 1];
            symbols->merged[i] = symbols->merged[i + 1];
        }
        if (best > 0)
            rank_pair(tokenizer, symbols, best - 1, best);
        if (best + 1 < count)
            rank_pair(tokenizer, symbols, best, best + 1);
    }
    return count;
}

/* The heap holds rank << 32 | symbol, the least on top. Entries whose pair has changed meanwhile are passed over. */
static ot_status heap_push(struct ot_symbols *symbols, size_t at)
{
    if (symbols->ranks[at] == UINT32_MAX)
        return OT_OK;
    OT_TRY(ot_grow(&symbols->heap, &symbols->heap_capacity, symbols->heap_count + 1, sizeof *symbols->heap,
                   "merges"));
    uint64_t entry = (uint64_t)symbols->ranks[at] << 32 | at;
    size_t hole = symbols->heap_count++;
    for (; hole > 0 && symbols->heap[(hole - 1) / 2] > entry; hole = (hole - 1) / 2)
        symbols->heap[hole] = symbols->heap[(hole - 1) / 2];
    symbols->heap[hole] = entry;
    return OT_OK;
}

static uint64_t heap_pop(struct ot_symbols *symbols)
{
    uint64_t top = symbols->heap[0], last = symbols->heap[--symbols->heap_count];
    size_t hole = 0, count = symbols->heap_count;
    for (size_t child; (child = 2 * hole + 1) < count; hole = child) {
        child += child + 1 < count && symbols->heap[child + 1] < symbols->heap[child];
        if (symbols->heap[child] >= last)
            break;
        symbols->heap[hole] = symbols->heap[child];
    }
    symbols->heap[hole] = last;
    return top;
}

static ot_status merge_long(const ot_tokenizer *tokenizer, struct ot_symbols *symbols, size_t *count)
{
    size_t n = *count;
    symbols->heap_count = 0;
    for (size_t i = 0; i < n; i++) {
        symbols->next[i] = (uint32_t)i + 1; /* n: none */
        symbols->previous[i] = (uint32_t)i - 1;
        symbols->ranks[i] = UINT32_MAX;
        if (i + 1 < n)
            rank_pair(tokenizer, symbols, i, i + 1);
        OT_TRY(heap_push(symbols, i));
    }
    while (symbols->heap_count > 0) {
        uint64_t top = heap_pop(symbols);
        size_t at = (uint32_t)top;
        if (symbols->ranks[at] != top >> 32)
            continue;
        size_t right = symbols->next[at], behind = symbols->next[right];
        symbols->ids[at] = symbols->merged[at];
        symbols->next[at] = (uint32_t)behind;
        symbols->ranks[right] = symbols->ranks[at] = UINT32_MAX;
        if (behind < n) {
            symbols->previous[behind] = (uint32_t)at;
            rank_pair(tokenizer, symbols, at, behind);
            OT_TRY(heap_push(symbols, at));
        }
        if (at > 0) {
            size_t before = symbols->previous[at];
            rank_pair(tokenizer, symbols, before, at);
            OT_TRY(heap_push(symbols, before));
        }
    }
    *count = 0;
    for (size_t i = 0; i < n; i = symbols->next[i])
        symbols->ids[(*count)++] = symbols->ids[i];
    return OT_OK;
}

/* The symbols that a word begins as. */

typedef struct beginning {
    const ot_tokenizer *tokenizer;
    struct ot_symbols *symbols;
    size_t count;
    int pending; /* an unknown token that a next one may still join */
} beginning;

static void flush_unknown(beginning *begin)
{
    if (begin->pending)
        begin->symbols->ids[begin->count++] = (uint32_t)begin->tokenizer->unknown;
    begin->pending = 0;
}

static ot_status add_unknown(beginning *begin, const char *text, size_t bytes)
{
    const ot_tokenizer *tokenizer = begin->tokenizer;
    if (!tokenizer->has_unknown)
        return OT_OK; /* it is left out */
    if (tokenizer->unknown == OT_NONE)
        return ot_fail(OT_ERR_FORMAT,
                       "%s: '%.*s' has no token, and the model's unk_token is not in its vocabulary",
                       tokenizer->path, (int)bytes, text);
    if (!tokenizer->fuse_unknown)
        flush_unknown(begin);
    begin->pending = 1;
    return OT_OK;
}

static void add_symbol(beginning *begin, int32_t id)
{
    flush_unknown(begin);
    begin->symbols->ids[begin->count++] = (uint32_t)id;
}

static ot_status begin_bytes(beginning *begin, const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        int32_t id = begin->tokenizer->bytes[(unsigned char)text[i]];
        if (id != OT_NONE)
            add_symbol(begin, id);
        else
            OT_TRY(add_unknown(begin, text + i, 1));
    }
    return OT_OK;
}

static int32_t model_find(const ot_tokenizer *tokenizer, const char *text, size_t bytes)
{
    int32_t id =
        ot_words_find(&tokenizer->words, tokenizer->tokens, tokenizer->text.data, text, bytes, OT_NONE);
    return id != OT_NONE && tokenizer->in_model[id] ? id : OT_NONE;
}

/* A character without a token: its bytes, if each has one. As in Hugging Face's, they go before an unknown token that waits. */
static int fall_back(beginning *begin, const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (begin->tokenizer->bytes[(unsigned char)text[i]] == OT_NONE)
            return 0;
    for (size_t i = 0; i < bytes; i++)
        begin->symbols->ids[begin->count++] = (uint32_t)begin->tokenizer->bytes[(unsigned char)text[i]];
    return 1;
}

static ot_status begin_characters(beginning *begin, const char *text, size_t bytes)
{
    for (size_t at = 0, length; at < bytes; at += length) {
        uint32_t c = ot_utf8_decode(text + at, &length);
        int32_t id = c < 128 ? begin->tokenizer->ascii[c] : model_find(begin->tokenizer, text + at, length);
        if (id != OT_NONE)
            add_symbol(begin, id);
        else if (!begin->tokenizer->byte_fallback || !fall_back(begin, text + at, length))
            OT_TRY(add_unknown(begin, text + at, length));
    }
    return OT_OK;
}

/* Words. */

static ot_status emit(ot_ids *out, const uint32_t *ids, size_t count)
{
    for (size_t i = 0; i < count; i++)
        OT_TRY(ot_ids_add(out, (int32_t)ids[i]));
    return OT_OK;
}

static ot_status encode_word(ot_encoder *encoder, const char *text, size_t bytes)
{
    const ot_tokenizer *tokenizer = encoder->of;
    if (tokenizer->ignore_merges) {
        int32_t whole = tokenizer->byte_level ? ot_words_find(&tokenizer->raw_words, tokenizer->raw,
                                                              tokenizer->text.data, text, bytes, OT_NONE)
                                              : model_find(tokenizer, text, bytes);
        if (whole != OT_NONE)
            return ot_ids_add(encoder->out, whole);
    }
    OT_TRY(symbols_reserve(&encoder->symbols, bytes + 1));
    beginning begin = {.tokenizer = tokenizer, .symbols = &encoder->symbols};
    OT_TRY(tokenizer->byte_level ? begin_bytes(&begin, text, bytes) : begin_characters(&begin, text, bytes));
    flush_unknown(&begin);
    size_t count = begin.count;
    if (count <= SHORT_WORD)
        count = merge_short(tokenizer, &encoder->symbols, count);
    else
        OT_TRY(merge_long(tokenizer, &encoder->symbols, &count));
    return emit(encoder->out, encoder->symbols.ids, count);
}

/* The word as whole numbers, which with its length say what it is; nothing outside it is read. */
static inline void cache_key(const char *text, size_t bytes, uint64_t key[3])
{
    key[0] = key[1] = key[2] = 0;
    if (bytes >= 8) {
        memcpy(&key[0], text, 8);
        memcpy(&key[1], text + (bytes < 16 ? bytes - 8 : 8), 8);
        if (bytes > 16)
            memcpy(&key[2], text + bytes - 8, 8);
    } else if (bytes >= 4) {
        uint32_t low, high;
        memcpy(&low, text, 4);
        memcpy(&high, text + bytes - 4, 4);
        key[0] = (uint64_t)high << 32 | low;
    } else {
        const unsigned char *s = (const unsigned char *)text;
        key[0] = (uint64_t)s[0] | (uint64_t)s[bytes / 2] << 8 | (uint64_t)s[bytes - 1] << 16;
    }
}

static inline size_t cache_place(const uint64_t key[3], size_t bytes)
{
    uint64_t hash = (key[0] ^ bytes) * UINT64_C(0x9E3779B97F4A7C15);
    hash = (hash ^ hash >> 29 ^ key[1]) * UINT64_C(0xBF58476D1CE4E5B9);
    hash = (hash ^ hash >> 32 ^ key[2]) * UINT64_C(0x94D049BB133111EB);
    return (size_t)(hash >> 40) % OT_CACHE_ENTRIES;
}

/* Through the cache, which has short words of few ids. */
static inline ot_status cached_word(ot_encoder *encoder, const char *text, size_t bytes)
{
    if (encoder->cache == NULL || bytes > OT_CACHE_WORD_BYTES)
        return encode_word(encoder, text, bytes);
    uint64_t key[3];
    cache_key(text, bytes, key);
    ot_cache_entry *entry = &encoder->cache[cache_place(key, bytes)];
    if (entry->bytes == bytes && entry->key[0] == key[0] && entry->key[1] == key[1] &&
        entry->key[2] == key[2]) {
        for (size_t i = 0; i < entry->count; i++)
            OT_TRY(ot_ids_add(encoder->out, entry->ids[i]));
        return OT_OK;
    }
    size_t before = encoder->out->count;
    OT_TRY(encode_word(encoder, text, bytes));
    size_t count = encoder->out->count - before;
    if (count > OT_CACHE_IDS)
        return OT_OK;
    memcpy(entry->key, key, sizeof key);
    memcpy(entry->ids, encoder->out->ids + before, count * sizeof *entry->ids);
    entry->bytes = (uint8_t)bytes;
    entry->count = (uint8_t)count;
    return OT_OK;
}

ot_status ot_encoder_begin(ot_encoder *encoder, const ot_tokenizer *tokenizer, size_t bytes)
{
    if (encoder->tokenizer != tokenizer->info.hash) {
        free(encoder->cache);
        encoder->cache = NULL;
        encoder->seen_bytes = 0;
        encoder->tokenizer = tokenizer->info.hash;
    }
    /* A run of spaces is gone through a few times, which is well inside; a pattern that tries everything is stopped. */
    size_t steps = 1000000 + 32 * bytes;
    pcre2_set_match_limit(encoder->context, steps < UINT32_MAX ? (uint32_t)steps : UINT32_MAX);
    encoder->seen_bytes += bytes;
    if (encoder->cache != NULL || encoder->seen_bytes < CACHE_FROM_BYTES)
        return OT_OK;
    size_t size = OT_CACHE_ENTRIES * sizeof *encoder->cache;
    encoder->cache = aligned_alloc(_Alignof(ot_cache_entry), size);
    if (encoder->cache == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for a tokenizer's cache of %zu bytes", size);
    memset(encoder->cache, 0, size);
    return OT_OK;
}

/* ASCII, U+2581 or another: which, and how long. */
static inline size_t join_class(const char *text, size_t *length)
{
    unsigned char c = (unsigned char)text[0];
    if (c < 0x80) {
        *length = 1;
        return c;
    }
    *length = c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
    return c == 0xE2 && text[1] == '\x96' && text[2] == '\x81' ? OT_JOIN_SPACE : OT_JOIN_OTHER;
}

ot_status ot_bpe(ot_encoder *encoder, const char *text, size_t bytes)
{
    const ot_tokenizer *tokenizer = encoder->of;
    if (!tokenizer->borders)
        return cached_word(encoder, text, bytes);
    size_t begin = 0, at, length;
    size_t left = join_class(text, &at);
    for (; at < bytes; at += length) {
        size_t right = join_class(text + at, &length);
        if (!tokenizer->joined[left * OT_JOIN_CLASSES + right]) {
            OT_TRY(cached_word(encoder, text + begin, at - begin));
            begin = at;
        }
        left = right;
    }
    return cached_word(encoder, text + begin, bytes - begin);
}

/* Which characters some merge may have across, once the model has been read. */

static int symbol_is_text(const ot_tokenizer *tokenizer, uint32_t id)
{
    for (size_t i = 0; tokenizer->byte_fallback && i < 256; i++)
        if (tokenizer->bytes[i] == (int32_t)id)
            return 0;
    return tokenizer->unknown != (int32_t)id;
}

/* Whether the class's characters have symbols that do not depend on what stands beside them. */
static int class_is_known(const ot_tokenizer *tokenizer, size_t class)
{
    if (class < 128 && tokenizer->ascii[class] != OT_NONE)
        return 1;
    if (class == OT_JOIN_SPACE && model_find(tokenizer, "\xE2\x96\x81", 3) != OT_NONE)
        return 1;
    int complete = tokenizer->byte_fallback;
    for (size_t i = 0; i < 256; i++)
        complete &= tokenizer->bytes[i] != OT_NONE;
    return complete;
}

void ot_bpe_find_borders(ot_tokenizer *tokenizer)
{
    tokenizer->borders = !tokenizer->byte_level && !tokenizer->ignore_merges;
    memset(tokenizer->joined, 0, sizeof tokenizer->joined);
    for (size_t i = 0; i < OT_JOIN_CLASSES; i++) {
        int unsure = i == OT_JOIN_OTHER || !class_is_known(tokenizer, i);
        for (size_t j = 0; unsure && j < OT_JOIN_CLASSES; j++)
            tokenizer->joined[i * OT_JOIN_CLASSES + j] = tokenizer->joined[j * OT_JOIN_CLASSES + i] = 1;
    }
    for (size_t slot = 0;
         tokenizer->merges.slots != NULL && slot <= tokenizer->merges.mask && tokenizer->borders; slot++) {
        const struct ot_map_slot *merge = &tokenizer->merges.slots[slot];
        if (merge->key == UINT64_MAX)
            continue;
        tokenizer->borders = symbol_is_text(tokenizer, (uint32_t)(merge->key >> 32)) &&
                             symbol_is_text(tokenizer, (uint32_t)merge->key);
        ot_span made = tokenizer->tokens[(uint32_t)merge->value];
        const char *text = tokenizer->text.data + made.offset;
        size_t at, length, left = made.length > 0 ? join_class(text, &at) : 0;
        for (; made.length > 0 && at < made.length; at += length) {
            size_t right = join_class(text + at, &length);
            tokenizer->joined[left * OT_JOIN_CLASSES + right] = 1;
            left = right;
        }
    }
}
