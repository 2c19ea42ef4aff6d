/*
 * torchdist_names.h - what Megatron-core's keys say: states of parameters, stacked layers, forms of the optimizer
 */
#ifndef SHARDKIT_LAYOUT_TORCHDIST_NAMES_H
#define SHARDKIT_LAYOUT_TORCHDIST_NAMES_H

#include "libcommon/layout/dcp/dcp.h"

/* A dcp_assign: role[i] is that of table->entry[i]. */
int torchdist_names_assign(struct dcp_naming *n, struct report *r, struct err *e);
/*
 * Where a layer's number goes in "decoder.layers.mlp.weight", or stands behind the dot in
 * "decoder.layers.0.mlp.weight": 14. 0: nowhere.
 */
int torchdist_number_place(const char *key);
/* Of a distributed optimizer that only its own number of ranks can read: an ERROR that names its form. */
void torchdist_names_check_optimizer(const struct source *s, struct report *r);

#endif
