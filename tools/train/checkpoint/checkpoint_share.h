/*
 * checkpoint_share.h - share the reading of a checkpoint among the data-parallel ranks of a stage (see
 * checkpoint_share.c)
 *
 * All of these ranks must make the following calls in the same order.
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
 * Combine the results of all ranks, after each rank has run its items of the plan. rc is this rank's result. p is NULL
 * if this rank failed before it had a plan. *on is set to true if all ranks succeeded, all plans are the same, and the
 * records that the ranks have read together have correct CRCs. If *on is false, the function returns -1, with one
 * exception: it returns 0 if this rank succeeded and another rank failed, because that rank reports the reason.
 */
MUST_CHECK int load_share_check(const struct load_share *h, struct plan *p, int rc, bool *on, struct err *e);
/* Set flag[i], for each i < n, to true if it is true on any of the ranks. */
MUST_CHECK int load_share_any(const struct load_share *h, bool *flag, int n, struct err *e);
/* Gather the weights. On input each rank has its own part of every bucket; on return it has all parts. */
MUST_CHECK int load_share_weights(const struct load_share *h, void *weights, enum dtype t, struct dev_stream *s,
                                  struct err *e);

#endif
