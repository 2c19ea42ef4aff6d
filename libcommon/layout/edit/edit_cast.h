/*
 * edit_cast.h - what trees of DeepSpeed say of the type that a run computes with
 *
 * For the room only. fp16 is ZeRO stage 1 with a loss scaler, bf16 of the pipeline engine BF16_Optimizer, which has
 * neither (docs/formats.md, section 4.5).
 */
#ifndef SHARDKIT_LAYOUT_EDIT_CAST_H
#define SHARDKIT_LAYOUT_EDIT_CAST_H

#include "libcommon/base/dtype.h"
#include "libcommon/format/pickle/pickle.h"

/* DeepSpeed's configuration, where it is a dict: which of the two is switched on; of fp32 neither. */
void edit_cast_config(struct arena *a, struct pk *config, enum dtype to);
/* A model_states tree of the pipeline engine: its arguments and configurations. */
void edit_cast_model(struct arena *a, struct pk *root, enum dtype to);
/*
 * An optimizer_state_dict of the pipeline engine in the other form: to fp16 with a scaler that begins as a new run's
 * does by `config` (NULL: by DeepSpeed's defaults), to bf16 without.
 */
struct pk *edit_cast_optimizer(struct arena *a, const struct pk *opt, const struct pk *config, enum dtype to);
/*
 * An optimizer_state_dict of ZeRO without pipeline for another type: a scaler that begins as a new run's does by
 * `config`, of bf16 and fp32 the fixed scale of 1. That of BF16_Optimizer becomes stage 1's.
 */
struct pk *edit_cast_zero(struct arena *a, const struct pk *opt, const struct pk *config, enum dtype to);

#endif
