/*
 * transport.h - bytes between the ranks; what the CPU's collectives are written over
 *
 * A message goes from one rank to another on a channel. On one channel between two ranks
 * messages arrive in the order they were started, and the receive started first takes the
 * first one; channels do not wait for each other. Starting never blocks.
 * Threads: one at a time.
 */
#ifndef SHARDKIT_COMM_TRANSPORT_H
#define SHARDKIT_COMM_TRANSPORT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"

#define XFER_MAX ((size_t)1 << 30)      /* bytes of one message; MPI counts in int */

/* One message on its way; the caller's memory, which stays where it is until `done`. */
struct xfer {
    void *buf;
    size_t n;                   /* bytes; at most XFER_MAX */
    int peer;                   /* rank in the world, never our own */
    uint32_t channel;
    bool is_send;
    bool done;
    /* The transport's own. */
    size_t moved;
    struct xfer *next;
};

struct transport {
    const char *name;           /* "mpi" */
    int rank, size;
    bool crowded;               /* ranks share processors: sleep early; the caller may change it */
    atomic_int lost;            /* a rank whose connection broke, or -1; any thread may read */
    int (*start)(struct transport *t, struct xfer *x, struct err *e);
    /*
     * Move what can be moved now. With `idle` there is nothing else to do: return when
     * something has moved, or a little later.
     */
    int (*progress)(struct transport *t, bool idle, struct err *e);
    /* Ends the transport and frees *t; in an orderly end every rank comes here. */
    void (*close)(struct transport *t, bool orderly);
};

#ifdef HAVE_MPI
#define TRANSPORT_HAS_MPI true
#else
#define TRANSPORT_HAS_MPI false
#endif

struct launch;
/* Both fill *t, or return -1 with *e. The MPI world's size is checked against the launcher's. */
MUST_CHECK int transport_mpi_open(const struct launch *l, struct transport **t, struct err *e);
MUST_CHECK int transport_tcp_open(const struct launch *l, double timeout_s, struct transport **t, struct err *e);

#endif
