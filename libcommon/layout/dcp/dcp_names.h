/*
 * dcp_names.h - which entries of a checkpoint are states of which parameter
 *
 * A planner has joined the caller's keys with dots. Optimizer entries end in "state.<fqn>.<what>", where fqn is the
 * parameter's name in its module; the caller's prefix before the weights ("model.") is what has to stand before each
 * fqn to give a tensor of the same shape. Without an optimizer it is the one key below which all weights are; else
 * every tensor of numbers is a parameter of its own name.
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

/* role[i] is that of table->entry[i]. Doubts are notes, code "prefix". */
void dcp_names_assign(struct arena *a, const struct dcp_table *t, struct dcp_role *role, const char *path,
                      struct report *r);
/*
 * Is the entry an optimizer's of one parameter? *fqn (the arena's) is that, *what "exp_avg", "step" or the like;
 * it points into the entry.
 */
bool dcp_names_optimizer(struct arena *a, const struct dcp_entry *en, const char **fqn, const char **what);

#endif
