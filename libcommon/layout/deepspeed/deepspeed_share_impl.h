/*
 * deepspeed_share_impl.h - declarations shared by the deepspeed_share*.c files
 *
 *   deepspeed_share.c       computes, packs and unpacks a share
 *   deepspeed_share_sink.c  saves it
 */
#ifndef SHARDKIT_LAYOUT_DEEPSPEED_SHARE_IMPL_H
#define SHARDKIT_LAYOUT_DEEPSPEED_SHARE_IMPL_H

#include "libcommon/layout/deepspeed/deepspeed_share.h"
#include "libcommon/layout/deepspeed/deepspeed_tree.h"

enum { DS_GROUPS_MAX = 3 };

/* A file that the processes of this (pp, tp) fill. */
struct ds_share_file {
    char *name;
    int layer;                  /* its number, or -1 for an optimizer shard */
    int owner;                  /* data-parallel rank that writes the headers: for a shard, the shard's own */
    struct ds_tree tree;        /* its arena is NULL if ds_share.trees owns the tree */
};
struct ds_share {
    int dp, n_dp, mp;
    bool decays[DS_GROUPS_MAX]; /* per group of the stage */
    int n_files;
    struct ds_share_file *file; /* layer files, then the shards of dp 0, 1, ... */
    int n_pieces;
    struct ds_piece *piece;
    struct pk_tree trees;       /* owner of the trees of an unpacked share */
};

#endif
