/*
 * torchdist_target.h - the contents of a Megatron-core torch_dist folder to be written
 *
 * For a source of this layout: its entries, objects and common.pt unchanged. For another source whose parameters
 * have Megatron-core's names: weights, Adam's states, and a common.pt with the iteration and the optimizer settings.
 * Layers of the same kind are stacked. dcp_sink() writes the target, which is a dcp target with two more files.
 */
#ifndef SHARDKIT_LAYOUT_TORCHDIST_TARGET_H
#define SHARDKIT_LAYOUT_TORCHDIST_TARGET_H

#include "libcommon/layout/dcp/dcp_target.h"

/*
 * How Adam's states are stored in a folder that is made from another layout, to match the loaders of Megatron-core.
 */
enum torchdist_optimizer {
    TORCHDIST_PLAIN,            /* optimizers that are not split: masters of 16-bit weights, one step for all */
    /* distributed optimizer, "fully_reshardable": masters of all weights, a step per group */
    TORCHDIST_DISTRIBUTED,
};
/*
 * Returns a target, or NULL with ERR_DATA if an entry cannot be read whole or if names are not Megatron-core's.
 * `notes` lists what is lost or derived. The caller releases the target with dcp_target_free().
 */
struct dcp_target *torchdist_target_new(const struct source *s, enum torchdist_optimizer how, struct report *notes,
                                        struct err *e);

#endif
