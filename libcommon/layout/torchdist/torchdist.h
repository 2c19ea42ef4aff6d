/*
 * torchdist.h - Megatron-core's dist_checkpointing, "torch_dist" (docs/formats.md, section 13)
 *
 * Tensors lie in a folder of torch.distributed.checkpoint (dcp/dcp.h) under keys that are no paths, everything else in
 * common.pt. A parameter is a key; layers of one kind, stacked on a leading axis, are parameters each. Codes of
 * findings, besides dcp's:
 *   key E         common.pt is not what it should be
 *   optimizer E   a distributed optimizer whose form belongs to one number of ranks: its states are no parameters'
 *   stack N       layers that could not be told apart: they are shown as one tensor
 */
#ifndef SHARDKIT_LAYOUT_TORCHDIST_H
#define SHARDKIT_LAYOUT_TORCHDIST_H

#include "libcommon/layout/layout.h"

#define TORCHDIST_COMMON "common.pt"
#define TORCHDIST_CONFIG "metadata.json"

/* A name that only such a folder has. */
bool torchdist_marks(const char *name);
/* A folder of torch.distributed.checkpoint that Megatron-core wrote. */
bool torchdist_fits(const struct source_listing *l);
int torchdist_source_open(struct source *s, const struct source_listing *l, const struct source_opts *o,
                          struct report *r, struct err *e);

#endif
