/*
 * dcp_names.h - find which entries of a checkpoint are the model's, and which are states of a parameter
 *
 * The name of an entry consists of the program's keys, which torch's planner joins with dots. An optimizer is a key
 * with the keys "state" and "param_groups" below it. A state is named "<optimizer>state.<fqn>.<what>", where fqn is the
 * parameter's name in its module. The prefix of a model ("model.") is the text which, put before these names, gives the
 * names of tensors. If there is no optimizer, or if it has numbers instead of names, the prefix is the one key below
 * which all weights are stored. If there is no such key, every tensor is a parameter under its own name, except the
 * program's counters and states of random generators. Tensors of any type below the prefix belong to the model.
 */
#ifndef SHARDKIT_LAYOUT_DCP_NAMES_H
#define SHARDKIT_LAYOUT_DCP_NAMES_H

#include "libcommon/layout/dcp/dcp_metadata.h"

/*
 * The role of an entry. It is a state of a parameter, or, if `param` is NULL, a separate value. It may also be a
 * stack: a tensor whose rows are states of different parameters. For example, if `param` is
 * "decoder.layers.mlp.weight" and `number_at` is 14, row 3 is a state of "decoder.layers.3.mlp.weight".
 */
struct dcp_role {
    const char *param;          /* name of the parameter, in the arena */
    enum state state;
    /*
     * number of a set of stacks whose parameters are listed together, row by row; all stacks of the set have equally
     * many rows. 0: the entry is not a stack.
     */
    int stack;
    int number_at;
};

/*
 * Returns the state under which a tensor of the model is listed. Tensors of integers, booleans and complex numbers are
 * not weights; their state is the one that source_add_buffers() gives to buffers.
 */
enum state dcp_state_of_dtype(enum dtype t);

/* Arguments and results of dcp_names_assign(). The memory of the results belongs to the source. */
struct dcp_naming {
    struct source *s;           /* its values are read; its members n_models and model are set */
    struct dcp_table *table;    /* the members kind, optimizer, of and what of its entries are set */
    struct dcp_role *role;      /* result: role[i] is the role of table->entry[i] */
    const char *path;           /* path of .metadata, for messages */
    const char *model;          /* the prefix that the user gave, with or without the dot at its end; or NULL */
    bool no_optimizer, holes;   /* as in source_opts */
    /* Results: */
    int n_own;
    /* keys of the optimizers that train the model, as spelled in the entries, such as "optim." */
    const char **own;
    /* wrappers' keys were removed from names. The lists of parameters in groups may still contain these keys. */
    bool unwrapped;
    int n_numbers;
    /* [n_numbers] if an optimizer numbers its parameters: their names; NULL if the names are not known */
    const char **by_number;
    /*
     * names of parameters that only a group lists, and that have neither a tensor nor a state; NULL if names were not
     * matched
     */
    struct names *omitted;
};

/*
 * Find the roles of all entries. Findings:
 *   prefix N          there are several models, so the user must choose one
 *   numbers N         an optimizer numbers its parameters; their names follow from their order, or stay unknown
 *   wrapper N         names of weights and of the optimizer differ in the key of a module wrapper; the key is removed
 *   missing_entry E   a parameter that an optimizer names has no tensor, or lacks one of two states
 *   missing_entry W   only a group names the parameter, as torch saves frozen parameters (ignore_frozen_params)
 *   no_state N, W     parameters have no state (adam_report_no_state())
 *   optimizer W       two optimizers have states of the same parameter
 * Returns -1 with ERR_USAGE if no tensor begins with the chosen prefix.
 */
MUST_CHECK int dcp_names_assign(struct dcp_naming *n, struct report *r, struct err *e);

#endif
