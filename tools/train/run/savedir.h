/*
 * savedir.h - the folder of --save: whether it takes a checkpoint, and what becomes of those that it holds
 *
 * A run whose first save would be older than what the folder holds is refused, unless that was asked for: by --load of
 * an older step in the same folder, by a `latest` that names one, or by --new-run. Then the newer checkpoints (with
 * --new-run all) are moved into a folder next to them when the first save begins, and no earlier: a run that fails
 * before that has changed nothing.
 */
#ifndef SHARDKIT_TRAIN_RUN_SAVEDIR_H
#define SHARDKIT_TRAIN_RUN_SAVEDIR_H

#include "libcommon/base/err.h"

struct trainer;

/*
 * Can a checkpoint be saved where --save points? All ranks. ERR_USAGE when there is no room for one, ERR_DATA when a
 * host cannot make, write or rename files there. A dry run only looks.
 */
MUST_CHECK int savedir_check(struct trainer *t, struct err *e);

/* Rank 0, before anything is written: ERR_USAGE names the ways on. 0 where only the opened checkpoint can answer. */
MUST_CHECK int savedir_check_steps_early(const struct trainer *t, struct err *e);
/* The same by all ranks, after the checkpoint was opened and the folder locked. */
MUST_CHECK int savedir_check_steps(struct trainer *t, struct err *e);
/* Rank 0, before a save: move what has to make way, once. */
MUST_CHECK int savedir_make_way(struct trainer *t, struct err *e);

#endif
