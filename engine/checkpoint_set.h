/* The checkpoints of a run's folder: `checkpoint-N`, N the step after which it was written, and `latest`, a link to the newest.
 *
 * A checkpoint is written to `checkpoint-N.tmp` and renamed when all of it is on the drive, so whatever has the right name and a
 * manifest is whole; damage afterwards is found by the manifest. */
#ifndef OT_ENGINE_CHECKPOINT_SET_H
#define OT_ENGINE_CHECKPOINT_SET_H

#include "engine/manifest.h"

/* FOLDER/checkpoint-N, with ".tmp" behind it where `unfinished`. `path` has PATH_MAX bytes. */
ot_status ot_checkpoint_path(const char *folder, uint64_t step, int unfinished, char *path) OT_MUST_CHECK;

/* Gives checkpoint-N.tmp its name, in place of an older one of that step, and points `latest` to it. Durable on return. */
ot_status ot_checkpoint_publish(const char *folder, uint64_t step) OT_MUST_CHECK;

/* The newest checkpoint of the folder that is whole: those that are damaged are named in the log and passed over. `path`
 * (PATH_MAX bytes) is "" where the folder has none at all; OT_ERR_FORMAT where all of them are damaged. */
ot_status ot_checkpoint_newest(const char *folder, char *path, ot_manifest *out) OT_MUST_CHECK;

/* Removes the oldest checkpoints of this run until `limit` >= 1 are left, and those of later steps than `step`, which a run
 * that went on from an earlier one leaves behind. Folders of other runs, and whatever else lies there, stay. */
ot_status ot_checkpoint_rotate(const char *folder, const ot_manifest *newest, uint64_t limit) OT_MUST_CHECK;

/* Removes what a run that died while saving has left: checkpoint-N.tmp. */
ot_status ot_checkpoint_sweep(const char *folder) OT_MUST_CHECK;

#endif
