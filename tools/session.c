#include "tools/session.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "engine/checkpoint_set.h"
#include "io/file.h"
#include "io/log.h"
#include "io/path.h"
#include "io/text.h"
#include "tools/ranks.h"

enum { SAVE_STEPS = 500 };

/* ---- which checkpoint ---- */

static ot_status copy_path(const char *text, char out[PATH_MAX])
{
    size_t length = strlen(text);
    if (length >= PATH_MAX)
        return ot_fail(OT_ERR_USAGE, "--resume: %.80s…: too long a path", text);
    memcpy(out, text, length + 1);
    while (length > 1 && out[length - 1] == '/')
        out[--length] = '\0';
    return OT_OK;
}

/* --resume auto: the run of that name, from the start where it has nothing to go on from. */
static ot_status find_named(const ot_train_flags *flags, ot_session *session)
{
    char folder[PATH_MAX];
    ot_manifest manifest;
    if (flags->run_name == NULL)
        return ot_fail(OT_ERR_USAGE, "--resume: which run? Give its --run-name, or --resume %s/NAME",
                       flags->output_dir);
    OT_TRY(ot_path_format(folder, "%s/%s", flags->output_dir, flags->run_name));
    if (!ot_path_is_folder(folder))
        return OT_OK;
    OT_TRY(copy_path(folder, session->folder));
    return ot_checkpoint_newest(folder, session->checkpoint, &manifest);
}

/* Under another name it is a run of its own. */
static int is_own(const ot_train_flags *flags, const char *run)
{
    char named[PATH_MAX], full[PATH_MAX];
    if (flags->run_name == NULL)
        return 1;
    return snprintf(named, sizeof named, "%s/%s", flags->output_dir, flags->run_name) < PATH_MAX &&
           realpath(named, full) != NULL && strcmp(full, run) == 0;
}

static ot_status find_given(const ot_train_flags *flags, ot_session *session)
{
    char given[PATH_MAX], path[PATH_MAX];
    ot_manifest manifest;
    OT_TRY(copy_path(flags->resume, given));
    if (realpath(given, path) == NULL || !ot_path_is_folder(path))
        return ot_fail(OT_ERR_FORMAT, "--resume: %s is no folder of a run or checkpoint", flags->resume);
    if (ot_path_has(path, OT_MANIFEST_NAME)) {
        OT_TRY(ot_manifest_verify(path, &manifest));
        strcpy(session->checkpoint, path);
        OT_TRY(ot_path_parent(path, path));
    } else {
        OT_TRY(ot_checkpoint_newest(path, session->checkpoint, &manifest));
        if (*session->checkpoint == '\0')
            return ot_fail(OT_ERR_FORMAT, "--resume: %s holds no checkpoint", flags->resume);
    }
    if (is_own(flags, path))
        strcpy(session->folder, path);
    return OT_OK;
}

static int64_t greatest_common_divisor(int64_t a, int64_t b)
{
    return b == 0 ? a : greatest_common_divisor(b, a % b);
}

/* The split of a step into micro-batches decides the rounding, so it is not left to the plan again, unless the step is another one. */
static ot_status take_over(const ot_session *session, ot_train_flags *flags)
{
    const json_t *batch = json_object_get(session->state.settings, "batch_size");
    json_int_t size = json_integer_value(batch);
    if (flags->batch_size != OT_AUTO_INT || flags->grad_accum != OT_AUTO_INT)
        return OT_OK;
    if (!json_is_integer(batch) || size < 1)
        return ot_fail(
            OT_ERR_FORMAT,
            "%s/state/trainer.json: settings.batch_size is no number above 0; the checkpoint is damaged",
            session->checkpoint);
    int64_t share = flags->global_batch_size / flags->ranks;
    if (share % size == 0)
        flags->batch_size = size;
    else if (flags->ranks > 1)
        flags->batch_size = greatest_common_divisor(size, share);
    return OT_OK;
}

ot_status ot_session_open(ot_train_flags *flags, ot_session *out)
{
    *out = (ot_session){.folder = ""};
    if (flags->resume != NULL)
        OT_TRY(strcmp(flags->resume, "auto") == 0 ? find_named(flags, out) : find_given(flags, out));
    if (*out->checkpoint == '\0')
        return ot_run_state_init(&out->state);
    OT_TRY(ot_run_state_read(out->checkpoint, &out->state));
    OT_TRY(take_over(out, flags));
    flags->model_is_resumed = flags->model == NULL;
    if (flags->model_is_resumed)
        flags->model = out->checkpoint;
    ot_log(OT_LOG_INFO, "going on from %s, after step %" PRIu64, out->checkpoint, out->state.step);
    return OT_OK;
}

void ot_session_close(ot_session *session)
{
    ot_checkpoint_source_close(session->source);
    ot_companions_close(session->companions);
    ot_run_state_fini(&session->state);
}

/* ---- settings ---- */

/* XXH3 of the tokens, their order, and what is trained of them. */
static uint64_t data_hash(const ot_job *job)
{
    uint64_t sums[3 * (OT_OPTION_LIST_MAX + 1)];
    size_t count = 0;
    const ot_token_list *list = &job->data.training_tokens;
    for (size_t i = 0; i < list->count; i++) {
        const ot_tokens_info *info = ot_tokens_query(list->items[i]);
        sums[count++] = ot_tokens_hash(list->items[i], 0, info->tokens);
        sums[count++] = info->trained;
        sums[count++] = info->documents;
    }
    return XXH3_64bits(sums, count * sizeof *sums);
}

static json_t *data_settings(const ot_job *job)
{
    const ot_train_flags *f = job->flags;
    char hash[17];
    snprintf(hash, sizeof hash, "%016" PRIx64, data_hash(job));
    return json_pack("{s:s, s:s, s:b, s:f, s:I, s:b}", "data", hash, "long", f->long_documents, "packing",
                     f->packing, "val_split", f->val_split, "seed", f->seed, "shuffle", f->shuffle);
}

/* The mathematics of the model; the shapes are those of the tensors. */
static json_t *model_settings(const ot_model_config *c)
{
    const ot_rope_scaling *rope = &c->rope;
    json_t *out =
        json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "architecture", c->architecture, "C",
                  (json_int_t)c->C, "L", (json_int_t)c->L, "NH", (json_int_t)c->NH, "NKV", (json_int_t)c->NKV,
                  "HD", (json_int_t)c->HD, "F", (json_int_t)c->F, "V", (json_int_t)c->V);
    json_t *more = json_pack("{s:f, s:I, s:i, s:b, s:b, s:b}", "norm_eps", (double)c->norm_eps, "window",
                             (json_int_t)c->window, "gelu", (int)c->gelu, "qkv_bias", c->qkv_bias, "qk_norm",
                             c->qk_norm, "tied", c->tied);
    json_object_update_new(out, more);
    json_object_set_new(out, "rope",
                        json_pack("{s:i, s:f, s:f, s:f, s:f, s:f}", "kind", (int)rope->kind, "theta",
                                  rope->theta, "factor", rope->factor, "low_freq_factor",
                                  rope->low_freq_factor, "high_freq_factor", rope->high_freq_factor,
                                  "original_positions", rope->original_positions));
    return out;
}

/* Everything that decides the numbers, by the name of its flag. Where things lie, threads and depths do not. */
static json_t *settings_of(const ot_job *job)
{
    const ot_train_flags *f = job->flags;
    json_t *batch = json_pack("{s:I, s:I, s:I, s:I, s:I}", "seq_len", f->seq_len, "global_batch_size",
                              (json_int_t)job->sequences, "batch_size", (json_int_t)job->training.B, "ranks",
                              (json_int_t)f->ranks, "total_steps", (json_int_t)job->total_steps);
    json_t *optimizer =
        json_pack("{s:s, s:f, s:s, s:I, s:f, s:f, s:f, s:f, s:f, s:f}", "optim", f->optim, "lr", f->lr,
                  "lr_scheduler", f->lr_scheduler, "warmup_steps", (json_int_t)job->schedule.warmup_steps,
                  "min_lr_ratio", f->min_lr_ratio, "beta1", f->beta1, "beta2", f->beta2, "eps", f->eps,
                  "weight_decay", f->weight_decay, "max_grad_norm", f->max_grad_norm);
    json_t *precision = json_pack(
        "{s:s, s:s, s:s, s:f, s:s}", "precision", ot_dtype_name(job->training.dtype), "state_dtype",
        ot_dtype_name(job->training.state_dtype), "grad_dtype", ot_dtype_name(job->training.grad_dtype),
        "loss_scale", job->training.loss_scale, "nan", f->nan);
    json_t *parts[] = {data_settings(job), batch, optimizer, precision};
    json_t *all = json_pack("{s:o}", "model", model_settings(&job->model->config));
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (json_object_update(all, parts[i]) != 0) {
            json_decref(all);
            all = NULL;
        }
        json_decref(parts[i]);
    }
    return all;
}

ot_status ot_session_compare_ranks(const ot_session *session, const ot_job *job)
{
    const ot_train_flags *f = job->flags;
    json_t *all =
        json_pack("{s:I, s:I, s:I, s:I, s:b}", "save_steps", (json_int_t)f->save_steps, "eval_steps",
                  (json_int_t)f->eval_steps, "sample_steps", (json_int_t)f->sample_steps, "max_tokens",
                  (json_int_t)f->max_tokens, "sample_prompt", f->sample_prompt != NULL);
    if (all == NULL || json_object_update(all, session->state.settings) != 0) {
        json_decref(all);
        return ot_fail(OT_ERR_INTERNAL, "out of memory for a run's settings");
    }
    ot_status status = ot_ranks_compare_settings(job->training.group, all);
    json_decref(all);
    return status;
}

/* "--lr-scheduler" in a list of allowed changes is the setting "lr_scheduler". */
static void setting_name(const char *typed, char out[64])
{
    snprintf(out, 64, "%s", typed + strspn(typed, "-"));
    for (char *c = out; *c != '\0'; c++)
        if (*c == '-')
            *c = '_';
}

/* Other ranks may go on, with other micro-batches: the numbers differ in rounding, as they do between ranks. */
static size_t allow_ranks(const ot_run_state *state, const ot_train_flags *flags, const char *allowed[])
{
    const json_t *ranks = json_object_get(state->settings, "ranks");
    int64_t before = json_is_integer(ranks) ? json_integer_value(ranks) : 1;
    allowed[0] = "ranks";
    if (before == flags->ranks)
        return 1;
    allowed[1] = "batch_size";
    return 2;
}

ot_status ot_session_bind(ot_session *session, ot_job *job)
{
    char names[OT_OPTION_LIST_MAX][64];
    const char *allowed[OT_OPTION_LIST_MAX + 3] = {NULL};
    ot_status status = OT_OK;
    size_t more = allow_ranks(&session->state, job->flags, allowed);
    const ot_option_list *changes = &job->flags->allow_changes;
    json_t *settings = settings_of(job);
    if (settings == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for a run's settings");
    for (size_t i = 0; i < changes->count && status == OT_OK; i++) {
        setting_name(changes->items[i], names[i]);
        allowed[more + i] = names[i];
        if (strcmp(names[i], "all") != 0 && json_object_get(settings, names[i]) == NULL)
            status = ot_fail(OT_ERR_USAGE,
                             "--allow-changes: there is no setting %s; --resume names those that differ, "
                             "total_steps where --max-steps or --epochs do",
                             names[i]);
    }
    if (status == OT_OK && *session->checkpoint != '\0')
        status = ot_run_state_compare(&session->state, settings, allowed);
    json_decref(session->state.settings);
    session->state.settings = settings;
    OT_TRY(status);
    if (job->model_directory != NULL)
        OT_TRY(ot_companions_open(job->model_directory, &session->companions));
    if (*session->checkpoint == '\0')
        return ot_job_open_source(job);
    OT_TRY(ot_checkpoint_source_open(session->checkpoint, &job->training, &session->source));
    job->training.source = ot_checkpoint_source_values(session->source);
    return OT_OK;
}

/* ---- saving ---- */

int ot_session_saves(const ot_train_flags *flags, uint64_t *every)
{
    *every = flags->save_steps == OT_AUTO_INT ? SAVE_STEPS : (uint64_t)flags->save_steps;
    return flags->save_steps != OT_AUTO_INT || flags->data.count > 0;
}

ot_status ot_session_check_writes(const ot_job *job, const ot_run_state *state)
{
    double limit = job->flags->max_tbw * 1e12, left = (double)(job->total_steps - state->step);
    double ranks = (double)job->local_ranks;
    double load = ranks * (double)job->plan->lists[OT_LIST_LOAD].lane_bytes[OT_LANE_NVME_WRITE];
    double step = ranks * (double)ot_steady_list(job->plan)->lane_bytes[OT_LANE_NVME_WRITE];
    uint64_t every;
    char fewer[64] = "";
    if (ot_session_saves(job->flags, &every)) {
        double checkpoint = (double)ot_checkpoint_bytes(&job->training);
        load += checkpoint; /* the last one */
        step += every > 0 ? checkpoint / (double)every : 0;
    }
    double all = state->nvme_bytes + load + step * left;
    if (job->flags->max_tbw == OT_AUTO_REAL || all <= limit)
        return OT_OK;
    double room = floor((limit - state->nvme_bytes - load) / step);
    if (room >= 1)
        snprintf(fewer, sizeof fewer, "--max-steps %.0f would stay below, ", (double)state->step + room);
    return ot_fail(
        OT_ERR_FIT,
        "--max-tbw %g: this run writes %.3g TB; %smore --host-mem, --state-dtype int8 or rarer checkpoints "
        "write less",
        job->flags->max_tbw, all / 1e12, fewer);
}

ot_status ot_session_check_space(const ot_job *job, const char *folder)
{
    uint64_t every, bytes = ot_checkpoint_bytes(&job->training);
    char need[OT_SIZE_TEXT_BYTES], have[OT_SIZE_TEXT_BYTES];
    ot_dir_info info;
    if (!ot_session_saves(job->flags, &every))
        return OT_OK;
    OT_TRY(ot_dir_probe(folder, &info));
    ot_format_size(bytes, need);
    ot_format_size(info.free_bytes, have);
    if (bytes > info.free_bytes)
        return ot_fail(OT_ERR_FIT,
                       "%s: a checkpoint takes %s, and %s are free; another --output-dir would hold it",
                       folder, need, have);
    if (bytes * ((uint64_t)job->flags->save_total_limit + 1) > info.free_bytes)
        ot_log(OT_LOG_WARNING,
               "%s: %s are free, a checkpoint takes %s, and one more than --save-total-limit %" PRId64
               " is there while it is written",
               folder, have, need, job->flags->save_total_limit);
    return OT_OK;
}

ot_status ot_session_save(ot_session *session, const ot_job *job, ot_trainer *trainer, const char *folder,
                          uint64_t *bytes)
{
    const ot_checkpoint_options options = {
        .folder = folder,
        .training = &job->training,
        .config = job->config,
        .companions = session->companions,
        .limit = (uint64_t)job->flags->save_total_limit,
    };
    return ot_checkpoint_save(&options, trainer, &session->state, bytes);
}
