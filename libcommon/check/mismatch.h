/*
 * mismatch.h - check that weights, masters and moments of a checkpoint belong to the same save
 *
 * At every save a trainer's weights are its masters, rounded. A layer file of another run, or a shard of another rank,
 * therefore differs already in its first few values. The exception are the copies of LayerNorms and biases on tensor
 * ranks: some runs average the weights at every step but never the masters, and converters average both independently.
 * verify compares all values; a converter samples every piece that it will read.
 */
#ifndef SHARDKIT_CHECK_MISMATCH_H
#define SHARDKIT_CHECK_MISMATCH_H

#include <stddef.h>

#include "libcommon/check/damage.h"

struct param;
struct report;

/* How closely a parameter's weights must match its masters. */
enum mismatch_rule {
    MISMATCH_EXACT,             /* bit for bit the rounded masters */
    MISMATCH_NEAR,              /* replicated: weights and masters may have been averaged, each independently */
    MISMATCH_FREE,              /* replicated, in a run that averages only the weights: not compared */
};
enum mismatch_rule mismatch_rule_of(const struct source *s, const struct param *p);

struct mismatch_count {
    uint64_t n, n_differ;       /* elements compared, and those that are not the rounded master */
    uint64_t n_far;             /* elements that differ by more than averaging explains: 1/64 of the value */
    bool dense;                 /* in one call of mismatch_compare() at least 1 % of the elements, and at least 2,
                                 * differed */
};
/* Returns true if weights have a type that can be compared with these masters, and as many elements. */
bool mismatch_can_compare(const struct tmap *weights, const struct tmap *masters);
/* Compare n weights of type bf16, f16 or f32 with n fp32 masters, and add the counts to *c. */
void mismatch_compare(struct mismatch_count *c, enum dtype weights, const void *w, const void *masters, size_t n);
/*
 * Returns SEV_ERROR if the counted elements cannot be of one save, SEV_WARNING if only single elements differ, else
 * SEV_NOTE.
 */
enum severity mismatch_classify(const struct mismatch_count *c, enum mismatch_rule rule);

struct mismatch_opts {
    bool accept;                /* report warnings instead of errors */
    bool drift;                 /* do not report copies of replicated parameters that disagree; the caller handles
                                 * them */
    bool moments_only;          /* compare only the two moments with each other; verify checks all other values
                                 * itself */
    int threads;                /* threads that read; 0 = 16 */
};
/*
 * Sample the first and last values of every piece. Adds "bf16_master" if weights are not of the same save as their
 * masters, "moments" if the two moments belong to different gradients, "other_rank" (copies.h), and what verdict.h
 * finds in the sampled values: "not_finite", "negative_exp_avg_sq", "replicas", "tied". A source that was opened
 * without its masters (DeepSpeed, ZeRO, torch_dist) is opened again with them. If the masters are damaged, only the
 * weights are sampled. Values that cannot be read are skipped; damage is not reported here.
 */
void mismatch_sample(const struct source *s, const struct mismatch_opts *o, struct report *r);
/*
 * Search a checkpoint that may have lost or damaged files for files of another save. Adds errors "bf16_master" and
 * "moments", and a note MISMATCH_FOREIGN_FILE for each file that is of another save, as far as the values can decide
 * which one it is. Parameters that `d` lists are skipped; d may be NULL.
 */
#define MISMATCH_FOREIGN_FILE "foreign_file"
void mismatch_find_foreign(const struct source *s, const struct damage *d, int threads, struct report *r);
/* Returns true if source_opts.accept_mismatch makes a finding with this code a warning. */
bool mismatch_is(const struct finding *f);

#endif
