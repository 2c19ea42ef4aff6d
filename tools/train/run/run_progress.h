/* run_progress.h - how far a run has got: the values with which a run continues from a checkpoint */
#ifndef SHARDKIT_TRAIN_RUN_RUN_PROGRESS_H
#define SHARDKIT_TRAIN_RUN_RUN_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/model/loss_scale.h"
#include "tools/train/options/schedule.h"

struct run_progress {
    /* The following values are valid: the run has been set up and, with --load, the checkpoint has been loaded. */
    bool ready;
    struct schedule schedule;
    int64_t iteration, consumed_samples, consumed_valid_samples, consumed_tokens;
    double gigaflos;
    int64_t passed_samples;     /* number of samples whose training was skipped */
    int64_t skipped_iteration;  /* the last iteration that was skipped; 0: none */
    int64_t opt_step;           /* Adam's step count after the last update */
    struct loss_scale scale;    /* the loss scale; its value is 1 without fp16 */
    int64_t skipped_steps;      /* number of iterations whose update was skipped because a gradient overflowed */
    bool overflow;              /* the update of the last iteration was skipped for this reason */
    double last_norm;           /* norm of the gradient in the last update; 0: there was no update yet */
    /* The learning rate in the checkpoint, which the first update uses with --override-lr-scheduler. Negative: none. */
    double stored_lr;
    int64_t micro_batches;      /* number of micro-batches of the last step */
};

#endif
