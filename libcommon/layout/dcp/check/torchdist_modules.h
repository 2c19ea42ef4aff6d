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
 * Check which tensors of n->table exist, apart from those of optimizers. The findings are as follows, where E* is an
 * error, or a warning with accept_mismatch:
 *   shape E*            a stack has another number of layers than most stacks with its prefix; or the numbers of
 *                       experts, of rows of their router, and of objects of a module differ
 *   missing_entry E     a module has objects but no weight, or lacks some of its objects
 *   missing_entry E*    experts have no router; the number of an expert or of a layer is missing; or one of two linear
 *                       modules that exist only together is missing (not if the folder has only a part of a model)
 *   missing_entry W     a layer has no attention or no MLP, but others have both; or the embedding or the last norm is
 *                       missing
 * An entry that cannot be read counts as present.
 */
void torchdist_modules_check(const struct dcp_naming *n, struct report *r);

#endif
