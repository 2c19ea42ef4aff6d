/*
 * plot.h - losses of runs as one picture: for a terminal, or as SVG
 *
 * Each run is a curve; one that goes on where another stopped is drawn on the same axis, because the axis counts the
 * samples consumed. A level (the entropy of the text, say) becomes a horizontal line. The terminal shows every
 * training loss at its place and the validation losses as a table; the SVG has a panel for each. With `difference` the
 * runs are over the same samples, and panel and table show how far each is above the first where both have a loss.
 */
#ifndef SHARDKIT_RUN_WATCH_PLOT_H
#define SHARDKIT_RUN_WATCH_PLOT_H

#include "libcommon/base/mem.h"
#include "tools/run-watch/past/past.h"

enum { PLOT_RUNS = 8, PLOT_SETS = 16 };         /* at most; there are not more colours that one can tell apart */

struct plot_ask {
    const char *title;
    const char *level_name;             /* NULL: no level */
    double level;
    bool difference;
};

struct plot;
/*
 * Of n settled runs, which stay the caller's and live longer; so do the names in *a. NULL: ERR_USAGE for more runs or
 * sets than PLOT_RUNS, PLOT_SETS; ERR_DATA for a run without a loss, or without a sample in common with the first.
 */
MUST_CHECK struct plot *plot_new(const struct plot_ask *a, struct past *const *run, int n, struct err *e);
void plot_free(struct plot *p);         /* NULL is fine */
void plot_text(const struct plot *p, struct strbuf *out);
void plot_svg(const struct plot *p, struct strbuf *out);

#endif
