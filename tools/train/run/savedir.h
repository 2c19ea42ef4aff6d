/*
 * savedir.h - check the folder of --save, and move checkpoints in it that conflict with the run
 *
 * A run is refused if its first save would be older than a checkpoint in the folder, unless the user requested that:
 * with --load of an older step in the same folder, with a `latest` that names one, or with --new-run. In these cases
 * the newer checkpoints (with --new-run all of them) are moved into a folder next to them, not before the first save
 * begins. A run that fails earlier has changed nothing.
 */
#ifndef SHARDKIT_TRAIN_RUN_SAVEDIR_H
#define SHARDKIT_TRAIN_RUN_SAVEDIR_H

#include "libcommon/base/err.h"

struct trainer;

/*
 * Check that a checkpoint can be saved in the folder of --save. All ranks must call it. ERR_USAGE: there is not
 * enough space for one. ERR_DATA: a host cannot create, write or rename files there. A dry run only inspects the
 * folder and writes nothing.
 */
MUST_CHECK int savedir_check(struct trainer *t, struct err *e);

/*
 * Check the checkpoints in the folder of --save on rank 0, before anything is written. ERR_USAGE lists the options for
 * continuing. Returns 0 if the answer depends on the checkpoint of --load, which is not open yet.
 */
MUST_CHECK int savedir_check_steps_early(const struct trainer *t, struct err *e);
/*
 * Repeat the check of savedir_check_steps_early(), after the checkpoint of --load has been opened and the folder
 * locked. All ranks must call it. Rank 0 checks, and all ranks receive its result.
 */
MUST_CHECK int savedir_check_steps(struct trainer *t, struct err *e);
/*
 * Move the checkpoints that conflict with this run out of the way, once. Called before each save; only rank 0 moves
 * them, and on other ranks the function does nothing.
 */
MUST_CHECK int savedir_set_aside(struct trainer *t, struct err *e);

#endif
