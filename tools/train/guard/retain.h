/*
 * retain.h - --keep-last: old checkpoints go away while a run saves
 *
 * A checkpoint goes only when another, newer one is complete: `latest` names it, and N - 1 others stay beside it. What
 * --save-schedule lists stays, what cannot be opened whole stays (it may be a copy on its way), and whatever has a
 * file keep-global_step<I> beside it, as spikes leave (retain_mark()), or a person. It is renamed first, then removed:
 * killed anywhere, a checkpoint is there or not. Removing is done by a thread of its own.
 */
#ifndef SHARDKIT_TRAIN_GUARD_RETAIN_H
#define SHARDKIT_TRAIN_GUARD_RETAIN_H

#include <stdint.h>

#include "libcommon/base/err.h"
#include "tools/train/options/save_schedule.h"

struct retain_opts {
    const char *dir;
    int64_t last;                       /* newest ones that stay, at least 1 */
    const struct save_schedule *schedule;
    /* One line of what could not be removed; any thread. */
    void (*say)(void *arg, const char *line);
    void *arg;
};

struct retain;
/* What *o points to stays. Nothing is removed yet. */
struct retain *retain_new(const struct retain_opts *o);
/* Waits for what is under way. NULL is fine. */
void retain_free(struct retain *r);
/* The checkpoint of this iteration is complete, and `latest` names it. Returns at once. */
void retain_after_save(struct retain *r, int64_t iteration);
/* From now on the checkpoint stays; `why` is what that file says. */
MUST_CHECK int retain_mark(const char *dir, const char *tag, const char *why, struct err *e);

#endif
