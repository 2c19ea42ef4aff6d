/*
 * refusal.h - report refused options once per job, and make every rank exit
 *
 * The options are parsed before the ranks are connected, and nearly always all ranks have the same ones. Rank 0
 * therefore reports its error at once. The other ranks with an error still join the job, so that a rank with a
 * different error can report it and a rank whose options are valid does not wait for ranks that have exited.
 */
#ifndef SHARDKIT_TRAIN_OPTIONS_REFUSAL_H
#define SHARDKIT_TRAIN_OPTIONS_REFUSAL_H

#include "libcommon/comm/comm.h"

/*
 * End a process whose options were refused for the reason `why`. Reports the reason if no other rank does. Returns
 * the exit status.
 */
int refusal_leave(const struct err *why);
/*
 * Exchange refusals. Every rank must call it before any other exchange; `own` is the rank's refusal or NULL. Returns
 * 0 if no rank was refused. Otherwise it returns the exit status, and the job must end; a rank has then reported its
 * reason if it differs from those of all lower ranks. Returns -1 if the ranks cannot communicate.
 */
MUST_CHECK int refusal_share(struct comm_world *w, const struct err *own, struct err *e);

#endif
