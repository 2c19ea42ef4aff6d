/*
 * dsmoe_target.h - the contents of a checkpoint with DeepSpeed's MoE for another number of expert-parallel ranks
 *
 * The source is a checkpoint of this layout. Each expert keeps its file, and the model's file its weights. What depends
 * on the ranks is the optimizer: which experts a rank has, under which local names and numbers, and how their vectors
 * are divided. The rule is that of the reader (dsmoe.h): expert e of a layer of n experts is expert e % (n / N) of
 * expert-parallel rank e / (n / N).
 */
#ifndef SHARDKIT_LAYOUT_DSMOE_TARGET_H
#define SHARDKIT_LAYOUT_DSMOE_TARGET_H

#include "libcommon/layout/dsmoe/dsmoe.h"
#include "libcommon/layout/engine/zero_shape.h"
#include "libcommon/layout/engine/zero_storages.h"

struct param;
struct sink;
struct sink_opts;
struct write_request;

/* A group of the optimizer. */
struct dsmoe_target_group {
    bool experts;
    int from;                           /* number of the group of the source that has its settings */
    int n;                              /* number of parameters of one rank */
    int *param;                         /* [n], or of experts [n_ep * n]: index in src->param, rank after rank */
};

/* The tensors of one expert: parameters [first, first + n) of the source, and values, which are its buffers. */
struct dsmoe_target_expert {
    int layer, expert;
    int first, n, first_value, n_values;
};

struct dsmoe_target {
    struct arena *arena;
    struct source *src;
    struct dsmoe read;                  /* the source's layers, and its model's file */
    bool sharded, bf16_prefix;          /* the optimizer is that of ZeRO-1/2; its files' names begin with bf16_ */
    bool data_first;                    /* use_data_before_expert_parallelism */
    struct dsmoe_optim optim;           /* the optimizer of rank 0 in the source, which the files are copies of */
    int n_ep, world;                    /* numbers of expert-parallel ranks and of all ranks */
    int old_ep;                         /* number of expert-parallel ranks of the source */
    int n_experts;                      /* number of experts of all layers */
    struct dsmoe_target_expert *expert; /* [n_experts], layer by layer */
    int n_groups;
    struct dsmoe_target_group *group;
    /*
     * The parameters of rank 0, under the names that they have there. Other ranks have other experts under the same
     * names, in the same places. The first is divided over all ranks, the second over those with the same experts.
     */
    struct zero_shape shape[2];
};

/* ---- dsmoe_target.c ---- */

/*
 * Returns a target. Returns NULL with ERR_USAGE if the numbers of ranks are not possible for this model, or with
 * ERR_DATA if the source has data of a form that cannot be given to other ranks. `notes` lists groups that are divided.
 */
struct dsmoe_target *dsmoe_target_new(struct source *s, int n_ep, int world, struct report *notes, struct err *e);
void dsmoe_target_free(struct dsmoe_target *t);         /* t may be NULL */
/* Returns the index of parameter i of group g of a rank. `ep` is the rank's number among expert-parallel ranks. */
int dsmoe_target_param(const struct dsmoe_target *t, int g, int ep, int i);
/* Returns the map of a parameter's weights in the file of the model or of an expert. */
const struct tmap *dsmoe_weights(const struct param *p);

/* ---- dsmoe_regroup.c ---- */

/* Set *e to the reason why the optimizer cannot be divided, with the way to go on. Returns -1. */
int dsmoe_refuse_target(const struct dsmoe_target *t, const char *why, struct err *e);
/* Make t->group. Returns -1 with *e set if the experts of a group cannot be divided. */
MUST_CHECK int dsmoe_make_groups(struct dsmoe_target *t, struct report *notes, struct err *e);
/* Returns the name that a parameter has on its rank, of n_ep. */
const char *dsmoe_local_name(const struct dsmoe_target *t, const char *name, int n_ep);

/* ---- dsmoe_tree.c ---- */

/* Make the tree of mp_rank_00_model_states.pt, or of the file of t->expert[i]. */
void dsmoe_tree_model(const struct dsmoe_target *t, struct arena *keep, struct zero_tree *out);
void dsmoe_tree_expert(const struct dsmoe_target *t, int i, struct arena *keep, struct zero_tree *out);
/* Make the tree of the optimizer's file of a rank: a data-parallel rank for ZeRO-1/2, else an expert-parallel rank. */
void dsmoe_tree_optim(const struct dsmoe_target *t, int rank, struct arena *keep, struct zero_tree *out);

/* ---- dsmoe_describe.c ---- */

struct sink *dsmoe_sink(const struct sink_opts *o, const struct dsmoe_target *t);

#endif
