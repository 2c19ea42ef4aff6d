/*
 * refusal.h - wrong options, said once a job and heard of by every rank
 *
 * Options are read before the ranks know each other, and nearly always all have the same. Rank 0 says at once what
 * is wrong with them; the others join all the same, so that whoever has a fault of its own can tell it, and
 * a rank whose options are fine does not wait for those that have left.
 */
#ifndef SHARDKIT_TRAIN_OPTIONS_REFUSAL_H
#define SHARDKIT_TRAIN_OPTIONS_REFUSAL_H

#include "libcommon/comm/comm.h"

/* The end of a process whose options were refused for `why`: says so, where nobody else does. Its exit status. */
int refusal_leave(const struct err *why);
/*
 * Every rank calls it, first of all; own: its refusal, or NULL. 0: nobody was refused. Else the exit status, and the
 * job ends here; whoever has another reason than a rank before it has said so. -1: ranks cannot speak.
 */
MUST_CHECK int refusal_share(struct comm_world *w, const struct err *own, struct err *e);

#endif
