/* From flags to a training: formats, data, steps, rates. */
#include "tools/job.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "io/log.h"
#include "io/path.h"
#include "io/text.h"
#include "kernels/device.h"
#include "tools/ranks.h"

/* ---- model and formats ---- */

ot_status ot_job_find_model(const char *model, ot_hf_config **config, ot_model_config *out)
{
    *config = NULL;
    if (!ot_path_is_folder(model))
        return ot_model_preset(model, out);
    OT_TRY(ot_hf_config_open(model, config));
    *out = *ot_hf_config_model(*config);
    return OT_OK;
}

static ot_status open_model(ot_job *job)
{
    const ot_train_flags *flags = job->flags;
    ot_model_config config;
    if (flags->model == NULL)
        return ot_fail(OT_ERR_USAGE,
                       "--model is missing; for example --model tiny, or --model 7b --gpu-mem 24G");
    OT_TRY(ot_job_find_model(flags->model, &job->config, &config));
    if (job->config != NULL)
        job->model_directory = flags->model;
    OT_TRY(ot_model_open(&config, &job->model));
    if ((uint64_t)flags->seq_len > config.positions)
        return ot_fail(OT_ERR_USAGE, "--seq-len: %" PRId64 " tokens; %s has %zu positions", flags->seq_len,
                       flags->model, config.positions);
    return OT_OK;
}

static ot_optimizer optimizer_of(const char *name)
{
    static const char *const names[] = {"adamw", "adam", "sgd", "lion", "adafactor"};
    static const ot_optimizer kinds[] = {OT_OPTIMIZER_ADAMW, OT_OPTIMIZER_ADAM, OT_OPTIMIZER_SGD,
                                         OT_OPTIMIZER_LION, OT_OPTIMIZER_ADAFACTOR};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(name, names[i]) == 0)
            return kinds[i];
    return OT_OPTIMIZER_ADAMW;
}

static ot_status choose_formats(ot_job *job)
{
    const ot_train_flags *flags = job->flags;
    ot_training *t = &job->training;
    t->dtype = strcmp(flags->precision, "auto") == 0 ? OT_BF16 : ot_dtype_find(flags->precision);
    t->state_dtype = ot_dtype_find(flags->state_dtype);
    t->grad_dtype = strcmp(flags->grad_dtype, "32") == 0 || t->dtype == OT_FP32 ? OT_FP32 : t->dtype;
    if (flags->loss_scale != OT_AUTO_REAL && t->dtype != OT_FP16)
        return ot_fail(OT_ERR_USAGE, "--loss-scale is for --precision fp16; %s has the range of fp32",
                       ot_dtype_name(t->dtype));
    if (t->state_dtype != OT_FP32 && optimizer_of(flags->optim) == OT_OPTIMIZER_ADAFACTOR)
        return ot_fail(OT_ERR_USAGE,
                       "--state-dtype %s: adafactor's moments are those of rows and columns, few and in fp32",
                       flags->state_dtype);
    t->loss_scale = flags->loss_scale == OT_AUTO_REAL ? 0 : flags->loss_scale;
    return OT_OK;
}

static const ot_block_backend *backend_of(const char *name)
{
    return strcmp(name, "threads") == 0 ? &ot_block_threads
           : strcmp(name, "uring") == 0 ? &ot_block_uring
                                        : NULL;
}

static ot_recompute recompute_of(const char *name)
{
    return strcmp(name, "none") == 0        ? OT_RECOMPUTE_NONE
           : strcmp(name, "selective") == 0 ? OT_RECOMPUTE_SELECTIVE
                                            : OT_RECOMPUTE_FULL;
}

static ot_status choose_training(ot_job *job)
{
    const ot_train_flags *flags = job->flags;
    ot_training *t = &job->training;
    ot_places places;
    OT_TRY(choose_formats(job));
    OT_TRY(ot_places_parse(&flags->place, &places));
    t->model = job->model;
    t->T = (size_t)flags->seq_len;
    t->optimizer = optimizer_of(flags->optim);
    t->beta1 = (float)flags->beta1;
    t->beta2 = (float)flags->beta2;
    t->eps = (float)flags->eps;
    t->weight_decay = (float)flags->weight_decay;
    t->max_grad_norm = flags->max_grad_norm;
    t->skip_not_finite = strcmp(flags->nan, "skip") == 0;
    t->seed = (uint64_t)flags->seed;
    t->weights = places.weights;
    t->states = places.states;
    t->grads = places.grads;
    t->acts = places.acts;
    t->prefetch_depth = flags->prefetch_depth == OT_AUTO_INT ? 0 : (int)flags->prefetch_depth;
    t->recompute = recompute_of(flags->recompute);
    t->overlap = flags->overlap;
    t->inference = flags->inference;
    t->ranks = (int)flags->ranks;
    t->ordinal = t->ranks > 1 ? ot_group_launched_local() : 0;
    int launched = ot_group_launched_here();
    job->local_ranks = (uint64_t)(launched > 0 && launched < t->ranks ? launched : t->ranks);
    t->zero = flags->zero == OT_AUTO_INT ? 0 : (int)flags->zero;
    t->threads = flags->threads == OT_AUTO_INT ? 0 : (int)flags->threads;
    t->io.backend = backend_of(flags->io);
    t->io.depth = flags->io_depth == OT_AUTO_INT ? 0 : (uint32_t)flags->io_depth;
    t->io.piece_bytes = flags->io_block == OT_AUTO_SIZE ? 0 : flags->io_block;
    return OT_OK;
}

/* ---- the batch ---- */

/* B and M; where neither was given they are the fit's to find. */
static void choose_batch(ot_job *job)
{
    const ot_train_flags *flags = job->flags;
    job->sequences = (size_t)flags->global_batch_size;
    job->share = job->sequences / (size_t)flags->ranks;
    job->batch_fixed = flags->batch_size != OT_AUTO_INT || flags->grad_accum != OT_AUTO_INT;
    if (!job->batch_fixed)
        return;
    job->training.B =
        flags->batch_size != OT_AUTO_INT ? (size_t)flags->batch_size : job->share / (size_t)flags->grad_accum;
    job->training.M = job->share / job->training.B;
}

/* ---- data and steps ---- */

enum { SAMPLE_STEPS = 10 }; /* of a run without --data */

static ot_status open_data(ot_job *job)
{
    const ot_train_flags *flags = job->flags;
    OT_TRY(ot_job_data_open(flags, job->model_directory, &job->model->config, &job->data));
    job->dataset = job->data.training;
    job->steps_per_epoch = ot_dataset_steps(job->dataset, job->sequences);
    if (flags->max_steps > 0)
        job->total_steps = (uint64_t)flags->max_steps;
    else if (flags->data.count == 0)
        job->total_steps = SAMPLE_STEPS;
    else
        job->total_steps = (uint64_t)ceil(flags->epochs * (double)job->steps_per_epoch);
    job->schedule = (ot_schedule){
        .lr = flags->lr,
        .min_ratio = flags->min_lr_ratio,
        .warmup_steps = ot_warmup_steps(flags->warmup_steps, job->total_steps),
        .total_steps = job->total_steps,
    };
    return ot_schedule_parse(flags->lr_scheduler, &job->schedule.kind);
}

/* ---- the machine ---- */

/* Ranks that measure at the same time share the machine as they will in a step; those that are not there yet are thought of. */
static uint64_t absent_ranks(const ot_job *job)
{
    return ot_group_launched() > 0 ? 1 : job->local_ranks;
}

/* What one of so many ranks has of the lanes that all share: a device that is this machine's processor, its memory, the
 * optimizer's cores. */
static void share_rates(uint64_t ranks, int shared, ot_rates *rates)
{
    static const ot_lane of_processor[] = {OT_LANE_COMPUTE, OT_LANE_H2D, OT_LANE_D2H, OT_LANE_COLLECTIVE};
    rates->lane[OT_LANE_CPU] /= (double)ranks;
    for (size_t i = 0; shared && i < sizeof of_processor / sizeof *of_processor; i++)
        rates->lane[of_processor[i]] /= (double)ranks;
}

/* With the threads of all ranks, of which each then has its part. */
static ot_status measure_for_absent(ot_job *job, const ot_device_options *own, uint64_t ranks)
{
    ot_training *t = &job->training;
    ot_device_options all = *own;
    ot_device_info info;
    ot_device *device;
    all.threads *= (int)ranks;
    OT_TRY(ot_device_open(&all, &device));
    ot_device_query(device, &info);
    ot_status status = ot_rates_measure(device, t->dtype, all.threads, &t->rates);
    ot_device_close(device);
    share_rates(ranks, info.host_memory, &t->rates);
    snprintf(job->device_kind, sizeof job->device_kind, "%s", info.kind);
    return status;
}

static ot_status look_at_device(ot_job *job)
{
    enum { MEASURE_BYTES = 1 << 30 }; /* a cap: a GPU's context and its libraries alone take half of it */
    ot_training *training = &job->training;
    const uint64_t absent = absent_ranks(job);
    if (absent > 1)
        OT_TRY(ot_ranks_share_threads(job->flags, (int64_t)absent, &training->threads));
    ot_device_options options = {
        .kind = job->flags->device,
        .ordinal = training->ordinal,
        .ranks = training->ranks,
        .memory_bytes = MEASURE_BYTES,
        .threads = training->threads,
    };
    if (absent > 1) {
        OT_TRY(measure_for_absent(job, &options, absent));
        options.kind = job->device_kind; /* of auto what it has come to */
    }
    OT_TRY(ot_device_open(&options, &job->device));
    ot_device_info info;
    ot_device_query(job->device, &info);
    training->sizing_device = job->device;
    job->shared = info.host_memory;
    snprintf(job->device_kind, sizeof job->device_kind, "%s", info.kind);
    training->device = job->device_kind;
    job->limits.device = info.total_bytes;
    snprintf(job->device_name, sizeof job->device_name, "%s, %d %s", info.name, info.units,
             info.host_memory ? info.units == 1 ? "thread" : "threads" : "multiprocessors");
    if (absent == 1)
        OT_TRY(ot_rates_measure(job->device, training->dtype, training->threads, &training->rates));
    job->gemm_rate = training->rates.lane[OT_LANE_COMPUTE];
    return OT_OK;
}

static ot_status look_at_card(ot_job *job)
{
    OT_TRY(ot_card_find(job->flags->gpu, &job->card));
    ot_rates_of_card(job->card, job->training.dtype, &job->training.rates);
    share_rates(job->local_ranks, 0, &job->training.rates);
    job->limits.device = (uint64_t)(job->card->gibibytes * (double)(UINT64_C(1) << 30));
    snprintf(job->device_name, sizeof job->device_name, "%s, typical rates", job->card->name);
    return OT_OK;
}

static void apply_rates(ot_job *job)
{
    const ot_train_flags *flags = job->flags;
    double *lane = job->training.rates.lane, drives = job->drives > 0 ? (double)job->drives : 1;
    if (flags->pcie != OT_AUTO_REAL)
        lane[OT_LANE_H2D] = lane[OT_LANE_D2H] = lane[OT_LANE_COLLECTIVE] = flags->pcie * 1e9;
    if (flags->nvme_gbs != OT_AUTO_REAL)
        lane[OT_LANE_NVME_READ] = lane[OT_LANE_NVME_WRITE] = flags->nvme_gbs * 1e9;
    lane[OT_LANE_NVME_READ] *= drives / (double)job->local_ranks;
    lane[OT_LANE_NVME_WRITE] *= drives / (double)job->local_ranks;
}

/* ---- all of it ---- */

ot_list_kind ot_steady_kind(const ot_plan *plan)
{
    if (plan->lists[OT_LIST_FIRST].count == 0)
        return OT_LIST_EVAL;
    return plan->deferred_chunks > 0 ? OT_LIST_STEADY : OT_LIST_FIRST;
}

const ot_list *ot_steady_list(const ot_plan *plan)
{
    return &plan->lists[ot_steady_kind(plan)];
}

uint64_t ot_job_step_tokens(const ot_job *job)
{
    return (uint64_t)job->sequences * job->training.T;
}

double ot_job_model_flops(const ot_job *job)
{
    ot_model_flops flops = ot_model_count_flops(job->model, job->share, job->training.T, OT_RECOMPUTE_FULL);
    return 3 * ((double)job->model->config.L * flops.block_forward + flops.head_forward);
}

ot_status ot_job_open(const ot_train_flags *flags, ot_job *job)
{
    *job = (ot_job){.flags = flags};
    OT_TRY(open_model(job));
    OT_TRY(choose_training(job));
    choose_batch(job);
    OT_TRY(open_data(job));
    OT_TRY(flags->gpu != NULL ? look_at_card(job) : look_at_device(job));
    OT_TRY(ot_job_find_limits(job));
    apply_rates(job);
    return ot_job_fit(job, &job->limits, &job->training, &job->plan, &job->timeline);
}

ot_status ot_job_open_source(ot_job *job)
{
    if (job->model_directory == NULL)
        return OT_OK;
    const ot_model_source_options options = {
        .model = job->model, .directory = job->model_directory, .stem = "model"};
    OT_TRY(ot_model_source_open(&options, &job->source));
    if (job->training.dtype == OT_FP16 && ot_model_source_dtype(job->source) == OT_BF16)
        ot_log(
            OT_LOG_WARNING,
            "%s holds bf16 weights, and fp16 ends at 65504: a model trained in bf16 may overflow; --precision bf16 "
            "has its range",
            job->model_directory);
    job->values = ot_model_source_values(job->source);
    job->training.source = &job->values;
    return OT_OK;
}

void ot_job_release_device(ot_job *job)
{
    ot_device_close(job->device);
    job->device = job->training.sizing_device = NULL;
}

void ot_job_close(ot_job *job)
{
    ot_job_release_device(job);
    ot_plan_free(job->plan);
    ot_job_data_close(&job->data);
    ot_model_source_close(job->source);
    ot_model_close(job->model);
    ot_hf_config_close(job->config);
    *job = (ot_job){0};
}
