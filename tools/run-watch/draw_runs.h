/*
 * draw_runs.h - the runs to draw, as named on the command line
 *
 * A word is [NAME=]PATH: a log, a folder of event files, or a run's folder. Words with the same NAME describe one
 * run.
 */
#ifndef SHARDKIT_RUN_WATCH_DRAW_RUNS_H
#define SHARDKIT_RUN_WATCH_DRAW_RUNS_H

#include "tools/run-watch/past/past.h"
#include "tools/run-watch/runwatch.h"

struct draw_runs {
    struct past **run;
    int n, cap;
};

/*
 * Read the runs that the command line names. A damaged file is reported with cli_warn() and recorded in `notes`, an
 * array of texts; its remaining data is used.
 */
void draw_runs_read(struct draw_runs *r, struct runwatch *w, json_t *notes);
/* Call past_resolve() for each run. Fails with ERR_DATA if a run has no iterations. */
MUST_CHECK int draw_runs_resolve(struct draw_runs *r, struct err *e);
void draw_runs_free(struct draw_runs *r);
/*
 * Check the file of --output before runs are read. Returns -1 with ERR_USAGE if it is not a name that may be written
 * (output_file.h), or if it exists and is neither a picture nor a page, such as a log or an event file.
 */
MUST_CHECK int draw_check_output(const struct runwatch *w, struct err *e);
/* Write a picture to the file of --output, or to stdout. */
MUST_CHECK int draw_put(const struct runwatch *w, const struct strbuf *text, struct err *e);

#endif
