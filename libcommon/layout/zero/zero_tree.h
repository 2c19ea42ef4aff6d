/*
 * zero_tree.h - the tree of each file of a target, and the contents of its storages
 *
 * Internal to this folder, and used by edits of a universal form of such a run, which has its model_states. Trees
 * are copies of the source's own with changed parts, so unknown contents are carried over, including their tensors.
 * A tree is made when its file is laid out, and again when its headers are written, and is the same both times.
 */
#ifndef SHARDKIT_LAYOUT_ZERO_TREE_H
#define SHARDKIT_LAYOUT_ZERO_TREE_H

#include "libcommon/layout/ds_file.h"
#include "libcommon/layout/zero/zero_target.h"

/* Bytes of a storage, and their source. Bytes that no fill covers are zero. */
struct zero_fill {
    int storage;
    uint64_t at;                        /* offset in the storage */
    const struct tmap *map;
    uint64_t from, len;                 /* bytes of the map */
    enum plan_op op;
    int param;                          /* index in the source; -1 if none */
    enum state state;
};
struct zero_tree {
    struct ds_tree ds;
    int n, cap;
    struct zero_fill *fill;
    struct arena *keep;  /* arena for maps that the source does not have; NULL to free them with the tree */
};

/* Make the tree of a rank's file. Up to ZeRO-2 there is only one model_states file, rank 0's. */
void zero_tree_model(const struct zero_target *t, int rank, struct arena *keep, struct zero_tree *out);
void zero_tree_optim(const struct zero_target *t, int rank, struct arena *keep, struct zero_tree *out);
void zero_tree_free(struct zero_tree *x);

#endif
