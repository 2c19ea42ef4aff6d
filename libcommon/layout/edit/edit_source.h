/*
 * edit_source.h - make a changed copy of the source: other parameters, shapes and trees that refer to the same files
 *
 * Internal to this folder. The copy is allocated in the edit's arena and points into the source, which must outlive the
 * copy. The copy is passed to the layouts' own writers, which accept any source. It must not be passed to
 * source_close().
 */
#ifndef SHARDKIT_LAYOUT_EDIT_SOURCE_H
#define SHARDKIT_LAYOUT_EDIT_SOURCE_H

#include "libcommon/layout/edit/edit_states.h"

/* Returns a copy of the source that may be changed. */
struct source *edit_source_copy(struct edit *x);
/*
 * Change the trees of all model_states files, which contain the training arguments: call `change` for a copy of each
 * tree, and make s->file refer to the copy. s->run.args then points into a copy, too.
 */
typedef void edit_tree_fn(void *ctx, struct arena *a, struct pk *root);
void edit_source_change_trees(struct edit *x, struct source *s, edit_tree_fn *change, void *ctx);
/*
 * Set the maps, the shape and the name of parameter i to those of t. A state keeps its digest if its map does not
 * change.
 */
void edit_source_set(struct source *s, int i, const struct edit_new *t);
/* Replace the parameters of `to`, a copy of the source, with the entries of the list. */
void edit_source_list(struct edit *x, struct source *to, const struct edit_states *list);

#endif
