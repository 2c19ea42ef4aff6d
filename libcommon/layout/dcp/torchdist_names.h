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
 * Report an ERROR "optimizer" if only the number of ranks that saved the distributed optimizer can read its states. The
 * message names the sharding type.
 */
void torchdist_names_check_optimizer(const struct source *s, struct report *r);

#endif
