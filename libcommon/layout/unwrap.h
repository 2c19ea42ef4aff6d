/*
 * unwrap.h - names of parameters without what wrappers of the module put into them
 *
 * torch.compile, activation checkpointing and FSDP1 put a key of their own into the names of a module's parameters:
 * "_orig_mod.", "_checkpoint_wrapped_module.", "_fsdp_wrapped_module.", anywhere; DistributedDataParallel puts
 * "module." before all of them.
 */
#ifndef SHARDKIT_LAYOUT_UNWRAP_H
#define SHARDKIT_LAYOUT_UNWRAP_H

#include "libcommon/base/mem.h"

/* The name without wrappers' keys, in the arena; the name itself where it has none. */
const char *unwrap_name(struct arena *a, const char *name);

#endif
