/*
 * page.h - runs as one page of HTML that needs nothing else: text, style, script and data in one file
 *
 * What a run was is written into the page as JSON (page_run.c); page_*.js draws it when the page is opened. Long curves
 * are thinned (thin.h), so a run of 100,000 iterations takes about a megabyte.
 */
#ifndef SHARDKIT_RUN_WATCH_PAGE_H
#define SHARDKIT_RUN_WATCH_PAGE_H

#include "libcommon/base/mem.h"
#include "tools/run-watch/past/past.h"

struct page {
    const char *title;
    double made_s;              /* since 1970 */
    struct past *const *run;    /* settled */
    int n_runs;
    /*
     * How full file systems are: an array of {name, of ("bytes", "inodes", "free"), t, v (arrays: seconds since 1970
     * and what was there), full (100: percent; 0: v is what is free), hours (until it is full; -1: not at this rate)}.
     */
    const json_t *areas;
    const json_t *notes;        /* texts: what could not be read */
};

void page_html(const struct page *p, struct strbuf *out);

#endif
