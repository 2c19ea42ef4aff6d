/*
 * watch_impl.h - the parts of the monitor; for use in libcommon/comm only
 *
 * From the bottom up; each file calls only those before it:
 *   watch_record.c  records the activity of this rank, and converts the record to text
 *   watch_wire.c    connects the monitors, and transfers messages between them
 *   watch_rank.c    the monitor thread of ranks 1 and up: reports, and executes commands
 *   watch_root.c    the monitor thread of rank 0: collects reports, decides, notifies the ranks
 *   watch.c         starts and ends the monitor
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

/* ---- activity record; the rank's thread writes it, and the rank's monitor reads it ---- */

/*
 * The record of this rank's activity. It is a sequence lock: `version` is odd while the other members are being
 * changed.
 */
struct note {
    atomic_uint version;
    _Atomic(const char *) phase;        /* name of the phase; NULL: none */
    _Atomic int64_t iteration;          /* -1: none */
    atomic_int micro_batch;             /* -1: none */
    _Atomic(const char *) call;         /* "all_reduce"; NULL: not in a call */
    /* valid as long as the watch; for an outside wait: the file or object waited for, or NULL */
    _Atomic(const char *) group;
    atomic_bool outside;                /* this is an outside wait: not for a rank */
    atomic_bool unlimited;              /* ... without a time limit */
    atomic_bool queues;                 /* set by watch_queues() */
    /* number of the call in its group; for an outside wait: its number, or UINT64_MAX for none */
    _Atomic uint64_t number;
    /* time at which the phase or the call began, or at which the computation after a call began */
    _Atomic int64_t since_ns;
    atomic_int waiting_for, n_waiting;  /* world rank or -1, and the number of ranks waited for */
};

void watch_enter(struct watch *w, const char *call, const char *group, uint64_t number);
void watch_leave(struct watch *w);
void watch_waits_for(struct watch *w, int rank, int how_many);

/* Convert the record of this rank's activity to text, in *r. */
void watch_activity(struct watch *w, struct watch_doing *r);
bool watch_is_stuck(struct watch *w);   /* returns true if this rank has been in one call for longer than the timeout */
/*
 * Returns whether a stall of this rank began or ended since the last call of this function. Each event is returned
 * once. *reported_ns belongs to the caller and holds the state between calls. It is the start time of the stall that
 * was reported last, or 0.
 */
enum stall_news { STALL_NONE, STALL_BEGINS, STALL_ENDS };
enum stall_news watch_stall_news(struct watch *w, int64_t *reported_ns);
bool watch_may_last(struct watch *w);   /* returns true if the current call never ends the job */

/* ---- messages between monitors ---- */

enum wire_kind {
    WIRE_HELLO = 1,             /* rank to root, first message */
    WIRE_GOODBYE,               /* both directions: an orderly end */
    /* rank to root: comm_abort() was called; a = 1 + the lost rank that caused this, or 0; b = exit status */
    WIRE_FAIL,
    WIRE_CRASH,                 /* rank to root: watch_crashed() was called; a = signal */
    WIRE_TERM,                  /* rank to root: SIGTERM arrived, this rank is about to end */
    WIRE_HANG,                  /* rank to root: its call exceeds the timeout */
    /* rank to root: its call is slow, but within the timeout; a = 1 if the call has no time limit */
    WIRE_SLOW,
    WIRE_RECEIVED,                 /* root to rank: acknowledges WIRE_SLOW */
    WIRE_MOVES,                 /* rank to root: the call that WIRE_SLOW reported has ended */
    WIRE_DUMP,                  /* rank to root: print the table */
    WIRE_ASK,                   /* root to rank: send your activity */
    WIRE_STATE,                 /* rank to root: the answer to WIRE_ASK; a = in a call, b = the rank it waits for */
    /* root to rank: exit with status a, for the reason in text; b = the rank at fault, or -1 */
    WIRE_ABORT,
};

/* Both ends run the same program on the same kind of machine, so the struct is sent without conversion. */
struct wire {
    uint64_t token;
    int32_t kind, rank, a, b;
    char text[WIRE_TEXT];
    uint8_t pad[8];
};

struct conn {
    int fd;                     /* -1: closed */
    bool goodbye;               /* the peer has sent a goodbye, so a closed connection is not an error */
    bool term;                  /* the peer has sent WIRE_TERM, so its connection is expected to close */
    struct wire in;             /* the part of the message being received that has arrived */
    size_t got;
};

/*
 * Send `head` with `text` (NULL: without text). Never waits. If the peer has not read for a long time, the buffer of
 * the connection is full, and the message is lost.
 */
void conn_send(struct conn *c, const struct wire *head, const char *text);
/*
 * Receive data of a message. Returns 1 if c->in contains a complete message, and 0 if the message is not complete yet.
 * Returns -1 if the connection is closed; *why is then the errno, or 0 for an orderly close.
 */
int conn_read(struct conn *c, uint64_t token, int *why);
void conn_close(struct conn *c);

/* ---- the monitor ---- */

/* The addresses of rank 0's monitor. Rank 0 distributes them so that the other monitors can connect. */
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
    const uint64_t *pid_space;          /* [size]; two ranks with equal values can kill each other by pid */
    uint64_t token;
    struct conn *conn;                  /* root: [size], by rank; others: [1], to the root */
    int wake[2];                        /* a pipe that carries letters of enum wake */
    pthread_t thread;
    bool running;
    pthread_mutex_t lock;               /* protects reason */
    char reason[WIRE_TEXT];             /* passed to comm_abort(); "" = none */
    int status;                         /* the exit status passed to comm_abort() */
    int lost;                           /* the lost rank that caused comm_abort(), or -1 */
    atomic_int crashed;                 /* the signal; 0: no crash */
};

/*
 * Time that a rank waits for a report of the rank that failed first, after its launcher has sent SIGTERM or it has lost
 * a peer. The kernel's message about the death of that rank may still be in transit or unread.
 */
#define GRACE_NS (SECOND / 2)

enum wake { WAKE_FAIL = 'f', WAKE_CRASH = 'x', WAKE_TERM = 't', WAKE_DUMP = 'd', WAKE_CLOSE = 'c' };

struct watch *watch_new(int rank, int size, const struct comm_options *o);
/*
 * On rank 0: open a listening socket and fill *offer with its addresses. Returns the socket, which watch_accept()
 * closes.
 */
MUST_CHECK int watch_offer(struct watch *w, struct watch_offer *offer, struct err *e);
MUST_CHECK int watch_accept(struct watch *w, int listener, struct err *e);
MUST_CHECK int watch_connect(struct watch *w, const struct watch_offer *offer, struct err *e);
MUST_CHECK int watch_run(struct watch *w, struct err *e);
/*
 * End the monitor in an orderly way. Sends a goodbye to the other monitors, and waits until this rank's monitor thread
 * has finished.
 */
void watch_close(struct watch *w);
void watch_free(struct watch *w);       /* NULL is allowed */
_Noreturn void watch_abort(struct watch *w, int status, const char *reason, int lost);

void *watch_root_main(void *watch);
void *watch_rank_main(void *watch);
/*
 * Read at most `room` of the letters (enum wake) that other threads have written to the pipe. Returns the number of
 * letters read.
 */
int watch_letters(struct watch *w, char *letters, int room);
void watch_log(struct watch *w, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Format "rank 3 (host h, pid 12, GPU-53a7.. at 0000:1b:00.0)". */
void watch_name(const struct watch *w, int rank, char *text, size_t room);
/* End the process by the SIGTERM that it has received. */
_Noreturn void watch_die(void);
/* Call on_stall in a thread of its own, because the file that it writes to may hang, and the monitor must not hang. */
void watch_report_stall(struct watch *w, const char *text);
/* Call on_abort and wait for at most 3 s. The process then exits with end->status. */
_Noreturn void watch_leave_job(struct watch *w, const struct watch_end *end);
/* Call on_abort, wait for at most 3 s, and return. */
void watch_last_words(struct watch *w, const struct watch_end *end);
/* Call on_left and wait for at most 3 s, then call on_leave. Must be called after watch_last_words(). */
void watch_all_left(struct watch *w);

#endif
