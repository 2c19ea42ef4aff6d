/*
 * stats.h - statistics of the values of a tensor, and the distance between two tensors
 *
 * Tensors are processed in chunks of fixed size, so the memory does not depend on the size of the tensor. The sums of
 * each chunk are computed separately, and then joined in the order of the tensor. Equal input therefore gives the same
 * bits with any number of threads. NaN and infinity are counted, and are excluded from sums, minima and maxima.
 */
#ifndef SHARDKIT_PLAN_STATS_H
#define SHARDKIT_PLAN_STATS_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/base/progress.h"
#include "libcommon/base/report.h"
#include "libcommon/plan/tmap.h"

struct stats {
    uint64_t n;                 /* number of elements */
    uint64_t n_nan, n_inf, n_zero, n_negative;      /* -0 counts as zero and not as negative */
    double sum, sum_sq;         /* sums over all finite values */
    double min, max;            /* over all finite values; valid only if stats_n_finite() > 0 */
};

struct stats_diff {
    uint64_t n;                 /* number of elements compared */
    uint64_t n_differ;          /* number of elements whose bits differ */
    uint64_t first;             /* index of the first element whose bits differ */
    uint64_t max_ulps;          /* largest distance in ulps; STATS_NO_ULPS if a NaN was compared with a number, or if
                                 * the type is complex */
    uint64_t n_not_finite;      /* number of elements whose bits differ and for which at least one value is NaN or
                                 * infinite */
    double max_abs;             /* largest absolute difference, over all pairs of finite values */
    double diff_sq, ref_sq;     /* sums of (a - b)^2 and of a^2, over all pairs of finite values */
};
#define STATS_NO_ULPS UINT64_MAX

/*
 * Add n elements at p to the statistics. They must follow the elements added before. *s must be initialised with zeros.
 */
void stats_add(struct stats *s, enum dtype t, const void *p, uint64_t n);
/* Add the statistics *next to *s. The elements of *next must follow those of *s. */
void stats_join(struct stats *s, const struct stats *next);
uint64_t stats_n_finite(const struct stats *s);
double stats_norm(const struct stats *s);       /* the L2 norm */
double stats_mean(const struct stats *s);       /* the mean of all finite values; 0 if there are none */

/*
 * Compare n elements at a and b, and add the result to *d. The elements must follow those compared before. *d must be
 * initialised with zeros.
 */
void stats_diff_add(struct stats_diff *d, enum dtype t, const void *a, const void *b, uint64_t n);
void stats_diff_join(struct stats_diff *d, const struct stats_diff *next);
double stats_diff_rel_l2(const struct stats_diff *d);   /* returns |a - b| / |a|, or |a - b| if |a| is 0 */
/*
 * Returns the distance between *a and *b, in steps between adjacent representable numbers. The distance of equal
 * values, such as +0 and -0, is 0. It is STATS_NO_ULPS if exactly one of them is NaN. For integers and bools it is the
 * absolute difference.
 */
uint64_t ulp_distance(enum dtype t, const void *a, const void *b);

/* ---- invalid values ---- */

/* Counts of invalid values. verify, conversions and samples all use values_add() to count them. */
struct values {
    uint64_t n_nan, n_inf;
    uint64_t n_negative;                /* number of values less than zero, without -0 and NaN; only counted on
                                         * request */
    uint64_t n_zero;                    /* number of zeros; only counted in scales */
};

/*
 * Count the invalid values among `len` bytes of elements of type t, at any alignment, and add the counts to *v. Types
 * that have no NaN and no infinity add nothing: integers, FP4, FP6, bits. Both parts of a complex number are counted.
 * If `negative` is true, negative values are counted, too.
 */
void values_add(struct values *v, enum dtype t, const void *bytes, uint64_t len, bool negative);
/*
 * Count the invalid values of scales of quantised weights, like values_add() with negative values. Zeros are counted,
 * too.
 */
void values_add_scales(struct values *v, enum dtype t, const void *bytes, uint64_t len);

/* ---- whole tensors, by the executor (stats_run.c) ---- */

/* Maximum size in bytes of the pieces in which tensors are processed. */
#define STATS_CHUNK (1u << 20)

struct stats_job {
    const struct tmap *a;
    /* table of files of a; all jobs of a run must have the same table, and also the same b_files */
    struct files *a_files;
    const struct tmap *b;       /* NULL: compute the statistics of a; otherwise compare a with b */
    struct files *b_files;
    uint64_t len;               /* number of bytes to process, from the start of both tensors */
    const char *name;           /* for messages; may be NULL */
    struct stats stats;         /* result if b is NULL */
    struct stats_diff diff;     /* result if b is not NULL; both tensors must have the same dtype */
    uint32_t a_crc, b_crc;      /* results: the CRC-32 of the `len` bytes of a and of b */
};

struct stats_opts {
    int threads;                /* >= 1 */
    /*
     * Size of the executor's pool; 0 = 96 MiB. Chunks that wait for the chunk of the other tensor may use the same
     * amount in addition.
     */
    uint64_t mem_bytes;
    enum replica_policy replicas;
    bool (*stopped)(void);      /* may be NULL */
    const char *what;           /* prefix of the progress line; NULL: no progress line */
    enum progress_mode progress;
    /*
     * Report for corrupt records. Every record from which a job reads is read completely and checked. If a record is
     * corrupt, a finding "crc" is added to this report. If the report is NULL, the run fails instead.
     */
    struct report *report;
};

/*
 * Run all jobs, and fill in their results. Returns 0, or -1 with the first failure. ERR_DATA means that a file is cut
 * short, that copies disagree under REPLICAS_FAIL, or that a record is corrupt and o->report is NULL. Other failures
 * are ERR_SYS and ERR_STOP.
 */
MUST_CHECK int stats_run(struct stats_job *job, int n, const struct stats_opts *o, struct err *e);

#endif
