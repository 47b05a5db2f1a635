/* From files to tokens: kinds of rows, what is trained, what is refused and where, and the cache. */
#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/samples.h"
#include "io/log.h"
#include "tests/support/test.h"
#include "tests/support/tokenizer.h"
#include "tests/support/tree.h"

enum { PATH_BYTES = 512, FILES_MAX = 4 };

static const char *const specials[] = {"<|im_start|>", "<|im_end|>", "<s>", "</s>"};

/* A tokenizer of bytes with four special tokens, and files. */
typedef struct fixture {
    char *root;
    char paths[FILES_MAX][PATH_BYTES];
    const char *files[FILES_MAX];
    ot_samples_options options;
    ot_tokenizer *tokenizer;
    ot_tokens *tokens;
} fixture;

static void add_bytes(fixture *f, const char *name, const void *data, size_t bytes)
{
    size_t i = f->options.file_count++;
    snprintf(f->paths[i], PATH_BYTES, "%s/%s", f->root, name);
    f->files[i] = f->paths[i];
    FILE *file = fopen(f->paths[i], "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    fclose(file);
}

static void add(fixture *f, const char *name, const char *text)
{
    add_bytes(f, name, text, strlen(text));
}

static fixture make_with(int add_bos, const char *bos, const char *eos)
{
    fixture f = {.root = tree_open(), .options = {.chat_template = "auto", .threads = 1}};
    tokenizer_write(f.root, specials, 4, bos, eos, add_bos, NULL);
    if (ot_tokenizer_open(f.root, &f.tokenizer) != OT_OK)
        fail_msg("%s", ot_error_text());
    f.options.tokenizer = f.tokenizer;
    return f;
}

static fixture make(int add_bos)
{
    return make_with(add_bos, "<s>", "</s>");
}

static void write_tokens(fixture *f)
{
    f->options.files = f->files;
    if (ot_samples_write(&f->options, NULL, &f->tokens) != OT_OK)
        fail_msg("%s", ot_error_text());
}

static void done(fixture *f)
{
    ot_tokens_close(f->tokens);
    ot_tokenizer_close(f->tokenizer);
    tree_close(f->root);
}

/* A document as text, trained parts in brackets. */
static void assert_document(const fixture *f, uint64_t document, const char *expected)
{
    char text[4096];
    size_t at = 0;
    int inside = 0;
    for (uint64_t i = ot_tokens_start(f->tokens, document); i < ot_tokens_start(f->tokens, document + 1);
         i++) {
        int32_t id = ot_tokens_id(f->tokens, i);
        int trained = ot_tokens_trained(f->tokens, i);
        if (trained != inside)
            text[at++] = trained ? '[' : ']';
        inside = trained;
        if (id < 256)
            text[at++] = (char)id;
        else
            at += (size_t)snprintf(text + at, sizeof text - at, "%s", specials[id - 256]);
    }
    if (inside)
        text[at++] = ']';
    text[at] = '\0';
    assert_string_equal(text, expected);
}

static void assert_origin(const fixture *f, uint64_t document, const char *name, uint64_t line)
{
    uint64_t found;
    const char *file = ot_tokens_origin(f->tokens, document, &found);
    assert_non_null(strstr(file, name));
    assert_int_equal(found, line);
}

/* ---- kinds ---- */

/* Case 37: EOS ends each document of text and is trained; case 38: one BOS. */
static void text_files_and_rows(void **state)
{
    (void)state;
    fixture f = make(1);
    add(&f, "a.txt", "\xef\xbb\xbfone <s> two\r\n");
    add(&f, "b.jsonl", "\xef\xbb\xbf{\"text\":\"x</s>\"}\r\n\r\n{\"text\":\"y\",\"id\":3}");
    write_tokens(&f);
    assert_int_equal(ot_tokens_query(f.tokens)->documents, 3);
    assert_document(&f, 0, "<s>[one <s> two\r\n</s>]");
    assert_document(&f, 1, "<s>[x</s></s>]");
    assert_document(&f, 2, "<s>[y</s>]");
    assert_int_equal(ot_tokens_id(f.tokens, 0), 258);
    assert_int_equal(ot_tokens_id(f.tokens, 5), '<');
    assert_int_equal(ot_tokens_continues(f.tokens, 0), 1);
    assert_int_equal(ot_tokens_continues(f.tokens, 1), 0);
    assert_origin(&f, 0, "a.txt", 0);
    assert_origin(&f, 1, "b.jsonl", 1);
    assert_origin(&f, 2, "b.jsonl", 3);
    done(&f);
}

#define CHAT(user, assistant)                                                                                \
    "{\"messages\":[{\"role\":\"user\",\"content\":\"" user                                                  \
    "\"},{\"role\":\"assistant\",\"content\":\"" assistant "\"}]}"

static const char two_turns[] =
    "{\"messages\":[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\","
    "\"content\":\"b\"},{\"role\":\"user\",\"content\":\"c\"},{\"role\":\"assistant\",\"content\":\"d\"}]}";

/* Case 38: every turn of the assistant, from its first token on; case 37: its end token, and not the newline behind it. */
static void chats(void **state)
{
    (void)state;
    fixture f = make(0);
    add(&f, "a.jsonl", two_turns);
    add(&f, "b.jsonl",
        "{\"system\":\"S\",\"conversations\":[{\"from\":\"human\",\"value\":\"a\"},{\"from\":\"gpt\",\"value\":\"b\"}]}");
    write_tokens(&f);
    assert_document(
        &f, 0,
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n[b<|im_end|>]\n"
        "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n[d<|im_end|>]\n");
    assert_document(
        &f, 1,
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n[b<|im_end|>]\n");
    done(&f);
}

static void what_is_trained(void **state)
{
    (void)state;
    fixture f = make(0);
    add(&f, "a.jsonl", two_turns);
    f.options.train_on = OT_TRAIN_ON_COMPLETION;
    write_tokens(&f);
    assert_document(
        &f, 0,
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
        "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n[d<|im_end|>]\n");
    ot_tokens_close(f.tokens);
    f.options.train_on = OT_TRAIN_ON_ALL;
    write_tokens(&f);
    assert_int_equal(ot_tokens_query(f.tokens)->trained, ot_tokens_query(f.tokens)->tokens - 1);
    done(&f);

    f = make(0);
    add(&f, "a.txt", "text");
    f.options.train_on = OT_TRAIN_ON_ASSISTANT;
    f.options.files = f.files;
    assert_int_equal(ot_samples_write(&f.options, NULL, &f.tokens), OT_ERR_USAGE);
    f.tokens = NULL;
    done(&f);
}

static void prompt_and_completion(void **state)
{
    (void)state;
    fixture f = make(1);
    add(&f, "a.jsonl", "{\"prompt\":\"Q: \",\"completion\":\"A\"}\n{\"prompt\":\"\",\"completion\":\"B\"}\n");
    write_tokens(&f);
    assert_document(&f, 0, "<s>Q: [A</s>]");
    assert_document(&f, 1, "<s>[B</s>]");
    done(&f);
}

static void alpaca_rows(void **state)
{
    (void)state;
    fixture f = make(1);
    add(&f, "a.jsonl",
        "{\"instruction\":\"I\",\"input\":\"N\",\"output\":\"O\"}\n{\"instruction\":\"I\",\"output\":\"O\"}\n");
    write_tokens(&f);
    assert_document(
        &f, 0,
        "<s>Below is an instruction that describes a task, paired with an input that provides further context. "
        "Write a response that appropriately completes the request.\n\n### Instruction:\nI\n\n### Input:\nN\n\n"
        "### Response:\n[O</s>]");
    ot_tokens_close(f.tokens);
    f.options.chat_template = "chatml";
    write_tokens(&f);
    assert_document(&f, 0, "<s><|im_start|>user\nI\nN<|im_end|>\n<|im_start|>assistant\n[O<|im_end|>]\n");
    done(&f);
}

/* Files of llm.c and nanoGPT: documents end behind EOS, or begin with BOS, and continue. */
static void tokens_of_others(void **state)
{
    (void)state;
    static struct {
        uint32_t header[256];
        uint16_t ids[7];
    } llmc = {{20240520, 1, 7}, {'a', 'b', 259, 'c', 258, 'd', 'e'}};
    static const uint16_t plain[] = {'a', 259, 259, 'b'};
    fixture f = make(1);
    add_bytes(&f, "a.bin", &llmc, 1024 + 14);
    add_bytes(&f, "b.bin", plain, sizeof plain);
    write_tokens(&f);
    assert_int_equal(ot_tokens_query(f.tokens)->documents, 6);
    assert_document(&f, 0, "a[b</s>]");
    assert_document(&f, 1, "c");
    assert_document(&f, 2, "<s>[de]");
    assert_document(&f, 3, "a[</s>]");
    assert_document(&f, 4, "</s>");
    assert_document(&f, 5, "b");
    assert_int_equal(ot_tokens_continues(f.tokens, 0), 1);
    done(&f);
}

/* ---- threads, pieces ---- */

/* The same file from one thread and from five; a text of several pieces is the text. */
static void threads_change_nothing(void **state)
{
    (void)state;
    enum { WORDS = 200000 };
    fixture f = make(1);
    char *text = malloc(WORDS * 8), *at = text, path[2][PATH_BYTES];
    for (int i = 0; i < WORDS; i++)
        at += sprintf(at, i % 17 == 0 ? "%d.\n" : "w%cx ", i % 17 == 0 ? i : 'a' + i % 26);
    add(&f, "a.txt", text);
    at = text;
    for (int i = 0; i < 2000; i++)
        at += sprintf(at, CHAT("q%d", "a%d") "\n", i, i * i);
    add(&f, "b.jsonl", text);
    f.options.files = f.files;
    for (int i = 0; i < 2; i++) {
        ot_tokens *tokens;
        snprintf(path[i], PATH_BYTES, "%s/%d.bin", f.root, i);
        f.options.threads = i == 0 ? 1 : 5;
        if (ot_samples_write(&f.options, path[i], i == 0 ? &tokens : NULL) != OT_OK)
            fail_msg("%s", ot_error_text());
        if (i > 0)
            continue;
        FILE *file = fopen(f.paths[0], "rb");
        assert_true(ot_tokens_start(tokens, 1) > 3 * (256 << 10)); /* several pieces */
        assert_int_equal(ot_tokens_id(tokens, 0), 258);
        for (uint64_t t = 1; t + 1 < ot_tokens_start(tokens, 1); t++)
            if (ot_tokens_id(tokens, t) != fgetc(file))
                fail_msg("token %" PRIu64 " is not the text's", t);
        assert_int_equal(fgetc(file), EOF);
        fclose(file);
        assert_int_equal(ot_tokens_query(tokens)->documents, 2001);
        assert_document(
            &(fixture){.tokens = tokens}, 2000,
            "<s><|im_start|>user\nq1999<|im_end|>\n<|im_start|>assistant\n[a3996001<|im_end|>]\n");
        ot_tokens_close(tokens);
    }
    char command[2 * PATH_BYTES + 16];
    snprintf(command, sizeof command, "cmp %s %s", path[0], path[1]);
    assert_int_equal(system(command), 0);
    free(text);
    f.tokens = NULL;
    done(&f);
}

/* A text is cut into pieces where that changes no token: compared with the whole text, by real tokenizers of ../shared/data. */
static void pieces_are_the_whole_text(void **state)
{
    (void)state;
    static const char *const names[] = {"qwen3", "mistral"};
    static const char *const parts[] = {
        "The harbour was  grey", ", isn't it? ",       "x = {1: 'a'}\n\n\tif y:\n", "日本語 の テキスト ",
        "  indented   words ",   "naïve café 🙂 ", "1234 5678.90\r\n",          "a b c d\n"};
    enum { BYTES = 1 << 20 };
    if (access(OT_DATA_FOLDER "/tokenizers/qwen3", R_OK) != 0)
        skip();
    char *text = malloc(BYTES + 64), *at = text;
    for (uint32_t i = 1; at < text + BYTES; i = i * 1664525 + 1013904223)
        at = stpcpy(at, parts[i >> 29]);
    for (int i = 0; i < 2; i++) {
        fixture f = {.root = tree_open(), .options = {.chat_template = "auto", .threads = 2}};
        char command[4 * PATH_BYTES];
        ot_ids whole = {0};
        snprintf(command, sizeof command,
                 "cd '%s' && xz -dkc %s/%s/tokenizer.json.xz > tokenizer.json && cp %s/%s/*config.json .",
                 f.root, OT_DATA_FOLDER "/tokenizers", names[i], OT_DATA_FOLDER "/tokenizers", names[i]);
        assert_int_equal(system(command), 0);
        if (ot_tokenizer_open(f.root, &f.tokenizer) != OT_OK)
            fail_msg("%s", ot_error_text());
        f.options.tokenizer = f.tokenizer;
        add(&f, "a.txt", text);
        write_tokens(&f);
        ot_tokenizer_info info;
        ot_tokenizer_query(f.tokenizer, &info);
        assert_int_equal(ot_tokenizer_encode(f.tokenizer, text, strlen(text), 0, &whole), OT_OK);
        uint64_t head = info.add_bos != 0;
        assert_int_equal(ot_tokens_query(f.tokens)->tokens, whole.count + head + 1);
        for (uint64_t t = 0; t < whole.count; t++)
            if (ot_tokens_id(f.tokens, t + head) != whole.ids[t])
                fail_msg("%s: token %" PRIu64 " of %zu differs", names[i], t, whole.count);
        ot_ids_free(&whole);
        done(&f);
    }
    free(text);
}

/* ---- what is refused ---- */

static void refused(const char *name, const char *text, const char *place, const char *word)
{
    fixture f = make(1);
    ot_tokens *tokens;
    add(&f, name, text);
    f.options.files = f.files;
    f.options.threads = 3;
    assert_int_equal(ot_samples_write(&f.options, NULL, &tokens), OT_ERR_DATA);
    if (strstr(ot_error_text(), place) == NULL || strstr(ot_error_text(), word) == NULL)
        fail_msg("\"%s\" does not hold '%s' and '%s'", ot_error_text(), place, word);
    done(&f);
}

/* Case 40: file:line: reason, and never a row left out. Case 41: an empty file. */
static void bad_rows(void **state)
{
    (void)state;
    refused("a.jsonl", CHAT("a", "b") "\r\n\n{\"messages\":\n" CHAT("c", "d"), "a.jsonl:3: ", "column");
    refused("a.jsonl", CHAT("a", "b") "\n{\"text\":\"t\"}\n{broken",
            "a.jsonl:2: ", "kind text in data of kind messages");
    refused("a.jsonl", "{\"other\":1}\n", "a.jsonl:1: ", "messages");
    refused("a.jsonl", CHAT("a", "b") "\n{\"other\":1}\n", "a.jsonl:2: ", "messages");
    refused("a.jsonl", "{\"messages\":[]}\n", "a.jsonl:1: ", "empty");
    refused("a.jsonl", "{\"messages\":[{\"role\":\"tool\",\"content\":\"x\"}]}\n", "a.jsonl:1: ", "'tool'");
    refused("a.jsonl", "{\"messages\":[{\"role\":\"user\",\"content\":[]}]}\n", "a.jsonl:1: ", "a list");
    refused("a.jsonl", "{\"messages\":[{\"role\":\"user\"}]}\n", "a.jsonl:1: ", "message 1: \"content\"");
    refused("a.jsonl", "{\"tools\":[{}],\"messages\":[{\"role\":\"user\",\"content\":\"\"}]}\n",
            "a.jsonl:1: ", "tools");
    refused("a.jsonl", "{\"text\":5}\n", "a.jsonl:1: ", "a number");
    refused("a.jsonl", "[{\"text\":\"a\"}]\n", "a.jsonl:1: ", "jq");
    refused("a.jsonl", "\n \r\n", "a.jsonl", "no row");
    refused("a.jsonl", "", "a.jsonl", "0 bytes");
    refused("a.txt", "", "a.txt", "0 bytes");
    refused("a.bin", "odd", "a.bin", "odd");
}

/* Case 42: with the line, for text, rows and tokens. */
static void ids_beyond_the_embedding(void **state)
{
    (void)state;
    static const uint16_t bin[] = {1, 2, 200};
    static const char *const names[] = {"a.txt", "a.jsonl", "a.bin"};
    static const char *const places[] = {"a.txt:3: ", "a.jsonl:2: ", "a.bin: token 2"};
    for (int i = 0; i < 3; i++) {
        fixture f = make_with(0, NULL, NULL);
        ot_tokens *tokens;
        if (i == 2)
            add_bytes(&f, names[i], bin, sizeof bin);
        else
            add(&f, names[i],
                i == 0 ? "a\nb\nc\xc3\xbc\nd\n" : "{\"text\":\"a\"}\n{\"text\":\"\xc3\xbc\"}\n");
        f.options.files = f.files;
        f.options.V = 150;
        assert_int_equal(ot_samples_write(&f.options, NULL, &tokens), OT_ERR_DATA);
        if (strstr(ot_error_text(), places[i]) == NULL ||
            strstr(ot_error_text(), "vocabulary of 150") == NULL)
            fail_msg("%s", ot_error_text());
        done(&f);
    }
}

/* EOS ends every document: one that the model does not have is no data's fault, and named as what it is. */
static void eos_beyond_the_embedding(void **state)
{
    (void)state;
    fixture f = make(0);
    ot_tokens *tokens;
    add(&f, "a.txt", "abc");
    f.options.files = f.files;
    f.options.V = 259;
    assert_int_equal(ot_samples_write(&f.options, NULL, &tokens), OT_ERR_FORMAT);
    assert_non_null(strstr(ot_error_text(), "259"));
    done(&f);
}

/* ---- the cache ---- */

static int count_files(const char *folder)
{
    int count = 0;
    DIR *entries = opendir(folder);
    assert_non_null(entries);
    for (struct dirent *entry; (entry = readdir(entries)) != NULL;)
        count += entry->d_name[0] != '.';
    closedir(entries);
    return count;
}

static void open_cached(fixture *f, const char *folder)
{
    ot_tokens_close(f->tokens);
    f->options.files = f->files;
    if (ot_samples_open(&f->options, folder, &f->tokens) != OT_OK)
        fail_msg("%s", ot_error_text());
}

static void the_cache(void **state)
{
    (void)state;
    fixture f = make(1);
    char folder[PATH_BYTES], command[3 * PATH_BYTES];
    snprintf(folder, sizeof folder, "%s/runs/.cache", f.root);
    add(&f, "a.jsonl", CHAT("a", "b"));
    open_cached(&f, folder);
    assert_int_equal(count_files(folder), 1);
    /* It is read, not made: what stands in it is taken where it is whole … */
    char path[PATH_BYTES];
    assert_true(snprintf(path, sizeof path, "%s", ot_tokens_path(f.tokens)) < PATH_BYTES);
    snprintf(command, sizeof command, "chmod a-w '%s' && touch -d 2001-01-01 '%s'", path, path);
    assert_int_equal(system(command), 0);
    open_cached(&f, folder);
    snprintf(command, sizeof command, "test '%s' -ot '%s'", path, f.paths[0]);
    assert_int_equal(system(command), 0);
    /* … and made again where it is not. */
    snprintf(command, sizeof command, "truncate -s 4200 '%s'", path);
    assert_int_equal(system(command), 0);
    open_cached(&f, folder);
    assert_int_equal(ot_tokens_query(f.tokens)->documents, 1);
    assert_int_equal(count_files(folder), 1);
    /* What a process that died has left goes, what another is writing stays. */
    char stale[3 * PATH_BYTES], ours[3 * PATH_BYTES];
    snprintf(stale, sizeof stale, "%s/tokens-00.bin.tmp-999999999", folder);
    snprintf(ours, sizeof ours, "%s/tokens-00.bin.tmp-%ld", folder, (long)getppid());
    fclose(fopen(stale, "w"));
    fclose(fopen(ours, "w"));
    /* Other content, other options, another template: other files. */
    add(&f, "b.jsonl", CHAT("c", "d"));
    open_cached(&f, folder);
    assert_int_equal(access(stale, F_OK), -1);
    assert_int_equal(remove(ours), 0);
    assert_int_equal(count_files(folder), 2);
    f.options.train_on = OT_TRAIN_ON_ALL;
    open_cached(&f, folder);
    assert_int_equal(count_files(folder), 3);
    f.options.chat_template = "llama2";
    open_cached(&f, folder);
    assert_int_equal(count_files(folder), 4);
    FILE *file = fopen(f.paths[1], "a");
    fputs("\n" CHAT("e", "f"), file);
    fclose(file);
    open_cached(&f, folder);
    assert_int_equal(count_files(folder), 5);
    assert_int_equal(ot_tokens_query(f.tokens)->documents, 3);
    done(&f);
}

static void the_builtin_sample(void **state)
{
    (void)state;
    ot_tokens *tokens;
    uint64_t line;
    assert_int_equal(ot_samples_builtin(258, &tokens), OT_OK);
    assert_int_equal(ot_tokens_query(tokens)->tokens, 1000000);
    assert_int_equal(ot_tokens_query(tokens)->documents, 1);
    assert_string_equal(ot_tokens_origin(tokens, 0, &line), "the built-in sample");
    ot_tokens_close(tokens);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_files_and_rows),
        cmocka_unit_test(chats),
        cmocka_unit_test(what_is_trained),
        cmocka_unit_test(prompt_and_completion),
        cmocka_unit_test(alpaca_rows),
        cmocka_unit_test(tokens_of_others),
        cmocka_unit_test(threads_change_nothing),
        cmocka_unit_test(pieces_are_the_whole_text),
        cmocka_unit_test(bad_rows),
        cmocka_unit_test(ids_beyond_the_embedding),
        cmocka_unit_test(eos_beyond_the_embedding),
        cmocka_unit_test(the_cache),
        cmocka_unit_test(the_builtin_sample),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
