/*
 * checkpoint_share.h - the data-parallel ranks of a stage load as one (checkpoint_share.c tells how)
 *
 * All members make these calls, in the same order.
 */
#ifndef SHARDKIT_TRAIN_CHECKPOINT_CHECKPOINT_SHARE_H
#define SHARDKIT_TRAIN_CHECKPOINT_CHECKPOINT_SHARE_H

#include "libcommon/base/dev.h"
#include "libcommon/plan/plan.h"
#include "tools/train/network/stage.h"

struct comm;

struct load_share {
    struct comm *dp;
    const struct stage *s;
    const char *path;           /* the checkpoint's, for messages */
};

/*
 * Each member has run its items of the plan and comes with its rc; p is NULL where it did not get so far. *on: all did
 * well, had the same plan, and the records that they have read between them have the CRCs that they should. Else -1,
 * or 0 where this member did well and another did not, whose reason is its own to tell.
 */
MUST_CHECK int load_share_check(const struct load_share *h, struct plan *p, int rc, bool *on, struct err *e);
/* flag[i] becomes true where it is so for a member. */
MUST_CHECK int load_share_any(const struct load_share *h, bool *flag, int n, struct err *e);
/* Each member has its own part of every bucket: then it has all of them. */
MUST_CHECK int load_share_weights(const struct load_share *h, void *weights, enum dtype t, struct dev_stream *s,
                                  struct err *e);

#endif
