/*
 * savedir.h - check the folder of --save, and set aside checkpoints in it that conflict with the run
 *
 * A run is refused if a checkpoint in the folder is newer than the state from which the run begins. There are three
 * exceptions, in which the user has requested it: --load names an older checkpoint of the same folder, `latest` names
 * an older one, or --new-run is given. In these cases the newer checkpoints (with --new-run all checkpoints) are moved
 * into another folder next to them. This happens when the first save begins, so a run that fails earlier has changed
 * nothing.
 */
#ifndef SHARDKIT_TRAIN_RUN_SAVEDIR_H
#define SHARDKIT_TRAIN_RUN_SAVEDIR_H

#include "libcommon/base/err.h"

struct trainer;

/*
 * Check that a checkpoint can be saved in the folder of --save. All ranks must call it. Fails with ERR_USAGE if there
 * is not enough space for a checkpoint, and with ERR_DATA if a host cannot create, write or rename files in the folder.
 * A dry run only inspects the folder, and writes nothing.
 */
MUST_CHECK int savedir_check(struct trainer *t, struct err *e);

/*
 * Check the checkpoints in the folder of --save, on rank 0, before anything is written. Fails with ERR_USAGE if they
 * conflict with the run; the message lists the options for continuing. Returns 0 if this cannot be decided before the
 * checkpoint of --load is opened.
 */
MUST_CHECK int savedir_check_steps_early(const struct trainer *t, struct err *e);
/*
 * Repeat the check of savedir_check_steps_early() after the checkpoint of --load has been opened and the folder has
 * been locked. Rank 0 checks, and all ranks receive its result. All ranks must call it.
 */
MUST_CHECK int savedir_check_steps(struct trainer *t, struct err *e);
/*
 * Set aside the checkpoints that conflict with this run. Called before each save, but only the first call moves
 * anything, and only on rank 0.
 */
MUST_CHECK int savedir_set_aside(struct trainer *t, struct err *e);
/*
 * If the run begins with a checkpoint of the folder whose save was interrupted before `latest` was set, rank 0 sets
 * `latest` to this checkpoint and prints a note. If that fails, rank 0 prints a warning with the command that sets
 * `latest`. Must be called after all checks. It is needed because a run that has nothing to train saves nothing, so
 * `latest` would still name the checkpoint before.
 */
void savedir_set_latest(struct trainer *t);

#endif
