/* A job: what the flags mean on this machine. From the model and the data to the plan, before anything big is allocated. */
#ifndef OT_TOOLS_JOB_H
#define OT_TOOLS_JOB_H

#include "engine/data.h"
#include "engine/hf_config.h"
#include "engine/modelfile.h"
#include "engine/schedule.h"
#include "engine/trainer.h"
#include "io/budget.h"
#include "offload/simulate.h"
#include "tools/job_data.h"
#include "tools/rates.h"
#include "tools/train_flags.h"

/* What may be taken, in bytes. */
typedef struct ot_limits {
    uint64_t device, host, nvme; /* each tier's cap */
    uint64_t memory; /* device and host together, where both are this machine's RAM; else UINT64_MAX */
} ot_limits;

typedef struct ot_job {
    const ot_train_flags *flags;
    ot_model *model;
    const char *model_directory; /* of its files; NULL: a preset, and random weights */
    ot_hf_config *config;        /* its config.json */
    ot_model_source *source;     /* its weights */
    ot_source values;            /* the same, for the trainer */
    ot_job_data data;
    ot_dataset *dataset;  /* data.training */
    ot_training training; /* with the batch, budgets and rates that were chosen */
    int batch_fixed;      /* B and M were given */
    size_t sequences;     /* of a step, of all ranks */
    size_t share;         /* of them one rank's: B*M */
    uint64_t local_ranks; /* that share this machine's cores, memory and drives */

    ot_memory_budget memory; /* as found */
    ot_limits limits;        /* one rank's */
    const ot_card *card;     /* the plan is for another machine; NULL: for this one */
    int shared;              /* device memory is RAM */
    ot_device *device; /* with little memory, to measure and to ask; NULL: the plan is for another machine */
    char device_kind[16];
    char device_name[160];
    double gemm_rate; /* measured flops a second; 0: not known */
    size_t drives;    /* file systems of the NVMe tier */

    ot_plan *plan;        /* NULL: nothing fits */
    ot_timeline timeline; /* predicted, of a step in the middle of a run */

    uint64_t total_steps, steps_per_epoch;
    ot_schedule schedule;
} ot_job;

/* Fills `job` up to the plan; `flags` outlive it. OT_ERR_FIT where no plan fits: the job then holds everything but the plan. */
ot_status ot_job_open(const ot_train_flags *flags, ot_job *job) OT_MUST_CHECK;

/* The same for commands that go on: where no plan fits, need and have and what would fit are the failure's text. */
ot_status ot_job_open_fitting(const ot_train_flags *flags, ot_job *job) OT_MUST_CHECK;
void ot_job_close(ot_job *job);

/* The model that --model means: a folder's config.json, or with `*config` NULL a preset. */
ot_status ot_job_find_model(const char *model, ot_hf_config **config, ot_model_config *out) OT_MUST_CHECK;

/* Opens and checks the files with the model's weights, for the trainer to fill from. */
ot_status ot_job_open_source(ot_job *job) OT_MUST_CHECK;

/* Tokens of a step, padding in it. */
uint64_t ot_job_step_tokens(const ot_job *job);

/* Closes the device that the plan was made with, when the trainer is about to open its own. */
void ot_job_release_device(ot_job *job);

/* Looks for the plan within limits and with the formats of `training`: the largest micro-batch that fits (unless it is fixed), and
 * then the fastest split of RAM between device and host. `*training` gets what was chosen. OT_ERR_FIT where none fits. */
ot_status ot_job_fit(const ot_job *job, const ot_limits *limits, ot_training *training, ot_plan **plan,
                     ot_timeline *timeline) OT_MUST_CHECK;

/* Whether the micro-batch of `training` fits in any way: OT_OK, OT_ERR_FIT, or another failure of the plan. */
ot_status ot_job_fits(const ot_limits *limits, const ot_training *training) OT_MUST_CHECK;

/* The list that the steady step of a plan is: STEADY, or FIRST where no update is left to the next step; for inference EVAL. */
ot_list_kind ot_steady_kind(const ot_plan *plan);
const ot_list *ot_steady_list(const ot_plan *plan);

/* Work of a step of one rank without recompute: three times forward. */
double ot_job_model_flops(const ot_job *job);

/* What the flag or the machine must have for one rank to have so many bytes of a tier: of host and drives what the ranks of the
 * machine have together. */
uint64_t ot_job_machine_bytes(const ot_job *job, ot_tier tier, uint64_t bytes);

/* What the limits of this machine are: budgets.c. */
ot_status ot_job_find_limits(ot_job *job) OT_MUST_CHECK;

/* The smallest changes that would make it fit, as sentences, or where it fits, what would make it faster; suggest.c. */
enum { OT_SUGGESTIONS_MAX = 8, OT_SUGGESTION_BYTES = 320 };
typedef struct ot_suggestions {
    size_t count;
    char texts[OT_SUGGESTIONS_MAX][OT_SUGGESTION_BYTES];
    uint64_t need
        [OT_TIERS]; /* one rank's: the smallest cap of each tier that fits, the others as they are; 0: none does */
    double
        automatic_s; /* a step with the automatic choices in place of the forced ones; 0: nothing is forced */
} ot_suggestions;

void ot_job_suggest(const ot_job *job, ot_suggestions *out);

#endif
