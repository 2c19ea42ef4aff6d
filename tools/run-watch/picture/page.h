/*
 * page.h - write runs as one self-contained HTML page: text, style, script and data in one file
 *
 * The data of a run is written into the page as JSON (page_run.c); page_*.js draws it when the page is opened. Long
 * curves are thinned (thin.h), so a run of 100,000 iterations needs about a megabyte.
 */
#ifndef SHARDKIT_RUN_WATCH_PAGE_H
#define SHARDKIT_RUN_WATCH_PAGE_H

#include "libcommon/base/mem.h"
#include "tools/run-watch/past/past.h"

struct page {
    const char *title;
    double made_s;              /* in seconds since 1970 */
    struct past *const *run;    /* after past_resolve() */
    int n_runs;
    /*
     * Usage of file systems: an array of objects. name: of the area; of: "bytes", "inodes" or "free"; t, v: arrays of
     * times (seconds since 1970) and values; full: 100 if v is a percentage, 0 if v is the free amount; hours: until
     * the area is full, -1 if it is not filling.
     */
    const json_t *areas;
    const json_t *notes;        /* texts about files that could not be read */
};

void page_html(const struct page *p, struct strbuf *out);

#endif
