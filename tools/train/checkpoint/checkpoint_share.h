/*
 * checkpoint_share.h - let the data-parallel ranks of a stage load together (described in checkpoint_share.c)
 *
 * All members must make these calls, in the same order.
 */
#ifndef SHARDKIT_TRAIN_CHECKPOINT_CHECKPOINT_SHARE_H
#define SHARDKIT_TRAIN_CHECKPOINT_CHECKPOINT_SHARE_H

#include "libcommon/base/dev.h"
#include "libcommon/plan/plan.h"
#include "tools/train/network/pipeline_stage.h"

struct comm;

struct load_share {
    struct comm *dp;
    const struct stage *s;
    const char *path;           /* path of the checkpoint, for messages */
};

/*
 * Combine the results after each member has run its items of the plan. rc is the member's result; p is NULL if the
 * member failed before it had a plan. *on is set to true if all members succeeded, had the same plan, and the records
 * that they have read together have the correct CRCs. If *on is false, the result is -1, or 0 if this member succeeded
 * and another one failed, which reports its own reason.
 */
MUST_CHECK int load_share_check(const struct load_share *h, struct plan *p, int rc, bool *on, struct err *e);
/* Set flag[i] to true if it is true on any member. */
MUST_CHECK int load_share_any(const struct load_share *h, bool *flag, int n, struct err *e);
/* Gather the weights from all members. On input each member has its own part of every bucket, on return all parts. */
MUST_CHECK int load_share_weights(const struct load_share *h, void *weights, enum dtype t, struct dev_stream *s,
                                  struct err *e);

#endif
