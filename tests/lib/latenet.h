/*
 * latenet.h - a device in host memory, whose work beside the caller's stream is done as late as it may be
 *
 * For tests of what overlaps: a collective that was started (comm_*_start) is carried out when
 * somebody waits for it, not before, and until then its result is NaN, unless it is a sum in place: who
 * reads it too early gets wrong numbers on every run. Who changes what it is made of ends the process.
 * Calls in the caller's stream, and messages, are done at once. Sums are made in rank order, as on the CPU.
 *
 * It talks over host calls of a second group with the same members: latenet_twin() tells it which.
 * Messages are for groups of two and at most COMM_HOST_MAX bytes.
 */
#ifndef SHARDKIT_TESTS_LATENET_H
#define SHARDKIT_TESTS_LATENET_H

#include "libcommon/comm/comm.h"

extern const struct dev_net late_net;

/* `host` carries what the group called `name` says; both belong to the caller. */
void latenet_twin(const char *name, struct comm *host);
/* Collectives of that group that were started, and those of them that are done, since the process began. */
int latenet_started(const char *name);
int latenet_done(const char *name);

#endif
