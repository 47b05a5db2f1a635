/* Token files: what is written is read, and whatever is damaged is refused; and those of llm.c and nanoGPT. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "io/tokenbin.h"
#include "io/tokens.h"
#include "io/tokens_format.h"
#include "tests/support/test.h"
#include "tests/support/tree.h"

enum { PATH_BYTES = 512, DOCUMENTS = 100 };

static const char *const sources[] = {"first.jsonl", "second.txt"};

static ot_tokens_options options_for(size_t V)
{
    return (ot_tokens_options){
        .V = V, .tokenizer_hash = 11, .options_hash = 22, .files = sources, .file_count = 2};
}

/* Token i of document d, and whether it is trained, by a formula. */
static int32_t id_of(size_t d, size_t i, size_t V)
{
    return (int32_t)((d * 7919 + i * 104729 + 1) % V);
}

static int trained_of(size_t d, size_t i)
{
    return i > 0 && (d + i * i) % 3 == 0;
}

static size_t length_of(size_t d)
{
    return d % 10 == 9 ? 5000 + d : 1 + d * 13 % 90;
}

static void write_all(ot_tokens_writer *writer, size_t V)
{
    for (size_t d = 0; d < DOCUMENTS; d++) {
        for (size_t i = 0; i < length_of(d); i++) {
            int32_t id = id_of(d, i, V);
            unsigned char trained = i == 0 || trained_of(d, i); /* a first one never is */
            assert_int_equal(ot_tokens_writer_add(writer, &id, &trained, 1), OT_OK);
        }
        assert_int_equal(ot_tokens_writer_end(writer, d % 2, d % 2 ? 0 : 10 * d + 1, d % 2), OT_OK);
    }
}

static void check_all(const ot_tokens *tokens, size_t V)
{
    const ot_tokens_info *info = ot_tokens_query(tokens);
    uint64_t at = 0, trained = 0, line;
    assert_int_equal(info->documents, DOCUMENTS);
    assert_int_equal(info->tokenizer_hash, 11);
    assert_int_equal(info->options_hash, 22);
    assert_int_equal(info->V, V);
    assert_int_equal(info->width, V <= 65536 ? 2 : 4);
    assert_int_equal(info->longest, length_of(99));
    for (size_t d = 0; d < DOCUMENTS; d++) {
        assert_int_equal(ot_tokens_start(tokens, d), at);
        assert_string_equal(ot_tokens_origin(tokens, d, &line), sources[d % 2]);
        assert_int_equal(line, d % 2 ? 0 : 10 * d + 1);
        assert_int_equal(ot_tokens_continues(tokens, d), d % 2);
        uint64_t in_document = 0;
        for (size_t i = 0; i < length_of(d); i++, at++) {
            assert_int_equal(ot_tokens_id(tokens, at), id_of(d, i, V));
            assert_int_equal(ot_tokens_trained(tokens, at), trained_of(d, i));
            in_document += (uint64_t)trained_of(d, i);
        }
        assert_int_equal(ot_tokens_count_trained(tokens, ot_tokens_start(tokens, d), length_of(d)),
                         in_document);
        trained += in_document;
    }
    assert_int_equal(ot_tokens_start(tokens, DOCUMENTS), at);
    assert_int_equal(info->tokens, at);
    assert_int_equal(info->trained, trained);
}

static void written_and_read(void **state)
{
    (void)state;
    static const size_t vocabularies[] = {300, 65536, 65537, 151936};
    char *root = tree_open(), path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/tokens.bin", root);
    for (size_t i = 0; i < sizeof vocabularies / sizeof *vocabularies; i++) {
        const ot_tokens_options options = options_for(vocabularies[i]);
        for (int memory = 0; memory < 2; memory++) {
            ot_tokens_writer *writer;
            ot_tokens *tokens;
            assert_int_equal(ot_tokens_writer_open(memory ? NULL : path, &options, &writer), OT_OK);
            write_all(writer, vocabularies[i]);
            if (ot_tokens_writer_close(writer, &tokens) != OT_OK)
                fail_msg("%s", ot_error_text());
            check_all(tokens, vocabularies[i]);
            ot_tokens_close(tokens);
        }
        ot_tokens *again;
        assert_int_equal(ot_tokens_recognise(path), 1);
        assert_int_equal(ot_tokens_open(path, &again), OT_OK);
        check_all(again, vocabularies[i]);
        ot_tokens_close(again);
    }
    tree_close(root);
}

/* ---- damage ---- */

static void write_file(const char *path, const char *data, size_t bytes)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    fclose(file);
}

static void small_file(const char *path)
{
    ot_tokens_writer *writer;
    const ot_tokens_options options = options_for(300);
    assert_int_equal(ot_tokens_writer_open(path, &options, &writer), OT_OK);
    for (int32_t d = 0; d < 5; d++) {
        const int32_t ids[] = {d, 10 + d, 299};
        assert_int_equal(ot_tokens_writer_add(writer, ids, NULL, 3), OT_OK);
        assert_int_equal(ot_tokens_writer_end(writer, 0, (uint64_t)d + 1, 0), OT_OK);
    }
    assert_int_equal(ot_tokens_writer_close(writer, NULL), OT_OK);
}

static void refused(const char *path)
{
    ot_tokens *tokens;
    assert_int_equal(ot_tokens_open(path, &tokens), OT_ERR_DATA);
    assert_non_null(strstr(ot_error_text(), path));
}

/* A flipped bit anywhere that counts, and a file that is cut off anywhere. */
static void damage_is_seen(void **state)
{
    (void)state;
    char *root = tree_open(), path[PATH_BYTES];
    size_t bytes;
    ot_tokens *tokens;
    snprintf(path, sizeof path, "%s/tokens.bin", root);
    small_file(path);
    char *data = tree_read(path, &bytes);
    for (size_t i = 0; i < bytes; i++) {
        if (i == sizeof(ot_tokens_header))
            i = OT_TOKENS_HEADER_BYTES;
        data[i] ^= 4;
        write_file(path, data, bytes);
        refused(path);
        data[i] ^= 4;
    }
    for (size_t cut = 0; cut < bytes; cut += cut < 4000 ? 499 : 1) {
        write_file(path, data, cut);
        refused(path);
    }
    write_file(path, data, bytes);
    assert_int_equal(ot_tokens_open(path, &tokens), OT_OK);
    ot_tokens_close(tokens);
    free(data);
    tree_close(root);
}

/* Headers that hold together but count what is not there: 64-bit sums that come round again. */
static void made_up_counts(void **state)
{
    (void)state;
    char *root = tree_open(), path[PATH_BYTES];
    size_t bytes;
    snprintf(path, sizeof path, "%s/tokens.bin", root);
    small_file(path);
    char *data = tree_read(path, &bytes);
    ot_tokens_header good, h;
    memcpy(&good, data, sizeof good);
    static const uint64_t values[] = {0, 1, 1000, UINT64_C(1) << 61, UINT64_C(1) << 63, UINT64_MAX};
    uint64_t *const fields[] = {&h.tokens, &h.documents, &h.trained, &h.files, &h.files_bytes, &h.V};
    for (size_t f = 0; f < sizeof fields / sizeof *fields; f++)
        for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
            h = good;
            if ((f == 2 && values[v] <= h.tokens) || (f == 5 && values[v] == 1000) ||
                (f == 3 && values[v] == 1))
                continue;
            *fields[f] = values[v];
            h.header_hash = XXH3_64bits(&h, offsetof(ot_tokens_header, header_hash));
            memcpy(data, &h, sizeof h);
            write_file(path, data, bytes);
            refused(path);
        }
    free(data);
    tree_close(root);
}

/* ---- case 42 ---- */

static void ids_beyond_the_vocabulary(void **state)
{
    (void)state;
    char *root = tree_open(), path[PATH_BYTES];
    ot_tokens_writer *writer;
    ot_tokens *tokens;
    const ot_tokens_options options = options_for(300);
    const int32_t ids[] = {1, 300, -1};
    snprintf(path, sizeof path, "%s/tokens.bin", root);
    small_file(path);
    assert_int_equal(ot_tokens_open(path, &tokens), OT_OK);
    assert_int_equal(ot_tokens_check_vocabulary(tokens, 300), OT_OK);
    assert_int_equal(ot_tokens_check_vocabulary(tokens, 299), OT_ERR_DATA);
    assert_non_null(strstr(ot_error_text(), "first.jsonl:1: token 2"));
    assert_non_null(strstr(ot_error_text(), "299"));
    ot_tokens_close(tokens);
    assert_int_equal(ot_tokens_writer_open(NULL, &options, &writer), OT_OK);
    assert_int_equal(ot_tokens_writer_add(writer, ids, NULL, 1), OT_OK);
    assert_int_equal(ot_tokens_writer_add(writer, ids + 1, NULL, 1), OT_ERR_DATA);
    assert_int_equal(ot_tokens_writer_add(writer, ids + 2, NULL, 1), OT_ERR_DATA);
    ot_tokens_writer_abandon(writer);
    tree_close(root);
}

/* ---- atomic ---- */

static int entries(const char *root)
{
    int count = 0;
    DIR *folder = opendir(root);
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;)
        count += entry->d_name[0] != '.';
    closedir(folder);
    return count;
}

/* What is given up leaves nothing behind, and what is not complete does not have the name. A full drive is played by a limit on
 * the size of files. */
static void nothing_half_written(void **state)
{
    (void)state;
    char *root = tree_open(), path[PATH_BYTES];
    ot_tokens_writer *writer;
    struct rlimit limit, small;
    const ot_tokens_options options = options_for(300);
    snprintf(path, sizeof path, "%s/tokens.bin", root);
    assert_int_equal(ot_tokens_writer_open(path, &options, &writer), OT_OK);
    write_all(writer, 300);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(entries(root), 1);
    ot_tokens_writer_abandon(writer);
    assert_int_equal(entries(root), 0);

    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    small = (struct rlimit){.rlim_cur = 50000, .rlim_max = limit.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(ot_tokens_writer_open(path, &options, &writer), OT_OK);
    write_all(writer, 300);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    ot_status status = ot_tokens_writer_close(writer, NULL);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_int_equal(status, OT_ERR_IO);
    assert_int_equal(entries(root), 0);
    tree_close(root);
}

/* ---- other programs' files ---- */

static ot_status read_bin(const char *root, const char *name, const void *data, size_t bytes,
                          ot_tokenbin *out, ot_mapping *map)
{
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s", root, name);
    write_file(path, data, bytes);
    assert_int_equal(ot_mapping_open(path, map), OT_OK);
    return ot_tokenbin_read(path, map, out);
}

static void llmc_and_nanogpt(void **state)
{
    (void)state;
    char *root = tree_open();
    ot_tokenbin bin;
    ot_mapping map;
    static struct {
        uint32_t header[256];
        uint16_t ids[3];
    } gpt2 = {{20240520, 1, 3}, {50256, 7, 65535}};
    assert_int_equal(read_bin(root, "a.bin", &gpt2, 1024 + 6, &bin, &map), OT_OK);
    assert_string_equal(bin.kind, "llm.c");
    assert_int_equal(bin.count, 3);
    assert_int_equal(ot_tokenbin_id(&bin, 0), 50256);
    assert_int_equal(ot_tokenbin_id(&bin, 2), 65535);
    ot_mapping_close(&map);
    assert_int_equal(read_bin(root, "a.bin", &gpt2, 1024 + 4, &bin, &map), OT_ERR_DATA);
    assert_non_null(strstr(ot_error_text(), "counts 3 tokens"));
    ot_mapping_close(&map);
    gpt2.header[1] = 2;
    assert_int_equal(read_bin(root, "a.bin", &gpt2, 1024 + 6, &bin, &map), OT_ERR_DATA);
    ot_mapping_close(&map);

    static const struct {
        uint32_t header[256];
        uint32_t ids[2];
    } llama3 = {{20240801, 7, 2}, {128000, 4000000000}};
    assert_int_equal(read_bin(root, "b.bin", &llama3, sizeof llama3, &bin, &map), OT_OK);
    assert_int_equal(bin.width, 4);
    assert_int_equal(ot_tokenbin_id(&bin, 0), 128000);
    assert_int_equal(ot_tokenbin_id(&bin, 1), 4000000000);
    ot_mapping_close(&map);

    static const uint16_t plain[] = {1, 2, 500};
    assert_int_equal(read_bin(root, "train.bin", plain, sizeof plain, &bin, &map), OT_OK);
    assert_string_equal(bin.kind, "nanoGPT");
    assert_int_equal(bin.count, 3);
    assert_int_equal(bin.V, 0);
    assert_int_equal(ot_tokenbin_id(&bin, 2), 500);
    ot_mapping_close(&map);
    assert_int_equal(read_bin(root, "train.bin", plain, 5, &bin, &map), OT_ERR_DATA);
    ot_mapping_close(&map);

    /* pickle.dumps({'vocab_size': 65, 'x': {}}, 4), and with 300 */
    char meta[PATH_BYTES];
    snprintf(meta, sizeof meta, "%s/meta.pkl", root);
    static const char pickle[] =
        "\x80\x04\x95\x1b\0\0\0\0\0\0\0}\x94(\x8c\nvocab_size\x94KA\x8c\x01x\x94}\x94u.";
    write_file(meta, pickle, sizeof pickle - 1);
    assert_int_equal(read_bin(root, "train.bin", plain, sizeof plain, &bin, &map), OT_OK);
    assert_int_equal(bin.V, 65);
    ot_mapping_close(&map);
    static const char wide[] =
        "\x80\x04\x95\x1c\0\0\0\0\0\0\0}\x94(\x8c\nvocab_size\x94M,\x01\x8c\x01x\x94}\x94u.";
    write_file(meta, wide, sizeof wide - 1);
    assert_int_equal(read_bin(root, "train.bin", plain, sizeof plain, &bin, &map), OT_OK);
    assert_int_equal(bin.V, 300);
    ot_mapping_close(&map);
    tree_close(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(written_and_read),     cmocka_unit_test(damage_is_seen),
        cmocka_unit_test(made_up_counts),       cmocka_unit_test(ids_beyond_the_vocabulary),
        cmocka_unit_test(nothing_half_written), cmocka_unit_test(llmc_and_nanogpt),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
