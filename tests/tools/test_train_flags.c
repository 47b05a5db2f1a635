/* The flags of training: defaults, presets, configuration files and their order; the batch; --place; what is refused. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/test.h"
#include "tests/support/tree.h"
#include "tools/train_flags.h"

/* Flags and what they point into. */
typedef struct parsed {
    ot_train_flags flags;
    ot_config *config;
    char text[1024];
    char *words[64];
} parsed;

static ot_status parse(const char *line, parsed *out)
{
    const ot_option_table table = ot_train_table("offtrain train", "");
    int count = 0, help;
    snprintf(out->text, sizeof out->text, "%s", line);
    for (char *word = strtok(out->text, " "); word != NULL; word = strtok(NULL, " "))
        out->words[count++] = word;
    return ot_train_flags_read(&table, count, out->words, &out->flags, &out->config, &help);
}

static parsed *good(const char *line)
{
    parsed *out = calloc(1, sizeof *out);
    assert_non_null(out);
    if (parse(line, out) != OT_OK)
        fail_msg("'%s': %s", line, ot_error_text());
    return out;
}

static void done(parsed *p)
{
    ot_config_close(p->config);
    free(p);
}

/* `line` must be refused with a text that holds both words. */
static void bad(const char *line, const char *word, const char *other)
{
    parsed out;
    if (parse(line, &out) != OT_ERR_USAGE)
        fail_msg("'%s' is accepted", line);
    if (strstr(ot_error_text(), word) == NULL || strstr(ot_error_text(), other) == NULL)
        fail_msg("'%s': \"%s\" does not hold '%s' and '%s'", line, ot_error_text(), word, other);
}

static void defaults(void **state)
{
    (void)state;
    parsed *p = good("--model 7b");
    const ot_train_flags *f = &p->flags;
    assert_string_equal(f->model, "7b");
    assert_int_equal(f->seq_len, 2048);
    assert_int_equal(f->global_batch_size, 32);
    assert_true(f->batch_size == OT_AUTO_INT && f->grad_accum == OT_AUTO_INT &&
                f->prefetch_depth == OT_AUTO_INT);
    assert_true(f->gpu_mem == OT_AUTO_SIZE && f->host_mem == OT_AUTO_SIZE && f->io_block == OT_AUTO_SIZE);
    assert_true(f->loss_scale == OT_AUTO_REAL && f->max_tbw == OT_AUTO_REAL);
    assert_true(f->lr == 1e-5 && f->beta1 == 0.9 && f->beta2 == 0.999 && f->eps == 1e-8 &&
                f->max_grad_norm == 1);
    assert_true(f->overlap && f->shuffle);
    assert_int_equal(f->max_steps, -1);
    assert_string_equal(f->output_dir, "runs");
    done(p);
}

static void presets_are_weaker_than_flags(void **state)
{
    (void)state;
    parsed *p = good("--model tiny");
    assert_int_equal(p->flags.seq_len, 256);
    assert_true(p->flags.lr == 3e-3);
    done(p);
    p = good("--lr 1 --model=tiny --cutoff-len 64");
    assert_int_equal(p->flags.seq_len, 64);
    assert_true(p->flags.lr == 1);
    done(p);
    p = good("--model 124m");
    assert_int_equal(p->flags.seq_len, 1024);
    done(p);
}

static void switches_take_on_and_off(void **state)
{
    (void)state;
    parsed *p = good("--model tiny --overlap off --shuffle no --json");
    assert_int_equal(p->flags.overlap, 0);
    assert_int_equal(p->flags.shuffle, 0);
    assert_int_equal(p->flags.json, 1);
    done(p);
    p = good("--overlap=off --overlap on --model tiny");
    assert_int_equal(p->flags.overlap, 1);
    done(p);
    bad("--overlap maybe", "unexpected argument", "maybe");
}

static void words_in_place_of_numbers(void **state)
{
    (void)state;
    parsed *p = good(
        "--gpu-mem 24G --gpu-mem auto --batch-size 4 --batch-size auto --loss-scale 128 --loss-scale dynamic");
    assert_true(p->flags.gpu_mem == OT_AUTO_SIZE);
    assert_true(p->flags.batch_size == OT_AUTO_INT);
    assert_true(p->flags.loss_scale == OT_AUTO_REAL);
    done(p);
    bad("--lr auto", "--lr", "auto");
    bad("--batch-size dynamic", "--batch-size", "dynamic");
}

/* ---- the batch ---- */

static void batch_is(const char *line, int64_t global)
{
    parsed *p = good(line);
    assert_int_equal(p->flags.global_batch_size, global);
    done(p);
}

static void batches(void **state)
{
    (void)state;
    batch_is("--batch-size 4", 32);
    batch_is("--grad-accum 8", 32);
    batch_is("--batch-size 4 --grad-accum 3", 12);
    batch_is("--micro-batch-size 3", 30);
    batch_is("--batch-size 64", 64);
    batch_is("--batch-size 4 --grad-accum 3 --global-batch-size 12", 12);
    batch_is("--global-batch-size 6 --gradient-accumulation-steps 3", 6);
    batch_is("--batch-size auto --grad-accum auto --global-batch-size 7", 7);
    bad("--batch-size 4 --grad-accum 3 --global-batch-size 32", "is 12", "--global-batch-size is 32");
    bad("--batch-size 1024 --grad-accum 1024", "--global-batch-size", "not in 1 to 65536");
    bad("--batch-size 5 --global-batch-size 32", "no multiple", "--batch-size 5");
    bad("--grad-accum 64 --global-batch-size 32", "no multiple", "--grad-accum 64");
    bad("--batch-size 0", "--batch-size", "0 is not in 1");
}

/* ---- --place ---- */

static void places_is(const char *text, ot_places *out)
{
    parsed *p = good(text);
    assert_int_equal(ot_places_parse(&p->flags.place, out), OT_OK);
    done(p);
}

static void placements(void **state)
{
    (void)state;
    ot_places places;
    places_is("", &places);
    assert_true(places.weights.automatic && places.states.automatic && places.grads.automatic &&
                places.acts.automatic);
    places_is("--place weights=device,states=host:40%,acts=nvme,grads=auto", &places);
    assert_true(!places.weights.automatic && places.weights.tier == OT_TIER_DEVICE &&
                places.weights.share == 1);
    assert_true(places.states.tier == OT_TIER_HOST && places.states.share == 0.4);
    assert_true(places.acts.tier == OT_TIER_NVME && places.grads.automatic);
    places_is("--place states=host:0.25 weights=host", &places);
    assert_true(places.states.share == 0.25 && places.weights.tier == OT_TIER_HOST);
    bad("--place weights", "write PLANE=TIER", "weights");
    bad("--place weight=host", "no plane", "did you mean weights?");
    bad("--place bananas=host", "no plane", "weights, states, grads and acts");
    bad("--place states=hst", "no tier", "did you mean host?");
    places_is("--place states=device:50%", &places);
    assert_true(!places.states.automatic && places.states.tier == OT_TIER_DEVICE &&
                places.states.share == 0.5);
    places_is("--place states=device:0,weights=device:0%", &places);
    assert_true(!places.states.automatic && places.states.tier == OT_TIER_HOST && places.states.share == 1);
    assert_true(!places.weights.automatic && places.weights.tier == OT_TIER_HOST &&
                places.weights.share == 1);
    places_is("--place states=device,weights=device", &places);
    places_is("--place states=device:99%,weights=host,grads=nvme", &places);
    bad("--place weights=nvme,states=device", "all weights are on the device", "leave weights out");
    bad("--place states=device --place weights=device:50%", "all weights are on the device",
        "states a share");
    bad("--place states=device,grads=host", "all grads are on the device", "leave grads out");
    bad("--place states=device:50% --optim adafactor", "--optim adafactor measures whole gradients",
        "states=host");
    bad("--place grads=device", "gradients stay on the device where states=device", "nvme");
    bad("--place states=host:140%", "no share", "140%");
    bad("--place states=host:", "no share", "40%");
    bad("--place states=host:x", "no share", "x");
    bad("--place states=auto:10%", "auto takes no share", "");
    bad("--place states=host --place states=nvme", "placed twice", "states");
}

/* ---- configuration files ---- */

typedef struct file {
    char *root;
    char line[600]; /* "-c PATH" */
} file;

static file write_config(const char *text)
{
    file f = {.root = tree_open()};
    tree_write(f.root, "/a.yaml", text);
    snprintf(f.line, sizeof f.line, "-c %s/a.yaml", f.root);
    return f;
}

static void config_between_preset_and_flags(void **state)
{
    (void)state;
    file f = write_config(
        "model: tiny # a comment\nlr: 1e-4\nmicro_batch_size: 2\nnvme: [/a, \"/b,c\"]\noverlap: off\n"
        "run-name: 'on'\ngpu-mem: 24G\nhost-mem:\nplace: states=host\n");
    char line[700];
    snprintf(line, sizeof line, "%s --seq-len 32", f.line);
    parsed *p = good(line);
    assert_string_equal(p->flags.model, "tiny");
    assert_true(p->flags.lr == 1e-4);                 /* over the preset */
    assert_int_equal(p->flags.global_batch_size, 16); /* of the preset */
    assert_int_equal(p->flags.seq_len, 32);           /* of the command line */
    assert_int_equal(p->flags.batch_size, 2);
    assert_int_equal(p->flags.nvme.count, 2);
    assert_string_equal(p->flags.nvme.items[1], "/b,c");
    assert_int_equal(p->flags.overlap, 0);
    assert_string_equal(p->flags.run_name, "on");
    assert_true(p->flags.gpu_mem == UINT64_C(24) << 30 && p->flags.host_mem == OT_AUTO_SIZE);
    done(p);
    snprintf(line, sizeof line, "--nvme /z %s --lr 2 --model 7b --overlap on", f.line);
    p = good(line);
    assert_int_equal(p->flags.nvme.count, 1);
    assert_string_equal(p->flags.nvme.items[0], "/z");
    assert_true(p->flags.lr == 2 && p->flags.overlap);
    assert_string_equal(p->flags.model, "7b");
    assert_int_equal(p->flags.seq_len, 2048); /* the preset is that of the model that counts */
    done(p);
    tree_close(f.root);
}

static void bad_configs(void **state)
{
    (void)state;
    static const struct {
        const char *text, *word, *other;
    } cases[] = {
        {"model: tiny\nlrr: 1\n", "a.yaml:2: unknown key lrr", "did you mean lr?"},
        {"bananas: 1\n", "a.yaml:1: unknown key bananas", "lists them"},
        {"model: tiny\n\nlr: fast\n", "a.yaml:3: lr", "fast"},
        {"lr: [1, 2]\n", "a.yaml:1: lr", "one value"},
        {"lr:\n  a: 1\n", "a.yaml", "one value"},
        {"lr: 1\nlr: 2\n", "a.yaml:2: lr is given a second time", "line 1"},
        {"batch_size: 1\nmicro-batch-size: 2\n", "a.yaml:2: batch-size is given a second time", ""},
        {"- a\n- b\n", "a.yaml:1: a mapping is needed", ""},
        {"lr: [1\n", "a.yaml:", "no YAML"},
        {"nvme: [[a]]\n", "a.yaml:1: nvme", "no text"},
        {"[a]: 1\n", "a.yaml:1", "must be a name"},
        {"dry-run: true\n", "a.yaml:1: dry-run", "command line only"},
        {"optim: sgdd\n", "a.yaml:1: optim", "adamw|adam|sgd|lion|adafactor"},
        {"overlap: maybe\n", "a.yaml:1: overlap", "maybe"},
        {"lr: -1\n", "--lr", "-1"},
        {"model: \"ti\\0ny\"\n", "a.yaml:1: model", "NUL"},
        {"nvme: \"a\\0b\"\n", "a.yaml:1: nvme", "NUL"},
        {"nvme: [\"a\\0b\"]\n", "a.yaml:1: nvme", "no text"},
        {"\"l\\0r\": 1\n", "a.yaml:1", "must be a name"},
        {"lr: 1\n---\nmodel: tiny\n", "a.yaml:2: a second document", ""},
        {"lr: 1\n---\n[\n", "a.yaml:", "no YAML"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        file f = write_config(cases[i].text);
        bad(f.line, cases[i].word, cases[i].other);
        tree_close(f.root);
    }
    bad("-c /no/such/file.yaml", "/no/such/file.yaml", "No such file");
}

static void an_empty_config_is_none(void **state)
{
    (void)state;
    file f = write_config("# nothing\n");
    parsed *p = good(f.line);
    assert_null(p->flags.model);
    done(p);
    tree_close(f.root);
}

/* What is printed reads back as the same values, and prints as the same text. */
static void print_and_read_back(void **state)
{
    (void)state;
    const ot_option_table table = ot_train_table("offtrain train", "");
    parsed *p = good(
        "--model tiny --lr 0.1 --eps 1e-8 --beta2 0.95 --gpu-mem 1536M --host-mem 3000001 --nvme /a,/b --run-name no "
        "--place states=host:40% --overlap off --max-tbw 2.5 --batch-size 2 --grad-accum 3 -q");
    char *first, *second;
    size_t size;
    FILE *out = open_memstream(&first, &size);
    assert_int_equal(ot_config_print(&table, OT_TRAIN_NOT_IN_CONFIG, &p->flags, out), OT_OK);
    fclose(out);
    assert_non_null(strstr(first, "\ngpu-mem: 1536M\nhost-mem: 3000001\n"));
    assert_non_null(strstr(first, "\nrun-name: \"no\"\n"));
    assert_null(strstr(first, "dry-run"));
    file f = write_config(first);
    parsed *q = good(f.line);
    assert_true(q->flags.lr == 0.1 && q->flags.eps == 1e-8 && q->flags.beta2 == 0.95 &&
                q->flags.max_tbw == 2.5);
    assert_true(q->flags.gpu_mem == UINT64_C(1536) << 20 && q->flags.host_mem == 3000001);
    assert_int_equal(q->flags.nvme.count, 2);
    assert_int_equal(q->flags.global_batch_size, 6);
    assert_int_equal(q->flags.overlap, 0);
    out = open_memstream(&second, &size);
    assert_int_equal(ot_config_print(&table, OT_TRAIN_NOT_IN_CONFIG, &q->flags, out), OT_OK);
    fclose(out);
    assert_string_equal(first, second);
    free(first);
    free(second);
    done(p);
    done(q);
    tree_close(f.root);
}

static void bad_values(void **state)
{
    (void)state;
    static const char *const cases[][3] = {
        {"--seq-len 1", "--seq-len", "2"},
        {"--lr -1", "--lr", "-1"},
        {"--beta1 1", "--beta1", "1"},
        {"--min-lr-ratio 2", "--min-lr-ratio", "2"},
        {"--max-steps 0", "--max-steps", "0"},
        {"--epochs 0", "--epochs", "0"},
        {"--gpu-mem 1", "--gpu-mem", "24G"},
        {"--io-block 1000", "--io-block", "4K"},
        {"--run-name a/b", "--run-name", "a/b"},
        {"--run-name ..", "--run-name", ".."},
        {"--output-dir=", "--output-dir", "empty"},
        {"-q -v", "--quiet", "--verbose"},
        {"--optim adafactors", "--optim", "adamw|adam|sgd|lion|adafactor"},
        {"--threads 0", "--threads", "0"},
        {"--modle 7b", "--modle", "did you mean --model?"},
        {"--gpu_men 24G", "--gpu_men", "did you mean --gpu-mem?"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        bad(cases[i][0], cases[i][1], cases[i][2]);
}

static void help_has_groups(void **state)
{
    (void)state;
    const ot_option_table table = ot_train_table("offtrain train", "Trains.");
    char *text;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    ot_options_help(&table, out);
    fclose(out);
    assert_non_null(strstr(text, "\n\nmodel:\n  --model NAME"));
    assert_non_null(strstr(text, "\n\nmemory:\n  --gpu-mem SIZE"));
    for (size_t i = 0; i < table.count; i++)
        if (table.options[i].help != NULL)
            assert_non_null(strstr(text, table.options[i].help));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults),
        cmocka_unit_test(presets_are_weaker_than_flags),
        cmocka_unit_test(switches_take_on_and_off),
        cmocka_unit_test(words_in_place_of_numbers),
        cmocka_unit_test(batches),
        cmocka_unit_test(placements),
        cmocka_unit_test(config_between_preset_and_flags),
        cmocka_unit_test(bad_configs),
        cmocka_unit_test(an_empty_config_is_none),
        cmocka_unit_test(print_and_read_back),
        cmocka_unit_test(bad_values),
        cmocka_unit_test(help_has_groups),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
