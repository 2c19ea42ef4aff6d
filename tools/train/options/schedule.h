/*
 * schedule.h - the arithmetic of a run: number of samples, learning rate, FLOPs
 *
 * The functions depend only on their arguments (docs/training.md, sections 4 and 6.4). They use double where the
 * reference uses Python floats, with the same order of operations, so the printed values are equal.
 *
 *   schedule_batch()          global batch size after `consumed` samples, including the ramp-up
 *   schedule_iterations()     number of iterations of the whole run
 *   schedule_lr_*()           learning rate; its state is saved in checkpoints
 *
 * The order of operations in one step is that of the reference:
 *   M = batch / (b * dp); forward and backward; AdamW with lr = schedule_lr_now(lr)
 *   schedule_lr_step(lr, batch, consumed_tokens)        consumed_tokens does NOT include this step yet
 *   iteration += 1; consumed_samples += batch; consumed_tokens += batch * s
 *   the log line prints schedule_lr_now(lr)
 */
#ifndef SHARDKIT_TRAIN_OPTIONS_SCHEDULE_H
#define SHARDKIT_TRAIN_OPTIONS_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/base/err.h"
#include "libcommon/base/mem.h"
#include "libcommon/model/schedule_lr.h"
#include "tools/train/options/train_options.h"

/* ---- batch size ---- */

struct schedule_ramp {
    int64_t gbs;                /* the final batch size */
    /* batch size at the start, and increment; inc 0: there is no ramp, and the batch size is constant */
    int64_t start, inc;
    int64_t samples;            /* number of samples of the ramp */
    double per;                 /* number of samples between two increments */
};

/*
 * Initialize the ramp from --global-batch-size and from the n words of --rampup-batch-size; n is 0 or 3. Fails with
 * ERR_USAGE.
 */
MUST_CHECK int schedule_ramp_init(struct schedule_ramp *r, int64_t gbs, int n, char *const *words, struct err *e);
int64_t schedule_batch(const struct schedule_ramp *r, int64_t consumed_samples);
/*
 * Compute the number of micro-batches per rank and step. If it is not a whole number, fails with ERR_USAGE, naming
 * batch, micro-batch and data-parallel size.
 */
MUST_CHECK int schedule_micro_batches(int64_t batch, int64_t micro_batch, int64_t dp, int64_t *m, struct err *e);
/*
 * Check that every batch size of the rest of the run can be divided into micro-batches. An error is thus reported
 * before the run instead of during it.
 */
MUST_CHECK int schedule_ramp_check(const struct schedule_ramp *r, int64_t consumed_samples, int64_t micro_batch,
                                   int64_t dp, struct err *e);
/*
 * Returns the number of iterations that consume train_samples samples. A last batch that would be incomplete is
 * dropped.
 */
int64_t schedule_iterations(const struct schedule_ramp *r, int64_t train_samples);

/* ---- learning rate ---- */

/*
 * Continue the learning-rate scheduler of a checkpoint (docs/training.md, section 4.3). The counters always come from
 * the checkpoint. The rules come from the options with --override-lr-scheduler, and from the checkpoint with
 * --use-checkpoint-lr-scheduler. With neither, both must have the same rules; otherwise the function fails with
 * ERR_USAGE, naming both values. The lines that the reference prints (" > using checkpoint value ...") are appended to
 * `lines`.
 */
MUST_CHECK int schedule_lr_resume(struct schedule_lr *lr, const struct schedule_lr *saved, bool override,
                                  bool use_checkpoint, struct strbuf *lines, struct err *e);

/* ---- the whole schedule ---- */

struct schedule {
    struct schedule_ramp ramp;
    struct schedule_lr lr;
    int64_t train_iters;
    int64_t train_samples;      /* number of samples that the training set must have */
};

/*
 * Initialize the schedule from options that have been checked. Fails with ERR_USAGE if batch sizes or rules are
 * invalid.
 */
MUST_CHECK int schedule_init(struct schedule *s, const struct train_opts *o, struct err *e);
/*
 * Returns the number of samples that each validation set must have. schedule_test_samples() returns the number for each
 * test set (docs/training.md, section 5.2).
 */
int64_t schedule_valid_samples(const struct schedule *s, const struct train_opts *o);
int64_t schedule_test_samples(const struct schedule *s, const struct train_opts *o);
/*
 * Returns the amount that one step adds to gigaflos_no_embeds: 6 * samples * s * the number of parameters without
 * embeddings, in billions.
 */
double schedule_gigaflos(int64_t samples, int64_t s, double params_no_embeds_billions);

/* ---- throughput and planning (docs/training.md, section 6.4) ---- */

/*
 * Returns the FLOPs of one iteration by the formula of the reference. passes is 4 with activation recomputation, else
 * 3. V is the padded vocabulary size.
 */
double schedule_flops(int passes, int64_t batch, int64_t s, int64_t L, int64_t h, int64_t V);
double schedule_tflops(double flops, double elapsed_s, int world);
uint64_t schedule_checkpoint_bytes(uint64_t params);            /* 14 bytes per parameter */

#endif
