/*
 * digest.h - check that the copies of a tensor on several ranks have the same bits
 *
 * Three kinds of copies are compared. Data-parallel ranks hold copies of all weights. Tensor-parallel ranks hold copies
 * of the weights, fp32 master weights and moments of replicated tensors. A tied embedding has two copies. A digest of
 * 64 bits (kernels.h, digest_runs) is computed of each copy; while all copies are equal, ranks exchange only 8 bytes.
 * If they differ, the rank in the minority is named. If there are only two copies, it is unknown which one is right.
 *
 * Each update computes the weights again from the master weights and gathers them. The digests must therefore be
 * recorded and compared after the forward and backward passes and before the update. At that point the weights that the
 * step was computed with still exist, and no wrong result has been applied.
 */
#ifndef SHARDKIT_TRAIN_GUARD_DIGEST_H
#define SHARDKIT_TRAIN_GUARD_DIGEST_H

#include "kernels/kernels.h"
#include "libcommon/comm/comm.h"
#include "tools/train/network/pipeline_stage.h"

struct digest_groups {          /* each group may consist of a single rank */
    struct comm_world *world;
    struct comm *tp, *dp;
    struct comm *tied;          /* NULL: the embedding is not tied, or this rank does not hold it */
};

struct digest_finding {
    int32_t rank;               /* world rank that is in the minority; -1: unknown */
    int32_t differ;             /* number of tensors that differ, as seen by the rank that reports */
    char tensor[112];
    char text[512];             /* a clause that states what differs, and on which ranks */
};

struct digest_set;
/*
 * Create a set of digests. t is the dtype of the weights. All objects that the arguments point to must outlive the set.
 * All ranks must call this function, and all of the following ones.
 */
MUST_CHECK struct digest_set *digest_new(const struct stage *g, const struct stage_state *st, enum dtype t,
                                         const struct kernels *k, const struct digest_groups *c, struct err *e);
void digest_free(struct digest_set *d);             /* NULL is allowed */
/*
 * Record digests in each step. They are the digests of the tensors that tensor-parallel ranks hold copies of and, if
 * `whole` is set, also of all weights that have copies. The digests are of the state after the work queued in `s`. No
 * rank waits for another, so on a GPU the cost is only the time of computing the digests, as long as other work is
 * queued. `whole` must be the same on all ranks.
 */
void digest_record(struct digest_set *d, bool whole, struct dev_stream *s);
/*
 * Complete the record of the current step, so that digest_compare() can be called although no comparison was planned.
 * `whole` must be the value that was passed to digest_record() for this step. Afterwards all copies are recorded.
 */
void digest_record_rest(struct digest_set *d, bool whole, struct dev_stream *s);
/*
 * Compare the digests recorded since the last comparison. All copies must have been recorded in the last step
 * (`whole`). The host waits for the work queued in `s`. Returns 0 if all copies are equal. Returns 1 if copies differ;
 * *f then describes one difference, from the step in which it began, and is the same on all ranks. Returns -1 and sets
 * *e if the device or the communication failed.
 */
MUST_CHECK int digest_compare(struct digest_set *d, struct digest_finding *f, struct dev_stream *s, struct err *e);
/*
 * Returns the seconds spent on recording digests and on reading their timers. With a GPU these are seconds of GPU time,
 * and records that were neither compared nor overwritten so far are not included.
 */
double digest_seconds(struct digest_set *d);

/*
 * Check that the same work done twice gives the same gradients. digest_record_grads() records the digests of the
 * gradients, of dtype `t`, after the work queued in `s`; `time` is 0 for the first run and 1 for the second.
 * digest_compare_times() compares the two records and returns 0, 1 or -1 like digest_compare(). If several ranks work
 * on one replica of the model, a wrong number spreads to the others, so a rank is named only if no other rank has
 * differences.
 */
MUST_CHECK int digest_record_grads(struct digest_set *d, enum dtype t, int time, struct dev_stream *s, struct err *e);
MUST_CHECK int digest_compare_times(struct digest_set *d, struct digest_finding *f, struct err *e);

#endif
