/* The flags of `offtrain train` and `offtrain plan`, from defaults, preset, configuration file and command line, in this order. */
#ifndef OT_TOOLS_TRAIN_FLAGS_H
#define OT_TOOLS_TRAIN_FLAGS_H

#include "offload/plan.h"
#include "tools/config.h"
#include "tools/option.h"

/* Numbers with a word such as "auto" are OT_AUTO_… where it was given (option.h). */
typedef struct ot_train_flags {
    const char *model;

    ot_option_list data;
    const char *eval_data, *data_format, *chat_template, *train_on, *long_documents;
    double val_split;
    int64_t seq_len;
    int packing, shuffle;

    int64_t batch_size, grad_accum, global_batch_size, max_steps;
    double epochs;

    const char *optim, *lr_scheduler;
    double lr, warmup_steps, min_lr_ratio, beta1, beta2, eps, weight_decay, max_grad_norm;

    const char *precision, *state_dtype, *grad_dtype;
    double loss_scale;

    uint64_t gpu_mem, host_mem, io_block;
    ot_option_list nvme, place;
    int64_t prefetch_depth, io_depth;
    const char *io, *recompute;
    int overlap;
    double max_tbw;

    const char *nan;
    int64_t save_steps, save_total_limit, eval_steps;
    const char *sample_prompt; /* NULL: none */
    int64_t sample_steps, max_tokens;
    double temperature, top_p;
    const char *resume; /* NULL: from the start */
    ot_option_list allow_changes;

    const char *output_dir, *run_name, *trace, *progress;
    int64_t logging_steps;
    int json, quiet, verbose;

    const char *device;
    int64_t threads, seed;
    int64_t ranks; /* as many as asked for, or as a launcher has started */
    int64_t zero;
    double rank_timeout;
    const char *config;
    int dry_run, print_config;

    int model_is_resumed; /* no flag: the model was not given and is that of the checkpoint, which may go */
    int inference;        /* no flag: the command evaluates or generates, and trains nothing */

    const char *gpu;
    double pcie, nvme_gbs, tbw;
} ot_train_flags;

/* Options that no configuration file holds. */
#define OT_TRAIN_NOT_IN_CONFIG "config|print-config|dry-run|resume|allow-changes"

/* The table for a command: "offtrain train" or "offtrain plan". */
ot_option_table ot_train_table(const char *command, const char *summary);

/* Reads all flags and checks each of them alone. `*config` is the file they came from, or NULL; texts in `flags` live as long as it
 * does. `*help` as ot_options_parse. */
ot_status ot_train_flags_read(const ot_option_table *table, int argc, char **argv, ot_train_flags *flags,
                              ot_config **config, int *help) OT_MUST_CHECK;

/* Where --place wants the planes. */
typedef struct ot_places {
    ot_placement weights, states, grads, acts;
} ot_places;

/* Reads "weights=device", "states=host:40%", … */
ot_status ot_places_parse(const ot_option_list *list, ot_places *out) OT_MUST_CHECK;

#endif
