/*
 * plot_impl.h - what the plot*.c files share; for them only
 *
 *   plot.c       curves and axes
 *   plot_text.c  for a terminal
 *   plot_svg.c   as SVG
 */
#ifndef SHARDKIT_RUN_WATCH_PLOT_IMPL_H
#define SHARDKIT_RUN_WATCH_PLOT_IMPL_H

#include "tools/run-watch/picture/plot.h"

struct plot_point { double samples, loss; };
struct plot_series {
    char *name;
    struct plot_point *p;
    int n, cap;
};
/* An axis: values from lo to hi, a tick at each step from lo on. */
struct plot_axis { double lo, hi, step; };

struct plot {
    struct plot_ask ask;
    struct plot_series run[PLOT_RUNS];  /* training */
    int n_runs;
    struct plot_series set[PLOT_SETS];  /* validation, one a name, all runs together; or differences to run 0 */
    int n_sets;
    bool beside;                        /* the runs begin alike, and do not go on from each other */
    struct plot_axis x, train, valid;
};

double plot_share(const struct plot_axis *a, double v);         /* 0 at lo, 1 at hi */
int plot_decimals(const struct plot_axis *a);                   /* that its ticks need */

#endif
