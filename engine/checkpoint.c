#include "engine/checkpoint.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/checkpoint_set.h"
#include "engine/modelfile.h"
#include "engine/training.h"
#include "io/file.h"
#include "io/path.h"
#include "io/text.h"

/* The tensor sets of a checkpoint. */
enum { WEIGHTS, MASTERS, MOMENTS1, MOMENTS2, SETS };

static const struct {
    const char *folder, *stem;
} sets[SETS] = {{"", "model"}, {"state/", "master"}, {"state/", "moment1"}, {"state/", "moment2"}};

#define FACTORS "factors"

static size_t set_count(const ot_training *training)
{
    return (size_t)MOMENTS1 + (size_t)ot_training_moments(training);
}

static uint64_t moment_bytes(const ot_training *training)
{
    uint64_t params = 0;
    for (size_t l = 0; l < training->model->layer_count; l++)
        params += training->model->layers[l].params;
    uint64_t scales = training->state_dtype == OT_INT8 ? params / OT_MOMENT_BLOCK * sizeof(float) : 0;
    return params * ot_dtype_bytes(training->state_dtype) + scales;
}

uint64_t ot_checkpoint_bytes(const ot_training *training)
{
    enum { REST = 32 << 20 }; /* headers, tokenizer, descriptions */
    uint64_t params = training->model->params;
    return params * (ot_dtype_bytes(training->dtype) + sizeof(float)) +
           (uint64_t)ot_training_moments(training) * moment_bytes(training) + REST;
}

/* ---- writing ---- */

typedef struct writing {
    const ot_checkpoint_options *options;
    size_t count; /* of sets */
    ot_model_writer *writers[SETS];
    ot_sink sinks[SETS];
} writing;

static ot_status take(void *context, const ot_chunk_values *chunk)
{
    const writing *w = context;
    for (size_t i = 0; i < w->count; i++)
        OT_TRY(w->sinks[i].take(w->sinks[i].context, chunk));
    return OT_OK;
}

static ot_status open_writers(writing *w, const char *folder)
{
    const ot_training *training = w->options->training;
    const ot_dtype dtypes[SETS] = {training->dtype, OT_FP32, training->state_dtype, training->state_dtype};
    static const ot_value_plane planes[SETS] = {OT_VALUE_MASTER, OT_VALUE_MASTER, OT_VALUE_MOMENT1,
                                                OT_VALUE_MOMENT2};
    for (size_t i = 0; i < w->count; i++) {
        char directory[PATH_MAX];
        OT_TRY(ot_path_format(directory, "%s/%s", folder, sets[i].folder));
        const ot_model_writer_options options = {
            .model = training->model,
            .directory = directory,
            .stem = sets[i].stem,
            .plane = planes[i],
            .dtype = dtypes[i],
            .split = i == WEIGHTS && training->dtype == OT_BF16,
            .shard_bytes = w->options->shard_bytes,
        };
        OT_TRY(ot_model_writer_open(&options, &w->writers[i]));
        w->sinks[i] = ot_model_writer_values(w->writers[i]);
    }
    return OT_OK;
}

/* ---- Adafactor's moments ---- */

static ot_tensor_spec factors_spec(size_t count)
{
    return (ot_tensor_spec){.name = "factors", .dtype = OT_FILE_F32, .dimensions = 1, .shape = {count}};
}

/* FOLDER/state/factors.safetensors: one tensor, in the order of factored.h. */
static ot_status write_factors(ot_trainer *trainer, const char *state_folder)
{
    size_t count;
    const float *factors = ot_trainer_factors(trainer, &count);
    const ot_tensor_spec spec = factors_spec(count);
    const ot_tensor_writer_options options = {
        .directory = state_folder, .stem = FACTORS, .tensors = &spec, .count = 1};
    ot_tensor_writer *writer;
    if (count == 0)
        return OT_OK;
    OT_TRY(ot_tensor_writer_open(&options, &writer));
    ot_status status = ot_tensor_writer_append(writer, factors, count * sizeof *factors);
    if (status == OT_OK)
        status = ot_tensor_writer_finish(writer);
    ot_tensor_writer_close(writer);
    return status;
}

static ot_status read_factors(const char *state_folder, float *factors, size_t count)
{
    ot_tensor_set *set;
    OT_TRY(ot_tensor_set_open(state_folder, FACTORS, &set));
    const ot_file_tensor *tensor = ot_tensor_set_find(set, "factors");
    uint64_t bytes = count * sizeof *factors;
    ot_status status =
        tensor != NULL && tensor->spec.dtype == OT_FILE_F32 && tensor->bytes == bytes
            ? ot_tensor_set_read(set, tensor, 0, factors, bytes)
            : ot_fail(OT_ERR_FORMAT, "%s/" FACTORS ".safetensors: expected the tensor factors, F32 of %zu",
                      state_folder, count);
    ot_tensor_set_close(set);
    return status;
}

ot_status ot_checkpoint_restore(const char *path, const ot_run_state *state, ot_trainer *trainer)
{
    char state_folder[PATH_MAX];
    size_t count;
    float *factors = ot_trainer_factors(trainer, &count);
    ot_trainer_set_state(trainer, &state->trainer);
    if (count == 0)
        return OT_OK;
    OT_TRY(ot_path_format(state_folder, "%s/state", path));
    return read_factors(state_folder, factors, count);
}

/* ---- all of it ---- */

static ot_status write_config(const ot_checkpoint_options *options, const char *folder)
{
    char path[PATH_MAX];
    ot_hf_config *config;
    OT_TRY(ot_path_format(path, "%s/config.json", folder));
    if (options->config != NULL)
        return ot_hf_config_write(options->config, options->training->dtype, path);
    OT_TRY(ot_hf_config_make(&options->training->model->config, &config));
    ot_status status = ot_hf_config_write(config, options->training->dtype, path);
    ot_hf_config_close(config);
    return status;
}

/* The manifest, with what the writers meant to write. */
static ot_status write_manifest(const writing *w, const ot_run_state *state, const char *folder,
                                uint64_t *bytes)
{
    ot_manifest manifest = {.step = state->step};
    size_t count = 0, capacity = 0;
    memcpy(manifest.run, state->run, sizeof manifest.run);
    for (size_t i = 0; i < w->count; i++)
        capacity += ot_tensor_writer_files(ot_model_writer_files(w->writers[i]));
    ot_file_hash *known = calloc(capacity, sizeof *known);
    char(*names)[NAME_MAX + 16] = calloc(capacity, sizeof *names);
    ot_status status = OT_OK;
    if (known == NULL || names == NULL)
        OT_TRY_GOTO(ot_fail(OT_ERR_INTERNAL, "out of memory for the manifest of %zu files", capacity), out);
    for (size_t i = 0; i < w->count; i++) {
        const ot_tensor_writer *files = ot_model_writer_files(w->writers[i]);
        for (size_t f = 0; f < ot_tensor_writer_files(files); f++, count++) {
            ot_written_file file = ot_tensor_writer_file(files, f);
            snprintf(names[count], sizeof *names, "%s%s", sets[i].folder, file.name);
            known[count] = (ot_file_hash){names[count], file.bytes, file.xxh3};
        }
    }
    status = ot_manifest_write(folder, &manifest, known, count, bytes);
out:
    free(names);
    free(known);
    return status;
}

static ot_status write_all(writing *w, ot_trainer *trainer, ot_run_state *state, const char *folder,
                           uint64_t *bytes)
{
    char state_folder[PATH_MAX];
    ot_manifest found;
    const ot_sink sink = {take, w};
    OT_TRY(ot_path_format(state_folder, "%s/state", folder));
    if (mkdir(folder, 0777) != 0 || mkdir(state_folder, 0777) != 0)
        return ot_fail(OT_ERR_IO, "%s: cannot be made: %s", folder, strerror(errno));
    OT_TRY(open_writers(w, folder));
    OT_TRY(ot_trainer_save(trainer, &sink));
    for (size_t i = 0; i < w->count; i++)
        OT_TRY(ot_model_writer_finish(w->writers[i]));
    state->trainer = ot_trainer_get_state(trainer);
    OT_TRY(write_factors(trainer, state_folder));
    OT_TRY(write_config(w->options, folder));
    if (w->options->companions != NULL)
        OT_TRY(ot_companions_copy(w->options->companions, folder));
    OT_TRY(ot_run_state_write(state, folder));
    OT_TRY(ot_dir_sync(state_folder));
    OT_TRY(write_manifest(w, state, folder, bytes));
    OT_TRY(ot_dir_sync(folder));
    ot_status status = ot_manifest_verify(folder, &found);
    if (status == OT_ERR_FORMAT) /* it is the drive's doing */
        return ot_fail(OT_ERR_IO, "read back, it is not what was written: %s; check the drive",
                       ot_error_text());
    return status;
}

/* A full drive is found before anything is written, where it can be. */
static ot_status check_space(const ot_checkpoint_options *options)
{
    char need[OT_SIZE_TEXT_BYTES], have[OT_SIZE_TEXT_BYTES];
    uint64_t bytes = ot_checkpoint_bytes(options->training);
    ot_dir_info info;
    OT_TRY(ot_dir_probe(options->folder, &info));
    if (bytes <= info.free_bytes)
        return OT_OK;
    return ot_fail(OT_ERR_IO, "%s: no space for a checkpoint: it takes %s, and %s are free", options->folder,
                   ot_format_size(bytes, need), ot_format_size(info.free_bytes, have));
}

ot_status ot_checkpoint_save(const ot_checkpoint_options *options, ot_trainer *trainer, ot_run_state *state,
                             uint64_t *bytes)
{
    char folder[PATH_MAX];
    writing w = {.options = options, .count = set_count(options->training)};
    OT_TRY(ot_checkpoint_sweep(options->folder));
    OT_TRY(check_space(options));
    OT_TRY(ot_checkpoint_path(options->folder, state->step, 1, folder));
    ot_status status = write_all(&w, trainer, state, folder, bytes);
    for (size_t i = 0; i < w.count; i++)
        ot_model_writer_close(w.writers[i]);
    if (status != OT_OK) {
        ot_error failure = ot_error_take();
        ot_status swept = ot_checkpoint_sweep(options->folder); /* what is half written only takes room */
        (void)swept;                                            /* the first failure is the one to tell */
        return ot_error_raise(&failure);
    }
    ot_manifest newest = {.step = state->step};
    memcpy(newest.run, state->run, sizeof newest.run);
    OT_TRY(ot_checkpoint_publish(options->folder, state->step));
    return ot_checkpoint_rotate(options->folder, &newest, options->limit);
}

/* ---- reading ---- */

struct ot_checkpoint_source {
    ot_model_source *files;
    ot_source values;
};

ot_status ot_checkpoint_source_open(const char *path, const ot_training *training, ot_checkpoint_source **out)
{
    char directory[PATH_MAX];
    OT_TRY(ot_path_format(directory, "%s/state", path));
    size_t count = set_count(training);
    const ot_model_source_options options = {
        .model = training->model,
        .directory = directory,
        .stem = sets[MASTERS].stem,
        .moment1_stem = count > MOMENTS1 ? sets[MOMENTS1].stem : NULL,
        .moment2_stem = count > MOMENTS2 ? sets[MOMENTS2].stem : NULL,
        .state_dtype = training->state_dtype,
    };
    ot_checkpoint_source *source = calloc(1, sizeof *source);
    if (source == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for a checkpoint");
    ot_status status = ot_model_source_open(&options, &source->files);
    if (status != OT_OK) {
        free(source);
        return status;
    }
    source->values = ot_model_source_values(source->files);
    *out = source;
    return OT_OK;
}

const ot_source *ot_checkpoint_source_values(const ot_checkpoint_source *source)
{
    return &source->values;
}

void ot_checkpoint_source_close(ot_checkpoint_source *source)
{
    if (source == NULL)
        return;
    ot_model_source_close(source->files);
    free(source);
}
