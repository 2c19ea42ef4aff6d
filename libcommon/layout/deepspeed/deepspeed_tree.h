/*
 * deepspeed_tree.h - the pickled trees of a sharded checkpoint's files
 *
 * This header is internal, except for ds_tree_mp(): a trainer makes its mp_rank file from the result of this function.
 * A tree is a copy of the source's tree in which the changed parts are replaced, so unknown values are preserved. A
 * tree and the sizes of its storages are made when the file is laid out, and again when its headers are written. Both
 * times they are the same.
 */
#ifndef SHARDKIT_LAYOUT_DEEPSPEED_TREE_H
#define SHARDKIT_LAYOUT_DEEPSPEED_TREE_H

#include "libcommon/layout/deepspeed/deepspeed_target.h"
#include "libcommon/layout/ds_file.h"

void ds_tree_layer(const struct ds_target *t, int layer, struct ds_tree *out);
void ds_tree_zero(const struct ds_target *t, int pp, int dp, struct ds_tree *out);
/* Set Adam's step counter in the tree of a shard, at the place where this tree keeps it. */
void ds_tree_set_step(struct ds_tree *x, int64_t step);
/*
 * Return the tree of the mp_rank file of rank (pp, tp). *tensors is set to the source's file that contains the tree's
 * tensors (random states), or NULL if the tree has none. Returns NULL with ERR_DATA if the source does not have that
 * file.
 */
MUST_CHECK struct pk *ds_tree_mp(const struct ds_target *t, struct arena *a, int pp, int tp, const struct pt **tensors,
                                 struct err *e);

/* Set dict[key] to the integer v if the key exists. This is for keys that only some versions write. */
void ds_tree_renew_int(struct arena *a, struct pk *dict, const char *key, int64_t v);
/* Returns true if `key` occurs only in the elastic form, which stores states and step counter differently. */
bool ds_tree_is_elastic(const char *key);
/*
 * Set t->opt and the fields that depend on it from the source. If the source has no optimizer settings, make them up
 * and add a note. Returns -1 with *e set if the source's optimizer has a form that cannot be written.
 */
MUST_CHECK int ds_tree_optimizer(struct ds_target *t, struct report *notes, struct err *e);

#endif
