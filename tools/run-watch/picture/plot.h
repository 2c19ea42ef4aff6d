/*
 * plot.h - draw losses of runs as one picture, for a terminal or as SVG
 *
 * Each run is a curve. A run that continues another one is drawn on the same axis, because the axis counts the
 * samples consumed. A level (for example the entropy of the text) becomes a horizontal line. The terminal output
 * shows every training loss at its position and the validation losses as a table; the SVG has a panel for each. If
 * `difference` is set, the runs must have used the same samples. Panel and table then show, for each run, how much its
 * loss is above that of the first run, wherever both have a loss.
 */
#ifndef SHARDKIT_RUN_WATCH_PLOT_H
#define SHARDKIT_RUN_WATCH_PLOT_H

#include "libcommon/base/mem.h"
#include "tools/run-watch/past/past.h"

/* The maximum numbers of runs and of validation sets. More colours could not be distinguished. */
enum { PLOT_RUNS = 8, PLOT_SETS = 16 };

struct plot_ask {
    const char *title;
    const char *level_name;             /* NULL: no level */
    double level;
    bool difference;
};

struct plot;
/*
 * Create a plot of n runs that have been read. The runs and the strings in *a belong to the caller and must outlive the
 * plot. Returns NULL with ERR_USAGE if there are more than PLOT_RUNS runs or PLOT_SETS validation sets. Returns NULL
 * with ERR_DATA if a run has no loss, or has no number of samples in common with the first run.
 */
MUST_CHECK struct plot *plot_new(const struct plot_ask *a, struct past *const *run, int n, struct err *e);
void plot_free(struct plot *p);         /* NULL is allowed */
void plot_text(const struct plot *p, struct strbuf *out);
void plot_svg(const struct plot *p, struct strbuf *out);

#endif
