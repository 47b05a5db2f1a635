/* The `offtrain` command: finds the subcommand, runs it, prints its failure. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "io/log.h"
#include "io/text.h"
#include "tools/command.h"
#include "tools/rundir.h"

typedef struct command {
    const char *name;
    ot_status (*run)(int argc, char **argv);
    const char *help;
} command;

static const command commands[] = {
    {"train", ot_command_train, "train a model; the default: offtrain --model 7b --gpu-mem 24G"},
    {"plan", ot_command_plan, "what a run would take and how fast it would be"},
    {"tokenize", ot_command_tokenize, "data into a token file"},
    {"inspect", ot_command_inspect, "what data trains, token by token; or what a model is"},
    {"bench", ot_command_bench, "measure what this machine can do"},
    {"eval", ot_command_eval, "loss and perplexity of a model on data"},
    {"generate", ot_command_generate, "go on with a text"},
    {"export", ot_command_export, "write a model as a Hugging Face directory or a GGUF file"},
    {"tune", ot_command_tune, "measure which prefetch depth, I/O depth and block size are fastest here"},
    {"report", ot_command_report, "write a run's report.html again"},
    {"doctor", ot_command_doctor, "check this machine and say what to change"},
    {"version", ot_command_version, "version, features and instruction sets"},
};
enum { COMMANDS = sizeof commands / sizeof *commands };

static void print_line(ot_log_level level, const char *line)
{
    ot_rundir_log(line);
    fprintf(stderr, "%s%s\n",
            level == OT_LOG_ERROR     ? "error: "
            : level == OT_LOG_WARNING ? "warning: "
                                      : "",
            line);
}

static void print_help(FILE *out)
{
    fprintf(out, "usage: offtrain [COMMAND] [options]\n"
                 "Fine-tunes large language models in full on one workstation.\n\n");
    for (int i = 0; i < COMMANDS; i++)
        fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].help);
    fprintf(out,
            "\n"
            "  --model NAME         tiny, 124m, 135m, 360m, 0.5b, 1b, 3b, 7b, 8b, 13b, 14b, 32b, 70b\n"
            "  --data FILE...       text or JSONL to train on; without it the built-in sample, 10 steps\n"
            "  --gpu-mem SIZE       most device memory, --host-mem SIZE most host memory\n"
            "  --nvme DIR...        folders on SSDs for what memory does not hold\n"
            "  --max-steps N        --lr X  --global-batch-size N  --seq-len N  --ranks N\n"
            "  --dry-run            the plan alone;  -c FILE.yaml: flags from a file\n\n"
            "offtrain COMMAND --help lists all options of a command: offtrain train --help\n");
}

static ot_status unknown_command(const char *name)
{
    const char *names[COMMANDS];
    for (int i = 0; i < COMMANDS; i++)
        names[i] = commands[i].name;
    const char *nearest = ot_nearest_name(name, names, COMMANDS);
    if (nearest != NULL)
        return ot_fail(OT_ERR_USAGE, "unknown command '%s'; did you mean %s?", name, nearest);
    return ot_fail(OT_ERR_USAGE, "unknown command '%s'; offtrain --help lists them", name);
}

/* A standard stream that is closed leaves its number to the next file that is opened, into which everything printed would
 * go. Opened for reading, it refuses what is printed. */
static void fill_standard_streams(void)
{
    int fd;
    do
        fd = open("/dev/null", O_RDONLY);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0)
        close(fd);
}

int main(int argc, char **argv)
{
    fill_standard_streams();
    ot_log_open(OT_LOG_INFO, print_line);
    if (argc < 2) {
        print_help(stderr);
        return OT_ERR_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        print_help(stdout);
        return OT_OK;
    }
    const char *name = strcmp(argv[1], "--version") == 0 ? "version" : argv[1];
    int skip = 2;
    if (name[0] == '-') {
        name = "train";
        skip = 1;
    }
    int i = 0;
    while (i < COMMANDS && strcmp(commands[i].name, name) != 0)
        i++;
    ot_status status = i < COMMANDS ? commands[i].run(argc - skip, argv + skip) : unknown_command(name);
    if (status != OT_OK) {
        if (*ot_error_text() != '\0') /* without a text another process has told it */
            fprintf(stderr, "offtrain: %s\n", ot_error_text());
    } else if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "offtrain: cannot write the output\n");
        status = OT_ERR_IO;
    }
    return (int)status;
}
