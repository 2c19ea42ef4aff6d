/*
 * socket.h - TCP connections between ranks: connect, accept, and transfer whole buffers
 *
 * IPv4 only. Every socket is close-on-exec and has TCP_NODELAY set. Keep-alive detects a dead machine within about 30
 * s. These functions keep no state, so any thread may call them.
 */
#ifndef SHARDKIT_COMM_SOCKET_H
#define SHARDKIT_COMM_SOCKET_H

#include <netinet/in.h>
#include <stdint.h>
#include <stdbool.h>
#include <stddef.h>

#include "libcommon/base/err.h"


/*
 * Listen on *port on every address of this host. If *port is 0, a free port is chosen and stored in *port. Returns the
 * socket, or -1 with *e filled.
 */
MUST_CHECK int socket_listen(int *port, int backlog, struct err *e);
/* Get the IPv4 address of a host name without a port. Returns -1 with *e filled on failure. */
MUST_CHECK int socket_resolve(const char *host, struct in_addr *a, struct err *e);
/* Connect before `deadline_ns`, with a single attempt. Returns the socket, or -1 with errno set. */
MUST_CHECK int socket_try(struct in_addr a, int port, int64_t deadline_ns);
/*
 * Connect before `deadline_ns`. Retries while the port is not open yet. Returns the socket, or -1 with errno set. There
 * is no message, because only the caller can describe the peer.
 */
MUST_CHECK int socket_connect(struct in_addr a, int port, int64_t deadline_ns);
/*
 * Accept a connection before `deadline_ns`. Returns the socket, or -1 with errno set (ETIMEDOUT if no connection
 * arrived).
 */
MUST_CHECK int socket_accept(int listener, int64_t deadline_ns);
/*
 * Transfer all n bytes before `deadline_ns`. Returns false if the other side closed the connection, the connection
 * failed, or the deadline passed.
 */
MUST_CHECK bool socket_read(int fd, void *buf, size_t n, int64_t deadline_ns);
MUST_CHECK bool socket_write(int fd, const void *buf, size_t n, int64_t deadline_ns);
bool socket_is_loopback(struct in_addr a);

#endif
