/*
 * zero_like.h - an existing checkpoint of ZeRO says what an engine trains, in which groups and order
 *
 * Vectors are copied by place, so files fit an engine whose groups, frozen parameters and settings of ZeRO are those
 * they were made for. A checkpoint that this engine saved, after a step at least, has them all.
 */
#ifndef SHARDKIT_LAYOUT_ZERO_LIKE_H
#define SHARDKIT_LAYOUT_ZERO_LIKE_H

#include "libcommon/layout/optim_groups.h"

/* Does `like` have that name as a buffer? */
bool zero_like_buffer(const struct source *like, const char *name);
/*
 * Groups of `like` for the parameters of s, whose names and shapes have to be the same (ERR_DATA): options are those of
 * `like` with the values that `own`, the groups of s, has for them. Its arena is s's; notes: what is not carried.
 */
MUST_CHECK int zero_like_groups(struct source *s, const struct source *like, const struct optim_groups *own,
                                struct optim_groups *out, struct report *notes, struct err *e);

#endif
