/*
 * setup.h - create a trainer that is ready for its first step, from options and possibly a checkpoint
 */
#ifndef SHARDKIT_TRAIN_RUN_SETUP_H
#define SHARDKIT_TRAIN_RUN_SETUP_H

#include "libcommon/base/err.h"

struct trainer;

/* Set up the trainer, so that its first step can run. A failure with ERR_USAGE leads to exit status 2. */
MUST_CHECK int trainer_setup(struct trainer *t, struct err *e);
/*
 * Set up what --preflight needs: the kernels of the device, and the sizes of the model if the options or a checkpoint
 * describe one (otherwise t->network.stage is NULL).
 */
MUST_CHECK int trainer_setup_preflight(struct trainer *t, struct err *e);
void trainer_free(struct trainer *t);

#endif
