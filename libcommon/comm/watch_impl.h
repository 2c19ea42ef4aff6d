/*
 * watch_impl.h - the parts of the monitor; for use in libcommon/comm only
 *
 * From the bottom up; each file calls only those before it: watch_record.c   records of this rank's activity, and
 * their conversion to text watch_wire.c   connections between monitors: establishing them, messages watch_rank.c
 * the monitor thread of ranks 1..: reports, executes commands watch_root.c   the monitor thread of rank 0:
 * collects, decides, notifies watch.c        start and end of the monitor
 */
#ifndef SHARDKIT_COMM_WATCH_IMPL_H
#define SHARDKIT_COMM_WATCH_IMPL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "libcommon/comm/comm.h"

#define SECOND INT64_C(1000000000)      /* in ns */
enum { LAST_WORDS_S = 3 };              /* time limit of on_abort, after which the process ends anyway */

enum { WIRE_TEXT = WATCH_TEXT };

/* ---- activity record: written by the rank's thread, read by its monitor ---- */

/* A sequence lock: `version` is odd while the other fields change. */
struct note {
    atomic_uint version;
    _Atomic(const char *) phase;        /* name of the phase; NULL: none */
    _Atomic int64_t iteration;          /* -1: none */
    atomic_int micro_batch;             /* -1: none */
    _Atomic(const char *) call;         /* "all_reduce"; NULL: not in a call */
    _Atomic(const char *) group;        /* valid as long as the watch; for a wait outside: the object, or NULL */
    atomic_bool outside;                /* the wait is not for a rank */
    atomic_bool unlimited;              /* ... and has no time limit */
    atomic_bool queues;                 /* set by watch_queues() */
    _Atomic uint64_t number;            /* of the call in its group; outside: UINT64_MAX is none */
    _Atomic int64_t since_ns;           /* when the phase, the call, or the computation after a call began */
    atomic_int waiting_for, n_waiting;  /* world rank or -1, and the number of ranks waited for */
};

void watch_enter(struct watch *w, const char *call, const char *group, uint64_t number);
void watch_leave(struct watch *w);
void watch_waits_for(struct watch *w, int rank, int how_many);

/* Convert the record to text. */
void watch_activity(struct watch *w, struct watch_doing *r);
bool watch_is_stuck(struct watch *w);   /* returns true if it is in one call for longer than the timeout */
/*
 * Returns whether a stall began or ended since the last call; each event is returned once. *reported_ns is the caller's
 * memory for this: the start time of the call that was reported last, 0 for none.
 */
enum stall_news { STALL_NONE, STALL_BEGINS, STALL_ENDS };
enum stall_news watch_stall_news(struct watch *w, int64_t *reported_ns);
bool watch_may_last(struct watch *w);   /* returns true if the current call never ends the job */

/* ---- messages between monitors ---- */

enum wire_kind {
    WIRE_HELLO = 1,             /* rank to root, first message */
    WIRE_GOODBYE,               /* both directions: an orderly end */
    WIRE_FAIL,                  /* rank to root: comm_abort(); a = 1 + the lost rank that caused it, b = exit status */
    WIRE_CRASH,                 /* rank to root: watch_crashed(); a = signal */
    WIRE_TERM,                  /* rank to root: SIGTERM arrived, this rank is about to end */
    WIRE_HANG,                  /* rank to root: its call exceeds the timeout */
    WIRE_SLOW,                  /* rank to root: its call is slow, but within the timeout; a = it has no limit */
    WIRE_RECEIVED,                 /* root to rank: acknowledges WIRE_SLOW */
    WIRE_MOVES,                 /* rank to root: that call has ended */
    WIRE_DUMP,                  /* rank to root: print the table */
    WIRE_ASK,                   /* root to rank: send your activity */
    WIRE_STATE,                 /* the answer: a = in a call, b = rank waited for */
    WIRE_ABORT,                 /* root to rank: exit with status a, because of text; b = the rank at fault, or -1 */
};

/* Both ends run the same program on the same kind of machine, so the struct is sent as it is in memory. */
struct wire {
    uint64_t token;
    int32_t kind, rank, a, b;
    char text[WIRE_TEXT];
    uint8_t pad[8];
};

struct conn {
    int fd;                     /* -1: closed */
    bool goodbye;               /* it sent a goodbye: closing is not an error */
    bool term;                  /* it sent WIRE_TERM: closing is expected */
    struct wire in;             /* the received part of the next message */
    size_t got;
};

/*
 * Send `head` with `text` (NULL: none). Never waits. A peer that does not read for so long that its buffer is full
 * does not get the message.
 */
void conn_send(struct conn *c, const struct wire *head, const char *text);
/*
 * Returns 1 if a whole message is in c->in, 0 if not yet, -1 if the connection is closed (*why = errno, 0 for an
 * orderly close).
 */
int conn_read(struct conn *c, uint64_t token, int *why);
void conn_close(struct conn *c);

/* ---- the monitor ---- */

/* The data that rank 0 distributes so that the others can connect. */
enum { OFFER_ADDRESSES = 16 };
struct watch_offer {
    uint64_t token;
    int32_t port, n_addresses;
    uint32_t address[OFFER_ADDRESSES];  /* in network byte order */
};

struct watch {
    struct note note;
    int64_t in_calls_ns;                /* used only by the rank's thread */
    struct comm_options o;
    atomic_int_least64_t timeout_ns;    /* 0: no limit */
    int64_t stall_ns;                   /* 0: never reported */
    int rank, size;
    const struct comm_place *place;     /* [size]; owned by the world */
    _Atomic(const char *) *device;      /* [size], see comm_name_device(); NULL: not set */
    const uint64_t *pid_space;          /* [size]: equal if one rank can kill the other by its pid */
    uint64_t token;
    struct conn *conn;                  /* root: [size], by rank; others: [1], to the root */
    int wake[2];                        /* a pipe that carries letters of enum wake */
    pthread_t thread;
    bool running;
    pthread_mutex_t lock;               /* protects reason */
    char reason[WIRE_TEXT];             /* passed to comm_abort(); "" = none */
    int status;                         /* ... its exit status */
    int lost;                           /* ... the rank that was lost, or -1 */
    atomic_int crashed;                 /* the signal; 0: no crash */
};

/*
 * How long a rank that is terminated by its launcher, or that has lost a peer, waits for a report of the rank that
 * failed first. The message that the kernel sent when that rank died may be in transit or not read yet.
 */
#define GRACE_NS (SECOND / 2)

enum wake { WAKE_FAIL = 'f', WAKE_CRASH = 'x', WAKE_TERM = 't', WAKE_DUMP = 'd', WAKE_CLOSE = 'c' };

struct watch *watch_new(int rank, int size, const struct comm_options *o);
/* On rank 0: returns a listening socket and sets the offer; watch_accept() closes the socket. */
MUST_CHECK int watch_offer(struct watch *w, struct watch_offer *offer, struct err *e);
MUST_CHECK int watch_accept(struct watch *w, int listener, struct err *e);
MUST_CHECK int watch_connect(struct watch *w, const struct watch_offer *offer, struct err *e);
MUST_CHECK int watch_run(struct watch *w, struct err *e);
/* End in an orderly way: send a goodbye, and wait for the monitor to finish. */
void watch_close(struct watch *w);
void watch_free(struct watch *w);       /* NULL is allowed */
_Noreturn void watch_abort(struct watch *w, int status, const char *reason, int lost);

void *watch_root_main(void *watch);
void *watch_rank_main(void *watch);
/* Get the letters that arrived through the pipe, at most `room`. Returns their number. */
int watch_letters(struct watch *w, char *letters, int room);
void watch_log(struct watch *w, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Format "rank 3 (host h, pid 12, GPU-53a7.. at 0000:1b:00.0)". */
void watch_name(const struct watch *w, int rank, char *text, size_t room);
/* End the process by the SIGTERM that arrived. */
_Noreturn void watch_die(void);
/* Call on_stall in a thread of its own: a file that it writes to may hang, and the monitor must not. */
void watch_report_stall(struct watch *w, const char *text);
/* Call on_abort, for at most 3 s; then the process exits with end->status. */
_Noreturn void watch_leave_job(struct watch *w, const struct watch_end *end);
/* Call on_abort, for at most 3 s, and return. */
void watch_last_words(struct watch *w, const struct watch_end *end);
/* Call on_left, for at most 3 s, then on_leave. To be called after watch_last_words(). */
void watch_all_left(struct watch *w);

#endif
