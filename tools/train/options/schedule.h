/*
 * schedule.h - the run's arithmetic: number of samples, learning rate, FLOPs
 *
 * These are pure functions of numbers (docs/training.md, sections 4 and 6.4). They use double where the reference
 * uses Python floats, in the same order of operations, so the printed values agree.
 *
 *   schedule_batch()          global batch size after `consumed` samples (ramp-up)
 *   schedule_iterations()     number of iterations of the whole run
 *   schedule_lr_*()           learning rate; its state is saved in checkpoints
 *
 * One step, in the reference's order:
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
    int64_t start, inc;         /* inc 0: the batch size is constant, without a ramp */
    int64_t samples;            /* length of the ramp */
    double per;                 /* samples between two increments of the ramp */
};

/*
 * Initialize the ramp from --global-batch-size and the words of --rampup-batch-size (n is 0 or 3). Fails with
 * ERR_USAGE.
 */
MUST_CHECK int schedule_ramp_init(struct schedule_ramp *r, int64_t gbs, int n, char *const *words, struct err *e);
int64_t schedule_batch(const struct schedule_ramp *r, int64_t consumed_samples);
/* Compute the number of micro-batches per rank and step. ERR_USAGE names batch, micro-batch and data-parallel size. */
MUST_CHECK int schedule_micro_batches(int64_t batch, int64_t micro_batch, int64_t dp, int64_t *m, struct err *e);
/*
 * Check that every batch size that is still to come can be divided into micro-batches, so that an error is reported
 * before the run and not during it.
 */
MUST_CHECK int schedule_ramp_check(const struct schedule_ramp *r, int64_t consumed_samples, int64_t micro_batch,
                                   int64_t dp, struct err *e);
/* Returns the number of iterations that consume train_samples; a partial last batch is dropped. */
int64_t schedule_iterations(const struct schedule_ramp *r, int64_t train_samples);

/* ---- learning rate ---- */

/*
 * Continue the scheduler of a checkpoint (docs/training.md, section 4.3). --override-lr-scheduler selects the command
 * line's rules, --use-checkpoint-lr-scheduler the checkpoint's. With neither option both rules must agree; if not,
 * ERR_USAGE names both values. The counters always come from the checkpoint. The reference's lines (" > using
 * checkpoint value ...") are appended to `lines`.
 */
MUST_CHECK int schedule_lr_resume(struct schedule_lr *lr, const struct schedule_lr *saved, bool override,
                                  bool use_checkpoint, struct strbuf *lines, struct err *e);

/* ---- the whole schedule ---- */

struct schedule {
    struct schedule_ramp ramp;
    struct schedule_lr lr;
    int64_t train_iters;
    int64_t train_samples;      /* number of samples that the training set must provide */
};

/* Initialize the schedule from checked options. Fails with ERR_USAGE if batch sizes or rules are invalid. */
MUST_CHECK int schedule_init(struct schedule *s, const struct train_opts *o, struct err *e);
/*
 * Returns the number of samples needed from each validation set; schedule_test_samples() returns that for each test set
 * (docs/training.md, section 5.2).
 */
int64_t schedule_valid_samples(const struct schedule *s, const struct train_opts *o);
int64_t schedule_test_samples(const struct schedule *s, const struct train_opts *o);
/*
 * Returns 6 * samples * s * parameters without embeddings in billions: the amount that one step adds to
 * gigaflos_no_embeds.
 */
double schedule_gigaflos(int64_t samples, int64_t s, double params_no_embeds_billions);

/* ---- throughput and planning (docs/training.md, section 6.4) ---- */

/*
 * Returns the FLOPs of one iteration by the reference's formula. passes is 4 with activation recomputation, else 3. V
 * is the padded vocabulary size.
 */
double schedule_flops(int passes, int64_t batch, int64_t s, int64_t L, int64_t h, int64_t V);
double schedule_tflops(double flops, double elapsed_s, int world);
uint64_t schedule_checkpoint_bytes(uint64_t params);            /* 14 bytes per parameter */

#endif
