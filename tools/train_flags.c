/* The option table of training, its presets, and the checks of single values. */
#include "tools/train_flags.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "engine/samples.h"
#include "io/text.h"
#include "kernels/collective.h"
#include "kernels/device.h"

#define FIELD(name) offsetof(ot_train_flags, name)
#define GROUP(heading)                                                                                       \
    {                                                                                                        \
        .name = (heading), .kind = OT_OPTION_GROUP                                                           \
    }
#define FLAG(key, field, first, text, other)                                                                 \
    {                                                                                                        \
        .name = (key), .kind = OT_OPTION_FLAG, .offset = FIELD(field), .initial = (first), .help = (text),   \
        .aliases = (other)                                                                                   \
    }
#define NUMBER(of, key, field, what, first, word, text, other)                                               \
    {                                                                                                        \
        (key), OT_OPTION_##of, FIELD(field), (what), (first), (word), (text), (other)                        \
    }
#define TEXT(key, field, what, first, words, text, other)                                                    \
    {                                                                                                        \
        (key), OT_OPTION_TEXT, FIELD(field), (what), (first), (words), (text), (other)                       \
    }
#define AUTO(key, field, what, text)                                                                         \
    {                                                                                                        \
        .name = (key), .kind = OT_OPTION_AUTO, .offset = FIELD(field), .value = (what), .help = (text)       \
    }
#define LIST(key, field, what, text)                                                                         \
    {                                                                                                        \
        .name = (key), .kind = OT_OPTION_LIST, .offset = FIELD(field), .value = (what), .help = (text)       \
    }

static const ot_option options[] = {
    GROUP("model"),
    TEXT(
        "model", model, "NAME|DIR", NULL, NULL,
        "tiny, 124m (GPT-2), 135m 360m (SmolLM2), 0.5b 14b 32b (Qwen2.5), 1b 3b (Llama-3.2), 7b 13b (Llama-2), 8b 70b "
        "(Llama-3.1), with random weights; or a folder: Hugging Face's, or a checkpoint of ours",
        NULL),

    GROUP("data"),
    LIST("data", data, "FILE…", "text, JSONL or token files; without them the built-in sample"),
    TEXT("eval-data", eval_data, "FILE", NULL, NULL, "data that is evaluated and never trained", NULL),
    NUMBER(REAL, "val-split", val_split, "X", "0", NULL, "share of the documents that is kept for evaluation",
           NULL),
    TEXT("data-format", data_format, "NAME", "auto", OT_DATA_FORMAT_NAMES, "what the files are; auto: looks",
         NULL),
    TEXT("template", chat_template, "NAME", "auto", "auto|" OT_TEMPLATE_NAMES,
         "how conversations are written; auto: as the tokenizer says", NULL),
    TEXT("train-on", train_on, "WORD", "auto", OT_TRAIN_ON_NAMES,
         "what is learnt: all answers, the last one, or every token", NULL),
    NUMBER(INT, "seq-len", seq_len, "N", "2048", NULL, "tokens of a sequence",
           "max-length|cutoff-len|block-size"),
    FLAG("packing", packing, "on", "several documents in a sequence, each for itself", NULL),
    TEXT("long", long_documents, "WORD", "cut", "drop|cut|split",
         "rows longer than a sequence; text files go on in any case", NULL),
    FLAG("shuffle", shuffle, "on", "another order of the sequences in each epoch", NULL),

    GROUP("batch"),
    NUMBER(INT, "batch-size", batch_size, "N", "auto", "auto",
           "sequences of a micro-batch; auto: as many as fit",
           "micro-batch-size|per-device-train-batch-size"),
    NUMBER(INT, "grad-accum", grad_accum, "N", "auto", "auto", "micro-batches of a step",
           "gradient-accumulation-steps"),
    NUMBER(INT, "global-batch-size", global_batch_size, "N", "32", NULL, "sequences of a step", NULL),
    NUMBER(REAL, "epochs", epochs, "N", "1", NULL, "passes over the data", "num-train-epochs"),
    NUMBER(INT, "max-steps", max_steps, "N", "-1", NULL, "steps; wins over --epochs; without --data it is 10",
           "steps"),

    GROUP("optimizer"),
    TEXT("optim", optim, "NAME", "adamw", "adamw|adam|sgd|lion|adafactor", "optimizer", NULL),
    NUMBER(REAL, "lr", lr, "X", "1e-5", NULL, "learning rate", "learning-rate"),
    TEXT("lr-scheduler", lr_scheduler, "NAME", "cosine", "constant|linear|cosine|wsd",
         "learning rate over the steps", "lr-scheduler-type"),
    NUMBER(REAL, "warmup-steps", warmup_steps, "N", "0.03", NULL,
           "steps of warm-up; below 1: a fraction of all steps", NULL),
    NUMBER(REAL, "min-lr-ratio", min_lr_ratio, "X", "0.1", NULL, "of --lr, at the last step", NULL),
    NUMBER(REAL, "beta1", beta1, "X", "0.9", NULL, "decay of the first moment", "adam-beta1"),
    NUMBER(REAL, "beta2", beta2, "X", "0.999", NULL, "decay of the second moment", "adam-beta2"),
    NUMBER(REAL, "eps", eps, "X", "1e-8", NULL, "added to the root of the second moment", "adam-epsilon"),
    NUMBER(REAL, "weight-decay", weight_decay, "X", "0", NULL, "of matrices, not of norms and biases", NULL),
    NUMBER(REAL, "max-grad-norm", max_grad_norm, "X", "1.0", NULL, "clips the gradient's norm; 0: off", NULL),

    GROUP("precision"),
    TEXT("precision", precision, "NAME", "auto", "auto|bf16|fp16|fp32", "of weights and activations", NULL),
    TEXT("state-dtype", state_dtype, "NAME", "fp32", "fp32|bf16|int8", "of the moments", NULL),
    TEXT("grad-dtype", grad_dtype, "BITS", "16", "16|32", "of gradients as they cross to the host", NULL),
    NUMBER(REAL, "loss-scale", loss_scale, "X", "dynamic", "dynamic", "a fixed loss scale, fp16 only", NULL),

    GROUP("memory"),
    NUMBER(SIZE, "gpu-mem", gpu_mem, "SIZE", "auto", "auto",
           "cap on device memory; on the CPU device it is RAM, too", NULL),
    NUMBER(SIZE, "host-mem", host_mem, "SIZE", "auto", "auto", "cap on host memory", NULL),
    LIST("nvme", nvme, "DIR…",
         "folders for what memory does not hold, one a drive; without them the output folder"),
    LIST("place", place, "PLANE=TIER…",
         "weights, states, grads, acts on device, host, nvme or auto, with a share: states=device:40%"),
    NUMBER(INT, "prefetch-depth", prefetch_depth, "N", "auto", "auto", "layers fetched ahead", NULL),
    NUMBER(INT, "io-depth", io_depth, "N", "auto", "auto", "requests in flight for each drive and direction",
           NULL),
    NUMBER(SIZE, "io-block", io_block, "SIZE", "auto", "auto", "of a request", NULL),
    TEXT("io", io, "NAME", "auto", "auto|uring|threads", "how drives are asked", NULL),
    TEXT("recompute", recompute, "WORD", "full", "full|selective|none",
         "what backward computes again; selective and none keep activations on the device, for speed", NULL),
    FLAG("overlap", overlap, "on", "off: one operation after the other, the serial reference", NULL),
    NUMBER(REAL, "max-tbw", max_tbw, "N", "auto", "auto", "terabytes that this run may write to the drives",
           NULL),

    GROUP("loop"),
    NUMBER(INT, "save-steps", save_steps, "N", "auto", "auto",
           "a checkpoint every N steps and at the end; 0: at the end alone; auto: 500, without --data none",
           NULL),
    NUMBER(INT, "save-total-limit", save_total_limit, "N", "2", NULL, "checkpoints that are kept", NULL),
    AUTO(
        "resume", resume, "[auto|DIR]",
        "goes on from a checkpoint, or a run's newest; auto: that of --run-name, from the start where it has none"),
    NUMBER(INT, "eval-steps", eval_steps, "N", "0", NULL,
           "evaluates every N steps and at the end; 0: at the end alone", NULL),
    TEXT("sample-prompt", sample_prompt, "TEXT", NULL, NULL, "a text that the model goes on with", "prompt"),
    NUMBER(INT, "sample-steps", sample_steps, "N", "100", NULL, "every N steps, with --sample-prompt", NULL),
    NUMBER(INT, "max-tokens", max_tokens, "N", "64", NULL, "of a generated text", "max-new-tokens"),
    NUMBER(REAL, "temperature", temperature, "X", "0", NULL, "of generation; 0: the likeliest token", NULL),
    NUMBER(REAL, "top-p", top_p, "X", "1", NULL,
           "of generation: the likeliest tokens of this much probability", NULL),
    LIST("allow-changes", allow_changes, "NAME…", "settings that may differ from the resumed run's, or all"),
    TEXT("nan", nan, "WORD", "abort", "abort|skip", "a step whose loss or gradient is not finite", NULL),

    GROUP("output"),
    TEXT("output-dir", output_dir, "DIR", "runs", NULL, "the run's folder is made in it", "-o"),
    TEXT("run-name", run_name, "NAME", NULL, NULL, "of the run's folder; otherwise model and time", NULL),
    NUMBER(INT, "logging-steps", logging_steps, "N", "1", NULL, "prints every Nth step", NULL),
    TEXT("trace", trace, "FILE", NULL, NULL,
         "every operation, measured beside predicted, for ui.perfetto.dev", NULL),
    FLAG("json", json, NULL, "one JSON object a line on stdout", NULL),
    FLAG("quiet", quiet, NULL, "the last line only", "-q"),
    FLAG("verbose", verbose, NULL, "more about what is done", "-v"),
    TEXT("progress", progress, "WORD", "auto", "auto|on|off", "progress bar; auto: on a terminal", NULL),

    GROUP("system"),
    TEXT("device", device, "NAME", "auto", OT_DEVICE_KINDS, "where to compute", NULL),
    NUMBER(INT, "threads", threads, "N", "auto", "auto", "of the CPU; auto: one for each core allowed", NULL),
    NUMBER(INT, "ranks", ranks, "N", "auto", "auto",
           "processes that share one model, N here; auto: those of mpirun, srun or torchrun, or 1", "gpus"),
    NUMBER(INT, "zero", zero, "N", "auto", "auto",
           "what ranks share: 1 states, 2 and gradients, 3 and weights; auto: 3, with adafactor 1", NULL),
    NUMBER(REAL, "rank-timeout", rank_timeout, "S", "1800", NULL, "seconds that a rank waits for others",
           NULL),
    NUMBER(INT, "seed", seed, "N", "42", NULL, "of weights and of the data's order", NULL),
    TEXT("config", config, "FILE", NULL, NULL, "YAML with these names as keys; flags win over it", "-c"),
    FLAG("dry-run", dry_run, NULL, "the plan alone: offtrain plan", NULL),
    FLAG("print-config", print_config, NULL, "prints what -c would read", NULL),

    GROUP("plan for another machine (offtrain plan)"),
    TEXT("gpu", gpu, "NAME", NULL, NULL, "a GPU's memory and typical rates: rtx3090, rtx4090, rtx5090, …",
         NULL),
    NUMBER(REAL, "pcie", pcie, "GB/s", "auto", "auto", "of PCIe, each way", NULL),
    NUMBER(REAL, "nvme-gbs", nvme_gbs, "GB/s", "auto", "auto", "sustained, of one drive", NULL),
    NUMBER(REAL, "tbw", tbw, "TB", "1200", NULL, "endurance of the drives, together", NULL),
};

ot_option_table ot_train_table(const char *command, const char *summary)
{
    return (ot_option_table){command, summary, options, sizeof options / sizeof *options};
}

/* What a model preset changes among the defaults. */
static const struct preset {
    const char *model, *option, *value;
} presets[] = {
    {"tiny", "seq-len", "256"},
    {"tiny", "global-batch-size", "16"},
    {"tiny", "lr", "3e-3"},
    {"124m", "seq-len", "1024"},
};

static ot_status apply_presets(const ot_option_table *table, const char *model, ot_train_flags *flags)
{
    for (size_t i = 0; model != NULL && i < sizeof presets / sizeof *presets; i++)
        if (strcmp(presets[i].model, model) == 0)
            OT_TRY(ot_option_set(ot_options_find(table, presets[i].option), presets[i].option,
                                 (char *)(uintptr_t)presets[i].value, flags));
    return OT_OK;
}

/* ---- the checks ---- */

typedef struct range {
    const char *option;
    double low, high; /* both allowed */
} range;

static const range ranges[] = {
    {"val-split", 0, 0.9},
    {"seq-len", 2, 1 << 24},
    {"batch-size", 1, 1 << 16},
    {"grad-accum", 1, 1 << 16},
    {"global-batch-size", 1, 1 << 16},
    {"epochs", 0, 1e6},
    {"lr", 0, 1e30},
    {"warmup-steps", 0, 1e9},
    {"min-lr-ratio", 0, 1},
    {"beta1", 0, 0.9999999},
    {"beta2", 0, 0.9999999},
    {"eps", 0, 1},
    {"weight-decay", 0, 1e3},
    {"max-grad-norm", 0, 1e30},
    {"loss-scale", 1, 1 << 24},
    {"prefetch-depth", 1, 64},
    {"io-depth", 1, 256},
    {"max-tbw", 0, 1e9},
    {"save-steps", 0, 1e9},
    {"save-total-limit", 1, 1e6},
    {"eval-steps", 0, 1e9},
    {"sample-steps", 1, 1e9},
    {"max-tokens", 1, 1 << 20},
    {"temperature", 0, 100},
    {"top-p", 0, 1},
    {"logging-steps", 1, 1e9},
    {"threads", 1, 1024},
    {"ranks", 1, OT_RANKS_MAX},
    {"zero", 1, OT_ZERO_STAGES},
    {"rank-timeout", 1, 1e6},
    {"seed", 0, 9007199254740992.0},
    {"pcie", 0.01, 1e4},
    {"nvme-gbs", 0.001, 1e4},
    {"tbw", 0.001, 1e9},
};

static ot_status check_range(const ot_option_table *table, const range *r, const ot_train_flags *flags)
{
    const ot_option *option = ot_options_find(table, r->option);
    const void *field = (const char *)flags + option->offset;
    double value;
    if (option->kind == OT_OPTION_INT) {
        if (*(const int64_t *)field == OT_AUTO_INT)
            return OT_OK;
        value = (double)*(const int64_t *)field;
    } else
        value = *(const double *)field;
    if (value == OT_AUTO_REAL || (value >= r->low && value <= r->high))
        return OT_OK;
    return ot_fail(OT_ERR_USAGE, "--%s: %.10g is not in %.10g to %.10g", r->option, value, r->low, r->high);
}

static ot_status check_sizes(const ot_train_flags *flags)
{
    if (flags->gpu_mem != OT_AUTO_SIZE && flags->gpu_mem < 1 << 20)
        return ot_fail(OT_ERR_USAGE, "--gpu-mem: %" PRIu64 " bytes; write for example 24G", flags->gpu_mem);
    if (flags->host_mem != OT_AUTO_SIZE && flags->host_mem < 1 << 20)
        return ot_fail(OT_ERR_USAGE, "--host-mem: %" PRIu64 " bytes; write for example 64G", flags->host_mem);
    if (flags->io_block != OT_AUTO_SIZE &&
        (flags->io_block < 64 << 10 || flags->io_block > 64 << 20 || flags->io_block % 4096 != 0))
        return ot_fail(OT_ERR_USAGE,
                       "--io-block: %" PRIu64 " bytes; a multiple of 4K from 64K to 64M is needed",
                       flags->io_block);
    return OT_OK;
}

/* What measures whole gradients has them in one piece, and on the host. */
static ot_status check_adafactor(const ot_train_flags *flags, const ot_places *places)
{
    if (flags->ranks > 1 && flags->zero > 1)
        return ot_fail(OT_ERR_USAGE,
                       "--zero %" PRId64 ": --optim adafactor measures whole gradients, of which each rank "
                       "would have a part; use --zero 1",
                       flags->zero);
    if (!places->states.automatic && places->states.tier == OT_TIER_DEVICE)
        return ot_fail(
            OT_ERR_USAGE,
            "--place states=device: --optim adafactor measures whole gradients, which the CPU does; "
            "write states=host or states=nvme");
    return OT_OK;
}

static ot_status check_flags(const ot_option_table *table, const ot_train_flags *flags)
{
    ot_places places;
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        OT_TRY(check_range(table, &ranges[i], flags));
    OT_TRY(check_sizes(flags));
    OT_TRY(ot_places_parse(&flags->place, &places));
    if (flags->max_steps != -1 && flags->max_steps < 1)
        return ot_fail(OT_ERR_USAGE, "--max-steps: %" PRId64 "; 1 or more steps, or -1 to go by --epochs",
                       flags->max_steps);
    if (flags->warmup_steps >= 1 && flags->warmup_steps != floor(flags->warmup_steps))
        return ot_fail(OT_ERR_USAGE, "--warmup-steps: %g; whole steps, or a fraction below 1 of all steps",
                       flags->warmup_steps);
    if (flags->epochs == 0 && flags->max_steps == -1)
        return ot_fail(OT_ERR_USAGE,
                       "--epochs: 0 epochs train nothing; give a number above 0, or --max-steps");
    if (flags->run_name != NULL && (*flags->run_name == '\0' || strchr(flags->run_name, '/') != NULL ||
                                    strcmp(flags->run_name, ".") == 0 || strcmp(flags->run_name, "..") == 0))
        return ot_fail(OT_ERR_USAGE,
                       "--run-name: '%s' is no name of a folder; --output-dir says where it is made",
                       flags->run_name);
    if (*flags->output_dir == '\0')
        return ot_fail(OT_ERR_USAGE, "--output-dir: an empty name; . is the current folder");
    if (flags->eval_data != NULL && flags->val_split > 0)
        return ot_fail(OT_ERR_USAGE,
                       "--eval-data and --val-split both say what is evaluated; give one of them");
    if (strcmp(flags->optim, "adafactor") == 0)
        OT_TRY(check_adafactor(flags, &places));
    if (flags->quiet && flags->verbose)
        return ot_fail(OT_ERR_USAGE, "--quiet and --verbose contradict each other");
    return OT_OK;
}

/* ---- the batch ---- */

static ot_status contradiction(const ot_train_flags *flags)
{
    int64_t b = flags->batch_size, a = flags->grad_accum, g = flags->global_batch_size;
    if (flags->ranks > 1)
        return ot_fail(OT_ERR_USAGE,
                       "--global-batch-size %" PRId64 " is no multiple of --ranks %" PRId64
                       " times --batch-size and --grad-accum",
                       g, flags->ranks);
    if (b != OT_AUTO_INT && a != OT_AUTO_INT)
        return ot_fail(OT_ERR_USAGE,
                       "--batch-size %" PRId64 " times --grad-accum %" PRId64 " is %" PRId64
                       ", and --global-batch-size is %" PRId64 "; leave one of them out",
                       b, a, b * a, g);
    return ot_fail(OT_ERR_USAGE, "--global-batch-size %" PRId64 " is no multiple of --%s %" PRId64, g,
                   b != OT_AUTO_INT ? "batch-size" : "grad-accum", b != OT_AUTO_INT ? b : a);
}

/* A global batch that was not asked for follows the others; one that was must agree with them. */
static ot_status settle_batch(ot_train_flags *flags, int global_given)
{
    int64_t b = flags->batch_size, a = flags->grad_accum, *g = &flags->global_batch_size;
    int both = b != OT_AUTO_INT && a != OT_AUTO_INT;
    int64_t part = both ? a * b : b != OT_AUTO_INT ? b : a;
    if (part == OT_AUTO_INT && flags->ranks == 1)
        return OT_OK;
    part = (part == OT_AUTO_INT ? 1 : part) * flags->ranks;
    if (both ? *g == part : *g % part == 0)
        return OT_OK;
    if (global_given)
        return contradiction(flags);
    *g = both || *g < part ? part : part * (*g / part);
    return OT_OK;
}

/* ---- reading ---- */

static int is_given(const ot_config *config, const ot_option_table *table, int argc, char **argv,
                    const char *name)
{
    return ot_options_peek(table, argc, argv, name) != NULL ||
           (config != NULL && ot_config_peek(config, table, name) != NULL);
}

static ot_status read_all(const ot_option_table *table, int argc, char **argv, ot_train_flags *flags,
                          const ot_config *config)
{
    const char *model = ot_options_peek(table, argc, argv, "model");
    if (model == NULL && config != NULL)
        model = ot_config_peek(config, table, "model");
    OT_TRY(ot_options_defaults(table, flags));
    OT_TRY(apply_presets(table, model, flags));
    if (config != NULL)
        OT_TRY(ot_config_apply(config, table, OT_TRAIN_NOT_IN_CONFIG, flags));
    OT_TRY(ot_options_arguments(table, argc, argv, flags));
    OT_TRY(check_flags(table, flags));
    if (flags->ranks == OT_AUTO_INT)
        flags->ranks = ot_group_launched() > 0 ? ot_group_launched() : 1;
    OT_TRY(settle_batch(flags, is_given(config, table, argc, argv, "global-batch-size")));
    return check_flags(table, flags); /* the global batch that has come out */
}

ot_status ot_train_flags_read(const ot_option_table *table, int argc, char **argv, ot_train_flags *flags,
                              ot_config **config, int *help)
{
    *flags = (ot_train_flags){0};
    *config = NULL;
    *help = ot_options_want_help(table, argc, argv);
    if (*help)
        return OT_OK;
    const char *path = ot_options_peek(table, argc, argv, "config");
    if (path != NULL)
        OT_TRY(ot_config_open(path, config));
    ot_status status = read_all(table, argc, argv, flags, *config);
    if (status != OT_OK) {
        ot_config_close(*config);
        *config = NULL;
    }
    return status;
}
