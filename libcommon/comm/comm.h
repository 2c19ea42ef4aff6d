/*
 * comm.h - communication between the ranks of one training job
 *
 * comm_world_open() finds out how this process was started (alone, mpirun, srun, torchrun's variables: launch.h),
 * connects it to the other ranks and starts the monitor (watch.h). A struct comm is a group of ranks with
 * collectives and point-to-point messages. Groups are independent of each other, so their messages never mix.
 *
 * Buffers and streams. If a call has a stream parameter, its buffers are memory of the device that the world
 * computes on, and the call is complete in the order of that stream. On the CPU the stream is NULL and everything
 * is complete when the call returns; a GPU world only queues work. comm_host_*() use host memory and no stream, and
 * are always complete on return. Use them only for the few values on which the program bases its own decisions.
 *
 * The contract of a reduction: the result has the same bits on every rank of the group. It depends only on the
 * inputs, the number of elements, and the group's size and order, not on timing, threads, transport or memory
 * addresses. On the CPU element i is
 *     ((x_0[i] + x_1[i]) + x_2[i]) + ...     in group order, for any n;
 * F32 and F64 are added in their own precision; BF16 and F16 are added in fp32 and rounded once, to nearest even (a
 * sum in F16 may become infinite); integers wrap. MAX: a NaN in any input makes the element NaN. On a GPU NCCL
 * adds, in an order of its own. The result still has the same bits on every rank, and in every run of the same
 * program on the same machines, but a different group, n, topology or version of NCCL may give different bits. BF16
 * and F16 are rounded after each addition; reduce_scatter is not bit for bit a part of all_reduce; and MAX may lose
 * a NaN. Shared memory (comm_share) is summed as on the CPU. Values that must not depend on the topology must use
 * comm_host_all_reduce().
 *
 * Every member calls the same collectives of a group in the same order with the same n, dtype, op and root. n = 0
 * and groups of one are allowed, and cost nothing (a group of one copies if in and out differ). Element counts are
 * in units of `dtype` and may exceed 2^31.
 *
 * Functions return 0, or -1 with *e filled. The message names the call and the group and, if known, the rank at
 * fault ("rank 3 closed its connection"). After a -1 from anything but comm_world_open() and comm_create() the
 * state of the other ranks is unknown: call comm_abort(). A call does not fail because a peer never makes the matching
 * call; in that case the monitor (watch.h) ends the job.
 *
 * All calls must be made by the one thread that opened the world, except comm_abort() and the simple accessors,
 * which any thread may call.
 */
#ifndef SHARDKIT_COMM_COMM_H
#define SHARDKIT_COMM_COMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/dev.h"
#include "libcommon/base/dev_net.h"
#include "libcommon/base/dtype.h"
#include "libcommon/base/err.h"
#include "libcommon/comm/watch.h"

/* ---- the world ---- */

struct comm_world;
struct comm;

enum comm_transport {
    COMM_AUTO,                  /* MPI under mpirun and srun if it is built in, else TCP */
    COMM_MPI,
    COMM_TCP,                   /* own sockets; rank 0 listens on MASTER_ADDR:MASTER_PORT */
};

/* All members may be zero, which selects the defaults. */
struct comm_options {
    enum comm_transport transport;
    double join_timeout_s;      /* TCP: how long ranks wait for each other at start; 0 = 300 */
    double hang_timeout_s;      /* see watch_timeout(); 0 = 600, negative = no limit */
    double stall_notice_s;      /* a call that takes longer is reported (watch.h); 0 = 60, negative = never */
    /*
     * Prints one line of the monitor. `line` has no newline. May be called by any thread. NULL: lines are printed on
     * standard error.
     */
    void (*say)(void *arg, const char *line);
    /*
     * Called on every rank that is still alive when the job is being ended. This is the last opportunity to write the
     * reason to a file. Runs in the monitor's thread. The process ends when this function returns, or after 3 s.
     */
    void (*on_abort)(void *arg, const struct watch_end *end);
    /*
     * Called on rank 0 after on_abort, when the other ranks have left or been killed. It is meant for slow work, such
     * as syncing the file that on_abort has written. It is also limited to 3 s. Runs in the monitor's thread. May be
     * NULL; requires on_abort.
     */
    void (*on_left)(void *arg);
    /*
     * Called immediately before the process ends. The call follows the two callbacks above, or comes from a signal
     * handler that interrupts one of them when its 3 s are over. Must be async-signal-safe. May be NULL.
     */
    void (*on_leave)(void);
    struct watch_statuses statuses;
    /*
     * Called when the job has made no progress for some time. `text` names the rank that waits and the rank that it
     * waits for. Called with NULL when the job makes progress again. Runs in a thread of its own on rank 0. If rank 0
     * does not answer, it runs on other ranks.
     */
    void (*on_stall)(void *arg, const char *text);
    /*
     * These two functions are for time measurements. Both are called in the rank's own thread and may be NULL.
     * on_call() is called when a communication call of group `group` begins. If `outside` is true, the rank begins a
     * wait for something other than a rank; `group` is then the file waited for, or NULL. If `call` is NULL, the call
     * or the wait has ended. on_phase() receives the arguments of watch_phase().
     */
    void (*on_call)(void *arg, const char *call, const char *group, bool outside);
    void (*on_phase)(void *arg, const char *phase, int micro_batch);
    void *arg;
};

struct comm_place {
    int rank, size;             /* in the world */
    int local_rank, local_size; /* among the ranks of this host */
    /* index of this host, and number of hosts; hosts are numbered in the order of their lowest rank */
    int node, n_nodes;
    long pid;
    const char *host;           /* valid as long as the world */
    /* there are more ranks than processors on this host, so waits sleep instead of spinning */
    bool crowded;
};

/*
 * Join the job. May be called once per process, before any thread that communicates. Sets *world. Returns -1 with
 *   ERR_USAGE  the number of ranks that can be connected differs from the number of tasks that the launcher started;
 *              the launcher's variables contradict each other; or the chosen transport is not built in
 *   ERR_SYS    a rank did not connect, or the network refused a connection
 * After -1 nothing has to be freed. The other ranks may not have detected the failure, so the program should exit with
 * status 1.
 */
MUST_CHECK int comm_world_open(const struct comm_options *o, struct comm_world **world, struct err *e);
/*
 * Close the world in an orderly way. Waits until every rank has made this call, and then ends the monitor and the
 * transport. All groups must have been closed before. NULL is allowed. If a rank ends without this call, the monitor
 * ends the whole job.
 */
void comm_world_close(struct comm_world *w);

const struct comm_place *comm_place(const struct comm_world *w);            /* location of this process */
const struct comm_place *comm_place_of(const struct comm_world *w, int rank);
struct comm *comm_world_group(struct comm_world *w);    /* all ranks, named "world"; freed with the world */
struct watch *comm_watch(struct comm_world *w);         /* for watch_phase() and related calls; freed with the world */

/*
 * End the whole job because this rank has failed. Rank 0 prints "rank 3 (host h, pid p) failed: REASON". Then every
 * process exits with `status`. If this rank failed because it lost its connection to another rank, the processes exit
 * with the status for a lost rank instead (watch_statuses). Does not return. May be called from any thread, but not
 * from a signal handler. If the world is NULL, prints the reason and exits.
 */
_Noreturn void comm_abort(struct comm_world *w, int status, const char *reason);


/*
 * Declare where the buffers of later calls with a stream are, in all groups: in memory of the device of `net` or, if
 * `net` is NULL, in host memory. Every rank must make this call, while no group is open except the world's. The device
 * remains in use until its groups are closed. They must be closed before the kernels are closed.
 */
void comm_use_device(struct comm_world *w, const struct dev_net *net);

/*
 * Measure how long this rank waits for others. comm_seconds_waiting() returns the seconds so far. On the CPU this is
 * the time in calls, including copying and adding. On a GPU it is the time that the host spent in calls that are
 * complete on return. After comm_time_waits() it also includes the time that the device's streams spent in collectives
 * and in comm_wait(), for calls that a comm_sync() has completed. The measurement costs a pair of events per call.
 * comm_time_waits() has no effect without a device, and ends when the device changes.
 */
void comm_time_waits(struct comm_world *w);
double comm_seconds_waiting(const struct comm_world *w);

/*
 * Set the description of this rank's device, such as "GPU-53a7.. at 0000:1b:00.0". Later messages of all ranks contain
 * it after host and pid. Every rank must make this call exactly once; a rank without a description passes "".
 */
MUST_CHECK int comm_name_device(struct comm_world *w, const char *text, struct err *e);
/*
 * Returns the text that a rank passed to comm_name_device(), or NULL if it passed none. The text is valid as long as
 * the world.
 */
const char *comm_device_name(const struct comm_world *w, int rank);

/* ---- groups ---- */

/*
 * Create a group. `ranks` are the world numbers of its n members, in group order and without duplicates. Every member
 * must call this function with the same list and name; no other rank may. Members that share two groups must create the
 * groups in the same order. `name` (for example "tp") appears in messages and is copied. Returns NULL with *e filled if
 * the members' lists differ.
 */
MUST_CHECK struct comm *comm_create(struct comm_world *w, const char *name,
                                    const int *ranks, int n, struct err *e);
/*
 * Close a group; NULL is allowed. Only if there is a device, the call waits until the other members close the group,
 * too.
 */
void comm_close(struct comm *c);
int comm_rank(const struct comm *c);        /* Returns this rank's number in the group, 0 .. size - 1. */
int comm_size(const struct comm *c);
int comm_world_rank(const struct comm *c, int rank);    /* Returns the world rank of a member of the group. */

/* ---- collectives ---- */

/* the operation of a reduction, for elements of type F64 F32 BF16 F16 I64 I32 U8 */
enum comm_op { COMM_SUM, COMM_MAX };

/* The data of a call: n elements are read from `in`, written to `out`, or both, as each call specifies. */
struct comm_data {
    const void *in;
    void *out;
    int64_t n;
    enum dtype t;
    enum comm_op op;            /* used by reductions only */
};

/*
 * Set out[i], for i < n, to the sum or maximum of in[i] over all members. `in` and `out` must be equal or must not
 * overlap.
 */
MUST_CHECK int comm_all_reduce(struct comm *c, const struct comm_data *d, struct dev_stream *s, struct err *e);
/*
 * Reduce in[size*n] over all members like comm_all_reduce(), with the same bits, but give each member only its part.
 * Member r receives elements r*n to (r+1)*n - 1 of the result in out[n]. The call is in place if out == in +
 * comm_rank*n elements. The other parts of `in` are then unchanged.
 */
MUST_CHECK int comm_reduce_scatter(struct comm *c, const struct comm_data *d, struct dev_stream *s, struct err *e);
/*
 * Set out[size*n] to the in[n] of all members, concatenated in group order. The call is in place if in == out +
 * comm_rank*n.
 */
MUST_CHECK int comm_all_gather(struct comm *c, const struct comm_data *d, struct dev_stream *s, struct err *e);
/* Copy the root's out[n] to out[n] of every other member. `in` is ignored. */
MUST_CHECK int comm_broadcast(struct comm *c, const struct comm_data *d, int root, struct dev_stream *s, struct err *e);
/* Wait until all members have made this call. On a GPU the host first waits for `s`. */
MUST_CHECK int comm_barrier(struct comm *c, struct dev_stream *s, struct err *e);

/*
 * Make the host wait for all work queued in `s`, and report failures of the device or between devices. Does not
 * communicate with the other members. Unlike a wait inside dev_ops.stream_sync(), this wait is supervised by the
 * monitor (watch.h). If the wait hangs, the monitor reports the last call that was queued. Without a device the call
 * returns 0 at once.
 */
MUST_CHECK int comm_sync(struct comm *c, struct dev_stream *s, struct err *e);

/*
 * Start a collective outside of the caller's stream. The collective begins after the work that was queued in `s` before
 * this call. Work that is queued after comm_wait(*req) can use its result. Started collectives of one group are
 * executed in the order in which they were started. Without a device, a collective is complete on return and *req is
 * NULL.
 */
struct comm_req;
MUST_CHECK int comm_all_reduce_start(struct comm *c, const struct comm_data *d, struct dev_stream *s,
                                     struct comm_req **req, struct err *e);
MUST_CHECK int comm_reduce_scatter_start(struct comm *c, const struct comm_data *d, struct dev_stream *s,
                                         struct comm_req **req, struct err *e);
MUST_CHECK int comm_all_gather_start(struct comm *c, const struct comm_data *d, struct dev_stream *s,
                                     struct comm_req **req, struct err *e);
/*
 * Let started collectives of the group use shared memory, if the devices of one host can access each other's memory.
 * Later started collectives use it if they gather, or sum fp32 or bf16, and their buffers lie in [base, base + bytes).
 * Such a collective runs concurrently with computation, does not use its resources, and adds and rounds in the same
 * order as on the CPU. All members must make this call before they start any collective, with memory of the device's
 * alloc(), the same layout and the same sizes. The memory must not be freed before the group is closed. `room` is the
 * number of bytes of device memory for each member's part of a sum in transit; larger parts are sent in pieces.
 * comm_share_bytes() returns the device memory that this call uses.
 */
MUST_CHECK int comm_share(struct comm *c, void *base, uint64_t bytes, uint64_t room, struct err *e);
/*
 * Returns the maximum number of bytes of device memory that comm_share() uses in a group of `size` members. Groups that
 * are too large for shared memory use none.
 */
static inline uint64_t comm_share_bytes(int size, uint64_t room)
{
    return size > 1 && size <= DEV_NET_SHARERS ? (uint64_t)size * room : 0;
}

/* ---- point to point ---- */

/*
 * A message in transit. From its start until comm_wait() the buffer must not be changed (for a send) or accessed at
 * all (for a receive). Starting never blocks and copies nothing. Messages between two members of a group arrive in
 * the order in which they were started. A receive gets the next message, which must have exactly its length.
 *
 * There is no deadlock if both sides of each message are started before either side waits for an operation that comes
 * after the message. Waiting for a send may block until the matching receive is started.
 *
 * On a GPU, messages travel outside of the caller's stream. A message begins after the work that was queued in `s`
 * before its start, and work that is queued after comm_wait() runs after the message. The first start between two
 * members waits for the matching start of the other member. The first starts of several members must therefore not wait
 * for each other in a cycle.
 */

/* Start to send the n elements of `in` to member `to`. */
MUST_CHECK int comm_send_start(struct comm *c, const struct comm_data *d, int to, struct dev_stream *s,
                               struct comm_req **req, struct err *e);
/* Start to receive n elements from member `from` into `out`. */
MUST_CHECK int comm_recv_start(struct comm *c, const struct comm_data *d, int from, struct dev_stream *s,
                               struct comm_req **req, struct err *e);
/*
 * Wait until the operation *req is complete, free *req and set it to NULL. On a GPU, this wait is queued in `s`. *req
 * may be NULL.
 */
MUST_CHECK int comm_wait(struct comm_req **req, struct dev_stream *s, struct err *e);

/* ---- small values in host memory; complete on return ---- */

#define COMM_HOST_MAX 65536     /* maximum size of one comm_host_send() in bytes */

/*
 * Send bytes of host memory. The call copies the data and never waits for the receiver. Bytes that cannot be sent at
 * once are sent later, while this rank waits in comm_sync() or in a call that is complete on return. They are not sent
 * while this rank waits for a device in any other way. A rank that still has data to send must not enter such another
 * wait before the receiver has confirmed that everything has arrived.
 */
MUST_CHECK int comm_host_send(struct comm *c, const void *buf, size_t n_bytes, int to, struct err *e);
/*
 * Receive bytes that comm_host_send() sent. Host messages between two members have an order of their own, independent
 * of the messages of comm_send_start().
 */
MUST_CHECK int comm_host_recv(struct comm *c, void *buf, size_t n_bytes, int from, struct err *e);
MUST_CHECK int comm_host_all_reduce(struct comm *c, void *x, int64_t n, enum dtype t,
                                    enum comm_op op, struct err *e);
MUST_CHECK int comm_host_all_gather(struct comm *c, const void *in, void *out, size_t n_bytes, struct err *e);
MUST_CHECK int comm_host_broadcast(struct comm *c, void *buf, size_t n_bytes, int root, struct err *e);

#endif
