/*
 * deepspeed_tree.h - the pickled trees of a sharded checkpoint's files
 *
 * Internal, except for ds_tree_mp(), with which a trainer's own mp_rank file begins. Trees are copies of the source's
 * trees with the changed parts replaced, so unknown values are preserved. A tree and the sizes of its storages are
 * made twice, when the file is laid out and when its headers are written; both results are the same.
 */
#ifndef SHARDKIT_LAYOUT_DEEPSPEED_TREE_H
#define SHARDKIT_LAYOUT_DEEPSPEED_TREE_H

#include "libcommon/layout/deepspeed/deepspeed_target.h"
#include "libcommon/layout/ds_file.h"

void ds_tree_layer(const struct ds_target *t, int layer, struct ds_tree *out);
void ds_tree_zero(const struct ds_target *t, int pp, int dp, struct ds_tree *out);
/* Set Adam's counter in the tree of a shard, in whichever place this tree has it. */
void ds_tree_set_step(struct ds_tree *x, int64_t step);
/*
 * Return the tree of an mp_rank file. Its tensors (random states) are those of *tensors, the source's file that it is
 * made from; NULL if the tree has none. Returns NULL with ERR_DATA if the source lacks that file.
 */
MUST_CHECK struct pk *ds_tree_mp(const struct ds_target *t, struct arena *a, int pp, int tp, const struct pt **tensors,
                                 struct err *e);

/* Set an integer only if the key exists, for keys that not every version writes. */
void ds_tree_renew_int(struct arena *a, struct pk *dict, const char *key, int64_t v);
/* Returns true for keys of the elastic form, which mark that state and counter are stored differently. */
bool ds_tree_is_elastic(const char *key);
/*
 * Set t->opt and the fields that belong to it from the source, or make them up and add a note. Returns -1 if the
 * source's form cannot be written again.
 */
MUST_CHECK int ds_tree_optimizer(struct ds_target *t, struct report *notes, struct err *e);

#endif
