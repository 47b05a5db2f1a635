#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "io/text.h"
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

static json_t *integer(uint64_t value)
{
    return json_integer((json_int_t)value);
}

static json_t *model_json(const ot_job *job)
{
    const ot_model_config *c = &job->model->config;
    char name[PATH_MAX];
    snprintf(name, sizeof name, "%s", job->flags->model);
    return json_pack("{s:o, s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:b}", "params",
                     integer(job->model->params), "name", ot_clean_utf8(name), "architecture",
                     c->architecture, "layers", integer(c->L), "hidden", integer(c->C), "heads",
                     integer(c->NH), "kv_heads", integer(c->NKV), "head_dim", integer(c->HD), "feed_forward",
                     integer(c->F), "vocabulary", integer(c->V), "tied", c->tied);
}

static json_t *tier_json(const ot_job *job, const ot_suggestions *suggestions, ot_tier tier)
{
    const ot_plan *plan = job->plan;
    uint64_t cap = tier == OT_TIER_DEVICE ? job->limits.device
                   : tier == OT_TIER_HOST ? job->limits.host
                                          : job->limits.nvme;
    json_t *object = json_pack("{s:o}", "budget", integer(plan != NULL ? job->training.budget[tier] : cap));
    if (plan == NULL) {
        if (suggestions->need[tier] > 0)
            json_object_set_new(object, "need", integer(suggestions->need[tier]));
        return object;
    }
    json_t *planes = json_object();
    for (int plane = 0; plane < OT_PLANES; plane++)
        json_object_set_new(planes, ot_plane_name((ot_plane)plane), integer(plan->plane_bytes[tier][plane]));
    json_object_set_new(object, "peak", integer(plan->peak_bytes[tier]));
    json_object_set_new(object, "slots", integer(plan->slot_bytes[tier]));
    json_object_set_new(object, "planes", planes);
    return object;
}

static json_t *phase_json(const ot_job *job, ot_list_kind kind)
{
    const ot_list *list = &job->plan->lists[kind];
    json_t *object = json_object();
    for (int tier = 0; tier < OT_TIERS; tier++)
        json_object_set_new(object, ot_tier_name((ot_tier)tier),
                            integer(ot_phase_bytes(job->plan, kind, (ot_tier)tier)));
    ot_timeline timeline;
    if (ot_simulate(list, &job->training.rates, NULL, &timeline) == OT_OK)
        json_object_set_new(object, "predicted_s", json_real(timeline.seconds));
    json_object_set_new(object, "operations", integer(list->count));
    json_object_set_new(object, "nvme_read_bytes", integer(list->lane_bytes[OT_LANE_NVME_READ]));
    json_object_set_new(object, "nvme_write_bytes", integer(list->lane_bytes[OT_LANE_NVME_WRITE]));
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
                            json_pack("{s:o, s:f, s:f, s:f}", "bytes", integer(list->lane_bytes[lane]),
                                      "busy_s", job->timeline.busy_s[lane], "wait_s",
                                      job->timeline.wait_s[lane], "rate", job->training.rates.lane[lane]));
    return lanes;
}

static json_t *step_json(const ot_job *job)
{
    const ot_list *list = ot_steady_list(job->plan);
    const ot_training *t = &job->training;
    json_t *step =
        json_pack("{s:o, s:o, s:o, s:o, s:f, s:f, s:s}", "h2d_bytes", integer(list->lane_bytes[OT_LANE_H2D]),
                  "d2h_bytes", integer(list->lane_bytes[OT_LANE_D2H]), "nvme_read_bytes",
                  integer(list->lane_bytes[OT_LANE_NVME_READ]), "nvme_write_bytes",
                  integer(list->lane_bytes[OT_LANE_NVME_WRITE]), "flops", list->flops, "predicted_s",
                  job->timeline.seconds, "bottleneck", ot_lane_name(job->timeline.bottleneck));
    json_object_set_new(step, "bound_s", json_real(job->timeline.bound_s));
    json_object_set_new(step, "tokens", integer((uint64_t)t->B * t->M * t->T));
    json_object_set_new(step, "batch_size", integer(t->B));
    json_object_set_new(step, "grad_accum", integer(t->M));
    json_object_set_new(step, "seq_len", integer(t->T));
    json_object_set_new(step, "prefetch_depth", json_integer(job->plan->prefetch_depth));
    json_object_set_new(step, "recompute", json_string(job->flags->recompute));
    json_object_set_new(step, "lanes", lanes_json(job));
    return step;
}

static json_t *wear_json(const ot_job *job)
{
    uint64_t bytes = ot_steady_list(job->plan)->lane_bytes[OT_LANE_NVME_WRITE];
    json_t *wear = json_pack("{s:o, s:f}", "bytes_per_step", integer(bytes), "tbw", job->flags->tbw);
    json_object_set_new(wear, "steps_to_tbw",
                        bytes > 0 ? json_real(job->flags->tbw * 1e12 / (double)bytes) : json_null());
    return wear;
}

static json_t *data_json(const ot_job *job)
{
    const ot_data_stats *s = ot_dataset_stats(job->dataset);
    json_t *data = json_pack(
        "{s:o, s:o, s:o, s:o, s:f, s:o, s:o, s:o, s:o}", "documents", integer(s->documents), "sequences",
        integer(s->windows), "tokens", integer(s->inputs), "targets", integer(s->trained), "efficiency",
        s->efficiency, "longest", integer(s->longest), "truncated", integer(s->truncated), "lost_tokens",
        integer(s->lost), "dropped", integer(s->dropped_long + s->dropped_prompt + s->dropped_untrained));
    if (job->data.evaluation != NULL)
        json_object_set_new(data, "evaluation_sequences", integer(ot_dataset_windows(job->data.evaluation)));
    return data;
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
    }
    if (suggestions->automatic_s > 0)
        json_object_set_new(root, "automatic_s", json_real(suggestions->automatic_s));
    for (size_t i = 0; i < suggestions->count; i++)
        json_array_append_new(texts, json_string(suggestions->texts[i]));
    json_object_set_new(root, "suggestions", texts);
    return root;
}
