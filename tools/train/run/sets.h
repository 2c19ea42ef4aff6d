/*
 * sets.h - the data of a run: its training, validation and test sets
 */
#ifndef SHARDKIT_TRAIN_RUN_SETS_H
#define SHARDKIT_TRAIN_RUN_SETS_H

#include "libcommon/base/err.h"

struct trainer;

/*
 * Open them. All ranks. Rank 0 first builds the index files that are missing, by a thread: while that goes on, ranks
 * exchange how far it is several times a second, log and status.json have the percent (phase "index"), and a signal or
 * the kill switch ends it with ERR_STOP on all ranks. What was built until then is kept (gpt_index.h). A build that
 * makes no progress lets the other ranks wait, as any call that hangs.
 */
MUST_CHECK int sets_open(struct trainer *t, struct err *e);
void sets_close(struct trainer *t);

#endif
