/*
 * edit_source.h - a changed copy of the source: the same bytes, with other parameters, rows and trees
 *
 * Internal to this folder. The copy is allocated in the edit's arena and points into the source, which must outlive
 * it; it uses the source's files. It is passed to the layouts' own writers, which accept any source. It must not be
 * passed to source_close().
 */
#ifndef SHARDKIT_LAYOUT_EDIT_SOURCE_H
#define SHARDKIT_LAYOUT_EDIT_SOURCE_H

#include "libcommon/layout/edit/edit_states.h"

/* Returns a copy of the source that may be changed. */
struct source *edit_source_copy(struct edit *x);
/*
 * Change the tree of every model_states file, which holds the arguments. s->run and other pointers into the old tree
 * are moved to the new one.
 */
typedef void edit_tree_fn(void *ctx, struct arena *a, struct pk *root);
void edit_source_change_trees(struct edit *x, struct source *s, edit_tree_fn *change, void *ctx);
/* Give parameter `i` the maps, shape and name of t. Digests are kept for states whose bytes stay the same. */
void edit_source_set(struct source *s, int i, const struct edit_new *t);
/* Replace the parameters of `to`, a copy of the source, with those of the list. */
void edit_source_list(struct edit *x, struct source *to, const struct edit_states *list);

#endif
