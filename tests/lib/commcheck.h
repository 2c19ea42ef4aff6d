/*
 * commcheck.h - do the collectives do what comm.h promises? For any transport
 *
 * Inputs are a formula of (rank, element), so each rank works out alone what the result
 * must be, by plain loops in rank order, and compares bits.
 */
#ifndef SHARDKIT_TESTS_COMMCHECK_H
#define SHARDKIT_TESTS_COMMCHECK_H

#include "libcommon/comm/comm.h"

enum commcheck_size { COMMCHECK_BRIEF, COMMCHECK_USUAL, COMMCHECK_LARGE };    /* to 1025 elements, to 20 thousand, to 8 MB */

/* All collectives, all types, awkward sizes. 0, or -1 and *e. */
MUST_CHECK int commcheck_collectives(struct comm *c, enum commcheck_size size, struct err *e);
/* Rounds of 1F1B along the group as a pipeline: many messages of many sizes, both ways. */
MUST_CHECK int commcheck_pipeline(struct comm *c, int n_micro, struct err *e);
/* Everything above on the world and on groups of it that cross each other. */
MUST_CHECK int commcheck_all(struct comm_world *w, enum commcheck_size size, struct err *e);

#endif
