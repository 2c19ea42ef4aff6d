/*
 * savelock.h - a lock that lets only one job at a time save into a folder
 *
 * Two jobs with the same --save would remove each other's unfinished checkpoints and overwrite each other's `latest`.
 * Rank 0 therefore holds DIR/train.lock from before it reads the folder until its last save has ended. The file has
 * one line of JSON that describes the holder. It is created with link(), which succeeds for only one of two processes
 * on any file system (with O_EXCL where links are not supported). A thread updates its time stamp every few seconds,
 * and reports when another job owns the lock.
 *
 * The lock of a holder that has ended is taken over:
 *   this kernel, same PID namespace   at once, if no such process exists (PID and start time), or it is a zombie
 *   the same Slurm job, requeued      at once: Slurm has ended the previous run
 *   any other host                    if the time stamp has not changed for as long as the holder promised
 *                                     (a minute; a quarter of it if the host has been restarted), by the file
 *                                     system's clock and, for part of that time, while this process watches
 * A living holder is never disturbed. A holder that was only unreachable finds that it has lost the lock and must
 * stop.
 */
#ifndef SHARDKIT_TRAIN_CHECKPOINT_SAVELOCK_H
#define SHARDKIT_TRAIN_CHECKPOINT_SAVELOCK_H

#include <stdbool.h>

#include "libcommon/base/err.h"

struct savelock_opts {
    const char *dir;
    /* called with a line that names the job whose lock savelock_acquire() waits for; runs in the calling thread */
    void (*print_line)(void *arg, const char *line);
    /* called once another job owns the lock, so that nothing more may be saved; runs in the thread of the lock */
    void (*lost)(void *arg, const char *reason);
    /* polled while savelock_acquire() waits; if it returns true, the call fails with ERR_STOP */
    bool (*stopped)(void);
    void *arg;
};

struct savelock;
/*
 * Acquire the lock. Returns NULL if another job holds it (ERR_DATA names the job and what to do) or if it cannot be
 * created (ERR_SYS). Waits for at most about a minute, to see whether a holder on another host is alive.
 */
MUST_CHECK struct savelock *savelock_acquire(const struct savelock_opts *o, struct err *e);
/*
 * Returns false if another process holds the lock; *e then names that process. A lock that is missing or cannot be read
 * counts as held by this one. Any thread may call it.
 */
bool savelock_held(const struct savelock *l, struct err *e);
/* Remove the lock if this process holds it. Any thread may call it, once. `l` may be NULL. */
void savelock_drop(struct savelock *l);
/*
 * Remove the lock as savelock_drop() does, and wait until its thread has ended. `lost` is not called any more
 * afterwards. Must be called by the thread that acquired the lock.
 */
void savelock_end(struct savelock *l);
/* Remove the lock as savelock_end() does, and free it. NULL is allowed. */
void savelock_free(struct savelock *l);

#endif
