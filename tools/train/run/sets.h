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
 * Open the data sets. All ranks must call it. First a thread of rank 0 builds the index files that are missing.
 * Meanwhile the ranks exchange the progress several times per second, and rank 0 shows the percentage in the log and in
 * status.json (phase "index"). A signal or the kill switch stops the build, with ERR_STOP on all ranks; what has been
 * built so far is kept (gpt_index.h). If the build makes no progress, the other ranks wait, as for any call that hangs.
 */
MUST_CHECK int sets_open(struct trainer *t, struct err *e);
void sets_close(struct trainer *t);

#endif
