/*
 * loop.h - the iterations of a run
 */
#ifndef SHARDKIT_TRAIN_RUN_LOOP_H
#define SHARDKIT_TRAIN_RUN_LOOP_H

#include "libcommon/base/err.h"
#include "tools/train/log/status.h"

struct trainer;

/* Until it is done or told to stop. *reason says why; -1 for a failure. */
MUST_CHECK int trainer_run(struct trainer *t, enum status_reason *reason, struct err *e);

#endif
