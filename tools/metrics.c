#include "tools/metrics.h"

#include <math.h>

#include "io/clock.h"
#include "tools/json.h"
#include "tools/stalls.h"

void ot_metrics_init(ot_metrics *metrics, const ot_job *job, ot_run_state *state)
{
    *metrics =
        (ot_metrics){.job = job, .state = state, .earlier_s = state->seconds, .start_ns = ot_clock_ns()};
}

void ot_metrics_pause(ot_metrics *metrics, ot_pause pause, double seconds)
{
    metrics->pause_s[pause] = seconds;
}

/* Seconds of the pauses that are still to come, each as long as the last one of its kind. The last step has all of them. */
static double pauses_to_come(const ot_metrics *metrics)
{
    double sum = 0;
    for (int pause = 0; pause < OT_PAUSES; pause++) {
        uint64_t every = metrics->every[pause];
        if (every > 0)
            sum += metrics->pause_s[pause] *
                   (double)((metrics->job->total_steps + every - 1) / every - metrics->state->step / every);
    }
    return sum;
}

/* Seconds of a step, by the last ones. The first step warms caches up: it counts while there is no other. */
static double window_mean(const ot_metrics *metrics)
{
    uint64_t last = metrics->steps, count = last < OT_WINDOW_STEPS ? last : OT_WINDOW_STEPS;
    double sum = 0;
    if (count == last && count > 1)
        count--;
    for (uint64_t i = 0; i < count; i++)
        sum += metrics->window[(last - 1 - i) % OT_WINDOW_STEPS];
    return sum / (double)count;
}

/* What the lanes did in the step, and in the row what they moved and held up. */
static void add_lanes(ot_metrics *metrics, const ot_trainer *trainer, const ot_step_result *result,
                      ot_row *row)
{
    const ot_list *list = &ot_trainer_plan(trainer)->lists[result->list];
    double stall_s[OT_LANES] = {0};
    ot_stalls_add(list, ot_mover_spans(ot_trainer_mover(trainer)), stall_s);
    for (int lane = 0; lane < OT_LANES; lane++) {
        metrics->busy_s[lane] += ot_seconds(result->stats.busy_ns[lane]);
        metrics->stall_s[lane] += stall_s[lane];
        metrics->moved[lane] += result->stats.bytes[lane];
        metrics->planned[lane] += list->lane_bytes[lane];
    }
    const uint64_t *bytes = result->stats.bytes;
    row->h2d_bytes = bytes[OT_LANE_H2D];
    row->d2h_bytes = bytes[OT_LANE_D2H];
    row->nvme_read_bytes = bytes[OT_LANE_NVME_READ];
    row->nvme_write_bytes = bytes[OT_LANE_NVME_WRITE];
    row->wait_h2d_s = stall_s[OT_LANE_H2D] + stall_s[OT_LANE_D2H];
    row->wait_nvme_s = stall_s[OT_LANE_NVME_READ] + stall_s[OT_LANE_NVME_WRITE];
    row->wait_cpu_s = stall_s[OT_LANE_CPU];
    row->device_peak_bytes = ot_trainer_peak_bytes(trainer, OT_TIER_DEVICE);
    row->host_peak_bytes = ot_trainer_peak_bytes(trainer, OT_TIER_HOST);
}

static void add_result(ot_metrics *metrics, const ot_step_result *result, ot_row *row)
{
    metrics->state->skipped += (uint64_t)(result->skipped != 0);
    metrics->state->loss = result->loss;
    metrics->list_s += result->seconds;
    row->loss = result->loss;
    row->grad_norm = result->grad_norm;
    row->clip_factor = result->clip_factor;
    row->loss_scale = result->loss_scale;
    row->skipped = result->skipped != 0;
    row->fwd_s = result->forward_s;
    row->bwd_s = result->backward_s;
    row->opt_exposed_s = result->update_exposed_s;
}

void ot_metrics_add(ot_metrics *metrics, const ot_trainer *trainer, const ot_step_result *result, double lr,
                    uint64_t trained_tokens, double step_s, double data_s, ot_row *row)
{
    const ot_job *job = metrics->job;
    uint64_t tokens = ot_job_step_tokens(job);
    *row = (ot_row){
        .learning_rate = lr, .total_steps = job->total_steps, .step_s = step_s, .wait_data_s = data_s};
    add_lanes(metrics, trainer, result, row);
    add_result(metrics, result, row);
    metrics->window[metrics->steps % OT_WINDOW_STEPS] = step_s;
    metrics->steps++;
    ot_run_state *state = metrics->state;
    state->step++;
    state->tokens += tokens;
    state->trained_tokens += trained_tokens;
    state->seconds = metrics->earlier_s + ot_seconds(ot_clock_ns() - metrics->start_ns);
    state->nvme_bytes += (double)job->local_ranks * (double)result->stats.bytes[OT_LANE_NVME_WRITE];
    metrics->step_s += step_s;
    metrics->data_s += data_s;
    double mean = window_mean(metrics);
    row->step = state->step;
    row->tokens = state->tokens;
    row->trained_tokens = state->trained_tokens;
    row->epoch = (double)state->step / (double)job->steps_per_epoch;
    row->tok_per_s = (double)tokens / mean;
    row->mfu = job->gemm_rate > 0 ? ot_job_model_flops(job) / mean / job->gemm_rate : 0;
    row->elapsed_s = state->seconds;
    row->eta_s = mean * (double)(job->total_steps - state->step) + pauses_to_come(metrics);
}

/* JSON has neither infinities nor NaN. */
json_t *ot_row_json(const ot_row *row)
{
    const struct {
        const char *name;
        json_t *value;
    } fields[] = {
        {"step", ot_json_count(row->step)},
        {"total_steps", ot_json_count(row->total_steps)},
        {"epoch", ot_json_real(row->epoch)},
        {"tokens", ot_json_count(row->tokens)},
        {"trained_tokens", ot_json_count(row->trained_tokens)},
        {"loss", ot_json_real(row->loss)},
        {"grad_norm", ot_json_real(row->grad_norm)},
        {"learning_rate", ot_json_real(row->learning_rate)},
        {"clip_factor", ot_json_real(row->clip_factor)},
        {"loss_scale", ot_json_real(row->loss_scale)},
        {"skipped", json_boolean(row->skipped)},
        {"step_s", ot_json_real(row->step_s)},
        {"fwd_s", ot_json_real(row->fwd_s)},
        {"bwd_s", ot_json_real(row->bwd_s)},
        {"opt_exposed_s", ot_json_real(row->opt_exposed_s)},
        {"tok_per_s", ot_json_real(row->tok_per_s)},
        {"mfu", row->mfu > 0 ? ot_json_real(row->mfu) : json_null()},
        {"h2d_bytes", ot_json_count(row->h2d_bytes)},
        {"d2h_bytes", ot_json_count(row->d2h_bytes)},
        {"nvme_read_bytes", ot_json_count(row->nvme_read_bytes)},
        {"nvme_write_bytes", ot_json_count(row->nvme_write_bytes)},
        {"wait_h2d_s", ot_json_real(row->wait_h2d_s)},
        {"wait_nvme_s", ot_json_real(row->wait_nvme_s)},
        {"wait_cpu_s", ot_json_real(row->wait_cpu_s)},
        {"wait_data_s", ot_json_real(row->wait_data_s)},
        {"device_peak_bytes", ot_json_count(row->device_peak_bytes)},
        {"host_peak_bytes", ot_json_count(row->host_peak_bytes)},
        {"elapsed_s", ot_json_real(row->elapsed_s)},
        {"eta_s", ot_json_real(row->eta_s)},
    };
    json_t *object = json_object();
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        json_object_set_new(object, fields[i].name, fields[i].value);
    return object;
}
