/* step_references.h - find checkpoints of a run that read the files of another step */
#ifndef SHARDKIT_CKPT_BACKUP_STEP_REFERENCES_H
#define SHARDKIT_CKPT_BACKUP_STEP_REFERENCES_H

#include <stdint.h>

#include "tools/ckpt-backup/survey.h"

/*
 * Check that no other folder of the run needs the files of a step: by a symbolic link, or as a virtual HDF5 form, whose
 * index.h5 names the files that it reads. Returns -1 with ERR_DATA if one does, or if the run cannot be searched.
 */
MUST_CHECK int step_check_unreferenced(const struct survey *s, int64_t step, struct err *e);
/*
 * Check that no delta in the place needs the backup, except those that the schedule removes, too, if `planned` is true.
 * Returns -1 with ERR_DATA if one does, or if the place holds a delta whose receipt cannot be read.
 */
MUST_CHECK int backup_check_unreferenced(const struct survey *s, int place, const struct receipt *rec, bool planned,
                                         struct err *e);

#endif
