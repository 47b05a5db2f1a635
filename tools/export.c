/* `offtrain export`: a model out of a run, a checkpoint or a Hugging Face directory, into a Hugging Face directory or a GGUF
 * file. It streams: whatever the model's size, a few megabytes are in memory. What is written is read back and checked before
 * it gets its name. */
#include "tools/export.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/checkpoint_set.h"
#include "engine/companions.h"
#include "io/file.h"
#include "io/log.h"
#include "io/path.h"
#include "tools/command.h"
#include "tools/option.h"

typedef struct export_options {
    ot_option_list from;
    const char *to, *output, *dtype;
} export_options;

static const ot_option options[] = {
    {.name = "_",
     .kind = OT_OPTION_LIST,
     .offset = offsetof(export_options, from),
     .value = "RUN|CHECKPOINT|DIR",
     .help = "a run (its newest checkpoint), a checkpoint, or a Hugging Face directory"},
    {.name = "to",
     .kind = OT_OPTION_TEXT,
     .offset = offsetof(export_options, to),
     .value = "FORMAT",
     .initial = "hf",
     .choices = "hf|gguf",
     .help = "a Hugging Face directory, or a GGUF file (Llama family)"},
    {.name = "output",
     .kind = OT_OPTION_TEXT,
     .offset = offsetof(export_options, output),
     .value = "DIR|FILE",
     .help = "where to write; nothing is overwritten",
     .aliases = "-o"},
    {.name = "dtype",
     .kind = OT_OPTION_TEXT,
     .offset = offsetof(export_options, dtype),
     .value = "DTYPE",
     .initial = "auto",
     .choices = "auto|fp32|bf16|fp16",
     .help = "of the weights; auto: as they are stored. fp32 from a checkpoint takes its masters"},
};
static const ot_option_table table = {
    .command = "offtrain export",
    .summary = "Writes a model for other programs.",
    .options = options,
    .count = sizeof options / sizeof *options,
};

/* ---- where it comes from ---- */

/* A folder with a config.json is the model itself, any other one a run. What has a manifest is checked against it. */
static ot_status find_directory(const char *from, char out[PATH_MAX])
{
    ot_manifest manifest;
    if (!ot_path_has(from, "config.json")) {
        OT_TRY(ot_checkpoint_newest(from, out, &manifest));
        if (out[0] == '\0')
            return ot_fail(OT_ERR_FORMAT, "%s: neither a config.json nor a checkpoint is in it", from);
        ot_log(OT_LOG_INFO, "exporting %s", out);
        return OT_OK;
    }
    OT_TRY(ot_path_format(out, "%s", from));
    return ot_path_has(from, OT_MANIFEST_NAME) ? ot_manifest_verify(from, &manifest) : OT_OK;
}

static int has_masters(const char *directory)
{
    return ot_path_has(directory, "state/master.safetensors") ||
           ot_path_has(directory, "state/master.safetensors.index.json");
}

static ot_status open_source(ot_export *e, const char *dtype)
{
    char state[PATH_MAX];
    int masters = strcmp(dtype, "fp32") == 0 && has_masters(e->directory);
    OT_TRY(ot_path_format(state, "%s/state", e->directory));
    OT_TRY(ot_hf_config_open(e->directory, &e->config));
    OT_TRY(ot_model_open(ot_hf_config_model(e->config), &e->model));
    const ot_model_source_options source = {
        .model = e->model,
        .directory = masters ? state : e->directory,
        .stem = masters ? "master" : "model",
    };
    OT_TRY(ot_model_source_open(&source, &e->source));
    e->dtype = strcmp(dtype, "auto") == 0 ? ot_model_source_dtype(e->source) : ot_dtype_find(dtype);
    e->values = malloc(OT_EXPORT_VALUES * sizeof *e->values);
    return e->values != NULL ? OT_OK : ot_fail(OT_ERR_INTERNAL, "out of memory for an export");
}

/* ---- to a Hugging Face directory ---- */

static ot_status stream(const ot_export *e, const ot_sink *sink)
{
    ot_source source = ot_model_source_values(e->source);
    for (size_t l = 0; l < e->model->layer_count; l++) {
        uint64_t params = e->model->layers[l].params;
        for (uint64_t at = 0, n; at < params; at += n) {
            n = params - at < OT_EXPORT_VALUES ? params - at : OT_EXPORT_VALUES;
            const ot_chunk_values chunk = {.layer = l, .first = at, .count = n, .master = e->values};
            OT_TRY(source.fill(source.context, &chunk));
            OT_TRY(sink->take(sink->context, &chunk));
        }
    }
    return OT_OK;
}

static ot_status check_files(const char *folder, const ot_tensor_writer *files)
{
    for (size_t i = 0; i < ot_tensor_writer_files(files); i++) {
        ot_written_file file = ot_tensor_writer_file(files, i);
        char path[PATH_MAX];
        uint64_t bytes, hash;
        OT_TRY(ot_path_format(path, "%s/%s", folder, file.name));
        OT_TRY(ot_file_checksum(path, &bytes, &hash));
        if (bytes != file.bytes || hash != file.xxh3)
            return ot_fail(OT_ERR_IO,
                           "%s: read back, it is not what was written (XXH3 %016" PRIx64
                           ", expected %016" PRIx64 "); check the drive",
                           path, hash, file.xxh3);
    }
    return OT_OK;
}

static ot_status write_weights(const ot_export *e, const char *folder)
{
    const ot_model_writer_options to = {
        .model = e->model, .directory = folder, .stem = "model", .plane = OT_VALUE_MASTER, .dtype = e->dtype};
    ot_model_writer *writer;
    OT_TRY(ot_model_writer_open(&to, &writer));
    const ot_sink sink = ot_model_writer_values(writer);
    ot_status status = stream(e, &sink);
    if (status == OT_OK)
        status = ot_model_writer_finish(writer);
    if (status == OT_OK)
        status = check_files(folder, ot_model_writer_files(writer));
    if (status == OT_OK && ot_model_writer_overflows(writer) > 0)
        ot_log(OT_LOG_WARNING,
               "%" PRIu64 " weights are beyond FP16's largest number and are inf now; bf16 holds them",
               ot_model_writer_overflows(writer));
    ot_model_writer_close(writer);
    return status;
}

/* The folder opens as the model that was meant. */
static ot_status reopen(const ot_export *e, const char *folder)
{
    ot_hf_config *config = NULL;
    ot_model *model = NULL;
    ot_model_source *source = NULL;
    ot_status status = ot_hf_config_open(folder, &config);
    if (status == OT_OK)
        status = ot_model_open(ot_hf_config_model(config), &model);
    if (status == OT_OK) {
        const ot_model_source_options again = {.model = model, .directory = folder, .stem = "model"};
        status = ot_model_source_open(&again, &source);
    }
    if (status == OT_OK && (model->params != e->model->params || ot_model_source_dtype(source) != e->dtype))
        status = ot_fail(OT_ERR_INTERNAL, "%s: read back, it is another model", folder);
    ot_model_source_close(source);
    ot_model_close(model);
    ot_hf_config_close(config);
    return status;
}

static ot_status copy_companions(const ot_export *e, const char *folder)
{
    ot_companions *companions;
    OT_TRY(ot_companions_open(e->directory, &companions));
    ot_status status = ot_companions_copy(companions, folder);
    ot_companions_close(companions);
    return status;
}

static ot_status check_companions(const ot_export *e, const char *folder)
{
    for (size_t i = 0; ot_companion_name(i) != NULL; i++) {
        char from[PATH_MAX], to[PATH_MAX];
        uint64_t bytes[2], hash[2];
        if (!ot_path_has(e->directory, ot_companion_name(i)))
            continue;
        OT_TRY(ot_path_format(from, "%s/%s", e->directory, ot_companion_name(i)));
        OT_TRY(ot_path_format(to, "%s/%s", folder, ot_companion_name(i)));
        OT_TRY(ot_file_checksum(from, &bytes[0], &hash[0]));
        OT_TRY(ot_file_checksum(to, &bytes[1], &hash[1]));
        if (bytes[0] != bytes[1] || hash[0] != hash[1])
            return ot_fail(OT_ERR_IO, "%s: it is no copy of %s; check the drive", to, from);
    }
    return OT_OK;
}

static ot_status fill_folder(const ot_export *e, const char *folder)
{
    char path[PATH_MAX];
    OT_TRY(ot_path_format(path, "%s/config.json", folder));
    OT_TRY(ot_hf_config_write(e->config, e->dtype, path));
    OT_TRY(copy_companions(e, folder));
    OT_TRY(write_weights(e, folder));
    OT_TRY(reopen(e, folder));
    return check_companions(e, folder);
}

/* A folder of ours without folders in it. What cannot be removed stays. */
static void remove_folder(const char *folder)
{
    DIR *open_folder = opendir(folder);
    if (open_folder == NULL)
        return;
    for (struct dirent *entry; (entry = readdir(open_folder)) != NULL;)
        unlinkat(dirfd(open_folder), entry->d_name, 0); /* "." and ".." refuse */
    closedir(open_folder);
    rmdir(folder);
}

static ot_status export_hf(const ot_export *e)
{
    char folder[PATH_MAX];
    struct stat facts;
    if (stat(e->output, &facts) == 0 && rmdir(e->output) != 0) /* an empty folder may be there */
        return ot_fail(OT_ERR_USAGE, "%s: it is there already, and no empty folder; nothing is overwritten",
                       e->output);
    OT_TRY(ot_path_format(folder, "%s.tmp", e->output));
    if (mkdir(folder, 0777) != 0)
        return ot_fail(OT_ERR_IO, "cannot make %s: %s%s", folder, strerror(errno),
                       errno == EEXIST ? "; an export that was killed has left it: remove it" : "");
    ot_status status = fill_folder(e, folder);
    if (status == OT_OK)
        status = ot_file_rename(folder, e->output);
    if (status != OT_OK)
        remove_folder(folder);
    return status;
}

/* ---- the command ---- */

static ot_status run(const export_options *given)
{
    char directory[PATH_MAX], output[PATH_MAX];
    if (given->from.count != 1)
        return ot_fail(OT_ERR_USAGE, "export needs one RUN, CHECKPOINT or DIR; %zu are given",
                       given->from.count);
    if (given->output == NULL || given->output[0] == '\0')
        return ot_fail(OT_ERR_USAGE, "export needs --output: the %s to write",
                       strcmp(given->to, "hf") == 0 ? "folder" : "file");
    OT_TRY(ot_path_format(output, "%s", given->output));
    for (size_t n = strlen(output); n > 1 && output[n - 1] == '/'; n--)
        output[n - 1] = '\0';
    OT_TRY(find_directory(given->from.items[0], directory));
    ot_export e = {.directory = directory, .output = output};
    ot_status status = open_source(&e, given->dtype);
    if (status == OT_OK)
        status = strcmp(given->to, "hf") == 0 ? export_hf(&e) : ot_export_gguf(&e);
    if (status == OT_OK)
        printf("exported params=%" PRIu64 " dtype=%s to=%s\n", e.model->params, ot_dtype_name(e.dtype),
               output);
    free(e.values);
    ot_model_source_close(e.source);
    ot_model_close(e.model);
    ot_hf_config_close(e.config);
    return status;
}

ot_status ot_command_export(int argc, char **argv)
{
    export_options given = {.to = NULL};
    int help;
    OT_TRY(ot_options_parse(&table, argc, argv, &given, &help));
    if (help)
        return OT_OK;
    return run(&given);
}
