/*
 * unwrap.h - names of parameters without the keys that wrappers of the module add
 *
 * torch.compile, activation checkpointing and FSDP1 add a key of their own to the names of a module's parameters, at
 * any position: "_orig_mod.", "_checkpoint_wrapped_module.", "_fsdp_wrapped_module.". DistributedDataParallel adds
 * "module." before all of them.
 */
#ifndef SHARDKIT_CKPT_UNWRAP_H
#define SHARDKIT_CKPT_UNWRAP_H

#include "libcommon/base/mem.h"

/*
 * Returns the name without the keys that wrappers of modules add, in the arena. Returns the name itself if it has no
 * such keys.
 */
const char *unwrap_name(struct arena *a, const char *name);

#endif
