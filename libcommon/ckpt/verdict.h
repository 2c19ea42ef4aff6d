/*
 * verdict.h - decide which values make a checkpoint unsound
 *
 * verify reads all values, a converter those that it writes and a sample of the others, a backup those that verify
 * reads. All of them use these functions, so that none accepts what another one reports as an error.
 */
#ifndef SHARDKIT_CKPT_VERDICT_H
#define SHARDKIT_CKPT_VERDICT_H

#include "libcommon/plan/stats.h"

struct param;

/* The values of one tensor, which a finding names. */
struct verdict_of {
    const struct source *s;
    const char *file;                   /* NULL for the checkpoint as a whole */
    const char *param;                  /* or the name of another tensor */
    const char *what;                   /* "exp_avg", "fp32 of the last stage" */
    const struct tmap *map;             /* the whole tensor */
    bool trained;                       /* the optimizer has states for it */
    uint64_t n_read;                    /* number of elements counted; 0 for all */
    enum severity severity;             /* severity of errors: SEV_WARNING if mismatches are accepted */
};
/*
 * Report "not_finite" and "negative_exp_avg_sq". Reports nothing if all counts are 0. A tensor that is not trained,
 * is no weight by its name, and contains zeros and infinities and nothing else is a mask, which is reported as a note.
 */
void verdict_values(const struct verdict_of *of, const struct values *v, struct report *r);

/*
 * Report "tied": two copies of a tied parameter differ. Copies that differ only by rounding, one step of their type,
 * cause a warning. Tools use the first stage's copy.
 */
void verdict_tied(const struct verdict_of *of, const struct stats_diff *d, struct report *r);
/*
 * Returns false for the last stage's position table of a GPT-2 model, which exists but is neither tied nor trained,
 * so it is not a copy.
 */
bool verdict_tie_is_kept(const struct param *p);

/*
 * Report "replicas": n of the elements that were read differ between tensor-parallel ranks. `drift` is true if the
 * copies may drift apart.
 */
void verdict_replicas(const struct verdict_of *of, uint64_t n, bool drift, struct report *r);

#endif
