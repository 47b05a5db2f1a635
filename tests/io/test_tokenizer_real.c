/* The real tokenizer files of ../shared/data: the ids that Hugging Face's own give. Skipped without them or without xz. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/io/tokenizer.h"
#include "tests/support/tree.h"

#define DATA OT_SHARED_FOLDER "/data/tokenizers/"

enum { SKIP = 77 };

static int run(const char *format, const char *name, const char *root)
{
    char command[4096];
    snprintf(command, sizeof command, format, name, root);
    return system(command);
}

static void check(const char *name, const char *root)
{
    /* xz is what unpacks them on any machine that has the data. */
    assert_int_equal(run("xz -dc '" DATA "%s/tokenizer.json.xz' > '%s/tokenizer.json'", name, root), 0);
    assert_int_equal(run("cp '" DATA "%s/tokenizer_config.json' '%s'", name, root), 0);
    ot_tokenizer *tokenizer = open_tokenizer(root);
    char path[4096];
    snprintf(path, sizeof path, DATA "%s/expected.jsonl", name);
    json_t *lines = read_lines(path);
    assert_int_equal(json_array_size(lines), 244);
    ot_ids ids = {0};
    for (int round = 0; round < 3; round++)
        for (size_t i = 0; i < json_array_size(lines); i++)
            check_ids(tokenizer, json_array_get(lines, i), "ids", 1, &ids);
    ot_ids_free(&ids);
    json_decref(lines);

    ot_tokenizer_info info;
    ot_tokenizer_query(tokenizer, &info);
    if (strcmp(name, "qwen3") == 0) {
        assert_true(info.V == 151669 && info.bos == -1 && info.eos == 151645 && !info.add_bos);
        assert_non_null(strstr(info.chat_template, "<|im_start|>"));
        assert_int_equal(ot_tokenizer_find(tokenizer, "<think>"), 151667);
    } else {
        assert_true(info.V == 32000 && info.bos == 1 && info.eos == 2 && info.add_bos);
        assert_int_equal(ot_tokenizer_find(tokenizer, "\xE2\x96\x81the"), 272);
    }
    ot_tokenizer_close(tokenizer);
}

static void real_tokenizers(void **state)
{
    (void)state;
    char *root = tree_open();
    check("qwen3", root);
    check("mistral", root);
    tree_close(root);
}

int main(void)
{
    if (access(DATA "qwen3/expected.jsonl", R_OK) != 0 || system("command -v xz >/dev/null 2>&1") != 0) {
        printf("skipped: " DATA " or xz is missing\n");
        return SKIP;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(real_tokenizers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
