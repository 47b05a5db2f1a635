#include "tools/page.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/checkpoint_set.h"
#include "io/file.h"
#include "io/grow.h"
#include "io/json_file.h"
#include "io/text.h"
#include "tools/chart.h"
#include "tools/command.h"
#include "tools/option.h"
#include "tools/rundir.h"

/* ---- metrics.jsonl as columns ---- */

/* The fields that are drawn or added up; those of evaluations have rows of their own. */
#define FIELDS(X)                                                                                            \
    X(step)                                                                                                  \
    X(loss)                                                                                                  \
    X(eval_loss)                                                                                             \
    X(grad_norm)                                                                                             \
    X(learning_rate)                                                                                         \
    X(tok_per_s)                                                                                             \
    X(step_s)                                                                                                \
    X(fwd_s)                                                                                                 \
    X(bwd_s)                                                                                                 \
    X(opt_exposed_s)                                                                                         \
    X(wait_data_s)                                                                                           \
    X(h2d_bytes)                                                                                             \
    X(d2h_bytes)                                                                                             \
    X(nvme_read_bytes)                                                                                       \
    X(nvme_write_bytes)                                                                                      \
    X(device_peak_bytes)                                                                                     \
    X(host_peak_bytes)                                                                                       \
    X(tokens)                                                                                                \
    X(trained_tokens)                                                                                        \
    X(elapsed_s)

#define AS_NUMBER(name) F_##name,
#define AS_TEXT(name) #name,
enum field { FIELDS(AS_NUMBER) FIELD_COUNT };
static const char *const field_names[] = {FIELDS(AS_TEXT)};

typedef struct rows {
    size_t count, capacity;
    double *columns[FIELD_COUNT]; /* NaN where a row has no such field */
} rows;

static void free_rows(rows *r)
{
    for (size_t f = 0; f < FIELD_COUNT; f++)
        free(r->columns[f]);
}

static ot_status grow(rows *r)
{
    size_t capacity = r->capacity;
    for (size_t f = 0; f < FIELD_COUNT; f++) {
        capacity = r->capacity;
        OT_TRY(ot_grow(&r->columns[f], &capacity, r->count + 1, sizeof *r->columns[f], "rows of metrics"));
    }
    r->capacity = capacity;
    return OT_OK;
}

static ot_status read_rows(const char *folder, rows *r)
{
    char path[PATH_MAX], *line = NULL;
    size_t capacity = 0;
    ot_status status = OT_OK;
    snprintf(path, sizeof path, "%s/metrics.jsonl", folder);
    FILE *file = ot_file_open_stream(path, OT_ERR_FORMAT);
    if (file == NULL)
        return ot_fail(OT_ERR_FORMAT, "%s; report wants the folder of a run", ot_error_text());
    while (status == OT_OK && getline(&line, &capacity, file) > 0) {
        json_t *row = json_loads(line, 0, NULL);
        if (row == NULL) /* the last line of a run that was killed */
            continue;
        status = grow(r);
        for (size_t f = 0; f < FIELD_COUNT && status == OT_OK; f++) {
            const json_t *value = json_object_get(row, field_names[f]);
            r->columns[f][r->count] = json_is_number(value) ? json_number_value(value) : NAN;
        }
        r->count += status == OT_OK;
        json_decref(row);
    }
    free(line);
    fclose(file);
    return status;
}

static double last(const rows *r, enum field f)
{
    for (size_t i = r->count; i-- > 0;)
        if (isfinite(r->columns[f][i]))
            return r->columns[f][i];
    return NAN;
}

static double sum(const rows *r, enum field f)
{
    double total = 0;
    for (size_t i = 0; i < r->count; i++)
        if (isfinite(r->columns[f][i]))
            total += r->columns[f][i];
    return total;
}

static size_t steps_of(const rows *r)
{
    size_t count = 0;
    for (size_t i = 0; i < r->count; i++)
        count += isfinite(r->columns[F_loss][i]) != 0;
    return count;
}

/* ---- charts ---- */

static void draw(const rows *r, const char *title, const char *unit, const ot_series *series, size_t count,
                 int stacked, FILE *out)
{
    const ot_chart chart = {title, unit, r->columns[F_step], r->count, series, count, stacked};
    ot_chart_print(&chart, out);
}

/* Evaluations are far apart: a line through them takes the last one for the steps in between. */
static void hold(double *values, size_t count)
{
    for (size_t i = 1; i < count; i++)
        if (!isfinite(values[i]))
            values[i] = values[i - 1];
}

/* What of a step is neither forward, backward nor data. */
static void fill_rest(const rows *r, double forward[], double rest[])
{
    for (size_t i = 0; i < r->count; i++) {
        double exposed = r->columns[F_opt_exposed_s][i], data = r->columns[F_wait_data_s][i];
        forward[i] = fmax(0, r->columns[F_fwd_s][i] - exposed);
        rest[i] = fmax(0, r->columns[F_step_s][i] - r->columns[F_fwd_s][i] - r->columns[F_bwd_s][i] - data);
    }
}

static ot_status print_charts(rows *r, FILE *out)
{
    double *forward = calloc(r->count + 1, sizeof *forward), *rest = calloc(r->count + 1, sizeof *rest);
    if (forward == NULL || rest == NULL) {
        free(forward);
        free(rest);
        return ot_fail(OT_ERR_INTERNAL, "out of memory for charts");
    }
    hold(r->columns[F_eval_loss], r->count);
    fill_rest(r, forward, rest);
    int evaluated = isfinite(last(r, F_eval_loss));
    const ot_series loss[] = {{"training", r->columns[F_loss]}, {"evaluation", r->columns[F_eval_loss]}};
    const ot_series rate[] = {{"", r->columns[F_learning_rate]}}, norm[] = {{"", r->columns[F_grad_norm]}},
                    speed[] = {{"", r->columns[F_tok_per_s]}};
    const ot_series time[] = {{"forward", forward},
                              {"waiting for the update", r->columns[F_opt_exposed_s]},
                              {"backward", r->columns[F_bwd_s]},
                              {"data", r->columns[F_wait_data_s]},
                              {"other", rest}};
    const ot_series bytes[] = {{"host to device", r->columns[F_h2d_bytes]},
                               {"device to host", r->columns[F_d2h_bytes]},
                               {"NVMe read", r->columns[F_nvme_read_bytes]},
                               {"NVMe write", r->columns[F_nvme_write_bytes]}};
    fputs("<div class=\"charts\">\n", out);
    draw(r, "Loss", "nats a token", loss, evaluated ? 2 : 1, 0, out);
    draw(r, "Learning rate", "", rate, 1, 0, out);
    draw(r, "Gradient norm", "before clipping", norm, 1, 0, out);
    draw(r, "Speed", "tokens a second", speed, 1, 0, out);
    draw(r, "Time of a step", "seconds", time, 5, 1, out);
    draw(r, "Moved in a step", "bytes, each lane", bytes, 4, 0, out);
    fputs("</div>\n", out);
    free(forward);
    free(rest);
    return OT_OK;
}

/* ---- tables ---- */

static double number_at(const json_t *root, const char *a, const char *b, const char *c)
{
    const json_t *value = json_object_get(root, a);
    if (b != NULL)
        value = json_object_get(value, b);
    if (c != NULL)
        value = json_object_get(value, c);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static const char *size_text(double bytes, char out[OT_SIZE_TEXT_BYTES])
{
    if (!(bytes >= 0 && bytes < 0x1p63))
        return "–";
    return ot_format_size((uint64_t)bytes, out);
}

static const char *seconds_text(double seconds, char out[32])
{
    if (!isfinite(seconds))
        return "–";
    snprintf(out, 32, "%.4g s", seconds);
    return out;
}

static void print_pair(const char *name, const char *measured, const char *planned, FILE *out)
{
    fprintf(out, "<tr><td>%s</td><td>%s</td><td>%s</td></tr>\n", name, measured, planned);
}

static void print_bytes(const char *name, double measured, double planned, FILE *out)
{
    char a[OT_SIZE_TEXT_BYTES], b[OT_SIZE_TEXT_BYTES];
    print_pair(name, size_text(measured, a), size_text(planned, b), out);
}

static void print_plan_table(const rows *r, const json_t *plan, FILE *out)
{
    static const struct {
        const char *name, *key;
        enum field field;
    } lanes[] = {{"host to device, a step", "h2d_bytes", F_h2d_bytes},
                 {"device to host, a step", "d2h_bytes", F_d2h_bytes},
                 {"NVMe read, a step", "nvme_read_bytes", F_nvme_read_bytes},
                 {"NVMe write, a step", "nvme_write_bytes", F_nvme_write_bytes}};
    char measured[32], planned[32];
    size_t steps = steps_of(r);
    fputs("<h2>Plan and measurement</h2>\n<table><tr><th></th><th>measured</th><th>planned</th></tr>\n", out);
    print_pair("time of a step", seconds_text(steps > 0 ? sum(r, F_step_s) / (double)steps : NAN, measured),
               seconds_text(number_at(plan, "step", "predicted_s", NULL), planned), out);
    print_bytes("device memory, peak", last(r, F_device_peak_bytes),
                number_at(plan, "tiers", "device", "peak"), out);
    print_bytes("host memory, peak", last(r, F_host_peak_bytes), number_at(plan, "tiers", "host", "peak"),
                out);
    for (size_t i = 0; i < sizeof lanes / sizeof *lanes; i++)
        print_bytes(lanes[i].name, last(r, lanes[i].field), number_at(plan, "step", lanes[i].key, NULL), out);
    fputs("</table>\n", out);
}

static void print_wear(const rows *r, const json_t *plan, FILE *out)
{
    char text[OT_SIZE_TEXT_BYTES];
    double written = sum(r, F_nvme_write_bytes), tbw = number_at(plan, "wear", "tbw", NULL);
    if (!(written > 0))
        return;
    fprintf(out, "<p>Written to NVMe by the steps: %s", size_text(written, text));
    if (tbw > 0)
        fprintf(out, ", %.3g %% of the rated %.4g TB", 100 * written / (tbw * 1e12), tbw);
    fputs(".</p>\n", out);
}

/* An object of names and values, such as the statistics of the data. */
static void print_object(const char *title, const json_t *object, FILE *out)
{
    const char *name;
    json_t *value;
    if (json_object_size(object) == 0)
        return;
    fprintf(out, "<h2>%s</h2>\n<table>\n", title);
    json_object_foreach((json_t *)(uintptr_t)object, name, value)
    {
        char *text = json_is_string(value) ? strdup(json_string_value(value))
                                           : json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(6));
        fputs("<tr><td>", out);
        ot_html_text(name, out);
        fputs("</td><td>", out);
        ot_html_text(text != NULL ? text : "", out);
        fputs("</td></tr>\n", out);
        free(text);
    }
    fputs("</table>\n", out);
}

/* ---- commands ---- */

/* The last line of command.txt, which has one for each session. */
static void print_command(const char *folder, FILE *out)
{
    char path[PATH_MAX], *line = NULL;
    size_t capacity = 0;
    snprintf(path, sizeof path, "%s/command.txt", folder);
    FILE *file = ot_file_open_stream(path, OT_ERR_FORMAT);
    if (file == NULL)
        return;
    while (getline(&line, &capacity, file) > 0)
        continue;
    fputs("<h2>Command</h2>\n<pre>", out);
    ot_html_text(line != NULL ? line : "", out);
    fputs("</pre>\n", out);
    free(line);
    fclose(file);
}

/* Part of a command, with paths as a shell wants them. */
static void print_words(const char *before, const char *path, const char *between, const char *other,
                        FILE *out)
{
    char *text = NULL;
    size_t bytes;
    FILE *memory = open_memstream(&text, &bytes);
    if (memory != NULL) {
        fputs(before, memory);
        ot_print_argument(path, memory);
        fputs(between, memory);
        ot_print_argument(other, memory);
        fclose(memory);
        ot_html_text(text, out);
    }
    free(text);
}

static void print_next(const char *folder, FILE *out)
{
    char latest[PATH_MAX + 16], full[PATH_MAX], config[PATH_MAX + 16];
    snprintf(latest, sizeof latest, "%s/latest", folder);
    if (realpath(latest, full) == NULL) {
        fputs("<p>No checkpoint has been written.</p>\n", out);
        return;
    }
    const char *run = folder;
    char run_full[PATH_MAX];
    if (realpath(folder, run_full) != NULL)
        run = run_full;
    snprintf(config, sizeof config, "%s/config.yaml", run);
    fputs("<h2>Going on</h2>\n<pre>", out);
    print_words("offtrain -c ", config, " --resume ", run, out);
    print_words("\nofftrain export ", full, " --to hf -o ", "DIR", out);
    print_words("\nofftrain export ", full, " --to gguf -o ", "FILE", out);
    fputs("</pre>\n", out);
}

/* ---- the page ---- */

static void print_head(const rows *r, const char *folder, const json_t *plan, FILE *out)
{
    const json_t *model = json_object_get(plan, "model");
    const char *name = json_string_value(json_object_get(model, "name"));
    char text[OT_NUMBER_TEXT_BYTES];
    fputs("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>", out);
    ot_html_text(folder, out);
    fprintf(out, "</title><style>%s</style></head><body>\n<h1>", ot_html_style);
    ot_html_text(name != NULL ? name : "offtrain", out);
    fputs("</h1>\n<p>", out);
    if (steps_of(r) > 0)
        fprintf(out, "%.0f steps, loss %.4f, %.0f tokens (%.0f trained) in %s s", last(r, F_step),
                last(r, F_loss), last(r, F_tokens), last(r, F_trained_tokens),
                ot_format_number(last(r, F_elapsed_s), text));
    else
        fputs("no step has been made", out);
    if (isfinite(number_at(model, "params", NULL, NULL)))
        fprintf(out, "; %.0f parameters", number_at(model, "params", NULL, NULL));
    const char *bottleneck = json_string_value(json_object_get(json_object_get(plan, "step"), "bottleneck"));
    if (bottleneck != NULL)
        fprintf(out, "; planned bottleneck: %s", bottleneck);
    fputs(".</p>\n", out);
}

static ot_status print_page(rows *r, const char *folder, const json_t *plan, FILE *out)
{
    print_head(r, folder, plan, out);
    OT_TRY(print_charts(r, out));
    print_plan_table(r, plan, out);
    print_wear(r, plan, out);
    print_object("Data", json_object_get(plan, "data"), out);
    print_command(folder, out);
    print_next(folder, out);
    fputs("</body></html>\n", out);
    return OT_OK;
}

ot_status ot_page_write(const char *folder)
{
    rows r = {0};
    char path[PATH_MAX], *text = NULL;
    size_t size = 0;
    json_t *plan = NULL;
    FILE *memory = NULL;
    if (strlen(folder) > PATH_MAX - 32)
        return ot_fail(OT_ERR_FORMAT, "%.80s…: too long a path", folder);
    ot_status status = read_rows(folder, &r);
    if (status != OT_OK)
        goto out;
    snprintf(path, sizeof path, "%s/plan.json", folder);
    if (ot_json_read(path, 0, &plan) != OT_OK)
        plan = NULL; /* a report without it */
    memory = open_memstream(&text, &size);
    if (memory == NULL)
        OT_TRY_GOTO(ot_fail(OT_ERR_INTERNAL, "out of memory for a report"), out);
    status = print_page(&r, folder, plan, memory);
    if (fclose(memory) != 0 && status == OT_OK)
        status = ot_fail(OT_ERR_INTERNAL, "out of memory for a report");
    if (status != OT_OK)
        goto out;
    snprintf(path, sizeof path, "%s/report.html", folder);
    status = ot_file_replace(path, text, size);
out:
    free(text);
    json_decref(plan);
    free_rows(&r);
    return status;
}

/* ---- the command ---- */

typedef struct report_flags {
    ot_option_list runs;
} report_flags;

static const ot_option options[] = {
    {.name = "_",
     .kind = OT_OPTION_LIST,
     .offset = offsetof(report_flags, runs),
     .value = "RUN…",
     .help = "folders of runs"},
};

ot_status ot_command_report(int argc, char **argv)
{
    const ot_option_table table = {"offtrain report", "Writes RUN/report.html from the files of the run.",
                                   options, sizeof options / sizeof *options};
    report_flags flags = {0};
    int help;
    OT_TRY(ot_options_parse(&table, argc, argv, &flags, &help));
    if (help)
        return OT_OK;
    if (flags.runs.count == 0)
        return ot_fail(OT_ERR_USAGE, "report: which run? For example: offtrain report runs/NAME");
    for (size_t i = 0; i < flags.runs.count; i++) {
        OT_TRY(ot_page_write(flags.runs.items[i]));
        printf("%s/report.html\n", flags.runs.items[i]);
    }
    return OT_OK;
}
