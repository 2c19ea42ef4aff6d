/*
 * unwrap.h - remove from a parameter's name the keys that module wrappers add
 *
 * torch.compile, activation checkpointing and FSDP1 wrap modules. Each wrapper adds a key to the names of the
 * parameters below it, at any position: "_orig_mod.", "_checkpoint_wrapped_module." or "_fsdp_wrapped_module.".
 * DistributedDataParallel adds "module." at the beginning.
 */
#ifndef SHARDKIT_CKPT_UNWRAP_H
#define SHARDKIT_CKPT_UNWRAP_H

#include "libcommon/base/mem.h"

/*
 * Returns the name without the keys of wrappers, allocated in the arena. Returns `name` itself if it has no such keys.
 */
const char *unwrap_name(struct arena *a, const char *name);

#endif
