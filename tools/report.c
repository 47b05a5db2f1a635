/* The report at the end of a run. */
#include <inttypes.h>
#include <sys/resource.h>

#include "io/clock.h"
#include "io/text.h"
#include "tools/metrics.h"
#include "tools/plan_report.h"

/* The lane with the most work. */
static ot_lane busiest(const ot_metrics *metrics)
{
    int found = OT_LANE_COMPUTE;
    for (int lane = 0; lane < OT_LANES; lane++)
        if (metrics->busy_s[lane] > metrics->busy_s[found])
            found = lane;
    return (ot_lane)found;
}

static uint64_t resident_peak_bytes(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (uint64_t)usage.ru_maxrss * 1024;
}

static void print_lane(const ot_metrics *metrics, ot_lane lane, FILE *out)
{
    char moved[OT_SIZE_TEXT_BYTES] = "-", planned[OT_SIZE_TEXT_BYTES] = "-", stall[32] = "-";
    double steps = metrics->steps > 0 ? (double)metrics->steps : 1;
    if (lane != OT_LANE_COMPUTE) {
        ot_format_size(metrics->moved[lane], moved);
        ot_format_size(metrics->planned[lane], planned);
        snprintf(stall, sizeof stall, "%.3g s", metrics->stall_s[lane] / steps);
    }
    fprintf(out, "  %-16s %10.3g s %5.0f %% %12s %14s %14s\n", ot_lane_words(lane),
            metrics->busy_s[lane] / steps,
            metrics->list_s > 0 ? 100 * metrics->busy_s[lane] / metrics->list_s : 0, stall, moved, planned);
}

static void print_lanes(const ot_metrics *metrics, FILE *out)
{
    fprintf(out, "\n  %-16s %12s %7s %12s %14s %14s\n", "lane", "busy a step", "in use", "holds up", "moved",
            "planned");
    for (int lane = 0; lane < OT_LANES; lane++) {
        if (metrics->busy_s[lane] <= 0 && metrics->planned[lane] == 0)
            continue;
        print_lane(metrics, (ot_lane)lane, out);
    }
}

static void print_peaks(const ot_trainer *trainer, FILE *out)
{
    const ot_plan *plan = ot_trainer_plan(trainer);
    char planned[OT_SIZE_TEXT_BYTES], measured[OT_SIZE_TEXT_BYTES];
    fprintf(out, "\n  %-16s %14s %14s\n", "peak", "measured", "planned");
    for (int tier = 0; tier < OT_TIERS; tier++)
        if (plan->peak_bytes[tier] > 0)
            fprintf(out, "  %-16s %14s %14s\n", ot_tier_name((ot_tier)tier),
                    ot_format_size(ot_trainer_peak_bytes(trainer, (ot_tier)tier), measured),
                    ot_format_size(plan->peak_bytes[tier], planned));
    fprintf(out, "  %-16s %14s\n", "process", ot_format_size(resident_peak_bytes(), measured));
}

static void print_speed(const ot_metrics *metrics, FILE *out)
{
    const ot_job *job = metrics->job;
    double steps = (double)metrics->steps, step_s = metrics->step_s / steps;
    char rate[OT_NUMBER_TEXT_BYTES], gemm[OT_NUMBER_TEXT_BYTES];
    fprintf(out, "\nreport    %" PRIu64 " step%s, %.4g s a step (predicted %.4g s), %s tokens/s",
            metrics->steps, metrics->steps == 1 ? "" : "s", step_s, job->timeline.seconds,
            ot_format_number((double)ot_job_step_tokens(job) * steps / metrics->step_s, rate));
    if (job->gemm_rate > 0)
        fprintf(out, ", %.1f %% of the measured %s GFLOP/s",
                100 * ot_job_model_flops(job) / step_s / job->gemm_rate,
                ot_format_number(job->gemm_rate / 1e9, gemm));
    fputc('\n', out);
    if (metrics->state->skipped > 0)
        fprintf(out, "skipped   %" PRIu64 " steps whose gradient was not finite\n", metrics->state->skipped);
    fprintf(out, "slowest   %s; data %.3g s a step\n", ot_lane_words(busiest(metrics)),
            metrics->data_s / steps);
}

void ot_report_print(const ot_metrics *metrics, const ot_trainer *trainer, FILE *out)
{
    if (metrics->steps > 0) {
        print_speed(metrics, out);
        print_lanes(metrics, out);
    } else
        fprintf(out, "\nreport    no step was made\n");
    print_peaks(trainer, out);
    fputc('\n', out);
}

json_t *ot_report_json(const ot_metrics *metrics, const ot_trainer *trainer)
{
    const ot_plan *plan = ot_trainer_plan(trainer);
    json_t *lanes = json_object(), *peaks = json_object();
    for (int lane = 0; lane < OT_LANES; lane++)
        json_object_set_new(lanes, ot_lane_name((ot_lane)lane),
                            json_pack("{s:f, s:f, s:I, s:I}", "busy_s", metrics->busy_s[lane], "stall_s",
                                      metrics->stall_s[lane], "moved_bytes", (json_int_t)metrics->moved[lane],
                                      "planned_bytes", (json_int_t)metrics->planned[lane]));
    for (int tier = 0; tier < OT_TIERS; tier++)
        json_object_set_new(peaks, ot_tier_name((ot_tier)tier),
                            json_pack("{s:I, s:I}", "measured",
                                      (json_int_t)ot_trainer_peak_bytes(trainer, (ot_tier)tier), "planned",
                                      (json_int_t)plan->peak_bytes[tier]));
    double steps = metrics->steps > 0 ? (double)metrics->steps : 1;
    return json_pack("{s:I, s:I, s:f, s:f, s:f, s:s, s:I, s:o, s:o}", "steps", (json_int_t)metrics->steps,
                     "skipped", (json_int_t)metrics->state->skipped, "step_s", metrics->step_s / steps,
                     "predicted_s", metrics->job->timeline.seconds, "tok_per_s",
                     metrics->step_s > 0 ? (double)ot_job_step_tokens(metrics->job) * steps / metrics->step_s
                                         : 0,
                     "bottleneck", ot_lane_name(busiest(metrics)), "process_peak_bytes",
                     (json_int_t)resident_peak_bytes(), "lanes", lanes, "peaks", peaks);
}
