/*
 * moments.h - check that exp_avg and exp_avg_sq belong to the same gradients
 *
 * Both moments are weighted sums over the same gradients, with weights (1-b1) b1^k and (1-b2) b2^k. By the
 * Cauchy-Schwarz inequality, exp_avg^2 <= (1-b1)^2 / (1-b2) / (1 - b1^2/b2) * exp_avg_sq for any gradients; the factor
 * is 1.36 for betas 0.9 and 0.95. Moments of different elements violate this nearly everywhere.
 */
#ifndef SHARDKIT_CHECK_MOMENTS_H
#define SHARDKIT_CHECK_MOMENTS_H

#include <pthread.h>

#include "libcommon/base/report.h"

struct param;
struct source;
struct tmap;

/*
 * Returns the bound of exp_avg^2 / exp_avg_sq of each parameter, computed from the betas of its group; 0: unknown. If
 * the source does not list which parameters are in each group, every parameter gets the largest bound of all groups.
 * The caller frees the array.
 */
double *moments_bounds(const struct source *s);

struct moments_count {
    uint64_t n;                 /* number of elements compared */
    uint64_t n_large;           /* number of elements whose exp_avg violates the bound */
    uint64_t n_far;             /* number of elements that other betas in the past cannot explain */
    uint64_t first;             /* if n_large > 0: index of the first of these elements */
};
/*
 * The short form of a moment has 16 bits per element: exp_avg is rounded towards zero, exp_avg_sq is rounded up. The
 * short form is for chunks that are kept in memory. Its rounding weakens the comparison by at most 2 %, and never
 * causes additional findings.
 */
enum moments_form { MOMENTS_FP32, MOMENTS_SHORT_AVG, MOMENTS_SHORT_SQ };
/* Elements of both moments. The elements are floats; only those of the moment that `form` names are uint16_t. */
struct moments_pair {
    enum moments_form form;
    const void *avg, *sq;
};
/* Write the short form of n elements. */
void moments_shorten(bool is_sq, const float *x, uint64_t n, uint16_t *out);
/* Compare n elements of both moments and add the counts to *c. If `most` is 0, none are counted. */
void moments_compare(struct moments_count *c, const struct moments_pair *p, uint64_t n, double most);
/* Returns true if the counted moments cannot be of the same gradients. */
bool moments_are_foreign(const struct moments_count *c);
/* Report that elements of a parameter, in the file with this number, are moments of different gradients. */
void moments_report(const struct source *s, const char *param, int file, const struct moments_count *c,
                    enum severity severity, struct report *r);

/* ---- all elements, in any order (verify) ---- */

/* The state of a comparison of all elements of one parameter. Each run of MOMENTS_RUN elements has separate counts. */
#define MOMENTS_RUN (1u << 14)
struct moments_whole {
    pthread_mutex_t lock;       /* protects *run */
    const struct tmap *sq;
    double most;                /* bound; 0: the parameter is not compared */
    uint64_t n_runs;
    /* counts of each run; NULL as long as no element violates the bound */
    struct moments_run { uint32_t n_large, n_far; uint64_t first; } *run;
};
/* Returns true if both moments of `p` are stored in a form that can be compared, and the bound is known. */
bool moments_begin(struct moments_whole *w, const struct param *p, double most);
/* Compare n elements. They begin at byte `from` of both fp32 tensors. May be called from any thread. */
void moments_add(struct moments_whole *w, uint64_t from, const struct moments_pair *p, uint64_t n);
/*
 * Report the worst run whose moments are of different gradients. Nothing is reported if the report already has a
 * finding "moments" about the same file or parameter. Releases the memory of *w.
 */
void moments_end(struct moments_whole *w, const struct source *s, const char *param, struct report *r);

#endif
