/* `offtrain bench adam`, `copy` and `step`: the JSON holds together, and flags that make no sense are refused.
 * The figures themselves say nothing on a busy machine. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/process.h"
#include "tests/support/test.h"

static json_t *run_json(const char *arguments)
{
    outcome o;
    json_error_t error;
    if (process_run(&o, OT_COMMAND " bench %s --json", arguments) != 0)
        fail_msg("bench %s: exit code %d: %s", arguments, o.code, o.err);
    json_t *object = json_loads(o.out, 0, &error);
    if (object == NULL)
        fail_msg("bench %s: not JSON: %s\n%s", arguments, error.text, o.out);
    return object;
}

static double number(const json_t *object, const char *key)
{
    assert_true(json_is_number(json_object_get(object, key)));
    return json_number_value(json_object_get(object, key));
}

/* The median of a measurement, which lies within its range, above 0. */
static double median(const json_t *object, const char *key)
{
    const json_t *sample = json_object_get(object, key);
    assert_true(number(sample, "min") > 0);
    assert_true(number(sample, "median") >= number(sample, "min"));
    assert_true(number(sample, "max") >= number(sample, "median"));
    return number(sample, "median");
}

static void adam(void **state)
{
    (void)state;
    static const struct {
        const char *arguments;
        double bytes; /* of a parameter: gradient, master, weight and moments, read and written */
    } cases[] = {
        {"adam", 2 + 4 + 4 + 8 + 8},
        {"adam --master fp32 --weight fp16 --grad fp16", 2 + 8 + 2 + 8 + 8},
        {"adam --master fp32 --weight none --grad fp32 --isa baseline", 4 + 8 + 8 + 8},
        {"adam --moments int8", 2 + 4 + 4 + 2 + 2},
        {"adam --moments bf16 --optimizer lion", 2 + 4 + 4 + 4},
        {"adam --optimizer sgd --threads 3", 2 + 4 + 4 + 8},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char arguments[256];
        snprintf(arguments, sizeof arguments, "%s --parameters 64K --rounds 3", cases[i].arguments);
        json_t *object = run_json(arguments);
        assert_true(number(object, "bytes_per_parameter") == cases[i].bytes);
        double rate = median(object, "gbs");
        assert_true(fabs(number(object, "gparameters_s") * cases[i].bytes / rate - 1) < 1e-3);
        assert_true(median(object, "probe_gbs") > 0 && median(object, "share") > 0);
        assert_null(json_object_get(object, "beside_drive"));
        json_decref(object);
    }
}

static void copy(void **state)
{
    (void)state;
    static const char *const patterns[] = {"copy", "triad", "h2d", "d2h", "both"};
    json_t *object = run_json("copy --size 1M --rounds 3 --threads 2 --device cpu");
    assert_string_equal(json_string_value(json_object_get(object, "device")), "cpu");
    assert_true(number(object, "threads") == 2 && number(object, "size") == 1 << 20);
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++)
        assert_true(median(object, patterns[i]) > 0);
    json_decref(object);
}

/* Beside a drive that moves something all the time. */
static void adam_beside_a_drive(void **state)
{
    (void)state;
    json_t *object = run_json("adam --parameters 64K --rounds 2 --nvme .");
    const json_t *beside = json_object_get(object, "beside_drive");
    assert_true(median(beside, "gbs") > 0 && median(beside, "drive_gbs") > 0 && median(beside, "kept") > 0);
    json_decref(object);
}

/* The kernels alone, and with a drive the largest lane: each is a part of its step. */
static void step(void **state)
{
    (void)state;
    json_t *object = run_json("step --model tiny --seq-len 64 --batch-size 2 --rounds 3 --nvme .");
    const json_t *resident = json_object_get(object, "resident"), *nvme = json_object_get(object, "nvme");
    assert_true(median(resident, "step_s") > 0 && median(resident, "kernels_s") > 0 &&
                median(resident, "share") > 0);
    for (int clipped = 0; clipped < 2; clipped++) {
        assert_true(median(nvme, "step_s") >= median(nvme, "lane_s"));
        assert_true(median(nvme, "parts_s") >= median(nvme, "lane_s") * 0.999);
        assert_true(median(nvme, "ratio") >= 1 && median(nvme, "simulated_ratio") >= 0.999);
        assert_true(json_is_string(json_object_get(nvme, "largest_lane")));
        nvme = json_object_get(object, "nvme_clipped");
    }
    assert_true(median(nvme, "parts_ratio") > 0);
    json_decref(object);
}

static void refused(void **state)
{
    (void)state;
    static const struct {
        const char *arguments, *names;
    } cases[] = {
        {"adam --master split --weight fp16", "--weight bf16"},
        {"adam --parameters 10", "--parameters"},
        {"adam --threads -1", "--threads"},
        {"adam --rounds 0", "--rounds"},
        {"adam --moments fp16", "--moments"},
        {"copy --size 1000", "--size"},
        {"copy --rounds 100", "--rounds"},
        {"copy --thread 2", "--threads"},
        {"step --rounds 0", "--rounds"},
        {"step --seq-len 0", "--seq-len"},
        {"all --rounds 1", "--nvme"},
        {"all --nvme", "--nvme"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        outcome o;
        assert_int_equal(process_run(&o, OT_COMMAND " bench %s", cases[i].arguments), 2);
        assert_string_equal(o.out, "");
        if (strstr(o.err, cases[i].names) == NULL)
            fail_msg("bench %s: %s is not named: %s", cases[i].arguments, cases[i].names, o.err);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adam), cmocka_unit_test(copy),    cmocka_unit_test(adam_beside_a_drive),
        cmocka_unit_test(step), cmocka_unit_test(refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
