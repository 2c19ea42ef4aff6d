/*
 * zero_tree_impl.h - functions of zero_tree.c that zero_tree_optim.c uses
 */
#ifndef SHARDKIT_LAYOUT_ZERO_TREE_IMPL_H
#define SHARDKIT_LAYOUT_ZERO_TREE_IMPL_H

#include "libcommon/format/pt.h"
#include "libcommon/layout/zero/zero_tree.h"

void zero_tree_new(struct zero_tree *x, struct arena *keep);
/* Add a storage of `len` bytes. Returns the number of the storage. */
int zero_tree_storage(struct zero_tree *x, uint64_t len);
void zero_tree_fill(struct zero_tree *x, const struct zero_fill *fill);
/* Add a storage that contains the single fp32 value v. Returns the number of the storage. */
int zero_tree_number(struct zero_tree *x, float v);
struct pk *zero_tree_vector(struct zero_tree *x, int storage, enum dtype dtype, int64_t n, bool requires_grad);
/* Returns a copy of v, a value of the source. Its tensors, which must be in pt, get storages of their own. */
struct pk *zero_tree_copy_value(struct zero_tree *x, const struct pk *v, const struct pt *pt);
/* Returns the run's ds_config, with the stage of the target. */
struct pk *zero_tree_config(struct zero_tree *x, const struct zero_target *t);

#endif
