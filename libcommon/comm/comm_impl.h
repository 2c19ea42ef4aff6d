/*
 * comm_impl.h - declarations shared by the files of libcommon/comm; for use in this folder only
 *
 * From the bottom up; each file calls only those before it:
 *   group.c        the start and end of a call, messages, and waiting for messages
 *   collectives.c  the CPU's collectives over a transport
 *   stall.c        measures how long GPUs wait for other ranks
 *   device_link.c  collectives and messages for buffers on GPUs
 *   calls.c        the collectives of comm.h, with or without a device
 *   p2p.c          messages between two members, and waiting for started calls
 *   create.c       create and close groups
 *   world.c        open and close the world, locations of the ranks
 */
#ifndef SHARDKIT_COMM_COMM_IMPL_H
#define SHARDKIT_COMM_COMM_IMPL_H

#include "libcommon/base/mem.h"
#include "libcommon/comm/comm.h"
#include "libcommon/comm/launch.h"
#include "libcommon/comm/transport.h"
#include "libcommon/comm/watch_impl.h"

/* The last call that was queued on the GPU. It is reported if it never ends. */
struct last_call {
    const char *name, *group;   /* NULL: none */
    uint64_t number;
    int64_t in_calls_ns;        /* the value of watch.in_calls_ns before the call */
};

struct comm_world {
    struct comm_options o;
    struct launch launch;
    struct transport *t;        /* NULL in a world of one rank */
    struct watch *watch;
    struct comm_place *place;   /* [size] */
    uint64_t *pid_space;        /* [size]; two ranks with equal values can see each other's pids */
    struct arena *names;        /* names of hosts and groups: the monitor reads them until the end */
    struct comm *all;
    uint32_t next_id;           /* the id of the next group; unique among the groups of this rank */
    /* Scratch buffer of one collective. */
    char *staging;
    size_t staging_bytes;
    struct xfer *xfer;          /* [2 * size] */
    struct comm_req *loose;     /* list of host sends in progress */
    const struct dev_net *net;  /* NULL: buffers are in host memory */
    struct last_call last;
    struct stalls *stalls;      /* NULL: not measured */
};

/* A link for calls that a device executes outside of the caller's stream. */
struct lane {
    struct dev_link *link;      /* NULL until the link is first used */
    struct dev_stream *s;
};

struct comm {
    struct comm_world *w;
    const char *name;
    uint32_t id;
    int rank, size;
    int *ranks;                 /* world numbers, in group order */
    /*
     * numbers of calls, of messages sent and of messages received; a number identifies a call in messages and in the
     * watch
     */
    uint64_t n_calls, n_sent, n_received;
    struct dev_link *link;      /* for the device's collectives; NULL until the first one */
    struct lane side;           /* for started collectives */
    struct comm_peer *peer;     /* [size], for messages; NULL until the first one */
};

/* Messages of different uses never mix: each group has one channel per use. */
enum channel_use { USE_COLLECTIVE, USE_P2P, USE_HOST, USE_LINK, N_USES };
#define CHANNEL_SETUP 0u        /* belongs to no group: the messages of comm_create() */
static inline uint32_t comm_channel(const struct comm *c, enum channel_use use)
{
    return c->id * N_USES + use;
}

/*
 * A message that has been started, or an operation that has been started on a device. A message that is longer than a
 * transport's limit consists of several parts.
 */
struct comm_req {
    struct comm *c;
    const char *name;
    uint64_t number;
    struct comm_req *next;      /* in the list of host sends in progress */
    /* for an operation on a device, the event of its end; `n` is then 0 and no other member is used */
    struct dev_event *done;
    int n;
    struct xfer x[];
};

/* ---- group.c ---- */

/* Create a group with its initial id. Does not communicate with the other members. */
struct comm *group_new(struct comm_world *w, const char *name, const int *ranks, int n, int own, uint32_t id);

/* A message to or from a member. */
struct group_message {
    enum channel_use use;
    bool is_send;
    int peer;                   /* rank in the group */
    const void *buf;            /* destination of a receive */
    size_t n_bytes;
};
/* Start the message *m. *x must remain valid until the message is done. */
MUST_CHECK int group_post(struct comm *c, struct xfer *x, const struct group_message *m, struct err *e);
/* Wait until the n messages at x are done. Meanwhile the watch's record shows which rank this rank waits for. */
MUST_CHECK int group_wait_all(struct comm_world *w, const struct xfer *x, int n, struct err *e);
bool group_is_done(const struct comm_req *q);
void group_reap_loose(struct comm_world *w);    /* free the host sends that have completed */
/* Wait until all host sends have completed. */
MUST_CHECK int group_drain_loose(struct comm_world *w, struct err *e);

/*
 * Begin and end a call. group_call_begin() adds the call to the watch's record; group_call_end() removes the call from
 * it. If rc < 0, group_call_end() also sets *e to the error `inside`, preceded by the name of the call: "all_reduce #12
 * of group tp: rank 3: ...".
 */
void group_call_begin(struct comm *c, const char *name, uint64_t number);
MUST_CHECK int group_call_end(struct comm *c, const char *name, uint64_t number, int rc,
                              const struct err *inside, struct err *e);

/* ---- collectives.c ---- */

enum collective_kind { COLLECTIVE_ALL_REDUCE, COLLECTIVE_REDUCE_SCATTER, COLLECTIVE_ALL_GATHER, COLLECTIVE_BROADCAST };

struct collective {
    enum collective_kind kind;
    struct comm_data data;
    int root;                   /* for kinds that have a root */
};
const char *collective_name(enum collective_kind kind);         /* e.g. "all_reduce" */

/*
 * Execute a collective on host memory over the transport. The call is counted in c->n_calls and appears as `name` in
 * reports. Fails with ERR_USAGE like collectives_check().
 */
MUST_CHECK int collectives_run(struct comm *c, const char *name, const struct collective *x, struct err *e);
MUST_CHECK int collectives_barrier(struct comm *c, struct err *e);
/*
 * Check the arguments of a collective. Fails with ERR_USAGE if its type cannot be reduced, or its root is not a member.
 */
MUST_CHECK int collectives_check(const struct comm *c, const char *name, const struct collective *x, struct err *e);

/* ---- device_link.c: the calls of comm.h in a world with a device ---- */

MUST_CHECK int device_collective(struct comm *c, const struct collective *x, struct dev_stream *s, struct err *e);
/*
 * Start a collective outside of `s`. *done is set to the event of its end, as in device_start(), or to NULL if no
 * communication is needed.
 */
MUST_CHECK int device_collective_start(struct comm *c, const struct collective *x, struct dev_stream *s,
                                       struct dev_event **done, struct err *e);
/* Start a message. *done is set to the event of its end; device_wait() waits for this event and frees it. */
MUST_CHECK int device_start(struct comm *c, const struct group_message *m, struct dev_stream *s,
                            struct dev_event **done, struct err *e);
void device_wait(struct comm *c, struct dev_event *done, struct dev_stream *s);
void device_close(struct comm *c);      /* close a group's links */

/* ---- stall.c ---- */

/*
 * Measure an operation that may make `s` wait for other ranks. stall_begin() must be called before the operation, and
 * stall_end() with the result of stall_begin() after it.
 */
int stall_begin(struct comm_world *w, struct dev_stream *s);
void stall_end(struct comm_world *w, int i, struct dev_stream *s);
void stall_read(struct comm_world *w);
void stall_free(struct comm_world *w);

#endif
