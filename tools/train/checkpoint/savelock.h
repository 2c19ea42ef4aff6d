/*
 * savelock.h - one job at a time saves into a folder
 *
 * Two jobs with one --save would remove each other's half-written checkpoints and take turns at `latest`. So
 * rank 0 holds DIR/train.lock from before it looks at the folder until its last save has ended: a line of
 * JSON that says who holds it, made by link(), which one of two makers gets on any file system (by O_EXCL where
 * there are no links). A thread touches it every few seconds, and gives notice when it is no longer ours.
 *
 * A lock whose holder has ended is taken over:
 *   this kernel, same PID namespace   at once, when no such process is there (PID and start time), or it is a zombie
 *   the same Slurm job, requeued      at once: Slurm has ended what ran before
 *   any other host                    when nothing has touched it for as long as the holder promised to
 *                                     (a minute; a quarter of it where the host has been restarted), by the file
 *                                     system's clock and, for a while, before our eyes
 * Who lives is never disturbed: a holder that was only out of reach finds its lock gone and must stop.
 */
#ifndef SHARDKIT_TRAIN_CHECKPOINT_SAVELOCK_H
#define SHARDKIT_TRAIN_CHECKPOINT_SAVELOCK_H

#include <stdbool.h>

#include "libcommon/base/err.h"

struct savelock_opts {
    const char *dir;
    void (*say)(void *arg, const char *line);           /* that it waits, and for whom; calling thread */
    void (*lost)(void *arg, const char *reason);        /* another job has it: save nothing more; another thread */
    bool (*stopped)(void);      /* asked while it waits; true gives up with ERR_STOP */
    void *arg;
};

struct savelock;
/*
 * Take it; NULL when another job holds it (ERR_DATA: which, and what to do), or it cannot be made (ERR_SYS). Waits
 * for at most about a minute, to see whether a holder on another host lives.
 */
MUST_CHECK struct savelock *savelock_take(const struct savelock_opts *o, struct err *e);
/* Is it still ours? False: *e says whose it is. Any thread. */
bool savelock_held(const struct savelock *l, struct err *e);
/* Remove it, if it is ours. Any thread, once; NULL is fine. */
void savelock_drop(struct savelock *l);
/* The same, and its thread has ended when this returns: `lost` is not called any more. The thread that took it. */
void savelock_end(struct savelock *l);
/* The same, and free. */
void savelock_free(struct savelock *l);

#endif
