/*
 * mismatch.h - check that weights, masters and moments of a checkpoint belong to the same save
 *
 * Masters are the optimizer's fp32 copies of the weights. In every save of a trainer, the weights are the rounded
 * masters. A layer file of another run, or a shard of another rank, therefore differs already in its first few values.
 * LayerNorms and biases are an exception, because every tensor rank has a copy of them: some runs average the weights
 * at every step but never the masters, and converters average both independently. verify compares all values; a
 * converter samples every piece that it will read.
 */
#ifndef SHARDKIT_CHECK_MISMATCH_H
#define SHARDKIT_CHECK_MISMATCH_H

#include <stddef.h>

#include "libcommon/check/damage.h"

struct param;
struct report;

/* How closely a parameter's weights must match its masters. */
enum mismatch_rule {
    MISMATCH_EXACT,             /* the weights must have exactly the bits of the rounded masters */
    MISMATCH_NEAR,              /* for replicated parameters: weights and masters may each have been averaged
                                 * independently */
    MISMATCH_FREE,              /* for replicated parameters in a run that averages only the weights: weights and
                                 * masters are not compared */
};
enum mismatch_rule mismatch_rule_of(const struct source *s, const struct param *p);

struct mismatch_count {
    uint64_t n, n_differ;       /* number of elements compared, and number of those that are not the rounded master */
    uint64_t n_far;             /* number of elements that differ by more than 1/64 of the value, which averaging
                                 * cannot explain */
    bool dense;                 /* one call of mismatch_compare() found that at least 1 % of its elements, and at least
                                 * 2, differ */
};
/* Returns true if the weights have a type that can be compared with these masters, and the same number of elements. */
bool mismatch_can_compare(const struct tmap *weights, const struct tmap *masters);
/* Compare n weights of type bf16, f16 or f32 with n fp32 masters, and add the counts to *c. */
void mismatch_compare(struct mismatch_count *c, enum dtype weights, const void *w, const void *masters, size_t n);
/*
 * Returns SEV_ERROR if the counted weights and masters cannot be of the same save. Returns SEV_WARNING if only single
 * elements differ, and SEV_NOTE otherwise.
 */
enum severity mismatch_classify(const struct mismatch_count *c, enum mismatch_rule rule);

struct mismatch_opts {
    bool accept;                /* report a mismatch as a warning instead of an error */
    bool drift;                 /* do not report replicated parameters whose copies disagree, because the caller handles
                                 * these */
    bool moments_only;          /* compare only the two moments with each other, because verify itself checks all other
                                 * values */
    bool kept;                  /* also sample states that are compared with no other state, because the caller does not
                                 * read all values */
    int threads;                /* number of threads that read; 0 = 16 */
};
/*
 * Sample the first and last values of every piece. Adds these findings:
 *   bf16_master   weights and masters are not of the same save
 *   moments       the two moments belong to different gradients
 *   other_rank    see copies.h
 *   not_finite, negative_exp_avg_sq, replicas, tied   see verdict.h
 * A source of DeepSpeed, ZeRO or torch_dist that was opened without its masters is opened a second time with them. If
 * the masters are damaged, only the weights are sampled. Values that cannot be read are skipped. If records of the
 * first ERROR's parameter do not match their CRCs, an ERROR "crc" is added before this ERROR. Other damage is not
 * reported. With moments_only, the caller compares the CRCs.
 */
void mismatch_sample(const struct source *s, const struct mismatch_opts *o, struct report *r);
/*
 * Search a checkpoint for files of another save. Some files of the checkpoint may be lost or damaged. Adds errors
 * "bf16_master" and "moments". If the values show that a file is of another save, adds a note MISMATCH_FOREIGN_FILE for
 * it. Parameters that `d` lists as damaged are skipped; d may be NULL.
 */
#define MISMATCH_FOREIGN_FILE "foreign_file"
void mismatch_find_foreign(const struct source *s, const struct damage *d, int threads, struct report *r);
/* Returns true if the finding has a code that source_opts.accept_mismatch turns into a warning. */
bool mismatch_is(const struct finding *f);

#endif
