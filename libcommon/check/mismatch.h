/*
 * mismatch.h - are the weights, masters and moments of a checkpoint of one save?
 *
 * A trainer's weights are its masters, rounded, at every save. So a layer file of another
 * run, or a shard of another rank, shows in the first few values. Copies that tensor ranks
 * keep of LayerNorms and biases are the exception: some runs average the weights at every
 * step and never the masters, and converters average both, each by itself.
 * verify compares all values; a converter takes a sample of every piece that it will read.
 */
#ifndef SHARDKIT_CHECK_MISMATCH_H
#define SHARDKIT_CHECK_MISMATCH_H

#include <stddef.h>

#include "libcommon/check/damage.h"

struct param;
struct report;

/* How near a parameter's weights must be to its masters. */
enum mismatch_rule {
    MISMATCH_EXACT,             /* rounded, bit for bit */
    MISMATCH_NEAR,              /* replicated: perhaps averaged since, weights and masters each by themselves */
    MISMATCH_FREE,              /* replicated in a run that averages the weights alone */
};
enum mismatch_rule mismatch_rule_of(const struct source *s, const struct param *p);

struct mismatch_count {
    uint64_t n, n_differ;       /* elements; those that are not the rounded master */
    uint64_t n_far;             /* ... by more than any averaging explains: 1/64 of the value */
    bool dense;                 /* in some run of elements that was compared in one call, 1 % differ or more */
};
/* Weights of a type that can be compared with these masters, and as many. */
bool mismatch_can_compare(const struct tmap *weights, const struct tmap *masters);
/* Compare n weights of bf16, f16 or f32 with n fp32 masters, and add the result. */
void mismatch_compare(struct mismatch_count *c, enum dtype weights, const void *w, const void *masters, size_t n);
/* All elements counted: ERROR when they cannot be of one save, WARNING when single ones differ, else NOTE. */
enum severity mismatch_classify(const struct mismatch_count *c, enum mismatch_rule rule);

struct mismatch_opts {
    bool accept;                /* findings are warnings */
    bool drift;                 /* copies of replicated parameters may disagree: that is the caller's matter */
    bool moments_only;          /* both moments alone: verify reads all other values itself */
    int threads;                /* reading; 0 = 16 */
};
/*
 * Inspect the first and last values of every piece: "bf16_master" where weights are not of their masters' save,
 * "moments" where the two belong to different gradients, and what verdict.h finds in those values: "not_finite",
 * "negative_exp_avg_sq", "replicas", "tied". A source that was opened without its masters (DeepSpeed, ZeRO, torch_dist)
 * is opened again with them. If they are damaged, the weights alone are sampled. Damage is not reported here: what
 * cannot be read is passed over.
 */
void mismatch_sample(const struct source *s, const struct mismatch_opts *o, struct report *r);
/*
 * Inspect a checkpoint that may have lost or damaged files, for files of another save: errors "bf16_master" and
 * "moments", and a note MISMATCH_FOREIGN_FILE for each file that is of another save, as far as the values decide it.
 * Parameters that `d` lists are passed over; d may be NULL.
 */
#define MISMATCH_FOREIGN_FILE "foreign_file"
void mismatch_find_foreign(const struct source *s, const struct damage *d, int threads, struct report *r);
/* Is this finding one that accept_mismatch makes a warning? */
bool mismatch_is(const struct finding *f);

#endif
