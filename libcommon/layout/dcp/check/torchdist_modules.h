/*
 * torchdist_modules.h - compare the modules of a Megatron-core model with each other
 *
 * The folder has no configuration. What a module has, and how many layers and experts there are, is compared between
 * the tensors and with the names of the modules' objects ("..._extra_state/shard_0.3_2.4" is layer 0, expert 3, of 2
 * layers and 4 experts).
 */
#ifndef SHARDKIT_LAYOUT_TORCHDIST_MODULES_H
#define SHARDKIT_LAYOUT_TORCHDIST_MODULES_H

#include "libcommon/layout/dcp/dcp_names.h"

/*
 * Report findings of the tensors of n->table that are not an optimizer's. E*: a warning with accept_mismatch.
 *   shape E*            a stack has another number of layers than most stacks of its prefix; experts, the rows of their
 *                       router, and the objects of a module state different numbers
 *   missing_entry E     an object of a module that has no weight, or not all objects of a module
 *   missing_entry E*    experts without router, a number of an expert or a layer that is missing, one of two linear
 *                       modules that exist only together (unless the folder has a part of a model)
 *   missing_entry W     a layer has no attention or no MLP, but others have both; no embedding or no last norm
 * An entry that cannot be read counts as present.
 */
void torchdist_modules_check(const struct dcp_naming *n, struct report *r);

#endif
