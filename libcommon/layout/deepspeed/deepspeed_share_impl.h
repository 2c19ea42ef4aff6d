/*
 * deepspeed_share_impl.h - declarations shared by the deepspeed_share*.c files
 *
 *   deepspeed_share.c       computes, packs and unpacks a share
 *   deepspeed_share_sink.c  writes a share into files
 */
#ifndef SHARDKIT_LAYOUT_DEEPSPEED_SHARE_IMPL_H
#define SHARDKIT_LAYOUT_DEEPSPEED_SHARE_IMPL_H

#include "libcommon/layout/deepspeed/deepspeed_share.h"
#include "libcommon/layout/deepspeed/deepspeed_tree.h"

enum { DS_GROUPS_MAX = 3 };

/* A file that is written by all processes of this (pp, tp). */
struct ds_share_file {
    char *name;
    int layer;                  /* number of the layer; -1 for an optimizer shard */
    /* data-parallel rank that writes the file's headers; for a shard, the shard's rank */
    int owner;
    struct ds_tree tree;        /* its arena is NULL if the tree belongs to ds_share.trees */
};
struct ds_share {
    int dp, n_dp, mp;
    bool decays[DS_GROUPS_MAX]; /* per group of the stage: the group has weight decay */
    int n_files;
    struct ds_share_file *file; /* layer files, then the shards of dp 0, 1, ... */
    int n_pieces;
    struct ds_piece *piece;
    struct pk_tree trees;       /* owner of the trees of an unpacked share */
};

#endif
