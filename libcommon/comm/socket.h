/*
 * socket.h - TCP connections between ranks: make them, and move whole buffers
 *
 * IPv4. Every descriptor is close-on-exec and without Nagle's delay; keep-alive finds a
 * dead machine within about 30 s. Threads: these functions keep no state.
 */
#ifndef SHARDKIT_COMM_SOCKET_H
#define SHARDKIT_COMM_SOCKET_H

#include <netinet/in.h>
#include <stdint.h>
#include <stdbool.h>
#include <stddef.h>

#include "libcommon/base/err.h"


/* Listen on `port` of every address (0: any free port, stored in *port). -1 and *e. */
MUST_CHECK int socket_listen(int *port, int backlog, struct err *e);
/* The IPv4 address of a host name, without a port. -1 and *e. */
MUST_CHECK int socket_resolve(const char *host, struct in_addr *a, struct err *e);
/* Connect before `deadline_ns`, one attempt; -1 with errno. */
MUST_CHECK int socket_try(struct in_addr a, int port, int64_t deadline_ns);
/*
 * Connect before `deadline_ns`; tries again while nobody listens there yet. -1 with errno
 * set and nothing said: the caller knows whom it wanted.
 */
MUST_CHECK int socket_connect(struct in_addr a, int port, int64_t deadline_ns);
/* Accept a connection before `deadline_ns`; -1 with errno (ETIMEDOUT when nobody came). */
MUST_CHECK int socket_accept(int listener, int64_t deadline_ns);
/* All n bytes, before `deadline_ns`; false when the other side closed, failed or was too slow. */
MUST_CHECK bool socket_read(int fd, void *buf, size_t n, int64_t deadline_ns);
MUST_CHECK bool socket_write(int fd, const void *buf, size_t n, int64_t deadline_ns);
bool socket_is_loopback(struct in_addr a);

#endif
