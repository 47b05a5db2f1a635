#include "tools/trace.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/file.h"
#include "io/log.h"
#include "tools/plan_report.h"

enum { EVENTS_MAX = 1000000, MEASURED = 1, PREDICTED = 2 };

struct ot_trace {
    FILE *file;
    char path[PATH_MAX];
    uint64_t events;
    int told;
};

static void write_names(FILE *file)
{
    static const char *const processes[] = {NULL, "measured", "predicted"};
    const char *comma = "";
    for (int pid = MEASURED; pid <= PREDICTED; pid++) {
        fprintf(file, "%s\n{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"args\":{\"name\":\"%s\"}}",
                comma, pid, processes[pid]);
        comma = ",";
        for (int lane = 0; lane < OT_LANES; lane++)
            fprintf(
                file,
                ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"%s\"}}"
                ",\n{\"ph\":\"M\",\"name\":\"thread_sort_index\",\"pid\":%d,\"tid\":%d,\"args\":{\"sort_index\":%d}}",
                pid, lane + 1, ot_lane_name((ot_lane)lane), pid, lane + 1, lane);
    }
}

static void link_into(const char *folder, const char *path)
{
    char link[PATH_MAX + 16], target[PATH_MAX], own[PATH_MAX];
    snprintf(link, sizeof link, "%s/trace.json", folder);
    if (realpath(path, target) == NULL || (realpath(link, own) != NULL && strcmp(own, target) == 0))
        return;
    if (symlink(target, link) != 0)
        ot_log(OT_LOG_WARNING, "%s: no link to %s: %s", link, target, strerror(errno));
}

ot_status ot_trace_open(const char *path, const char *folder, ot_trace **out)
{
    ot_trace *trace = calloc(1, sizeof *trace);
    if (trace == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for a trace");
    snprintf(trace->path, sizeof trace->path, "%s", path);
    trace->file = ot_file_open_output(path, "w");
    if (trace->file == NULL) {
        free(trace);
        return ot_fail(OT_ERR_IO, "--trace: %s: %s", path,
                       errno == ENXIO ? "nobody reads this pipe" : strerror(errno));
    }
    link_into(folder, path);
    fprintf(trace->file, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[");
    write_names(trace->file);
    *out = trace;
    return OT_OK;
}

static void write_event(FILE *file, const ot_operation *op, size_t number, uint64_t step, int pid,
                        double start_s, double length_s, const ot_job *job)
{
    const char *layer = op->layer >= 0   ? job->model->layers[op->layer].name
                        : op->stage >= 0 ? job->model->layers[op->stage].name
                                         : "";
    fprintf(
        file,
        ",\n{\"ph\":\"X\",\"name\":\"%s%s%s\",\"cat\":\"%s\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,\"args\":{\"step\":%" PRIu64
        ",\"operation\":%zu",
        ot_operation_name(op->kind), *layer != '\0' ? " " : "", layer, ot_operation_name(op->kind), pid,
        (int)op->lane + 1, start_s * 1e6, length_s * 1e6, step, number);
    if (op->chunk >= 0)
        fprintf(file, ",\"chunk\":%d", op->chunk);
    if (op->micro_batch >= 0)
        fprintf(file, ",\"micro_batch\":%d", op->micro_batch);
    if (op->bytes > 0)
        fprintf(file, ",\"bytes\":%" PRIu64, op->bytes);
    if (op->flops > 0)
        fprintf(file, ",\"gflop\":%.6g", op->flops / 1e9);
    fputs("}}", file);
}

ot_status ot_trace_add(ot_trace *trace, const ot_job *job, const ot_list *list, const ot_span *spans,
                       uint64_t step, double start_s)
{
    if (trace->events + 2 * list->count > EVENTS_MAX) {
        if (!trace->told)
            ot_log(OT_LOG_INFO, "trace: %s ends before step %" PRIu64 ", at a million events", trace->path,
                   step);
        trace->told = 1;
        return OT_OK;
    }
    ot_timeline timeline;
    double *ends = malloc((list->count + 1) * sizeof *ends);
    if (ends == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for a trace of %zu operations", list->count);
    ot_status status = ot_simulate(list, &job->training.rates, ends, &timeline);
    for (size_t o = 0; status == OT_OK && o < list->count; o++) {
        const ot_operation *op = &list->operations[o];
        double predicted = ot_operation_seconds(op, &job->training.rates);
        write_event(trace->file, op, o, step, MEASURED, start_s + (double)spans[o].start_ns * 1e-9,
                    (double)(spans[o].end_ns - spans[o].start_ns) * 1e-9, job);
        write_event(trace->file, op, o, step, PREDICTED, start_s + ends[o] - predicted, predicted, job);
    }
    free(ends);
    trace->events += 2 * list->count;
    return status;
}

ot_status ot_trace_close(ot_trace *trace)
{
    if (trace == NULL)
        return OT_OK;
    fputs("\n]}\n", trace->file);
    int bad = ferror(trace->file);
    bad |= fclose(trace->file);
    ot_status status = OT_OK;
    if (bad != 0)
        status = ot_fail(OT_ERR_IO, "--trace: %s: cannot be written: %s", trace->path, strerror(errno));
    free(trace);
    return status;
}
