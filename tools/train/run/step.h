/*
 * step.h - one iteration: batch, forward and backward passes, and an update unless it is skipped
 */
#ifndef SHARDKIT_TRAIN_RUN_STEP_H
#define SHARDKIT_TRAIN_RUN_STEP_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/base/err.h"

struct digest_set;
struct trainer;

/* The comparison of copies during a run. */
struct run_copies {
    struct digest_set *digests; /* NULL: there are no copies, or comparing them is disabled */
    /*
     * the digests of all weights with copies are recorded in each step that has at least this many tokens per replica,
     * and in each step that compares the copies
     */
    int64_t whole_tokens;
    int64_t n_compared;         /* number of comparisons */
    double wait_s;              /* how long the run has waited for them */
    double steps_s;             /* time of all iterations of this run */
};

struct step {
    int64_t batch;              /* number of samples */
    double loss, seconds;
    double norm;                /* gradient norm; for a skipped step, the norm of the last step that was not skipped */
    double params_norm;         /* negative: not requested */
};

/* Skip the data of the iterations that --skip-train-iteration-range lists (docs/training.md 6.3). */
void step_skip(struct trainer *t);
/*
 * Run the next iteration. Returns 1 if the norm or loss is not finite and the step cannot be skipped, which includes
 * a loss scale at its minimum. In that case nothing is updated or counted, and *x has the norm and loss.
 */
MUST_CHECK int step_train(struct trainer *t, struct step *x, struct err *e);
/* Returns true if a loss scale is used. */
bool step_scales(const struct trainer *t);

#endif
