/*
 * torchdist.h - Megatron-core's dist_checkpointing, "torch_dist" (docs/formats.md, section 13)
 *
 * Tensors lie in a folder of torch.distributed.checkpoint (dcp/dcp.h) under keys that are no paths, everything else in
 * common.pt. A parameter is a key; layers of one kind are stacked on a leading axis and stay so. Codes of findings,
 * besides dcp's:
 *   key E         metadata.json or common.pt is not what it should be
 *   optimizer E   a distributed optimizer that is not reshardable: its buckets are no parameters
 */
#ifndef SHARDKIT_LAYOUT_TORCHDIST_H
#define SHARDKIT_LAYOUT_TORCHDIST_H

#include "libcommon/layout/layout.h"

/* A name that only such a folder has. */
bool torchdist_marks(const char *name);
int torchdist_source_open(struct source *s, const struct source_listing *l, const struct source_opts *o,
                          struct report *r, struct err *e);

#endif
