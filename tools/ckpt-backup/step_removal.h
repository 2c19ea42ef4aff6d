/* step_removal.h - remove the folder of a step from a run */
#ifndef SHARDKIT_CKPT_BACKUP_STEP_REMOVAL_H
#define SHARDKIT_CKPT_BACKUP_STEP_REMOVAL_H

#include "tools/ckpt-backup/survey.h"

/*
 * Remove the folder of a step from the run. Refuses if the folder contains anything that does not belong to a
 * checkpoint. The folder is renamed first, so that no program can load a checkpoint that is removed only in part.
 */
MUST_CHECK int step_remove(const char *path, struct err *e);
/* Finish to remove the folders that a killed process had begun to remove. */
MUST_CHECK int step_sweep(const struct survey *s, struct err *e);

#endif
