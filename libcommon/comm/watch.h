/*
 * watch.h - detect failures in a job of many ranks, and end the job
 *
 * Each rank has a monitor thread with one TCP connection to rank 0's monitor. It is independent of the transport of
 * the tensors, so it still works when MPI or NCCL hangs.
 *
 *   a rank dies      its connection closes without a goodbye (kill -9, crash, exit
 *                    without comm_world_close); a dead machine is detected by TCP
 *                    keep-alive within about 30 s
 *   a rank crashes   watch_crashed(), from its signal handler
 *   a rank gives up  comm_abort(), with the reason
 *   a rank hangs     some rank has been inside one communication call for longer than
 *                    the timeout: every rank is asked for its activity, and a table is
 *                    printed that shows which rank waits in which call, for which rank,
 *                    and since when; a read that does not end (watch_outside()) is
 *                    treated as such a call
 *
 *   a rank is late   long before that, after comm_options.stall_notice_s: rank 0 prints one line with the
 *                    rank that waits and the rank it waits for, and later that the job continues; if rank 0
 *                    itself is stopped, another rank prints it
 *
 * In each case but the last rank 0 prints one line that describes the event (host, rank, pid, reason), asks each
 * rank for its activity and notifies the others. Every process then exits with the status of the cause (struct
 * watch_statuses), within about 5 s and regardless of the launcher. If rank 0 itself dies, one rank of each host
 * reports it.
 *
 * A job of one process has a monitor thread too, so comm_abort() and watch_dump() work in the same way. SIGTERM, if
 * the program has no handler of its own, first gives the monitor half a second to find out whether some rank died
 * before. Launchers end the other ranks as soon as one has died, and the relevant information is which one it was.
 * SIGTERM then ends the process as usual.
 *
 * The comment of each call states from which thread it may be made. Never fork() without exec after
 * comm_world_open(): a child that keeps the connections open hides the death of its parent.
 */
#ifndef SHARDKIT_COMM_WATCH_H
#define SHARDKIT_COMM_WATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/base/err.h"

struct watch;                   /* returned by comm_watch(world), and freed with the world */

/* Exit statuses of a job that is ended; 0 means 1. A status passed to comm_abort() takes precedence. */
struct watch_statuses {
    int lost, crashed, hang;
};

/* The activity of a rank as text: "has waited 61 s in all_reduce #1234 of group tp for rank 2". */
enum { WATCH_TEXT = 992 };
struct watch_doing {
    bool known;                 /* the rank has answered; the other members are valid */
    bool in_call;               /* it is in a call, so another rank may block it */
    int waiting_for;            /* rank that it waits for; -1: none, or unknown */
    char text[WATCH_TEXT];
};

/* Why a job ends. */
struct watch_end {
    int status;                 /* exit status of this process */
    int rank;                   /* the rank whose failure ends the job; -1: none was found */
    int signal;                 /* signal of a crash, on rank 0 and on the rank itself; else 0 */
    const char *reason;         /* the line that was printed */
    const struct watch_doing *doing;    /* [size of the world] on rank 0; NULL elsewhere */
};

/*
 * Record the current activity of this rank, for the table and the hang report. phase is a string constant
 * ("forward", "save"; not copied). iteration and micro_batch are -1 if not applicable. Costs some nanoseconds. Must
 * be called by the thread that communicates. Times are counted from this call.
 */
void watch_phase(struct watch *w, const char *phase, int64_t iteration, int micro_batch);

/*
 * Begin a wait for something that is not a rank, such as a file or a GPU. It lasts until watch_outside_end(), and is
 * limited and reported like a communication call: "has waited 61 s for sample 1234 of data/text". `what` is a string
 * constant. `of` (a path, or NULL) must remain valid until the world is closed. number -1: none. Must not be used
 * inside a call, or nested. Costs some nanoseconds. Must be called by the thread that communicates.
 */
void watch_outside(struct watch *w, const char *what, int64_t number, const char *of);
void watch_outside_end(struct watch *w);
/*
 * Begin a wait like watch_outside() for something whose duration is unlimited (a disk): it is reported, but never ends
 * the job.
 */
void watch_outside_long(struct watch *w, const char *what, int64_t number, const char *of);

/*
 * Declare that from now on this rank only queues its work for a micro-batch on a GPU. A long phase of a micro-batch
 * then means that the queue is full and that the device waits for another rank, so the phase is limited and reported
 * like a call.
 */
void watch_queues(struct watch *w);

/*
 * Set how many seconds one communication call may last before the job is ended; 0 = no limit. May be called from
 * any thread. Each rank has its own limit, so set it on all of them (a save or an evaluation on one rank makes the
 * others wait).
 */
void watch_timeout(struct watch *w, double seconds);

/*
 * Returns the seconds that this rank has spent in communication calls so far, except those that only queue work for
 * a GPU: see comm_seconds_waiting(). Must be called by the thread that communicates.
 */
double watch_seconds_in_calls(const struct watch *w);

/*
 * Request the table of all ranks, and return. Rank 0's monitor prints it within 2 s, one line per rank, through
 * comm_options.say. Async-signal-safe: meant for SIGUSR2.
 */
void watch_dump(struct watch *w);

/*
 * Report that this process cannot continue because of signal `sig`, and return. Rank 0 is notified and ends the
 * job, including this process, within some seconds. Async-signal-safe. The crashed code must not continue, since
 * its memory may be corrupt: wait.
 */
void watch_crashed(struct watch *w, int sig);

/*
 * Handle SIGTERM as described above again, after the program has reset it to SIG_DFL. Must be called by the thread
 * that communicates.
 */
void watch_catch_term(struct watch *w);

#endif
