/*
 * staging.h - OUT.part and OUT.part.job: make a folder appear whole or not at all
 *
 *   OUT.part/       the folder being filled; renamed to OUT as the last step
 *   OUT.part.job/   the state of the run:
 *       fingerprint   input files and options; a resumed run must have the same
 *       folder        inode of OUT.part. A rename keeps it, so a later run can find out whether
 *                     OUT.part is still the new folder or, after the swap, the old OUT
 *       ready         part 0 has made the shared files
 *       journal.<i>   finished items of process i (journal.h)
 *       lock.<i>      held by process i while it runs (flock: a kill releases it)
 *       publish       held by the process that publishes
 *   OUT.old.part    the whole old OUT while it is replaced, on systems that cannot exchange two
 *                   folders atomically; if there is no OUT, it is renamed back
 *   OUT.gone.part   an old OUT that is being removed
 *   OUT.kept        an old OUT in which something foreign appeared while it was being replaced
 *
 * Only files that replace.h recognizes as ours are removed.
 */
#ifndef SHARDKIT_WRITE_STAGING_H
#define SHARDKIT_WRITE_STAGING_H

#include <stdbool.h>

#include "libcommon/base/err.h"

struct staging {
    char *out, *part, *job;     /* OUT, OUT.part, OUT.part.job */
    bool resumed;               /* continues the work of an earlier run */
    bool complete;              /* with --resume: OUT exists already, and nothing is left to do */
    int lock_fd, publish_fd;
    char *made;                 /* the topmost parent of OUT that staging_open() created; NULL if none */
    char *kept;                 /* path of an old OUT that staging_publish() could not remove; or NULL */
};

struct staging_opts {
    bool force;                 /* replace OUT, and discard an OUT.part of another job */
    bool resume;
    int part, n_parts;
    bool (*stopped)(void);
};

/*
 * Check that OUT can be made. Returns -1 with ERR_USAGE if its path does not end in a name ("x/.."), if it is a file
 * or a symbolic link, if it contains something that a conversion never removes, or if it exists and `force` is not
 * given.
 */
MUST_CHECK int staging_check_out(const char *out, bool force, struct err *e);
/* If a run was killed between the two renames of a replacement, give the old OUT its name back. */
MUST_CHECK int staging_recover(const char *out, struct err *e);
/*
 * Check OUT and make (part 0) or join (other parts) the two folders. Returns -1 with ERR_USAGE if OUT exists and
 * neither force nor resume allows it, or if leftovers are in the way, or with ERR_DATA if another process holds the
 * folders. Nothing is changed on failure.
 */
MUST_CHECK int staging_open(struct staging *s, const char *out, const char *fingerprint,
                            const struct staging_opts *o, struct err *e);
/* For part 0: record that the shared files exist. */
MUST_CHECK int staging_ready(struct staging *s, struct err *e);
/* For the other parts: wait until part 0 has called staging_ready(). */
MUST_CHECK int staging_wait(struct staging *s, const char *fingerprint, const struct staging_opts *o, struct err *e);
/*
 * Acquire the right to publish. Returns 1 if acquired, 0 if another process has it or has published already, -1 on
 * error.
 */
MUST_CHECK int staging_claim(struct staging *s, struct err *e);
/* Remove files named NAME.<process>.part, which a killed run was replacing. Called by the process that publishes. */
MUST_CHECK int staging_sweep(struct staging *s, struct err *e);
/* Sync the folder, rename it to OUT, and remove the job folder. An old OUT is removed only after the rename. */
MUST_CHECK int staging_publish(struct staging *s, struct err *e);
/* Remove both folders, whose content is useless. */
void staging_discard(struct staging *s);
/* Free the struct; the two folders are kept. Parents of OUT that this run created are removed if they are empty. */
void staging_close(struct staging *s);

#endif
