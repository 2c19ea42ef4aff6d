/*
 * watch.h - notice trouble in a job of many ranks, and end it
 *
 * Each rank has one monitor thread with one TCP connection to rank 0's monitor, beside
 * whatever carries the tensors, so it still talks when MPI or NCCL hangs.
 *
 *   a rank dies      its connection closes without a goodbye (kill -9, crash, exit
 *                    without comm_world_close); a dead machine is noticed by TCP
 *                    keep-alive within about 30 s
 *   a rank crashes   watch_crashed(), from its signal handler
 *   a rank gives up  comm_abort(): it says why
 *   a rank hangs     some rank has been inside one communication call for longer than
 *                    the timeout: every rank is asked what it does, and the table is
 *                    printed: who waits in which call, for whom, since when; a read that
 *                    does not end (watch_outside()) counts as such a call
 *
 *   a rank is late   long before that, after comm_options.stall_notice_s: rank 0 says in one line who waits
 *                    and for whom, and later that the job goes on; where rank 0 itself is stopped, another says it
 *
 * In each case but the last rank 0 says what happened in one line (host, rank, pid, reason), asks what each rank
 * does, tells the others, and every process exits with the status of its cause (struct watch_statuses), within about
 * 5 s and whatever the launcher does. When rank 0 itself dies, one rank of each host says so.
 *
 * A job of one process has its monitor thread too, so comm_abort() and watch_dump() work alike.
 * SIGTERM, where the program has no handler of its own, first gives the monitor half a second to find
 * out whether some rank died before: launchers end the others as soon as one has, and which one it was is
 * what matters. Then it ends the process, as ever.
 *
 * Threads: each call says from where it may be made. Never fork() without exec after
 * comm_world_open(): a child that keeps the connections open hides its parent's death.
 */
#ifndef SHARDKIT_COMM_WATCH_H
#define SHARDKIT_COMM_WATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/base/err.h"

struct watch;                   /* comm_watch(world) gives it; it goes with the world */

/* Exit statuses of a job that is ended; 0 stands for 1. What comm_abort() is told comes before them. */
struct watch_statuses {
    int lost, crashed, hang;
};

/* What a rank does, in words: "has waited 61 s in all_reduce #1234 of group tp for rank 2". */
enum { WATCH_TEXT = 992 };
struct watch_doing {
    bool known;                 /* it has answered */
    bool in_call;               /* and so perhaps held up by another rank */
    int waiting_for;            /* -1: for nobody, or it is not known for whom */
    char text[WATCH_TEXT];
};

/* Why a job ends. */
struct watch_end {
    int status;                 /* exit status of this process */
    int rank;                   /* whose fault it is; -1: nobody was found */
    int signal;                 /* of a crash, on rank 0 and on the rank itself; else 0 */
    const char *reason;         /* the line that was said */
    const struct watch_doing *doing;    /* [size of the world] on rank 0; NULL elsewhere */
};

/*
 * Note what this rank does now, for the table and the hang report: phase is a string
 * constant ("forward", "save"; not copied), iteration and micro_batch are -1 where they
 * mean nothing. Some nanoseconds; from the thread that communicates. Time is counted
 * from this call.
 */
void watch_phase(struct watch *w, const char *phase, int64_t iteration, int micro_batch);

/*
 * From here to watch_outside_end() this rank waits for something that is no rank: a file, a GPU. It is
 * limited and told like a communication call: "has waited 61 s for sample 1234 of data/text". what is
 * a string constant; `of` (a path, or NULL) stays where it is until the world is closed; number -1: none.
 * Not inside a call, and not nested. Some nanoseconds; from the thread that communicates.
 */
void watch_outside(struct watch *w, const char *what, int64_t number, const char *of);
void watch_outside_end(struct watch *w);
/* The same of what may take as long as it has to (a disk): it is told, but never a reason to end the job. */
void watch_outside_long(struct watch *w, const char *what, int64_t number, const char *of);

/*
 * From now on what this rank does for a micro-batch is only queued, for a GPU: a phase of one that lasts stands in a
 * full queue, behind another rank, and is limited and told like a call.
 */
void watch_queues(struct watch *w);

/*
 * Seconds one communication call may last before the job is ended; 0 = for ever.
 * Any thread. Each rank has its own limit: set it on all (a save or an evaluation on one
 * rank makes the others wait).
 */
void watch_timeout(struct watch *w, double seconds);

/*
 * Seconds that this rank has spent in communication calls so far, those left out that only queue
 * for a GPU: see comm_seconds_waiting(). From the thread that communicates.
 */
double watch_seconds_in_calls(const struct watch *w);

/*
 * Ask for the table of all ranks. Only asks: rank 0's monitor prints it within 2 s, one
 * line a rank, through comm_options.say. Async-signal-safe: meant for SIGUSR2.
 */
void watch_dump(struct watch *w);

/*
 * This process cannot go on because of signal `sig`: rank 0 hears of it and ends the job, this process included, within
 * some seconds. Only asks; async-signal-safe. What crashed must not return, as its memory may be spoilt: wait.
 */
void watch_crashed(struct watch *w, int sig);

/* Once more wait for SIGTERM as above, after the program has set it back to SIG_DFL. The thread that communicates. */
void watch_catch_term(struct watch *w);

#endif
