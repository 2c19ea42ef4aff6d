/*
 * deepspeed_info.h - the keys of an mp_rank file that DeepSpeed's own tools require
 *
 * This header is internal. Since 0.11, DeepSpeed's converter to the universal form requires universal_checkpoint_info,
 * which contains the patterns by which slices are merged. Since 0.19 it also requires checkpoint_parallel_dimensions
 * that agree with the files, and accepts ds_config only if it is a dict or absent. Trainers of 2022 wrote neither key,
 * and stored the path of a configuration as ds_config.
 */
#ifndef SHARDKIT_LAYOUT_DEEPSPEED_INFO_H
#define SHARDKIT_LAYOUT_DEEPSPEED_INFO_H

#include "libcommon/layout/deepspeed/deepspeed_target.h"

/*
 * Set the keys of `root`, a copy of the source's mp_rank tree, that depend on the target. If the source has a
 * universal_checkpoint_info whose patterns give each parameter of the target the right merge rule, only its sizes are
 * changed. Otherwise a new universal_checkpoint_info is made from the target's parameters.
 */
void ds_info_renew(const struct ds_target *t, struct arena *a, struct pk *root);
/*
 * Return a copy of the ds_config `was`. If it is not a dict, return a copy of deepspeed_configuration in `args`, or an
 * empty dict if args has none.
 */
struct pk *ds_info_config(struct arena *a, const struct pk *was, const struct pk *args);

#endif
