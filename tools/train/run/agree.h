/*
 * agree.h - one outcome for all ranks
 */
#ifndef SHARDKIT_TRAIN_RUN_AGREE_H
#define SHARDKIT_TRAIN_RUN_AGREE_H

#include "libcommon/base/err.h"

struct trainer;

/*
 * All ranks have come here, each with its rc and *e: 0 when all did well. Else -1 and the same *e on all, of the
 * lowest rank that failed, which it names unless all did; t->all_know. (Or they cannot speak to each other.)
 */
MUST_CHECK int agree_all_well(struct trainer *t, int rc, struct err *e);

#endif
