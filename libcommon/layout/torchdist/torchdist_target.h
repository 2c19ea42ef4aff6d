/*
 * torchdist_target.h - what a folder of Megatron-core's torch_dist will hold
 *
 * Of such a folder: its entries, objects and common.pt as they are. Of another source whose parameters are called as
 * Megatron-core calls them: weights, Adam's states, and a common.pt of iteration and optimizer settings; layers that
 * are alike are stacked. dcp_sink() writes it: a target of it is one of dcp's with two more files.
 */
#ifndef SHARDKIT_LAYOUT_TORCHDIST_TARGET_H
#define SHARDKIT_LAYOUT_TORCHDIST_TARGET_H

#include "libcommon/layout/dcp/dcp_target.h"

/* How a folder that is made of another layout keeps Adam's states, as loaders of Megatron-core ask for them. */
enum torchdist_optimizer {
    TORCHDIST_PLAIN,            /* its optimizers without cuts: masters of 16-bit weights, one step of all */
    TORCHDIST_DISTRIBUTED,      /* its distributed one, "fully_reshardable": masters of all weights, steps of groups */
};
/*
 * ERR_DATA: an entry cannot be read whole, or names are not Megatron-core's. What is lost or made up goes to notes.
 * For dcp_target_free().
 */
struct dcp_target *torchdist_target_new(const struct source *s, enum torchdist_optimizer how, struct report *notes,
                                        struct err *e);

#endif
