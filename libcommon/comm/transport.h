/*
 * transport.h - transfer bytes between the ranks; the basis of the CPU's collectives
 *
 * A message is sent from one rank to another on a channel. On one channel between two ranks messages arrive in the
 * order in which they were started, and the receive that was started first gets the first one. Channels do not wait
 * for each other. Starting never blocks. Only one thread at a time may use a transport.
 */
#ifndef SHARDKIT_COMM_TRANSPORT_H
#define SHARDKIT_COMM_TRANSPORT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"

#define XFER_MAX ((size_t)1 << 30)      /* maximum size of one message in bytes; MPI counts in int */

/* One message in transit. The caller owns the memory, which must not move until `done`. */
struct xfer {
    void *buf;
    size_t n;                   /* size in bytes; at most XFER_MAX */
    int peer;                   /* rank in the world, never this rank itself */
    uint32_t channel;
    bool is_send;
    bool done;
    /* Used by the transport. */
    size_t moved;
    struct xfer *next;
};

struct transport {
    const char *name;           /* e.g. "mpi" */
    int rank, size;
    bool crowded;               /* ranks share processors, so sleep early; the caller may change it */
    atomic_int lost;            /* a rank whose connection broke, or -1; any thread may read it */
    int (*start)(struct transport *t, struct xfer *x, struct err *e);
    /*
     * Transfer what can be transferred now. `idle` means that the caller has nothing else to do: return when
     * something was transferred, or a little later.
     */
    int (*progress)(struct transport *t, bool idle, struct err *e);
    /* Ends the transport and frees *t. In an orderly end every rank makes this call. */
    void (*close)(struct transport *t, bool orderly);
};

struct launch;
/* Set *t, or return -1 with *e filled. The MPI world's size is checked against the launcher's. */
MUST_CHECK int transport_mpi_open(const struct launch *l, struct transport **t, struct err *e);
MUST_CHECK int transport_tcp_open(const struct launch *l, double timeout_s, struct transport **t, struct err *e);

#endif
