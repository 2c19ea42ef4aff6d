/*
 * savedir.h - will the folder of --save take a checkpoint?
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

#endif
