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
    double made_s;              /* time at which the page is made, in seconds since 1970 */
    struct past *const *run;    /* runs for which past_resolve() has been called */
    int n_runs;
    /*
     * The usage of file systems: an array of objects with these members. name: name of the area. of: "bytes", "inodes"
     * or "free". t, v: arrays of times (in seconds since 1970) and values. full: 100 if v is a percentage, 0 if v is
     * the free amount. hours: time until the area is full, or -1 if its usage is not growing.
     */
    const json_t *areas;
    const json_t *notes;        /* an array of messages about files that could not be read */
};

void page_html(const struct page *p, struct strbuf *out);

#endif
