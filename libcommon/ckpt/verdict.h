/*
 * verdict.h - decide which values make a checkpoint unsound
 *
 * verify and a backup read all values; a converter reads those that it writes, and a sample of the others. All of them
 * use these functions, so that none of them accepts what another one reports as an error.
 */
#ifndef SHARDKIT_CKPT_VERDICT_H
#define SHARDKIT_CKPT_VERDICT_H

#include "libcommon/ckpt/param.h"
#include "libcommon/plan/stats.h"

/* The tensor whose values are checked. A finding names it. */
struct verdict_of {
    const struct source *s;
    const char *file;                   /* NULL if the finding is about the whole checkpoint */
    const char *param;                  /* name of the parameter, or of another tensor */
    const char *what;                   /* the state or copy, such as "exp_avg" or "fp32 of the last stage" */
    const struct tmap *map;             /* map of the whole tensor */
    bool trained;                       /* the optimizer has states for the parameter */
    enum scale_use scale;               /* use of the parameter as a scale of quantised weights */
    uint64_t n_read;                    /* number of elements that were read; 0 if all were */
    /* severity of findings that are errors: SEV_ERROR, or SEV_WARNING if the user accepts mismatches */
    enum severity severity;
};
/*
 * Report "not_finite" and "negative_exp_avg_sq" according to the counts in v. Reports nothing if all counts are 0.
 * "not_finite" is only a note for a mask. A tensor is a mask if it is not trained, does not have the name of a weight,
 * and consists of zeros and infinities only. Also reports "scale" for a scale that is negative, for a scale of scales
 * that is 0, and, as a warning, for scales that are all 0.
 */
void verdict_values(const struct verdict_of *of, const struct values *v, struct report *r);
/*
 * Report like verdict_values(). If a finding is an error, returns -1 with this error in *e, which names
 * --accept-mismatch.
 */
MUST_CHECK int verdict_check_values(const struct verdict_of *of, const struct values *v, struct report *r,
                                    struct err *e);

/*
 * Report "tied" if d shows that two copies of a tied parameter differ. If they differ only by rounding (one step of
 * their type), the finding is a warning, because tools use the first stage's copy.
 */
void verdict_tied(const struct verdict_of *of, const struct stats_diff *d, struct report *r);
/*
 * Returns false for the position table of a GPT-2 model. The last stage has such a table, too, but it is neither tied
 * nor trained, so it is not a copy of the first stage's table.
 */
bool verdict_tie_is_kept(const struct param *p);

/*
 * Report "replicas" if n > 0. n is the number of the elements read that differ between tensor-parallel ranks. If
 * `drift` is true, the finding is only a warning, because these copies may drift apart in training.
 */
void verdict_replicas(const struct verdict_of *of, uint64_t n, bool drift, struct report *r);

#endif
