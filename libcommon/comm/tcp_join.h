/*
 * tcp_join.h - connect ranks that only have MASTER_ADDR and MASTER_PORT
 *
 *   1. Rank 0 listens on MASTER_PORT, every other rank on a port of its own. If a launcher's own
 *      server uses MASTER_PORT (launch.h: port_in_use), rank 0 uses the first free one of the
 *      TCP_JOIN_PORTS ports after it (before it, near the end of the range), and the others try all of them
 *   2. Rank 0 first sends the id of its job. A caller that receives another id, or nothing, continues
 *      to search. Rank r then sends: rank, size, its port, the address it connects from
 *   3. Rank 0 sends every rank the table of addresses and ports, and a random token
 *   4. Rank r connects to ranks 1..r-1 (token, rank) and accepts ranks r+1..
 * The connection of step 2 remains open and becomes the transport's connection between rank 0 and rank r.
 */
#ifndef SHARDKIT_COMM_TCP_JOIN_H
#define SHARDKIT_COMM_TCP_JOIN_H

#include "libcommon/base/err.h"
#include "libcommon/comm/launch.h"

enum { TCP_JOIN_PORTS = 16 };

/*
 * Connect this rank to all others. fd[r] is set to a non-blocking connection to rank r, and to -1 for this rank. After
 * a failure (-1) no connection is left open.
 */
MUST_CHECK int tcp_join(const struct launch *l, double timeout_s, int *fd, struct err *e);

#endif
