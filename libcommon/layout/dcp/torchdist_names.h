/*
 * torchdist_names.h - parse Megatron-core's keys: states of parameters, stacked layers, forms of the optimizer
 */
#ifndef SHARDKIT_LAYOUT_TORCHDIST_NAMES_H
#define SHARDKIT_LAYOUT_TORCHDIST_NAMES_H

#include "libcommon/layout/dcp/dcp.h"

/* Assign a role to each entry of n->table. The function has the type dcp_assign. */
int torchdist_names_assign(struct dcp_naming *n, struct report *r, struct err *e);
/*
 * Returns the position of the dot after "layers", or 0 if the key has no such dot. In the key of a layer, the layer
 * number follows this dot ("decoder.layers.0.mlp.weight"); in the key of a stack there is no number
 * ("decoder.layers.mlp.weight"). The result is 14 for both examples.
 */
int torchdist_number_place(const char *key);
/*
 * Returns the key of the weight whose fp32 master has this name ("decoder.layers.mlp.weight" for
 * "optimizer.state.param.decoder.layers.mlp.weight"), or NULL if it is not the name of a master.
 */
const char *torchdist_weight_of_master(const char *name);
/* Returns true if the name belongs to an entry of a distributed optimizer whose form depends on the number of ranks. */
bool torchdist_is_bucket(const char *name);
/*
 * Returns the sharding type of the distributed optimizer if the form of its saved states depends on the number of
 * ranks, otherwise NULL. *entry is set to the name of one of these states' entries, or to NULL if there is none.
 */
const char *torchdist_form_of_ranks(const struct source *s, const char **entry);

#endif
