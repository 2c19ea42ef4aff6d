/*
 * zero_template.h - use an existing checkpoint of ZeRO for an engine's groups, their order, and frozen parameters
 *
 * Vectors are copied by position, so files fit only an engine with the same groups, frozen parameters and ZeRO
 * settings. A checkpoint that this engine saved, after at least one step, contains all of them.
 */
#ifndef SHARDKIT_LAYOUT_ZERO_TEMPLATE_H
#define SHARDKIT_LAYOUT_ZERO_TEMPLATE_H

#include <stdbool.h>

#include "libcommon/ckpt/optim_groups.h"

/* Returns true if `like` has a buffer with that name. */
bool zero_like_buffer(const struct source *like, const char *name);
/*
 * Get the groups of `like` for the parameters of s, whose names and shapes must be the same (else ERR_DATA). The
 * options are those of `like`, with the values from `own`, the groups of s, where it has them. Memory is from the
 * arena of s. `notes` lists what is not carried over.
 */
MUST_CHECK int zero_like_groups(struct source *s, const struct source *like, const struct optim_groups *own,
                                struct optim_groups *out, struct report *notes, struct err *e);

#endif
