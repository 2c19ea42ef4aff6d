/*
 * deepspeed_tree.h - the pickled trees of a sharded checkpoint's files
 *
 * For the room only, but for ds_tree_mp(), which a trainer's own mp_rank file begins as. Trees are the source's own
 * with the changed parts put in: what we do not know is carried along. A tree and the sizes of its storages are made
 * when the file is laid out and again when its headers are written; both times the same.
 */
#ifndef SHARDKIT_LAYOUT_DEEPSPEED_TREE_H
#define SHARDKIT_LAYOUT_DEEPSPEED_TREE_H

#include "libcommon/layout/deepspeed/deepspeed_target.h"

/* What a storage is filled with. */
enum ds_fill { DS_FILL_FLAT, DS_FILL_WEIGHTS, DS_FILL_BYTES };
struct ds_storage {
    enum ds_fill fill;
    int param;                          /* WEIGHTS: in target->param */
    int group;                          /* FLAT */
    enum state state;
    uint64_t len;                       /* bytes */
    uint64_t filled;                    /* FLAT, of a share: those that parameters fill; zeros follow */
    unsigned char bytes[8];             /* BYTES: all of it */
};
struct ds_tree {
    struct arena *arena;
    struct pk *root;
    int n, cap;
    struct ds_storage *storage;
};

void ds_tree_layer(const struct ds_target *t, int layer, struct ds_tree *out);
void ds_tree_zero(const struct ds_target *t, int pp, int dp, struct ds_tree *out);
void ds_tree_free(struct ds_tree *x);
/* Adam's counter into the tree of a shard, wherever this one has it. */
void ds_tree_set_step(struct ds_tree *x, int64_t step);
/*
 * What an mp_rank file says; its tensors (random states) are those of *from, the source's file that it is made of.
 * NULL: the source lacks it.
 */
MUST_CHECK struct pk *ds_tree_mp(const struct ds_target *t, struct arena *a, int pp, int tp,
                                 const struct source_file **from, struct err *e);

/* Fill t->opt and its kin from the source, or make them up and say so. -1: not in a form that we can write again. */
MUST_CHECK int ds_tree_optimizer(struct ds_target *t, struct report *notes, struct err *e);

#endif
