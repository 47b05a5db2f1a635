/* Tokenizers against Hugging Face's ids for the files of tests/golden/tokenizers, one for each feature (make_tokenizer.py), and
 * against slower ways to the same result.
 *
 * `test_io_tokenizer speed DIRECTORY FILE` prints how fast a text is encoded. */
#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <utf8proc.h>

#include "io/tokenizer_parts.h"
#include "io/utf8.h"
#include "tests/io/tokenizer.h"

static char *folder(const char *name)
{
    char *path = NULL;
    assert_true(asprintf(&path, OT_GOLDEN_FOLDER "/tokenizers/%s", name) > 0);
    return path;
}

static ot_tokenizer *open_named(const char *name)
{
    char *path = folder(name);
    ot_tokenizer *tokenizer = open_tokenizer(path);
    free(path);
    return tokenizer;
}

static json_t *lines_named(const char *name)
{
    char *path = NULL;
    assert_true(asprintf(&path, OT_GOLDEN_FOLDER "/tokenizers/%s/expected.jsonl", name) > 0);
    json_t *lines = read_lines(path);
    free(path);
    return lines;
}

/* Calls `check` for each of the golden tokenizers, all with the same ids, whose cache must not mix them up. */
static void with_every_tokenizer(void (*check)(const char *name, const ot_tokenizer *tokenizer, ot_ids *ids))
{
    DIR *directory = opendir(OT_GOLDEN_FOLDER "/tokenizers");
    assert_non_null(directory);
    size_t count = 0;
    ot_ids ids = {0};
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
        if (entry->d_name[0] == '.')
            continue;
        ot_tokenizer *tokenizer = open_named(entry->d_name);
        check(entry->d_name, tokenizer, &ids);
        ot_tokenizer_close(tokenizer);
        count++;
    }
    ot_ids_free(&ids);
    closedir(directory);
    assert_int_equal(count, 17);
}

static void check_decoded(const ot_tokenizer *tokenizer, const json_t *line, const char *key, int special,
                          const ot_ids *ids)
{
    const json_t *expected = json_object_get(line, key);
    char *text;
    size_t bytes;
    assert_int_equal(ot_tokenizer_decode(tokenizer, ids->ids, ids->count, special, &text, &bytes), OT_OK);
    assert_int_equal(bytes, json_string_length(expected));
    assert_memory_equal(text, json_string_value(expected), bytes + 1);
    free(text);
}

static void check_lines(const char *name, const ot_tokenizer *tokenizer, ot_ids *ids)
{
    json_t *lines = lines_named(name);
    assert_true(json_array_size(lines) > 100);
    uint64_t seed = 1;
    for (int warm = 0; warm < 3; warm++) { /* without the cache, while it fills, and from it */
        for (size_t i = 0; i < json_array_size(lines); i++) {
            const json_t *line = json_array_get(lines, i);
            check_ids(tokenizer, line, "plain", 0, ids);
            check_ids(tokenizer, line, "special", 1, ids);
            check_decoded(tokenizer, line, "decoded", 1, ids);
            check_decoded(tokenizer, line, "decoded_plain", 0, ids);
        }
        size_t bytes;
        char *text = hostile_text(&seed, 20000, &bytes);
        assert_int_equal(ot_tokenizer_encode(tokenizer, text, bytes, 0, ids), OT_OK);
        free(text);
    }
    json_decref(lines);
}

static void hugging_face_ids(void **state)
{
    (void)state;
    with_every_tokenizer(check_lines);
}

/* The text whole and through the slow ways: no cache, no cuts between words, merges looked for one at a time. */
static void check_ways(const char *name, const ot_tokenizer *tokenizer, ot_ids *ids)
{
    (void)name;
    ot_tokenizer whole = *tokenizer;
    whole.borders = 0;
    whole.info.hash++;
    ot_ids expected = {0};
    uint64_t seed = 2;
    for (int round = 0; round < 60; round++) {
        size_t bytes;
        char *text = hostile_text(&seed, 1 + next_random(&seed) % 3000, &bytes);
        ids->count = expected.count = 0;
        assert_int_equal(ot_tokenizer_encode(tokenizer, text, bytes, 1, ids), OT_OK);
        assert_int_equal(ot_tokenizer_encode(&whole, text, bytes, 1, &expected), OT_OK);
        assert_int_equal(ids->count, expected.count);
        assert_memory_equal(ids->ids, expected.ids, ids->count * sizeof *ids->ids);
        free(text);
        if (round % 20 == 19) /* the cache is left out at first each time */
            ot_ids_free(&expected);
    }
    ot_ids_free(&expected);
}

static void cuts_and_cache_change_nothing(void **state)
{
    (void)state;
    with_every_tokenizer(check_ways);
}

static void cuts_are_made(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int borders;
    } cases[] = {{"llama2", 1},      {"some_bytes", 1},      {"unknown_fused", 1}, {"dropped", 1},
                 {"byte_merges", 0}, {"metaspace_first", 0}, {"gpt2", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ot_tokenizer *tokenizer = open_named(cases[i].name);
        assert_int_equal(tokenizer->borders, cases[i].borders);
        ot_tokenizer_close(tokenizer);
    }
}

/* BPE as it is defined, over the merges of the file: the pair of the lowest rank, the leftmost of them, until there is none. */
static size_t merge_by_definition(const ot_tokenizer *tokenizer, uint32_t *ids, size_t count)
{
    for (;;) {
        uint64_t best = UINT64_MAX;
        size_t at = 0;
        for (size_t i = 0; i + 1 < count; i++) {
            const uint64_t *merge = ot_map_get(&tokenizer->merges, (uint64_t)ids[i] << 32 | ids[i + 1]);
            if (merge != NULL && *merge < best) {
                best = *merge;
                at = i;
            }
        }
        if (best == UINT64_MAX)
            return count;
        ids[at] = (uint32_t)best;
        memmove(ids + at + 1, ids + at + 2, (count - at - 2) * sizeof *ids);
        count--;
    }
}

/* `expected` holds the word's bytes as tokens and is written to. */
static void check_word(const ot_tokenizer *tokenizer, const char *word, size_t length, uint32_t *expected,
                       ot_ids *ids)
{
    size_t count = merge_by_definition(tokenizer, expected, length);
    ids->count = 0;
    assert_int_equal(ot_tokenizer_encode(tokenizer, word, length, 0, ids), OT_OK);
    assert_int_equal(ids->count, count);
    assert_memory_equal(ids->ids, expected, count * sizeof *expected);
}

static void merges_of_any_length(void **state)
{
    (void)state;
    ot_tokenizer *tokenizer = open_named("removed"); /* its words are what is between spaces and signs */
    static const char letters[] = "theandoilwrd";    /* frequent in its merges */
    uint64_t seed = 3;
    ot_ids ids = {0};
    for (size_t length = 1; length < 400; length += 1 + length / 16) {
        for (int round = 0; round < 20; round++) {
            char word[400];
            uint32_t expected[400];
            for (size_t i = 0; i < length; i++) {
                word[i] = letters[next_random(&seed) % (sizeof letters - 1)];
                expected[i] = (uint32_t)tokenizer->bytes[(unsigned char)word[i]];
            }
            check_word(tokenizer, word, length, expected, &ids);
        }
    }
    ot_ids_free(&ids);
    ot_tokenizer_close(tokenizer);
}

/* Words that look the same to the cache but for their lengths, all through it at once. */
static void cache_of_similar_words(void **state)
{
    (void)state;
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    ot_tokenizer *tokenizer = open_named("removed");
    ot_ids ids = {0};
    for (size_t pair = 0; pair < 62 * 62; pair++) {
        for (size_t length = 1; length <= OT_CACHE_WORD_BYTES; length++) {
            char word[OT_CACHE_WORD_BYTES];
            uint32_t expected[OT_CACHE_WORD_BYTES];
            for (size_t i = 0; i < length; i++) {
                word[i] = letters[i % 2 ? pair / 62 : pair % 62];
                expected[i] = (uint32_t)tokenizer->bytes[(unsigned char)word[i]];
            }
            check_word(tokenizer, word, length, expected, &ids);
        }
    }
    ot_ids_free(&ids);
    ot_tokenizer_close(tokenizer);
}

/* NFC of parts is NFC of the whole: each character between others, against utf8proc over everything. */
static void normal_form_of_parts(void **state)
{
    (void)state;
    static const char *const around[][2] = {{"a", "\xCC\x81"},
                                            {"\xE1\x84\x80", "\xE1\x86\xA8"},
                                            {"\xEA\xB0\x80", "\xE3\x82\x99"},
                                            {"\xCC\xA3", "x"},
                                            {"", "\xCC\xB8"}};
    ot_tokenizer *tokenizer = open_named("qwen2");
    ot_encoder *encoder = ot_encoder_new();
    assert_non_null(encoder);
    for (size_t k = 0; k < sizeof around / sizeof *around; k++) {
        for (uint32_t first = 1; first < (k == 0 ? 0x110000 : 0x20000); first += 64) {
            char block[64 * 16];
            size_t used = 0;
            for (uint32_t c = first; c < first + 64 && c < 0x110000; c++) {
                if (c >= 0xD800 && c < 0xE000)
                    continue;
                used += (size_t)sprintf(block + used, "%s", around[k][0]);
                used += (size_t)utf8proc_encode_char((utf8proc_int32_t)c, (utf8proc_uint8_t *)block + used);
                used += (size_t)sprintf(block + used, "%s", around[k][1]);
            }
            const char *text = block;
            size_t bytes = used;
            assert_int_equal(ot_normalize(tokenizer, encoder, &text, &bytes), OT_OK);
            utf8proc_uint8_t *whole = NULL;
            utf8proc_ssize_t expected = utf8proc_map((const utf8proc_uint8_t *)block, (utf8proc_ssize_t)used,
                                                     &whole, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
            assert_int_equal(bytes, expected);
            assert_memory_equal(text, whole, bytes);
            free(whole);
        }
    }
    ot_encoder_free(encoder);
    ot_tokenizer_close(tokenizer);
}

/* What goes in comes out, if it is UTF-8 and the file changes nothing. */
static void round_trip(void **state)
{
    (void)state;
    ot_tokenizer *tokenizer = open_named("smollm");
    ot_ids ids = {0};
    uint64_t seed = 4;
    for (int round = 0; round < 40; round++) {
        size_t bytes, back_bytes;
        char *text = hostile_text(&seed, 20000, &bytes), *back;
        ids.count = 0;
        assert_int_equal(ot_tokenizer_encode(tokenizer, text, bytes, round % 2, &ids), OT_OK);
        assert_int_equal(ot_tokenizer_decode(tokenizer, ids.ids, ids.count, 1, &back, &back_bytes), OT_OK);
        assert_int_equal(back_bytes, bytes);
        assert_memory_equal(back, text, bytes + 1);
        free(text);
        free(back);
    }
    ot_ids_free(&ids);
    ot_tokenizer_close(tokenizer);
}

/* A megabyte of one thing, in a time that does not grow with its square, and the same as in parts where those are words. */
static void long_words(void **state)
{
    (void)state;
    static const char *const units[] = {
        "a", " ", "\n", "the", "\xCC\x81\xCC\xA3", "<s", "7", "'", "\xF0\x9F\x91\xA9"};
    static const char *const names[] = {"gpt4o", "llama2", "qwen2"};
    enum { BYTES = 1 << 20 };
    char *text = malloc(BYTES);
    assert_non_null(text);
    ot_ids ids = {0};
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        ot_tokenizer *tokenizer = open_named(names[n]);
        for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
            size_t length = strlen(units[i]), bytes = BYTES / length * length;
            for (size_t at = 0; at < bytes; at++)
                text[at] = units[i][at % length];
            ids.count = 0;
            assert_int_equal(ot_tokenizer_encode(tokenizer, text, bytes, 1, &ids), OT_OK);
            assert_true(ids.count > 0);
        }
        ot_tokenizer_close(tokenizer);
    }
    ot_ids_free(&ids);
    free(text);
}

/* Bytes that are no UTF-8 are U+FFFD, one for each longest beginning of a character, as Python's decode("utf8", "replace") has it. */
static void broken_utf8(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"a\xFFz", "a\xEF\xBF\xBDz"},
        {"\xC3", "\xEF\xBF\xBD"},
        {"\xE2\x82", "\xEF\xBF\xBD"},
        {"\xE2\x82(", "\xEF\xBF\xBD("},
        {"\xF0\x9F\x98", "\xEF\xBF\xBD"},
        {"\xF0\x9F\x98\xF0\x9F\x98\x80", "\xEF\xBF\xBD\xF0\x9F\x98\x80"},
        {"\xC0\xAF", "\xEF\xBF\xBD\xEF\xBF\xBD"},
        {"\xE0\x80\xAF", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
        {"\xED\xA0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
        {"\xF4\x90\x80\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
        {"\x80\xBF", "\xEF\xBF\xBD\xEF\xBF\xBD"},
        {"\xF4\x8F\xBF\xBF\xEE\x80\x80", "\xF4\x8F\xBF\xBF\xEE\x80\x80"},
    };
    ot_tokenizer *tokenizer = open_named("smollm");
    ot_ids ids = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *back;
        size_t bytes;
        ids.count = 0;
        assert_int_equal(ot_tokenizer_encode(tokenizer, cases[i][0], strlen(cases[i][0]), 1, &ids), OT_OK);
        assert_int_equal(ot_tokenizer_decode(tokenizer, ids.ids, ids.count, 1, &back, &bytes), OT_OK);
        assert_string_equal(back, cases[i][1]);
        free(back);
    }
    ot_ids_free(&ids);
    ot_tokenizer_close(tokenizer);
}

static void bytes_as_tokens(void **state)
{
    (void)state;
    ot_tokenizer *tokenizer;
    ot_tokenizer_info info;
    ot_ids ids = {0};
    assert_int_equal(ot_tokenizer_open_bytes(258, 256, 257, &tokenizer), OT_OK);
    ot_tokenizer_query(tokenizer, &info);
    assert_true(info.V == 258 && info.bos == 256 && info.eos == 257 && info.is_bytes && !info.add_bos &&
                info.chat_template == NULL);
    assert_int_equal(ot_tokenizer_encode(tokenizer, "a\0\xFF", 3, 1, &ids), OT_OK);
    assert_int_equal(ids.count, 3);
    assert_true(ids.ids[0] == 'a' && ids.ids[1] == 0 && ids.ids[2] == 255);
    char *text;
    size_t bytes;
    assert_int_equal(ot_tokenizer_decode(tokenizer, (int32_t[]){256, 'a', 0, 255, 257}, 5, 0, &text, &bytes),
                     OT_OK);
    assert_int_equal(bytes, 3);
    assert_memory_equal(text, "a\0\xFF", 4);
    free(text);
    assert_int_equal(ot_tokenizer_find(tokenizer, "a"), 'a');
    assert_int_equal(ot_tokenizer_find(tokenizer, "ab"), -1);
    ot_tokenizer_close(tokenizer);

    assert_int_equal(ot_tokenizer_open_bytes(100, -1, 0, &tokenizer), OT_OK);
    ids.count = 0;
    assert_int_equal(ot_tokenizer_encode(tokenizer, "ax", 2, 1, &ids), OT_ERR_DATA);
    assert_non_null(strstr(ot_error_text(), "byte 1 of the text is 120"));
    assert_int_equal(ot_tokenizer_decode(tokenizer, (int32_t[]){100}, 1, 0, &text, &bytes), OT_ERR_DATA);
    ot_tokenizer_close(tokenizer);
    assert_int_equal(ot_tokenizer_open_bytes(100, 100, -1, &tokenizer), OT_ERR_USAGE);
    ot_ids_free(&ids);
}

static void *encode_beside_others(void *context)
{
    const ot_tokenizer *tokenizer = context;
    json_t *lines = lines_named("llama2_added");
    ot_ids ids = {0};
    for (int round = 0; round < 3; round++)
        for (size_t i = 0; i < json_array_size(lines); i++)
            check_ids(tokenizer, json_array_get(lines, i), "special", 1, &ids);
    ot_ids_free(&ids);
    json_decref(lines);
    return NULL;
}

static void many_threads(void **state)
{
    (void)state;
    ot_tokenizer *tokenizer = open_named("llama2_added");
    pthread_t threads[4];
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, encode_beside_others, tokenizer), 0);
    for (size_t i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    ot_tokenizer_close(tokenizer);
}

static double cpu_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Best of some rounds over a file's text, with the cache as the rounds leave it and with none. */
static int print_speed(const char *directory, const char *path)
{
    ot_tokenizer *tokenizer = open_tokenizer(directory);
    FILE *file = fopen(path, "r");
    char *text = NULL;
    size_t size = 0;
    ssize_t bytes = file != NULL ? getdelim(&text, &size, '\0', file) : -1;
    if (bytes <= 0)
        return 1;
    double best[2] = {1e9, 1e9};
    ot_ids ids[2] = {{0}, {0}};
    for (int round = 0; round < 14; round++) {
        int fresh = round % 2;
        if (fresh)
            ot_ids_free(&ids[fresh]);
        ids[fresh].count = 0;
        double begin = cpu_seconds();
        if (ot_tokenizer_encode(tokenizer, text, (size_t)bytes, 1, &ids[fresh]) != OT_OK)
            return 1;
        double seconds = cpu_seconds() - begin;
        best[fresh] = seconds < best[fresh] ? seconds : best[fresh];
    }
    double tokens = (double)ids[0].count * 1e-6;
    printf("%zd bytes, %zu tokens: %.2f million tokens/s, %.2f with a new cache\n", bytes, ids[0].count,
           tokens / best[0], tokens / best[1]);
    ot_ids_free(&ids[0]);
    ot_ids_free(&ids[1]);
    ot_tokenizer_close(tokenizer);
    free(text);
    fclose(file);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "speed") == 0)
        return print_speed(argv[2], argv[3]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hugging_face_ids),
        cmocka_unit_test(cuts_and_cache_change_nothing),
        cmocka_unit_test(cache_of_similar_words),
        cmocka_unit_test(cuts_are_made),
        cmocka_unit_test(merges_of_any_length),
        cmocka_unit_test(normal_form_of_parts),
        cmocka_unit_test(round_trip),
        cmocka_unit_test(long_words),
        cmocka_unit_test(broken_utf8),
        cmocka_unit_test(bytes_as_tokens),
        cmocka_unit_test(many_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
