/*
 * schedule.h - how many samples, which learning rate, how many FLOPs: the run's arithmetic
 *
 * Pure functions of numbers (docs/training.md, sections 4 and 6.4), all in double where the
 * reference uses Python floats, in the same order of operations, so printed values agree.
 *
 *   schedule_batch()          global batch size after `consumed` samples (ramp-up)
 *   schedule_iterations()     how many iterations the whole run has
 *   schedule_lr_*()           learning rate; state goes into checkpoints
 *
 * A step, in the reference's order:
 *   M = batch / (b * dp); forward and backward; AdamW with lr = schedule_lr_now(lr)
 *   schedule_lr_step(lr, batch, consumed_tokens)        tokens BEFORE this step is counted
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
#include "tools/train/options/options.h"

/* ---- batch size ---- */

struct schedule_ramp {
    int64_t gbs;                /* the final batch size */
    int64_t start, inc;         /* inc 0: constant, no ramp */
    int64_t samples;            /* that the ramp lasts */
    double per;                 /* samples between two steps of the ramp */
};

/* --global-batch-size with the words of --rampup-batch-size (n 0 or 3). ERR_USAGE. */
MUST_CHECK int schedule_ramp_init(struct schedule_ramp *r, int64_t gbs, int n, char *const *words, struct err *e);
int64_t schedule_batch(const struct schedule_ramp *r, int64_t consumed_samples);
/* Micro-batches per rank and step. ERR_USAGE names batch, micro-batch and data-parallel size. */
MUST_CHECK int schedule_micro_batches(int64_t batch, int64_t micro_batch, int64_t dp, int64_t *m, struct err *e);
/* The same for every batch size that is still to come: told before the run and not in its middle. */
MUST_CHECK int schedule_ramp_check(const struct schedule_ramp *r, int64_t consumed_samples, int64_t micro_batch,
                                   int64_t dp, struct err *e);
/* Iterations that train_samples make; a partial last batch is dropped. */
int64_t schedule_iterations(const struct schedule_ramp *r, int64_t train_samples);

/* ---- learning rate ---- */

/*
 * Go on from a checkpoint's scheduler (docs/training.md, section 4.3): by --override-lr-scheduler the rules stay
 * the command line's, by --use-checkpoint-lr-scheduler they are the checkpoint's, and with
 * neither they must agree: else ERR_USAGE naming both values. Counters always come from the
 * checkpoint. The reference's lines (" > using checkpoint value ...") are added to `lines`.
 */
MUST_CHECK int schedule_lr_resume(struct schedule_lr *lr, const struct schedule_lr *saved, bool override,
                                  bool use_checkpoint, struct strbuf *lines, struct err *e);

/* ---- the whole ---- */

struct schedule {
    struct schedule_ramp ramp;
    struct schedule_lr lr;
    int64_t train_iters;
    int64_t train_samples;      /* that the training set must hold */
};

/* From checked options. ERR_USAGE as above. */
MUST_CHECK int schedule_init(struct schedule *s, const struct train_opts *o, struct err *e);
/* Samples asked of each validation set and of each test set (docs/training.md, section 5.2). */
int64_t schedule_valid_samples(const struct schedule *s, const struct train_opts *o);
int64_t schedule_test_samples(const struct schedule *s, const struct train_opts *o);
/* 6 * samples * s * parameters without embeddings in billions: what one step adds to gigaflos_no_embeds. */
double schedule_gigaflos(int64_t samples, int64_t s, double params_no_embeds_billions);

/* ---- throughput and planning (docs/training.md, section 6.4) ---- */

/* FLOPs of one iteration by the reference's formula; passes 4 with activation recomputation, else 3. V padded. */
double schedule_flops(int passes, int64_t batch, int64_t s, int64_t L, int64_t h, int64_t V);
double schedule_tflops(double flops, double elapsed_s, int world);
uint64_t schedule_checkpoint_bytes(uint64_t params);            /* 14 a parameter */

#endif
