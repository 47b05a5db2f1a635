/* Resume changes nothing (design.md §10.2; cases.md 19 to 25, 43): the command is stopped, killed and started again, and what it leaves
 * is compared byte by byte with what a run in one piece leaves. */
#include <dirent.h>
#include <jansson.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/root.h"
#include "tests/support/test.h"
#include "tests/support/tree.h"

/* Numbers in words and lines: some twenty windows of 32 bytes, so that eight steps of four pass an epoch's end. */
static void write_data(void)
{
    char text[1000] = "", path[] = "/data.txt";
    for (int i = 0; i < 100; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%d%c", i * i % 97 * 7919,
                 i % 5 == 4 ? '\n' : ' ');
    tree_write(root, path, text);
}

#define TINY " --model tiny --seq-len 32 --global-batch-size 4 --max-steps 8 --save-total-limit 100"

static int train(const char *name, const char *flags)
{
    return process_run(&result, "%s" TINY " -o %s --data %s/data.txt --run-name %s %s", OT_COMMAND, root,
                       root, name, flags);
}

static void must_train(const char *name, const char *flags)
{
    if (train(name, flags) != 0)
        fail_msg("%s %s: %d: %s%s", name, flags, result.code, result.out, result.err);
}

/* "params=xxh3:…" of the last run. */
static const char *hash_of(char out[64])
{
    const char *at = strstr(result.out, "params=xxh3:");
    assert_non_null(at);
    snprintf(out, 64, "%.28s", at);
    return out;
}

static json_t *load(const char *path)
{
    json_error_t error;
    json_t *value = json_load_file(path, 0, &error);
    if (value == NULL)
        fail_msg("%s:%d: %s", path, error.line, error.text);
    return value;
}

/* ---- comparing checkpoints ---- */

/* Every tensor file of two checkpoints, and what trainer.json says of the numbers. */
static void expect_same_checkpoint(const char *a, const char *b, int step)
{
    static const char *const files[] = {"model.safetensors",
                                        "state/master.safetensors",
                                        "state/moment1.safetensors",
                                        "state/moment2.safetensors",
                                        "config.json",
                                        "state/factors.safetensors"};
    static const char *const fields[] = {"step",    "tokens",     "trained_tokens",
                                         "updates", "loss_scale", "settings"};
    char x[PATH_MAX], y[PATH_MAX];
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(x, sizeof x, "%s/%s/checkpoint-%d/%s", root, a, step, files[i]);
        snprintf(y, sizeof y, "%s/%s/checkpoint-%d/%s", root, b, step, files[i]);
        int optional = strstr(files[i], "moment") != NULL || strstr(files[i], "factors") != NULL;
        if (!optional || access(x, F_OK) == 0 || access(y, F_OK) == 0)
            tree_expect_same(x, y);
    }
    snprintf(x, sizeof x, "%s/%s/checkpoint-%d/state/trainer.json", root, a, step);
    snprintf(y, sizeof y, "%s/%s/checkpoint-%d/state/trainer.json", root, b, step);
    json_t *p = load(x), *q = load(y);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (!json_equal(json_object_get(p, fields[i]), json_object_get(q, fields[i])))
            fail_msg("%s differs between %s and %s", fields[i], x, y);
    json_decref(p);
    json_decref(q);
}

/* Steps 1 … 8 once each, with the losses and learning rates of another run. */
static void expect_same_metrics(const char *a, const char *b)
{
    char path[PATH_MAX], line[2][8192];
    FILE *files[2];
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s/metrics.jsonl", root, i == 0 ? a : b);
        files[i] = fopen(path, "r");
        assert_non_null(files[i]);
    }
    for (int step = 1; step <= 8; step++) {
        static const char *const fields[] = {"step", "loss", "learning_rate", "grad_norm", "tokens", "epoch"};
        assert_non_null(fgets(line[0], sizeof line[0], files[0]));
        assert_non_null(fgets(line[1], sizeof line[1], files[1]));
        json_t *x = json_loads(line[0], 0, NULL), *y = json_loads(line[1], 0, NULL);
        assert_int_equal(json_integer_value(json_object_get(x, "step")), step);
        for (size_t f = 0; f < sizeof fields / sizeof *fields; f++)
            if (!json_equal(json_object_get(x, fields[f]), json_object_get(y, fields[f])))
                fail_msg("step %d: %s differs: %s%s", step, fields[f], line[0], line[1]);
        json_decref(x);
        json_decref(y);
    }
    for (int i = 0; i < 2; i++) {
        assert_null(fgets(line[i], sizeof line[i], files[i]));
        fclose(files[i]);
    }
}

/* ---- going on elsewhere ---- */

static const char *const placements[] = {
    "--place weights=device,states=host,acts=device --threads 2",
    "--place weights=nvme,states=nvme,acts=nvme --threads 1 --prefetch-depth 1",
    "--place weights=host,states=host:50%,acts=host --io threads --overlap off",
    "--place states=device:60%,acts=host --threads 2",
};
enum { ON_DEVICE = 3, PLACEMENTS };

/* Eight steps in one placement, with a checkpoint behind the fourth; from there four in others. */
static void four_and_four(const char *formats, int first, const int seconds[], size_t count)
{
    char flags[PATH_MAX + 512], hash[2][64], whole[64], parts[64];
    static int number;
    snprintf(whole, sizeof whole, "whole%d", number++);
    snprintf(flags, sizeof flags, "--save-steps 4 %s %s", formats, placements[first]);
    must_train(whole, flags);
    hash_of(hash[0]);
    for (size_t i = 0; i < count; i++) {
        snprintf(parts, sizeof parts, "parts%d", number++);
        snprintf(flags, sizeof flags, "--save-steps 4 %s %s --resume %s/%s/checkpoint-4", formats,
                 placements[seconds[i]], root, whole);
        must_train(parts, flags);
        assert_string_equal(hash_of(hash[1]), hash[0]);
        expect_same_checkpoint(whole, parts, 8);
    }
}

static void going_on_in_another_placement_changes_nothing(void **state)
{
    (void)state;
    static const int all[PLACEMENTS] = {0, 1, 2, ON_DEVICE};
    for (int first = 0; first < PLACEMENTS; first++)
        four_and_four("", first, all, PLACEMENTS);
}

static void so_it_is_in_every_format(void **state)
{
    (void)state;
    static const char *const formats[] = {"--precision fp32",
                                          "--precision fp16",
                                          "--state-dtype int8 --grad-dtype 32",
                                          "--state-dtype bf16",
                                          "--optim lion --max-grad-norm 0",
                                          "--optim sgd",
                                          "--optim adafactor --precision fp32",
                                          "--optim adafactor"};
    for (int i = 0; i < (int)(sizeof formats / sizeof *formats); i++) {
        int second = strstr(formats[i], "adafactor") == NULL && i % 3 != 1 ? ON_DEVICE : (i + 1) % 3;
        four_and_four(formats[i], i % 3, &second, 1);
    }
}

/* ---- stopped and killed ---- */

static void start(process *p, const char *name, const char *flags)
{
    process_start(p, "%s" TINY " -o %s --data %s/data.txt --run-name %s %s", OT_COMMAND, root, root, name,
                  flags);
}

/* A fixed sequence of delays: xorshift. */
static long next_random(void)
{
    static uint32_t x = 2463534242;
    x ^= x << 13;
    x ^= x >> 17;
    x ^= x << 5;
    return (long)(x >> 1);
}

static void sleep_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

/* Whether it was stopped before it was done. */
static int stop_after(const char *name, int number, long ms)
{
    process p;
    start(&p, name, "--save-steps 1 --resume auto --place states=nvme");
    sleep_ms(ms);
    if (number == SIGKILL)
        process_kill(&p);
    else {
        process_signal(&p, number);
        process_wait(&p, &result);
        if (result.code != 0 && result.code != 128 + number)
            fail_msg("code %d: %s", result.code, result.err);
        return result.code != 0;
    }
    return 1;
}

/* A run in one piece to compare with, and how many milliseconds it takes. */
static long make_whole(void)
{
    static long ms;
    struct timespec begin, end;
    if (ms > 0)
        return ms;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    must_train("unbroken", "--save-steps 1");
    clock_gettime(CLOCK_MONOTONIC, &end);
    ms = (end.tv_sec - begin.tv_sec) * 1000 + (end.tv_nsec - begin.tv_nsec) / 1000000;
    return ms;
}

static void finish(const char *name)
{
    must_train(name, "--save-steps 1 --resume auto");
    expect_same_checkpoint("unbroken", name, 8);
    expect_same_metrics("unbroken", name);
}

static void thirty_kills_change_nothing(void **state)
{
    (void)state;
    long ms = make_whole();
    char name[32];
    for (int kill = 0; kill < (TEST_IS_SLOW ? 12 : 30); kill++) {
        snprintf(name, sizeof name, "killed%d", kill / 6); /* a run has six of them */
        stop_after(name, SIGKILL, next_random() % (ms + 1));
        if (kill % 6 == 5)
            finish(name);
    }
}

static void stop_signals_save_and_change_nothing(void **state)
{
    (void)state;
    long ms = make_whole();
    for (int i = 0; i < 6; i++)
        stop_after("stopped", i % 2 == 0 ? SIGTERM : SIGINT, 100 + next_random() % ms);
    finish("stopped");
}

/* ---- stopped in every phase ---- */

/* Steps long enough to be stopped in. */
#define SLOW " --global-batch-size 8 --batch-size 1 --max-steps 4"

static int exists(const char *name, const char *file)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s/%s", root, name, file);
    return access(path, F_OK) == 0;
}

/* Rows of metrics.jsonl with this key; 0 where there is no file. */
static int rows_with(const char *name, const char *key)
{
    char path[PATH_MAX], line[8192];
    int count = 0;
    snprintf(path, sizeof path, "%s/%s/metrics.jsonl", root, name);
    FILE *file = fopen(path, "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        count += strstr(line, key) != NULL;
    if (file != NULL)
        fclose(file);
    return count;
}

static int has_a_step(const char *name)
{
    return rows_with(name, "\"loss\"") > 0;
}

static int is_saving(const char *name)
{
    return exists(name, "checkpoint-1.tmp");
}

static int is_planned(const char *name)
{
    return exists(name, "plan.json");
}

/* Sends SIGTERM so long after a phase has been seen. Returns the steps made; -1: it was done before that. */
static int stop_in(const char *name, const char *flags, int (*seen)(const char *name), long ms)
{
    process p;
    char file[64];
    start(&p, name, flags);
    for (int waited = 0; !seen(name) && process_runs(&p); waited++) {
        assert_true(waited < 60000);
        sleep_ms(1);
    }
    sleep_ms(ms);
    process_signal(&p, SIGTERM);
    process_wait(&p, &result);
    if (result.code == 0)
        return -1;
    if (result.code != 128 + SIGTERM)
        fail_msg("%s: code %d: %s", name, result.code, result.err);
    int steps = rows_with(name, "\"loss\"");
    snprintf(file, sizeof file, "checkpoint-%d/manifest.json", steps);
    if (steps > 0 && !exists(name, file))
        fail_msg("%s: stopped after step %d, and there is no checkpoint of it", name, steps);
    snprintf(file, sizeof file, "checkpoint-%d.tmp", steps);
    assert_false(exists(name, file) || exists(name, "offtrain.swap"));
    return steps;
}

/* Case 25: in load, at several places of a step with its forward, backward and update, in evaluation and in saving: no step is lost,
 * and the rest of the run is as if nothing had happened. */
static void a_stop_in_any_phase_loses_nothing(void **state)
{
    (void)state;
    char evaluation[PATH_MAX + 128], path[] = "/eval.txt", text[16384] = "";
    for (int i = 0; strlen(text) + 16 < sizeof text; i++)
        snprintf(text + strlen(text), 16, "%d ", i * i % 97 * 7919);
    tree_write(root, path, text);
    snprintf(evaluation, sizeof evaluation, "--eval-data %s/eval.txt --eval-steps 1", root);
    const struct {
        const char *flags;
        int (*seen)(const char *name);
        long ms;
    } phases[] = {
        {"--place states=nvme", is_planned, 0},
        {"--place states=nvme", has_a_step, 0},
        {"--place states=nvme", has_a_step, 15},
        {"--place states=nvme", has_a_step, 40},
        {evaluation, has_a_step, 10},
        {"--save-steps 1", is_saving, 0},
    };
    must_train("slow", SLOW);
    for (int i = 0; i < (int)(sizeof phases / sizeof *phases); i++) {
        char name[32], flags[PATH_MAX + 256];
        int steps = -1;
        for (int attempt = 0; steps < 0 && attempt < 5; attempt++) {
            snprintf(name, sizeof name, "phase%d.%d", i, attempt);
            snprintf(flags, sizeof flags, SLOW " %s", phases[i].flags);
            steps = stop_in(name, flags, phases[i].seen, phases[i].ms);
        }
        if (steps < 0)
            fail_msg("phase %d: the run is always done before", i);
        if (phases[i].flags == evaluation)
            assert_int_equal(rows_with(name, "eval_loss"), steps - 1);
        must_train(name, SLOW " --resume auto");
        expect_same_checkpoint("slow", name, 4);
    }
}

/* ---- what is refused ---- */

static void a_changed_schedule_is_refused_unless_allowed(void **state)
{
    (void)state;
    must_train("schedule", "--save-steps 4");
    assert_int_equal(train("schedule", "--resume auto --max-steps 12"), 2);
    assert_non_null(strstr(result.err, "total_steps was 8 and is 12"));
    assert_int_equal(train("schedule", "--resume auto --lr 1e-4"), 2);
    assert_non_null(strstr(result.err, "lr was 0.003 and is 0.0001"));
    assert_int_equal(train("schedule", "--resume auto --batch-size 1"), 2);
    assert_non_null(strstr(result.err, "batch_size was 4 and is 1"));
    assert_int_equal(train("schedule", "--resume auto --max-steps 12 --allow-changes total-steps"), 0);
    assert_non_null(strstr(result.out, "\nstep 9/12"));
    assert_null(strstr(result.out, "\nstep 8/12"));
}

static void damage_is_named_and_the_one_before_is_taken(void **state)
{
    (void)state;
    char path[PATH_MAX];
    must_train("damaged", "--save-steps 3");
    snprintf(path, sizeof path, "%s/damaged/checkpoint-8/state/moment2.safetensors", root);
    FILE *file = fopen(path, "r+");
    assert_non_null(file);
    fseek(file, 5000, SEEK_SET);
    int byte = fgetc(file);
    fseek(file, 5000, SEEK_SET);
    fputc(byte ^ 1, file);
    fclose(file);
    must_train("damaged", "--resume auto");
    assert_non_null(strstr(result.err, "checkpoint-8/state/moment2.safetensors"));
    assert_non_null(strstr(result.err, "checkpoint-6"));
    assert_non_null(strstr(result.out, "\nstep 7/8"));
    assert_null(strstr(result.out, "\nstep 6/8"));
}

static void bad_resumes(void **state)
{
    (void)state;
    must_train("formats", "--save-steps 4");
    tree_write(root, "/nothing/here.txt", "");
    static const struct {
        int code;
        const char *flags, *text;
    } cases[] = {
        {5, "--resume %s/no/such", "no folder"},
        {5, "--resume %s/nothing", "holds no checkpoint"},
        {2, "--resume %s/formats/checkpoint-4 --precision fp32", "precision was \"bf16\" and is \"fp32\""},
        {5, "--resume %s/formats/checkpoint-4 --precision fp16 --allow-changes all", "moment"},
        {2, "--resume %s/formats/checkpoint-4 --seed 7", "seed was 42 and is 7"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char flags[PATH_MAX + 128], name[32];
        snprintf(flags, sizeof flags, cases[i].flags, root);
        snprintf(name, sizeof name, "bad%zu", i);
        int code = train(name, flags);
        if (i != 3 && (code != cases[i].code || strstr(result.err, cases[i].text) == NULL))
            fail_msg("%s: code %d, '%s'", flags, code, result.err);
    }
    assert_int_equal(process_run(&result, "%s" TINY " -o %s --resume", OT_COMMAND, root), 2);
    assert_non_null(strstr(result.err, "--run-name"));
}

/* A file of the run `name`, in memory of the caller's. */
static char *run_file(const char *name, const char *file)
{
    char path[PATH_MAX];
    size_t bytes;
    snprintf(path, sizeof path, "%s/%s/%s", root, name, file);
    char *text = tree_read(path, &bytes);
    text[bytes] = '\0';
    return text;
}

/* The loss of the done line. */
static double done_loss(void)
{
    const char *done = strstr(result.out, "done ");
    assert_non_null(done);
    const char *at = strstr(done, " loss=");
    assert_non_null(at);
    return strtod(at + strlen(" loss="), NULL);
}

static void a_run_that_had_ended_ends_again_as_it_did(void **state)
{
    (void)state;
    static const char flags[] =
        "--eval-steps 4 --val-split 0.2 --sample-prompt 12 --sample-steps 8 --max-tokens 4";
    char resumed[256], hash[2][64];
    must_train("ended", flags);
    hash_of(hash[0]);
    double loss = done_loss();
    assert_true(loss > 0);
    char *before = run_file("ended", "metrics.jsonl");
    snprintf(resumed, sizeof resumed, "%s --resume auto", flags);
    must_train("ended", resumed);
    assert_string_equal(hash_of(hash[1]), hash[0]);
    assert_true(done_loss() == loss);
    char *after = run_file("ended", "metrics.jsonl");
    assert_int_equal(count_lines(before), 8 + 2 + 1);
    assert_int_equal(count_lines(after), count_lines(before));
    free(before);
    free(after);
}

/* What a crash of the machine can leave: lines that are no rows, and a last one that was cut off. */
static void rows_behind_damage_stay(void **state)
{
    (void)state;
    must_train("rows", "--save-steps 4");
    must_train("whole-rows", "--save-steps 4");
    assert_int_equal(
        process_run(&result, "sed -i -e \"2i {\\\"step\\\":\" -e 4i5 -e \"6s/.*/cut/\" %s/rows/metrics.jsonl",
                    root),
        0);
    assert_int_equal(process_run(&result, "rm -r %s/rows/checkpoint-8", root), 0);
    must_train("rows", "--save-steps 4 --resume auto");
    expect_same_metrics("whole-rows", "rows");
}

/* A size of micro-batches that cannot be, in a checkpoint whose manifest does not cover it. */
static void a_damaged_batch_size_is_refused(void **state)
{
    (void)state;
    static const char *const sizes[] = {"-3", "0", "1.5"};
    must_train("batches", "--save-steps 4");
    assert_int_equal(
        process_run(&result, "sed -i s/trainer.json/gone/ %s/batches/checkpoint-8/manifest.json", root), 0);
    assert_int_equal(
        process_run(&result,
                    "cp %s/batches/checkpoint-8/state/trainer.json %s/batches/checkpoint-8/state/gone", root,
                    root),
        0);
    for (int i = 0; i < 3; i++) {
        char flags[PATH_MAX + 64], name[32];
        snprintf(flags, sizeof flags, "--resume %s/batches/checkpoint-8", root);
        snprintf(name, sizeof name, "batches%d", i);
        assert_int_equal(
            process_run(
                &result,
                "sed -i s/\\\"batch_size\\\":[^,]*/\\\"batch_size\\\":%s/ %s/batches/checkpoint-8/state/trainer.json",
                sizes[i], root),
            0);
        if (train(name, flags) != 5 || strstr(result.err, "settings.batch_size") == NULL)
            fail_msg("%s: code %d, %s", sizes[i], result.code, result.err);
    }
}

/* A stop in the middle of an evaluation saves the step, and leaves metrics.jsonl without the evaluation and what comes behind it. */
static void an_evaluation_that_was_stopped_is_made_up_for(void **state)
{
    (void)state;
    static const char flags[] =
        "--eval-steps 2 --val-split 0.2 --sample-prompt 12 --sample-steps 4 --save-steps 4";
    char resumed[256];
    must_train("evaluated", flags);
    snprintf(resumed, sizeof resumed, "%s --resume auto", flags);
    for (int rows = 5; rows <= 7;
         rows++) { /* steps 1 and 2, an evaluation, 3 and 4: then an evaluation and a sample */
        assert_int_equal(process_run(&result, "sed -i %dq %s/evaluated/metrics.jsonl", rows, root), 0);
        assert_int_equal(process_run(&result, "rm -r %s/evaluated/checkpoint-8", root), 0);
        must_train("evaluated", resumed);
        char *metrics = run_file("evaluated", "metrics.jsonl");
        assert_int_equal(count_lines(metrics), 8 + 4 + 2);
        free(metrics);
    }
}

/* The tensors' shapes say nothing of it. */
static void another_mathematics_is_refused(void **state)
{
    (void)state;
    char flags[PATH_MAX + 64];
    must_train("mathematics", "--save-steps 4");
    assert_int_equal(process_run(&result, "cp -r %s/mathematics/checkpoint-8 %s/other", root, root), 0);
    assert_int_equal(
        process_run(&result, "sed -i s/rope_theta.*/rope_theta\\\":20000.0,/ %s/other/config.json", root), 0);
    snprintf(flags, sizeof flags, "--resume auto --model %s/other", root);
    assert_int_equal(train("mathematics", flags), 2);
    assert_non_null(strstr(result.err, "model.rope.theta was 10000.0 and is 20000.0"));
}

static void two_at_once_are_refused(void **state)
{
    (void)state;
    process p;
    char path[PATH_MAX];
    start(&p, "busy", "--save-steps 1 --max-steps 100000");
    snprintf(path, sizeof path, "%s/busy/checkpoint-1", root);
    for (int waited = 0; access(path, F_OK) != 0; waited++) {
        assert_true(waited < 6000);
        sleep_ms(10);
    }
    assert_int_equal(train("busy", "--resume auto --max-steps 100000"), 2);
    assert_non_null(strstr(result.err, "another process"));
    process_signal(&p, SIGTERM);
    process_wait(&p, &result);
    assert_int_equal(result.code, 143);
}

static void rotation_keeps_the_newest(void **state)
{
    (void)state;
    must_train("rotated", "--save-steps 1 --save-total-limit 3 --max-steps 11");
    for (int step = 1; step <= 11; step++) {
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%s/rotated/checkpoint-%d", root, step);
        assert_int_equal(access(path, F_OK) == 0, step > 8);
    }
}

/* Without --model the model and its tokenizer come from the checkpoint that the run goes on from, which makes room for newer ones on
 * the way. Nor does the run's configuration name it: a third session starts from that. */
static void a_run_outlives_the_checkpoint_it_goes_on_from(void **state)
{
    (void)state;
    char copy[PATH_MAX], kept[PATH_MAX];
    must_train("older", "--save-steps 4");
    tree_write(root, "/older/checkpoint-4/generation_config.json", "{}");
    assert_int_equal(process_run(&result, "cp -r %s/older %s/outlived", root, root), 0);
    assert_int_equal(process_run(&result, "rm -r %s/outlived/checkpoint-8", root), 0);
    assert_int_equal(process_run(&result,
                                 "%s --seq-len 32 --global-batch-size 4 --max-steps 8 --lr 3e-3 --data "
                                 "%s/data.txt -o %s --resume %s/outlived --save-steps 1 --save-total-limit 1",
                                 OT_COMMAND, root, root, root),
                     0);
    expect_same_checkpoint("older", "outlived", 8);
    snprintf(copy, sizeof copy, "%s/outlived/checkpoint-8/generation_config.json", root);
    snprintf(kept, sizeof kept, "%s/older/checkpoint-4/generation_config.json", root);
    tree_expect_same(copy, kept);
    assert_int_equal(
        process_run(&result, "%s -c %s/outlived/config.yaml --resume %s/outlived", OT_COMMAND, root, root),
        0);
}

static void the_reports_command_goes_on(void **state)
{
    (void)state;
    char command[PATH_MAX + 128] = "cd / && exec " OT_COMMAND;
    tree_write(root, "/odd it's/x", "");
    assert_int_equal(process_run(&result,
                                 "%s" TINY
                                 " -o \"%s/odd it's\" --data %s/data.txt --run-name named --save-steps 4",
                                 OT_COMMAND, root, root),
                     0);
    char hash[2][64], *page = run_file("odd it's/named", "report.html");
    hash_of(hash[0]);
    assert_int_equal(process_run(&result, "rm -r \"%s/odd it's/named/checkpoint-8\"", root), 0);
    char *line = strstr(page, "offtrain -c ");
    assert_non_null(line);
    line += strlen("offtrain");
    line[strcspn(line, "\n")] = '\0';
    strncat(command, line, sizeof command - strlen(command) - 1);
    tree_write(root, "/again.sh", command);
    free(page);
    if (process_run(&result, "sh %s/again.sh", root) != 0)
        fail_msg("%s: %s", command, result.err);
    assert_string_equal(hash_of(hash[1]), hash[0]);
    char *metrics = run_file("odd it's/named", "metrics.jsonl");
    assert_int_equal(count_lines(metrics), 8);
    free(metrics);
    assert_int_equal(
        process_run(&result,
                    "%s" TINY
                    " -o \"%s/odd it's\" --data %s/data.txt --run-name named --resume \"%s/odd it's/named/\"",
                    OT_COMMAND, root, root, root),
        0);
}

static int open_data(void **state)
{
    open_root(state);
    write_data();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(going_on_in_another_placement_changes_nothing),
        cmocka_unit_test(so_it_is_in_every_format),
        cmocka_unit_test(thirty_kills_change_nothing),
        cmocka_unit_test(stop_signals_save_and_change_nothing),
        cmocka_unit_test(a_stop_in_any_phase_loses_nothing),
        cmocka_unit_test(a_changed_schedule_is_refused_unless_allowed),
        cmocka_unit_test(damage_is_named_and_the_one_before_is_taken),
        cmocka_unit_test(bad_resumes),
        cmocka_unit_test(a_run_that_had_ended_ends_again_as_it_did),
        cmocka_unit_test(rows_behind_damage_stay),
        cmocka_unit_test(a_damaged_batch_size_is_refused),
        cmocka_unit_test(an_evaluation_that_was_stopped_is_made_up_for),
        cmocka_unit_test(another_mathematics_is_refused),
        cmocka_unit_test(two_at_once_are_refused),
        cmocka_unit_test(rotation_keeps_the_newest),
        cmocka_unit_test(the_reports_command_goes_on),
        cmocka_unit_test(a_run_outlives_the_checkpoint_it_goes_on_from),
    };
    return cmocka_run_group_tests(tests, open_data, close_root);
}
