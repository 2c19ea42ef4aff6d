/*
 * dcp_names.h - find which entries of a checkpoint are the model's, and which are states of a parameter
 *
 * A planner joins the program's keys with dots. Entries below "state" and "param_groups" of one key belong to an
 * optimizer, whichever it is: "<optimizer>state.<fqn>.<what>", where fqn is the parameter's name in its module. The
 * program's prefix of the weights ("model.") is the text that must precede these names to give the name of a tensor.
 * Without an optimizer, or with one that numbers its parameters, the prefix is the one key below which all weights
 * are stored. If there is no such key, every tensor is a parameter under its own name, except counters and random
 * states of the program. Tensors of any type below the prefix belong to the model.
 */
#ifndef SHARDKIT_LAYOUT_DCP_NAMES_H
#define SHARDKIT_LAYOUT_DCP_NAMES_H

#include "libcommon/layout/dcp/dcp_metadata.h"

/*
 * The role of an entry: a state of a parameter, or a separate value (param NULL). The entry may also be a stack of
 * as many parameters as it has rows: row 3 of "decoder.layers.mlp.weight", number_at 14, is a state of
 * "decoder.layers.3.mlp.weight".
 */
struct dcp_role {
    const char *param;          /* in the arena */
    enum state state;
    /*
     * number of the stack, 0 if the entry is none; stacks with the same number have equally many rows and are listed
     * row by row
     */
    int stack;
    int number_at;
};

/*
 * Returns the state as which a tensor of the model is listed. Integers, booleans and complex numbers have no real
 * state; they are listed as source_add_buffers() does.
 */
enum state dcp_state_of_dtype(enum dtype t);

/* Input and result of the naming. Memory belongs to the source. */
struct dcp_naming {
    struct source *s;           /* its values are read; n_models and model are set */
    struct dcp_table *table;    /* kind, optimizer, of and what of its entries are set */
    struct dcp_role *role;      /* out: role[i] belongs to table->entry[i] */
    const char *path;           /* path of .metadata, for messages */
    const char *model;          /* the prefix that the user chose, with or without its last dot; or NULL */
    bool no_optimizer;          /* as in source_opts */
    /* Results: */
    int n_own;
    const char **own;           /* keys of the optimizers that train the model, as spelled in the entries: "optim." */
    bool unwrapped;             /* wrappers' keys were removed from names; groups may list parameters with these keys */
    int n_numbers;
    const char **by_number;     /* names of the parameters of an optimizer that numbers them; NULL if not known */
};

/*
 * Find the roles. Findings:
 *   prefix N          several models: the user must choose one
 *   numbers N         an optimizer numbers its parameters; their order identifies them, or they stay unknown
 *   wrapper N         names of weights and of the optimizer differ in a wrapper's key, which is removed
 *   missing_entry E   an optimizer's name, or half of a parameter's states, has no entry
 *   optimizer W       two optimizers have states of one parameter
 * Returns -1 with ERR_USAGE if no tensor begins with the chosen prefix.
 */
MUST_CHECK int dcp_names_assign(struct dcp_naming *n, struct report *r, struct err *e);

#endif
