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
 *   a rank hangs a rank has been inside one communication call for longer than
 *                    the timeout: every rank is asked for its activity, and a table is
 *                    printed that shows which rank waits in which call, for which rank,
 *                    and since when; a read that does not end (watch_outside()) is
 *                    treated as such a call
 *
 *   a rank is late   a call takes longer than comm_options.stall_notice_s, which is far below the timeout. Rank 0
 *   prints one line that names the rank that waits and the rank it waits for. If the job continues later, it prints
 *   that as well. If rank 0 itself is stopped, another rank prints these lines
 *
 * In each case but the last rank 0 prints one line that describes the event (host, rank, pid, reason), asks each
 * rank for its activity and notifies the others. Every process then exits with the status of the cause (struct
 * watch_statuses), within about 5 s and regardless of the launcher. If rank 0 itself dies, one rank of each host
 * reports it.
 *
 * A job of one process has a monitor thread too, so comm_abort() and watch_dump() work in the same way. If the program
 * has no handler of its own for SIGTERM, the signal does not end the process at once: the monitor first has half a
 * second to find out whether another rank has died. This matters because launchers send SIGTERM to all other ranks as
 * soon as one has died, and the report should name that rank. SIGTERM then ends the process as usual.
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

/*
 * The exit statuses of the processes of a job that the monitor ends. 0 stands for 1. A status that was passed to
 * comm_abort() takes precedence.
 */
struct watch_statuses {
    int lost, crashed, hang;
};

/* The activity of a rank as text: "has waited 61 s in all_reduce #1234 of group tp for rank 2". */
enum { WATCH_TEXT = 992 };
struct watch_doing {
    bool known;                 /* true if the rank has answered; otherwise the other members are not valid */
    bool in_call;               /* the rank is in a call, so another rank may block it */
    int waiting_for;            /* the rank that this rank waits for; -1: none, or unknown */
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
 * Record the current activity of this rank, for the table and the hang report. `phase` is a string constant such as
 * "forward" or "save"; it is not copied. iteration and micro_batch are -1 if the phase has none. The reported duration
 * of the phase is counted from this call. Costs a few nanoseconds. Must be called by the thread that communicates.
 */
void watch_phase(struct watch *w, const char *phase, int64_t iteration, int micro_batch);

/*
 * Begin a wait for something other than a rank, such as a file or a GPU. The wait lasts until watch_outside_end(). It
 * is limited and reported like a communication call: "has waited 61 s for sample 1234 of data/text". In this example
 * `what` is "sample", `number` is 1234 and `of` is "data/text". `what` is a string constant. `of` is NULL, or a path
 * that must remain valid until the world is closed. `number` is -1 if there is none. Waits must not be nested, or begin
 * inside a communication call. Costs a few nanoseconds. Must be called by the thread that communicates.
 */
void watch_outside(struct watch *w, const char *what, int64_t number, const char *of);
void watch_outside_end(struct watch *w);
/*
 * Begin a wait like watch_outside(), for something that may take any time, such as a disk. The wait is reported, but
 * never ends the job.
 */
void watch_outside_long(struct watch *w, const char *what, int64_t number, const char *of);

/*
 * Declare that, during a micro-batch, this rank will only queue work on a GPU. If a phase of a micro-batch then takes
 * long, the queue must be full, because the device waits for another rank. Such a phase is therefore limited and
 * reported like a call.
 */
void watch_queues(struct watch *w);

/*
 * Set the number of seconds that one communication call may last before the job is ended; 0 = no limit. May be called
 * from any thread. Each rank has its own limit. The limit must be set on all ranks, for example before a save on one
 * rank that makes the others wait.
 */
void watch_timeout(struct watch *w, double seconds);

/*
 * Returns the number of seconds that this rank has spent in communication calls so far. Calls that only queue work for
 * a GPU are not included; comm_seconds_waiting() returns their time. Must be called by the thread that communicates.
 */
double watch_seconds_in_calls(const struct watch *w);

/*
 * Request a table of the activities of all ranks, and return at once. Rank 0's monitor prints it within 2 s through
 * comm_options.say, with one line per rank. Async-signal-safe, so that a handler of SIGUSR2 can call it.
 */
void watch_dump(struct watch *w);

/*
 * Report that this process cannot continue because of signal `sig`, and return. Rank 0 is notified and ends the job,
 * including this process, within a few seconds. Async-signal-safe. The caller must then wait and not continue, because
 * its memory may be corrupt.
 */
void watch_crashed(struct watch *w, int sig);

/*
 * Install the handling of SIGTERM described above again, after the program has reset the signal to SIG_DFL. Must be
 * called by the thread that communicates.
 */
void watch_catch_term(struct watch *w);

#endif
