/* Several ranks of one run: how they are started, and what they must agree on. NULL is a group of one: nothing to agree on. */
#ifndef OT_TOOLS_RANKS_H
#define OT_TOOLS_RANKS_H

#include <jansson.h>

#include "engine/trainer.h"
#include "tools/train_flags.h"

/* Whether this process has to start the ranks: several are wanted, and no launcher has started it. */
int ot_ranks_must_launch(const ot_train_flags *flags);

/* In the environment of ranks that this program has started itself: they all print in one place. */
#define OT_RANKS_LAUNCHED "OFFTRAIN_LAUNCHED"

/* Runs this program with these arguments once a rank, under mpirun, and waits for all. Signals that ask for a clean end are
 * handed on; a second one ends the ranks. Not OT_OK: the exit code of the rank that failed, without a text where it has said why. */
ot_status ot_ranks_launch(const ot_train_flags *flags, int argc, char **argv) OT_MUST_CHECK;

/* What one of so many ranks of this machine gets of its cores. */
ot_status ot_ranks_share_threads(const ot_train_flags *flags, int64_t ranks, int *threads) OT_MUST_CHECK;

/* Joins the ranks that a launcher has started; `*out` is NULL where there is one alone. Those of one machine share its cores,
 * unless the launcher has shared them out: `flags->threads`. */
ot_status ot_ranks_join(ot_train_flags *flags, ot_group **out) OT_MUST_CHECK;

/* What all ranks have done each by itself has gone well with all, or fails on all of them with the code of the first that failed,
 * which alone keeps its text: it is told once. */
ot_status ot_ranks_agree(ot_group *group, ot_status own) OT_MUST_CHECK;

/* Leaves the group at the run's end, `own`: with the others where it is theirs, too (`agreed`: ot_ranks_agree has found it), or else
 * telling them. Prints a failure's text before the first process of the group has gone, with which a launcher may end the others
 * and what they had to say; the text stays, "" where another rank tells it. Returns how this rank ends. */
ot_status ot_ranks_leave(ot_group *group, ot_status own, int agreed) OT_MUST_CHECK;

/* OT_ERR_USAGE where several ranks are wanted of a command that has one. */
ot_status ot_ranks_refuse(const ot_train_flags *flags, const char *command) OT_MUST_CHECK;

/* Rank 0's micro-batches, budgets and rates become everybody's, and so its plan. */
ot_status ot_ranks_share_training(ot_group *group, ot_training *training) OT_MUST_CHECK;

/* OT_ERR_USAGE where this rank's settings (name → value) are not rank 0's: names what differs. */
ot_status ot_ranks_compare_settings(ot_group *group, const json_t *settings) OT_MUST_CHECK;

/* The folders of the NVMe tier become this rank's own: DIR/rank-N in those of rank 0, made where they are missing. */
typedef struct ot_rank_folders {
    char *paths[OT_OPTION_LIST_MAX];
    size_t count;
} ot_rank_folders;
ot_status ot_ranks_make_folders(ot_group *group, ot_training *training, ot_rank_folders *out) OT_MUST_CHECK;
void ot_ranks_remove_folders(ot_rank_folders *folders); /* those that are empty */

/* ot_stop_check of all ranks: who is asked to stop asks everybody, at the same step. */
ot_status ot_ranks_stop_check(ot_group *group) OT_MUST_CHECK;

#endif
