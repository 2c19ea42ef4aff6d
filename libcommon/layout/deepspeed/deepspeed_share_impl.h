/*
 * deepspeed_share_impl.h - what the deepspeed_share*.c files share
 *
 *   deepspeed_share.c       a share is worked out, packed, unpacked
 *   deepspeed_share_sink.c  a save of it
 */
#ifndef SHARDKIT_LAYOUT_DEEPSPEED_SHARE_IMPL_H
#define SHARDKIT_LAYOUT_DEEPSPEED_SHARE_IMPL_H

#include "libcommon/layout/deepspeed/deepspeed_share.h"
#include "libcommon/layout/deepspeed/deepspeed_tree.h"

enum { DS_GROUPS_MAX = 3 };

/* A file that the processes of this (pp, tp) fill. */
struct ds_share_file {
    char *name;
    int layer;                  /* its number, or -1: an optimizer shard */
    int owner;                  /* data-parallel rank: the shard's, of a layer file who writes its headers */
    struct ds_tree tree;        /* its arena is NULL where ds_share.trees has it */
};
struct ds_share {
    int dp, n_dp, mp;
    bool decays[DS_GROUPS_MAX]; /* of the stage's groups */
    int n_files;
    struct ds_share_file *file; /* layer files, then the shards of dp 0 .. */
    int n_pieces;
    struct ds_piece *piece;
    struct pk_tree trees;       /* of an unpacked one */
};

#endif
