/*
 * backup_staging.h - fill a file or folder under a temporary name (a stage), and rename it when it is complete
 *
 *     FINAL.part      the file or folder while it is being filled
 *     JOB/            the fingerprint of the source and a journal, while FINAL.part exists
 *     FINAL.old.part  the previous FINAL, while it is being replaced
 *
 * If the process is killed at any point, FINAL does not exist, is unchanged, or is the complete new one. The next
 * stage_open() resumes the work if the fingerprint is the same; otherwise it starts over. A FINAL.part without a JOB
 * was not made by this program, so stage_open() fails.
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
 * Open the stage for FINAL. If a killed process has left one with the same fingerprint, resume it (s->resumed). `job`
 * is the path of the JOB folder; its parent must exist. Returns -1 with ERR_USAGE if FINAL.part exists and was not made
 * by this program.
 */
MUST_CHECK int stage_open(struct backup_stage *s, const char *final, const char *job, const char *fingerprint,
                          struct err *e);
/* If FINAL exists, rename it to FINAL.old.part. */
MUST_CHECK int stage_make_way(struct backup_stage *s, struct err *e);
/* Rename FINAL.part to FINAL, then remove FINAL.old.part and JOB. */
MUST_CHECK int stage_publish(struct backup_stage *s, struct err *e);
/* Remove what a process has left that was killed after it had published FINAL. */
MUST_CHECK int stage_sweep(const char *final, const char *job, struct err *e);
/* Remove FINAL.part and JOB, because their contents are useless. */
void stage_discard(struct backup_stage *s);
void stage_close(struct backup_stage *s);       /* frees the struct and keeps the files */

#endif
