/*
 * transport.h - transfer bytes between the ranks; the basis of the CPU's collectives
 *
 * A message is sent from one rank to another on a channel. Messages between two ranks on one channel arrive in the
 * order in which they were started: the receive that was started first gets the first message. A message on one channel
 * never waits for a message on another. Starting never blocks. Only one thread at a time may use a transport.
 */
#ifndef SHARDKIT_COMM_TRANSPORT_H
#define SHARDKIT_COMM_TRANSPORT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"

/* maximum size of one message in bytes; it is limited because MPI counts bytes in an int */
#define XFER_MAX ((size_t)1 << 30)

/* A message in transit. The caller owns this struct, and must neither free nor move it until `done` is true. */
struct xfer {
    void *buf;
    size_t n;                   /* size in bytes; at most XFER_MAX */
    int peer;                   /* rank in the world, never this rank itself */
    uint32_t channel;
    bool is_send;
    bool done;
    /* The following members are used by the transport only. */
    size_t moved;
    struct xfer *next;
};

struct transport {
    const char *name;           /* e.g. "mpi" */
    int rank, size;
    bool crowded;               /* ranks share processors, so that waits sleep sooner; the caller may change this */
    atomic_int lost;            /* a rank whose connection broke, or -1; any thread may read it */
    int (*start)(struct transport *t, struct xfer *x, struct err *e);
    /*
     * Transfer the data that can be transferred now. If `idle` is true, the caller has nothing else to do; the function
     * then returns when something was transferred, or after a short time.
     */
    int (*progress)(struct transport *t, bool idle, struct err *e);
    /* Close the transport and free *t. In an orderly end every rank makes this call. */
    void (*close)(struct transport *t, bool orderly);
};

struct launch;
/*
 * Create a transport. Sets *t, or returns -1 with *e filled. transport_mpi_open() also fails if the size of MPI's world
 * differs from the launcher's.
 */
MUST_CHECK int transport_mpi_open(const struct launch *l, struct transport **t, struct err *e);
MUST_CHECK int transport_tcp_open(const struct launch *l, double timeout_s, struct transport **t, struct err *e);

#endif
