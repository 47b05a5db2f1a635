/* The trainer: opens everything in the order of dependence, runs the plan's lists, and decides between two of them what the
 * next update does. */
#include "engine/trainer_state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/training.h"
#include "io/clock.h"
#include "io/log.h"

void *ot_trainer_at(const ot_trainer *t, int32_t place)
{
    return place >= 0 ? ot_mover_address(t->mover, place) : NULL;
}

/* ---- for the mover ---- */

static ot_status run_list(ot_trainer *t, ot_list_kind kind)
{
    t->updates_sent = 0;
    return ot_mover_run(t->mover, kind);
}

static const void *on_data(void *context)
{
    return ((ot_trainer *)context)->data;
}

static void on_stopped(void *context)
{
    ot_group_cancel(((ot_trainer *)context)->training.group);
}

/* Set once at open; the names are the layers' with the plane's. */
static const char *on_chunk_name(void *context, const ot_chunk *chunk, ot_plane plane)
{
    (void)plane;
    return ((ot_trainer *)context)->training.model->layers[chunk->layer].name;
}

/* ---- opening ---- */

/* The table of the rotary embedding, made on the host. */
static ot_status fill_rope(ot_trainer *t, float *device_table, uint64_t bytes)
{
    const ot_training *training = &t->training;
    const ot_stream_options options = {.kind = OT_STREAM_H2D, .name = "trainer"};
    ot_stream *stream;
    void *table;
    OT_TRY(ot_arena_take(t->arena, bytes, OT_PAGE_BYTES, &table));
    ot_rope_table(&training->model->config.rope, training->model->config.HD, training->T, table);
    OT_TRY(ot_stream_open(t->device, &options, &stream));
    ot_copy_h2d(stream, device_table, table, bytes);
    ot_status status = ot_stream_synchronize(stream);
    ot_stream_close(stream);
    t->compute.rope = device_table;
    return status;
}

static ot_status open_memory(ot_trainer *t)
{
    const ot_training *training = &t->training;
    void *block;
    OT_TRY(ot_host_open(training->budget[OT_TIER_HOST], &t->host));
    ot_host_prefer(t->host, t->numa_node);
    OT_TRY(ot_arena_open(t->host, "trainer", ot_training_host_bytes(training, t->plan->chunk_params),
                         OT_PAGES_TRANSPARENT, &t->arena));
    ot_arena *arena = t->arena;
    t->pinned = ot_device_pin(t->device, ot_arena_base(arena), ot_arena_bytes(arena)) == OT_OK;
    OT_TRY(ot_arena_take(arena, OT_PAGE_BYTES, OT_PAGE_BYTES, &block));
    t->numbers = block;
    *t->numbers = (ot_trainer_numbers){0};
    OT_TRY(ot_arena_take(arena, ot_training_data_bytes(training), OT_PAGE_BYTES, &block));
    t->data = block;
    OT_TRY(ot_arena_take(arena, t->plan->chunk_params * sizeof(float), OT_PAGE_BYTES, &block));
    t->scratch = block;
    if (ot_training_drops_remainder(training)) {
        OT_TRY(ot_arena_take(arena, t->plan->chunk_params * sizeof(int16_t), OT_PAGE_BYTES, &block));
        t->remainder = block;
    }
    uint64_t incoming_bytes = ot_training_incoming_bytes(training, t->plan->chunk_params);
    for (int i = 0; i < 2 && incoming_bytes > 0; i++)
        OT_TRY(ot_arena_take(arena, incoming_bytes, OT_PAGE_BYTES, &t->incoming[i]));
    if (ot_training_is_factored(training)) {
        uint64_t bytes = ot_factored_lay_out(training->model, t->plan->chunk_params, NULL, &t->factored);
        OT_TRY(ot_arena_take(arena, bytes, OT_PAGE_BYTES, &block));
        ot_factored_lay_out(training->model, t->plan->chunk_params, block, &t->factored);
        memset(block, 0, bytes);
    }
    uint64_t rope_bytes = ot_training_rope_bytes(training), logits_bytes = ot_training_logits_bytes(training);
    OT_TRY(ot_device_arena_open(t->device, "trainer", rope_bytes + logits_bytes + OT_PAGE_BYTES, &block));
    t->device_numbers = block;
    t->logits = (float *)(void *)((char *)block + OT_PAGE_BYTES);
    if (rope_bytes == 0)
        return OT_OK;
    return fill_rope(t, (float *)(void *)((char *)t->logits + logits_bytes), rope_bytes);
}

static ot_status open_devices(ot_trainer *t)
{
    const ot_training *training = &t->training;
    const ot_device_options options = {
        .kind = training->device,
        .ordinal = training->ordinal,
        .ranks = training->ranks,
        .memory_bytes = training->budget[OT_TIER_DEVICE],
        .threads = training->threads,
        .jitter_seed = training->jitter_seed,
        .jitter_ns = training->jitter_ns,
    };
    OT_TRY(ot_device_open(&options, &t->device));
    ot_device_info info;
    ot_device_query(t->device, &info);
    t->cpu = t->device;
    t->numa_node = info.numa_node;
    if (!info.host_memory) {
        const ot_device_options lane = {.kind = "cpu",
                                        .memory_bytes = OT_HUGE_PAGE_BYTES,
                                        .threads = training->threads,
                                        .is_near = info.numa_node >= 0,
                                        .numa_node = info.numa_node};
        if (info.numa_node >= 0)
            ot_log(OT_LOG_INFO,
                   "%s at %s is nearest to memory node %d: pinned memory and CPU threads go there first",
                   info.name, info.address, info.numa_node);
        OT_TRY(ot_device_open(&lane, &t->cpu));
    }
    const ot_stream_options stream = {.kind = OT_STREAM_UPDATE, .name = "update"};
    return ot_stream_open(t->cpu, &stream, &t->update_stream);
}

static ot_status open_mover(ot_trainer *t)
{
    const ot_mover_options options = {
        .plan = t->plan,
        .device = t->device,
        .host = t->host,
        .directories = t->training.directories,
        .directory_count = t->training.directory_count,
        .io = t->training.io,
        .chunk_name = on_chunk_name,
        .compute = ot_trainer_device_work,
        .cpu = ot_trainer_chunk_work,
        .data = on_data,
        .stopped = on_stopped,
        .context = t,
    };
    return ot_mover_open(&options, &t->mover);
}

static ot_status open_ranks(ot_trainer *t)
{
    const ot_training *training = &t->training;
    if (training->ranks <= 1)
        return OT_OK;
    OT_ASSERT(ot_group_size(training->group) == training->ranks &&
              ot_group_rank(training->group) == training->rank);
    t->sums = calloc(1 + training->model->layer_count, sizeof *t->sums);
    return t->sums != NULL ? OT_OK : ot_fail(OT_ERR_INTERNAL, "out of memory for a trainer");
}

static ot_status open_trainer(ot_trainer *t)
{
    const ot_model *model = t->training.model;
    t->layer_first = calloc(model->layer_count, sizeof *t->layer_first);
    if (t->layer_first == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for a trainer");
    OT_TRY(open_ranks(t));
    for (size_t l = 1; l < model->layer_count; l++)
        t->layer_first[l] = t->layer_first[l - 1] + model->layers[l - 1].params;
    OT_TRY(open_devices(t));
    OT_TRY(ot_group_attach(t->training.group, t->device));
    t->training.sizing_device = t->device;
    OT_TRY(ot_training_plan(&t->training, &t->plan));
    OT_TRY(ot_trainer_compare_plans(t));
    t->compute = ot_training_compute(&t->training, t->device);
    t->compute.workspace_bytes = t->plan->places[t->plan->workspace_place].bytes;
    OT_TRY(open_memory(t));
    OT_TRY(open_mover(t));
    ot_loss_scale_init(&t->loss_scale, t->training.dtype == OT_FP16 ? t->training.loss_scale : 1);
    return run_list(t, OT_LIST_LOAD);
}

ot_status ot_trainer_open(const ot_training *training, ot_trainer **out)
{
    ot_trainer *t = calloc(1, sizeof *t);
    if (t == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for a trainer");
    t->training = *training;
    ot_status status = open_trainer(t);
    if (status != OT_OK) {
        ot_trainer_close(t);
        return status;
    }
    *out = t;
    return OT_OK;
}

void ot_trainer_close(ot_trainer *t)
{
    if (t == NULL)
        return;
    ot_mover_close(t->mover);
    ot_stream_close(t->update_stream);
    if (t->cpu != t->device)
        ot_device_close(t->cpu);
    ot_group_detach(t->training.group);
    if (t->pinned)
        ot_device_unpin(t->device, ot_arena_base(t->arena));
    ot_device_close(t->device);
    ot_host_close(t->host);
    ot_plan_free(t->plan);
    free(t->layer_first);
    free(t->sums);
    free(t);
}

int32_t *ot_trainer_data(ot_trainer *t)
{
    return t->data;
}

/* ---- steps ---- */

/* Adds the squares of a layer's scaled gradient to a sum. */
static double add_squares(const ot_trainer *t, size_t l, double sum)
{
    return t->sums != NULL ? sum + t->sums[1 + l] : ot_trainer_own_squares(t, l, sum);
}

/* Sum of squares of the whole scaled gradient, layer after layer: the same for every placement and chunk size. */
static double grad_square_sum(const ot_trainer *t)
{
    double sum = 0;
    for (size_t l = 0; l < t->training.model->layer_count; l++)
        sum = add_squares(t, l, sum);
    return sum;
}

/* Backward goes from the last layer to the first: the last one that is bad was the first to be. */
static const char *first_not_finite(const ot_trainer *t)
{
    size_t l = t->training.model->layer_count - 1;
    while (l > 0 && isfinite(add_squares(t, l, 0)))
        l--;
    return t->training.model->layers[l].name;
}

static ot_status not_finite(const ot_trainer *t, double loss)
{
    static const char advice[] = "is not finite; lower --lr, or use --nan skip to pass over such steps";
    if (!isfinite(loss))
        return ot_fail(OT_ERR_NUMERIC, "the loss %s", advice);
    return ot_fail(OT_ERR_NUMERIC, "the gradient of %s %s", first_not_finite(t), advice);
}

/* The scale's verdict on a step; where it ends the run for its gradient, with the layer. */
static ot_status judge_scale(ot_trainer *t, const ot_step_result *result)
{
    int loss_finite = isfinite(result->loss);
    ot_status status = ot_loss_scale_step(&t->loss_scale, loss_finite, isfinite(result->grad_norm));
    if (status == OT_OK || !loss_finite)
        return status;
    return ot_fail(status, "%s; the gradient of %s was the first", ot_error_text(), first_not_finite(t));
}

/* What the update will do with a gradient of this scale and clip factor. */
static void prepare_update(ot_trainer *t, double lr, double scale, double clip_factor, int skip)
{
    ot_update_step *u = &t->numbers->updates[0];
    u->skip = skip;
    u->grad_scale = (float)(clip_factor / scale);
    u->lr = (float)lr;
    if (skip)
        return;
    u->number++;
    double k = (double)u->number;
    u->bias1 = (float)(1 - pow(t->training.beta1, k));
    u->bias2 = (float)(1 - pow(t->training.beta2, k));
    u->beta2_adafactor = (float)(1 - pow(k, -0.8));
}

static void defer_update(ot_trainer *t)
{
    t->numbers->updates[1] = t->numbers->updates[0];
}

/* Reads the phases off the spans of the list that has just run. */
static void measure_phases(const ot_trainer *t, ot_list_kind kind, ot_step_result *result)
{
    const ot_list *list = &t->plan->lists[kind];
    const ot_span *spans = ot_mover_spans(t->mover);
    int64_t forward_end = 0, forward_busy = 0, end = 0;
    for (size_t i = 0; i < list->count; i++) {
        if (list->operations[i].kind == OT_OP_FORWARD) {
            forward_busy += spans[i].end_ns - spans[i].start_ns;
            forward_end = spans[i].end_ns > forward_end ? spans[i].end_ns : forward_end;
        }
        end = spans[i].end_ns > end ? spans[i].end_ns : end;
    }
    result->seconds = (double)end * 1e-9;
    result->forward_s = (double)forward_end * 1e-9;
    result->backward_s = (double)(end - forward_end) * 1e-9;
    result->update_exposed_s = kind == OT_LIST_STEADY ? (double)(forward_end - forward_busy) * 1e-9 : 0;
}

/* Judges the gradient: the norm, the clip factor, and whether the step counts. */
static ot_status judge(ot_trainer *t, ot_step_result *result)
{
    double scale = result->loss_scale;
    result->grad_norm = sqrt(grad_square_sum(t)) / scale;
    result->clip_factor = 1;
    double limit = t->training.max_grad_norm;
    if (limit > 0 && isfinite(result->grad_norm))
        result->clip_factor = fmin(1, limit / (result->grad_norm + 1e-6));
    int finite = isfinite(result->grad_norm) && isfinite(result->loss);
    result->skipped = !finite;
    int pass_over = !isfinite(result->loss) && t->training.skip_not_finite;
    if (t->training.dtype == OT_FP16 && !pass_over)
        return judge_scale(t, result);
    if (finite || t->training.skip_not_finite)
        return OT_OK;
    return not_finite(t, result->loss);
}

ot_status ot_trainer_step(ot_trainer *t, double lr, uint64_t trained_tokens, ot_step_result *result)
{
    OT_ASSERT(!t->training.inference);
    OT_TRY(ot_trainer_sum_tokens(t, &trained_tokens));
    *result = (ot_step_result){.trained_tokens = trained_tokens,
                               .loss_scale = t->training.dtype == OT_FP16 ? t->loss_scale.scale : 1};
    t->grad_scale = (float)(result->loss_scale / (double)trained_tokens);
    defer_update(t);
    if (t->plan->update_in_backward)
        prepare_update(t, lr, 1, 1, 0);
    ot_list_kind kind = t->update_due ? OT_LIST_STEADY : OT_LIST_FIRST;
    OT_TRY(run_list(t, kind));
    t->update_due = 0;
    result->list = kind;
    result->stats = ot_mover_statistics(t->mover);
    OT_TRY(ot_trainer_sum_over_ranks(t));
    result->loss = t->numbers->loss_sum / (double)trained_tokens;
    measure_phases(t, kind, result);
    OT_TRY(judge(t, result));
    if (!t->plan->update_in_backward)
        prepare_update(t, lr, result->loss_scale, result->clip_factor, result->skipped);
    t->update_due = t->plan->deferred_chunks > 0;
    return OT_OK;
}

ot_status ot_trainer_drain(ot_trainer *t)
{
    if (!t->update_due)
        return OT_OK;
    t->update_due = 0;
    defer_update(t);
    return run_list(t, OT_LIST_DRAIN);
}

ot_status ot_trainer_evaluate(ot_trainer *t, uint64_t trained_tokens, double *loss)
{
    OT_TRY(ot_trainer_drain(t));
    OT_TRY(run_list(t, OT_LIST_EVAL));
    OT_TRY(ot_group_sum(t->training.group, "loss", &t->numbers->loss_sum, 1));
    *loss = t->numbers->loss_sum / (double)trained_tokens;
    return OT_OK;
}

ot_status ot_trainer_logits(ot_trainer *t, size_t sequence, size_t row, float *logits)
{
    OT_ASSERT(sequence < t->training.B && row < t->training.T);
    OT_TRY(ot_trainer_drain(t));
    t->logits_row = sequence * t->training.T + row;
    t->host_logits = logits;
    ot_status status = run_list(t, OT_LIST_LOGITS);
    t->host_logits = NULL;
    return status;
}

ot_status ot_trainer_save(ot_trainer *t, const ot_sink *sink)
{
    OT_TRY(ot_trainer_drain(t));
    t->sink = sink;
    return run_list(t, OT_LIST_SAVE);
}

ot_trainer_state ot_trainer_get_state(const ot_trainer *t)
{
    return (ot_trainer_state){t->numbers->updates[0].number, t->loss_scale};
}

void ot_trainer_set_state(ot_trainer *t, const ot_trainer_state *state)
{
    t->numbers->updates[0] = (ot_update_step){.number = state->updates};
    t->loss_scale = state->loss_scale;
}

float *ot_trainer_factors(ot_trainer *t, size_t *count)
{
    *count = t->factored.moments != NULL ? ot_factored_count(t->training.model) : 0;
    return t->factored.moments;
}

ot_status ot_trainer_time_kernels(ot_trainer *t, double *seconds)
{
    const ot_list *list = &t->plan->lists[OT_LIST_STEADY];
    const ot_stream_options options = {.kind = OT_STREAM_COMPUTE, .name = "kernels alone"};
    ot_stream *stream;
    OT_TRY(ot_stream_open(t->device, &options, &stream));
    ot_status status = OT_OK;
    int64_t start = ot_clock_ns();
    t->updates_sent = 0;
    for (size_t i = 0; i < list->count && status == OT_OK; i++) {
        const ot_operation *op = &list->operations[i];
        if (op->lane == OT_LANE_COMPUTE)
            status = ot_trainer_device_work(t, op, stream);
        else if (op->lane == OT_LANE_CPU) {
            status = ot_stream_synchronize(stream);
            if (status == OT_OK)
                status = ot_trainer_chunk_work(t, op);
        }
    }
    if (status == OT_OK)
        status = ot_stream_synchronize(stream);
    *seconds = ot_seconds(ot_clock_ns() - start);
    ot_stream_close(stream);
    return status;
}

const ot_plan *ot_trainer_plan(const ot_trainer *t)
{
    return t->plan;
}

const ot_mover *ot_trainer_mover(const ot_trainer *t)
{
    return t->mover;
}

uint64_t ot_trainer_peak_bytes(const ot_trainer *t, ot_tier tier)
{
    switch (tier) {
    case OT_TIER_DEVICE:
        return ot_device_peak_bytes(t->device);
    case OT_TIER_HOST:
        return ot_host_peak_bytes(t->host);
    default:
        return t->plan->peak_bytes[OT_TIER_NVME];
    }
}
