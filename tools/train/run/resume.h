/*
 * resume.h - the checkpoint that a run continues
 *
 * Order of calls: resume_open(), resume_apply_settings() once the options are complete, resume_print_changes(), and
 * resume_load() once the memory is allocated.
 */
#ifndef SHARDKIT_TRAIN_RUN_RESUME_H
#define SHARDKIT_TRAIN_RUN_RESUME_H

#include "libcommon/base/err.h"

struct trainer;

/*
 * Open the checkpoint of --load as t->from, or set t->from to NULL if there is none. Architecture options that were not
 * given are set from the checkpoint. Before that, files that killed saves have left in the folder of --save are
 * removed. All ranks must call this function.
 */
MUST_CHECK int resume_open(struct trainer *t, struct err *e);
/*
 * Set the options of the optimizer to the settings that the checkpoint stores with the optimizer's state. If requested,
 * also set the learning-rate schedule to the checkpoint's. Afterwards the options have the values that are in effect.
 * Does nothing without a checkpoint.
 */
void resume_apply_settings(struct trainer *t);
/* Print notes about settings that differ from those in the checkpoint. */
void resume_print_changes(struct trainer *t);
/* Load t->from into the memory of t->network, and set t->progress. All ranks must call it. */
MUST_CHECK int resume_load(struct trainer *t, struct err *e);

#endif
