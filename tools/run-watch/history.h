/*
 * history.h - the recent iterations of a run, from its log or its TensorBoard files
 *
 * The lines of a log have no times. The time of an iteration is then the sum of the durations of all iterations since
 * the first line that was read, so only differences of times are meaningful. Times of event files are in seconds since
 * 1970. Only the end of a long log is read, and of event files only the last two hours.
 */
#ifndef SHARDKIT_RUN_WATCH_HISTORY_H
#define SHARDKIT_RUN_WATCH_HISTORY_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/base/err.h"

struct history_point {
    double at_s;                /* the time at which the iteration ended */
    int64_t iteration;
    double iteration_s;         /* <= 0: unknown */
    double samples_per_s;       /* <= 0: unknown */
    double loss;                /* NaN if unknown or not a number */
    bool is_nan;                /* the loss was not a number */
};

struct history {
    struct history_point *point;        /* in order of time */
    int n, cap;
    bool dated;                 /* at_s is in seconds since 1970; false: only differences of at_s are meaningful */
    /* The last message of the log about replicas that differ, if it is from the last start of the run; else NULL. */
    char *drift;
    char *straggler;            /* the log's last line about the slowest rank; or NULL */
};

/*
 * Read a log. Fails with ERR_SYS. If the log has no lines about iterations, h->n remains 0. The caller must call
 * history_free() even after -1.
 */
MUST_CHECK int history_read_log(struct history *h, const char *path, struct err *e);
/*
 * Read the event files in `dir` that were modified less than two hours before `now_s`. The newest event file is read in
 * any case.
 */
MUST_CHECK int history_read_events(struct history *h, const char *dir, double now_s, struct err *e);
void history_free(struct history *h);

/*
 * ---- usual values, over the "last hour": the hour before the newest point, or the last 20 points if that hour has
 * fewer ----
 */

enum history_value { HISTORY_LOSS, HISTORY_RATE, HISTORY_ITERATION_S };
/* Returns the index of the first point of the last hour. */
int history_hour(const struct history *h);
/*
 * Returns the median of the known values of points [from, to). Returns NaN if no value is known. *n_known receives the
 * number of known values.
 */
double history_median(const struct history *h, enum history_value what, int from, int to, int *n_known);
/*
 * Returns the median of the absolute differences between the values of points [from, to) and `middle`, as a measure of
 * scatter.
 */
double history_scatter(const struct history *h, enum history_value what, int from, int to, double middle);

#endif
