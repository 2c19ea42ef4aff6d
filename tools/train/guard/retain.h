/*
 * retain.h - --keep-last: remove old checkpoints while a run saves
 *
 * A checkpoint is removed only if there is a newer complete one that `latest` names, and N - 1 others remain. Five
 * kinds of checkpoints are always kept:
 *   those that --save-schedule lists;
 *   those of another run, which were in the folder before a run that was loaded from another folder began;
 *   those with a file that does not belong to a checkpoint;
 *   those that cannot be opened completely, because they may be copies in progress;
 *   those with a file keep-global_step<I> next to them, which retain_mark() creates after a loss spike, or a person.
 * A checkpoint is renamed first and then removed, so if the process is killed at any point, the checkpoint either
 * exists whole or not at all. A separate thread does the removal.
 */
#ifndef SHARDKIT_TRAIN_GUARD_RETAIN_H
#define SHARDKIT_TRAIN_GUARD_RETAIN_H

#include <stdint.h>

#include "libcommon/base/err.h"
#include "tools/train/options/save_schedule.h"

struct retain_opts {
    const char *dir;
    int64_t last;                       /* number of checkpoints to keep, at least 1 */
    int64_t first;                      /* checkpoints of earlier iterations are never removed */
    const struct save_schedule *schedule;
    /* Called with one line of text about each checkpoint that could not be removed. Any thread may call it. */
    void (*print_line)(void *arg, const char *line);
    void *arg;
};

struct retain;
/*
 * Create the thread that removes old checkpoints. All objects that *o points to must stay valid until retain_free().
 * Nothing is removed before retain_after_save() is called.
 */
struct retain *retain_new(const struct retain_opts *o);
/* Wait for a removal in progress, end the thread and free *r. r may be NULL. */
void retain_free(struct retain *r);
/*
 * Inform the thread that the checkpoint of `iteration` is complete and that `latest` names it. Returns without waiting
 * for removals.
 */
void retain_after_save(struct retain *r, int64_t iteration);
/* Mark the checkpoint `tag` in `dir`, so that it is never removed. `why` becomes the contents of the file keep-TAG. */
MUST_CHECK int retain_mark(const char *dir, const char *tag, const char *why, struct err *e);

#endif
