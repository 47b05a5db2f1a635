#include "tools/rundir.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "io/file.h"
#include "io/log.h"
#include "io/path.h"
#include "offload/store.h"

/* train.log; one, as the log is: its sink has no argument. */
static FILE *log_file;

/* A folder's file of the NVMe tier is nobody's where nobody holds its lock. Returns whether it is gone now. */
static int sweep_file(const char *folder)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/%s", folder, OT_STORE_FILE_NAME) >= PATH_MAX)
        return 0;
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW), taken = 0;
    if (fd < 0)
        return 0;
    int removed = ot_file_lock(fd, path, &taken) == OT_OK && taken && unlink(path) == 0;
    if (removed)
        ot_log(OT_LOG_INFO, "removed %s, which a run that died has left", path);
    close(fd);
    return removed;
}

static int is_rank_folder(const char *name)
{
    static const char prefix[] = "rank-";
    size_t length = sizeof prefix - 1;
    return strncmp(name, prefix, length) == 0 && name[length] != '\0' &&
           name[length + strspn(name + length, "0123456789")] == '\0';
}

typedef void sweep_folder(const char *path, const char *name);

static void sweep_each(const char *parent, sweep_folder *sweep)
{
    DIR *folder = opendir(parent);
    if (folder == NULL)
        return;
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        char path[PATH_MAX];
        if (entry->d_name[0] != '.' && snprintf(path, sizeof path, "%s/%s", parent, entry->d_name) < PATH_MAX)
            sweep(path, entry->d_name);
    }
    closedir(folder);
}

/* One that is empty without a file of a dead run's may be a rank's that is starting. */
static void sweep_rank(const char *path, const char *name)
{
    if (is_rank_folder(name) && sweep_file(path))
        (void)rmdir(path);
}

static void sweep_run(const char *path, const char *name)
{
    (void)name;
    sweep_file(path);
    sweep_each(path, sweep_rank);
}

void ot_rundir_sweep(const ot_train_flags *flags)
{
    sweep_each(flags->output_dir, sweep_run);
    for (size_t i = 0; i < flags->nvme.count; i++)
        sweep_each(flags->nvme.items[i], sweep_rank);
}

static ot_status too_long(const char *path)
{
    return ot_fail(OT_ERR_USAGE, "--output-dir: %.80s…: too long a path", path);
}

/* The model's name, that of its folder however that is written: "..", "model/". */
static const char *model_name(const char *model, char full[PATH_MAX])
{
    if (realpath(model, full) == NULL)
        return model; /* a preset */
    const char *slash = strrchr(full, '/');
    return slash[1] != '\0' ? slash + 1 : "model";
}

/* MODEL-YYYYMMDD-HHMMSS, with a number behind where that is taken. */
static ot_status make_named_by_time(const ot_train_flags *flags, char path[PATH_MAX])
{
    char stamp[32], full[PATH_MAX];
    const char *model = model_name(flags->model, full);
    time_t now = time(NULL);
    struct tm local;
    localtime_r(&now, &local);
    strftime(stamp, sizeof stamp, "%Y%m%d-%H%M%S", &local);
    for (int number = 1; number < 1000; number++) {
        char suffix[16] = "";
        if (number > 1)
            snprintf(suffix, sizeof suffix, "-%d", number);
        if (snprintf(path, PATH_MAX, "%s/%s-%s%s", flags->output_dir, model, stamp, suffix) >= PATH_MAX - 64)
            return too_long(flags->output_dir);
        if (mkdir(path, 0777) == 0)
            return OT_OK;
        if (errno != EEXIST)
            break;
    }
    return ot_fail(OT_ERR_IO, "%s: cannot be made: %s", path, strerror(errno));
}

static ot_status make_folder(const ot_train_flags *flags, char path[PATH_MAX])
{
    if (ot_path_make_folders(flags->output_dir) != OT_OK)
        return ot_fail(OT_ERR_IO, "%s; --output-dir says where runs go", ot_error_text());
    if (flags->run_name == NULL)
        return make_named_by_time(flags, path);
    if (snprintf(path, PATH_MAX, "%s/%s", flags->output_dir, flags->run_name) >= PATH_MAX - 64)
        return too_long(flags->output_dir);
    if (mkdir(path, 0777) == 0)
        return OT_OK;
    if (errno == EEXIST)
        return ot_fail(OT_ERR_USAGE, "%s is there already; choose another --run-name, or remove it", path);
    return ot_fail(OT_ERR_IO, "%s: cannot be made: %s", path, strerror(errno));
}

static ot_status open_file(const ot_rundir *dir, const char *name, const char *mode, FILE **out)
{
    char path[PATH_MAX + 64];
    snprintf(path, sizeof path, "%s/%s", dir->path, name);
    struct stat facts;
    if (stat(path, &facts) == 0 && !S_ISREG(facts.st_mode))
        return ot_fail(OT_ERR_IO, "%s is no regular file", path);
    *out = ot_file_open_output(path, mode);
    if (*out == NULL)
        return ot_fail(OT_ERR_IO, "%s: %s", path, strerror(errno));
    return OT_OK;
}

static ot_status close_file(const ot_rundir *dir, const char *name, FILE *file)
{
    int bad = ferror(file);
    if (fclose(file) != 0 || bad)
        return ot_fail(OT_ERR_IO, "%s/%s: cannot be written: %s", dir->path, name, strerror(errno));
    return OT_OK;
}

void ot_print_argument(const char *argument, FILE *out)
{
    int plain = *argument != '\0';
    for (const char *c = argument; *c != '\0'; c++)
        plain &= isalnum((unsigned char)*c) || strchr("-_=./,:%+@", *c) != NULL;
    if (plain) {
        fputs(argument, out);
        return;
    }
    fputc('\'', out);
    for (const char *c = argument; *c != '\0'; c++)
        if (*c == '\'')
            fputs("'\\''", out);
        else
            fputc(*c, out);
    fputc('\'', out);
}

static ot_status write_command(const ot_rundir *dir, int argc, char **argv)
{
    FILE *file;
    OT_TRY(open_file(dir, "command.txt", "a", &file));
    fputs("offtrain train", file);
    for (int i = 0; i < argc; i++) {
        fputc(' ', file);
        ot_print_argument(argv[i], file);
    }
    fputc('\n', file);
    return close_file(dir, "command.txt", file);
}

static ot_status write_config(const ot_rundir *dir, const ot_option_table *table, const ot_train_flags *flags)
{
    FILE *file;
    OT_TRY(open_file(dir, "config.yaml", "w", &file));
    ot_status status = ot_config_print(table, OT_TRAIN_NOT_IN_CONFIG, flags, file);
    ot_status closed = close_file(dir, "config.yaml", file);
    return status != OT_OK ? status : closed;
}

/* The lock says that this process is at work in the folder; it goes with the file. */
static ot_status lock_metrics(const ot_rundir *dir)
{
    char path[PATH_MAX + 64];
    int taken;
    snprintf(path, sizeof path, "%s/metrics.jsonl", dir->path);
    OT_TRY(ot_file_lock(fileno(dir->metrics), path, &taken));
    if (!taken)
        return ot_fail(OT_ERR_USAGE, "%s: another process is at work on this run", dir->path);
    return OT_OK;
}

/* Whether a row stays: of what comes behind the last step of a run that had ended nothing does, it comes again. */
static int is_kept(const json_t *row, uint64_t step, int ended)
{
    const json_t *number = json_object_get(row, "step");
    if (!json_is_integer(number) || (uint64_t)json_integer_value(number) > step)
        return 0;
    return !ended || (uint64_t)json_integer_value(number) < step || json_object_get(row, "loss") != NULL;
}

/* The length of the rows from the file's start that stay; copies into `later` those that stay behind the first that does not. A row that
 * was cut off, or that is none, does not. */
static long read_rows(ot_rundir *dir, uint64_t step, int ended, FILE *later)
{
    char *line = NULL;
    size_t capacity = 0;
    long end = 0;
    int dropped = 0;
    rewind(dir->metrics);
    for (ssize_t length; (length = getline(&line, &capacity, dir->metrics)) > 0;) {
        json_t *row = line[length - 1] == '\n' ? json_loads(line, 0, NULL) : NULL;
        int kept = is_kept(row, step, ended);
        if (kept && (uint64_t)json_integer_value(json_object_get(row, "step")) == step) {
            dir->evaluated |= json_object_get(row, "eval_loss") != NULL;
            dir->sampled |= json_object_get(row, "sample") != NULL;
        }
        json_decref(row);
        dropped |= !kept;
        if (kept && dropped)
            fwrite(line, 1, (size_t)length, later);
        else if (kept)
            end = ftell(dir->metrics);
    }
    free(line);
    return end;
}

static ot_status open_metrics(ot_rundir *dir, uint64_t step, int ended)
{
    char *text = NULL;
    size_t bytes = 0;
    OT_TRY(open_file(dir, "metrics.jsonl", "a+", &dir->metrics));
    OT_TRY(lock_metrics(dir));
    FILE *later = open_memstream(&text, &bytes);
    if (later == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for metrics.jsonl");
    long end = read_rows(dir, step, ended, later);
    int failed = fclose(later) != 0 || ftruncate(fileno(dir->metrics), end) != 0 ||
                 fwrite(text, 1, bytes, dir->metrics) != bytes || fflush(dir->metrics) != 0;
    free(text);
    return failed ? ot_fail(OT_ERR_IO, "%s/metrics.jsonl: %s", dir->path, strerror(errno)) : OT_OK;
}

ot_status ot_rundir_open(const ot_train_flags *flags, int argc, char **argv, const char *folder,
                         uint64_t step, int ended, ot_rundir *out)
{
    const ot_option_table table = ot_train_table("offtrain train", "");
    ot_train_flags given = *flags;
    if (flags->model_is_resumed)
        given.model = NULL;
    given.run_name =
        NULL; /* config.yaml is for going on with --resume, from any folder, and for other runs */
    *out = (ot_rundir){.metrics = NULL};
    OT_TRY(ot_config_check(&table, OT_TRAIN_NOT_IN_CONFIG, &given));
    if (*folder != '\0')
        snprintf(out->path, sizeof out->path, "%s", folder);
    else
        OT_TRY(make_folder(flags, out->path));
    out->directory = out->path;
    OT_TRY(open_metrics(out, step, ended));
    OT_TRY(write_command(out, argc, argv));
    OT_TRY(write_config(out, &table, &given));
    return open_file(out, "train.log", "a", &log_file);
}

ot_status ot_rundir_close(ot_rundir *dir)
{
    ot_status metrics = OT_OK, log = OT_OK;
    if (dir->metrics != NULL)
        metrics = close_file(dir, "metrics.jsonl", dir->metrics);
    if (log_file != NULL)
        log = close_file(dir, "train.log", log_file);
    dir->metrics = log_file = NULL;
    return metrics != OT_OK ? metrics : log;
}

ot_status ot_rundir_json(const ot_rundir *dir, const char *name, const json_t *value)
{
    FILE *file;
    OT_TRY(open_file(dir, name, "w", &file));
    int bad = value == NULL || json_dumpf(value, file, JSON_INDENT(1) | JSON_REAL_PRECISION(9)) != 0;
    fputc('\n', file);
    OT_TRY(close_file(dir, name, file));
    if (bad)
        return ot_fail(OT_ERR_IO, "%s/%s: cannot be written", dir->path, name);
    return OT_OK;
}

void ot_rundir_log(const char *line)
{
    if (log_file == NULL)
        return;
    fprintf(log_file, "%s\n", line);
    fflush(log_file);
}
