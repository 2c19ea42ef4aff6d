/*
 * edit_cast.h - change the computing type in the trees of a DeepSpeed checkpoint
 *
 * Internal to this folder. fp16 is ZeRO stage 1 with a loss scaler. bf16 of the pipeline engine is BF16_Optimizer,
 * which has neither (docs/formats.md, section 4.5).
 */
#ifndef SHARDKIT_LAYOUT_EDIT_CAST_H
#define SHARDKIT_LAYOUT_EDIT_CAST_H

#include "libcommon/base/dtype.h"
#include "libcommon/format/pickle/pickle.h"

/* Enable one of the two types in DeepSpeed's configuration, if it is a dict; for fp32 disable both. */
void edit_cast_config(struct arena *a, struct pk *config, enum dtype to);
/* Change the arguments and configurations in a model_states tree of the pipeline engine. */
void edit_cast_model(struct arena *a, struct pk *root, enum dtype to);
/*
 * Returns an optimizer_state_dict of the pipeline engine converted to the other type. For fp16 it has a loss scaler
 * that starts as in a new run with `config` (NULL: with DeepSpeed's defaults), for bf16 it has none.
 */
struct pk *edit_cast_optimizer(struct arena *a, const struct pk *opt, const struct pk *config, enum dtype to);
/*
 * Returns an optimizer_state_dict of ZeRO without pipeline converted to another type. For fp16 its scaler starts as
 * in a new run with `config`; for bf16 and fp32 it is the fixed scale of 1. The state of BF16_Optimizer is converted
 * to that of stage 1.
 */
struct pk *edit_cast_zero(struct arena *a, const struct pk *opt, const struct pk *config, enum dtype to);

#endif
