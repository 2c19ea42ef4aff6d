/*
 * backup_staging.h - a file or folder that is filled under a temporary name and renamed when it is whole
 *
 *     FINAL.part      being filled
 *     JOB/            fingerprint of the source and journal, while FINAL.part exists
 *     FINAL.old.part  the previous FINAL, while it is replaced
 *
 * After a kill at any point, FINAL is absent, unchanged, or the whole new one. The next stage_open() with the same
 * fingerprint resumes the work; one with another fingerprint starts over. A FINAL.part without a JOB was not made by
 * this code and is treated as an obstacle.
 */
#ifndef SHARDKIT_CKPT_BACKUP_BACKUP_STAGING_H
#define SHARDKIT_CKPT_BACKUP_BACKUP_STAGING_H

#include <stdbool.h>

#include "libcommon/base/err.h"

struct backup_stage {
    char *final, *part, *job, *old;
    bool resumed;
};

/*
 * Open the stage for FINAL, or resume one that a killed process left (s->resumed). `job` is the path of the JOB folder,
 * whose parent must exist. Returns -1 with ERR_USAGE if FINAL.part exists and was not made by this program.
 */
MUST_CHECK int stage_open(struct backup_stage *s, const char *final, const char *job, const char *fingerprint,
                          struct err *e);
/* If FINAL exists, rename it to FINAL.old.part. */
MUST_CHECK int stage_make_way(struct backup_stage *s, struct err *e);
/* Rename FINAL.part to FINAL, then remove FINAL.old.part and JOB. */
MUST_CHECK int stage_publish(struct backup_stage *s, struct err *e);
/* Remove the leftovers of a process that was killed after it had published FINAL. */
MUST_CHECK int stage_sweep(const char *final, const char *job, struct err *e);
/* Remove FINAL.part and JOB, whose content is useless. */
void stage_discard(struct backup_stage *s);
void stage_close(struct backup_stage *s);       /* frees the struct; keeps the files */

#endif
