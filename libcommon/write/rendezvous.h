/*
 * rendezvous.h - find out whether all tasks of a launch take part in this conversion, or only one was started
 *
 * srun and mpirun give a process its number and the number of tasks, but not whether the other tasks were given the
 * same command: a script that runs a converter in only one task looks the same to that process. Therefore the tasks
 * meet through files:
 *   OUT.part.meet.<launch>/
 *       task.<i>    task i (of n) came; its modification time shows whether it is a leftover of another launch
 *       all         a task has seen all the others
 *       alone       a task has waited long enough and converts alone; contains its number
 * The last task to leave removes the folder.
 */
#ifndef SHARDKIT_WRITE_RENDEZVOUS_H
#define SHARDKIT_WRITE_RENDEZVOUS_H

#include <stdbool.h>

#include "libcommon/base/err.h"

struct rendezvous {
    char *dir;                  /* NULL if no meeting was held */
    char *mine;
    char *made;                 /* the topmost parent of OUT that was created for the meeting; NULL if none */
    int n_tasks;
    bool alone;
};

struct rendezvous_opts {
    int task, n_tasks;
    bool all;                   /* all tasks must come: wait ten minutes, then fail */
    bool (*stopped)(void);      /* may be NULL */
    void (*say)(void *ctx, const char *text);   /* reports which tasks are missing, and the outcome; may be NULL */
    void *ctx;
};

/*
 * Wait for the other tasks of this launch to come to `out`. Returns 1 if all are present: do your part. Returns 0 if
 * they did not come within SHARDKIT_MEET_SECONDS (60): convert everything alone. Returns -1 with ERR_SYS, ERR_STOP,
 * or ERR_DATA if another task converts alone (or if `all` was set and some did not come).
 */
MUST_CHECK int rendezvous_join(struct rendezvous *m, const char *out, const struct rendezvous_opts *o, struct err *e);
/* Leave the meeting. Also call it after a failure; harmless if no meeting was held. */
void rendezvous_close(struct rendezvous *m);

#endif
