/* Tensor sets and their writer: files made by hand, every way in which one can be wrong, and files written and read. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "io/safetensors.h"
#include "tests/support/test.h"
#include "tests/support/tree.h"

/* Writes ROOT/NAME: the header's length (or `length`, where it is not -1), the header, and `data` bytes 0, 1, 2, …. */
static void make(const char *root, const char *name, const char *header, size_t data, int64_t length)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", root, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    uint64_t n = length < 0 ? strlen(header) : (uint64_t)length;
    assert_int_equal(fwrite(&n, sizeof n, 1, file), 1);
    assert_int_equal(fwrite(header, 1, strlen(header), file), strlen(header));
    for (size_t i = 0; i < data; i++)
        assert_int_not_equal(fputc((int)(i & 0xff), file), EOF);
    assert_int_equal(fclose(file), 0);
}

static void expect_refused(ot_status status, const char *const texts[], size_t count)
{
    assert_int_equal(status, OT_ERR_FORMAT);
    for (size_t i = 0; i < count; i++)
        if (strstr(ot_error_text(), texts[i]) == NULL)
            fail_msg("'%s' does not say '%s'", ot_error_text(), texts[i]);
}

#define REFUSED(call, ...)                                                                                   \
    expect_refused((call), (const char *const[]){__VA_ARGS__},                                               \
                   sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *))

#define A "\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}"
#define B "\"b\":{\"dtype\":\"BF16\",\"shape\":[5],\"data_offsets\":[24,34]}"

static void a_file_is_read(void **state)
{
    (void)state;
    char *root = tree_open(), path[PATH_MAX];
    make(root, "x.safetensors",
         "{" B "," A ",\"empty\":{\"dtype\":\"I64\",\"shape\":[0,7],\"data_offsets\":[24,24]},"
         "\"scalar\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[34,35]},"
         "\"__metadata__\":{\"format\":\"pt\"}}   ",
         35, -1);
    snprintf(path, sizeof path, "%s/x.safetensors", root);
    ot_tensor_set *set;
    assert_int_equal(ot_tensor_set_open_file(path, &set), OT_OK);
    assert_int_equal(ot_tensor_set_count(set), 4);
    static const char *const order[] = {"a", "empty", "b", "scalar"};
    for (size_t i = 0; i < 4; i++)
        assert_string_equal(ot_tensor_set_at(set, i)->spec.name, order[i]);
    const ot_file_tensor *a = ot_tensor_set_find(set, "a"), *b = ot_tensor_set_find(set, "b");
    assert_int_equal(a->spec.dimensions, 2);
    assert_int_equal(a->spec.shape[0], 2);
    assert_int_equal(a->spec.shape[1], 3);
    assert_int_equal(a->bytes, 24);
    assert_int_equal(b->spec.dtype, OT_FILE_BF16);
    assert_int_equal(ot_tensor_set_find(set, "scalar")->bytes, 1);
    assert_null(ot_tensor_set_find(set, "c"));
    assert_string_equal(ot_tensor_set_path(set, b), path);
    assert_string_equal(ot_tensor_set_metadata(set, "format"), "pt");
    assert_null(ot_tensor_set_metadata(set, "config"));
    unsigned char bytes[7];
    assert_int_equal(ot_tensor_set_read(set, b, 3, bytes, 7), OT_OK);
    for (int i = 0; i < 7; i++)
        assert_int_equal(bytes[i], 24 + 3 + i);
    ot_tensor_set_close(set);
    tree_close(root);
}

static void whatever_is_wrong_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        size_t data;
        int64_t length;
        const char *says;
    } cases[] = {
        {"{" A "}", 23, -1, "truncated: it has"},
        {"{" A "}", 25, -1, "1 bytes behind the last tensor"},
        {"{" A "}", 0, 4096, "its header ends at byte 4104"},
        {"{" A "}", 24, 100000001, "expected at most 100000000"},
        {"{" A "}", 24, INT64_MAX, "is it a safetensors file"},
        {"", 0, -1, "does not begin with '{'"},
        {" {" A "}", 24, -1, "does not begin with '{'"},
        {"{" A, 24, -1, "no JSON object"},
        {"{" A "}x", 24, -1, "no JSON object"},
        {"{" A "," A "}", 24, -1, "duplicate"},
        {"{\"a\\u0000b\":"
         "{}}",
         0, -1, "no JSON object"},
        {"{" A ",\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[20,24]}}", 24, -1,
         "tensor b overlaps tensor a"},
        {"{" A ",\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[28,32]}}", 32, -1,
         "4 bytes before tensor b"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[1,5]}}", 5, -1, "1 bytes before tensor a"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,20]}}", 20, -1,
         "tensor a: data_offsets span 20"},
        {"{\"a\":{\"dtype\":\"F33\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, -1, "the dtype is F33"},
        {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, -1, "the dtype is missing"},
        {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, -1, "tensor a: the shape"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, -1, "extent 0"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1.0],\"data_offsets\":[0,4]}}", 4, -1, "extent 0"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}", 1, -1,
         "at most 8"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4, -1, "no pair"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, -1, "no pair"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,4]}}", 4, -1, "no pair"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0, -1,
         "2^63"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2305843009213693952],\"data_offsets\":[0,0]}}", 0, -1, "2^63"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[9223372036854775807],\"data_offsets\":[0,9223372036854775807]}}",
         0, -1, "truncated"},
        {"{\"a\":[]}", 0, -1, "tensor a: its entry"},
        {"{\"__metadata__\":[]}", 0, -1, "__metadata__ is no object"},
        {"{\"__metadata__\":{\"a\":1}}", 0, -1, "a in __metadata__"},
    };
    char *root = tree_open(), path[PATH_MAX];
    snprintf(path, sizeof path, "%s/bad.safetensors", root);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ot_tensor_set *set;
        make(root, "bad.safetensors", cases[i].header, cases[i].data, cases[i].length);
        REFUSED(ot_tensor_set_open_file(path, &set), path, cases[i].says);
    }
    tree_close(root);
}

static void files_that_are_none_are_refused(void **state)
{
    (void)state;
    char *root = tree_open(), path[PATH_MAX];
    ot_tensor_set *set;
    REFUSED(ot_tensor_set_open(root, "model", &set), root, "neither model.safetensors");
    snprintf(path, sizeof path, "%s/missing.safetensors", root);
    REFUSED(ot_tensor_set_open_file(path, &set), path, "No such file");
    REFUSED(ot_tensor_set_open_file(root, &set), root, "is no file");
    tree_write(root, "/short.safetensors", "1234567");
    snprintf(path, sizeof path, "%s/short.safetensors", root);
    REFUSED(ot_tensor_set_open_file(path, &set), path, "truncated: it has 7 bytes");
    snprintf(path, sizeof path, "%s/pipe.safetensors", root);
    assert_int_equal(mkfifo(path, 0600), 0);
    REFUSED(ot_tensor_set_open_file(path, &set), path, "is no file");
    tree_close(root);
}

/* Two shards: a in the first, b in the second. */
static void make_shards(const char *root)
{
    make(root, "m-1.safetensors", "{" A "}", 24, -1);
    make(root, "m-2.safetensors", "{\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4, -1);
}

static void an_index_agrees_with_its_shards(void **state)
{
    (void)state;
    static const struct {
        const char *index, *says;
    } cases[] = {
        {"{\"weight_map\":{\"a\":\"m-1.safetensors\"}}", NULL}, /* alone it is right: m-2 is not part of it */
        {"{\"weight_map\":{\"b\":\"m-2.safetensors\",\"a\":\"m-1.safetensors\"}}", NULL},
        {"{\"weight_map\":{\"a\":\"m-1.safetensors\",\"b\":\"m-3.safetensors\"}}",
         "m-3.safetensors is missing"},
        {"{\"weight_map\":{\"a\":\"m-1.safetensors\",\"b\":\"m-1.safetensors\"}}", "tensor b is not in m-1"},
        {"{\"weight_map\":{\"a\":\"m-2.safetensors\",\"b\":\"m-1.safetensors\"}}", "is in m-"},
        {"{\"weight_map\":{\"a\":\"m-1.safetensors\",\"c\":\"m-2.safetensors\",\"b\":\"m-2.safetensors\"}}",
         "tensor c is not in m-2"},
        {"{\"weight_map\":{\"c\":\"m-1.safetensors\",\"b\":\"m-2.safetensors\"}}", "tensor c is not in"},
        {"{\"weight_map\":{\"a\":\"../m-1.safetensors\"}}", "no name of a file"},
        {"{\"weight_map\":{\"a\":1}}", "no name of a file"},
        {"{\"weight_map\":[]}", "no object weight_map"},
        {"{\"weight_map\":{\"a\":\"m-1.safetensors\",\"a\":\"m-1.safetensors\"}}", "duplicate"},
        {"[", "index.json:1: "},
    };
    char *root = tree_open();
    make_shards(root);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ot_tensor_set *set;
        tree_write(root, "/m.safetensors.index.json", cases[i].index);
        if (cases[i].says != NULL) {
            REFUSED(ot_tensor_set_open(root, "m", &set), root, cases[i].says);
            continue;
        }
        assert_int_equal(ot_tensor_set_open(root, "m", &set), OT_OK);
        assert_int_equal(ot_tensor_set_count(set), i + 1);
        ot_tensor_set_close(set);
    }
    tree_close(root);
}

static void a_tensor_in_two_shards_is_refused(void **state)
{
    (void)state;
    char *root = tree_open();
    ot_tensor_set *set;
    make_shards(root);
    make(root, "m-2.safetensors",
         "{\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
         "\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,8]}}",
         8, -1);
    tree_write(root, "/m.safetensors.index.json",
               "{\"weight_map\":{\"a\":\"m-1.safetensors\",\"b\":\"m-2.safetensors\"}}");
    REFUSED(ot_tensor_set_open(root, "m", &set), "tensor a is in", "m-1.safetensors", "m-2.safetensors");
    make_shards(root);
    make(root, "m-2.safetensors",
         "{\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
         "\"d\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,8]}}",
         8, -1);
    REFUSED(ot_tensor_set_open(root, "m", &set), "m-2.safetensors", "tensor d is not in");
    make(root, "m.safetensors", "{" A "}", 24, -1);
    REFUSED(ot_tensor_set_open(root, "m", &set), "both m.safetensors and m.safetensors.index.json");
    tree_close(root);
}

/* ---- Writing ---- */

static const ot_tensor_spec specs[] = {
    {"first", OT_FILE_F32, 2, {10, 20}},     /* 800 bytes */
    {"second", OT_FILE_BF16, 1, {33}},       /* 66 */
    {"nothing", OT_FILE_F16, 2, {0, 3}},     /* 0 */
    {"large", OT_FILE_I8, 1, {3001}},        /* 3001: larger than a shard */
    {"half", OT_FILE_F16, 1, {250}},         /* 500 */
    {"rest \"quoted\"", OT_FILE_U8, 0, {0}}, /* 1 */
};
enum { SPECS = sizeof specs / sizeof *specs, TOTAL = 800 + 66 + 3001 + 500 + 1 };

static unsigned char byte_at(size_t i)
{
    return (unsigned char)(i * 37 + i / 251);
}

static uint64_t hash_file(const char *root, const char *name, uint64_t *bytes)
{
    char path[PATH_MAX];
    unsigned char content[8192];
    snprintf(path, sizeof path, "%s/%s", root, name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    *bytes = fread(content, 1, sizeof content, file);
    assert_true(*bytes < sizeof content);
    fclose(file);
    return XXH3_64bits(content, *bytes);
}

static void write_set(const char *root, uint64_t shard_bytes, size_t step, size_t files)
{
    const ot_tensor_writer_options options = {root, "state", specs, SPECS, shard_bytes};
    ot_tensor_writer *writer;
    unsigned char data[TOTAL];
    for (size_t i = 0; i < TOTAL; i++)
        data[i] = byte_at(i);
    assert_int_equal(ot_tensor_writer_open(&options, &writer), OT_OK);
    for (size_t at = 0; at < TOTAL; at += step)
        assert_int_equal(ot_tensor_writer_append(writer, data + at, at + step < TOTAL ? step : TOTAL - at),
                         OT_OK);
    assert_int_equal(ot_tensor_writer_finish(writer), OT_OK);
    assert_int_equal(ot_tensor_writer_files(writer), files);
    for (size_t i = 0; i < files; i++) {
        ot_written_file file = ot_tensor_writer_file(writer, i);
        uint64_t bytes;
        assert_int_equal(file.xxh3, hash_file(root, file.name, &bytes));
        assert_int_equal(file.bytes, bytes);
    }
    ot_tensor_writer_close(writer);
}

static void expect_written(const char *root)
{
    ot_tensor_set *set;
    size_t at = 0;
    assert_int_equal(ot_tensor_set_open(root, "state", &set), OT_OK);
    assert_int_equal(ot_tensor_set_count(set), SPECS);
    for (size_t i = 0; i < SPECS; i++) {
        const ot_file_tensor *tensor = ot_tensor_set_find(set, specs[i].name);
        unsigned char data[TOTAL];
        assert_non_null(tensor);
        assert_int_equal(tensor->spec.dtype, specs[i].dtype);
        assert_int_equal(tensor->spec.dimensions, specs[i].dimensions);
        assert_memory_equal(tensor->spec.shape, specs[i].shape, specs[i].dimensions * sizeof *specs[i].shape);
        assert_int_equal(ot_tensor_set_read(set, tensor, 0, data, tensor->bytes), OT_OK);
        for (size_t b = 0; b < tensor->bytes; b++)
            assert_int_equal(data[b], byte_at(at + b));
        at += tensor->bytes;
    }
    assert_int_equal(at, TOTAL);
    ot_tensor_set_close(set);
}

static void what_is_written_is_read(void **state)
{
    (void)state;
    static const size_t steps[] = {1, 13, 1000, TOTAL};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        char *single = tree_open(), *sharded = tree_open(), path[PATH_MAX];
        write_set(single, 0, steps[i], 1);
        expect_written(single);
        snprintf(path, sizeof path, "%s/state.safetensors", single);
        assert_int_equal(access(path, F_OK), 0);
        write_set(sharded, 1024, steps[i], 4); /* first, second, nothing | large | half, rest | the index */
        expect_written(sharded);
        snprintf(path, sizeof path, "%s/state-00002-of-00003.safetensors", sharded);
        assert_int_equal(access(path, F_OK), 0);
        tree_close(single);
        tree_close(sharded);
    }
}

/* torch maps a file and wants its tensors aligned. */
static void data_begin_at_a_multiple_of_8(void **state)
{
    (void)state;
    char *root = tree_open();
    ot_tensor_set *set;
    write_set(root, 1024, TOTAL, 4);
    assert_int_equal(ot_tensor_set_open(root, "state", &set), OT_OK);
    assert_int_equal(ot_tensor_set_find(set, "first")->offset % 8, 0);
    assert_int_equal(ot_tensor_set_find(set, "large")->offset % 8, 0);
    assert_int_equal(ot_tensor_set_find(set, "half")->offset % 8, 0);
    assert_string_equal(ot_tensor_set_metadata(set, "format"), "pt");
    ot_tensor_set_close(set);
    tree_close(root);
}

static void nothing_is_overwritten(void **state)
{
    (void)state;
    char *root = tree_open();
    tree_write(root, "/state.safetensors", "mine");
    const ot_tensor_writer_options options = {root, "state", specs, SPECS, 0};
    ot_tensor_writer *writer;
    assert_int_equal(ot_tensor_writer_open(&options, &writer), OT_OK);
    assert_int_equal(ot_tensor_writer_append(writer, "x", 1), OT_ERR_IO);
    assert_non_null(strstr(ot_error_text(), "state.safetensors: File exists"));
    ot_tensor_writer_close(writer);
    tree_close(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_is_read),
        cmocka_unit_test(whatever_is_wrong_is_refused),
        cmocka_unit_test(files_that_are_none_are_refused),
        cmocka_unit_test(an_index_agrees_with_its_shards),
        cmocka_unit_test(a_tensor_in_two_shards_is_refused),
        cmocka_unit_test(what_is_written_is_read),
        cmocka_unit_test(data_begin_at_a_multiple_of_8),
        cmocka_unit_test(nothing_is_overwritten),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
