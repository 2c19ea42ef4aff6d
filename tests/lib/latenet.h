/*
 * latenet.h - a device in host memory that does work outside the caller's stream as late as possible
 *
 * It serves tests of overlap. A collective that was started (comm_*_start) is carried out only when a caller waits
 * for it. Until then its result is NaN, unless it is a sum in place, so code that reads the result too early gets
 * wrong numbers on every run. If the input changes before the wait, the process ends. Calls in the caller's stream,
 * and messages, complete at once. Sums are computed in rank order, as on the CPU.
 *
 * The data travels over host calls of a second group with the same members, which latenet_twin() sets. Messages are
 * for groups of two and have at most COMM_HOST_MAX bytes.
 */
#ifndef SHARDKIT_TESTS_LATENET_H
#define SHARDKIT_TESTS_LATENET_H

#include "libcommon/comm/comm.h"

extern const struct dev_net late_net;

/* Use `host` to carry the data of the group called `name`. The caller owns both. */
void latenet_twin(const char *name, struct comm *host);
/* Return the number of collectives of that group that were started, and of those that are complete, since the
 * process began. */
int latenet_started(const char *name);
int latenet_done(const char *name);

#endif
