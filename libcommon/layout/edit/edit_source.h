/*
 * edit_source.h - the source as it is to be: the same bytes, with other parameters, rows and trees
 *
 * For the room only. What is made lies in the edit's arena and points into the source, which outlives it; the files are
 * the source's. It is for the layouts' own writers, which take any source, and not for source_close().
 */
#ifndef SHARDKIT_LAYOUT_EDIT_SOURCE_H
#define SHARDKIT_LAYOUT_EDIT_SOURCE_H

#include "libcommon/layout/edit/edit_states.h"

/* Equal to the source, to be changed at will. */
struct source *edit_source_copy(struct edit *x);
/*
 * Change the tree of every model_states file, which tells the arguments; s->run and what else points into the tree that
 * was is the new one's.
 */
typedef void edit_retell(void *ctx, struct arena *a, struct pk *root);
void edit_source_retell(struct edit *x, struct source *s, edit_retell *retell, void *ctx);
/* Give parameter `i` the maps, shape and name of t; what was known of its bytes holds where they are the same. */
void edit_source_set(struct source *s, int i, const struct edit_new *t);
/* Give `to`, a copy of the source, the list's parameters in place of its own. */
void edit_source_list(struct edit *x, struct source *to, const struct edit_states *list);

#endif
