/*
 * zero_tree_impl.h - functions of zero_tree.c that zero_tree_optim.c uses
 */
#ifndef SHARDKIT_LAYOUT_ZERO_TREE_IMPL_H
#define SHARDKIT_LAYOUT_ZERO_TREE_IMPL_H

#include "libcommon/format/pt.h"
#include "libcommon/layout/zero/zero_tree.h"

/* Returns the run's ds_config, with the stage of the target. */
struct pk *zero_tree_config(struct zero_tree *x, const struct zero_target *t);

#endif
