/*
 * torchdist.h - Megatron-core's dist_checkpointing format, "torch_dist" (docs/formats.md, section 13)
 *
 * Tensors are stored in a folder of torch.distributed.checkpoint (dcp/dcp.h) under keys that are not paths.
 * Everything else is stored in common.pt. Each key is a parameter. Layers of one kind that are stacked on a leading
 * axis are one parameter per layer. Codes of findings, in addition to those of dcp:
 *   key E         common.pt is nested too deeply or has too many values
 *   optimizer E   a distributed optimizer saved in a form that depends on the number of ranks: its states cannot be
 *                 assigned to parameters
 *   stack N       layers that cannot be separated: they are shown as one tensor
 */
#ifndef SHARDKIT_LAYOUT_TORCHDIST_H
#define SHARDKIT_LAYOUT_TORCHDIST_H

#include "libcommon/layout/layouts.h"

#define TORCHDIST_COMMON "common.pt"
#define TORCHDIST_CONFIG "metadata.json"

#endif
