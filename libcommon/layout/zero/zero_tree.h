/*
 * zero_tree.h - the tree of each file of a target
 *
 * This header is internal to the folder, except for edits of a universal form of such a run, which has model_states of
 * this kind. A tree is a copy of the source's tree in which some parts are replaced, so unknown contents are carried
 * over, including their tensors. It is made when the file is laid out, and again when the file's headers are written.
 * Both times it is the same.
 */
#ifndef SHARDKIT_LAYOUT_ZERO_TREE_H
#define SHARDKIT_LAYOUT_ZERO_TREE_H

#include "libcommon/layout/engine/zero_storages.h"
#include "libcommon/layout/zero/zero_target.h"

/*
 * Make the tree of the model_states or of the optim_states of rank `rank`. Up to ZeRO-2, only rank 0 has a model_states
 * file.
 */
void zero_tree_model(const struct zero_target *t, int rank, struct arena *keep, struct zero_tree *out);
void zero_tree_optim(const struct zero_target *t, int rank, struct arena *keep, struct zero_tree *out);

#endif
