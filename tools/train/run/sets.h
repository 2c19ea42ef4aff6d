/*
 * sets.h - the training, validation and test sets of a run
 */
#ifndef SHARDKIT_TRAIN_RUN_SETS_H
#define SHARDKIT_TRAIN_RUN_SETS_H

#include "libcommon/base/err.h"

struct dataset;
struct trainer;

/* The open data sets of a run. */
struct run_sets {
    struct dataset *train;
    int n_valid, n_test;
    struct evaluate_set *valid, *test;
};

/*
 * Open the data sets. All ranks must call it. A thread of rank 0 first builds missing index files. Meanwhile the
 * ranks exchange the progress several times per second, the log and status.json have the percentage (phase "index"),
 * and a signal or the kill switch stops it with ERR_STOP on all ranks. The parts built so far are kept (gpt_index.h).
 * A build that makes no progress blocks the other ranks, like any call that hangs.
 */
MUST_CHECK int sets_open(struct trainer *t, struct err *e);
void sets_close(struct trainer *t);

#endif
