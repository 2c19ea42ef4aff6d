/*
 * zero_pickles.h - the trees of DeepSpeed's files for a checkpoint that DeepSpeed did not save
 *
 * A checkpoint of torch.distributed or of Megatron-core, or a model of Transformers, has tensors under the model's
 * own names and none of DeepSpeed's files. A checkpoint of the pipeline engine has files of another engine. The trees
 * are those that one rank of ZeRO-2 would have saved in addition to the tensors, and have the keys that DeepSpeed
 * writes. Targets in the form of ZeRO's files or of a universal form start from these trees, just as they start from
 * the trees of a source of ZeRO.
 */
#ifndef SHARDKIT_LAYOUT_ZERO_PICKLES_H
#define SHARDKIT_LAYOUT_ZERO_PICKLES_H

#include <stdbool.h>

#include "libcommon/layout/engine/zero_groups.h"

struct pk;

struct zero_pickles {
    struct pk *model;                   /* root of model_states; `module` has an empty tensor per parameter */
    /* root of optimizer_state_dict, and the list of groups in it; both NULL for ZERO_FOR_WEIGHTS */
    struct pk *optimizer, *param_groups;
    bool step_in_state, step_is_tensor; /* where Adam's counter is stored, as in run_state */
    enum dtype weights;                 /* type in which the run computes */
};
/*
 * Make the trees for the source s, after zero_groups_resolve() with the same request q. The trees are allocated in the
 * arena `a` and refer to the source and the template. `notes` lists what the source lacks, and what such files cannot
 * hold.
 */
void zero_pickles_make(struct zero_pickles *out, const struct source *s, const struct zero_import *q, struct arena *a,
                       struct report *notes);

#endif
