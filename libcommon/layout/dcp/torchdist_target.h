/*
 * torchdist_target.h - the contents of a Megatron-core torch_dist folder to be written
 *
 * From a source of this layout, the entries, the objects and common.pt are copied; only flattened optimizer states get
 * their full shapes. From another source, whose parameters must have Megatron-core's names, the target gets the
 * weights, Adam's states, and a common.pt with the iteration and the optimizer settings; layers of the same kind are
 * stacked. The target is a dcp target with two more files, and dcp_sink() writes it.
 */
#ifndef SHARDKIT_LAYOUT_TORCHDIST_TARGET_H
#define SHARDKIT_LAYOUT_TORCHDIST_TARGET_H

#include "libcommon/layout/dcp/dcp_target.h"

/*
 * How the optimizer states are stored in a folder that is made from another layout. The form must match the optimizer
 * of the Megatron-core run that loads the folder.
 */
enum torchdist_optimizer {
    /*
     * Optimizers that are not sharded over ranks. They have fp32 master weights of the 16-bit weights only, and one
     * step counter for all parameters.
     */
    TORCHDIST_PLAIN,
    /*
     * The distributed optimizer, in the form "fully_reshardable". It has fp32 master weights of all weights, and a step
     * counter in each group.
     */
    TORCHDIST_DISTRIBUTED,
};
/*
 * Returns a target, or NULL with ERR_DATA if an entry of the source cannot be read completely, or if no parameter of
 * the source has a name of Megatron-core. `notes` receives what is lost or derived. The caller releases the target with
 * dcp_target_free().
 */
struct dcp_target *torchdist_target_new(const struct source *s, enum torchdist_optimizer how, struct report *notes,
                                        struct err *e);

#endif
