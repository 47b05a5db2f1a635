/* Tokenizer files that are not as they should be, and the files beside tokenizer.json. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/io/tokenizer.h"
#include "tests/support/tree.h"

/* Replaces `value` for the key at `path` ("model.dropout") of a small tokenizer.json, which is written into the folder. */
static void write_changed(const char *root, const char *path, const char *value)
{
    static const char file[] =
        "{\"version\":\"1.0\",\"added_tokens\":[{\"id\":5,\"content\":\"<s>\",\"special\":true,\"normalized\":false}],"
        "\"normalizer\":null,\"pre_tokenizer\":null,\"post_processor\":null,\"decoder\":null,"
        "\"model\":{\"type\":\"BPE\",\"unk_token\":\"?\",\"vocab\":{\"?\":0,\"a\":1,\"b\":2,\"ab\":3,\"c\":4},\"merges\":[\"a b\"]}}";
    json_error_t error;
    json_t *tree = json_loads(file, 0, &error), *node = tree;
    assert_non_null(tree);
    char key[64];
    for (const char *at = path; *at != '\0'; node = json_object_get(node, key)) {
        size_t length = strcspn(at, ".");
        snprintf(key, sizeof key, "%.*s", (int)length, at);
        at += length + (at[length] == '.');
        if (*at == '\0') {
            json_t *new_value = json_loads(value, JSON_DECODE_ANY, &error);
            if (new_value == NULL)
                fail_msg("%s: %s", value, error.text);
            json_object_set_new(node, key, new_value);
        }
    }
    char *text = json_dumps(tree, JSON_COMPACT);
    tree_write(root, "/tokenizer.json", text);
    free(text);
    json_decref(tree);
}

static void refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *path, *value, *named;
    } cases[] = {
        {"model.type", "\"Unigram\"", "'Unigram'"},
        {"model.type", "\"WordPiece\"", "'WordPiece'"},
        {"model.dropout", "0.1", "'dropout'"},
        {"model.continuing_subword_prefix", "\"##\"", "'continuing_subword_prefix'"},
        {"model.end_of_word_suffix", "\"</w>\"", "'end_of_word_suffix'"},
        {"model.byte_fallback", "1", "'byte_fallback'"},
        {"model.vocab", "[]", "'vocab'"},
        {"model.vocab", "{}", "'vocab'"},
        {"model.vocab", "{\"a\":-1}", "'a'"},
        {"model.vocab", "{\"a\":1e3}", "'a'"},
        {"model.vocab", "{\"a\":4294967296}", "'a'"},
        {"model.vocab", "{\"a\":0,\"b\":0}", "id 0"},
        {"model.merges", "{}", "'merges'"},
        {"model.merges", "[\"a b c\"]", "merge 0"},
        {"model.merges", "[\"ab\"]", "merge 0"},
        {"model.merges", "[[\"a\"]]", "merge 0"},
        {"model.merges", "[[\"a\",1]]", "merge 0"},
        {"model.merges", "[\"a b\",\"b a\"]", "'ba' is not in the vocabulary"},
        {"model.merges", "[\"a b\",\"a z\"]", "merge 1"},
        {"model", "null", "'model'"},
        {"added_tokens", "{}", "'added_tokens'"},
        {"added_tokens", "[{\"id\":5}]", "'content'"},
        {"added_tokens", "[{\"id\":5,\"content\":\"\"}]", "0 bytes"},
        {"added_tokens", "[{\"id\":-5,\"content\":\"x\"}]", "'x'"},
        {"added_tokens", "[{\"id\":7,\"content\":\"x\"}]", "'x' has id 7"},
        {"added_tokens", "[{\"id\":0,\"content\":\"a\"}]", "'a' has id 0"},
        {"added_tokens", "[{\"id\":5,\"content\":\"x\"},{\"id\":5,\"content\":\"x\"}]", "twice"},
        {"added_tokens", "[{\"id\":5,\"content\":\"x\",\"special\":\"yes\"}]", "'special'"},
        {"normalizer", "{\"type\":\"Lowercase\"}", "'Lowercase'"},
        {"normalizer",
         "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"StripAccents\"}]}",
         "'StripAccents'"},
        {"normalizer", "{\"type\":\"Sequence\"}", "'normalizers'"},
        {"normalizer", "{\"type\":\"Prepend\"}", "'prepend'"},
        {"normalizer", "{\"type\":\"Replace\",\"content\":\"x\"}", "'pattern'"},
        {"normalizer", "[]", "'type'"},
        {"pre_tokenizer", "{\"type\":\"Whitespace\"}", "'Whitespace'"},
        {"pre_tokenizer", "{\"type\":\"Punctuation\"}", "'Punctuation'"},
        {"pre_tokenizer", "{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"often\"}",
         "'often'"},
        {"pre_tokenizer", "{\"type\":\"Metaspace\",\"replacement\":\"\"}", "replacement"},
        {"pre_tokenizer", "{\"type\":\"Split\",\"pattern\":{\"String\":\"x\"},\"behavior\":\"Odd\"}",
         "'Odd'"},
        {"pre_tokenizer",
         "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\"},{\"type\":\"Digits\"}]}",
         "ByteLevel"},
        {"post_processor", "{\"type\":\"RobertaProcessing\"}", "'RobertaProcessing'"},
        {"post_processor",
         "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\"}}],\"special_tokens\":{}}",
         "post_processor"},
        {"post_processor",
         "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\"}}],\"special_tokens\":{\"<s>\":{\"ids\":[6]}}}",
         "'<s>'"},
        {"decoder", "{\"type\":\"WordPiece\"}", "'WordPiece'"},
        {"decoder", "{\"type\":\"Strip\",\"content\":\" \",\"start\":-1,\"stop\":0}", "Strip"},
    };
    char *root = tree_open();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ot_tokenizer *tokenizer = NULL;
        write_changed(root, cases[i].path, cases[i].value);
        if (ot_tokenizer_open(root, &tokenizer) != OT_ERR_FORMAT)
            fail_msg("%s = %s is taken", cases[i].path, cases[i].value);
        if (strstr(ot_error_text(), cases[i].named) == NULL ||
            strstr(ot_error_text(), "tokenizer.json") == NULL)
            fail_msg("%s = %s: '%s' does not name %s", cases[i].path, cases[i].value, ot_error_text(),
                     cases[i].named);
        assert_null(tokenizer);
    }
    write_changed(root, "decoder", "null"); /* while nothing is wrong with the file itself */
    ot_tokenizer_close(open_tokenizer(root));
    tree_close(root);
}

/* Regular expressions that Onigmo and PCRE2 read differently, or that are none. */
static void patterns_refused(void **state)
{
    (void)state;
    static const char *const patterns[] = {
        "\\\\w+",     "\\\\b",      "\\\\h",        "\\\\R",
        "\\\\X",      "\\\\A",      "\\\\Z",        "\\\\1",
        "^a",         "a$",         "\\\\p{Han}",   "\\\\p{Alpha}",
        "\\\\pL",     "\\\\p{L",    "\\\\p{Cn}",    "(?i:\\\\p{L})",
        "(?i:[a-z])", "(?i:ss)",    "(?i:\\u00e9)", "(?i)a",
        "(?<n>a)",    "(*UCP)a",    "[a&&b]",       "[[:alpha:]]",
        "[[a]]",      "[]",         "[^]",          "[a",
        "[\\\\S]",    "[\\\\P{L}]", "[\\\\D]",      "a{,3}",
        "a{1,3}+",    "a{1,3}?",    "a**",          "*a",
        "(+a)",       "a|*",        "(a",           "a)",
        "a*",         "a?|b",       "\\\\x41",      "\\\\x{110000}",
        "\\\\u12",    "",
    };
    char *root = tree_open();
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        char value[256];
        ot_tokenizer *tokenizer = NULL;
        snprintf(value, sizeof value,
                 "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"%s\"},\"behavior\":\"Isolated\"}",
                 patterns[i]);
        write_changed(root, "pre_tokenizer", value);
        if (ot_tokenizer_open(root, &tokenizer) != OT_ERR_FORMAT)
            fail_msg("%s is taken", patterns[i]);
    }
    tree_close(root);
}

/* A pattern that would try for ever is given up with an error. */
static void endless_pattern(void **state)
{
    (void)state;
    char *root = tree_open();
    write_changed(
        root, "pre_tokenizer",
        "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?:a|aa)+(?:b|c)\"},\"behavior\":\"Isolated\"}");
    ot_tokenizer *tokenizer = open_tokenizer(root);
    char text[200];
    memset(text, 'a', sizeof text);
    ot_ids ids = {0};
    assert_int_equal(ot_tokenizer_encode(tokenizer, text, sizeof text, 1, &ids), OT_ERR_DATA);
    assert_non_null(strstr(ot_error_text(), "regular expression"));
    ot_ids_free(&ids);
    ot_tokenizer_close(tokenizer);
    tree_close(root);
}

static void files_beside(void **state)
{
    (void)state;
    static const char front[] =
        "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\"}},{\"Sequence\":{\"id\":\"A\"}}],"
        "\"special_tokens\":{\"<s>\":{\"id\":\"<s>\",\"ids\":[5],\"tokens\":[\"<s>\"]}}}";
    static const struct {
        const char *processor, *config, *map, *jinja;
        int32_t bos, eos;
        int add_bos;
        const char *chat_template;
    } cases[] = {
        {"null", NULL, NULL, NULL, -1, -1, 0, NULL},
        {"null",
         "{\"bos_token\":\"<s>\",\"eos_token\":{\"content\":\"c\"},\"model_max_length\":1000000000000000019884624838656}",
         NULL, NULL, 5, 4, 0, NULL},
        {"null", "{\"bos_token\":\"<s>\",\"add_bos_token\":true}", NULL, NULL, 5, -1, 1, NULL},
        {front, "{\"eos_token\":null}", NULL, NULL, 5, -1, 1, NULL},
        {front, "{\"add_bos_token\":false,\"bos_token\":\"<s>\"}", NULL, NULL, 5, -1, 0, NULL},
        {front, "{\"add_bos_token\":null}",
         "{\"bos_token\":\"<s>\",\"eos_token\":{\"content\":\"a\",\"special\":true}}", NULL, 5, 1, 1, NULL},
        {"null", "{\"bos_token\":null}", "{\"bos_token\":\"b\"}", NULL, 2, -1, 0, NULL},
        {"null", "{\"chat_template\":\"{{ x }}\"}", NULL, NULL, -1, -1, 0, "{{ x }}"},
        {"null",
         "{\"chat_template\":[{\"name\":\"tool_use\",\"template\":\"t\"},{\"name\":\"default\",\"template\":\"d\"}]}",
         NULL, NULL, -1, -1, 0, "d"},
        {"null", "{\"chat_template\":[{\"name\":\"tool_use\",\"template\":\"t\"}]}", NULL, NULL, -1, -1, 0,
         NULL},
        {"null", "{\"chat_template\":\"old\"}", NULL, "{% new %}\n", -1, -1, 0, "{% new %}\n"},
        {"null", NULL, NULL, "", -1, -1, 0, ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *root = tree_open();
        write_changed(root, "post_processor", cases[i].processor);
        if (cases[i].config != NULL)
            tree_write(root, "/tokenizer_config.json", cases[i].config);
        if (cases[i].map != NULL)
            tree_write(root, "/special_tokens_map.json", cases[i].map);
        if (cases[i].jinja != NULL)
            tree_write(root, "/chat_template.jinja", cases[i].jinja);
        ot_tokenizer *tokenizer = open_tokenizer(root);
        ot_tokenizer_info info;
        ot_tokenizer_query(tokenizer, &info);
        assert_int_equal(info.V, 6);
        if (info.bos != cases[i].bos || info.eos != cases[i].eos || info.add_bos != cases[i].add_bos)
            fail_msg("case %zu: bos %d, eos %d, add_bos %d", i, info.bos, info.eos, info.add_bos);
        if (cases[i].chat_template == NULL)
            assert_null(info.chat_template);
        else
            assert_string_equal(info.chat_template, cases[i].chat_template);
        ot_tokenizer_close(tokenizer);
        tree_close(root);
    }
}

static void bad_files_beside(void **state)
{
    (void)state;
    static const char *const cases[][3] = {
        {"/tokenizer_config.json", "{\"bos_token\":\"<bos>\"}", "'<bos>'"},
        {"/tokenizer_config.json", "{\"bos_token\":5}", "'bos_token'"},
        {"/tokenizer_config.json", "{\"add_bos_token\":\"yes\"}", "'add_bos_token'"},
        {"/tokenizer_config.json", "{", "tokenizer_config.json:1"},
        {"/tokenizer_config.json", "[]", "JSON object"},
        {"/special_tokens_map.json", "{\"eos_token\":\"<eos>\"}", "'<eos>'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *root = tree_open();
        write_changed(root, "decoder", "null");
        tree_write(root, cases[i][0], cases[i][1]);
        ot_tokenizer *tokenizer;
        assert_int_equal(ot_tokenizer_open(root, &tokenizer), OT_ERR_FORMAT);
        if (strstr(ot_error_text(), cases[i][2]) == NULL)
            fail_msg("'%s' does not name %s", ot_error_text(), cases[i][2]);
        tree_close(root);
    }
    ot_tokenizer *tokenizer;
    assert_int_equal(ot_tokenizer_open("/nonexistent", &tokenizer), OT_ERR_FORMAT);
    assert_non_null(strstr(ot_error_text(), "/nonexistent/tokenizer.json"));
}

/* The hash changes with what decides ids, and with nothing that does not. */
static void hashes(void **state)
{
    (void)state;
    static const char *const configs[] = {"{}", "{\"chat_template\":\"x\"}", "{\"bos_token\":\"<s>\"}",
                                          "{\"bos_token\":\"<s>\",\"add_bos_token\":true}"};
    uint64_t seen[5];
    char *root = tree_open();
    for (size_t i = 0; i < 5; i++) {
        write_changed(root, "model.ignore_merges", i == 4 ? "true" : "false");
        tree_write(root, "/tokenizer_config.json", configs[i % 4]);
        ot_tokenizer *tokenizer = open_tokenizer(root);
        ot_tokenizer_info info;
        ot_tokenizer_query(tokenizer, &info);
        seen[i] = info.hash;
        ot_tokenizer_close(tokenizer);
    }
    tree_close(root);
    assert_true(seen[0] == seen[1]);
    for (size_t i = 1; i < 5; i++)
        for (size_t j = i + 1; j < 5; j++)
            assert_true(seen[i] != seen[j]);
}

/* Every file that a cut or a changed byte makes of a good one is refused with a message, or is a tokenizer that works. */
static void damaged(void **state)
{
    (void)state;
    static const char *const names[] = {"llama2_added", "merged", "llama3"};
    uint64_t seed = 5;
    char *root = tree_open();
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        char path[4096];
        snprintf(path, sizeof path, OT_GOLDEN_FOLDER "/tokenizers/%s/tokenizer.json", names[n]);
        FILE *file = fopen(path, "r");
        char *good = NULL;
        size_t size = 0;
        assert_non_null(file);
        size_t bytes = (size_t)getdelim(&good, &size, '\0', file);
        fclose(file);
        for (int round = 0; round < 400; round++) {
            char *bad = strdup(good);
            if (round % 4 == 0)
                bad[next_random(&seed) % bytes] = '\0';
            else /* the head, where the structure is, as often as the rest */
                for (int k = 0; k < 1 + round % 3; k++)
                    bad[next_random(&seed) % (round % 2 ? 1800 : bytes)] =
                        "\"{}[]:,0123456789abtrue\\"[next_random(&seed) % 24];
            tree_write(root, "/tokenizer.json", bad);
            ot_tokenizer *tokenizer;
            ot_status status = ot_tokenizer_open(root, &tokenizer);
            if (status == OT_OK) {
                size_t length;
                char *text = hostile_text(&seed, 2000, &length);
                ot_ids ids = {0};
                status = ot_tokenizer_encode(tokenizer, text, length, 1, &ids);
                assert_true(status == OT_OK || status == OT_ERR_DATA || status == OT_ERR_FORMAT);
                ot_ids_free(&ids);
                ot_tokenizer_close(tokenizer);
                free(text);
            } else {
                assert_int_equal(status, OT_ERR_FORMAT);
                assert_non_null(strstr(ot_error_text(), "tokenizer.json"));
            }
            free(bad);
        }
        free(good);
    }
    tree_close(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refused_by_name),  cmocka_unit_test(patterns_refused),
        cmocka_unit_test(endless_pattern),  cmocka_unit_test(files_beside),
        cmocka_unit_test(bad_files_beside), cmocka_unit_test(hashes),
        cmocka_unit_test(damaged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
