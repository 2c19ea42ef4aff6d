/*
 * deepspeed_info.h - the keys of an mp_rank file that DeepSpeed's own tools require
 *
 * Internal. Since 0.11, DeepSpeed's converter to the universal form requires universal_checkpoint_info, the patterns
 * by which slices are merged. Since 0.19 it also requires a dict (or nothing) as ds_config, and
 * checkpoint_parallel_dimensions that agree with the files. Trainers of 2022 wrote none of these, and stored a
 * configuration's path as ds_config.
 */
#ifndef SHARDKIT_LAYOUT_DEEPSPEED_INFO_H
#define SHARDKIT_LAYOUT_DEEPSPEED_INFO_H

#include "libcommon/layout/deepspeed/deepspeed_target.h"

/*
 * Set the keys of `root`, a copy of the source's mp_rank tree, that depend on the target. An existing
 * universal_checkpoint_info is kept, except for sizes, if its patterns give each parameter of the target the merge rule
 * by which the target splits it. Otherwise it is made from the target's parameters.
 */
void ds_info_renew(const struct ds_target *t, struct arena *a, struct pk *root);
/*
 * Return a copy of a ds_config. If it is not a dict, returns args' deepspeed_configuration instead, or an empty dict.
 */
struct pk *ds_info_config(struct arena *a, const struct pk *was, const struct pk *args);

#endif
