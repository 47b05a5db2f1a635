#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "io/text.h"
#include "tools/json.h"
#include "tools/plan_report.h"

uint64_t ot_phase_bytes(const ot_plan *plan, ot_list_kind kind, ot_tier tier)
{
    const ot_list *list = &plan->lists[kind];
    unsigned char *used = calloc(plan->place_count + 1, 1);
    if (used == NULL)
        return plan->peak_bytes[tier];
    for (size_t o = 0; o < list->count; o++)
        for (int i = 0; i < OT_OPERATION_PLACES; i++)
            if (list->operations[o].places[i] >= 0)
                used[list->operations[o].places[i]] = 1;
    uint64_t all = 0, bytes = 0;
    for (size_t p = 0; p < plan->place_count; p++) {
        const ot_place *place = &plan->places[p];
        if (place->tier != tier)
            continue;
        all += place->bytes;
        bytes += place->chunk >= 0 || used[p] ? place->bytes : 0;
    }
    free(used);
    uint64_t fixed = plan->peak_bytes[tier] > all ? plan->peak_bytes[tier] - all : 0;
    return bytes + fixed;
}

static json_t *model_json(const ot_job *job)
{
    const ot_model_config *c = &job->model->config;
    char name[PATH_MAX];
    snprintf(name, sizeof name, "%s", job->flags->model);
    return json_pack("{s:o, s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:b}", "params",
                     ot_json_count(job->model->params), "name", ot_clean_utf8(name), "architecture",
                     c->architecture, "layers", ot_json_count(c->L), "hidden", ot_json_count(c->C), "heads",
                     ot_json_count(c->NH), "kv_heads", ot_json_count(c->NKV), "head_dim",
                     ot_json_count(c->HD), "feed_forward", ot_json_count(c->F), "vocabulary",
                     ot_json_count(c->V), "tied", c->tied);
}

static json_t *tier_json(const ot_job *job, const ot_suggestions *suggestions, ot_tier tier)
{
    const ot_plan *plan = job->plan;
    uint64_t cap = tier == OT_TIER_DEVICE ? job->limits.device
                   : tier == OT_TIER_HOST ? job->limits.host
                                          : job->limits.nvme;
    json_t *object =
        json_pack("{s:o}", "budget", ot_json_count(plan != NULL ? job->training.budget[tier] : cap));
    if (plan == NULL) {
        if (suggestions->need[tier] > 0)
            json_object_set_new(object, "need", ot_json_count(suggestions->need[tier]));
        return object;
    }
    json_t *planes = json_object();
    for (int plane = 0; plane < OT_PLANES; plane++)
        json_object_set_new(planes, ot_plane_name((ot_plane)plane),
                            ot_json_count(plan->plane_bytes[tier][plane]));
    json_object_set_new(object, "peak", ot_json_count(plan->peak_bytes[tier]));
    json_object_set_new(object, "slots", ot_json_count(plan->slot_bytes[tier]));
    json_object_set_new(object, "planes", planes);
    return object;
}

static json_t *phase_json(const ot_job *job, ot_list_kind kind)
{
    const ot_list *list = &job->plan->lists[kind];
    json_t *object = json_object();
    for (int tier = 0; tier < OT_TIERS; tier++)
        json_object_set_new(object, ot_tier_name((ot_tier)tier),
                            ot_json_count(ot_phase_bytes(job->plan, kind, (ot_tier)tier)));
    ot_timeline timeline;
    if (ot_simulate(list, &job->training.rates, NULL, &timeline) == OT_OK)
        json_object_set_new(object, "predicted_s", json_real(timeline.seconds));
    json_object_set_new(object, "operations", ot_json_count(list->count));
    json_object_set_new(object, "nvme_read_bytes", ot_json_count(list->lane_bytes[OT_LANE_NVME_READ]));
    json_object_set_new(object, "nvme_write_bytes", ot_json_count(list->lane_bytes[OT_LANE_NVME_WRITE]));
    return object;
}

static json_t *phases_json(const ot_job *job)
{
    return json_pack("{s:o, s:o, s:o, s:o, s:o}", "load", phase_json(job, OT_LIST_LOAD), "step",
                     phase_json(job, ot_steady_kind(job->plan)), "eval", phase_json(job, OT_LIST_EVAL),
                     "save", phase_json(job, OT_LIST_SAVE), "resume", phase_json(job, OT_LIST_LOAD));
}

static json_t *lanes_json(const ot_job *job)
{
    const ot_list *list = ot_steady_list(job->plan);
    json_t *lanes = json_object();
    for (int lane = 0; lane < OT_LANES; lane++)
        json_object_set_new(lanes, ot_lane_name((ot_lane)lane),
                            json_pack("{s:o, s:f, s:f, s:f}", "bytes", ot_json_count(list->lane_bytes[lane]),
                                      "busy_s", job->timeline.busy_s[lane], "wait_s",
                                      job->timeline.wait_s[lane], "rate", job->training.rates.lane[lane]));
    return lanes;
}

static json_t *step_json(const ot_job *job)
{
    const ot_list *list = ot_steady_list(job->plan);
    const ot_training *t = &job->training;
    json_t *step = json_pack(
        "{s:o, s:o, s:o, s:o, s:f, s:f, s:s}", "h2d_bytes", ot_json_count(list->lane_bytes[OT_LANE_H2D]),
        "d2h_bytes", ot_json_count(list->lane_bytes[OT_LANE_D2H]), "nvme_read_bytes",
        ot_json_count(list->lane_bytes[OT_LANE_NVME_READ]), "nvme_write_bytes",
        ot_json_count(list->lane_bytes[OT_LANE_NVME_WRITE]), "flops", list->flops, "predicted_s",
        job->timeline.seconds, "bottleneck", ot_lane_name(job->timeline.bottleneck));
    json_object_set_new(step, "bound_s", json_real(job->timeline.bound_s));
    json_object_set_new(step, "tokens", ot_json_count(ot_job_step_tokens(job)));
    json_object_set_new(step, "batch_size", ot_json_count(t->B));
    json_object_set_new(step, "grad_accum", ot_json_count(t->M));
    json_object_set_new(step, "seq_len", ot_json_count(t->T));
    json_object_set_new(step, "prefetch_depth", json_integer(job->plan->prefetch_depth));
    json_object_set_new(step, "recompute", json_string(job->flags->recompute));
    json_object_set_new(step, "lanes", lanes_json(job));
    return step;
}

uint64_t ot_step_writes(const ot_job *job)
{
    return ot_job_machine_bytes(job, OT_TIER_NVME, ot_steady_list(job->plan)->lane_bytes[OT_LANE_NVME_WRITE]);
}

static json_t *wear_json(const ot_job *job)
{
    uint64_t bytes = ot_step_writes(job);
    json_t *wear = json_pack("{s:o, s:f}", "bytes_per_step", ot_json_count(bytes), "tbw", job->flags->tbw);
    json_object_set_new(wear, "steps_to_tbw",
                        bytes > 0 ? json_real(job->flags->tbw * 1e12 / (double)bytes) : json_null());
    return wear;
}

static json_t *data_json(const ot_job *job)
{
    const ot_data_stats *s = ot_dataset_stats(job->dataset);
    json_t *data = json_pack("{s:o, s:o, s:o, s:o, s:f, s:o, s:o, s:o, s:o}", "documents",
                             ot_json_count(s->documents), "sequences", ot_json_count(s->windows), "tokens",
                             ot_json_count(s->inputs), "targets", ot_json_count(s->trained), "efficiency",
                             s->efficiency, "longest", ot_json_count(s->longest), "truncated",
                             ot_json_count(s->truncated), "lost_tokens", ot_json_count(s->lost), "dropped",
                             ot_json_count(s->dropped_long + s->dropped_prompt + s->dropped_untrained));
    if (job->data.evaluation != NULL)
        json_object_set_new(data, "evaluation_sequences",
                            ot_json_count(ot_dataset_windows(job->data.evaluation)));
    return data;
}

static json_t *ranks_json(const ot_job *job)
{
    const uint64_t *bytes = job->plan->state_bytes;
    return json_pack("{s:i, s:i, s:{s:o, s:o, s:o}}", "count", job->training.ranks, "zero", job->plan->zero,
                     "state_bytes", "1", ot_json_count(bytes[1]), "2", ot_json_count(bytes[2]), "3",
                     ot_json_count(bytes[3]));
}

json_t *ot_plan_json(const ot_job *job, const ot_suggestions *suggestions)
{
    json_t *root = json_pack("{s:b, s:o}", "fits", job->plan != NULL, "model", model_json(job));
    json_t *tiers = json_object(), *texts = json_array();
    for (int tier = 0; tier < OT_TIERS; tier++)
        json_object_set_new(tiers, ot_tier_name((ot_tier)tier), tier_json(job, suggestions, (ot_tier)tier));
    json_object_set_new(root, "tiers", tiers);
    json_object_set_new(root, "data", data_json(job));
    if (job->plan != NULL) {
        json_object_set_new(root, "phases", phases_json(job));
        json_object_set_new(root, "step", step_json(job));
        json_object_set_new(root, "wear", wear_json(job));
        if (job->training.ranks > 1)
            json_object_set_new(root, "ranks", ranks_json(job));
    }
    if (suggestions->automatic_s > 0)
        json_object_set_new(root, "automatic_s", json_real(suggestions->automatic_s));
    for (size_t i = 0; i < suggestions->count; i++)
        json_array_append_new(texts, json_string(suggestions->texts[i]));
    json_object_set_new(root, "suggestions", texts);
    return root;
}
