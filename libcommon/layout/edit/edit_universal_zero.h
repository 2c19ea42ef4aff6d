/*
 * edit_universal_zero.h - a universal form of ZeRO without pipeline with other parameters, or of another type
 *
 * For the room only. Parameters have folders of their own, as in any universal form; beside them the model itself lies
 * in model_states, which are what an engine of the same ranks would save: zero_target.h says what of the source as it
 * is to be.
 */
#ifndef SHARDKIT_LAYOUT_EDIT_UNIVERSAL_ZERO_H
#define SHARDKIT_LAYOUT_EDIT_UNIVERSAL_ZERO_H

#include "libcommon/layout/edit/edit_states.h"
#include "libcommon/layout/zero/zero_target.h"

/*
 * `to` has the parameters of x->states, one by one, `t` is made of it and may be freed then. ERR_DATA: a model_states
 * file is of no rank, or cannot be made anew.
 */
MUST_CHECK int edit_universal_zero(struct edit *x, const struct source *to, const struct zero_target *t,
                                   struct err *e);

#endif
