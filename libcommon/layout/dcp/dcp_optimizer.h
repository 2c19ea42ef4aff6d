/*
 * dcp_optimizer.h - the optimizers of a checkpoint: their entries and their parameter names
 */
#ifndef SHARDKIT_LAYOUT_DCP_OPTIMIZER_H
#define SHARDKIT_LAYOUT_DCP_OPTIMIZER_H

#include "libcommon/base/names.h"
#include "libcommon/layout/dcp/dcp_names.h"

struct dcp_optimizer {
    const char *key;            /* "optim." */
    bool numbered;              /* its parameters are numbers: "0" and so on */
    bool own;                   /* it belongs to the model */
    int n_groups;               /* number of lists of parameters */
    int n;
    /* names of the optimizer's parameters: first those from groups, then those from states */
    const char **name;
    struct names *known;        /* ... maps names to indices */
    int *whole;                 /* [names]: index of an entry that has the parameter's shape; -1 if none */
    int *group;                 /* per name, the list that contains it; -1 if none */
    int n_found;                /* number of names that have a weight */
};

struct dcp_optimizers {
    int n;
    struct dcp_optimizer *one;
    struct names *by_key;
};

/*
 * Classify the entries of n->table (kind, optimizer, of, what), and list the optimizers' names. Entries below
 * "state" and "param_groups" of one key belong to an optimizer only if there are settings of a group, or states that
 * torch's optimizers have, because a module may be called "state", too.
 */
void dcp_optimizers_read(struct dcp_optimizers *o, struct dcp_naming *n);
struct dcp_optimizer *dcp_optimizers_find(const struct dcp_optimizers *o, const char *key);
/*
 * Returns the optimizers with wrappers' keys removed from names. The entries keep these keys until
 * dcp_optimizers_unwrap_entries() is called.
 */
struct dcp_optimizers dcp_optimizers_unwrapped(const struct dcp_optimizers *o, struct arena *a);
void dcp_optimizers_unwrap_entries(struct dcp_naming *n);
/* Name the parameters of an optimizer that numbers them: parameter i is called name[i]. */
void dcp_optimizer_rename(struct dcp_optimizer *o, struct arena *a, const char **name, int count);
/*
 * Returns true if the optimizer trains the model of prefix `other` rather than that of `prefix`. This is determined by
 * its key, by the keys that it shares with the prefixes, or because one of the two models is a copy ("ema.").
 */
bool dcp_optimizer_prefers(const struct dcp_optimizer *o, const char *other, const char *prefix);
/*
 * If several optimizers marked `own` have a name in common, keep `own` only for the one that belongs to the prefix. If
 * none can be identified, no mark remains.
 */
void dcp_optimizers_choose(struct dcp_optimizers *o, const struct dcp_naming *n, const char *prefix, struct report *r);
/* The names of a model: its prefix, and the names of all entries that do not belong to an optimizer. */
struct dcp_model_names {
    const char *prefix;
    const struct names *entry;
};
/*
 * Report names of the optimizers marked `own` that have no tensor under the prefix, unless no name of that optimizer
 * has one. Report states of any optimizer that lack the other state of a pair.
 */
void dcp_optimizers_check(const struct dcp_optimizers *o, const struct dcp_naming *n, const struct dcp_model_names *m,
                          struct report *r);

#endif
