/*
 * dcp_optimizer.h - the optimizers of a checkpoint: their entries and their parameter names
 */
#ifndef SHARDKIT_LAYOUT_DCP_OPTIMIZER_H
#define SHARDKIT_LAYOUT_DCP_OPTIMIZER_H

#include "libcommon/base/names.h"
#include "libcommon/layout/dcp/dcp_names.h"

struct dcp_optimizer {
    const char *key;            /* the text before "state" and "param_groups", such as "optim." */
    bool numbered;              /* its entries have numbers ("0", "1", ...) instead of parameter names */
    bool own;                   /* it trains the model */
    int n_groups;               /* number of groups that list their parameters */
    int n;
    /* names of the optimizer's parameters: first those in the groups' lists, then those that only states have */
    const char **name;
    struct names *known;        /* maps names to indices in `name` */
    int *whole;                 /* [n] index of an entry that has the shape of the parameter; -1 if there is none */
    int *group;                 /* [n] number of the group that lists the parameter; -1 if none does */
    int n_found;                /* number of names for which the model has a weight */
};

struct dcp_optimizers {
    int n;
    struct dcp_optimizer *one;
    struct names *by_key;
};

/*
 * Set kind, optimizer, of and what in the entries of n->table, and list the optimizers' parameter names. A key is an
 * optimizer's only if the entries below its "state" and "param_groups" include settings of a group, or states that
 * torch's optimizers have, because a module of the model may also be called "state".
 */
void dcp_optimizers_read(struct dcp_optimizers *o, struct dcp_naming *n);
struct dcp_optimizer *dcp_optimizers_find(const struct dcp_optimizers *o, const char *key);
/*
 * Returns a copy of the optimizers from whose parameter names the keys of module wrappers are removed. The names in
 * entries keep these keys until dcp_optimizers_unwrap_entries() is called.
 */
struct dcp_optimizers dcp_optimizers_unwrapped(const struct dcp_optimizers *o, struct arena *a);
void dcp_optimizers_unwrap_entries(struct dcp_naming *n);
/* Give names to the parameters of an optimizer that numbers them: parameter i gets name[i]. */
void dcp_optimizer_rename(struct dcp_optimizer *o, struct arena *a, const char **name, int count);
/*
 * Returns true if the optimizer fits the model with the prefix `other` better than the model with the prefix `prefix`.
 * Three tests are made in this order: which prefix has its last key in the optimizer's key; which prefix shares more
 * leading keys with the optimizer's key; and whether only the model of `prefix` is a copy ("ema.").
 */
bool dcp_optimizer_prefers(const struct dcp_optimizer *o, const char *other, const char *prefix);
/*
 * If several optimizers that are marked `own` have a parameter name in common, keep the mark only for the one that
 * fits the prefix best. If this cannot be decided, all of them lose the mark, and a WARNING is reported.
 */
void dcp_optimizers_choose(struct dcp_optimizers *o, const struct dcp_naming *n, const char *prefix, struct report *r);
/* A model's prefix, and the names of all entries that do not belong to an optimizer. */
struct dcp_model_names {
    const char *prefix;
    const struct names *entry;
};
/*
 * Check the optimizers marked `own`. A parameter name without a tensor that has the prefix is an ERROR. It is only a
 * WARNING if nothing but a group contains the name, because torch can omit frozen parameters (ignore_frozen_params). If
 * no name of an optimizer has a tensor, the optimizer is skipped. Report parameters of such an optimizer that have no
 * state (dcp_lack_of_states). For all optimizers, report states whose partner in a pair of states is missing.
 */
void dcp_optimizers_check(const struct dcp_optimizers *o, const struct dcp_naming *n, const struct dcp_model_names *m,
                          struct report *r);

/*
 * Returns true if the files have bytes that no entry of .metadata names (findings "gap" and "unused"). These bytes may
 * be states whose entries were lost.
 */
bool dcp_has_spare_bytes(const struct report *r);

#endif
