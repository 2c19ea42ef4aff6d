/*
 * status.h - how the outside watches and steers a run: status.json, kill switch, signals, clock
 *
 * Only helpers: the training loop asks, decides on rank 0 and tells the others.
 */
#ifndef SHARDKIT_TRAIN_LOG_STATUS_H
#define SHARDKIT_TRAIN_LOG_STATUS_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/base/err.h"

/* ---- status.json ---- */

enum status_reason {
    STATUS_RUNNING,             /* null in the file */
    STATUS_FINISHED, STATUS_KILL_SWITCH, STATUS_DURATION, STATUS_INTERVAL, STATUS_ITERATIONS, STATUS_SAMPLES,
    STATUS_SIGNAL, STATUS_NAN, STATUS_FAILED,
};
const char *status_reason_name(enum status_reason r);           /* "kill-switch"; NULL when running */

/* Numbers that are not known are negative (loss: NaN), strings NULL: null in the file. */
struct status {
    const char *phase;          /* "start", "load", "index", "train", "valid", "save", "stop" */
    double percent;             /* of phase "index": how much of the order of samples is built */
    int64_t iteration, train_iters;
    int64_t consumed_samples, consumed_tokens;
    double loss, lr, iteration_s;
    double loss_scale;          /* after the iteration; 0: there is none */
    int64_t skipped_steps;      /* iterations of the whole run without an update, as a gradient overflowed */
    int world_size;
    const char *last_complete_tag;      /* "global_step20": what `latest` names once it is durable */
    const char *saving_tag;     /* being written now */
    /*
     * Of the last save that has ended: what training stood for it, how long it took, and by how much each iteration
     * beside it was longer than others, NaN where there were none to compare.
     */
    double save_stall_s, save_wall_s, save_slowdown_s;
    enum status_reason reason;
    int signal;                 /* with STATUS_SIGNAL */
    const char *message;        /* why it failed */
    const char *cause;          /* ... in one word, of cause.h */
    const char *report;         /* ... and the path of the report of it */
};

/*
 * Replace `path` atomically; host, pid, job id, start and present time are added. One line of
 * JSON. It is not synced to disk (a reader sees it at once; after a power cut it may be an older one). ERR_SYS:
 * worth a warning, no reason to stop. Any thread.
 */
MUST_CHECK int status_write(const char *path, const struct status *s, struct err *e);
/* The last one of the process: of two threads the first one's. 1: it has been told; nothing is written any more. */
MUST_CHECK int status_end(const char *path, const struct status *s, struct err *e);
MUST_CHECK int status_sync(const char *path, struct err *e);   /* what is there stays, whatever happens to the host */
/* The same at once, and from here on with `why` the job stands still; NULL: it goes on. Any thread. */
MUST_CHECK int status_stalled(const char *path, const struct status *s, const char *why, struct err *e);
/*
 * For another rank when rank 0, process `pid` of `host`, is the one that does not answer: only "stalled" changes in
 * what that has left. A file of another job is left alone.
 */
MUST_CHECK int status_stalled_for(const char *path, const char *host, long pid, const char *why, struct err *e);
/* How far the run before had come, as the file at `path` has it; what it does not have stays as it is in *s. */
void status_recall(const char *path, struct status *s);
/* SLURM_JOB_ID, PBS_JOBID, LSB_JOBID; "" outside of a batch system. */
const char *status_job_id(void);
const char *status_host(void);

/* ---- kill switch ---- */

/* Is the file there? NULL: no. A path that cannot be looked at counts as absent. */
bool status_kill_switch(const char *path);

/* ---- signals ---- */

/*
 * SIGTERM, SIGINT, SIGUSR1: finish the iteration, save, exit 0 (a second SIGINT kills);
 * SIGUSR2: `dump` is called in the handler (watch_dump() is made for that).
 * status_release_signals() undoes the first part; call it after MPI_Init, which installs handlers of its own.
 */
void status_catch_signals(void (*dump)(int sig));
/* SIGTERM, SIGINT and SIGUSR1 end the process again, where there is nothing to finish and to save. */
void status_release_signals(void);
/* The first signal that asked to stop, or 0. */
int status_stop_signal(void);
const char *status_signal_name(int sig);                /* "SIGTERM" */

/* ---- clock ---- */

/* Clock ticks between the machine's start and a process's; 0: it is a zombie, -1: it is not there, or hidden. */
int64_t status_start_ticks(int64_t pid);
/* When this process started, by clock_wall_s(). The job's start is the minimum over its ranks. */
double status_process_start(void);
/* Is `now` past the limit of --exit-duration-in-mins (0: none)? *minutes is what the log line prints. */
bool status_duration_over(double start, double now, int64_t limit_mins, double *minutes);

#endif
