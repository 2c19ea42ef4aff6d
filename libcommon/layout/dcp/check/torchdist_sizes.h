/*
 * torchdist_sizes.h - compare the sizes of a Megatron-core model's tensors with each other
 */
#ifndef SHARDKIT_LAYOUT_TORCHDIST_SIZES_H
#define SHARDKIT_LAYOUT_TORCHDIST_SIZES_H

#include "libcommon/layout/dcp/dcp_names.h"

/*
 * Check the sizes of the tensors of n->table below "decoder.layers" and "mtp.layers". The hidden size must be that of
 * the embedding. The two linear modules of an MLP must fit each other, and so must those of attention. Either all MLPs
 * have a gate or none has. The output layer must have the shape of the embedding. Findings have the code "shape" and
 * are errors, or warnings with accept_mismatch.
 */
void torchdist_sizes_check(const struct dcp_naming *n, struct report *r);

#endif
