/*
 * step.h - one iteration: batch, passes, and an update or none
 */
#ifndef SHARDKIT_TRAIN_RUN_STEP_H
#define SHARDKIT_TRAIN_RUN_STEP_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/base/err.h"

struct trainer;

struct step {
    int64_t batch;              /* samples */
    double loss, seconds;
    double norm;                /* of a step that was skipped: the last one's that was not */
    double params_norm;         /* negative: not asked for */
};

/* Pass over the data of iterations that --skip-train-iteration-range names (docs/training.md 6.3). */
void step_skip(struct trainer *t);
/*
 * The next iteration. 1: it came to a norm or loss that is not finite and that nothing can be done about, a loss scale
 * at its minimum included; nothing was updated or counted, norm and loss are in *x.
 */
MUST_CHECK int step_train(struct trainer *t, struct step *x, struct err *e);
/* Is there a loss scale? */
bool step_scales(const struct trainer *t);

#endif
