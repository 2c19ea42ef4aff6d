/*
 * agree.h - give all ranks the same outcome
 */
#ifndef SHARDKIT_TRAIN_RUN_AGREE_H
#define SHARDKIT_TRAIN_RUN_AGREE_H

#include "libcommon/base/err.h"

struct trainer;

/*
 * Combine the outcomes of all ranks; each calls it with its rc and *e. Returns 0 if all succeeded. Otherwise it
 * returns -1 on all ranks with the same *e, that of the lowest rank that failed, and sets t->all_know; the message
 * names that rank unless all ranks failed. It also returns -1 if the ranks cannot communicate.
 */
MUST_CHECK int agree_all_well(struct trainer *t, int rc, struct err *e);

#endif
