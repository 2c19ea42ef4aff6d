/*
 * zero_carry.h - what a program saved beside its tensors, into a model_states file
 */
#ifndef SHARDKIT_LAYOUT_ZERO_CARRY_H
#define SHARDKIT_LAYOUT_ZERO_CARRY_H

#include "libcommon/layout/layout.h"

/*
 * What the caller saved beside model and optimizer becomes its client_state, keys of `root`, which is the new file's
 * tree. Tensors and objects of some class have no place there: a WARNING.
 */
void zero_carry_values(struct source *s, struct pk *root, struct report *notes);

#endif
