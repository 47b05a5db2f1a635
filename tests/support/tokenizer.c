#include "tests/support/tokenizer.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/support/test.h"
#include "tests/support/tree.h"

/* The letter that stands for a byte in byte-level vocabularies: itself where it is printed, else one from U+0100 on. */
static void write_letter(int byte, char out[4])
{
    int next = 0x100, letter = byte;
    for (int b = 0; b <= byte; b++) {
        int printed = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        letter = printed ? b : next++;
    }
    if (letter < 0x80)
        snprintf(out, 4, "%c", letter);
    else
        snprintf(out, 4, "%c%c", 0xc0 | letter >> 6, 0x80 | (letter & 0x3f));
}

static void write_json(const char *root, const char *path, json_t *value)
{
    char *text = json_dumps(value, 0);
    assert_non_null(text);
    tree_write(root, path, text);
    free(text);
    json_decref(value);
}

void tokenizer_write(const char *root, const char *const *specials, size_t count, const char *bos,
                     const char *eos, int add_bos, const char *jinja)
{
    json_t *vocabulary = json_object(), *added = json_array();
    for (int byte = 0; byte < BYTE_TOKENS; byte++) {
        char letter[4];
        write_letter(byte, letter);
        json_object_set_new(vocabulary, letter, json_integer(byte));
    }
    for (size_t i = 0; i < count; i++)
        json_array_append_new(added, json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id",
                                               BYTE_TOKENS + (int)i, "content", specials[i], "special", 1,
                                               "normalized", 0, "lstrip", 0, "rstrip", 0, "single_word", 0));
    json_t *root_json =
        json_pack("{s:s, s:o, s:n, s:{s:s, s:b, s:b, s:b}, s:n, s:{s:s}, s:{s:s, s:o, s:[]}}", "version",
                  "1.0", "added_tokens", added, "normalizer", "pre_tokenizer", "type", "ByteLevel",
                  "add_prefix_space", 0, "trim_offsets", 1, "use_regex", 1, "post_processor", "decoder",
                  "type", "ByteLevel", "model", "type", "BPE", "vocab", vocabulary, "merges");
    assert_non_null(root_json);
    write_json(root, "/tokenizer.json", root_json);
    json_t *config = json_pack("{s:b, s:s*, s:s*, s:s*}", "add_bos_token", add_bos, "bos_token", bos,
                               "eos_token", eos, "chat_template", jinja);
    assert_non_null(config);
    write_json(root, "/tokenizer_config.json", config);
}
