/*
 * digest.h - have the copies of a tensor that several ranks hold the same bits?
 *
 * Compared are weights over data-parallel ranks, and what tensor ranks hold copies of, weights, masters and moments,
 * over these; the tied embedding's two weights, too. A digest of 64 bits (kernels.h, digest_runs) of each tensor, so
 * ranks tell each other 8 bytes while all is well. The rank in the minority is named; of two copies nobody knows which
 * is right.
 *
 * Weights are rounded from masters and gathered anew by each update: note, and look, between the passes and the update,
 * when what the step was computed with is still there, and nothing wrong of it has been applied.
 */
#ifndef SHARDKIT_TRAIN_GUARD_DIGEST_H
#define SHARDKIT_TRAIN_GUARD_DIGEST_H

#include "kernels/kernels.h"
#include "libcommon/comm/comm.h"
#include "tools/train/network/stage.h"

struct digest_groups {          /* all may be of one rank */
    struct comm_world *world;
    struct comm *tp, *dp;
    struct comm *tied;          /* NULL: none, or not of this rank */
};

struct digest_finding {
    int32_t rank;               /* of the world, in the minority; -1: it is not known */
    int32_t differ;             /* tensors that do, on the rank that tells */
    char tensor[112];
    char text[512];             /* what differs, and on which ranks: a clause */
};

struct digest_set;
/* t: of the weights. What they point to stays. All ranks call it, and all calls below. */
MUST_CHECK struct digest_set *digest_new(const struct stage *g, const struct stage_state *st, enum dtype t,
                                         const struct kernels *k, const struct digest_groups *c, struct err *e);
void digest_free(struct digest_set *d);             /* NULL is fine */
/*
 * In each step: digests of what tensor ranks hold copies of, and of all weights that have any if `whole`, as they are
 * behind what is queued in `s`. Nobody waits, so it costs a GPU its own time alone while other work is still queued.
 * The same on all ranks.
 */
void digest_note(struct digest_set *d, bool whole, struct dev_stream *s);
/* The step is looked at after all: its note was one with that `whole`, and is a whole one now. */
void digest_note_rest(struct digest_set *d, bool whole, struct dev_stream *s);
/*
 * Compare what was noted since the last look; the last note was a whole one. The host waits for what is queued in `s`.
 * 0: equal. 1: not, and *f is one finding, of the step in which it began, the same on all ranks. -1 and *e: device or
 * communication.
 */
MUST_CHECK int digest_compare(struct digest_set *d, struct digest_finding *f, struct dev_stream *s, struct err *e);
/* Seconds that notes took, and their timers: of a GPU's time, of those that have been compared or overwritten. */
double digest_seconds(struct digest_set *d);

/*
 * The same work done twice. note: the gradients, of `t`, that `s` leaves behind, for the first time or the second.
 * compare: 0, 1 and -1 as above. Where ranks work on one replica of the model a wrong number travels on, so a rank is
 * named only when no other has differences.
 */
MUST_CHECK int digest_note_grads(struct digest_set *d, enum dtype t, int time, struct dev_stream *s, struct err *e);
MUST_CHECK int digest_compare_times(struct digest_set *d, struct digest_finding *f, struct err *e);

#endif
