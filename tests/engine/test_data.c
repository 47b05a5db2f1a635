/* Data: windows and their targets, the order of epochs, files that do not do, the built-in sample. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/data.h"
#include "tests/support/test.h"
#include "tests/support/tree.h"

enum { FILES_MAX = 4, PATH_BYTES = 512 };

/* Files in a folder of their own, and the data set over them. */
typedef struct fixture {
    char *root;
    char paths[FILES_MAX][PATH_BYTES];
    const char *files[FILES_MAX];
    ot_data_options options;
    ot_dataset *dataset;
} fixture;

static void add_file(fixture *f, const char *text)
{
    char name[32];
    size_t i = f->options.file_count++;
    snprintf(name, sizeof name, "/%zu.txt", i);
    tree_write(f->root, name, text);
    snprintf(f->paths[i], PATH_BYTES, "%s%s", f->root, name);
    f->files[i] = f->paths[i];
}

static fixture make(size_t T, int shuffle)
{
    fixture f = {.root = tree_open(), .options = {.T = T, .V = 258, .shuffle = shuffle, .seed = 7}};
    return f;
}

static void open_data(fixture *f)
{
    f->options.files = f->files;
    if (ot_dataset_open(&f->options, &f->dataset) != OT_OK)
        fail_msg("%s", ot_error_text());
}

static void done(fixture *f)
{
    ot_dataset_close(f->dataset);
    tree_close(f->root);
}

static void assert_texts(const int32_t *values, const char *text)
{
    for (size_t i = 0; text[i] != '\0'; i++)
        assert_int_equal(values[i], text[i] == '.' ? -1 : text[i] == '_' ? 0 : text[i]);
}

/* One batch of two sequences: tokens, targets, positions and document starts lie in blocks of B*T. */
static void windows_and_targets(void **state)
{
    (void)state;
    fixture f = make(4, 0);
    add_file(&f, "abcdefghij");
    open_data(&f);
    assert_int_equal(ot_dataset_tokens(f.dataset), 9);
    assert_int_equal(ot_dataset_windows(f.dataset), 3);
    assert_int_equal(ot_dataset_steps(f.dataset, 2), 2);
    int32_t out[2 * 4 * 4];
    assert_int_equal(ot_dataset_fill(f.dataset, 0, 2, 1, out), 8);
    assert_texts(out, "abcdefgh");
    assert_texts(out + 8, "bcdefghi");
    for (int32_t i = 0; i < 8; i++) {
        assert_int_equal(out[16 + i], i % 4);
        assert_int_equal(out[24 + i], 0);
    }
    /* The last step has one window with one trained token, and one that is not there. */
    assert_int_equal(ot_dataset_fill(f.dataset, 1, 2, 1, out), 1);
    assert_texts(out, "i_______");
    assert_texts(out + 8, "j.......");
    /* The next epoch begins again. */
    assert_int_equal(ot_dataset_fill(f.dataset, 2, 2, 1, out), 8);
    assert_texts(out, "abcdefgh");
    done(&f);
}

/* Two micro-batches of one sequence hold what one of two holds. */
static void micro_batches(void **state)
{
    (void)state;
    fixture f = make(3, 1);
    add_file(&f, "the quick brown fox jumps over the lazy dog");
    open_data(&f);
    int32_t whole[4 * 4 * 3], parts[4 * 4 * 3];
    assert_int_equal(ot_dataset_fill(f.dataset, 1, 4, 1, whole), ot_dataset_fill(f.dataset, 1, 1, 4, parts));
    for (size_t sequence = 0; sequence < 4; sequence++)
        for (size_t part = 0; part < 4; part++)
            assert_memory_equal(whole + part * 12 + sequence * 3, parts + sequence * 12 + part * 3,
                                3 * sizeof *whole);
    done(&f);
}

static void no_label_crosses_from_file_to_file(void **state)
{
    (void)state;
    fixture f = make(4, 0);
    add_file(&f, "abcdef");
    add_file(&f, "AB");
    add_file(&f, "uvwxy");
    open_data(&f);
    assert_int_equal(ot_dataset_windows(f.dataset), 2 + 1 + 1);
    assert_int_equal(ot_dataset_tokens(f.dataset), 5 + 1 + 4);
    int32_t out[4 * 4 * 4];
    assert_int_equal(ot_dataset_fill(f.dataset, 0, 4, 1, out), 10);
    assert_texts(out, "abcde___A___uvwx");
    assert_texts(out + 16, "bcdef...B...vwxy");
    done(&f);
}

static void a_shuffle_is_a_permutation(void **state)
{
    (void)state;
    static const uint64_t counts[] = {1, 2, 3, 4, 5, 16, 17, 255, 256, 257, 1000, 4097};
    static unsigned char seen[4097];
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        for (uint64_t epoch = 0; epoch < 3; epoch++) {
            memset(seen, 0, sizeof seen);
            for (uint64_t index = 0; index < counts[i]; index++) {
                uint64_t at = ot_shuffle(index, counts[i], 42, epoch);
                assert_true(at < counts[i]);
                assert_int_equal(seen[at]++, 0);
            }
        }
}

/* Of a random permutation about one index in a thousand stays where it was. */
static void epochs_and_seeds_differ(void **state)
{
    (void)state;
    enum { COUNT = 1000, FEW = 20 };
    int epochs = 0, seeds = 0, still = 0, again = 0;
    for (uint64_t i = 0; i < COUNT; i++) {
        uint64_t at = ot_shuffle(i, COUNT, 1, 0);
        again += at == ot_shuffle(i, COUNT, 1, 0);
        epochs += at == ot_shuffle(i, COUNT, 1, 1);
        seeds += at == ot_shuffle(i, COUNT, 2, 0);
        still += at == i;
    }
    assert_int_equal(again, COUNT);
    assert_true(epochs < FEW && seeds < FEW && still < FEW);
}

/* Every window of an epoch comes once, whatever the batch. */
static void an_epoch_has_every_window(void **state)
{
    (void)state;
    fixture f = make(2, 1);
    add_file(&f, "abcdefghijklmnopqrstuvwxyz0");
    open_data(&f);
    assert_int_equal(ot_dataset_windows(f.dataset), 13);
    for (uint64_t epoch = 0; epoch < 2; epoch++) {
        int seen[256] = {0}, windows = 0;
        for (uint64_t step = 0; step < 4; step++) {
            int32_t out[2 * 2 * 4 * 2];
            ot_dataset_fill(f.dataset, epoch * 4 + step, 2, 2, out);
            for (int m = 0; m < 2; m++)
                for (int b = 0; b < 2; b++)
                    if (out[m * 16 + 4 + b * 2] >= 0) {
                        seen[out[m * 16 + b * 2]]++;
                        windows++;
                    }
        }
        assert_int_equal(windows, 13);
        for (int c = 'a'; c <= 'z'; c += 2)
            assert_int_equal(seen[c], 1);
    }
    done(&f);
}

static void refused(fixture *f, const char *word, const char *other)
{
    ot_dataset *dataset;
    f->options.files = f->files;
    assert_int_equal(ot_dataset_open(&f->options, &dataset), OT_ERR_DATA);
    if (strstr(ot_error_text(), word) == NULL || strstr(ot_error_text(), other) == NULL)
        fail_msg("\"%s\" does not hold '%s' and '%s'", ot_error_text(), word, other);
    tree_close(f->root);
}

static void bad_files(void **state)
{
    (void)state;
    fixture f = make(4, 0);
    add_file(&f, "good text");
    add_file(&f, "");
    refused(&f, "1.txt", "0 bytes");

    f = make(4, 0);
    add_file(&f, "a");
    refused(&f, "0.txt", "1 bytes");

    f = make(4, 0);
    add_file(&f, "gone");
    assert_int_equal(remove(f.paths[0]), 0);
    refused(&f, "0.txt", "No such file");

    f = make(4, 0);
    snprintf(f.paths[0], PATH_BYTES, "%s", f.root);
    f.files[0] = f.paths[0];
    f.options.file_count = 1;
    refused(&f, f.paths[0], "no regular file");

    f = make(4, 0);
    f.options.V = 100;
    add_file(&f, "abc\nxyz");
    refused(&f, "0.txt:2", "120"); /* x */
}

static void two_bytes_are_enough(void **state)
{
    (void)state;
    fixture f = make(8, 1);
    add_file(&f, "ab");
    open_data(&f);
    int32_t out[4 * 8];
    assert_int_equal(ot_dataset_fill(f.dataset, 3, 1, 1, out), 1);
    assert_texts(out, "a_______");
    assert_texts(out + 8, "b.......");
    done(&f);
}

static void the_sample_is_always_the_same(void **state)
{
    (void)state;
    size_t bytes, again;
    char *text = ot_builtin_text(&bytes), *copy = ot_builtin_text(&again);
    assert_non_null(text);
    assert_non_null(copy);
    assert_int_equal(bytes, 1000000);
    assert_int_equal(again, bytes);
    assert_memory_equal(text, copy, bytes);
    for (size_t i = 0; i < bytes; i++)
        assert_true(text[i] == '\n' || (text[i] >= ' ' && text[i] < 127));
    free(text);
    free(copy);

    const ot_data_options options = {.T = 256, .V = 258};
    ot_dataset *dataset;
    assert_int_equal(ot_dataset_open(&options, &dataset), OT_OK);
    assert_int_equal(ot_dataset_tokens(dataset), 999999);
    assert_int_equal(ot_dataset_windows(dataset), (999999 + 255) / 256);
    ot_dataset_close(dataset);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(windows_and_targets),
        cmocka_unit_test(micro_batches),
        cmocka_unit_test(no_label_crosses_from_file_to_file),
        cmocka_unit_test(a_shuffle_is_a_permutation),
        cmocka_unit_test(epochs_and_seeds_differ),
        cmocka_unit_test(an_epoch_has_every_window),
        cmocka_unit_test(bad_files),
        cmocka_unit_test(two_bytes_are_enough),
        cmocka_unit_test(the_sample_is_always_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
