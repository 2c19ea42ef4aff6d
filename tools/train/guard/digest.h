/*
 * digest.h - check that the copies of a tensor on several ranks have the same bits
 *
 * Compared are the weights across data-parallel ranks. Across tensor-parallel ranks, the weights, masters and moments
 * of tensors that are replicated there are compared. The two copies of a tied embedding are compared, too. A digest
 * of 64 bits (kernels.h, digest_runs) is computed of each tensor; while all copies are equal, ranks exchange only 8
 * bytes. The rank in the minority is named. If there are only two copies, it is unknown which one is right.
 *
 * Each update recomputes the weights from the masters and gathers them again. Therefore record and compare the
 * digests between the passes and the update: at that point the weights that the step was computed with still exist,
 * and no wrong result has been applied.
 */
#ifndef SHARDKIT_TRAIN_GUARD_DIGEST_H
#define SHARDKIT_TRAIN_GUARD_DIGEST_H

#include "kernels/kernels.h"
#include "libcommon/comm/comm.h"
#include "tools/train/network/pipeline_stage.h"

struct digest_groups {          /* each group may consist of one rank */
    struct comm_world *world;
    struct comm *tp, *dp;
    struct comm *tied;          /* NULL: the embedding is not tied, or this rank has no part of it */
};

struct digest_finding {
    int32_t rank;               /* world rank in the minority; -1: unknown */
    int32_t differ;             /* number of tensors that differ, on the rank that reports */
    char tensor[112];
    char text[512];             /* a clause that states what differs, and on which ranks */
};

struct digest_set;
/*
 * Create a set. t is the dtype of the weights. All objects that the arguments point to must outlive the set. All
 * ranks must call this function and all of the following ones.
 */
MUST_CHECK struct digest_set *digest_new(const struct stage *g, const struct stage_state *st, enum dtype t,
                                         const struct kernels *k, const struct digest_groups *c, struct err *e);
void digest_free(struct digest_set *d);             /* NULL is allowed */
/*
 * Record digests in each step: those of tensors that tensor ranks hold copies of and, if `whole`, also those of all
 * weights that have copies. The digests cover the state after the work queued in `s`. No rank waits, so on a GPU this
 * costs only its own time as long as other work is queued. `whole` must be the same on all ranks.
 */
void digest_record(struct digest_set *d, bool whole, struct dev_stream *s);
/*
 * Complete the record of the current step, so that digest_compare() can be called although no comparison was planned.
 * `whole` must be the value that digest_record() received for the step. The record is a whole one afterwards.
 */
void digest_record_rest(struct digest_set *d, bool whole, struct dev_stream *s);
/*
 * Compare the digests recorded since the last comparison; the last record must be a whole one. The host waits for the
 * work queued in `s`. Returns 0 if all are equal. Returns 1 if not; *f is then one finding, the same on all ranks,
 * from the step in which the difference began. Returns -1 and sets *e if the device or the communication failed.
 */
MUST_CHECK int digest_compare(struct digest_set *d, struct digest_finding *f, struct dev_stream *s, struct err *e);
/*
 * Returns the seconds spent on recording digests and on reading their timers. With a GPU these are seconds of GPU time,
 * and records that have been neither compared nor overwritten are not included.
 */
double digest_seconds(struct digest_set *d);

/*
 * Check that the same work done twice gives the same gradients. digest_record_grads() records the gradients, of dtype
 * `t`, after the work queued in `s`; `time` is 0 for the first run and 1 for the second. digest_compare_times() returns
 * 0, 1 or -1 as digest_compare() does. If several ranks work on one replica of the model, a wrong number propagates to
 * others, so a rank is named only if no other rank has differences.
 */
MUST_CHECK int digest_record_grads(struct digest_set *d, enum dtype t, int time, struct dev_stream *s, struct err *e);
MUST_CHECK int digest_compare_times(struct digest_set *d, struct digest_finding *f, struct err *e);

#endif
