/*
 * deepspeed_info.h - what DeepSpeed's own tools ask of an mp_rank file
 *
 * For the room only. Since 0.11 its converter to the universal form demands
 * universal_checkpoint_info, the patterns by which slices are merged, and since 0.19 a dict (or
 * nothing) as ds_config, and checkpoint_parallel_dimensions that agree with the files there are.
 * Trainers of 2022 wrote none of it, and a configuration's path for ds_config.
 */
#ifndef SHARDKIT_LAYOUT_DEEPSPEED_INFO_H
#define SHARDKIT_LAYOUT_DEEPSPEED_INFO_H

#include "libcommon/layout/deepspeed/deepspeed_target.h"

/*
 * Bring these keys of `root`, a copy of the source's mp_rank tree, to the target. A block that merges the
 * target's parameters as they are cut stays, but for sizes; any other, and a missing one, is made from the
 * target's parameters.
 */
void ds_info_renew(const struct ds_target *t, struct arena *a, struct pk *root);
/* A copy of a ds_config; of one that is no dict, args' deepspeed_configuration in its place, or an empty dict. */
struct pk *ds_info_config(struct arena *a, const struct pk *was, const struct pk *args);

#endif
