/*
 * edit_cast.h - change the computing type in the trees of a DeepSpeed checkpoint
 *
 * Internal to this folder. For fp16, DeepSpeed uses ZeRO stage 1 with a loss scaler. For bf16, the pipeline engine uses
 * BF16_Optimizer, which has neither (docs/formats.md, section 4.5).
 */
#ifndef SHARDKIT_LAYOUT_EDIT_CAST_H
#define SHARDKIT_LAYOUT_EDIT_CAST_H

#include "libcommon/base/dtype.h"
#include "libcommon/format/pickle/pickle.h"

/*
 * Enable the type `to` in DeepSpeed's configuration, and disable the other 16-bit type. For fp32, disable fp16 and
 * bf16. Does nothing if `config` is not a dict.
 */
void edit_cast_config(struct arena *a, struct pk *config, enum dtype to);
/*
 * Set the arguments and DeepSpeed's configuration in `root`, a model_states tree of the pipeline engine, to type `to`.
 */
void edit_cast_model(struct arena *a, struct pk *root, enum dtype to);
/*
 * Returns a copy of `opt`, the optimizer_state_dict of a checkpoint of the pipeline engine, converted to type `to`. For
 * fp16 the copy contains a loss scaler in its initial state, set up from `config` (if NULL, from DeepSpeed's defaults).
 * For bf16 it contains none.
 */
struct pk *edit_cast_optimizer(struct arena *a, const struct pk *opt, const struct pk *config, enum dtype to);
/*
 * Returns a copy of `opt`, the optimizer_state_dict of a ZeRO checkpoint without pipeline, converted to type `to`. For
 * fp16 the copy contains a loss scaler in its initial state, set up from `config`; for bf16 and fp32 its loss scale is
 * fixed at 1. If `opt` is the state of BF16_Optimizer, it becomes one of ZeRO stage 1.
 */
struct pk *edit_cast_zero(struct arena *a, const struct pk *opt, const struct pk *config, enum dtype to);

#endif
