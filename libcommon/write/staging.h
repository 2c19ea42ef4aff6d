/*
 * staging.h - OUT.part and OUT.part.job: give a folder its final name only when it is complete
 *
 *   OUT.part/       the folder while it is being filled; the last step renames it to OUT
 *   OUT.part.job/   the state of the run:
 *       fingerprint   input files and options; a resumed run must have the same
 *       folder        inode number of OUT.part. A rename does not change it, so a later run can find out whether
 *                     OUT.part is still the new folder or, after both were exchanged, the old OUT
 *       ready         exists once part 0 has created the shared files
 *       journal.<i>   finished items of process i (journal.h)
 *       lock.<i>      locked by process i while it runs (by flock(), so the lock ends with the process)
 *       publish       locked by the process that publishes
 *   OUT.old.part    the complete old OUT while it is being replaced, if the file system cannot exchange two folders
 *                   atomically; if a later run finds it and no OUT, it renames it back
 *   OUT.gone.part   an old OUT that is being removed
 *   OUT.kept        an old OUT in which a foreign file appeared while it was being replaced
 *
 * A folder is removed only if replace.h allows it.
 */
#ifndef SHARDKIT_WRITE_STAGING_H
#define SHARDKIT_WRITE_STAGING_H

#include <stdbool.h>

#include "libcommon/base/err.h"

struct staging {
    char *out, *part, *job;     /* the paths OUT, OUT.part, OUT.part.job */
    bool resumed;               /* this run continues the work of an earlier run */
    bool complete;              /* with --resume: OUT is already complete, so no work is left */
    /* true if `complete` is true and the job folder states that OUT is the result of this job */
    bool recorded;
    int lock_fd, publish_fd;
    char *made;                 /* the topmost parent folder of OUT that staging_open() has created; NULL: none */
    char *kept;                 /* path of an old OUT that staging_publish() could not remove; NULL: none */
};

struct staging_opts {
    bool force;                 /* replace OUT if it exists, and discard an OUT.part of another job */
    bool resume;
    int part, n_parts;
    bool (*stopped)(void);
};

/*
 * Check that OUT can be created. Returns -1 with ERR_USAGE if its path does not end in a name ("x/.."), if OUT is a
 * file or a symbolic link, if OUT contains something that a conversion never removes, or if OUT exists and `force` is
 * false.
 */
MUST_CHECK int staging_check_out(const char *out, bool force, struct err *e);
/* Rename the old OUT back if a run was killed between the two renames that replace OUT. */
MUST_CHECK int staging_recover(const char *out, struct err *e);
/*
 * Check OUT. Then part 0 creates OUT.part and OUT.part.job, and the other parts open them. Nothing is changed on
 * failure. Returns -1 with ERR_USAGE if OUT exists and neither `force` nor `resume` allows this, or if folders of an
 * earlier run prevent the conversion. Returns -1 with ERR_DATA if another process holds the folders.
 */
MUST_CHECK int staging_open(struct staging *s, const char *out, const char *fingerprint,
                            const struct staging_opts *o, struct err *e);
/* Record that the shared files exist. Only called for part 0. */
MUST_CHECK int staging_ready(struct staging *s, struct err *e);
/* Wait until part 0 has called staging_ready(). All other parts must call this. */
MUST_CHECK int staging_wait(struct staging *s, const char *fingerprint, const struct staging_opts *o, struct err *e);
/*
 * Try to become the process that publishes. Returns 1 on success, 0 if another process publishes or has published, or
 * -1 on error.
 */
MUST_CHECK int staging_claim(struct staging *s, struct err *e);
/*
 * Remove the temporary files NAME.<process>.part of a run that was killed while it replaced NAME. Only the process that
 * publishes may call this.
 */
MUST_CHECK int staging_sweep(struct staging *s, struct err *e);
/* Sync OUT.part, rename it to OUT, and remove the job folder. An old OUT is removed only after the rename. */
MUST_CHECK int staging_publish(struct staging *s, struct err *e);
/* Remove OUT.part and OUT.part.job, because their contents are useless. */
void staging_discard(struct staging *s);
/*
 * Free the struct, and keep OUT.part and OUT.part.job. Parent folders of OUT that this run has created are removed if
 * they are empty.
 */
void staging_close(struct staging *s);

#endif
