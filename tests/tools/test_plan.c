/* `offtrain plan` and what goes with it: the JSON of cli.md, plans that do not fit, other machines, --print-config. */
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/root.h"
#include "tests/support/test.h"
#include "tests/support/tree.h"

#define TINY " --model tiny --seq-len 32 --global-batch-size 4 --max-steps 2"

static json_t *plan_json(int code, const char *flags)
{
    json_error_t error;
    assert_int_equal(process_run(&result, "%s plan --json --model tiny -o %s %s", OT_COMMAND, root, flags),
                     code);
    json_t *plan = json_loads(result.out, 0, &error);
    if (plan == NULL)
        fail_msg("%s: %s", error.text, result.out);
    return plan;
}

static json_t *at(json_t *object, const char *a, const char *b, const char *c)
{
    json_t *value = json_object_get(object, a);
    if (b != NULL)
        value = json_object_get(value, b);
    if (c != NULL)
        value = json_object_get(value, c);
    if (value == NULL)
        fail_msg("the plan has no %s.%s.%s", a, b != NULL ? b : "", c != NULL ? c : "");
    return value;
}

static void plan_as_json(void **state)
{
    (void)state;
    static const char *const tiers[] = {"device", "host", "nvme"}, *const phases[] = {"load", "step", "eval",
                                                                                      "save", "resume"};
    json_t *plan = plan_json(0, "--place states=nvme --tbw 600");
    assert_true(json_is_true(at(plan, "fits", NULL, NULL)));
    assert_int_equal(json_integer_value(at(plan, "model", "params", NULL)), 820608);
    for (size_t i = 0; i < 3; i++) {
        long long peak = json_integer_value(at(plan, "tiers", tiers[i], "peak"));
        assert_true(peak > 0 && peak <= json_integer_value(at(plan, "tiers", tiers[i], "budget")));
        assert_true(json_is_object(at(plan, "tiers", tiers[i], "planes")));
        for (size_t j = 0; j < 5; j++)
            assert_true(json_integer_value(at(plan, "phases", phases[j], tiers[i])) <= peak);
    }
    assert_true(json_real_value(at(plan, "step", "predicted_s", NULL)) > 0);
    assert_true(json_real_value(at(plan, "step", "flops", NULL)) > 0);
    assert_true(json_is_string(at(plan, "step", "bottleneck", NULL)));
    assert_true(json_is_object(at(plan, "step", "lanes", "compute")));
    long long written = json_integer_value(at(plan, "wear", "bytes_per_step", NULL));
    assert_int_equal(written, json_integer_value(at(plan, "step", "nvme_write_bytes", NULL)));
    assert_true(written > 0);
    double steps = json_real_value(at(plan, "wear", "steps_to_tbw", NULL)) * (double)written;
    assert_true(steps > 599e12 && steps < 601e12);
    assert_true(json_is_array(at(plan, "suggestions", NULL, NULL)));
    json_decref(plan);
}

/* Rajbhandari et al. 2020, figure 1: with 12 bytes of states a parameter 2P + 2P + 12P/N, 2P + 14P/N, 16P/N. */
static void what_a_rank_stores(void **state)
{
    (void)state;
    static const char *const planes[] = {"weight", "master", "moment1", "moment2", "grad"};
    for (int zero = 1; zero <= 3; zero++) {
        char flags[256], stage[] = {(char)('0' + zero), '\0'};
        snprintf(flags, sizeof flags,
                 "--ranks 4 --zero %d --precision fp16 --global-batch-size 4 --seq-len 64 --place "
                 "weights=host,states=host,grads=host",
                 zero);
        assert_int_equal(
            process_run(&result, "%s plan --json --model 135m -o %s %s", OT_COMMAND, root, flags), 0);
        json_t *plan = json_loads(result.out, 0, NULL);
        double P = json_number_value(at(plan, "model", "params", NULL)), stored = 0;
        const double expected[] = {4 * P + 12 * P / 4, 2 * P + 14 * P / 4, 16 * P / 4};
        for (size_t p = 0; p < 5; p++)
            stored += json_number_value(json_object_get(at(plan, "tiers", "host", "planes"), planes[p]));
        double told = json_number_value(at(plan, "ranks", "state_bytes", stage));
        assert_int_equal(json_integer_value(at(plan, "ranks", "zero", NULL)), zero);
        assert_int_equal(json_integer_value(at(plan, "ranks", "count", NULL)), 4);
        assert_true(fabs(told / expected[zero - 1] - 1) < 0.04); /* padding of small layers */
        assert_true(stored >= told && stored - told < 0.001 * told);
        json_decref(plan);
    }
    json_t *alone = plan_json(0, "");
    assert_null(json_object_get(alone, "ranks"));
    json_decref(alone);
}

/* The low half of the master and two FP32 moments cross to the drives once a step, 10 bytes a parameter, whoever stores them. */
static void what_ranks_write(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 4; ranks *= 2) {
        char flags[256];
        snprintf(flags, sizeof flags,
                 "--ranks %d --model 135m --precision bf16 --global-batch-size 4 --seq-len 64 --place "
                 "weights=host,states=nvme,grads=host",
                 ranks);
        json_t *plan = plan_json(0, flags);
        double P = json_number_value(at(plan, "model", "params", NULL));
        double bytes = json_number_value(at(plan, "wear", "bytes_per_step", NULL));
        double steps = json_number_value(at(plan, "wear", "steps_to_tbw", NULL));
        assert_true(bytes >= 10 * P && bytes < 1.04 * 10 * P); /* padding of small layers */
        assert_true(fabs(steps * bytes / 1200e12 - 1) < 1e-9);
        json_decref(plan);
    }
}

static void a_plan_that_does_not_fit(void **state)
{
    (void)state;
    json_t *plan = plan_json(3, "--gpu-mem 4M --batch-size 16");
    assert_true(json_is_false(at(plan, "fits", NULL, NULL)));
    assert_true(json_array_size(at(plan, "suggestions", NULL, NULL)) > 0);
    long long need = json_integer_value(at(plan, "tiers", "device", "need"));
    json_decref(plan);
    assert_non_null(strstr(result.err, "tiny does not fit"));
    assert_non_null(strstr(result.err, "have 4 MiB, need "));
    char flags[128];
    snprintf(flags, sizeof flags, "--gpu-mem %lld --batch-size 16", need);
    json_decref(plan_json(0, flags));
    /* A run refuses it likewise, and leaves nothing behind. */
    assert_int_equal(
        process_run(&result, "%s" TINY " -o %s --run-name too_big --gpu-mem 2M", OT_COMMAND, root), 3);
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/too_big", root);
    assert_int_not_equal(access(path, F_OK), 0);
}

/* A suggestion as flags, sizes as printed; 0 where it asks for more than flags. */
static int flags_of(const char *suggestion, char *out, size_t bytes)
{
    size_t at = 0;
    if (*suggestion != '-' || strstr(suggestion, " free ") != NULL || strstr(suggestion, "a GPU ") != NULL)
        return 0;
    for (const char *p = suggestion; *p != '\0'; p++) {
        if (strncmp(p, " (have", 6) == 0)
            p = strchr(p, ')');
        else if (strncmp(p, " of ", 4) == 0)
            p += 3;
        else if (strncmp(p, " with ", 6) == 0)
            p += 5;
        if (*p == ' ' && strchr("KMGT", p[1]) != NULL)
            p++; /* 2.5 GiB: 2.5GiB */
        assert_true(at + 1 < bytes);
        if (*p != ')')
            out[at++] = *p;
    }
    out[at] = '\0';
    return 1;
}

/* Follows each suggestion that is a flag; returns how many there are. */
static size_t follow(const char *job, int ranks)
{
    char all[256];
    size_t n, followed = 0;
    snprintf(all, sizeof all, "%s --ranks %d", job, ranks);
    json_t *plan = plan_json(3, all), *text;
    json_array_foreach(at(plan, "suggestions", NULL, NULL), n, text)
    {
        char flags[256];
        if (!flags_of(json_string_value(text), flags, sizeof flags))
            continue;
        followed++;
        int code = process_run(&result, "%s plan --json -o %s %s %s", OT_COMMAND, root, all, flags);
        if (code != 0)
            fail_msg("%s\nsuggested: %s\nended with %d: %s", all, json_string_value(text), code, result.err);
    }
    json_decref(plan);
    return followed;
}

/* What would make it fit does: every suggestion that is flags, followed alone. */
static void suggestions_hold(void **state)
{
    (void)state;
    static const char *const jobs[] = {
        "--gpu rtx4090 --model 135m --gpu-mem 700M --host-mem 8G --batch-size 16",
        "--gpu rtx4090 --model 135m --gpu-mem 3G --host-mem 700M --place states=host",
        "--gpu rtx4090 --model 135m --gpu-mem 2G --host-mem 2G --recompute none --batch-size 8",
        "--gpu rtx4090 --model 135m --gpu-mem 4G --host-mem 1500M --place states=host --precision fp16",
        "--gpu rtx4090 --model 135m --gpu-mem 162M --host-mem 1105M --seq-len 256 --recompute none --grad-dtype 32",
        "--gpu rtx4090 --model 135m --gpu-mem 4G --host-mem 900M --place states=host",
        "--gpu rtx4090 --model 135m --gpu-mem 100M --host-mem 300M --place states=host",
        "--gpu rtx4090 --model 13b --gpu-mem 6G --host-mem 3G --place states=host --recompute none", /* all of it */
    };
    size_t followed = 0;
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++)
        for (int ranks = 1; ranks <= 2; ranks++)
            followed += follow(jobs[i], ranks);
    assert_true(followed >= 24);
}

/* Of two ranks in the terms of the machine: what it has and what it needs of host memory are those of both. */
static void needs_of_ranks_are_the_machines(void **state)
{
    (void)state;
    double need[2];
    for (int ranks = 1; ranks <= 2; ranks++) {
        process_run(
            &result,
            "%s plan --model 135m --gpu rtx4090 --gpu-mem 3G --host-mem 600M --place states=host --batch-size 1 "
            "--zero 1 --ranks %d",
            OT_COMMAND, ranks);
        assert_int_equal(result.code, 3);
        const char *line = strstr(result.err, "\n  host ");
        assert_non_null(line);
        assert_int_equal(sscanf(line, " host have 600 MiB, need %lf GiB", &need[ranks - 1]), 1);
    }
    /* Both share the states, and each has its own weights, gradients and buffers. */
    assert_true(need[1] > need[0] && need[1] < 1.6 * need[0]);
}

/* What ranks of one machine share is not each one's; the tokens are those of all. */
static void ranks_share_the_machine(void **state)
{
    (void)state;
    static const char *const shared[] = {"nvme-read", "nvme-write", "cpu"};
    json_t *plans[2];
    for (int ranks = 1; ranks <= 2; ranks++) {
        char flags[160];
        snprintf(flags, sizeof flags, "--gpu rtx4090 --host-mem 8G --place states=nvme --ranks %d", ranks);
        plans[ranks - 1] = plan_json(0, flags);
        assert_int_equal(json_integer_value(at(plans[ranks - 1], "step", "tokens", NULL)), 16 * 256);
    }
    for (size_t i = 0; i < 3; i++) {
        double rates[2];
        for (int p = 0; p < 2; p++)
            rates[p] = json_real_value(json_object_get(at(plans[p], "step", "lanes", shared[i]), "rate"));
        assert_true(rates[0] > 0 && fabs(rates[1] / rates[0] - 0.5) < 1e-9);
    }
    for (int p = 0; p < 2; p++) { /* each has its own card and its own link */
        double rate = json_real_value(json_object_get(at(plans[p], "step", "lanes", "h2d"), "rate"));
        assert_true(rate == json_real_value(json_object_get(at(plans[0], "step", "lanes", "h2d"), "rate")));
    }
    for (int p = 0; p < 2; p++)
        json_decref(plans[p]);
    /* On this machine's processor, whose speed is measured, the tokens are those of both as well. */
    double seconds, tokens;
    process_run(&result, "%s plan --model 135m --device cpu --seq-len 256 -o %s --ranks 2", OT_COMMAND, root);
    const char *line = strstr(result.out, "\npredicted ");
    assert_non_null(line);
    assert_int_equal(sscanf(line, " predicted %lf s a step, %lf tokens/s", &seconds, &tokens), 2);
    assert_true(fabs(seconds * tokens / (32 * 256) - 1) < 0.02); /* printed rounded */
}

/* Where two tiers have too little, both needs are named, and together they fit. */
static void what_does_not_fit_in_two_tiers(void **state)
{
    (void)state;
    enum { ROOM = 16384 }; /* the needs are printed rounded */
    static const char command[] =
        "%s plan --model tiny --gpu rtx4090 --gpu-mem %lld --host-mem %lld --place weights=host";
    assert_int_equal(process_run(&result, command, OT_COMMAND, 4LL << 20, 4LL << 20), 3);
    assert_non_null(strstr(result.err, "--gpu-mem of "));
    assert_non_null(strstr(result.err, " with --host-mem of "));
    double device, host;
    const char *device_line = strstr(result.err, "\n  device "), *host_line = strstr(result.err, "\n  host ");
    assert_true(device_line != NULL && host_line != NULL);
    assert_int_equal(sscanf(device_line, " device have 4 MiB, need %lf MiB", &device), 1);
    assert_int_equal(sscanf(host_line, " host have 4 MiB, need %lf MiB", &host), 1);
    long long bytes[2] = {(long long)(device * (1 << 20)) + ROOM, (long long)(host * (1 << 20)) + ROOM};
    assert_int_equal(process_run(&result, command, OT_COMMAND, bytes[0], bytes[1]), 0);
}

static void dry_run_is_the_plan(void **state)
{
    (void)state;
    assert_int_equal(process_run(&result, "%s" TINY " -o %s/nowhere --dry-run", OT_COMMAND, root), 0);
    assert_non_null(strstr(result.out, "\npredicted "));
    assert_non_null(strstr(result.out, "phase, peak of"));
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/nowhere", root);
    assert_int_not_equal(access(path, F_OK), 0);
}

static void plan_for_another_machine(void **state)
{
    (void)state;
    assert_int_equal(process_run(&result, "%s plan --model 7b --gpu rtx4090 --host-mem 96G", OT_COMMAND), 0);
    assert_non_null(strstr(result.out, "145 TFLOP/s"));
    assert_int_equal(process_run(&result, "%s plan --model 7b --gpu rtx409", OT_COMMAND), 2);
    assert_non_null(strstr(result.err, "did you mean rtx4090?"));
    assert_int_equal(process_run(&result, "%s --model tiny --gpu rtx4090", OT_COMMAND), 2);
}

/* What is kept is on the device, more of it with less recompute, and the work is as much less; where it does not fit, the mode
 * that does is named. */
static void what_is_kept_is_in_the_plan(void **state)
{
    (void)state;
    static const char *const modes[] = {"full", "selective", "none"};
    double flops[3];
    long long bytes[3];
    char flags[128];
    for (size_t i = 0; i < 3; i++) {
        snprintf(flags, sizeof flags, "--batch-size 4 --gpu-mem 1G --recompute %s", modes[i]);
        json_t *plan = plan_json(0, flags);
        assert_string_equal(json_string_value(at(plan, "step", "recompute", NULL)), modes[i]);
        flops[i] = json_real_value(at(plan, "step", "flops", NULL));
        json_t *planes = at(plan, "tiers", "device", "planes");
        bytes[i] = json_integer_value(json_object_get(planes, "activation"));
        json_decref(plan);
    }
    assert_true(flops[1] < 0.9 * flops[0] && flops[2] == flops[1]);
    assert_true(bytes[0] < bytes[1] && bytes[1] < bytes[2]);
    snprintf(flags, sizeof flags, "--batch-size 4 --gpu-mem %lld --recompute none", bytes[2]);
    json_decref(plan_json(3, flags));
    assert_non_null(strstr(result.err, "--recompute "));
}

/* What is forced is named beside what would have been chosen. */
static void a_forced_choice_has_a_price(void **state)
{
    (void)state;
    json_t *plan = plan_json(0, "--place weights=nvme,states=nvme,acts=nvme --overlap off");
    double forced = json_real_value(at(plan, "step", "predicted_s", NULL));
    assert_true(json_real_value(at(plan, "automatic_s", NULL, NULL)) < forced);
    json_decref(plan);
}

/* Case 31: GPT-2's groups, as nanoGPT prints them for the same model. */
static void what_decays_is_printed(void **state)
{
    (void)state;
    assert_int_equal(process_run(&result, "%s plan --model 124m --weight-decay 0.1 -o %s", OT_COMMAND, root),
                     0);
    const char *line =
        "\ndecay     0.1 of 50 matrices, 124318464 parameters; none of 98 norms and biases, 121344\n";
    if (strstr(result.out, line) == NULL)
        fail_msg("'%s' is not in: %s", line, result.out);
}

/* Half of the chunks are not half of the parameters: the share that is printed is that of the moments' bytes. */
static void the_share_on_the_device_is_of_parameters(void **state)
{
    (void)state;
    static const char half[] = "--state-dtype fp32 --place states=device:50%";
    json_t *plan = plan_json(0, half);
    double device = json_number_value(at(at(plan, "tiers", "device", "planes"), "moment1", NULL, NULL)),
           host = json_number_value(at(at(plan, "tiers", "host", "planes"), "moment1", NULL, NULL)),
           share = 100 * device / (device + host), printed = 0;
    json_decref(plan);
    assert_true(share > 51);
    assert_int_equal(process_run(&result, "%s plan --model tiny -o %s %s", OT_COMMAND, root, half), 0);
    const char *line = strstr(result.out, "states of ");
    assert_true(line != NULL && sscanf(line, "states of %lf %%", &printed) == 1);
    assert_true(fabs(printed - share) < 0.5);
}

static void print_config(void **state)
{
    (void)state;
    assert_int_equal(process_run(&result, "%s" TINY " --lr 0.25 --print-config", OT_COMMAND), 0);
    assert_non_null(strstr(result.out, "\nlr: 0.25\n"));
    char *copy = strdup(result.out);
    tree_write(root, "/printed.yaml", copy);
    assert_int_equal(process_run(&result, "%s --print-config -c %s/printed.yaml", OT_COMMAND, root), 0);
    assert_string_equal(result.out, copy);
    free(copy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plan_as_json),
        cmocka_unit_test(what_a_rank_stores),
        cmocka_unit_test(what_ranks_write),
        cmocka_unit_test(a_plan_that_does_not_fit),
        cmocka_unit_test(what_does_not_fit_in_two_tiers),
        cmocka_unit_test(dry_run_is_the_plan),
        cmocka_unit_test(suggestions_hold),
        cmocka_unit_test(needs_of_ranks_are_the_machines),
        cmocka_unit_test(ranks_share_the_machine),
        cmocka_unit_test(plan_for_another_machine),
        cmocka_unit_test(what_is_kept_is_in_the_plan),
        cmocka_unit_test(a_forced_choice_has_a_price),
        cmocka_unit_test(what_decays_is_printed),
        cmocka_unit_test(the_share_on_the_device_is_of_parameters),
        cmocka_unit_test(print_config),
    };
    return cmocka_run_group_tests(tests, open_root, close_root);
}
