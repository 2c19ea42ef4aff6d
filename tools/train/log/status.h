/*
 * status.h - how other programs watch and control a run: status.json, kill switch, signals, clock
 *
 * These functions make no decisions. The training loop calls them, decides on rank 0, and broadcasts the decision to
 * the other ranks.
 */
#ifndef SHARDKIT_TRAIN_LOG_STATUS_H
#define SHARDKIT_TRAIN_LOG_STATUS_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/base/err.h"

/* ---- status.json ---- */

enum status_reason {
    STATUS_RUNNING,             /* written as null */
    STATUS_FINISHED, STATUS_KILL_SWITCH, STATUS_DURATION, STATUS_INTERVAL, STATUS_ITERATIONS, STATUS_SAMPLES,
    STATUS_SIGNAL, STATUS_NAN, STATUS_FAILED,
};
const char *status_reason_name(enum status_reason r);           /* such as "kill-switch"; NULL for STATUS_RUNNING */

/*
 * The contents of status.json. A number that is unknown is negative (the loss: NaN), and a string that is unknown is
 * NULL. Both are written as null.
 */
struct status {
    const char *phase;          /* "start", "load", "index", "train", "valid", "save", "stop" */
    double percent;             /* in phase "index": percentage of the sample order that has been built */
    int64_t iteration, train_iters;
    int64_t consumed_samples, consumed_tokens;
    double loss, lr, iteration_s;
    double loss_scale;          /* scale after the iteration; 0: no loss scale is used */
    /* The number of iterations in the whole run whose update was skipped because a gradient overflowed. */
    int64_t skipped_steps;
    int world_size;
    /* The checkpoint that `latest` names, such as "global_step20", once it is on disk. NULL: there is none. */
    const char *last_complete_tag;
    const char *saving_tag;     /* the checkpoint that is being written now */
    /*
     * Durations of the last completed save in seconds: how long training was blocked, how long the save took, and by
     * how much an iteration during the save was longer than other iterations (NaN if there were none to compare with).
     */
    double save_stall_s, save_wall_s, save_slowdown_s;
    enum status_reason reason;
    int signal;                 /* if the reason is STATUS_SIGNAL: the signal */
    const char *message;        /* why the run failed */
    const char *cause;          /* the cause of the failure in one word, from cause_name() */
    const char *report;         /* the path of the failure report */
};

/*
 * Replace the file `path` atomically with one line of JSON. Host, pid, job id, start time and current time are added.
 * The file is not synced to disk: other processes see it at once, but after a power failure an older version may be
 * there. The caller should print a warning after ERR_SYS, but need not stop the run. May be called from any thread.
 */
MUST_CHECK int status_write(const char *path, const struct status *s, struct err *e);
/*
 * Write the last status of the process. If two threads call this, the first one wins. Returns 1 if the last status was
 * already written. Later writes have no effect.
 */
MUST_CHECK int status_end(const char *path, const struct status *s, struct err *e);
/* Sync the status file and its directory to disk, so that the current contents survive a failure of the host. */
MUST_CHECK int status_sync(const char *path, struct err *e);
/*
 * Mark the job as stalled for the reason `why`, and write the status at once. The mark remains until the function is
 * called with NULL. May be called from any thread.
 */
MUST_CHECK int status_stalled(const char *path, const struct status *s, const char *why, struct err *e);
/*
 * Mark the job as stalled on behalf of rank 0 (process `pid` on `host`), because rank 0 itself does not respond. In the
 * file that rank 0 wrote, only "stalled" and the time of the update change. If the file belongs to another job, nothing
 * changes.
 */
MUST_CHECK int status_stalled_for(const char *path, const char *host, long pid, const char *why, struct err *e);
/*
 * Read from `path` how far the previous run got, and store it in *s. Fields that the file does not have keep their
 * value in *s.
 */
void status_recall(const char *path, struct status *s);
/* Returns the job id of the batch system, from SLURM_JOB_ID, PBS_JOBID or LSB_JOBID; "" outside of a batch system. */
const char *status_job_id(void);
const char *status_host(void);

/* ---- causes of a failure ---- */

/*
 * The reasons why a run failed. One table has their names and exit statuses for logs, reports and scripts. As in every
 * tool of the project, exit status 0 is an orderly end and 2 is wrong usage. The other values differ from those of
 * shells (126 and up), timeout (124), sysexits (64 to 78) and Slurm.
 */
enum cause {                    /* the values are exit statuses */
    CAUSE_FAILED = 1,           /* any other failure */
    CAUSE_HANG = 41,            /* a collective call or a read took longer than --collective-timeout */
    CAUSE_LOST,                 /* a rank's process or host disappeared without reporting an error */
    CAUSE_CRASH,                /* a rank received SIGSEGV, SIGBUS, SIGFPE, SIGILL or SIGABRT */
    CAUSE_NAN,                  /* the loss, the norm or the state is not finite, or the loss scale is at its minimum */
    CAUSE_SAVE,                 /* the last checkpoint could not be saved */
    CAUSE_REPLICAS,             /* copies that must be equal differ */
    CAUSE_DEVICE,               /* repeating the same work gave different bits: the device is broken */
};

/* Returns the name of a cause, such as "hang"; "failed" if the status is not in the table. */
const char *cause_name(int status);

/* ---- kill switch ---- */

/* Returns true if the kill-switch file exists. Returns false if path is NULL or the path cannot be accessed. */
bool status_kill_switch(const char *path);

/* ---- signals ---- */

/*
 * Install the signal handlers. After SIGTERM, SIGINT or SIGUSR1 the run finishes the iteration, saves and exits with
 * status 0; a second SIGINT kills it. The handler of SIGUSR2 calls `dump`, for example watch_dump().
 * status_release_signals() removes the handlers of the first three signals. Must be called after MPI_Init(), which
 * installs its own handlers.
 */
void status_catch_signals(void (*dump)(int sig));
/*
 * Restore the default actions of SIGTERM, SIGINT and SIGUSR1, which end the process. Called when there is nothing left
 * to finish or to save.
 */
void status_release_signals(void);
/* Returns the first signal that requested a stop, or 0. */
int status_stop_signal(void);
const char *status_signal_name(int sig);                /* such as "SIGTERM" */

/* ---- clock ---- */

/*
 * Returns the time at which process `pid` started, in clock ticks since the machine was started. Returns 0 if the
 * process is a zombie, -1 if it does not exist or is hidden.
 */
int64_t status_start_ticks(int64_t pid);
/*
 * Returns the time (clock_wall_s()) at which this process started. The start of the job is the minimum over its ranks.
 */
double status_process_start(void);
/*
 * Returns true if the run has reached the limit of --exit-duration-in-mins at the time `now`. limit_mins 0 means that
 * there is no limit. *minutes receives the duration of the run, which is printed in the log.
 */
bool status_duration_over(double start, double now, int64_t limit_mins, double *minutes);

#endif
