/*
 * setup.h - create a trainer that is ready for its first step, from options and possibly a checkpoint
 */
#ifndef SHARDKIT_TRAIN_RUN_SETUP_H
#define SHARDKIT_TRAIN_RUN_SETUP_H

#include "libcommon/base/err.h"

struct trainer;

/* Set up the trainer completely, up to the first step. ERR_USAGE leads to exit status 2. */
MUST_CHECK int trainer_setup(struct trainer *t, struct err *e);
/*
 * For --preflight: open the device's kernels, and determine the shape if the options or a checkpoint describe a model
 * (else t->network.stage is NULL).
 */
MUST_CHECK int trainer_setup_preflight(struct trainer *t, struct err *e);
void trainer_free(struct trainer *t);

#endif
