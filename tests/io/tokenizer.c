/* What the tokenizer's tests share. */
#include "tests/io/tokenizer.h"

#include <stdlib.h>
#include <string.h>

ot_tokenizer *open_tokenizer(const char *directory)
{
    ot_tokenizer *tokenizer = NULL;
    if (ot_tokenizer_open(directory, &tokenizer) != OT_OK)
        fail_msg("%s", ot_error_text());
    return tokenizer;
}

void check_ids(const ot_tokenizer *tokenizer, const json_t *line, const char *key, int special, ot_ids *ids)
{
    const json_t *text = json_object_get(line, "text"), *expected = json_object_get(line, key);
    assert_true(json_is_array(expected));
    ids->count = 0;
    if (ot_tokenizer_encode(tokenizer, json_string_value(text), json_string_length(text), special, ids) !=
        OT_OK)
        fail_msg("'%s': %s", json_string_value(text), ot_error_text());
    for (size_t i = 0; i < ids->count && i < json_array_size(expected); i++)
        if (ids->ids[i] != json_integer_value(json_array_get(expected, i)))
            fail_msg("'%s', %s: token %zu is %d, expected %d", json_string_value(text), key, i, ids->ids[i],
                     (int)json_integer_value(json_array_get(expected, i)));
    assert_int_equal(ids->count, json_array_size(expected));
}

json_t *read_lines(const char *path)
{
    FILE *file = fopen(path, "r");
    if (file == NULL)
        fail_msg("%s cannot be read", path);
    json_t *lines = json_array();
    char *line = NULL;
    size_t size = 0;
    while (getline(&line, &size, file) > 0) {
        if (line[0] == '\n')
            continue;
        json_error_t error;
        json_t *object = json_loads(line, JSON_ALLOW_NUL, &error);
        if (object == NULL)
            fail_msg("%s: %s", path, error.text);
        json_array_append_new(lines, object);
    }
    free(line);
    fclose(file);
    return lines;
}

uint64_t next_random(uint64_t *seed)
{
    *seed += UINT64_C(0x9E3779B97F4A7C15);
    uint64_t x = (*seed ^ *seed >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
    return x ^ x >> 31;
}

static size_t random_character(uint64_t *seed, char out[4])
{
    static const uint32_t limits[] = {0x80, 0x600, 0x3000, 0x10000, 0x110000};
    uint32_t c = (uint32_t)(next_random(seed) % limits[next_random(seed) % 5]);
    c = c >= 0xD800 && c < 0xE000 ? c - 0x5000 : c;
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    size_t length = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = length - 1; i > 0; i--, c >>= 6)
        out[i] = (char)(0x80 | (c & 0x3F));
    out[0] = (char)((length == 2 ? 0xC0 : length == 3 ? 0xE0 : 0xF0) | c);
    return length;
}

char *hostile_text(uint64_t *seed, size_t bytes, size_t *length)
{
    static const char *const parts[] = {
        " ",
        "  ",
        "     ",
        "\n",
        "\r\n",
        "\t",
        "\xC2\xA0",
        "\xE3\x80\x80",
        "\xE1\xA0\x8E",
        "\xE2\x80\x8D",
        "the",
        " the",
        "hello",
        "Hello",
        "it's",
        "'LL",
        "12345",
        "7",
        "\xE2\x96\x81",
        "\xE2\x96\x81\xE2\x96\x81",
        "caf\xC3\xA9",
        "e\xCC\x81",
        "\xCC\x81\xCC\xA3",
        "\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8",
        "\xE4\xB8\xAD\xE6\x96\x87",
        "\xD7\xA9\xD7\x9C\xD7\x95\xD7\x9D",
        "\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x91\xA7",
        "<s>",
        "</s>",
        "<mask>",
        "word",
        "<tool>",
        "<too",
        "abcd",
        "abc",
        "<0x41>",
        "<unk>",
        "()",
        "=>",
        "...",
        "\xEF\xBF\xBD",
        "thethethethethethethethethethethethethethethethethe",
        "foo(bar)",
        "    return x\n",
    };
    char *text = malloc(bytes + 128);
    assert_non_null(text);
    *length = 0;
    while (*length < bytes) {
        if (next_random(seed) % 8 == 0) {
            *length += random_character(seed, text + *length);
        } else {
            const char *part = parts[next_random(seed) % (sizeof parts / sizeof *parts)];
            memcpy(text + *length, part, strlen(part));
            *length += strlen(part);
        }
    }
    text[*length] = '\0';
    return text;
}
