/*
 * dcp_optimizer.h - the optimizers of a checkpoint: whose entries are theirs, and the names that they have
 */
#ifndef SHARDKIT_LAYOUT_DCP_OPTIMIZER_H
#define SHARDKIT_LAYOUT_DCP_OPTIMIZER_H

#include "libcommon/base/names.h"
#include "libcommon/layout/dcp/dcp_names.h"

struct dcp_optimizer {
    const char *key;            /* "optim." */
    bool numbered;              /* its parameters are numbers, "0" and so on */
    bool own;                   /* it is the model's */
    int n_groups;               /* lists of parameters */
    int n;
    const char **name;          /* of its parameters, from groups and states, in that order */
    struct names *known;        /* ... their numbers */
    int *whole;                 /* of each an entry that has the parameter's shape; -1: none */
    int *group;                 /* ... the list that it is in; -1: none */
    int n_found;                /* how many have a weight */
};

struct dcp_optimizers {
    int n;
    struct dcp_optimizer *one;
    struct names *by_key;
};

/*
 * Classify the entries of n->table (kind, optimizer, of, what), and list the optimizers' names. Below "state" and
 * "param_groups" of one key is an optimizer's if there are settings of a group, or something that optimizers of torch
 * keep: a module may be called "state", too.
 */
void dcp_optimizers_read(struct dcp_optimizers *o, struct dcp_naming *n);
struct dcp_optimizer *dcp_optimizers_find(const struct dcp_optimizers *o, const char *key);
/* The same without wrappers' keys in names; those of entries stay until dcp_optimizers_rename(). */
struct dcp_optimizers dcp_optimizers_unwrapped(const struct dcp_optimizers *o, struct arena *a);
void dcp_optimizers_unwrap_entries(struct dcp_naming *n);
/* Give the parameters of a numbered one their names: number i is name[i]. */
void dcp_optimizer_rename(struct dcp_optimizer *o, struct arena *a, const char **name, int count);
/* Of several that are `own` and have a name in common, the one stays so that belongs to the prefix; or none. */
void dcp_optimizers_choose(struct dcp_optimizers *o, const struct dcp_naming *n, const char *prefix, struct report *r);
/* The model's names: its prefix, and those of all entries that are no optimizer's. */
struct dcp_model_names {
    const char *prefix;
    const struct names *entry;
};
/* Names without a tensor behind the prefix, and states without those that go with them, are findings. */
void dcp_optimizers_check(const struct dcp_optimizers *o, const struct dcp_naming *n, const struct dcp_model_names *m,
                          struct report *r);

#endif
