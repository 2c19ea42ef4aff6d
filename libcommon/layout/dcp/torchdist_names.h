/*
 * torchdist_names.h - parse Megatron-core's keys: states of parameters, stacked layers, forms of the optimizer
 */
#ifndef SHARDKIT_LAYOUT_TORCHDIST_NAMES_H
#define SHARDKIT_LAYOUT_TORCHDIST_NAMES_H

#include "libcommon/layout/dcp/dcp.h"

/* Assign role[i] to table->entry[i]; this function is a dcp_assign. */
int torchdist_names_assign(struct dcp_naming *n, struct report *r, struct err *e);
/*
 * Returns the position of the dot after "layers", where the number of a layer is inserted in
 * "decoder.layers.mlp.weight" or follows in "decoder.layers.0.mlp.weight": 14. Returns 0 if the key has none.
 */
int torchdist_number_place(const char *key);
/* Report an ERROR that names the form if only the saved number of ranks can read the distributed optimizer. */
void torchdist_names_check_optimizer(const struct source *s, struct report *r);

#endif
