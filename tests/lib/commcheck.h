/*
 * commcheck.h - check for any transport that the collectives do what comm.h promises
 *
 * The inputs follow a formula of (rank, element). Each rank computes the expected result by itself, by plain loops
 * in rank order, and compares bits.
 */
#ifndef SHARDKIT_TESTS_COMMCHECK_H
#define SHARDKIT_TESTS_COMMCHECK_H

#include "libcommon/comm/comm.h"

enum commcheck_size { COMMCHECK_BRIEF, COMMCHECK_USUAL, COMMCHECK_LARGE };    /* up to 1025 elements, up to 20
                                                                               * thousand, up to 8 MB */

/* Check all collectives with all types and awkward sizes. Returns 0, or -1 and *e. */
MUST_CHECK int commcheck_collectives(struct comm *c, enum commcheck_size size, struct err *e);
/* Run rounds of 1F1B with the group as a pipeline: many messages of many sizes in both directions. */
MUST_CHECK int commcheck_pipeline(struct comm *c, int n_micro, struct err *e);
/* Run both checks on the world and on groups of it that cross each other. */
MUST_CHECK int commcheck_all(struct comm_world *w, enum commcheck_size size, struct err *e);

#endif
