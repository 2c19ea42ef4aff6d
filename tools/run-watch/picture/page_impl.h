/*
 * page_impl.h - what the page*.c files share; for them only
 *
 *   page_run.c   a run as JSON
 *   page.c       the page round it
 * page_files.c is made by the Makefile: the style sheet and the scripts as they lie in this folder.
 */
#ifndef SHARDKIT_RUN_WATCH_PAGE_IMPL_H
#define SHARDKIT_RUN_WATCH_PAGE_IMPL_H

#include "tools/run-watch/picture/page.h"

extern const char page_css[], page_js[];        /* with a NUL behind */

/* JSON that may stand in HTML: no '<' in it. */
void page_add_json(struct strbuf *out, const json_t *o);
/* Points of curves in columns of so many: thin_pick(). */
void page_add_run(struct strbuf *out, const struct past *p, int columns);

#endif
