/*
 * tcp_join.h - how ranks that only know MASTER_ADDR and MASTER_PORT get connected
 *
 *   1. rank 0 listens at MASTER_PORT, every other rank at a port of its own. Where a launcher's own
 *      server holds MASTER_PORT (launch.h: port_taken), rank 0 takes the first free one of the
 *      TCP_JOIN_PORTS behind it (before it, near the end of the numbers), and the others try them all
 *   2. rank 0 speaks first: which job it belongs to. A caller that hears another job, or nothing, goes on
 *      looking. Rank r then says: rank, size, its port, the address it came from
 *   3. rank 0 answers everybody with the table of addresses and ports, and a random token
 *   4. rank r connects to ranks 1..r-1 (token, rank) and accepts ranks r+1..
 * The connection of step 2 stays as the one between rank 0 and rank r.
 */
#ifndef SHARDKIT_COMM_TCP_JOIN_H
#define SHARDKIT_COMM_TCP_JOIN_H

#include "libcommon/base/err.h"
#include "libcommon/comm/launch.h"

enum { TCP_JOIN_PORTS = 16 };

/* fd[size]: a non-blocking connection to each rank, -1 for our own. On -1 none is left open. */
MUST_CHECK int tcp_join(const struct launch *l, double timeout_s, int *fd, struct err *e);

#endif
