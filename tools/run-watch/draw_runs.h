/*
 * draw_runs.h - the runs that are to be drawn, from the words of the command line
 *
 * A word is [NAME=]PATH: a log, a folder of event files, or a run's folder. Words with the same NAME are one run.
 */
#ifndef SHARDKIT_RUN_WATCH_DRAW_RUNS_H
#define SHARDKIT_RUN_WATCH_DRAW_RUNS_H

#include "tools/run-watch/past/past.h"
#include "tools/run-watch/runwatch.h"

struct draw_runs {
    struct past **run;
    int n, cap;
};

/* Read them; what is damaged is told by cli_warn() and noted in `notes`, an array of texts, and the rest is taken. */
void draw_runs_read(struct draw_runs *r, struct runwatch *w, json_t *notes);
/* past_settle() of each. ERR_DATA for one of which no iteration is known. */
MUST_CHECK int draw_runs_settle(struct draw_runs *r, struct err *e);
void draw_runs_free(struct draw_runs *r);
/* Write a picture to --output, or to stdout without. */
MUST_CHECK int draw_put(const struct runwatch *w, const struct strbuf *text, struct err *e);

#endif
