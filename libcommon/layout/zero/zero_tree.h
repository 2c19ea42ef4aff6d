/*
 * zero_tree.h - the tree of each file of a target, and the contents of its storages
 *
 * This header is internal to the folder, except for edits of a universal form of such a run, which has model_states of
 * this kind. A tree is a copy of the source's tree in which some parts are replaced, so unknown contents are carried
 * over, including their tensors. It is made when the file is laid out, and again when the file's headers are written.
 * Both times it is the same.
 */
#ifndef SHARDKIT_LAYOUT_ZERO_TREE_H
#define SHARDKIT_LAYOUT_ZERO_TREE_H

#include "libcommon/layout/ds_file.h"
#include "libcommon/layout/zero/zero_target.h"

/* A range of bytes of a storage, and the map that they come from. Bytes that no fill covers are zero. */
struct zero_fill {
    int storage;
    uint64_t at;                        /* offset in the storage */
    const struct tmap *map;
    uint64_t from, len;                 /* range in the map, in bytes */
    enum plan_op op;
    int param;                          /* index in the source's parameters; -1 if the bytes belong to none */
    enum state state;
};
struct zero_tree {
    struct ds_tree ds;
    int n, cap;
    struct zero_fill *fill;
    struct arena *keep;  /* arena for maps that are not the source's; if NULL, they are freed with the tree */
};

/* Make the tree of rank `rank`'s model_states or optim_states. Up to ZeRO-2, only rank 0 has a model_states file. */
void zero_tree_model(const struct zero_target *t, int rank, struct arena *keep, struct zero_tree *out);
void zero_tree_optim(const struct zero_target *t, int rank, struct arena *keep, struct zero_tree *out);
void zero_tree_free(struct zero_tree *x);

#endif
