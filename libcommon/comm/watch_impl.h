/*
 * watch_impl.h - the monitor's parts; for libcommon/comm only
 *
 * From the bottom up; each calls only those before it:
 * watch_note.c   notes of what this rank does, and words for them
 * watch_wire.c   connections between monitors: making them, messages
 * watch_rank.c   the monitor thread of ranks 1..: reports, obeys
 * watch_root.c   the monitor thread of rank 0: collects, decides, tells
 * watch.c        the monitor's life
 */
#ifndef SHARDKIT_COMM_WATCH_IMPL_H
#define SHARDKIT_COMM_WATCH_IMPL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "libcommon/comm/comm.h"

#define SECOND INT64_C(1000000000)      /* ns */
enum { LAST_WORDS_S = 3 };              /* what on_abort may take before the process ends all the same */

enum { WIRE_TEXT = WATCH_TEXT };

/* ---- notes: written by the rank's thread, read by its monitor ---- */

/* A sequence lock: `version` is odd while the other fields change. */
struct note {
    atomic_uint version;
    _Atomic(const char *) phase;        /* NULL: none said */
    _Atomic int64_t iteration;          /* -1: none */
    atomic_int micro_batch;             /* -1: none */
    _Atomic(const char *) call;         /* "all_reduce"; NULL: in no call */
    _Atomic(const char *) group;        /* lives as long as the watch; of a wait outside, what it is of, or NULL */
    atomic_bool outside;                /* the wait is for no rank */
    atomic_bool unlimited;              /* ... and may last */
    atomic_bool queues;                 /* watch_queues() */
    _Atomic uint64_t number;            /* of the call in its group; outside: UINT64_MAX is none */
    _Atomic int64_t since_ns;           /* when phase, or call, or the computing after a call began */
    atomic_int waiting_for, n_waiting;  /* world rank or -1, and how many are waited for */
};

void watch_enter(struct watch *w, const char *call, const char *group, uint64_t number);
void watch_leave(struct watch *w);
void watch_waits_for(struct watch *w, int rank, int how_many);

/* The note put into words. */
void watch_activity(struct watch *w, struct watch_doing *r);
bool watch_is_stuck(struct watch *w);   /* in one call for longer than the timeout */
/* *told: the call that was told of, by its beginning, 0 for none; the answer is told once. */
enum stall_news { STALL_NONE, STALL_BEGINS, STALL_ENDS };
enum stall_news watch_stall_news(struct watch *w, int64_t *told);
bool watch_may_last(struct watch *w);   /* what it is in now is never a reason to end the job */

/* ---- messages between monitors ---- */

enum wire_kind {
    WIRE_HELLO = 1,             /* rank to root, first */
    WIRE_GOODBYE,               /* either way: an orderly end */
    WIRE_FAIL,                  /* rank to root: comm_abort(); a = 1 + the lost rank behind it, b = exit status */
    WIRE_CRASH,                 /* rank to root: watch_crashed(); a = signal */
    WIRE_TERM,                  /* rank to root: SIGTERM came, I am about to go */
    WIRE_HANG,                  /* rank to root: my call lasts too long */
    WIRE_SLOW,                  /* rank to root: my call lasts long, but not too long; a = it may */
    WIRE_HEARD,                 /* root to rank: so I have heard */
    WIRE_MOVES,                 /* rank to root: that call is over */
    WIRE_DUMP,                  /* rank to root: print the table */
    WIRE_ASK,                   /* root to rank: what are you doing? */
    WIRE_STATE,                 /* the answer: a = in a call, b = rank waited for */
    WIRE_ABORT,                 /* root to rank: exit with status a, because of text; b = whose fault, or -1 */
};

/* Both ends run the same program on the same kind of machine: sent as it lies in memory. */
struct wire {
    uint64_t token;
    int32_t kind, rank, a, b;
    char text[WIRE_TEXT];
    uint8_t pad[8];
};

struct conn {
    int fd;                     /* -1: closed */
    bool goodbye;               /* it said so: closing is no fault */
    bool term;                  /* it said WIRE_TERM: closing is no news */
    struct wire in;             /* what has come of the next message */
    size_t got;
};

/*
 * `head` with `text` (NULL: none). Never waits; a peer that does not read for so long that its buffer is full
 * misses it.
 */
void conn_send(struct conn *c, const struct wire *head, const char *text);
/* 1: a whole message is in c->in; 0: not yet; -1: closed (*why = errno, 0 for an orderly close). */
int conn_read(struct conn *c, uint64_t token, int *why);
void conn_close(struct conn *c);

/* ---- the monitor ---- */

/* What rank 0 hands out so that the others can connect. */
enum { OFFER_ADDRESSES = 16 };
struct watch_offer {
    uint64_t token;
    int32_t port, n_addresses;
    uint32_t address[OFFER_ADDRESSES];  /* as the network has them */
};

struct watch {
    struct note note;
    int64_t in_calls_ns;                /* the rank's thread only */
    struct comm_options o;
    atomic_int_least64_t timeout_ns;    /* 0: for ever */
    int64_t stall_ns;                   /* 0: never told */
    int rank, size;
    const struct comm_place *place;     /* [size]; the world's */
    _Atomic(const char *) *device;      /* [size], see comm_name_device(); NULL: not said */
    const uint64_t *pid_space;          /* [size]: equal where one rank can kill the other by its pid */
    uint64_t token;
    struct conn *conn;                  /* root: [size], by rank; others: [1], to the root */
    int wake[2];                        /* a pipe: letters of enum wake */
    pthread_t thread;
    bool running;
    pthread_mutex_t lock;               /* of reason */
    char reason[WIRE_TEXT];             /* of comm_abort(); "" = none */
    int status;                         /* ... with it */
    int lost;                           /* the rank behind it, or -1 */
    atomic_int crashed;                 /* the signal; 0: not */
};

/*
 * How long somebody who is ended by a launcher, or has lost a peer, waits for news of the rank that was the
 * first: what its kernel said when it died is on its way, but perhaps not read.
 */
#define GRACE_NS (SECOND / 2)

enum wake { WAKE_FAIL = 'f', WAKE_CRASH = 'x', WAKE_TERM = 't', WAKE_DUMP = 'd', WAKE_CLOSE = 'c' };

struct watch *watch_new(int rank, int size, const struct comm_options *o);
/* Root: a listening socket for the offer; closed by watch_accept(). */
MUST_CHECK int watch_offer(struct watch *w, struct watch_offer *offer, struct err *e);
MUST_CHECK int watch_accept(struct watch *w, int listener, struct err *e);
MUST_CHECK int watch_connect(struct watch *w, const struct watch_offer *offer, struct err *e);
MUST_CHECK int watch_run(struct watch *w, struct err *e);
/* The orderly end: say goodbye, wait for the monitor to finish. */
void watch_close(struct watch *w);
void watch_free(struct watch *w);       /* NULL is fine */
_Noreturn void watch_abort(struct watch *w, int status, const char *reason, int lost);

void *watch_root_main(void *watch);
void *watch_rank_main(void *watch);
/* The letters that came through the pipe, at most `room`. */
int watch_letters(struct watch *w, char *letters, int room);
void watch_say(struct watch *w, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* "rank 3 (host h, pid 12, GPU-53a7.. at 0000:1b:00.0)" */
void watch_name(const struct watch *w, int rank, char *text, size_t room);
/* Die of the SIGTERM that has come. */
_Noreturn void watch_die(void);
/* on_stall, in a thread of its own: a file that it writes may hang, and the monitor must not. */
void watch_tell_stall(struct watch *w, const char *text);
/* on_abort, within 3 s; then, or when these are over, the process exits with end->status. */
_Noreturn void watch_leave_job(struct watch *w, const struct watch_end *end);
/* The same without the exit. */
void watch_last_words(struct watch *w, const struct watch_end *end);
void watch_all_left(struct watch *w);   /* on_left, within 3 s more, then on_leave; behind watch_last_words() */

#endif
