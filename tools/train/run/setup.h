/*
 * setup.h - from options, and a checkpoint where there is one, to a trainer that can take its first step
 */
#ifndef SHARDKIT_TRAIN_RUN_SETUP_H
#define SHARDKIT_TRAIN_RUN_SETUP_H

#include "libcommon/base/err.h"

struct trainer;

/* Everything up to the first step. ERR_USAGE: exit 2. */
MUST_CHECK int trainer_setup(struct trainer *t, struct err *e);
/*
 * For --preflight: the device's kernels, and the shape if the options or a checkpoint tell of a model (else t->stage
 * is NULL).
 */
MUST_CHECK int trainer_setup_preflight(struct trainer *t, struct err *e);
void trainer_free(struct trainer *t);

#endif
