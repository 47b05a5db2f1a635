/* A run over several sessions: which checkpoint it goes on from, and the checkpoints it leaves. */
#ifndef OT_TOOLS_SESSION_H
#define OT_TOOLS_SESSION_H

#include <limits.h>

#include "engine/checkpoint.h"
#include "tools/job.h"

typedef struct ot_session {
    ot_run_state state;
    char folder[PATH_MAX];     /* of the run that goes on; "": a new one */
    char checkpoint[PATH_MAX]; /* that it goes on from; "": from the start */
    ot_checkpoint_source *source;
    ot_companions
        *companions; /* of the model's directory, for the checkpoints to come; NULL: there are none */
} ot_session;

/* Finds what --resume means, verifies it and reads its state; flags that were left to the plan and decide the numbers become the
 * resumed run's. OT_ERR_FORMAT where there is no whole checkpoint, OT_ERR_USAGE where it is not clear which run is meant. */
ot_status ot_session_open(ot_train_flags *flags, ot_session *out) OT_MUST_CHECK;
void ot_session_close(ot_session *session);

/* With a plan: compares the settings with those of the resumed run, and opens the source of its values, which without a
 * checkpoint is the model's directory. Holds on to the model's other files. The settings become the state's. */
ot_status ot_session_bind(ot_session *session, ot_job *job) OT_MUST_CHECK;

/* After ot_session_bind, on all ranks: OT_ERR_USAGE where this one's settings, or what else must be alike for all to do the same at
 * the same step, are not rank 0's. */
ot_status ot_session_compare_ranks(const ot_session *session, const ot_job *job) OT_MUST_CHECK;

/* Whether this run writes checkpoints, and after how many steps; 0: at the end alone. */
int ot_session_saves(const ot_train_flags *flags, uint64_t *every);

/* OT_ERR_FIT where the folder's drive has no room for one more checkpoint; a warning where it has none for all that are kept. */
ot_status ot_session_check_space(const ot_job *job, const char *folder) OT_MUST_CHECK;

/* OT_ERR_FIT where all sessions together would write more than --max-tbw to the drives, checkpoints included. */
ot_status ot_session_check_writes(const ot_job *job, const ot_run_state *state) OT_MUST_CHECK;

/* Writes a checkpoint into the run's folder. */
ot_status ot_session_save(ot_session *session, const ot_job *job, ot_trainer *trainer, const char *folder,
                          uint64_t *bytes) OT_MUST_CHECK;

#endif
