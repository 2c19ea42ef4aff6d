/*
 * comm.h - the ranks of one training job: who they are, and what they tell each other
 *
 * comm_world_open() finds out how this process was started (alone, mpirun, srun,
 * torchrun's variables: launch.h), joins the others and starts the monitor (watch.h).
 * A struct comm is a group of ranks with collectives and point-to-point messages; groups
 * are independent of each other, so their messages never mix.
 *
 * Buffers and streams. Where a call takes a stream, buffers are memory of the device that
 * the world computes on, and the call is complete in that stream's order. On the CPU the
 * stream is NULL and everything is complete when the call returns; a GPU world only
 * enqueues. comm_host_*() take host memory, no stream, and are always complete on return:
 * they are for the few values that the program itself decides on.
 *
 * The contract of a reduction: the result has the same bits on every rank of the group,
 * and depends on nothing but the inputs, the number of elements, and the group's size and
 * order: not on timing, threads, transport or memory addresses. On the CPU element i is
 *     ((x_0[i] + x_1[i]) + x_2[i]) + ...     in group order, whatever n is;
 * F32 and F64 are added in their own precision; BF16 and F16 are added in fp32 and rounded once, to nearest even
 * (in F16 a sum may be infinite then); integers wrap. MAX: a NaN in any input makes the element NaN.
 * On a GPU NCCL adds, in an order of its own: still the same bits on every rank, and on every run of
 * the same program on the same machines, but another group, n, topology or version of NCCL may give others;
 * BF16 and F16 are rounded after each addition; reduce_scatter is not all_reduce's part bit for bit, and
 * MAX may lose a NaN; memory that is shared (comm_share) is summed as on the CPU. What must not depend on the
 * topology goes through comm_host_all_reduce().
 *
 * Every member calls the same collectives of a group in the same order with the same n,
 * dtype, op and root. n = 0 and groups of one are fine, and cost nothing (a group of one
 * copies when in and out differ). Element counts are of `dtype` and may pass 2^31.
 *
 * Errors: 0, or -1 with *e filled; the message says which call of which group and, where
 * it is known, whose fault ("rank 3 closed its connection"). After a -1 from anything but
 * comm_world_open() and comm_create() no rank can know what the others hold: call
 * comm_abort(). A peer that never comes does not make a call fail: watch.h ends the job.
 *
 * Threads: one thread, the one that opened the world, makes all calls, except
 * comm_abort() and the plain readers, which any thread may use.
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
    COMM_AUTO,                  /* MPI under mpirun and srun where it is built in, else TCP */
    COMM_MPI,
    COMM_TCP,                   /* own sockets; rank 0 listens at MASTER_ADDR:MASTER_PORT */
};

/* All zero is a good choice. */
struct comm_options {
    enum comm_transport transport;
    double join_timeout_s;      /* TCP: how long the ranks wait for each other; 0 = 300 */
    double hang_timeout_s;      /* see watch_timeout(); 0 = 600, negative = for ever */
    double stall_notice_s;      /* a call that lasts so long is told (watch.h); 0 = 60, negative = never */
    /* Prints one line (no newline in it) of the monitor; any thread. NULL: standard error. */
    void (*say)(void *arg, const char *line);
    /* The job is being ended: last chance to note it in a file. Runs in the monitor's thread, on every
     * rank that is still there; the process ends after it, or after 3 s. */
    void (*on_abort)(void *arg, const struct watch_end *end);
    /* After it, on rank 0 when the other ranks have left or been ended: for what may take its time, 3 s again, such as
     * syncing what on_abort has written. The monitor's thread. May be NULL; not without on_abort. */
    void (*on_left)(void *arg);
    /* The last thing before the process ends: after both, or from within one, in a signal's handler, where its 3 s are
     * over. Only what is safe there. May be NULL. */
    void (*on_leave)(void);
    struct watch_statuses statuses;
    /*
     * The job stands still since a while: `text` says who waits and for whom; NULL: it goes on again. In a
     * thread of its own, on rank 0; on other ranks where rank 0 does not answer.
     */
    void (*on_stall)(void *arg, const char *text);
    /*
     * For who notes where time goes: in the rank's own thread. A call of `group`, or (outside) a wait for what is no
     * rank, of the file `group` or NULL, begins; NULL: it is over. A phase as watch_phase() is told it. NULL: nobody.
     */
    void (*on_call)(void *arg, const char *call, const char *group, bool outside);
    void (*on_phase)(void *arg, const char *phase, int micro_batch);
    void *arg;
};

struct comm_place {
    int rank, size;             /* in the world */
    int local_rank, local_size; /* among the ranks of this host */
    int node, n_nodes;          /* hosts, numbered by their lowest rank */
    long pid;
    const char *host;           /* as long as the world */
    bool crowded;               /* more ranks than processors on this host: waiting sleeps, never spins */
};

/*
 * Join the job. One call a process, before any thread that communicates; fills *world.
 *   ERR_USAGE  the launcher started N tasks but the world that can be reached has another
 *              size, its variables contradict each other, or a transport is not built in
 *   ERR_SYS    a rank did not come, or the network refused
 * On -1 nothing is left behind; only this rank knows, so exit with status 1.
 */
MUST_CHECK int comm_world_open(const struct comm_options *o, struct comm_world **world, struct err *e);
/*
 * The orderly end: waits for every rank to come here too, says goodbye, ends the monitor
 * and the transport. Groups must be closed before. NULL is fine. A rank that ends
 * otherwise ends the whole job with it.
 */
void comm_world_close(struct comm_world *w);

const struct comm_place *comm_place(const struct comm_world *w);            /* of this process */
const struct comm_place *comm_place_of(const struct comm_world *w, int rank);
struct comm *comm_world_group(struct comm_world *w);    /* all ranks, "world"; goes with the world */
struct watch *comm_watch(struct comm_world *w);         /* for watch_phase() and friends; goes with the world */

/*
 * End the whole job because of a failure of this rank. Every process exits with `status` (that of a lost rank where
 * this rank has lost another) after rank 0 has printed "rank 3 (host h, pid p) failed: REASON". Does not return.
 * Any thread; not from a signal handler. NULL world: prints and exits.
 */
_Noreturn void comm_abort(struct comm_world *w, int status, const char *reason);


/*
 * From here on buffers of calls that take a stream lie on the device of `net`, in all groups;
 * NULL: in host memory again. Every rank calls it, with no group open but the world's. A
 * device is left when its groups are closed, before the kernels are.
 */
void comm_use_device(struct comm_world *w, const struct dev_net *net);

/*
 * Seconds that this rank has waited for others so far: on the CPU in calls (copying and adding count too);
 * on a GPU the host in calls that are complete on return, and, from comm_time_waits() on, the device's own
 * streams in collectives and in comm_wait(), as far as a comm_sync() has passed. Measuring costs a
 * pair of events a call. comm_time_waits() does nothing without a device, and ends with it.
 */
void comm_time_waits(struct comm_world *w);
double comm_seconds_waiting(const struct comm_world *w);

/*
 * What this rank computes on, "GPU-53a7.. at 0000:1b:00.0": from now on behind host and pid wherever a
 * message names it, on every rank. Every rank calls it, once; "" says nothing.
 */
MUST_CHECK int comm_name_device(struct comm_world *w, const char *text, struct err *e);
/* What a rank said there, as long as the world; NULL: nothing. */
const char *comm_device_name(const struct comm_world *w, int rank);

/* ---- groups ---- */

/*
 * The group of `ranks` (n of them, world numbers, each once, in group order); every
 * member calls this with the same list and name, nobody else does. Two groups that share
 * members are made in the same order by all of them. name ("tp") is for messages and is
 * copied. NULL and *e when the members' lists differ.
 */
MUST_CHECK struct comm *comm_create(struct comm_world *w, const char *name,
                                    const int *ranks, int n, struct err *e);
/* NULL is fine; no waiting but, with a device, for the members to close it too. */
void comm_close(struct comm *c);
int comm_rank(const struct comm *c);        /* 0 .. size-1 */
int comm_size(const struct comm *c);
int comm_world_rank(const struct comm *c, int rank);    /* of a member */

/* ---- collectives ---- */

enum comm_op { COMM_SUM, COMM_MAX };        /* on F64 F32 BF16 F16 I64 I32 U8 */

/* What a call moves: n elements are read at `in`, come to `out`, or both, as each call says. */
struct comm_data {
    const void *in;
    void *out;
    int64_t n;
    enum dtype t;
    enum comm_op op;            /* of reductions */
};

/* out[n] = op over the members' in[n]; in == out is in place, otherwise they do not overlap. */
MUST_CHECK int comm_all_reduce(struct comm *c, const struct comm_data *d, struct dev_stream *s, struct err *e);
/*
 * Member r gets out[n] = part r, of n elements, of what all_reduce of in[size*n] would be
 * (bit for bit). In place when out == in + comm_rank*n elements; the other parts of `in`
 * are then as they were.
 */
MUST_CHECK int comm_reduce_scatter(struct comm *c, const struct comm_data *d, struct dev_stream *s, struct err *e);
/* out[size*n] = the members' in[n] one after the other. In place when in == out + comm_rank*n. */
MUST_CHECK int comm_all_gather(struct comm *c, const struct comm_data *d, struct dev_stream *s, struct err *e);
/* out[n] = the root's; `in` is not looked at. */
MUST_CHECK int comm_broadcast(struct comm *c, const struct comm_data *d, int root, struct dev_stream *s, struct err *e);
/* Nobody leaves before everybody has come; on a GPU the host waits for `s` first. */
MUST_CHECK int comm_barrier(struct comm *c, struct dev_stream *s, struct err *e);

/*
 * The host waits for all that is queued in `s`, and hears of what has failed on the device or
 * between devices; nothing is said to the other members. watch.h sees this wait, which it does not see
 * inside dev_ops.stream_sync(), and tells a hang by the last call that was queued. Without a device: 0 at once.
 */
MUST_CHECK int comm_sync(struct comm *c, struct dev_stream *s, struct err *e);

/*
 * The same beside the caller's stream, as messages travel: a call begins after what was queued in `s`
 * before its start, and its result is there for what is queued after comm_wait(*req). Those of a
 * group are done in the order of their starts. Without a device they are done on return (*req NULL).
 */
struct comm_req;
MUST_CHECK int comm_all_reduce_start(struct comm *c, const struct comm_data *d, struct dev_stream *s,
                                     struct comm_req **req, struct err *e);
MUST_CHECK int comm_reduce_scatter_start(struct comm *c, const struct comm_data *d, struct dev_stream *s,
                                         struct comm_req **req, struct err *e);
MUST_CHECK int comm_all_gather_start(struct comm *c, const struct comm_data *d, struct dev_stream *s,
                                     struct comm_req **req, struct err *e);
/*
 * Where devices of one host can reach each other's memory, started collectives of fp32 and bf16 sums, and gathers,
 * on buffers in [base, base + bytes) go by that: beside computing without taking anything from it, and with the CPU's
 * order and rounding of sums. All members call it with memory of the device's alloc(), laid out alike, and the
 * same sizes, before any start; it lasts as long as the group, and is not freed before. room: bytes of device memory
 * for each member's part of a sum on its way; larger ones go in pieces. Costs comm_share_bytes().
 */
MUST_CHECK int comm_share(struct comm *c, void *base, uint64_t bytes, uint64_t room, struct err *e);
/* Device memory that it takes at most, of a group of `size`: large groups share nothing. */
static inline uint64_t comm_share_bytes(int size, uint64_t room)
{
    return size > 1 && size <= DEV_NET_SHARERS ? (uint64_t)size * room : 0;
}

/* ---- point to point ---- */

/*
 * A message on its way. From start to comm_wait() the buffer belongs to it: a send's may
 * be read, a receive's not even that. Starting never blocks and takes no copy. Messages
 * between two members of a group arrive in the order they were started, and a receive
 * takes the next one, which must have its length exactly.
 *
 * There is no deadlock as long as each message's two sides are started before either side
 * waits for something that comes after it; waiting for a send may take until its
 * receive is started. On a GPU messages travel beside the caller's stream: each begins
 * after what was queued in `s` before its start, and what is queued after comm_wait() comes after it.
 * There the first start between two members waits for the other's first one with it, so
 * first starts must not wait in a circle.
 */

/* in[n] to member `to`. */
MUST_CHECK int comm_send_start(struct comm *c, const struct comm_data *d, int to, struct dev_stream *s,
                               struct comm_req **req, struct err *e);
/* out[n] from member `from`. */
MUST_CHECK int comm_recv_start(struct comm *c, const struct comm_data *d, int from, struct dev_stream *s,
                               struct comm_req **req, struct err *e);
/* Complete *req (on a GPU: in the order of `s`), free it and set it to NULL. NULL in *req is fine. */
MUST_CHECK int comm_wait(struct comm_req **req, struct dev_stream *s, struct err *e);

/* ---- small values in host memory; complete on return ---- */

#define COMM_HOST_MAX 65536     /* bytes of one comm_host_send() */

/*
 * Takes a copy and never waits for the receiver. What does not go out at once goes on in later waits of this rank: in
 * calls that are complete on return, and in comm_sync(), but not in other waits for a device. Who may stand there for
 * a rank that still receives has to be told first that all has come.
 */
MUST_CHECK int comm_host_send(struct comm *c, const void *buf, size_t n_bytes, int to, struct err *e);
/* Host messages are a sequence of their own between two members, apart from comm_send_start's. */
MUST_CHECK int comm_host_recv(struct comm *c, void *buf, size_t n_bytes, int from, struct err *e);
MUST_CHECK int comm_host_all_reduce(struct comm *c, void *x, int64_t n, enum dtype t,
                                    enum comm_op op, struct err *e);
MUST_CHECK int comm_host_all_gather(struct comm *c, const void *in, void *out, size_t n_bytes, struct err *e);
MUST_CHECK int comm_host_broadcast(struct comm *c, void *buf, size_t n_bytes, int root, struct err *e);

#endif
