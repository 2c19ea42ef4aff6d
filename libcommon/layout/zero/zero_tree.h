/*
 * zero_tree.h - what each file of a target says, and what its storages are filled with
 *
 * For the room, and for who changes a universal form of such a run, which keeps its model_states. Trees are the
 * source's own with the changed parts put in: what we do not know is carried along, its tensors too. A tree is made
 * when its file is laid out and again when its headers are written, and is the same both times.
 */
#ifndef SHARDKIT_LAYOUT_ZERO_TREE_H
#define SHARDKIT_LAYOUT_ZERO_TREE_H

#include "libcommon/layout/deepspeed/deepspeed_tree.h"
#include "libcommon/layout/zero/zero_target.h"

/* Bytes of a storage, and where they come from. What nothing fills is zero. */
struct zero_fill {
    int storage;
    uint64_t at;                        /* in the storage */
    const struct tmap *map;
    uint64_t from, len;                 /* bytes of the map */
    enum plan_op op;
    int param;                          /* in the source; -1: of none */
    enum state state;
};
struct zero_tree {
    struct ds_tree ds;
    int n, cap;
    struct zero_fill *fill;
    struct arena *keep;                 /* where maps are made that the source has not; NULL: they go with the tree */
};

/* A rank's file. Of model_states up to ZeRO-2 there is one, 0's. */
void zero_tree_model(const struct zero_target *t, int rank, struct arena *keep, struct zero_tree *out);
void zero_tree_optim(const struct zero_target *t, int rank, struct arena *keep, struct zero_tree *out);
void zero_tree_free(struct zero_tree *x);

#endif
