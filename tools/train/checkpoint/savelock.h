/*
 * savelock.h - a lock that lets only one job at a time save into a folder
 *
 * Two jobs with the same --save would remove each other's unfinished checkpoints and overwrite each other's `latest`.
 * Rank 0 therefore holds DIR/train.lock from before it reads the folder until its last save has ended. The file has
 * one line of JSON that describes the holder. It is created with link(), which succeeds for only one of two processes
 * on any file system (with O_EXCL where links are not supported). A thread updates the time stamp of the file every few
 * seconds, and reports if another job has taken the lock over.
 *
 * If the holder of a lock has ended, another job can take the lock over:
 *   this kernel, same PID namespace   at once, if no such process exists (PID and start time), or it is a zombie
 *   the same Slurm job, requeued      at once: Slurm has ended the previous run
 *   any other host                    if the time stamp has not changed for as long as the holder promised
 *                                     (a minute; a quarter of it if the host has been restarted), by the file
 *                                     system's clock and, for part of that time, while this process watches
 * A living holder is never disturbed. A holder that was only unreachable detects later that it has lost the lock, and
 * must stop.
 */
#ifndef SHARDKIT_TRAIN_CHECKPOINT_SAVELOCK_H
#define SHARDKIT_TRAIN_CHECKPOINT_SAVELOCK_H

#include <stdbool.h>

#include "libcommon/base/err.h"

struct savelock_opts {
    const char *dir;
    /*
     * Called with a line of text that names the holder of the lock, if savelock_acquire() has to wait. Runs in the
     * thread that called savelock_acquire().
     */
    void (*print_line)(void *arg, const char *line);
    /*
     * Called once if another job has taken over the lock. The job must not save anything after that. Runs in the thread
     * that updates the time stamp.
     */
    void (*lost)(void *arg, const char *reason);
    /* Polled while savelock_acquire() waits. If the function returns true, savelock_acquire() fails with ERR_STOP. */
    bool (*stopped)(void);
    void *arg;
};

struct savelock;
/*
 * Acquire the lock. Returns NULL if another job holds it (ERR_DATA, whose message names the job and what to do), or if
 * it cannot be created (ERR_SYS). If the holder is on another host, waits for up to about a minute to determine whether
 * it is alive.
 */
MUST_CHECK struct savelock *savelock_acquire(const struct savelock_opts *o, struct err *e);
/*
 * Returns false if another process holds the lock; *e then names that process. Returns true if the lock file is missing
 * or cannot be read. Any thread may call it.
 */
bool savelock_held(const struct savelock *l, struct err *e);
/* Remove the lock file if this process holds the lock. Must be called at most once, by any thread. `l` may be NULL. */
void savelock_drop(struct savelock *l);
/*
 * Remove the lock file like savelock_drop(), and wait until the thread that updates it has ended. Afterwards `lost` is
 * not called any more. Must be called by the thread that acquired the lock.
 */
void savelock_end(struct savelock *l);
/* Remove the lock as savelock_end() does, and free it. NULL is allowed. */
void savelock_free(struct savelock *l);

#endif
