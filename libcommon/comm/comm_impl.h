/*
 * comm_impl.h - what the parts of comm share; for libcommon/comm only
 *
 * From the bottom up; each calls only those before it:
 * group.c        a call's frame, messages and waiting for them
 * collectives.c  the CPU's collectives over a transport
 * stall.c        how long GPUs wait for other ranks
 * device.c       collectives and messages where buffers lie on GPUs
 * calls.c        the collectives of comm.h: either way
 * p2p.c          messages between two members, and whatever else is waited for later
 * create.c       making and ending groups
 * world.c        opening and closing it all, who is where
 */
#ifndef SHARDKIT_COMM_COMM_IMPL_H
#define SHARDKIT_COMM_COMM_IMPL_H

#include "libcommon/base/mem.h"
#include "libcommon/comm/comm.h"
#include "libcommon/comm/launch.h"
#include "libcommon/comm/transport.h"
#include "libcommon/comm/watch_impl.h"

/* What was last given to the GPU: where it stands, should it never end. */
struct last_call {
    const char *name, *group;   /* NULL: nothing */
    uint64_t number;
    int64_t in_calls_ns;        /* of the watch, before it */
};

struct comm_world {
    struct comm_options o;
    struct launch launch;
    struct transport *t;        /* NULL in a world of one */
    struct watch *watch;
    struct comm_place *place;   /* [size] */
    uint64_t *pid_space;        /* [size] */
    struct arena *names;        /* of hosts and groups: the monitor reads them to the end */
    struct comm *all;
    uint32_t next_id;           /* for the next group: no two groups of this rank have the same */
    /* Scratch of one collective. */
    char *staging;
    size_t staging_bytes;
    struct xfer *xfer;          /* [2 * size] */
    struct comm_req *loose;     /* sends that nobody waits for */
    const struct dev_net *net;  /* NULL: buffers lie in host memory */
    struct last_call last;
    struct stalls *stalls;      /* NULL: not measured */
};

/* On a device: calls beside the caller's stream. */
struct lane {
    struct dev_link *link;      /* NULL: not needed so far */
    struct dev_stream *s;
};

struct comm {
    struct comm_world *w;
    const char *name;
    uint32_t id;
    int rank, size;
    int *ranks;                 /* world numbers, in group order */
    uint64_t n_calls, n_sent, n_received;   /* numbers for messages and the watch */
    struct dev_link *link;      /* of the device's collectives; NULL until the first */
    struct lane side;           /* of those that are started */
    struct comm_peer *peer;     /* [size], of its messages; NULL until the first */
};

/* Messages of different use never mix: each group has a channel for each use. */
enum channel_use { USE_COLLECTIVE, USE_P2P, USE_HOST, USE_LINK, N_USES };
#define CHANNEL_SETUP 0u        /* of no group: comm_create's own words */
static inline uint32_t comm_channel(const struct comm *c, enum channel_use use)
{
    return c->id * N_USES + use;
}

/* One message, cut where it is longer than a transport takes at once; or what was started on a device. */
struct comm_req {
    struct comm *c;
    const char *name;
    uint64_t number;
    struct comm_req *next;      /* of the sends that nobody waits for */
    struct dev_event *done;     /* on a device: all there is; n = 0 */
    int n;
    struct xfer x[];
};

/* ---- group.c ---- */

/* A group with its first id; no words with the other members. */
struct comm *group_new(struct comm_world *w, const char *name, const int *ranks, int n, int own, uint32_t id);

/* Bytes to or from a member. */
struct group_message {
    enum channel_use use;
    bool is_send;
    int peer;                   /* number in the group */
    const void *buf;            /* a receive writes there */
    size_t n_bytes;
};
/* Start it. */
MUST_CHECK int group_post(struct comm *c, struct xfer *x, const struct group_message *m, struct err *e);
/* Until all n messages are done; tells the watch whom we wait for. */
MUST_CHECK int group_wait_all(struct comm_world *w, const struct xfer *x, int n, struct err *e);
bool group_is_done(const struct comm_req *q);
void group_reap_loose(struct comm_world *w);    /* free the sends that have gone out */
/* Every send that nobody waits for has gone out. */
MUST_CHECK int group_drain_loose(struct comm_world *w, struct err *e);

/*
 * The frame of a call: begin() notes it for the watch; end() takes the note back and, for
 * rc < 0, makes *e of what went wrong inside: "all_reduce #12 of group tp: rank 3: ...".
 */
void group_call_begin(struct comm *c, const char *name, uint64_t number);
MUST_CHECK int group_call_end(struct comm *c, const char *name, uint64_t number, int rc,
                              const struct err *inside, struct err *e);

/* ---- collectives.c ---- */

enum collective_kind { COLLECTIVE_ALL_REDUCE, COLLECTIVE_REDUCE_SCATTER, COLLECTIVE_ALL_GATHER, COLLECTIVE_BROADCAST };

struct collective {
    enum collective_kind kind;
    struct comm_data data;
    int root;                   /* where the kind has one */
};
const char *collective_name(enum collective_kind kind);         /* "all_reduce" */

/* Over the transport, of host memory; counted, and told as `name`. ERR_USAGE as collectives_check(). */
MUST_CHECK int collectives_run(struct comm *c, const char *name, const struct collective *x, struct err *e);
MUST_CHECK int collectives_barrier(struct comm *c, struct err *e);
/* ERR_USAGE: a type that cannot be reduced, or a root that is no member. */
MUST_CHECK int collectives_check(const struct comm *c, const char *name, const struct collective *x, struct err *e);

/* ---- device.c: the calls of comm.h in a world with a device; each counts and words its own ---- */

MUST_CHECK int device_collective(struct comm *c, const struct collective *x, struct dev_stream *s, struct err *e);
/* Beside `s`. *done: as below; NULL when there was nothing to tell anybody. */
MUST_CHECK int device_collective_start(struct comm *c, const struct collective *x, struct dev_stream *s,
                                       struct dev_event **done, struct err *e);
/* *done: what comm_wait() waits for and frees. */
MUST_CHECK int device_start(struct comm *c, const struct group_message *m, struct dev_stream *s,
                            struct dev_event **done, struct err *e);
void device_wait(struct comm *c, struct dev_event *done, struct dev_stream *s);
void device_close(struct comm *c);      /* a group's links */

/* ---- stall.c ---- */

/* Around what may make `s` stand for other ranks; begin's answer is for end. */
int stall_begin(struct comm_world *w, struct dev_stream *s);
void stall_end(struct comm_world *w, int i, struct dev_stream *s);
void stall_read(struct comm_world *w);
void stall_free(struct comm_world *w);

#endif
