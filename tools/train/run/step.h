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

/* The state of the comparison of copies during a run. */
struct run_copies {
    struct digest_set *digests; /* NULL: there are no copies, or they are not compared */
    /*
     * The smallest number of tokens per replica for which the digests of all weights with copies are recorded in each
     * step. For smaller steps, they are recorded only in the steps that compare copies.
     */
    int64_t whole_tokens;
    int64_t n_compared;         /* number of comparisons */
    double wait_s;              /* for how long the run has waited for comparisons */
    double steps_s;             /* duration of all iterations of this run */
};

struct step {
    int64_t batch;              /* number of samples */
    double loss, seconds;
    /* norm of the gradient; for a skipped step, the norm of the last step that was not skipped */
    double norm;
    double params_norm;         /* negative: not requested */
};

/* Skip the data of the iterations that --skip-train-iteration-range names (docs/training.md 6.3). */
void step_skip(struct trainer *t);
/*
 * Run the next iteration. Returns 1 if the norm or the loss is not finite and the step cannot be skipped, for example
 * because the loss scale is at its minimum. In that case nothing is updated or counted, and *x has the norm and the
 * loss.
 */
MUST_CHECK int step_train(struct trainer *t, struct step *x, struct err *e);
/* Returns true if a loss scale is used. */
bool step_scales(const struct trainer *t);

#endif
