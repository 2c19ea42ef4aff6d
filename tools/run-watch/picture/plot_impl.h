/*
 * plot_impl.h - internal declarations shared by the plot*.c files
 *
 *   plot.c       curves and axes
 *   plot_text.c  output for a terminal
 *   plot_svg.c   output as SVG
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
/* An axis with values from lo to hi, and ticks at multiples of step from lo on. */
struct plot_axis { double lo, hi, step; };

struct plot {
    struct plot_ask ask;
    struct plot_series run[PLOT_RUNS];  /* training losses */
    int n_runs;
    /*
     * Validation losses. There is one series per name of a validation set; if the runs are parallel, one per name and
     * run. With `difference`, the values are the differences from run 0.
     */
    struct plot_series set[PLOT_SETS];
    int n_sets;
    /* true: all runs begin at the same point; false: each run continues the previous one */
    bool parallel;
    struct plot_axis x, train, valid;
};

double plot_share(const struct plot_axis *a, double v);         /* position of v on the axis: 0 for lo, 1 for hi */
/* number of decimals that the labels of the axis need */
int plot_decimals(const struct plot_axis *a);

#endif
