/*
 * torchdist.h - Megatron-core's dist_checkpointing format, "torch_dist" (docs/formats.md, section 13)
 *
 * Tensors are stored in a folder of torch.distributed.checkpoint (dcp/dcp.h) under keys that are not paths. Everything
 * else is stored in common.pt. Each key of a weight names a parameter. If a tensor stacks the weights of all layers on
 * its first axis, each row is the parameter of one layer. Codes of findings, in addition to those of dcp:
 *   key E         common.pt is nested too deeply or has too many values
 *   optimizer E   the distributed optimizer was saved in a form that depends on the number of ranks, and its states
 *                 cannot be assigned to parameters: the reason is given
 *   stack N       the weights below one prefix are not stacked alike: each tensor is listed under its own key
 */
#ifndef SHARDKIT_LAYOUT_TORCHDIST_H
#define SHARDKIT_LAYOUT_TORCHDIST_H

#include "libcommon/layout/layouts.h"

#define TORCHDIST_COMMON "common.pt"
#define TORCHDIST_CONFIG "metadata.json"

#endif
