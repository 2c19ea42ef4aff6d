/*
 * stats.h - statistics of the values of a tensor, and the distance between two tensors
 *
 * Tensors are processed in chunks of fixed size, so memory does not grow with the tensor. Each chunk is summed
 * separately, and the sums are joined in the order of the tensor. Equal input therefore gives equal bits on any
 * number of threads. NaN and infinity are counted, and are excluded from sums, minima and maxima.
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
    uint64_t n_nan, n_inf, n_zero, n_negative;      /* -0 counts as a zero, not as negative */
    double sum, sum_sq;         /* over the finite values */
    double min, max;            /* valid only if stats_n_finite() > 0 */
};

struct stats_diff {
    uint64_t n;                 /* number of elements compared */
    uint64_t n_differ;          /* number of elements whose bits differ */
    uint64_t first;             /* index of the first such element */
    uint64_t max_ulps;          /* STATS_NO_ULPS if a NaN was compared with a number, or for complex numbers */
    uint64_t n_not_finite;      /* number of differing elements where either value is NaN or infinite */
    double max_abs;             /* over pairs of finite values */
    double diff_sq, ref_sq;     /* sums of (a - b)^2 and a^2 over pairs of finite values */
};
#define STATS_NO_ULPS UINT64_MAX

/* Add n elements at p. They follow the elements already in *s, which starts zero-initialised. */
void stats_add(struct stats *s, enum dtype t, const void *p, uint64_t n);
/* Append the statistics of the elements that follow. */
void stats_join(struct stats *s, const struct stats *next);
uint64_t stats_n_finite(const struct stats *s);
double stats_norm(const struct stats *s);       /* L2 */
double stats_mean(const struct stats *s);       /* 0 if no value is finite */

/* Compare n elements of one type. They follow the elements already in *d, which starts zero-initialised. */
void stats_diff_add(struct stats_diff *d, enum dtype t, const void *a, const void *b, uint64_t n);
void stats_diff_join(struct stats_diff *d, const struct stats_diff *next);
double stats_diff_rel_l2(const struct stats_diff *d);   /* |a - b| / |a|; |a - b| if a is zero */
/*
 * Returns the number of steps between adjacent representable numbers from *a to *b: 0 for equal values (+0 and -0
 * are equal), and STATS_NO_ULPS if exactly one is NaN. For integers and bools this is the absolute difference.
 */
uint64_t ulp_distance(enum dtype t, const void *a, const void *b);

/* ---- invalid values ---- */

/* Counts of invalid values. All code that counts them uses this: verify, conversions, and samples. */
struct values {
    uint64_t n_nan, n_inf;
    uint64_t n_negative;                /* less than zero; -0 and NaN are excluded. Counted only on request */
};

/*
 * Count among `len` bytes of elements of type t, at any alignment. Only fp32, bf16 and fp16 are counted; for other
 * types nothing is added.
 */
void values_add(struct values *v, enum dtype t, const void *bytes, uint64_t len, bool negative);

/* ---- whole tensors, by the executor (stats_run.c) ---- */

/* Tensors are processed in pieces of at most this many bytes. */
#define STATS_CHUNK (1u << 20)

struct stats_job {
    const struct tmap *a;
    struct files *a_files;      /* all jobs of a run share one table; the same holds for b_files */
    const struct tmap *b;       /* NULL: compute statistics of a; else compare a with b */
    struct files *b_files;
    uint64_t len;               /* number of bytes to process, from the start of both tensors */
    const char *name;           /* for messages; may be NULL */
    struct stats stats;         /* result without b */
    struct stats_diff diff;     /* result with b; both tensors must have the same dtype */
    uint32_t a_crc, b_crc;      /* results: CRC-32 of those bytes */
};

struct stats_opts {
    int threads;                /* >= 1 */
    /* Size of the executor's pool; chunks that wait for their twins use up to the same amount again; 0 = 96 MiB. */
    uint64_t mem_bytes;
    enum replica_policy replicas;
    bool (*stopped)(void);      /* may be NULL */
    const char *what;           /* prefix of the progress line; NULL: no progress line */
    enum progress_mode progress;
    /*
     * Every record that a job reads from is read completely and checked. A corrupt record is added to `report` with
     * code "crc"; without a report it fails the run.
     */
    struct report *report;
};

/*
 * Run all jobs and fill in their results. Returns 0, or -1 with the first failure: ERR_SYS, ERR_DATA (a file is cut
 * short, copies disagree under REPLICAS_FAIL, or a record is corrupt and there is no report), ERR_STOP.
 */
MUST_CHECK int stats_run(struct stats_job *job, int n, const struct stats_opts *o, struct err *e);

#endif
