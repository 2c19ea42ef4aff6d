/*
 * history.h - how a run went lately: its iterations, from its log or its TensorBoard files
 *
 * The log's lines have no times, so theirs are sums of the iterations' lengths, from the first line that was read on;
 * only differences mean anything. Those of event files are since 1970. Only the end of a long log is read, and of event
 * files the last two hours.
 */
#ifndef SHARDKIT_RUN_WATCH_HISTORY_H
#define SHARDKIT_RUN_WATCH_HISTORY_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/base/err.h"

struct history_point {
    double at_s;                /* when it was over */
    int64_t iteration;
    double iteration_s;         /* <= 0: not known */
    double samples_per_s;       /* <= 0: not known */
    double loss;                /* NaN: not known, or it is one */
    bool is_nan;                /* it is one */
};

struct history {
    struct history_point *point;        /* in the order of time */
    int n, cap;
    bool dated;                 /* at_s is since 1970 */
    char *drift;                /* what the log says of replicas that drifted apart, since its last start; or NULL */
    char *straggler;            /* the log's last line about the slowest rank; or NULL */
};

/* ERR_SYS; a file without such lines leaves n 0. history_free() frees what there is on -1, too. */
MUST_CHECK int history_read_log(struct history *h, const char *path, struct err *e);
/* All event files of the folder that were written to since `now_s` - 2 h, and the newest. */
MUST_CHECK int history_read_events(struct history *h, const char *dir, double now_s, struct err *e);
void history_free(struct history *h);

/* ---- what is usual: over the last hour before the newest point, or the last 20 points where that has fewer ---- */

enum history_value { HISTORY_LOSS, HISTORY_RATE, HISTORY_ITERATION_S };
/* The first point of that window. */
int history_hour(const struct history *h);
/* Median of the known values of points [from, to), and their number; NaN when there are none. */
double history_median(const struct history *h, enum history_value what, int from, int to, int *n_known);
/* Median distance from `middle`: how much they scatter. */
double history_scatter(const struct history *h, enum history_value what, int from, int to, double middle);

#endif
