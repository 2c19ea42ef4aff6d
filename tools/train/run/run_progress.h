/*
 * run_progress.h - how far a run has got: the values that a checkpoint continues
 */
#ifndef SHARDKIT_TRAIN_RUN_RUN_PROGRESS_H
#define SHARDKIT_TRAIN_RUN_RUN_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/model/loss_scale.h"
#include "tools/train/options/schedule.h"

struct run_progress {
    /* true once the values below are valid: the run is set up and, with --load, the checkpoint is loaded */
    bool ready;
    struct schedule schedule;
    int64_t iteration, consumed_samples, consumed_valid_samples, consumed_tokens;
    double gigaflos;
    int64_t passed_samples;     /* samples that skipped iterations passed over */
    int64_t skipped_iteration;  /* the last skipped iteration; 0: none */
    int64_t opt_step;           /* Adam's step count at the last update */
    struct loss_scale scale;    /* for fp16; else 1 */
    int64_t skipped_steps;      /* iterations without an update because a gradient overflowed */
    bool overflow;              /* the last iteration was one of these */
    double last_norm;           /* gradient norm of the last update; 0: there was no update yet */
    /* learning rate from the checkpoint, for the first update with --override-lr-scheduler; negative: none */
    double stored_lr;
    int64_t micro_batches;      /* number of micro-batches of the last step */
};

#endif
