/*
 * dcp_names.h - which entries of a checkpoint are the model's, and which are states of which parameter
 *
 * A planner has joined the caller's keys with dots. What is below "state" and "param_groups" of one key is an
 * optimizer's, whatever optimizer it is: "<optimizer>state.<fqn>.<what>", where fqn is the parameter's name in its
 * module. The caller's prefix of the weights ("model.") is what has to stand before these names to give a tensor.
 * Without an optimizer, or with one that numbers its parameters, it is the one key below which all weights are; else
 * every tensor of floating-point numbers is a parameter of its own name.
 */
#ifndef SHARDKIT_LAYOUT_DCP_NAMES_H
#define SHARDKIT_LAYOUT_DCP_NAMES_H

#include "libcommon/layout/dcp/dcp_metadata.h"
#include "libcommon/layout/layout.h"

/*
 * What an entry is: a state of a parameter, or a value beside them (param NULL). Or, of a stack, of as many parameters
 * as it has rows: row 3 of "decoder.layers.mlp.weight", number_at 14, is one of "decoder.layers.3.mlp.weight".
 */
struct dcp_role {
    const char *param;          /* the arena's */
    enum state state;
    int stack;                  /* 0: none; else entries of one number have as many rows, and are listed row by row */
    int number_at;
};

/* What is to be named. Memory is the source's. */
struct dcp_naming {
    struct source *s;           /* its values are read; n_models and model are set */
    struct dcp_table *table;    /* kind, optimizer, of and what of its entries are set */
    struct dcp_role *role;      /* out: role[i] is that of table->entry[i] */
    const char *path;           /* of .metadata, for messages */
    const char *model;          /* the prefix that the user has chosen, with or without its last dot; NULL */
    bool no_optimizer;          /* as of source_opts */
    /* Out: */
    int n_own;
    const char **own;           /* the optimizers of the model, as the entries have them: "optim." */
    bool unwrapped;             /* names are without wrappers' keys; groups may list them with these */
    int n_numbers;
    const char **by_number;     /* of an optimizer that numbers its parameters: their names; NULL: not known */
};

/*
 * Find the roles. Findings:
 *   prefix N          several models: which one is meant is the user's to choose
 *   numbers N         an optimizer numbers its parameters; which they are is known by their order, or is not
 *   wrapper N         names of weights and of the optimizer differ in a wrapper's part, which is left out
 *   missing_entry E   an optimizer has a name, or half of a parameter's states, that has no entry
 *   optimizer W       two optimizers have states of one parameter
 * -1 and ERR_USAGE: nothing begins with the prefix that was chosen.
 */
MUST_CHECK int dcp_names_assign(struct dcp_naming *n, struct report *r, struct err *e);

#endif
