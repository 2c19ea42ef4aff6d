/*
 * diff_patch.h - write the differences between two checkpoints as a delta
 */
#ifndef SHARDKIT_CKPT_INSPECT_DIFF_PATCH_H
#define SHARDKIT_CKPT_INSPECT_DIFF_PATCH_H

#include "tools/ckpt-inspect/diff.h"

/*
 * Check that a delta of the listed pairs would be complete, and that in->patch can be written. Must be called after
 * diff_pair() and diff_state(), before values are compared. Returns -1 with ERR_USAGE if a tensor or a state is on one
 * side only or has another type or shape there, or if the optimizer's step differs while the moments are selected.
 */
MUST_CHECK int diff_patch_check(const struct inspect *in, const struct diff *d, struct err *e);
/*
 * Write the delta to in->patch, and print what it holds. The jobs of d must have run, and nothing may be damaged.
 * Returns -1 with ERR_USAGE if a buffer of the model differs, because a delta holds parameters only, or the errors of
 * delta_write().
 */
MUST_CHECK int diff_patch_write(const struct inspect *in, const struct diff *d, struct err *e);

#endif
