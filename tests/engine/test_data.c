/* Data: windows and their targets, packing, long documents, evaluation, the order of epochs, the built-in sample. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/data.h"
#include "io/log.h"
#include "tests/support/test.h"

enum { V = 258, PARTS = 4 };

/* Documents in memory and the data set over them. */
typedef struct fixture {
    ot_tokens_writer *writer;
    ot_tokens *tokens;
    const ot_tokens *list[1];
    uint64_t line;
    ot_data_options options;
    ot_dataset *dataset;
} fixture;

static char logged[4096];

static void log_line(ot_log_level level, const char *line)
{
    (void)level;
    size_t at = strlen(logged);
    snprintf(logged + at, sizeof logged - at, "%s\n", line);
}

static fixture make(size_t T, int packing, int shuffle)
{
    static const char *const files[] = {"rows.jsonl"};
    const ot_tokens_options options = {.V = V, .files = files, .file_count = 1};
    fixture f = {.options = {.T = T, .V = V, .packing = packing, .shuffle = shuffle, .seed = 7}};
    assert_int_equal(ot_tokens_writer_open(NULL, &options, &f.writer), OT_OK);
    *logged = '\0';
    ot_log_open(OT_LOG_INFO, log_line);
    return f;
}

/* A document of letters; capital ones are trained, and those of a text all are. */
static void add(fixture *f, const char *text, int continues)
{
    for (; *text != '\0'; text++) {
        int32_t id = (unsigned char)*text;
        unsigned char trained = continues || (*text >= 'A' && *text <= 'Z');
        assert_int_equal(ot_tokens_writer_add(f->writer, &id, &trained, 1), OT_OK);
    }
    assert_int_equal(ot_tokens_writer_end(f->writer, 0, continues ? 0 : ++f->line, continues), OT_OK);
}

static ot_status try_open(fixture *f)
{
    if (f->writer != NULL)
        assert_int_equal(ot_tokens_writer_close(f->writer, &f->tokens), OT_OK);
    f->writer = NULL;
    f->list[0] = f->tokens;
    f->options.tokens = f->list;
    f->options.token_count = 1;
    return ot_dataset_open(&f->options, &f->dataset);
}

static void open_data(fixture *f)
{
    if (try_open(f) != OT_OK)
        fail_msg("%s", ot_error_text());
}

static void done(fixture *f)
{
    ot_dataset_close(f->dataset);
    ot_tokens_close(f->tokens);
}

/* '_': padding, '.': not trained. */
static void assert_texts(const int32_t *values, const char *text)
{
    for (size_t i = 0; text[i] != '\0'; i++)
        assert_int_equal(values[i], text[i] == '.' ? -1 : text[i] == '_' ? 0 : text[i]);
}

static void assert_digits(const int32_t *values, const char *text)
{
    for (size_t i = 0; text[i] != '\0'; i++)
        assert_int_equal(values[i], text[i] - '0');
}

/* ---- one document ---- */

/* One batch of two sequences: tokens, targets, positions and document starts lie in blocks of B*T. A text goes on from window to
 * window, and nothing of it is lost. */
static void windows_and_targets(void **state)
{
    (void)state;
    fixture f = make(4, 1, 0);
    add(&f, "abcdefghij", 1);
    open_data(&f);
    assert_int_equal(ot_dataset_tokens(f.dataset), 9);
    assert_int_equal(ot_dataset_windows(f.dataset), 3);
    assert_int_equal(ot_dataset_steps(f.dataset, 2), 2);
    int32_t out[2 * 4 * PARTS];
    assert_int_equal(ot_dataset_fill(f.dataset, 0, 2, 1, out), 8);
    assert_texts(out, "abcdefgh");
    assert_texts(out + 8, "bcdefghi");
    assert_digits(out + 16, "01230123");
    assert_digits(out + 24, "00000000");
    /* The last step has one window with one trained token, and one that is not there. */
    assert_int_equal(ot_dataset_fill(f.dataset, 1, 2, 1, out), 1);
    assert_texts(out, "i_______");
    assert_texts(out + 8, "j.......");
    assert_digits(out + 16, "00120123");
    assert_digits(out + 24, "01110000");
    /* The next epoch begins again. */
    assert_int_equal(ot_dataset_fill(f.dataset, 2, 2, 1, out), 8);
    assert_texts(out, "abcdefgh");
    done(&f);
}

/* Case 27: two micro-batches of one sequence hold what one of two holds. */
static void micro_batches(void **state)
{
    (void)state;
    fixture f = make(3, 1, 1);
    add(&f, "the quick brown fox jumps over the lazy dog", 1);
    open_data(&f);
    int32_t whole[4 * 4 * 3], parts[4 * 4 * 3];
    assert_int_equal(ot_dataset_fill(f.dataset, 1, 4, 1, whole), ot_dataset_fill(f.dataset, 1, 1, 4, parts));
    for (size_t sequence = 0; sequence < 4; sequence++)
        for (size_t part = 0; part < 4; part++)
            assert_memory_equal(whole + part * 12 + sequence * 3, parts + sequence * 12 + part * 3,
                                3 * sizeof *whole);
    done(&f);
}

/* ---- several documents ---- */

/* Case 27: no label across a joint, positions and document starts begin again. */
static void packed_documents(void **state)
{
    (void)state;
    fixture f = make(8, 1, 0);
    add(&f, "abCD", 0);   /* 3 inputs */
    add(&f, "eF", 0);     /* 1 */
    add(&f, "ghIJKL", 0); /* 5 */
    open_data(&f);
    assert_int_equal(ot_dataset_windows(f.dataset), 2);
    int32_t out[2 * 8 * PARTS];
    assert_int_equal(ot_dataset_fill(f.dataset, 0, 2, 1, out), 2 + 1 + 4);
    assert_texts(out, "abCghIJKe_______");
    assert_texts(out + 16, ".CD.IJKLF.......");
    assert_digits(out + 32, "0120123400123456");
    assert_digits(out + 48, "0003333301111111");
    const ot_data_stats *s = ot_dataset_stats(f.dataset);
    assert_int_equal(s->documents, 3);
    assert_int_equal(s->inputs, 9);
    assert_int_equal(s->trained, 7);
    assert_int_equal(s->longest, 6);
    assert_int_equal(s->pieces, 3);
    assert_true(s->efficiency == 9.0 / 16);
    done(&f);
}

/* Case 37: padding is masked by its place; a document may hold the tokens that pad, here 0, and end with one. */
static void padded_documents(void **state)
{
    (void)state;
    fixture f = make(4, 0, 0);
    static const int32_t ids[] = {5, 0, 0};
    add(&f, "abC", 0);
    assert_int_equal(ot_tokens_writer_add(f.writer, ids, NULL, 3), OT_OK);
    assert_int_equal(ot_tokens_writer_end(f.writer, 0, 2, 0), OT_OK);
    open_data(&f);
    assert_int_equal(ot_dataset_windows(f.dataset), 2);
    int32_t out[2 * 4 * PARTS];
    assert_int_equal(ot_dataset_fill(f.dataset, 0, 2, 1, out), 1 + 2);
    static const int32_t tokens[] = {'a', 'b', 0, 0, 5, 0, 0, 0}, targets[] = {-1, 'C', -1, -1, 0, 0, -1, -1};
    assert_memory_equal(out, tokens, sizeof tokens);
    assert_memory_equal(out + 8, targets, sizeof targets);
    assert_digits(out + 16, "01010101");
    done(&f);
}

/* ---- long documents ---- */

static void open_long(fixture *f, ot_long what)
{
    *f = make(4, 0, 0);
    f->options.long_documents = what;
    add(f, "aBCDEFGHIJ", 0);
    add(f, "kL", 0);
    add(f, "mnopqRS", 0); /* its prompt is as long as a window holds */
    open_data(f);
}

/* Case 6: however long a sample, a step's data is as large as planned; case 39. */
static void long_documents(void **state)
{
    (void)state;
    fixture f;
    int32_t out[4 * 4 * PARTS + 1];
    out[4 * 4 * PARTS] = 12345;
    open_long(&f, OT_LONG_CUT);
    const ot_data_stats *s = ot_dataset_stats(f.dataset);
    assert_int_equal(ot_dataset_windows(f.dataset), 2);
    assert_int_equal(ot_dataset_fill(f.dataset, 0, 4, 1, out), 5);
    assert_texts(out, "aBCDk___");
    assert_texts(out + 16, "BCDEL...");
    assert_int_equal(s->truncated, 1);
    assert_int_equal(s->lost, 5);
    assert_int_equal(s->dropped_prompt, 1);
    assert_non_null(strstr(logged, "rows.jsonl:3: dropped: 7 tokens")); /* case 39 */
    done(&f);

    open_long(&f, OT_LONG_DROP);
    s = ot_dataset_stats(f.dataset);
    assert_int_equal(ot_dataset_windows(f.dataset), 1);
    assert_int_equal(s->dropped_long, 2);
    assert_int_equal(s->truncated, 0);
    assert_non_null(strstr(logged, "rows.jsonl:1: dropped: 10 tokens"));
    done(&f);

    open_long(&f, OT_LONG_SPLIT);
    s = ot_dataset_stats(f.dataset);
    assert_int_equal(ot_dataset_windows(f.dataset), 5); /* the prompt alone is no window */
    assert_int_equal(ot_dataset_fill(f.dataset, 0, 4, 1, out), 9 + 1);
    assert_texts(out, "aBCDEFGHI___k___");
    assert_texts(out + 16, "BCDEFGHIJ...L...");
    assert_int_equal(ot_dataset_fill(f.dataset, 1, 4, 1, out), 2);
    assert_texts(out, "qR__");
    assert_texts(out + 16, "RS..");
    assert_int_equal(s->lost, 0);
    assert_int_equal(out[4 * 4 * PARTS], 12345);
    done(&f);
}

/* Case 39: all dropped is no data. */
static void nothing_to_train(void **state)
{
    (void)state;
    for (int i = 0; i < 10; i++) {
        fixture f = make(4, i % 2, 0);
        if (i < 2)
            add(&f, "abcdefgH", 0);
        else if (i < 4)
            add(&f, "abc", 0);
        else if (i < 6)
            add(&f, "A", 1);
        else if (i < 8)
            add(&f, "A", 0);
        assert_int_equal(try_open(&f), OT_ERR_DATA);
        assert_non_null(strstr(ot_error_text(),
                               i < 4 || i / 2 == 3 ? "all 1 documents are dropped" : "nothing to train on"));
        done(&f);
    }
}

/* Only the first few are named. */
static void many_drops(void **state)
{
    (void)state;
    fixture f = make(4, 1, 0);
    for (int i = 0; i < 30; i++)
        add(&f, "abcdefgH", 0);
    add(&f, "aB", 0);
    open_data(&f);
    assert_int_equal(ot_dataset_stats(f.dataset)->dropped_prompt, 30);
    assert_non_null(strstr(logged, "rows.jsonl:5: dropped"));
    assert_null(strstr(logged, "rows.jsonl:6: dropped"));
    assert_non_null(strstr(logged, "25 documents more"));
    done(&f);
}

/* Case 42. */
static void a_token_beyond_the_embedding(void **state)
{
    (void)state;
    fixture f = make(4, 1, 0);
    add(&f, "aB", 0);
    add(&f, "xY", 0);
    f.options.V = 'x';
    assert_int_equal(try_open(&f), OT_ERR_DATA);
    assert_non_null(strstr(ot_error_text(), "rows.jsonl:2: "));
    assert_non_null(strstr(ot_error_text(), "id 120"));
    done(&f);
}

/* ---- steps ---- */

/* Case 28: ten samples in steps of four are three steps, the third with two; case 41: fewer than a batch train. */
static void the_last_step_of_an_epoch(void **state)
{
    (void)state;
    fixture f = make(4, 0, 0);
    int32_t out[4 * 4 * PARTS];
    for (char c = 'a'; c < 'a' + 10; c++)
        add(&f, (const char[]){c, (char)(c - 32), '\0'}, 0);
    open_data(&f);
    assert_int_equal(ot_dataset_steps(f.dataset, 4), 3);
    assert_int_equal(ot_dataset_fill(f.dataset, 0, 1, 4, out), 4);
    assert_int_equal(ot_dataset_fill(f.dataset, 2, 1, 4, out), 2);
    assert_texts(out, "i___");
    assert_texts(out + 4, "I...");
    assert_texts(out + 16, "j___");
    assert_texts(out + 20, "J...");
    assert_texts(out + 32, "____");
    assert_texts(out + 36, "....");
    assert_int_equal(ot_dataset_steps(f.dataset, 16), 1);
    assert_int_equal(ot_dataset_fill(f.dataset, 5, 2, 2, out), 2);
    done(&f);

    f = make(4, 1, 1);
    add(&f, "aB", 0);
    open_data(&f);
    assert_int_equal(ot_dataset_steps(f.dataset, 4), 1);
    for (uint64_t step = 0; step < 3; step++)
        assert_int_equal(ot_dataset_fill(f.dataset, step, 2, 2, out), 1);
    done(&f);
}

/* Case 23: every sample once an epoch, whatever the batch, in another order each time; a step's number alone says what is in it,
 * which is how a run goes on in the middle of an epoch. */
static void an_epoch_has_every_sample_once(void **state)
{
    (void)state;
    enum { SAMPLES = 23, B = 2, M = 2, STEPS = 6, ELEMENTS = B * M * 4 * PARTS };
    fixture f = make(4, 0, 1);
    for (char c = 'a'; c < 'a' + SAMPLES; c++)
        add(&f, (const char[]){c, (char)(c - 32), '\0'}, 0);
    open_data(&f);
    char orders[2][SAMPLES + 1] = {"", ""};
    static int32_t all[2 * STEPS][ELEMENTS];
    for (uint64_t step = 0; step < 2 * STEPS; step++) {
        ot_dataset_fill(f.dataset, step, B, M, all[step]);
        char *order = orders[step / STEPS];
        for (size_t m = 0; m < M; m++)
            for (size_t b = 0; b < B; b++) {
                const int32_t *sequence = all[step] + m * B * 4 * PARTS + b * 4;
                size_t at = strlen(order);
                if (sequence[B * 4] < 0)
                    continue;
                assert_true(at < SAMPLES);
                assert_null(strchr(order, sequence[0]));
                order[at] = (char)sequence[0];
            }
    }
    assert_int_equal(strlen(orders[0]), SAMPLES);
    assert_int_equal(strlen(orders[1]), SAMPLES);
    assert_string_not_equal(orders[0], orders[1]);
    ot_dataset_close(f.dataset);
    open_data(&f);
    for (uint64_t step = 2 * STEPS; step-- > 0;) {
        int32_t again[ELEMENTS];
        ot_dataset_fill(f.dataset, step, B, M, again);
        assert_memory_equal(again, all[step], sizeof again);
    }
    done(&f);
}

/* ---- evaluation ---- */

static int letters(const ot_dataset *dataset, char *out)
{
    int32_t data[4 * PARTS];
    uint64_t windows = ot_dataset_windows(dataset);
    for (uint64_t step = 0; step < windows; step++) {
        ot_dataset_fill(dataset, step, 1, 1, data);
        out[step] = (char)data[0];
    }
    out[windows] = '\0';
    return (int)windows;
}

/* Each document is on one side, always the same one, and equal documents are on the same. */
static void a_share_is_for_evaluation(void **state)
{
    (void)state;
    static const double shares[] = {1e-9, 0.2, 0.5, 0.9};
    for (size_t i = 0; i < 4; i++) {
        char train[128], eval[128];
        fixture f = make(4, 0, 0);
        for (int twice = 0; twice < 2; twice++)
            for (char c = 33; c < 33 + 30; c++)
                add(&f, (const char[]){c, 'X', '\0'}, 0);
        f.options.val_split = shares[i];
        f.options.part = OT_DATA_TRAIN;
        open_data(&f);
        int count = letters(f.dataset, train);
        ot_dataset_close(f.dataset);
        f.options.part = OT_DATA_EVAL;
        open_data(&f);
        count += letters(f.dataset, eval);
        assert_int_equal(count, 60);
        for (char c = 33; c < 33 + 30; c++)
            assert_true((strchr(train, c) != NULL) != (strchr(eval, c) != NULL));
        assert_in_range(strlen(eval), i == 0 ? 2 : (size_t)(60 * shares[i]) - 10,
                        i == 0 ? 2 : (size_t)(60 * shares[i]) + 10);
        done(&f);
    }
}

/* A text is split by windows. One document cannot be. */
static void texts_and_single_documents(void **state)
{
    (void)state;
    fixture f = make(4, 1, 0);
    uint64_t inputs = 0;
    char text[1001];
    for (int i = 0; i < 1000; i++)
        text[i] = (char)('a' + i * i % 23);
    text[1000] = '\0';
    add(&f, text, 1);
    f.options.val_split = 0.3;
    for (int part = OT_DATA_TRAIN; part <= OT_DATA_EVAL; part++) {
        f.options.part = (ot_data_part)part;
        open_data(&f);
        assert_true(ot_dataset_windows(f.dataset) > 30);
        inputs += ot_dataset_tokens(f.dataset);
        ot_dataset_close(f.dataset);
    }
    assert_int_equal(inputs, 999);
    f.dataset = NULL;
    done(&f);
    f = make(4, 1, 0);
    add(&f, "aB", 0);
    f.options.val_split = 0.5;
    f.options.part = OT_DATA_TRAIN;
    assert_int_equal(try_open(&f), OT_ERR_DATA);
    assert_non_null(strstr(ot_error_text(), "--eval-data"));
    done(&f);
}

/* ---- order ---- */

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

    const ot_data_options options = {.T = 256, .V = V};
    ot_dataset *dataset;
    assert_int_equal(ot_dataset_open(&options, &dataset), OT_OK);
    assert_int_equal(ot_dataset_tokens(dataset), 999999);
    assert_int_equal(ot_dataset_windows(dataset), (999999 + 255) / 256);
    ot_dataset_close(dataset);
}

/* All ranks' parts, one after the other, are the step of one rank: over the end of an epoch, with windows missing, and where a
 * rank has none. */
static void parts_of_ranks_are_the_step(void **state)
{
    (void)state;
    enum { WINDOWS = 7, LENGTH = 4, SEQUENCES = 12, STRIDE = LENGTH * 4 };
    int32_t whole[SEQUENCES * STRIDE], part[SEQUENCES * STRIDE];
    fixture f = make(LENGTH, 0, 1);
    for (int i = 0; i < WINDOWS; i++) {
        const char letters[] = {(char)('A' + i), (char)('b' + i), (char)('C' + i), 'D', 'E', '\0'};
        add(&f, letters, 0);
    }
    open_data(&f);
    for (int ranks = 1; ranks <= 6; ranks++)
        for (size_t sequences = (size_t)ranks; sequences <= SEQUENCES; sequences += (size_t)ranks)
            for (uint64_t step = 0; step < 9; step++) {
                size_t M = sequences / (size_t)ranks;
                uint64_t trained = ot_dataset_fill(f.dataset, step, 1, sequences, whole), sum = 0;
                for (int rank = 0; rank < ranks; rank++) {
                    sum += ot_dataset_fill_part(f.dataset, step, 1, M, rank, ranks, part);
                    assert_memory_equal(part, whole + (size_t)rank * M * STRIDE, M * STRIDE * sizeof *part);
                }
                assert_int_equal(sum, trained);
                assert_true(trained > 0);
            }
    done(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(windows_and_targets),
        cmocka_unit_test(micro_batches),
        cmocka_unit_test(parts_of_ranks_are_the_step),
        cmocka_unit_test(packed_documents),
        cmocka_unit_test(padded_documents),
        cmocka_unit_test(long_documents),
        cmocka_unit_test(nothing_to_train),
        cmocka_unit_test(many_drops),
        cmocka_unit_test(a_token_beyond_the_embedding),
        cmocka_unit_test(the_last_step_of_an_epoch),
        cmocka_unit_test(an_epoch_has_every_sample_once),
        cmocka_unit_test(a_share_is_for_evaluation),
        cmocka_unit_test(texts_and_single_documents),
        cmocka_unit_test(a_shuffle_is_a_permutation),
        cmocka_unit_test(epochs_and_seeds_differ),
        cmocka_unit_test(the_sample_is_always_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
