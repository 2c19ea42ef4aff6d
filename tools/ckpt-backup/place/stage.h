/*
 * stage.h - a file or folder that is filled beside its name and gets it when it is whole
 *
 *     FINAL.part      being filled
 *     JOB/            fingerprint (of what it is made from) and journal, while FINAL.part is there
 *     FINAL.old.part  what had the name, while the new one takes it
 *
 * Killed anywhere, FINAL is absent, what it was, or the new one whole; the next stage_open() of the same fingerprint
 * goes on, of another one begins anew. A FINAL.part without a job is not ours and in the way.
 */
#ifndef SHARDKIT_CKPT_BACKUP_STAGE_H
#define SHARDKIT_CKPT_BACKUP_STAGE_H

#include <stdbool.h>

#include "libcommon/base/err.h"

struct backup_stage {
    char *final, *part, *job, *old;
    bool resumed;
};

/* Takes `job`'s name; its folder's parent exists. ERR_USAGE when something foreign is in the way. */
MUST_CHECK int stage_open(struct backup_stage *s, const char *final, const char *job, const char *fingerprint,
                          struct err *e);
/* FINAL, if it is there, steps aside. */
MUST_CHECK int stage_make_way(struct backup_stage *s, struct err *e);
/* FINAL.part becomes FINAL; what stepped aside is removed, and the job. */
MUST_CHECK int stage_publish(struct backup_stage *s, struct err *e);
/* FINAL stands: what a run left that was killed after it had published. */
MUST_CHECK int stage_sweep(const char *final, const char *job, struct err *e);
/* Remove what was filled: it is worthless. */
void stage_discard(struct backup_stage *s);
void stage_close(struct backup_stage *s);       /* frees; keeps the files */

#endif
