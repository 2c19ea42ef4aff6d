/*
 * verdict.h - which values make a checkpoint unsound
 *
 * verify reads all values, a converter those that it writes and a sample of the others, a backup what verify reads.
 * All of them decide by these functions, so that none accepts what another calls an error.
 */
#ifndef SHARDKIT_LAYOUT_VERDICT_H
#define SHARDKIT_LAYOUT_VERDICT_H

#include "libcommon/layout/layout.h"
#include "libcommon/plan/stats.h"

/* Values of one tensor, which a finding names. */
struct verdict_of {
    const struct source *s;
    const char *file;                   /* NULL: the set as a whole */
    const char *param;                  /* or another tensor */
    const char *what;                   /* "exp_avg", "fp32 of the last stage" */
    const struct tmap *map;             /* all of it */
    bool trained;                       /* the optimizer has states of it */
    uint64_t n_read;                    /* elements that were counted; 0: all */
    enum severity severity;             /* of what is an error: SEV_WARNING where mismatches are accepted */
};
/*
 * "not_finite", "negative_exp_avg_sq": nothing to report when all counts are 0. A tensor that is not trained and holds
 * zeros and infinities alone is a mask, which is a note.
 */
void verdict_values(const struct verdict_of *of, const struct values *v, struct report *r);

/*
 * "tied": two copies of a tied parameter. Copies that differ by rounding alone, one step of their type, are a warning.
 * The first stage's is the one that tools use.
 */
void verdict_tied(const struct verdict_of *of, const struct stats_diff *d, struct report *r);
/* The last stage's position table of a GPT-2 model exists but is neither tied nor trained: it is no copy. */
bool verdict_tie_is_kept(const struct param *p);

/* "replicas": n of the elements read are not the same on all tensor-parallel ranks; `drift`: copies may drift. */
void verdict_replicas(const struct verdict_of *of, uint64_t n, bool drift, struct report *r);

#endif
