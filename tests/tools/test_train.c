/* Training as a user runs it: what is printed and written, exit codes, and that a clean stop is one. */
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

/* A small run in root/NAME; returns the exit code. */
#define TINY " --model tiny --device cpu --seq-len 32 --global-batch-size 4 --max-steps 2"

static int train(const char *name, const char *flags)
{
    return process_run(&result, "%s" TINY " -o %s --run-name %s %s", OT_COMMAND, root, name, flags);
}

static void must_train(const char *name, const char *flags)
{
    if (train(name, flags) != 0)
        fail_msg("%s: %d: %s%s", flags, result.code, result.out, result.err);
}

/* The last line of what was printed. */
static const char *last_line(void)
{
    char *end = result.out + strlen(result.out);
    assert_true(end > result.out && end[-1] == '\n');
    end[-1] = '\0';
    char *line = strrchr(result.out, '\n');
    return line != NULL ? line + 1 : result.out;
}

typedef struct done_line {
    unsigned long long steps, tokens, hash;
    double loss, seconds;
} done_line;

static done_line read_done(const char *line)
{
    done_line done;
    int used = 0;
    int count = sscanf(line, "done steps=%llu loss=%lf tokens=%llu seconds=%lf params=xxh3:%16llx%n",
                       &done.steps, &done.loss, &done.tokens, &done.seconds, &done.hash, &used);
    if (count != 5 || line[used] != '\0')
        fail_msg("not the last line of a run: %s", line);
    assert_int_equal(strlen(strstr(line, "xxh3:") + 5), 16);
    return done;
}

static json_t *load(const char *name, const char *file)
{
    char path[PATH_MAX];
    json_error_t error;
    snprintf(path, sizeof path, "%s/%s/%s", root, name, file);
    json_t *value = json_load_file(path, 0, &error);
    if (value == NULL)
        fail_msg("%s:%d: %s", path, error.line, error.text);
    return value;
}

static FILE *open_file(const char *name, const char *file)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s/%s", root, name, file);
    FILE *opened = fopen(path, "r");
    if (opened == NULL)
        fail_msg("%s is missing", path);
    return opened;
}

/* ---- a run ---- */

static void a_run_prints_its_plan_steps_and_report(void **state)
{
    (void)state;
    must_train("prints", "");
    assert_memory_equal(result.out, "model     tiny: LlamaForCausalLM", 32);
    assert_non_null(strstr(result.out, "\nstep 1/2  loss 5."));
    assert_non_null(strstr(result.out, "\nstep 2/2  loss "));
    assert_non_null(strstr(result.out, "\nreport    2 steps"));
    assert_string_equal(result.err, "");
    done_line done = read_done(last_line());
    assert_int_equal(done.steps, 2);
    assert_int_equal(done.tokens, 2 * 4 * 32);
    assert_true(done.loss > 3 && done.loss < 6 && done.seconds > 0);
}

static const char *const metric_names[] = {
    "step",
    "total_steps",
    "epoch",
    "tokens",
    "trained_tokens",
    "loss",
    "grad_norm",
    "learning_rate",
    "clip_factor",
    "loss_scale",
    "skipped",
    "step_s",
    "fwd_s",
    "bwd_s",
    "opt_exposed_s",
    "tok_per_s",
    "mfu",
    "h2d_bytes",
    "d2h_bytes",
    "nvme_read_bytes",
    "nvme_write_bytes",
    "wait_h2d_s",
    "wait_nvme_s",
    "wait_cpu_s",
    "wait_data_s",
    "device_peak_bytes",
    "host_peak_bytes",
    "elapsed_s",
    "eta_s",
};

static void check_metrics(const char *name, int steps)
{
    FILE *file = open_file(name, "metrics.jsonl");
    char line[4096];
    int rows = 0;
    while (fgets(line, sizeof line, file) != NULL) {
        json_error_t error;
        json_t *row = json_loads(line, 0, &error);
        if (row == NULL)
            fail_msg("%s: %s", error.text, line);
        rows++;
        assert_int_equal(json_integer_value(json_object_get(row, "step")), rows);
        for (size_t i = 0; i < sizeof metric_names / sizeof *metric_names; i++)
            if (json_object_get(row, metric_names[i]) == NULL)
                fail_msg("metrics.jsonl has no %s", metric_names[i]);
        assert_int_equal(json_integer_value(json_object_get(row, "tokens")), rows * 4 * 32);
        assert_true(json_real_value(json_object_get(row, "grad_norm")) > 0);
        assert_true(json_integer_value(json_object_get(row, "h2d_bytes")) > 0);
        json_decref(row);
    }
    fclose(file);
    assert_int_equal(rows, steps);
}

static void a_run_writes_its_folder(void **state)
{
    (void)state;
    char line[1024];
    must_train("writes", "--place states=host");
    check_metrics("writes", 2);
    json_t *plan = load("writes", "plan.json");
    assert_true(json_is_true(json_object_get(plan, "fits")));
    json_decref(plan);
    FILE *file = open_file("writes", "command.txt");
    assert_non_null(fgets(line, sizeof line, file));
    assert_non_null(strstr(line, "offtrain train --model tiny --device cpu --seq-len 32 "));
    assert_non_null(strstr(line, " --run-name writes --place states=host\n"));
    fclose(file);
    file = open_file("writes", "train.log");
    assert_non_null(fgets(line, sizeof line, file));
    assert_memory_equal(line, "step 1/2  loss 5.", 17);
    fclose(file);
    /* The written configuration makes the same run. */
    done_line first = read_done(last_line());
    assert_int_equal(process_run(&result, "%s -c %s/writes/config.yaml --run-name again", OT_COMMAND, root),
                     0);
    assert_true(read_done(last_line()).hash == first.hash);
}

static void a_name_is_taken_once(void **state)
{
    (void)state;
    must_train("taken", "");
    assert_int_equal(train("taken", ""), 2);
    assert_non_null(strstr(result.err, "taken is there already"));
    check_metrics("taken", 2);
}

static void without_a_name_runs_go_by_the_time(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(process_run(&result, "%s" TINY " --max-steps 1 -o %s/a/b -q", OT_COMMAND, root), 0);
        assert_int_equal(count_lines(result.out), 1); /* quiet: the last line only */
        read_done(last_line());
    }
}

static void json_lines(void **state)
{
    (void)state;
    must_train("json", "--json");
    static const char *const events[] = {"plan", "step", "step", "report", "done"};
    char *rest = NULL;
    size_t count = 0;
    for (char *line = strtok_r(result.out, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        json_error_t error;
        json_t *object = json_loads(line, 0, &error);
        if (object == NULL)
            fail_msg("%s: %s", error.text, line);
        assert_true(count < sizeof events / sizeof *events);
        assert_string_equal(json_string_value(json_object_get(object, "event")), events[count++]);
        if (count == 5) {
            assert_int_equal(json_integer_value(json_object_get(object, "steps")), 2);
            assert_memory_equal(json_string_value(json_object_get(object, "params")), "xxh3:", 5);
        }
        json_decref(object);
    }
    assert_int_equal(count, 5);
}

static void the_bar_is_on_stderr(void **state)
{
    (void)state;
    must_train("bar", "--progress on");
    assert_non_null(strstr(result.err, "100 %  2/2  loss "));
    assert_null(strstr(result.out, "\r"));
    must_train("no_bar", ""); /* not a terminal */
    assert_string_equal(result.err, "");
}

static void without_data_it_is_ten_steps(void **state)
{
    (void)state;
    assert_int_equal(process_run(&result,
                                 "%s --model tiny --seq-len 16 --global-batch-size 1 -o %s --run-name ten -q",
                                 OT_COMMAND, root),
                     0);
    assert_int_equal(read_done(last_line()).steps, 10);
}

static void epochs_of_a_file(void **state)
{
    (void)state;
    tree_write(root, "/text.txt",
               "An epoch of this text has five windows of sixteen bytes, the last cut off.");
    assert_int_equal(
        process_run(
            &result,
            "%s --model tiny --seq-len 16 --global-batch-size 2 --epochs 2 --data %s/text.txt -o %s --run-name "
            "epochs -q",
            OT_COMMAND, root, root),
        0);
    assert_int_equal(read_done(last_line()).steps, 6);
}

/* ---- the same numbers ---- */

static void placement_changes_nothing(void **state)
{
    (void)state;
    static const char *const flags[] = {
        "",
        "--overlap off --threads 1",
        "--recompute none --place acts=nvme",
        "--place weights=nvme,states=nvme,grads=nvme,acts=nvme",
        "--place weights=device:50%,states=host:40%,acts=host --prefetch-depth 2 --io threads --threads 2",
    };
    unsigned long long hash = 0;
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        char name[32];
        snprintf(name, sizeof name, "same%zu", i);
        must_train(name, flags[i]);
        done_line done = read_done(last_line());
        if (i == 0)
            hash = done.hash;
        if (done.hash != hash)
            fail_msg("%s: other parameters", flags[i]);
    }
    must_train("other_seed", "--seed 43");
    assert_true(read_done(last_line()).hash != hash);
}

static void micro_batches_change_rounding_only(void **state)
{
    (void)state;
    must_train("whole", "--batch-size 4 --precision fp32");
    double whole = read_done(last_line()).loss;
    must_train("parts", "--batch-size 1 --precision fp32");
    double parts = read_done(last_line()).loss;
    assert_true(whole - parts < 1e-4 && parts - whole < 1e-4);
}

/* ---- the trace ---- */

static void a_trace_has_every_operation_twice(void **state)
{
    (void)state;
    char flags[PATH_MAX + 64], path[PATH_MAX];
    snprintf(path, sizeof path, "%s/out.json", root);
    snprintf(flags, sizeof flags, "--trace %s --place states=nvme", path);
    must_train("traced", flags);
    json_t *trace = load("traced", "trace.json"); /* a link */
    const json_t *events = json_object_get(trace, "traceEvents");
    size_t count[3] = {0}, last[3] = {0};
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *event = json_array_get(events, i);
        if (strcmp(json_string_value(json_object_get(event, "ph")), "X") != 0)
            continue;
        long long pid = json_integer_value(json_object_get(event, "pid"));
        assert_in_range(pid, 1, 2);
        count[pid]++;
        last[pid] = (size_t)json_integer_value(json_object_get(json_object_get(event, "args"), "operation"));
        assert_true(json_number_value(json_object_get(event, "dur")) >= 0);
        assert_in_range(json_integer_value(json_object_get(event, "tid")), 1, 7);
    }
    assert_true(count[1] > 50);
    assert_int_equal(count[1], count[2]);
    assert_int_equal(last[1], last[2]);
    json_decref(trace);
}

/* ---- what goes wrong ---- */

static void bad_input(void **state)
{
    (void)state;
    tree_write(root, "/empty.txt", "");
    static const struct {
        int code;
        const char *flags, *text;
    } cases[] = {
        {2, "--modle tiny", "did you mean --model?"},
        {2, "--gpu-mem 24G", "--model is missing"},
        {2, "--model tinny", "did you mean tiny"},
        {2, "--model tiny --seq-len 4096", "2048 positions"},
        {2, "--model tiny --batch-size 3 --global-batch-size 4", "no multiple"},
        {2, "--model tiny --loss-scale 2", "fp16"},
        {2, "--model tiny --place x=y", "no plane"},
        {2, "--model tiny -c /no/such.yaml", "/no/such.yaml"},
        {2, "--model tiny --nvme /dev/shm", "memory"},
        {4, "--model tiny --data /no/such/file.txt", "/no/such/file.txt"},
        {4, "--model tiny --data /", "no regular file"},
        {6, "--model tiny --nvme /no/such/folder", "/no/such/folder"},
        {6, "--model tiny -o /dev/null/runs", "/dev/null"},
        {6, "--model tiny --trace /no/such/folder/trace.json", "/no/such/folder"},
        {8, "--model tiny --device cuda", "cuda"},
        {3, "--model tiny --place states=nvme,weights=nvme,acts=nvme --max-tbw 0", "--max-tbw"},
        {3, "plan --model tiny --place states=nvme --max-tbw 0", "--max-tbw"},
        {2, "plan --model tiny --nvme . ./.", "given twice"},
        {2, "--model tiny --warmup-steps 1.5", "fraction below 1"},
        {2, "--model tiny --allow-changes max-steps", "total_steps"},
        {2, "stray", "unknown command"},
        {2, "plan --model tiny stray", "unexpected argument"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int has_folder = strstr(cases[i].flags, "-o ") != NULL || cases[i].flags[0] != '-';
        int code = process_run(&result, "%s %s%s%s", OT_COMMAND, cases[i].flags, has_folder ? "" : " -o ",
                               has_folder ? "" : root);
        if (code == 8 && cases[i].code == 8)
            continue;
        if (code != cases[i].code || strstr(result.err, cases[i].text) == NULL)
            fail_msg("%s: code %d, '%s'", cases[i].flags, code, result.err);
        assert_null(strstr(result.out, "done "));
    }
    char data[PATH_MAX];
    snprintf(data, sizeof data, "--data %s/empty.txt", root);
    assert_int_equal(train("empty", data), 4);
    assert_non_null(strstr(result.err, "empty.txt has 0 bytes"));
    assert_int_equal(train("no_eval", "--eval-steps 1 --max-steps 1"), 0);
    assert_non_null(strstr(result.err, "nothing to evaluate"));
}

/* A learning rate that throws the weights out of range: the run ends, or passes over such steps. */
static void not_finite(void **state)
{
    (void)state;
    const char *flags = "--optim sgd --lr 1e30 --max-grad-norm 0 --warmup-steps 0 --max-steps 8";
    assert_int_equal(train("infinite", flags), 7);
    assert_non_null(strstr(result.err, "is not finite"));
    assert_non_null(strstr(result.err, "offtrain: step "));
    FILE *file = open_file("infinite", "train.log");
    char line[1024], last[1024] = "";
    while (fgets(line, sizeof line, file) != NULL)
        memcpy(last, line, sizeof last);
    fclose(file);
    assert_non_null(strstr(last, "is not finite"));
    char skip[256];
    snprintf(skip, sizeof skip, "%s --nan skip", flags);
    must_train("skipped", skip);
    assert_non_null(strstr(result.out, "skipped: not finite"));
    must_train("skipped16", "--precision fp16 --lr 1e3 --max-steps 6 --nan skip");
    assert_non_null(strstr(result.out, "skipped: not finite"));
}

/* Where some chunks are updated inside backward and others in the next forward, too. */
static void the_report_has_moved_what_was_planned(void **state)
{
    (void)state;
    static const char *const flags[] = {
        "--json",
        "--json --place states=nvme,acts=nvme",
        "--json --max-grad-norm 0 --max-steps 4",
        "--json --max-grad-norm 0 --max-steps 4 --optim lion --precision fp32 --place weights=nvme,states=nvme,acts=nvme",
    };
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        char name[32];
        snprintf(name, sizeof name, "moved%zu", i);
        must_train(name, flags[i]);
        const char *line = strstr(result.out, "{\"steps\"");
        assert_non_null(line);
        json_t *report = json_loads(line, JSON_DISABLE_EOF_CHECK, NULL), *lane;
        const char *lane_name;
        assert_non_null(report);
        json_object_foreach(json_object_get(report, "lanes"), lane_name, lane)
        {
            if (!json_equal(json_object_get(lane, "moved_bytes"), json_object_get(lane, "planned_bytes")))
                fail_msg("%s: %s moved other bytes than planned", flags[i], lane_name);
        }
        json_decref(report);
    }
}

/* ---- signals ---- */

/* Waits until the run has made a step. */
static void wait_for_steps(const char *name)
{
    char path[PATH_MAX];
    struct stat facts;
    snprintf(path, sizeof path, "%s/%s/metrics.jsonl", root, name);
    for (int waited = 0; stat(path, &facts) != 0 || facts.st_size == 0; waited++) {
        assert_true(waited < 12000);
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
}

static void stops(const char *name, int number, int code)
{
    process p;
    process_start(
        &p, "%s" TINY " --max-steps 100000 --logging-steps 100000 -o %s --run-name %s --place states=nvme",
        OT_COMMAND, root, name);
    wait_for_steps(name);
    process_signal(&p, number);
    process_wait(&p, &result);
    assert_int_equal(result.code, code);
    assert_non_null(strstr(result.err, number == SIGINT ? "stopped by SIGINT" : "stopped by SIGTERM"));
    assert_non_null(strstr(result.out, "\nreport "));
    assert_null(strstr(result.out, "\ndone "));
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s/offtrain.swap", root, name);
    assert_int_not_equal(access(path, F_OK), 0);
    FILE *file = open_file(name, "metrics.jsonl");
    char line[4096];
    while (fgets(line, sizeof line, file) != NULL) {
        json_t *row = json_loads(line, 0, NULL);
        assert_non_null(row);
        json_decref(row);
    }
    fclose(file);
}

static void signals_end_it_cleanly(void **state)
{
    (void)state;
    stops("term", SIGTERM, 143);
    stops("int", SIGINT, 130);
}

/* What a killed run leaves on the drive goes with the next one; what a living one has stays. */
static void the_next_run_sweeps_up(void **state)
{
    (void)state;
    process p[2];
    const char *names[2] = {"killed", "lives"};
    char paths[2][PATH_MAX];
    for (int i = 0; i < 2; i++) {
        process_start(&p[i], "%s" TINY " --max-steps 100000 -o %s --run-name %s --place states=nvme -q",
                      OT_COMMAND, root, names[i]);
        wait_for_steps(names[i]);
        snprintf(paths[i], PATH_MAX, "%s/%s/offtrain.swap", root, names[i]);
        assert_int_equal(access(paths[i], F_OK), 0);
    }
    process_kill(&p[0]);
    assert_int_equal(access(paths[0], F_OK), 0);
    /* With io_uring the kernel drops a killed process's lock a little later. */
    for (int attempt = 0; access(paths[0], F_OK) == 0; attempt++) {
        char name[32];
        assert_true(attempt < 100);
        snprintf(name, sizeof name, "sweeps%d", attempt);
        must_train(name, "--max-steps 1");
    }
    assert_int_equal(access(paths[1], F_OK), 0);
    assert_non_null(strstr(result.err, "killed/offtrain.swap"));
    process_signal(&p[1], SIGTERM);
    process_wait(&p[1], &result);
    assert_int_equal(result.code, 143);
}

static void help_fits_a_screen(void **state)
{
    (void)state;
    assert_int_equal(process_run(&result, "%s --help", OT_COMMAND), 0);
    assert_true(count_lines(result.out) <= 24);
    for (char *rest = NULL, *line = strtok_r(result.out, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest))
        assert_true(strlen(line) <= 100);
    assert_int_equal(process_run(&result, "%s train --help", OT_COMMAND), 0);
    assert_non_null(strstr(result.out, "--place PLANE=TIER"));
    assert_int_equal(process_run(&result, "%s --model tiny --help", OT_COMMAND), 0);
    assert_int_equal(process_run(&result, "%s plan -h", OT_COMMAND), 0);
    assert_non_null(strstr(result.out, "usage: offtrain plan"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_prints_its_plan_steps_and_report),
        cmocka_unit_test(a_run_writes_its_folder),
        cmocka_unit_test(a_name_is_taken_once),
        cmocka_unit_test(without_a_name_runs_go_by_the_time),
        cmocka_unit_test(json_lines),
        cmocka_unit_test(the_bar_is_on_stderr),
        cmocka_unit_test(without_data_it_is_ten_steps),
        cmocka_unit_test(epochs_of_a_file),
        cmocka_unit_test(placement_changes_nothing),
        cmocka_unit_test(micro_batches_change_rounding_only),
        cmocka_unit_test(a_trace_has_every_operation_twice),
        cmocka_unit_test(bad_input),
        cmocka_unit_test(not_finite),
        cmocka_unit_test(the_report_has_moved_what_was_planned),
        cmocka_unit_test(signals_end_it_cleanly),
        cmocka_unit_test(the_next_run_sweeps_up),
        cmocka_unit_test(help_fits_a_screen),
    };
    return cmocka_run_group_tests(tests, open_root, close_root);
}
