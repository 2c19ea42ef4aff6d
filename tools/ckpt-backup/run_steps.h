/* run_steps.h - the folders of a run that are its steps */
#ifndef SHARDKIT_CKPT_BACKUP_RUN_STEPS_H
#define SHARDKIT_CKPT_BACKUP_RUN_STEPS_H

#include "libcommon/base/err.h"

struct run_steps {
    int n, cap;
    char **name;                /* names of the folders */
    int n_ignored;
    char **ignored;             /* names of folders that have the same step as another folder */
};

/* Add the folder `name` in the run, if it is a step by its name and by the names of its files. */
void run_steps_add(struct run_steps *l, const char *run, const char *name);
/*
 * Keep the steps of one series (step_name_same_series()), and sort them by their numbers. It is the series of *latest,
 * or if that is NULL or no name of a step, global_stepN, or else the only one there is; *latest becomes the name of one
 * of its steps. Of folders with the same step, *latest is kept, or else one that is no symbolic link. Returns -1
 * with *e set if it is not known which of several series is that of the run.
 */
MUST_CHECK int run_steps_choose(struct run_steps *l, const char *run, char **latest, struct err *e);
void run_steps_free(struct run_steps *l);

#endif
