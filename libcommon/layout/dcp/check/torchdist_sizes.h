/*
 * torchdist_sizes.h - compare the sizes of a Megatron-core model's tensors with each other
 */
#ifndef SHARDKIT_LAYOUT_TORCHDIST_SIZES_H
#define SHARDKIT_LAYOUT_TORCHDIST_SIZES_H

#include "libcommon/layout/dcp/dcp_names.h"

/*
 * Report findings "shape" (ERROR, or WARNING with accept_mismatch) of the tensors of n->table below "decoder.layers"
 * and "mtp.layers": the hidden size is that of the embedding, the two linear modules of an MLP and those of attention
 * fit, all MLPs have a gate or none has, and the output layer has the shape of the embedding.
 */
void torchdist_sizes_check(const struct dcp_naming *n, struct report *r);

#endif
