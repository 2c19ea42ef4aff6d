/*
 * stats.h - what the values of a tensor look like, and how far two tensors are apart
 *
 * Tensors go by in chunks of fixed size, so memory does not grow with the tensor. Each
 * chunk is summed by itself and the sums are joined in the tensor's order: equal input
 * gives equal bits on any number of threads.
 * NaN and infinity are counted and left out of sums, minima and maxima.
 */
#ifndef SHARDKIT_PLAN_STATS_H
#define SHARDKIT_PLAN_STATS_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/base/progress.h"
#include "libcommon/base/report.h"
#include "libcommon/plan/tmap.h"

struct stats {
    uint64_t n;                 /* elements */
    uint64_t n_nan, n_inf, n_zero, n_negative;      /* -0 is a zero, not negative */
    double sum, sum_sq;         /* of the finite values */
    double min, max;            /* meaningless unless stats_n_finite() > 0 */
};

struct stats_diff {
    uint64_t n;                 /* elements compared */
    uint64_t n_differ;          /* whose bits are not the same */
    uint64_t first;             /* index of the first of them */
    uint64_t max_ulps;          /* STATS_NO_ULPS when a NaN met a number, or for complex numbers */
    uint64_t n_not_finite;      /* of those that differ: one of the two is a NaN or infinite */
    double max_abs;             /* over pairs of finite values */
    double diff_sq, ref_sq;     /* sums of (a - b)^2 and a^2 over pairs of finite values */
};
#define STATS_NO_ULPS UINT64_MAX

/* Add n elements at p, which follow those already in *s (zero-initialised). */
void stats_add(struct stats *s, enum dtype t, const void *p, uint64_t n);
/* Add what comes after. */
void stats_join(struct stats *s, const struct stats *next);
uint64_t stats_n_finite(const struct stats *s);
double stats_norm(const struct stats *s);       /* L2 */
double stats_mean(const struct stats *s);       /* 0 when nothing is finite */

/* Compare n elements of one type; they follow those already in *d (zero-initialised). */
void stats_diff_add(struct stats_diff *d, enum dtype t, const void *a, const void *b, uint64_t n);
void stats_diff_join(struct stats_diff *d, const struct stats_diff *next);
double stats_diff_rel_l2(const struct stats_diff *d);   /* |a - b| / |a|; |a - b| when a is zero */
/*
 * Steps between neighbouring representable numbers from *a to *b: 0 for equal values
 * (+0 and -0 are equal), STATS_NO_ULPS when one is NaN and the other not. Integers and
 * bools count ones.
 */
uint64_t ulp_distance(enum dtype t, const void *a, const void *b);

/* ---- what no value should be ---- */

/* The one count of them: of values that verify reads, that a conversion reads, and of a sample. */
struct values {
    uint64_t n_nan, n_inf;
    uint64_t n_negative;                /* below zero; -0 and NaN are not. Counted on request alone */
};

/*
 * Add `len` bytes of elements of type t, at any address. Only fp32, bf16 and fp16 are counted; of other types nothing
 * is added.
 */
void values_add(struct values *v, enum dtype t, const void *bytes, uint64_t len, bool negative);

/* ---- whole tensors, by the executor (stats_run.c) ---- */

/* Tensors are summed up in pieces of at most so many bytes. */
#define STATS_CHUNK (1u << 20)

struct stats_job {
    const struct tmap *a;
    struct files *a_files;      /* one table for all jobs of a run; so is b_files */
    const struct tmap *b;       /* NULL: statistics of a; else compare a with b */
    struct files *b_files;
    uint64_t len;               /* bytes to look at, from the start of both */
    const char *name;           /* for messages; NULL: none */
    struct stats stats;         /* filled without b */
    struct stats_diff diff;     /* filled with b; both must have one dtype */
    uint32_t a_crc, b_crc;      /* filled: CRC-32 of those bytes */
};

struct stats_opts {
    int threads;                /* >= 1 */
    uint64_t mem_bytes;         /* executor's pool, and as much again for chunks that wait for twins; 0 = 96 MiB */
    enum replica_policy replicas;
    bool (*stopped)(void);      /* may be NULL */
    const char *what;           /* in front of the progress line; NULL: none is shown */
    enum progress_mode progress;
    /*
     * Records that pass by whole are checked; with `whole_records` what no job reads of them is
     * read too, so that all are. Wrong ones are told to `report`, code "crc", or fail the run.
     */
    bool whole_records;
    struct report *report;
};

/*
 * Fill every job. 0, or -1 with the first failure: ERR_SYS, ERR_DATA (a file is cut short, copies
 * disagree under REPLICAS_FAIL, a record is corrupt and there is no report), ERR_STOP.
 */
MUST_CHECK int stats_run(struct stats_job *job, int n, const struct stats_opts *o, struct err *e);

#endif
