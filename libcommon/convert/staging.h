/*
 * staging.h - OUT.part and OUT.part.job: a folder that appears whole or not at all
 *
 *   OUT.part/       the folder being filled; renamed to OUT as the last act
 *   OUT.part.job/   what the run needs to know about itself:
 *       fingerprint   input files and options; a resumed run must find the same
 *       folder        OUT.part's inode: a rename keeps it, so a later run can tell whether
 *                     OUT.part is still the new folder or, after the swap, the old OUT
 *       ready         part 0 has made the shared files
 *       journal.<i>   finished items of process i (journal.h)
 *       lock.<i>      held by process i while it runs (flock: a kill releases it)
 *       publish       held by the process that publishes
 *   OUT.old.part    the whole old OUT, while the new one takes its name where the system cannot
 *                   exchange two folders at once; found while there is no OUT, it goes back
 *   OUT.gone.part   an old OUT on its way out
 *   OUT.kept        an old OUT in which something foreign appeared while it was being replaced
 *
 * Nothing is removed but what replace.h knows as ours.
 */
#ifndef SHARDKIT_CONVERT_STAGING_H
#define SHARDKIT_CONVERT_STAGING_H

#include <stdbool.h>

#include "libcommon/base/err.h"

struct staging {
    char *out, *part, *job;     /* OUT, OUT.part, OUT.part.job */
    bool resumed;               /* an earlier run's work is there */
    bool complete;              /* --resume was asked and OUT stands already: nothing to do */
    int lock_fd, publish_fd;
    char *made;                 /* the topmost parent of OUT that staging_open() created; NULL: none */
    char *kept;                 /* staging_publish() could not remove the old OUT: it lies here; or NULL */
};

struct staging_opts {
    bool force;                 /* replace OUT, throw away a foreign OUT.part */
    bool resume;
    int part, n_parts;
    bool (*stopped)(void);
};

/*
 * ERR_USAGE when OUT cannot be made: it has no name of its own ("x/.."), is a file or a symbolic
 * link, holds what a conversion never removes, or just exists and `force` is not given.
 */
MUST_CHECK int staging_check_out(const char *out, bool force, struct err *e);
/* A run was killed between the two renames of a replacement: the old OUT gets its name back. */
MUST_CHECK int staging_recover(const char *out, struct err *e);
/*
 * Check OUT and make (part 0) or join (others) the two folders. ERR_USAGE when OUT exists
 * and neither force nor resume allows it, or when leftovers are in the way; ERR_SYS when
 * another process holds them. Nothing is touched on failure.
 */
MUST_CHECK int staging_open(struct staging *s, const char *out, const char *fingerprint,
                            const struct staging_opts *o, struct err *e);
/* Part 0: the shared files exist. */
MUST_CHECK int staging_ready(struct staging *s, struct err *e);
/* Other parts: wait for that. */
MUST_CHECK int staging_wait(struct staging *s, const char *fingerprint, const struct staging_opts *o, struct err *e);
/* Take the right to publish. 1: ours; 0: another process has it or has done it; -1 error. */
MUST_CHECK int staging_claim(struct staging *s, struct err *e);
/* Remove what a killed run was replacing just then: files named NAME.<process>.part. For whoever publishes. */
MUST_CHECK int staging_sweep(struct staging *s, struct err *e);
/* Sync the folder, move it to OUT (an old OUT goes away only then), remove the job folder. */
MUST_CHECK int staging_publish(struct staging *s, struct err *e);
/* Remove both folders: their content is worthless. */
void staging_discard(struct staging *s);
/* Frees; keeps the two folders. Parents of OUT that this run created and nothing lies in are removed. */
void staging_close(struct staging *s);

#endif
