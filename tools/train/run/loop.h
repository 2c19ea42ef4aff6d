/*
 * loop.h - the iterations of a run
 */
#ifndef SHARDKIT_TRAIN_RUN_LOOP_H
#define SHARDKIT_TRAIN_RUN_LOOP_H

#include "libcommon/base/err.h"
#include "tools/train/log/status.h"

struct trainer;

/*
 * Run iterations until the training is complete or a stop is requested. *reason receives the reason why it stopped.
 * Returns -1 on failure.
 */
MUST_CHECK int trainer_run(struct trainer *t, enum status_reason *reason, struct err *e);

#endif
